package soft

import "sync/atomic"

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

// Counters are what a device has counted since it was opened, and what its socket
// is like.
type Counters struct {
	Device  string
	UDPPort uint16

	Packets     uint64 // received, those dropped included
	Malformed   uint64 // dropped: too short, unknown opcode, wrong length
	UnknownQP   uint64 // dropped: no QP has that number
	WrongSource uint64 // dropped: not from the QP's peer
	BadICRC     uint64 // dropped

	DatagramsSent     uint64 // a train is one
	DatagramsReceived uint64
	SendCalls         uint64
	RecvCalls         uint64
	SendDrops         uint64 // datagrams that the kernel refused to send
	SendWaits         uint64 // times the send buffer was full
	RecvDrops         uint64 // datagrams lost because the receive buffer was full
	SendErrors        uint64 // the socket was gone
	RecvErrors        uint64
	EventsLost        uint64 // asynchronous events that nobody took
	NoPortEvents      bool   // the kernel's link messages could not be subscribed to

	GSO, GRO               bool // what the socket has now
	RecvBuffer, SendBuffer int  // bytes, as the kernel counts them
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
	c, st, f := &d.counters, d.sock.Stats(), d.sock.Features()
	return Counters{
		Device: d.name, UDPPort: d.addr.Port(),
		Packets: c.packets.Load(), Malformed: c.malformed.Load(), UnknownQP: c.unknownQP.Load(),
		WrongSource: c.wrongSource.Load(), BadICRC: c.badICRC.Load(),
		DatagramsSent: st.DatagramsSent, DatagramsReceived: st.DatagramsRecv, SendCalls: st.SendCalls, RecvCalls: st.RecvCalls,
		SendDrops: st.SendDrops, SendWaits: st.SendWaits, RecvDrops: st.RecvDrops,
		SendErrors: c.sendErrors.Load(), RecvErrors: c.recvErrors.Load(), EventsLost: c.eventsLost.Load(),
		NoPortEvents: c.noPortEvents.Load() != 0,
		GSO:          f.GSO, GRO: f.GRO, RecvBuffer: f.RecvBuffer, SendBuffer: f.SendBuffer,
	}
}
