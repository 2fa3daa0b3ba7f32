package rc

import (
	"github.com/railstore/railstore/verbs"
	"github.com/railstore/railstore/verbs/soft/internal/wire"
)

// acknowledge takes an ACK or NAK. Those whose PSN is not in flight are old or
// made up and change nothing.
func (c *Conn) acknowledge(now int64, p *wire.Packet, out *Output) {
	if p.PSN.Sub(c.una) >= c.top.Sub(c.una) {
		return
	}
	switch p.Syndrome & wire.SynKind {
	case wire.SynAck:
		// A READ or atomic in the range has lost its answer.
		if !c.advance(now, p.PSN.Add(1), out) {
			c.missing(p.PSN)
		}
	case wire.SynRNR:
		c.stats.RNRNAKs++
		if !c.advance(now, p.PSN, out) {
			c.missing(p.PSN)
			return
		}
		c.notReady(now, p.Syndrome&wire.SynValue, out)
	case wire.SynNAK:
		c.stats.NAKsReceived++
		// All before the refused packet is done; where an answer is missing
		// there, it is asked for again or will never come.
		c.advance(now, p.PSN, out)
		switch p.Syndrome {
		case wire.NAKSequence:
			if c.nxt != c.una {
				c.win.loss(c.una, c.top)
				c.rewind()
			}
		case wire.NAKInvalid, wire.NAKInvalidRDD:
			c.fail(verbs.WCRemInvReq, out)
		case wire.NAKAccess:
			c.fail(verbs.WCRemAccess, out)
		case wire.NAKOperation:
			c.fail(verbs.WCRemOp, out)
		}
	}
}

// notReady waits as long as the peer asked for and sends the refused packet
// again, unless that was done rnr_retry times.
func (c *Conn) notReady(now int64, code uint8, out *Output) {
	t := &c.timers
	if t.rnr != 0 {
		return
	}
	if c.attr.RNRRetry < 7 {
		if t.rnrRetries >= c.attr.RNRRetry {
			c.fail(verbs.WCRNRExceeded, out)
			return
		}
		t.rnrRetries++
	}
	t.stop()
	t.retries, t.backoff = 0, 0
	t.rnr = now + rnrDelay[code]
	c.rewind()
}

// missing notes that the answer to una was passed over: psn after it was
// answered.
func (c *Conn) missing(psn wire.PSN) {
	if c.gap && psn.Diff(c.gapPSN) > 0 {
		c.gapPSN = psn
		return
	}
	c.win.loss(c.una, c.top)
	c.rewind()
	c.gapPSN = psn
}

// advance completes everything before psn, which is in flight or top. It stops
// and reports false at a READ or atomic, which only its own answer completes.
func (c *Conn) advance(now int64, psn wire.PSN, out *Output) bool {
	if psn == c.una {
		return true
	}
	from := c.una
	ok := true
	for c.una != psn {
		w := c.sq.at(c.sq.head)
		if w.answered() {
			ok = false
			break
		}
		if psn.Sub(c.una) < w.end().Sub(c.una) {
			c.una = psn
			break
		}
		c.una = w.end()
		c.complete(w, out)
	}
	if c.una != from {
		c.progress(now, c.una.Sub(from))
	}
	return ok
}

// complete takes the head off the send queue.
func (c *Conn) complete(w *sendWQE, out *Output) {
	if w.flags&verbs.Signaled != 0 || c.cfg.SigAll {
		wc := verbs.WC{ID: w.id, QPN: c.cfg.QPN, Op: sendOps[w.op]}
		if w.answered() {
			wc.ByteLen = w.length
		}
		out.Done = append(out.Done, Completion{WC: wc})
	}
	c.sq.head++
	c.recvAt = position{}
}

var sendOps = [...]verbs.WCOpcode{
	verbs.OpSend: verbs.WCSend, verbs.OpSendImm: verbs.WCSend, verbs.OpWrite: verbs.WCWrite, verbs.OpWriteImm: verbs.WCWrite,
	verbs.OpRead: verbs.WCRead, verbs.OpCAS: verbs.WCCAS, verbs.OpFAA: verbs.WCFAA,
}

// progress notes that una moved by n packets.
func (c *Conn) progress(now int64, n uint32) {
	if c.nxt.Before(c.una) {
		// Answers to the first sending overtook the second.
		c.nxt = c.una
		c.sq.cur = c.sq.head
		c.sendAt = position{}
		c.win.early()
	}
	c.reads.answered(c.una)
	c.gap = false
	c.win.arrived(n, c.una)
	t := &c.timers
	t.retries, t.rnrRetries, t.backoff = 0, 0, 0
	if t.sampling && wire.PSN(t.rttPSN).Before(c.una) {
		t.sample(now)
	}
	switch {
	case t.rnr != 0:
	case c.una == c.top:
		t.stop()
	default:
		c.restart(now)
	}
}

// find is the started request that psn, which is in flight, belongs to.
func (c *Conn) find(psn wire.PSN) *sendWQE {
	d := psn.Sub(c.una)
	i := c.sq.head
	w := c.sq.at(i)
	for d >= w.end().Sub(c.una) {
		i++
		w = c.sq.at(i)
	}
	return w
}

// reach makes psn, the answer to a request of that kind, the one that una waits
// for: everything before it is done by implication.
func (c *Conn) reach(now int64, psn wire.PSN, read bool, out *Output) *sendWQE {
	if psn.Sub(c.una) >= c.top.Sub(c.una) {
		return nil // old or made up
	}
	w := c.find(psn)
	if !w.answered() || (w.op == verbs.OpRead) != read {
		return nil
	}
	if !c.advance(now, psn, out) {
		c.missing(psn)
		return nil
	}
	return w
}

// readResponse takes a piece of a READ's answer. Where it belongs follows from its
// PSN; the first/middle/last of its opcode depends on how the READ was cut when it
// was asked for, so it is not relied on.
func (c *Conn) readResponse(now int64, p *wire.Packet, out *Output) {
	w := c.reach(now, p.PSN, true, out)
	if w == nil {
		return
	}
	off := p.PSN.Sub(w.psn) << c.mtuShift
	if p.Opcode != wire.ReadResponseMiddle && p.Syndrome&wire.SynKind != wire.SynAck ||
		uint32(len(p.Payload)) != min(c.mtu, w.length-off) {
		c.fail(verbs.WCBadResp, out)
		return
	}
	if st := c.scatter(c.sq.elements(c.sq.head, w), &c.recvAt, off, p.Payload); st != verbs.WCSuccess {
		c.fail(st, out)
		return
	}
	c.una = c.una.Add(1)
	if c.una == w.end() {
		c.complete(w, out)
	}
	c.progress(now, 1)
}

// atomicResponse takes the old value that an atomic returns.
func (c *Conn) atomicResponse(now int64, p *wire.Packet, out *Output) {
	w := c.reach(now, p.PSN, false, out)
	if w == nil {
		return
	}
	if p.Syndrome&wire.SynKind != wire.SynAck {
		c.fail(verbs.WCBadResp, out)
		return
	}
	if st := c.putOld(w, p.Orig); st != verbs.WCSuccess {
		c.fail(st, out)
		return
	}
	c.una = w.end()
	c.complete(w, out)
	c.progress(now, 1)
}
