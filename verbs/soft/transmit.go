package soft

import (
	"sync"

	"github.com/railstore/railstore/verbs"
	"github.com/railstore/railstore/verbs/soft/internal/rc"
	"github.com/railstore/railstore/verbs/soft/internal/udp"
	"github.com/railstore/railstore/verbs/soft/internal/wire"
)

// outputPackets is how many packets are put out and sent at a time.
const outputPackets = 64

// transmit is what is needed to send for one QP at a time: the protocol's output
// and the batch for the kernel. It is large, so there are few; a QP borrows one.
type transmit struct {
	out   *rc.Output
	batch *udp.Batch
	q     *qp // whose packets are in the batch
}

func newTransmit() *transmit {
	return &transmit{out: rc.NewOutput(outputPackets), batch: udp.NewBatch(outputPackets)}
}

// ICRC is udp.Sealer.
func (t *transmit) ICRC(id uint16, header []byte, payload [][]byte, pad int) uint32 {
	return t.q.sender.ICRC(id, header, payload, pad)
}

// spares are the transmits that are not in use. As many are kept as ever were in
// use at once, which is about one per thread.
type spares struct {
	mu   sync.Mutex
	free []*transmit
}

func (s *spares) take() *transmit {
	s.mu.Lock()
	if n := len(s.free); n > 0 {
		t := s.free[n-1]
		s.free = s.free[:n-1]
		s.mu.Unlock()
		return t
	}
	s.mu.Unlock()
	return newTransmit()
}

func (s *spares) give(t *transmit) {
	s.mu.Lock()
	s.free = append(s.free, t)
	s.mu.Unlock()
}

// pump sends everything that the QP may send now; the QP's lock is held.
func (d *device) pump(q *qp, t *transmit, now int64) {
	q.conn.Share(q.share())
	if f := d.faults.Load(); f == nil || !f.pumpSlowly(q, t, now) {
		for {
			more := q.conn.Pump(now, t.out)
			if !d.deliver(q, t) && !more {
				break
			}
		}
	}
	d.noteDeadline(q, now)
	q.noteFlying()
}

// deliver takes an output where it belongs and empties it; the QP's lock is held.
// It reports that the QP failed over it, and what is left in it is to be flushed.
func (d *device) deliver(q *qp, t *transmit) (failed bool) {
	if len(t.out.Done) > 0 || len(t.out.Events) > 0 {
		failed = d.complete(q, t)
	}
	if n := len(t.out.Packets); n > 0 && q.dest != nil {
		t.batch.Reset()
		t.q = q
		// An acknowledgement that leaves together with requests goes last: they
		// are what somebody waits for, and as the smaller packet it ends their
		// train instead of being a datagram of its own.
		first := 0
		if n > 1 && opcode(t.out, 0) == wire.Acknowledge && !opcode(t.out, 1).Response() {
			first = 1
		}
		if f := d.faults.Load(); f != nil {
			f.depart(q, t, first)
			t.out.Reset()
			return failed
		}
		for i := range n {
			p := &t.out.Packets[(i+first)%n]
			if d.opt.loseSent != nil && d.opt.loseSent(p) {
				continue
			}
			t.batch.Add(q.dest, p.Header(), p.Frags, int(p.Len), int(p.Pad))
		}
		if err := d.sock.Send(t.batch, t); err != nil {
			d.counters.sendErrors.Add(1)
		}
	}
	t.out.Reset()
	return failed
}

func opcode(o *rc.Output, i int) wire.Opcode { return wire.Opcode(o.Packets[i].Hdr[0]) }

// complete puts completions into their queues and events out. A queue that has no
// room breaks, and a QP that lost a completion is of no use any more: that is
// reported when it is news.
func (d *device) complete(q *qp, t *transmit) (failed bool) {
	full := false
	faults := d.faults.Load()
	for i := range t.out.Done {
		c := &t.out.Done[i]
		if faults != nil && faults.swallows(q, c) {
			continue
		}
		to := q.sendCQ
		if c.Recv {
			to = q.recvCQ
		}
		full = !to.push(&c.WC, c.Solicited) || full
	}
	for _, e := range t.out.Events {
		d.emit(verbs.AsyncEvent{Type: e, Port: 1, QPN: q.qpn})
	}
	t.out.Done, t.out.Events = t.out.Done[:0], t.out.Events[:0]
	if !full || q.conn.State() == verbs.QPErr {
		return false
	}
	q.conn.Modify(&verbs.QPAttr{State: verbs.QPErr}, verbs.MaskState)
	d.emit(verbs.AsyncEvent{Type: verbs.EventQPFatal, Port: 1, QPN: q.qpn, Err: verbs.ErrCQOverrun})
	return true
}
