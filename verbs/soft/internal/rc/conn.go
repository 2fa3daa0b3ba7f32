package rc

import (
	"github.com/railstore/railstore/verbs"
	"github.com/railstore/railstore/verbs/soft/internal/wire"
)

// Config of a Conn. Zero values are replaced as said beside each field.
type Config struct {
	QPN    uint32
	Device string // for errors
	Cap    verbs.QPCap
	SigAll bool // every send request gets a completion
	Mem    Memory

	PKey          uint16 // 0xffff
	InitialWindow int    // packets in flight at first; 64
	MaxWindow     int    // packets in flight at most; 1024
	WindowBytes   int    // the same in bytes of the path MTU, at least 8 packets; 0: MaxWindow alone
	MinRTO        int64  // ns, floor of the early retransmission timer; 5 ms; negative: only the IBTA timer
}

// Conn is both halves of a reliable connection. All calls are serialised by the
// owner.
type Conn struct {
	cfg   Config
	attr  verbs.QPAttr
	stats verbs.QPStats

	mtu      uint32 // path MTU, a power of two
	mtuShift uint8
	turn     bool // requests go before replies in the next Pump

	requester
	responder

	// Placer, where it is set, is told of payload that a WRITE of the peer brings
	// before it is placed, and may take it over by returning true. It must copy
	// what it keeps of src.
	Placer func(dst, src []byte, rkey uint32, va uint64) bool

	errState, errSQFull, errRQFull, errSendWR, errRecvWR *verbs.Error
}

// New makes a Conn in RESET. It panics when Cap asks for more than MaxSGE
// elements a request, which the owner's device attributes rule out.
func New(cfg Config) *Conn {
	if cfg.Cap.MaxSendSGE > MaxSGE || cfg.Cap.MaxRecvSGE > MaxSGE {
		panic("rc: more elements a request than MaxSGE")
	}
	if cfg.PKey == 0 {
		cfg.PKey = 0xffff
	}
	if cfg.MaxWindow <= 0 {
		cfg.MaxWindow = 1024
	}
	if cfg.InitialWindow <= 0 {
		cfg.InitialWindow = 64
	}
	if cfg.MinRTO == 0 {
		cfg.MinRTO = 5e6
	}
	c := &Conn{cfg: cfg, mtu: 256, mtuShift: 8}
	c.sq.init(cfg.Cap)
	c.rq.init(cfg.Cap)
	bad := func(op string, kind error, text string) *verbs.Error {
		e := verbs.Errorf(kind, op, cfg.Device, "%s", text)
		e.QPN = cfg.QPN
		return e
	}
	c.errState = bad("post_send", verbs.ErrState, "the QP takes no send requests before RTS")
	c.errSQFull = bad("post_send", verbs.ErrSQFull, "take completions first")
	c.errRQFull = bad("post_recv", verbs.ErrRQFull, "take completions first")
	c.errSendWR = bad("post_send", verbs.ErrInvalid, "unknown opcode, too many elements, over 2 GiB, or an atomic without one element of 8 bytes")
	c.errRecvWR = bad("post_recv", verbs.ErrInvalid, "too many elements, or over 4 GiB")
	c.reset()
	return c
}

// State is the state of the QP.
func (c *Conn) State() verbs.QPState { return c.attr.State }

// Attr are the attributes set so far and the state.
func (c *Conn) Attr() verbs.QPAttr { return c.attr }

// InFlight is how many packets were sent, or asked for, and are not answered; those
// that were lost count until they have been sent again.
func (c *Conn) InFlight() int {
	if c.NextTick() == 0 {
		return 0
	}
	return int(max(c.top.Diff(c.una), 0))
}

// Share bounds the packets in flight beside the window, from the next Pump on: an
// owner whose connections send into one buffer divides it among those that have
// packets in flight. 0 is no bound.
func (c *Conn) Share(packets int) { c.win.share = uint32(max(packets, 0)) }

// Stats are the counters since the last reset.
func (c *Conn) Stats() verbs.QPStats { return c.stats }

// Step takes one received packet whose ICRC was checked. Packets for another QP or
// partition are dropped.
func (c *Conn) Step(now int64, p *wire.Packet, out *Output) {
	switch c.attr.State {
	case verbs.QPRTR, verbs.QPRTS, verbs.QPSQD:
	default:
		return
	}
	if p.DestQPN != c.cfg.QPN || (p.PKey^c.cfg.PKey)&0x7fff != 0 {
		return
	}
	c.stats.PacketsReceived++
	c.stats.BytesReceived += uint64(len(p.Payload))
	switch {
	case !p.Opcode.Response():
		c.request(p, out)
	case c.attr.State == verbs.QPRTR:
		// Nothing was asked for yet.
	case p.Opcode == wire.Acknowledge:
		c.acknowledge(now, p, out)
	case p.Opcode == wire.AtomicAcknowledge:
		c.atomicResponse(now, p, out)
	default:
		c.readResponse(now, p, out)
	}
}

// Pump puts out packets that may be sent now. It reports whether there are more
// and only room was missing. In the error state it flushes what was posted.
func (c *Conn) Pump(now int64, out *Output) (more bool) {
	if c.attr.State == verbs.QPErr {
		c.flush(out)
		return c.pumpReplies(out)
	}
	// Whoever did not get room goes first the next time.
	if c.turn {
		if c.pumpRequests(now, out) {
			c.turn = false
			return true
		}
		return c.pumpReplies(out)
	}
	if c.pumpReplies(out) {
		c.turn = true
		return true
	}
	return c.pumpRequests(now, out)
}

// header starts a packet in out, which has room, and writes its BTH.
func (c *Conn) header(out *Output, op wire.Opcode, flags uint8, ackReq bool, psn wire.PSN) *Packet {
	n := len(out.Packets)
	out.Packets = out.Packets[:n+1]
	k := &out.Packets[n]
	wire.BTH(k.Hdr[:]).Put(op, flags, c.cfg.PKey, c.attr.DestQPN, ackReq, psn)
	k.HdrLen = wire.BTHLen
	k.Pad = 0
	k.Len = 0
	k.Frags = nil
	c.stats.PacketsSent++
	return k
}
