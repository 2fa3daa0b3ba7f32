package soft

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/railstore/railstore/verbs"
)

type arming uint8

const (
	disarmed arming = iota
	armedSolicited
	armedAny
)

// cq is a completion queue: a ring of a fixed size.
type cq struct {
	dev    *device
	event  chan struct{} // holds the one event that Arm asked for
	closed chan struct{}
	count  atomic.Int32 // completions in the ring, to find it empty without the lock
	bad    atomic.Bool  // overrun or closed

	mu    sync.Mutex
	ring  []verbs.WC
	head  int
	armed arming
	cause error // why it is bad
}

func newCQ(d *device, depth int) *cq {
	return &cq{dev: d, event: make(chan struct{}, 1), closed: make(chan struct{}), ring: make([]verbs.WC, depth)}
}

// push appends a completion. It reports false when there is no room: the queue
// is broken from then on.
func (c *cq) push(wc *verbs.WC, solicited bool) bool {
	c.mu.Lock()
	if c.cause != nil {
		c.mu.Unlock()
		return false
	}
	n := int(c.count.Load())
	if n == len(c.ring) {
		c.cause = &verbs.Error{Op: "poll_cq", Kind: verbs.ErrCQOverrun,
			Err: fmt.Errorf("%d completions waited and one more came: make the queue deeper or poll it more often", n)}
		c.bad.Store(true)
		c.mu.Unlock()
		c.signal()
		c.dev.emit(verbs.AsyncEvent{Type: verbs.EventCQError, CQ: c, Err: c.cause})
		return false
	}
	i := c.head + n
	if i >= len(c.ring) {
		i -= len(c.ring)
	}
	c.ring[i] = *wc
	c.count.Store(int32(n + 1))
	wake := c.armed == armedAny || c.armed == armedSolicited && (solicited || wc.Status != verbs.WCSuccess)
	if wake {
		c.armed = disarmed
	}
	c.mu.Unlock()
	if wake {
		c.signal()
	}
	return true
}

func (c *cq) signal() {
	select {
	case c.event <- struct{}{}:
	default: // the last event has not been waited for yet
	}
}

// Poll takes completions. On an empty queue it does the device's work once.
func (c *cq) Poll(wcs []verbs.WC) (int, error) {
	if len(wcs) == 0 {
		return 0, nil
	}
	if c.count.Load() == 0 {
		if c.bad.Load() {
			return 0, c.why()
		}
		if !c.dev.Progress() || c.count.Load() == 0 {
			return 0, nil
		}
	}
	c.mu.Lock()
	have := int(c.count.Load())
	n := min(have, len(wcs))
	k := copy(wcs[:n], c.ring[c.head:])
	copy(wcs[k:n], c.ring)
	if c.head += n; c.head >= len(c.ring) {
		c.head -= len(c.ring)
	}
	c.count.Store(int32(have - n))
	c.mu.Unlock()
	return n, nil
}

func (c *cq) why() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cause
}

// Arm asks for one event. It also says that the caller is about to sleep.
func (c *cq) Arm(solicited bool) error {
	c.mu.Lock()
	if c.cause != nil {
		defer c.mu.Unlock()
		return c.cause
	}
	if !solicited {
		c.armed = armedAny
	} else if c.armed == disarmed {
		c.armed = armedSolicited
	}
	c.mu.Unlock()
	c.dev.pollerLeaves()
	return nil
}

// Wait blocks until the event.
func (c *cq) Wait(ctx context.Context) error {
	select {
	case <-c.event:
		return nil
	default:
	}
	select {
	case <-c.event:
		return nil
	case <-c.closed:
		return c.why()
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Wake ends a Wait, or the next one.
func (c *cq) Wake() { c.signal() }

// Close destroys the queue and ends every Wait.
func (c *cq) Close() error {
	c.mu.Lock()
	if c.cause == nil || c.cause != errCQClosed {
		c.cause = errCQClosed
		close(c.closed)
	}
	c.count.Store(0)
	c.bad.Store(true)
	c.mu.Unlock()
	c.dev.release(&c.dev.cqs)
	return nil
}

var errCQClosed error = &verbs.Error{Kind: verbs.ErrClosed}
