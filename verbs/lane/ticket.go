package lane

import (
	"context"
	"errors"
	"fmt"
)

// Ticket is a request under way. It must be waited for, or dropped with Cancel,
// exactly once: until then its slot is taken.
type Ticket struct {
	l     *Lane
	s     *slot
	claim uint64
}

// Call sends a request and waits for its answer, which is copied into resp. A
// slot is taken from the least loaded lane; when all are taken the caller queues
// until one is free or ctx ends.
//
// When ctx ends first, the slot is not used again until the answer to this very
// request has come late, so that two requests never share memory.
func (p *Pool) Call(ctx context.Context, r Request, resp []byte) (Response, error) {
	room := -1
	if resp != nil {
		room = len(resp)
	}
	l, s, err := p.start(ctx, &r, room, true)
	if err != nil {
		return Response{}, err
	}
	defer l.inside.leave()
	return l.finish(ctx, s, resp, nil)
}

// Start sends a request. The answer has room for r.MaxResponse bytes.
func (p *Pool) Start(ctx context.Context, r Request) (Ticket, error) {
	return p.ticket(ctx, &r, true)
}

// TryStart is Start for who must not wait for a slot, because it holds others: ok is
// false when all are taken, and then nothing was sent.
func (p *Pool) TryStart(ctx context.Context, r Request) (t Ticket, ok bool, err error) {
	t, err = p.ticket(ctx, &r, false)
	if err == errNoSlot {
		return Ticket{}, false, nil
	}
	return t, err == nil, err
}

func (p *Pool) ticket(ctx context.Context, r *Request, wait bool) (Ticket, error) {
	l, s, err := p.start(ctx, r, -1, wait)
	if err != nil {
		return Ticket{}, err
	}
	t := Ticket{l: l, s: s, claim: uint64(s.epoch)<<32 | uint64(s.seq.Load())}
	s.claim.Store(t.claim)
	l.inside.leave()
	return t, nil
}

// Lane is the lane that the request went over.
func (t Ticket) Lane() *Lane { return t.l }

// Wait waits for the answer and copies it into resp.
func (t Ticket) Wait(ctx context.Context, resp []byte) (Response, error) {
	return t.wait(ctx, resp, nil)
}

// View waits for the answer and shows it to use, which must not keep body: the
// slot is used again when it returns.
func (t Ticket) View(ctx context.Context, use func(r Response, body []byte) error) (Response, error) {
	return t.wait(ctx, nil, use)
}

// Ready reports whether a Wait would not have to wait.
func (t Ticket) Ready() bool {
	if t.l == nil || t.s.claim.Load() != t.claim || !t.l.inside.enter() {
		return true
	}
	defer t.l.inside.leave()
	if t.l.epoch.Load() != t.epoch() || t.l.State() != Active {
		return true
	}
	t.l.poller.help()
	return t.l.answered(t.s)
}

// Cancel gives the request up, as a Wait whose context has ended.
func (t Ticket) Cancel() {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, _ = t.wait(ctx, nil, nil)
}

func (t Ticket) wait(ctx context.Context, resp []byte, use func(Response, []byte) error) (Response, error) {
	if t.l == nil || !t.s.claim.CompareAndSwap(t.claim, 0) {
		return Response{}, t.void()
	}
	// Inside, the epoch stays; until then the slot may have become another's.
	if !t.l.inside.enter() {
		t.l.count.pending(-1)
		return Response{}, t.void()
	}
	if t.l.epoch.Load() != t.epoch() {
		t.l.inside.leave()
		t.l.count.pending(-1)
		return Response{}, t.void()
	}
	defer t.l.inside.leave()
	return t.l.finish(ctx, t.s, resp, use)
}

func (t Ticket) epoch() uint32 { return uint32(t.claim >> 32) }

// void is why a ticket is good for nothing: its lane was closed or rebuilt, for a
// reason that is the request's, too; or it was waited for before.
func (t Ticket) void() error {
	if t.l != nil {
		e := t.l.cause.Load()
		if t.l.epoch.Load() != t.epoch() {
			e = t.l.past.Load()
		}
		if e != nil {
			return e.as("wait")
		}
	}
	return &Error{Layer: LayerUsage, Op: "wait", Err: ErrTicketUsed}
}

