package rc

import (
	"github.com/railstore/railstore/verbs"
	"github.com/railstore/railstore/verbs/soft/internal/wire"
)

// reply is what remains to be sent of the answer to a READ or atomic.
type reply struct {
	psn    wire.PSN // of the next packet
	end    wire.PSN
	va     uint64 // READ: of the next byte; atomic: the old value
	left   uint32 // bytes still to send
	rkey   uint32
	msn    uint32
	first  bool // nothing of it was sent yet
	atomic bool
}

// replyQueue holds replies in the order of their PSNs, which do not overlap. It has
// room for max_dest_rd_atomic new ones and as many repeated ones.
type replyQueue struct {
	list []reply // capacity fixed
}

func (q *replyQueue) init(n int) { q.list = make([]reply, 0, 2*max(n, 1)) }

func (q *replyQueue) full() bool { return len(q.list) == cap(q.list) }

func (q *replyQueue) push(r reply) bool {
	if q.full() {
		return false
	}
	q.list = append(q.list, r)
	return true
}

// fresh counts the answers to new requests.
func (q *replyQueue) fresh() int {
	n := 0
	for i := len(q.list) - 1; i >= 0 && !q.list[i].again(); i-- {
		n++
	}
	return n
}

// again reports a repeated answer.
func (r *reply) again() bool { return r.msn == repeated }

// repeated marks a repeated answer, whose place in the count of messages is not
// known any more; it tells the current one.
const repeated = 1 << 31

func (q *replyQueue) pop() {
	copy(q.list, q.list[1:])
	q.list = q.list[:len(q.list)-1]
}

// insert puts a repeated answer in its place and drops those that it overlaps; the
// peer has gone back and asks for them again. Nothing changes when all of r is still
// to be sent anyway, or when there is no room.
func (q *replyQueue) insert(r reply) {
	i := 0
	for i < len(q.list) && q.list[i].end.Diff(r.psn) <= 0 {
		i++
	}
	j := i
	for j < len(q.list) && q.list[j].psn.Before(r.end) {
		if o := &q.list[j]; o.psn.Diff(r.psn) <= 0 && r.end.Diff(o.end) <= 0 {
			return
		}
		j++
	}
	if i == j {
		if q.full() {
			return
		}
		q.list = q.list[:len(q.list)+1]
		copy(q.list[i+1:], q.list[i:])
	} else if j > i+1 {
		n := copy(q.list[i+1:], q.list[j:])
		q.list = q.list[:i+1+n]
	}
	q.list[i] = r
}

// atomicRing keeps the results of the last atomics, for repeated requests.
type atomicRing struct {
	results []atomicResult
	next    int
	n       int
}

type atomicResult struct {
	psn wire.PSN
	old uint64
}

func (r *atomicRing) init(n int) { *r = atomicRing{results: make([]atomicResult, max(n, 0))} }

func (r *atomicRing) put(psn wire.PSN, old uint64) {
	r.results[r.next] = atomicResult{psn, old}
	r.next++
	if r.next == len(r.results) {
		r.next = 0
	}
	if r.n < len(r.results) {
		r.n++
	}
}

func (r *atomicRing) get(psn wire.PSN) (uint64, bool) {
	for i := range r.results[:r.n] {
		if r.results[i].psn == psn {
			return r.results[i].old, true
		}
	}
	return 0, false
}

// duplicate takes a request packet that was executed before. Nothing is executed
// again but READs, which may be answered from memory as it is now.
func (c *Conn) duplicate(p *wire.Packet) {
	switch requestOps[p.Opcode&31].kind {
	case kindSend, kindWrite:
		// Acknowledge as much as possible, but not a READ or atomic after it
		// whose answer may have been lost too.
		psn := c.epsn.Add(wire.PSNMask)
		if c.replied && p.PSN.Before(c.lastReply) {
			psn = p.PSN
		}
		if !c.ack || c.ackPSN.Before(psn) {
			c.ack, c.ackPSN = true, psn
		}
	case kindRead:
		n := c.readPackets(p.Length)
		end := p.PSN.Add(n)
		if n == 0 || len(p.Payload) != 0 || c.epsn.Before(end) || c.attr.Access&verbs.RemoteRead == 0 {
			return
		}
		if p.Length > 0 {
			if _, ok := c.cfg.Mem.Remote(p.RKey, p.VA, uint64(p.Length), verbs.RemoteRead); !ok {
				return
			}
		}
		c.replies.insert(reply{psn: p.PSN, end: end, va: p.VA, left: p.Length, rkey: p.RKey, msn: repeated, first: true})
	case kindAtomic:
		if old, ok := c.atomics.get(p.PSN); ok {
			c.replies.insert(reply{psn: p.PSN, end: p.PSN.Add(1), va: old, msn: repeated, atomic: true, first: true})
		}
	}
}

