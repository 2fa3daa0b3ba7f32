package rc

import (
	"github.com/railstore/railstore/verbs"
	"github.com/railstore/railstore/verbs/soft/internal/wire"
)

// fail is the requester's end: the oldest request completes with the cause, all
// others on both queues are flushed in order.
func (c *Conn) fail(st verbs.WCStatus, out *Output) {
	if c.sq.head != c.sq.tail {
		w := c.sq.at(c.sq.head)
		c.sq.head++
		out.Done = append(out.Done, Completion{Solicited: true,
			WC: verbs.WC{ID: w.id, QPN: c.cfg.QPN, Op: sendOps[w.op], Status: st}})
	}
	c.dropReplies()
	c.enterError(out)
}

// refuse is the responder's end: a NAK to the peer, the receive in use completes
// with st (WCSuccess: none is in use), and everything is flushed. What was
// answered before is still sent, and then the NAK.
func (c *Conn) refuse(syndrome uint8, psn wire.PSN, st verbs.WCStatus, out *Output) {
	c.nak, c.nakSyndrome, c.nakPSN = true, syndrome, psn
	c.stats.NAKsSent++
	if st != verbs.WCSuccess && !c.rq.empty() {
		c.flushRecv(st, out)
	}
	ev := verbs.EventQPRequestError
	if syndrome == wire.NAKAccess {
		ev = verbs.EventQPAccessError
	}
	out.Events = append(out.Events, ev)
	c.enterError(out)
}

func (c *Conn) enterError(out *Output) {
	c.attr.State = verbs.QPErr
	c.stopTimers()
	c.flush(out)
}

// flush completes everything that is queued with WCFlush.
func (c *Conn) flush(out *Output) {
	q := &c.sq
	for ; q.head != q.tail; q.head++ {
		w := q.at(q.head)
		out.Done = append(out.Done, Completion{Solicited: true,
			WC: verbs.WC{ID: w.id, QPN: c.cfg.QPN, Op: sendOps[w.op], Status: verbs.WCFlush}})
	}
	q.cur = q.tail
	for !c.rq.empty() {
		c.flushRecv(verbs.WCFlush, out)
	}
}

func (c *Conn) flushRecv(st verbs.WCStatus, out *Output) {
	w := c.rq.first()
	c.rq.head++
	out.Done = append(out.Done, Completion{Recv: true, Solicited: true,
		WC: verbs.WC{ID: w.id, QPN: c.cfg.QPN, Op: verbs.WCRecv, Status: st}})
}
