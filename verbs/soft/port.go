package soft

import (
	"net/netip"
	"syscall"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/railstore/railstore/verbs"
)

// portWatch follows the net device that a port is on. Its netlink socket is one
// of the things that the device's goroutine sleeps on; where there is none the
// state is still read when it is asked for, and no events come.
type portWatch struct {
	addr netip.Addr // of the device, with its zone
	link link       // as it was at open
	sub  *nl.NetlinkSocket
	// Last seen by the goroutine.
	state verbs.PortState
	here  bool
}

func (w *portWatch) watch(d *device) {
	w.state, w.here = w.link.state(), true
	sub, err := nl.Subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR)
	if err != nil {
		d.counters.noPortEvents.Store(1)
		return
	}
	w.sub = sub
}

// fd is the descriptor to watch for input, or -1.
func (w *portWatch) fd() int {
	if w.sub == nil {
		return -1
	}
	return w.sub.GetFd()
}

// current is the net device that has the address now; the one of the open and
// false when none has.
func (w *portWatch) current() (link, bool) {
	if l, ok := linkOf(w.addr); ok {
		return l, true
	}
	return w.link, false
}

// changed is called when something about the host's net devices has changed. What
// the messages say is not read: the state that counts is the one after them.
func (w *portWatch) changed(d *device) {
	var b [4096]byte
	for {
		_, _, err := unix.Recvfrom(w.fd(), b[:], unix.MSG_DONTWAIT)
		if err == unix.EINTR || err == syscall.ENOBUFS {
			continue
		}
		if err != nil {
			break
		}
	}
	l, here := w.current()
	state := verbs.PortDown
	if here {
		state = l.state()
	}
	if here != w.here {
		d.emit(verbs.AsyncEvent{Type: verbs.EventGIDChange, Port: 1})
	}
	if state != w.state && d.drv.script.down.Load() == 0 {
		e := verbs.AsyncEvent{Type: verbs.EventPortError, Port: 1}
		if state == verbs.PortActive {
			e.Type = verbs.EventPortActive
		}
		d.emit(e)
	}
	w.state, w.here = state, here
}

func (w *portWatch) close() {
	if w.sub != nil {
		w.sub.Close()
		w.sub = nil
	}
}