func (c *Conn) dropReplies() {
	c.replies.list = c.replies.list[:0]
	c.ack, c.nak = false, false
}

// pumpReplies puts out answers to READs and atomics, and after them the one ACK or
// NAK that is owed; it reports that room ended.
func (c *Conn) pumpReplies(out *Output) (more bool) {
	for len(c.replies.list) > 0 {
		if len(out.Packets) == cap(out.Packets) || cap(out.frags) == len(out.frags) {
			return true
		}
		r := &c.replies.list[0]
		if c.ack && c.ackPSN.Before(r.psn) {
			c.ack = false // the answer implies it
		}
		if r.atomic {
			p := c.header(out, wire.AtomicAcknowledge, 0, false, r.psn)
			c.aeth(p, wire.SynAck|wire.SynCredits, r)
			putUint64(p, r.va)
			c.replies.pop()
			continue
		}
		if !c.sendResponse(r, out) {
			c.replies.list = c.replies.list[:0]
			break
		}
	}
	if !c.nak && !c.ack {
		return false
	}
	if len(out.Packets) == cap(out.Packets) {
		return true
	}
	syndrome, psn := uint8(wire.SynAck|wire.SynCredits), c.ackPSN
	if c.nak {
		syndrome, psn = c.nakSyndrome, c.nakPSN
	}
	p := c.header(out, wire.Acknowledge, 0, false, psn)
	c.aeth(p, syndrome, nil)
	c.ack, c.nak = false, false
	return false
}

// sendResponse puts out the next packet of a READ's answer. It reports false when
// the memory is gone, after refusing the READ.
func (c *Conn) sendResponse(r *reply, out *Output) bool {
	n := min(r.left, c.mtu)
	last := n == r.left
	var frag []byte
	if n > 0 {
		b, ok := c.cfg.Mem.Remote(r.rkey, r.va, uint64(n), verbs.RemoteRead)
		if !ok {
			psn := r.psn
			if c.attr.State == verbs.QPErr {
				return false
			}
			c.refuse(wire.NAKAccess, psn, verbs.WCSuccess, out)
			return false
		}
		frag = b
	}
	op := wire.ReadResponseMiddle
	switch {
	case r.first && last:
		op = wire.ReadResponseOnly
	case r.first:
		op = wire.ReadResponseFirst
	case last:
		op = wire.ReadResponseLast
	}
	pad := uint8(-n & 3)
	p := c.header(out, op, pad<<4, false, r.psn)
	if op != wire.ReadResponseMiddle {
		c.aeth(p, wire.SynAck|wire.SynCredits, r)
	}
	if n > 0 {
		from := len(out.frags)
		out.frags = append(out.frags, frag)
		p.Frags = out.frags[from : from+1 : from+1]
	}
	p.Pad = pad
	p.Len = n
	c.stats.BytesSent += uint64(n)
	if last {
		c.replies.pop()
		return true
	}
	r.psn = r.psn.Add(1)
	r.va += uint64(n)
	r.left -= n
	r.first = false
	return true
}

// aeth writes the AETH of an answer (nil: of an ACK or NAK, with the current count
// of messages).
func (c *Conn) aeth(p *Packet, syndrome uint8, r *reply) {
	msn := c.msn
	if r != nil && !r.again() {
		msn = r.msn
	}
	wire.AETH(p.Hdr[p.HdrLen:]).Put(syndrome, msn)
	p.HdrLen += wire.AETHLen
}

func putUint64(p *Packet, v uint64) {
	b := p.Hdr[p.HdrLen : p.HdrLen+8]
	for i := range b {
		b[i] = byte(v >> (56 - 8*i))
	}
	p.HdrLen += 8
}
