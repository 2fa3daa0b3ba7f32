package rc

import (
	"github.com/railstore/railstore/verbs"
	"github.com/railstore/railstore/verbs/soft/internal/wire"
)

// requester is the sending half: the send queue on the wire.
//
// Every request has a range of PSNs, given when its first packet goes out; a READ's
// range is that of its responses. So one number line describes everything:
//
//	una <= nxt <= top <= asg
//
//	una  oldest PSN without an answer; it lies in request sq.head
//	nxt  PSN that is sent next; it lies in request sq.cur. It goes back to una
//	     when something was lost (go-back-N) and may then be passed by una
//	     again, when answers to the first sending still come
//	top  PSN after the last ever sent
//	asg  PSN that the next request to be started gets
type requester struct {
	sq                 sendQueue
	una, nxt, top, asg wire.PSN
	sendAt             position // of request sq.cur
	recvAt             position // of request sq.head, a READ that is being answered
	reads              readRing
	win                window
	timers             timers

	unasked uint32 // packets sent since the last that asked for an acknowledgement
	ask     bool   // the next packet asks for one: it follows a loss

	// After going back, answers to the first sending still come. They are not
	// news of another loss until una moves, or a PSN not after gapPSN shows that
	// the second sending is being answered.
	gap    bool
	gapPSN wire.PSN

	// Request sq.cur cannot be sent: its local memory failed. It completes so when
	// all before it are done.
	localErr verbs.WCStatus
}

// readRing holds the end of every READ request and atomic that the peer has yet to
// answer, at most max_rd_atomic. One that is sent again keeps its end: the peer
// knows a repeated READ by lying inside an earlier one.
type readRing struct {
	end   []wire.PSN
	first int
	n     int
	sent  int // of the n, those that were sent since the last rewind
}

func (r *readRing) init(n int) { *r = readRing{end: make([]wire.PSN, max(n, 1))} }

// full reports that what is sent next would be one too many.
func (r *readRing) full() bool { return r.sent == len(r.end) }

func (r *readRing) slot(i int) *wire.PSN {
	i += r.first
	if i >= len(r.end) {
		i -= len(r.end)
	}
	return &r.end[i]
}

// again is the end of the one that is sent next, when it is not new.
func (r *readRing) again() (wire.PSN, bool) {
	if r.sent == r.n {
		return 0, false
	}
	return *r.slot(r.sent), true
}

// push notes that one was sent.
func (r *readRing) push(end wire.PSN) {
	if r.sent == r.n {
		r.n++
	}
	*r.slot(r.sent) = end
	r.sent++
}

// answered drops those that end at una or before.
func (r *readRing) answered(una wire.PSN) {
	for r.n > 0 && !una.Before(r.end[r.first]) {
		r.first++
		if r.first == len(r.end) {
			r.first = 0
		}
		r.n--
		r.sent = max(r.sent-1, 0)
	}
}

// dataOpcodes by kind of request (SEND, SEND_IMM, WRITE, WRITE_IMM), then by first<<1|last.
var dataOpcodes = [4][4]wire.Opcode{
	verbs.OpSend:     {wire.SendMiddle, wire.SendLast, wire.SendFirst, wire.SendOnly},
	verbs.OpSendImm:  {wire.SendMiddle, wire.SendLastImm, wire.SendFirst, wire.SendOnlyImm},
	verbs.OpWrite:    {wire.WriteMiddle, wire.WriteLast, wire.WriteFirst, wire.WriteOnly},
	verbs.OpWriteImm: {wire.WriteMiddle, wire.WriteLastImm, wire.WriteFirst, wire.WriteOnlyImm},
}

// pumpRequests puts out request packets until the window, the queue or the room
// ends; it reports that room ended.
func (c *Conn) pumpRequests(now int64, out *Output) (more bool) {
	if c.attr.State != verbs.QPRTS && c.attr.State != verbs.QPSQD || c.timers.rnr != 0 {
		return false
	}
	sq := &c.sq
	for sq.cur != sq.tail {
		if c.localErr != verbs.WCSuccess {
			if sq.cur == sq.head {
				c.fail(c.localErr, out)
			}
			return false
		}
		w := sq.at(sq.cur)
		if c.nxt == c.asg && !c.start(w) {
			c.win.limited = false
			if c.localErr != verbs.WCSuccess {
				continue
			}
			return false
		}
		flight := c.nxt.Sub(c.una)
		if flight >= c.win.room() {
			if c.unasked == 0 || flight >= c.win.size {
				c.win.full()
				return false
			}
			// The share has become smaller after packets that nobody was asked
			// to answer: the next one asks.
			c.ask = true
		}
		if len(out.Packets) == cap(out.Packets) || cap(out.frags)-len(out.frags) < int(w.nsge) {
			return true
		}
		before := c.nxt
		switch {
		case w.op <= verbs.OpWriteImm:
			c.sendData(w, out)
		case c.reads.full():
			c.win.limited = false
			return false
		case w.op == verbs.OpRead:
			if !c.sendRead(w, flight, out) {
				c.win.full()
				return false
			}
		default:
			c.sendAtomic(w, out)
		}
		if c.localErr != verbs.WCSuccess {
			continue
		}
		if before.Before(c.top) {
			c.stats.Retransmits++
		} else if !c.timers.sampling && (c.unasked == 0 || w.op >= verbs.OpRead) {
			c.timers.sampling, c.timers.rttPSN, c.timers.rttFrom = true, uint32(before), now
		}
		if c.top.Before(c.nxt) {
			c.top = c.nxt
		}
		if c.timers.ack == 0 && c.timers.early == 0 {
			c.restart(now)
		}
	}
	c.win.limited = false
	return false
}

