package rc

import (
	"github.com/railstore/railstore/verbs"
	"github.com/railstore/railstore/verbs/soft/internal/wire"
)

// kind of operation that a request packet belongs to.
type kind uint8

const (
	kindNone kind = iota
	kindSend
	kindWrite
	kindRead
	kindAtomic
	kindRefused // known, but never allowed
)

// request opcodes, taken apart.
type requestOp struct {
	kind        kind
	first, last bool
	imm         bool
}

var requestOps = [32]requestOp{
	wire.SendFirst:    {kindSend, true, false, false},
	wire.SendMiddle:   {kindSend, false, false, false},
	wire.SendLast:     {kindSend, false, true, false},
	wire.SendLastImm:  {kindSend, false, true, true},
	wire.SendOnly:     {kindSend, true, true, false},
	wire.SendOnlyImm:  {kindSend, true, true, true},
	wire.WriteFirst:   {kindWrite, true, false, false},
	wire.WriteMiddle:  {kindWrite, false, false, false},
	wire.WriteLast:    {kindWrite, false, true, false},
	wire.WriteLastImm: {kindWrite, false, true, true},
	wire.WriteOnly:    {kindWrite, true, true, false},
	wire.WriteOnlyImm: {kindWrite, true, true, true},
	wire.ReadRequest:  {kindRead, true, true, false},
	wire.CompareSwap:  {kindAtomic, true, true, false},
	wire.FetchAdd:     {kindAtomic, true, true, false},
	wire.SendLastInv:  {kindRefused, true, true, false},
	wire.SendOnlyInv:  {kindRefused, true, true, false},
}

// responder is the receiving half.
type responder struct {
	rq   recvQueue
	epsn wire.PSN // expected next
	msn  uint32   // messages completed

	// The message in progress.
	message kind
	va      uint64 // WRITE: where the next byte goes
	left    uint32 // WRITE: bytes still to come
	rkey    uint32
	size    uint32   // bytes so far
	at      position // SEND: in the receive in use

	// One acknowledgement is owed, for ackPSN and all before it.
	ack    bool
	ackPSN wire.PSN

	// One NAK is owed.
	nak         bool
	nakSyndrome uint8
	nakPSN      wire.PSN

	// epsn was refused (sequence or RNR): later packets are dropped in silence.
	// One that is not after waitPSN belongs to a second sending whose first
	// packet was lost too, and is worth a second NAK.
	waiting bool
	waitPSN wire.PSN

	replies   replyQueue
	atomics   atomicRing
	lastReply wire.PSN // last PSN of the newest READ or atomic
	replied   bool     // lastReply is valid

	established bool
}

// request takes one packet of the peer's requester.
func (c *Conn) request(p *wire.Packet, out *Output) {
	if d := p.PSN.Diff(c.epsn); d != 0 {
		if d < 0 {
			c.stats.Duplicates++
			c.duplicate(p)
		} else {
			c.early(p.PSN)
		}
		return
	}
	op := requestOps[p.Opcode&31]
	n := uint32(len(p.Payload))
	if c.message == kindNone && !op.first || c.message != kindNone && op.kind != c.message ||
		c.message != kindNone && op.first || n > c.mtu || !op.last && n != c.mtu || !op.first && n == 0 {
		c.invalid(out)
		return
	}
	ok := false
	switch op.kind {
	case kindSend:
		ok = c.takeSend(p, op, n, out)
	case kindWrite:
		ok = c.takeWrite(p, op, n, out)
	case kindRead:
		ok = c.takeRead(p, out)
	case kindAtomic:
		ok = c.takeAtomic(p, out)
	default:
		c.invalid(out)
	}
	if !ok {
		return
	}
	// A NAK of this packet that is still owed is out of date.
	c.waiting, c.nak = false, false
	if op.last {
		c.message = kindNone
		c.msn = (c.msn + 1) & wire.PSNMask
	} else {
		c.message = op.kind
	}
	if c.attr.State == verbs.QPRTR && !c.established {
		c.established = true
		out.Events = append(out.Events, verbs.EventCommEstablished)
	}
	if op.kind >= kindRead {
		return
	}
	if p.AckReq {
		c.ack, c.ackPSN = true, c.epsn
	}
	c.epsn = c.epsn.Add(1)
}

// invalid refuses the packet at epsn as one that breaks the protocol. The receive
// that a SEND is using completes with the same cause.
func (c *Conn) invalid(out *Output) {
	st := verbs.WCSuccess
	if c.message == kindSend {
		st = verbs.WCRemInvReq
	}
	c.refuse(wire.NAKInvalid, c.epsn, st, out)
}

// denied refuses the packet at epsn for its key, range or rights.
func (c *Conn) denied(out *Output) { c.refuse(wire.NAKAccess, c.epsn, verbs.WCSuccess, out) }

// notReadyNAK tells the peer that no receive is posted.
func (c *Conn) notReadyNAK() {
	c.nak, c.nakSyndrome, c.nakPSN = true, wire.SynRNR|c.attr.MinRNRTimer&wire.SynValue, c.epsn
	c.waiting, c.waitPSN = true, c.epsn
	c.stats.RNRNAKs++
}

