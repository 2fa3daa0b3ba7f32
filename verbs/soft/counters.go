package soft

import (
	"sync/atomic"

	"github.com/railstore/railstore/verbs/soft/internal/udp"
)

// counters of a device.
type counters struct {
	packets      atomic.Uint64
	malformed    atomic.Uint64
	unknownQP    atomic.Uint64
	wrongSource  atomic.Uint64
	badICRC      atomic.Uint64
	sendErrors   atomic.Uint64
	recvErrors   atomic.Uint64
	eventsLost   atomic.Uint64
	noPortEvents atomic.Uint64
}

// Counters are what a device has counted since it was opened.
type Counters struct {
	Device  string
	UDPPort uint16

	Packets     uint64 // received, those dropped included
	Malformed   uint64 // dropped: too short, unknown opcode, wrong length
	UnknownQP   uint64 // dropped: no QP has that number
	WrongSource uint64 // dropped: not from the QP's peer
	BadICRC     uint64 // dropped
	SendErrors  uint64
	RecvErrors  uint64
	EventsLost  uint64 // nobody took them

	NoPortEvents bool // the kernel's link messages could not be subscribed to
	Socket       udp.Stats
	Features     udp.Features
}

// Counters are those of the driver's open devices.
func (d *Driver) Counters() []Counters {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := make([]Counters, 0, len(d.open))
	for _, v := range d.open {
		out = append(out, v.count())
	}
	return out
}

func (d *device) count() Counters {
	c := &d.counters
	return Counters{
		Device: d.name, UDPPort: d.addr.Port(),
		Packets: c.packets.Load(), Malformed: c.malformed.Load(), UnknownQP: c.unknownQP.Load(),
		WrongSource: c.wrongSource.Load(), BadICRC: c.badICRC.Load(),
		SendErrors: c.sendErrors.Load(), RecvErrors: c.recvErrors.Load(), EventsLost: c.eventsLost.Load(),
		NoPortEvents: c.noPortEvents.Load() != 0, Socket: d.sock.Stats(), Features: d.sock.Features(),
	}
}