// start gives request sq.cur its PSNs, unless it has to wait.
func (c *Conn) start(w *sendWQE) bool {
	if c.attr.State == verbs.QPSQD || w.flags&verbs.Fence != 0 && c.reads.n > 0 {
		return false
	}
	if w.answered() {
		if c.attr.MaxRDAtomic == 0 {
			c.localErr = verbs.WCLocQPOp
			return false
		}
		for _, s := range c.sq.elements(c.sq.cur, w) {
			if s.Length == 0 {
				continue
			}
			if _, st := c.cfg.Mem.Local(s.LKey, s.Addr, s.Length, true); st != verbs.WCSuccess {
				c.localErr = st
				return false
			}
		}
	}
	w.psn = c.asg
	w.packets = max((w.length+c.mtu-1)>>c.mtuShift, 1)
	c.asg = c.asg.Add(w.packets)
	return true
}

// sendData puts out the next packet of a SEND or WRITE.
func (c *Conn) sendData(w *sendWQE, out *Output) {
	off := c.nxt.Sub(w.psn) << c.mtuShift
	n := min(c.mtu, w.length-off)
	from := len(out.frags)
	if n > 0 {
		if st := c.gather(c.sq.elements(c.sq.cur, w), &c.sendAt, off, n, out); st != verbs.WCSuccess {
			out.frags = out.frags[:from]
			c.localErr = st
			return
		}
	}
	kind := 0
	if off == 0 {
		kind = 2
	}
	last := off+n == w.length
	if last {
		kind |= 1
	}
	pad := uint8(-n & 3)
	flags := pad << 4
	if last && w.flags&verbs.Solicited != 0 && w.op != verbs.OpWrite {
		flags |= wire.FlagSolicited
	}
	// An answer is asked for at the end of a message, four times a window (always
	// when that is below 8) and after a loss.
	ask := last || c.ask || c.unasked+1 >= c.win.room()>>2
	c.ask = false
	if ask {
		c.unasked = 0
	} else {
		c.unasked++
	}
	op := dataOpcodes[w.op][kind]
	p := c.header(out, op, flags, ask, c.nxt)
	if off == 0 && w.op >= verbs.OpWrite {
		wire.RETH(p.Hdr[p.HdrLen:]).Put(w.raddr, w.rkey, w.length)
		p.HdrLen += wire.RETHLen
	}
	if last && (w.op == verbs.OpSendImm || w.op == verbs.OpWriteImm) {
		putImm(p, w.imm)
	}
	p.Pad = pad
	p.Len = n
	p.Frags = out.frags[from:len(out.frags):len(out.frags)]
	c.stats.BytesSent += uint64(n)
	c.nxt = c.nxt.Add(1)
	if last {
		c.next()
	}
}

func putImm(p *Packet, imm uint32) {
	b := p.Hdr[p.HdrLen : p.HdrLen+4]
	b[0], b[1], b[2], b[3] = byte(imm>>24), byte(imm>>16), byte(imm>>8), byte(imm)
	p.HdrLen += 4
}

// sendRead asks for the next part of a READ: as many packets as a share of the
// window holds, so that several parts are in flight and none is small. It reports
// whether the window had room.
func (c *Conn) sendRead(w *sendWQE, flight uint32, out *Output) bool {
	done := c.nxt.Sub(w.psn)
	share := uint32(min(len(c.reads.end), 4))
	room := c.win.room()
	n := min(w.packets-done, max(room/share, 1))
	if end, ok := c.reads.again(); ok {
		n = end.Sub(c.nxt)
	}
	if flight > 0 && flight+n > room {
		return false
	}
	off := done << c.mtuShift
	p := c.header(out, wire.ReadRequest, 0, true, c.nxt)
	wire.RETH(p.Hdr[p.HdrLen:]).Put(w.raddr+uint64(off), w.rkey, min(n<<c.mtuShift, w.length-off))
	p.HdrLen += wire.RETHLen
	c.ask, c.unasked = false, 0
	c.nxt = c.nxt.Add(n)
	c.reads.push(c.nxt)
	if done+n == w.packets {
		c.next()
	}
	return true
}

func (c *Conn) sendAtomic(w *sendWQE, out *Output) {
	op, swapAdd, compare := wire.CompareSwap, w.swap, w.compare
	if w.op == verbs.OpFAA {
		op, swapAdd, compare = wire.FetchAdd, w.compare, 0
	}
	p := c.header(out, op, 0, true, c.nxt)
	wire.AtomicETH(p.Hdr[p.HdrLen:]).Put(w.raddr, w.rkey, swapAdd, compare)
	p.HdrLen += wire.AtomicETHLen
	c.ask, c.unasked = false, 0
	c.nxt = c.nxt.Add(1)
	c.reads.push(c.nxt)
	c.next()
}

// next goes on to the request after sq.cur.
func (c *Conn) next() {
	c.sq.cur++
	c.sendAt = position{}
}

// rewind makes everything from una on be sent again.
func (c *Conn) rewind() {
	c.nxt = c.una
	c.sq.cur = c.sq.head
	c.sendAt = position{}
	c.reads.sent = 0
	c.localErr = verbs.WCSuccess
	c.timers.sampling = false
	c.ask = true
	c.gap, c.gapPSN = true, c.una
}
