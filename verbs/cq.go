package verbs

import "context"

// CQ is a completion queue. Poll may be called from any goroutine, one at a
// time. Its children are the QPs that complete into it.
type CQ struct {
	closer
	ctx   *Context
	drv   DriverCQ
	depth int
}

// Depth is the room that was asked for.
func (q *CQ) Depth() int { return q.depth }

// Context is the device the CQ belongs to.
func (q *CQ) Context() *Context { return q.ctx }

// Poll takes up to len(wcs) completions without blocking. A bad completion is
// not an error of Poll; it is kept as the first cause of its QP. The error says
// that the queue itself is broken (ErrCQOverrun, ErrClosed).
func (q *CQ) Poll(wcs []WC) (int, error) {
	n, err := q.drv.Poll(wcs)
	for i := range wcs[:n] {
		if wcs[i].Status != WCSuccess {
			q.noteBad(&wcs[i])
		}
	}
	if err != nil {
		return n, wrapDriver(err, "poll_cq", q.ctx.name)
	}
	return n, nil
}

func (q *CQ) noteBad(wc *WC) {
	if qp := q.ctx.findQP(wc.QPN); qp != nil {
		qp.noteBad(wc)
	}
}

// Arm asks for one event at the next completion; poll once more before Wait.
func (q *CQ) Arm(solicited bool) error {
	return wrapDriver(q.drv.Arm(solicited), "req_notify_cq", q.ctx.name)
}

// Wait blocks until the event that Arm asked for, ctx ends, or the CQ closes.
// The error is ctx's own or *Error.
func (q *CQ) Wait(ctx context.Context) error {
	err := q.drv.Wait(ctx)
	if err != nil && err == ctx.Err() {
		return err
	}
	return wrapDriver(err, "get_cq_event", q.ctx.name)
}

// Wake ends a Wait that is under way, or the next one, as an event would: who waited polls
// and finds nothing. It does not block.
func (q *CQ) Wake() { q.drv.Wake() }

// PollWait polls, spinning up to spins empty polls and then sleeping on the
// queue's event, until there is at least one completion or ctx ends.
func (q *CQ) PollWait(ctx context.Context, wcs []WC, spins int) (int, error) {
	for i := 0; ; i++ {
		if n, err := q.Poll(wcs); n > 0 || err != nil {
			return n, err
		}
		if i < spins {
			continue
		}
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		if err := q.Arm(false); err != nil {
			return 0, err
		}
		if n, err := q.Poll(wcs); n > 0 || err != nil {
			return n, err
		}
		if err := q.Wait(ctx); err != nil {
			return 0, err
		}
		i = 0
	}
}

// Close destroys the CQ; waiters return ErrClosed. It fails with ErrBusy while
// QPs complete into it.
func (q *CQ) Close() error {
	return q.close("destroy_cq", q.ctx.name, "QPs", func() error {
		q.ctx.dropChild(&q.ctx.cqs)
		return q.drv.Close()
	})
}