func (c *Conn) takeSend(p *wire.Packet, op requestOp, n uint32, out *Output) bool {
	if op.first {
		if c.rq.empty() {
			c.notReadyNAK()
			return false
		}
		c.size, c.at = 0, position{}
	}
	w := c.rq.first()
	if n > w.length-c.size {
		c.refuse(wire.NAKInvalid, c.epsn, verbs.WCLocLen, out)
		return false
	}
	if st := c.scatter(c.rq.elements(w), &c.at, c.size, p.Payload); st != verbs.WCSuccess {
		c.refuse(wire.NAKOperation, c.epsn, st, out)
		return false
	}
	c.size += n
	if op.last {
		c.received(p, verbs.WCRecv, op.imm, out)
	}
	return true
}

func (c *Conn) takeWrite(p *wire.Packet, op requestOp, n uint32, out *Output) bool {
	va, rkey, left, need := c.va, c.rkey, c.left, n
	if op.first {
		if c.attr.Access&verbs.RemoteWrite == 0 {
			c.denied(out)
			return false
		}
		va, rkey, left = p.VA, p.RKey, p.Length
		need = left // the whole range is checked before a byte of it is touched
	}
	if left > maxMessage || op.last && n != left || !op.last && n >= left {
		c.invalid(out)
		return false
	}
	if op.imm && c.rq.empty() {
		c.notReadyNAK()
		return false
	}
	if need > 0 {
		dst, ok := c.cfg.Mem.Remote(rkey, va, uint64(need), verbs.RemoteWrite)
		if !ok {
			c.denied(out)
			return false
		}
		if c.Placer == nil || !c.Placer(dst[:n], p.Payload, rkey, va) {
			place(dst[:n], p.Payload)
		}
	}
	if op.first {
		c.size, c.rkey = 0, rkey
	}
	c.va, c.left = va+uint64(n), left-n
	c.size += n
	if op.imm {
		c.received(p, verbs.WCRecvWImm, true, out)
	}
	return true
}

// received completes the receive in use.
func (c *Conn) received(p *wire.Packet, op verbs.WCOpcode, imm bool, out *Output) {
	wc := verbs.WC{ID: c.rq.first().id, QPN: c.cfg.QPN, ByteLen: c.size, Op: op}
	if imm {
		wc.Imm, wc.Flags = p.Imm, verbs.WCWithImm
	}
	c.rq.head++
	out.Done = append(out.Done, Completion{WC: wc, Recv: true, Solicited: p.Solicited})
}

// readPackets is how many responses a READ of n bytes has, or 0 when it is longer
// than a message may be or its PSNs could not be told from old ones.
func (c *Conn) readPackets(n uint32) uint32 {
	k := max((uint64(n)+uint64(c.mtu)-1)>>c.mtuShift, 1)
	if n > maxMessage || k >= 1<<23 {
		return 0
	}
	return uint32(k)
}

func (c *Conn) takeRead(p *wire.Packet, out *Output) bool {
	if c.attr.Access&verbs.RemoteRead == 0 {
		c.denied(out)
		return false
	}
	n := c.readPackets(p.Length)
	if n == 0 || len(p.Payload) != 0 || c.attr.MaxDestRDAtomic == 0 || c.replies.fresh() >= c.attr.MaxDestRDAtomic {
		c.invalid(out)
		return false
	}
	if p.Length > 0 {
		if _, ok := c.cfg.Mem.Remote(p.RKey, p.VA, uint64(p.Length), verbs.RemoteRead); !ok {
			c.denied(out)
			return false
		}
	}
	r := reply{psn: c.epsn, end: c.epsn.Add(n), va: p.VA, left: p.Length, rkey: p.RKey, msn: c.msn + 1, first: true}
	if !c.replies.push(r) {
		return false // full of repeated answers: as if the packet was lost
	}
	c.answers(n)
	return true
}

func (c *Conn) takeAtomic(p *wire.Packet, out *Output) bool {
	if c.attr.Access&verbs.RemoteAtomic == 0 {
		c.denied(out)
		return false
	}
	if p.VA&7 != 0 || len(p.Payload) != 0 || c.attr.MaxDestRDAtomic == 0 || c.replies.fresh() >= c.attr.MaxDestRDAtomic {
		c.invalid(out)
		return false
	}
	b, ok := c.cfg.Mem.Remote(p.RKey, p.VA, 8, verbs.RemoteAtomic)
	if !ok {
		c.denied(out)
		return false
	}
	if verbs.AddrOf(b)&7 != 0 {
		c.refuse(wire.NAKOperation, c.epsn, verbs.WCSuccess, out)
		return false
	}
	if c.replies.full() {
		return false // as if the packet was lost
	}
	var old uint64
	if p.Opcode == wire.FetchAdd {
		old = verbs.AddWord(b, p.SwapAdd)
	} else {
		old = verbs.CompareAndSwapWord(b, p.Compare, p.SwapAdd)
	}
	c.atomics.put(c.epsn, old)
	c.replies.push(reply{psn: c.epsn, end: c.epsn.Add(1), va: old, msn: c.msn + 1, atomic: true, first: true})
	c.answers(1)
	return true
}

// answers moves on over a request that takes n PSNs and is answered by more than
// an acknowledgement.
func (c *Conn) answers(n uint32) {
	c.epsn = c.epsn.Add(n)
	c.lastReply, c.replied = c.epsn.Add(wire.PSNMask), true
}

// early notes a packet after epsn: something before it was lost. The peer is told
// once.
func (c *Conn) early(psn wire.PSN) {
	if c.waiting && c.waitPSN.Before(psn) {
		return
	}
	c.waiting, c.waitPSN = true, psn
	c.nak, c.nakSyndrome, c.nakPSN = true, wire.NAKSequence, c.epsn
	c.stats.NAKsSent++
}
