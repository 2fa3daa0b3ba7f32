package rc

import (
	"github.com/railstore/railstore/verbs"
	"github.com/railstore/railstore/verbs/soft/internal/wire"
)

// MaxSGE is the largest number of scatter/gather elements of a work request, and
// of Frags of a packet.
const MaxSGE = 32

// Packet is one packet to send. The owner adds IP and UDP headers before it, Pad
// zero bytes and the ICRC after it.
type Packet struct {
	Hdr    [wire.MaxHeader]byte // BTH and extended headers
	HdrLen uint8
	Pad    uint8    // 0 to 3
	Len    uint32   // bytes of all Frags
	Frags  [][]byte // payload, in registered memory
}

// Header is the part of Hdr in use.
func (p *Packet) Header() []byte { return p.Hdr[:p.HdrLen] }

// Size is the length of the UDP payload: headers, payload, pad and ICRC.
func (p *Packet) Size() int { return int(p.HdrLen) + int(p.Len) + int(p.Pad) + wire.ICRCLen }

// Completion is one entry for a completion queue.
type Completion struct {
	WC        verbs.WC
	Recv      bool // for the receive CQ
	Solicited bool // wakes a solicited-only waiter (or Status is an error)
}

// Output collects what calls on Conns put out. One Output may serve many Conns in
// turn; it must be Reset in between only if the owner wants to tell them apart.
type Output struct {
	Packets []Packet // never grows beyond the capacity given to NewOutput
	Done    []Completion
	Events  []verbs.EventType // EventCommEstablished, EventQPFatal, EventQPRequestError, EventQPAccessError

	all   []Packet // Packets with all their room
	frags [][]byte
}

// NewOutput makes an Output with room for that many packets (at least one).
func NewOutput(packets int) *Output {
	packets = max(packets, 1)
	o := &Output{
		all:    make([]Packet, 0, packets),
		Done:   make([]Completion, 0, 64),
		Events: make([]verbs.EventType, 0, 4),
		frags:  make([][]byte, 0, 2*packets+MaxSGE),
	}
	o.Limit(0)
	return o
}

// Limit makes an empty Output full after so many packets; 0 is what NewOutput was
// given.
func (o *Output) Limit(packets int) {
	if packets <= 0 || packets > cap(o.all) {
		packets = cap(o.all)
	}
	o.Packets = o.all[:0:packets]
}

// Reset empties it. Frags of its packets must not be used any more.
func (o *Output) Reset() {
	o.Packets = o.Packets[:0]
	o.Done = o.Done[:0]
	o.Events = o.Events[:0]
	o.frags = o.frags[:0]
}