// start gets a slot and posts the request; the caller is inside the lane's gate
// on success.
func (p *Pool) start(ctx context.Context, r *Request, room int, wait bool) (_ *Lane, _ *slot, err error) {
	if err := ctx.Err(); err != nil {
		return nil, nil, &Error{Layer: LayerWait, Op: "call", Label: p.anyLabel(r.Rail), Err: err}
	}
	l, s, err := p.acquire(ctx, r.Rail, wait)
	if err != nil {
		return nil, nil, err
	}
	started := false
	defer func() { // also when r.Fill panics
		if !started {
			p.release(l, s)
			l.inside.leave()
		}
	}()
	s.epoch = l.epoch.Load()
	switch most := l.cfg.ResponseBytes; {
	case r.MaxResponse > most:
		return nil, nil, l.errorf(LayerUsage, "call", fmt.Errorf("%w: room for an answer of %d bytes, slots have %d", ErrTooLarge, r.MaxResponse, most))
	case r.MaxResponse > 0:
		room = r.MaxResponse
	case room < 0 || room > most:
		room = most
	}
	if err := l.submit(ctx, s, r, room); err != nil {
		return nil, nil, err
	}
	started = true
	l.count.pending(1)
	return l, s, nil
}

// finish waits for the answer, takes it and gives the slot back.
func (l *Lane) finish(ctx context.Context, s *slot, resp []byte, use func(Response, []byte) error) (Response, error) {
	defer l.count.pending(-1)
	watch := stopwatch(l.cfg.Profile)
	err := l.await(ctx, s)
	lap(&l.count.WaitStatusNS, watch)
	if err != nil {
		return Response{}, l.giveUp(ctx, s, err)
	}
	defer l.revoke(s) // also when use panics
	h := head(s.resp.b[:headBytes])
	out := Response{Status: Status(h.status()), N: int(h.bytes())}
	body := s.resp.b[headBytes : headBytes+out.N]
	watch = stopwatch(l.cfg.Profile)
	if use != nil {
		err = use(out, body)
	} else if copy(resp, body) < len(body) && resp != nil {
		err = l.errorf(LayerUsage, "wait", fmt.Errorf("%w: an answer of %d bytes, the buffer has %d", ErrTooLarge, len(body), len(resp)))
	}
	lap(&l.count.CopyResponseNS, watch)
	return out, err
}

func (l *Lane) revoke(s *slot) {
	watch := stopwatch(l.cfg.Profile)
	l.pool.Load().release(l, s)
	lap(&l.count.RevokeResourceNS, watch)
}

// unexpose destroys the QP, so that the peer can reach nothing through it, and
// gives back err, with ErrNotQuiet when that cannot be had.
func (l *Lane) unexpose(err error) error {
	cerr := l.closeQP()
	if cerr == nil {
		return err
	}
	e := l.errorf(LayerPost, "call", errors.Join(ErrNotQuiet, cerr))
	if le, ok := err.(*Error); ok {
		e.Layer, e.Status, e.VendorErr, e.Class = le.Layer, le.Status, le.VendorErr, le.Class
		err = le.Err
	}
	e.Err = errors.Join(err, ErrNotQuiet, cerr)
	return e
}

// giveUp decides what becomes of a slot without an answer.
func (l *Lane) giveUp(ctx context.Context, s *slot, err error) error {
	if ctx.Err() == nil || err != ctx.Err() {
		// The lane failed. What the request exposed is safe only without the QP.
		if s.exposed {
			return l.unexpose(err)
		}
		return err
	}
	l.count.Canceled.Add(1)
	if s.exposed {
		if !l.awaitQuiet(s) {
			return l.unexpose(l.errorf(LayerWait, "call", err))
		}
		l.pool.Load().release(l, s)
	} else {
		l.pool.Load().quarantine(l, s)
	}
	return l.errorf(LayerWait, "call", err)
}
