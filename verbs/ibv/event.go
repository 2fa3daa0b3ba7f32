//go:build cgo && linux

package ibv

// #include "shim.h"
import "C"

import (
	"errors"

	"golang.org/x/sys/unix"

	"github.com/railstore/railstore/verbs"
)

// runCompletions hands completion events to their CQs until the device closes.
func (d *device) runCompletions() {
	var e unix.Errno
	d.comp.each(func() unix.Errno {
		id := C.rs_next_cq_event(d.lib, d.channel)
		if e = 0; id < 0 {
			e = unix.Errno(-id)
			return e
		}
		if q := d.cqOf(uintptr(id)); q != nil {
			q.signal()
		}
		return 0
	})
	if e == unix.EAGAIN || e == 0 {
		return // closed
	}
	// No event will come any more: nobody may go on waiting for one.
	d.mu.Lock()
	defer d.mu.Unlock()
	d.deaf = &verbs.Error{Op: "get_cq_event", Device: d.name, Kind: verbs.ErrDevice, Err: e}
	for _, q := range d.cqs {
		q.fail(d.deaf)
	}
}

// runEvents passes asynchronous events on until the device closes. An event is
// acknowledged in the crossing that reads it, with no lock held: who destroys the QP
// or CQ of an event holds its lock and waits in the library for that.
func (d *device) runEvents() {
	d.async.each(func() unix.Errno {
		var ev C.struct_rs_event
		if e := unix.Errno(C.rs_next_async_event(d.lib, d.ctx, &ev)); e != 0 {
			return e
		}
		d.handle(int(ev._type), uint8(ev.port), uint32(ev.qpn), uintptr(ev.cq))
		return 0
	})
}

// eventTypes are the library's events that package verbs knows.
var eventTypes = map[int]verbs.EventType{
	C.AB_EVENT_CQ_ERR:        verbs.EventCQError,
	C.AB_EVENT_QP_FATAL:      verbs.EventQPFatal,
	C.AB_EVENT_QP_REQ_ERR:    verbs.EventQPRequestError,
	C.AB_EVENT_QP_ACCESS_ERR: verbs.EventQPAccessError,
	C.AB_EVENT_COMM_EST:      verbs.EventCommEstablished,
	C.AB_EVENT_DEVICE_FATAL:  verbs.EventDeviceFatal,
	C.AB_EVENT_PORT_ACTIVE:   verbs.EventPortActive,
	C.AB_EVENT_PORT_ERR:      verbs.EventPortError,
	C.AB_EVENT_LID_CHANGE:    verbs.EventLIDChange,
	C.AB_EVENT_PKEY_CHANGE:   verbs.EventPKeyChange,
	C.AB_EVENT_GID_CHANGE:    verbs.EventGIDChange,
	C.AB_EVENT_SM_CHANGE:     verbs.EventSMChange,

	C.AB_EVENT_CLIENT_REREGISTER: verbs.EventClientReregister,
}

var errOverrun = errors.New("more completions came than it holds, or the device lost it: make the queue deeper or poll it more often")

func (d *device) handle(number int, port uint8, qpn uint32, cq uintptr) {
	t, ok := eventTypes[number]
	if !ok {
		return
	}
	ev := verbs.AsyncEvent{Type: t, Port: port, QPN: qpn}
	switch t {
	case verbs.EventCQError:
		ev.Err = &verbs.Error{Op: "poll_cq", Device: d.name, Kind: verbs.ErrCQOverrun, Err: errOverrun}
		if q := d.cqOf(cq); q != nil {
			q.fail(ev.Err)
			ev.CQ = q
		}
	case verbs.EventDeviceFatal:
		ev.Err = &verbs.Error{Op: "async_event", Device: d.name, Kind: verbs.ErrDevice}
	}
	select {
	case d.events <- ev:
	default: // nobody takes them: the newest are lost
		d.lost.Add(1)
	}
}

func (d *device) cqOf(id uintptr) *cq {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.cqs[id]
}
