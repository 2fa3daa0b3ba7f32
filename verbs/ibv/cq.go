//go:build cgo && linux

package ibv

// #cgo noescape rs_poll
// #cgo nocallback rs_poll
// #include "shim.h"
import "C"

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/railstore/railstore/verbs"
)

// cq is a completion queue.
type cq struct {
	dev    *device
	id     uintptr
	event  chan struct{} // holds the one event that Arm asked for
	closed chan struct{}
	bad    atomic.Bool // cause is set

	mu sync.Mutex // guards cq, which is nil once closed
	cq *C.struct_ab_cq

	why   sync.Mutex // guards cause; a leaf, never held together with mu
	cause error
}

var errCQClosed error = &verbs.Error{Kind: verbs.ErrClosed}

// CreateCQ creates a completion queue with room for depth completions; the
// device may make it larger.
func (d *device) CreateCQ(depth int) (verbs.DriverCQ, error) {
	q := &cq{dev: d, event: make(chan struct{}, 1), closed: make(chan struct{})}
	d.mu.Lock()
	if err := d.deaf; err != nil {
		d.mu.Unlock()
		return nil, err
	}
	d.nextCQ++
	q.id = d.nextCQ
	d.cqs[q.id] = q // before the device knows it: its first event may be early
	d.mu.Unlock()
	c, err := C.rs_create_cq(d.lib, d.ctx, C.int(depth), C.uintptr_t(q.id), d.channel)
	if c == nil {
		d.forget(q)
		e := errnoOf(err)
		return nil, verbs.Errorf(kindOf(e), "create_cq", d.name, "%w: %d completions; the device allows %d each and %d queues, and other processes use them too",
			e, depth, d.attr.MaxCQE, d.attr.MaxCQ)
	}
	q.cq = c
	d.live.cqs.Add(1)
	return q, nil
}

func (d *device) forget(q *cq) {
	d.mu.Lock()
	delete(d.cqs, q.id)
	d.mu.Unlock()
}

// Poll takes completions in one crossing.
func (q *cq) Poll(wcs []verbs.WC) (int, error) {
	if len(wcs) == 0 {
		return 0, nil
	}
	q.mu.Lock()
	if q.cq == nil {
		q.mu.Unlock()
		return 0, errCQClosed
	}
	n := int(C.rs_poll(C.uintptr_t(uintptr(unsafe.Pointer(q.cq))), (*C.struct_rs_wc)(unsafe.Pointer(unsafe.SliceData(wcs))), C.int(len(wcs))))
	q.mu.Unlock()
	if n > 0 {
		return n, nil
	}
	if q.bad.Load() {
		return 0, q.reason()
	}
	if n < 0 {
		return 0, q.dev.failed("poll_cq", unix.Errno(-n))
	}
	return 0, nil
}

// Arm asks for one event.
func (q *cq) Arm(solicited bool) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.cq == nil {
		return errCQClosed
	}
	only := C.int(0)
	if solicited {
		only = 1
	}
	if e := C.rs_req_notify(q.cq, only); e != 0 {
		return q.dev.failed("req_notify_cq", unix.Errno(e))
	}
	return nil
}

// Wait blocks until the event.
func (q *cq) Wait(ctx context.Context) error {
	select {
	case <-q.event:
		return nil
	default:
	}
	if q.bad.Load() {
		return q.reason()
	}
	select {
	case <-q.event:
		return nil
	case <-q.closed:
		return errCQClosed
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Wake ends a Wait, or the next one.
func (q *cq) Wake() { q.signal() }

func (q *cq) signal() {
	select {
	case q.event <- struct{}{}:
	default: // the last event has not been waited for yet
	}
}

// fail marks the queue as broken and wakes who waits; the first cause is kept.
func (q *cq) fail(err error) {
	q.why.Lock()
	if q.cause == nil {
		q.cause = err
		q.bad.Store(true)
	}
	q.why.Unlock()
	q.signal()
}

func (q *cq) reason() error {
	q.why.Lock()
	defer q.why.Unlock()
	return q.cause
}

// Close destroys the queue and ends every Wait.
func (q *cq) Close() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.cq == nil {
		return nil
	}
	// The library waits here until every event of the queue is acknowledged, which
	// the device's goroutines do without this lock.
	if e := C.rs_destroy_cq(q.dev.lib, q.cq); e != 0 {
		return &verbs.Error{Op: "destroy_cq", Device: q.dev.name, Kind: kindOf(unix.Errno(e)), Err: fmt.Errorf("%w", unix.Errno(e))}
	}
	q.cq = nil
	q.dev.forget(q)
	close(q.closed)
	q.dev.live.cqs.Add(-1)
	return nil
}
