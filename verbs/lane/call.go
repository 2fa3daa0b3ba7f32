package lane

import (
	"context"
	"fmt"
	"math"
	"runtime"
	"time"

	"github.com/railstore/railstore/verbs"
)

// Request is one call. The zero Op is as good as any.
type Request struct {
	Op    uint16
	Flags uint16
	Token uint64 // for the server: a retry with the same one applies once
	// Payload is copied. Fill, if set, is used instead: it writes the payload into
	// the slot and returns its length.
	Payload []byte
	Fill    func(dst []byte) int
	// MaxResponse is the room for the answer; 0: that of the buffer the caller
	// gave, or, without one, of the slot.
	MaxResponse int
	// Rail pins the call to lanes of that rail; empty: any.
	Rail string
	// Exposed says that the payload names memory of this process that the server
	// reads or writes by itself. A call that is given up then returns only when the
	// server can no longer touch that memory: its late answer came, or the lane's
	// QP was destroyed.
	Exposed bool
}

// Response of a call. A status other than StatusOK is not an error of the call.
type Response struct {
	Status Status
	N      int // bytes of the answer
}

// submit writes the request into the slot, which is the caller's alone, and
// posts it. On error the slot is still the caller's, unless the lane failed.
func (l *Lane) submit(ctx context.Context, s *slot, r *Request, capacity int) error {
	start := stopwatch(l.cfg.Profile)
	payload := s.req.b[descBytes : descBytes+l.cfg.RequestBytes]
	n := len(r.Payload)
	switch {
	case r.Fill != nil:
		n = r.Fill(payload)
		if n < 0 || n > len(payload) {
			return l.errorf(LayerUsage, "call", fmt.Errorf("%w: the payload function returned %d bytes of a slot of %d", ErrTooLarge, n, len(payload)))
		}
	case n > len(payload):
		return l.errorf(LayerUsage, "call", fmt.Errorf("%w: payload of %d bytes, slots have %d", ErrTooLarge, n, len(payload)))
	default:
		copy(payload, r.Payload)
	}
	// Waiting comes before the sequence is used: one that is left out would be a
	// gap to the server.
	if err := l.makeRoom(ctx, s); err != nil {
		return err
	}
	var remaining uint64
	if d, ok := ctx.Deadline(); ok {
		remaining = uint64(max(time.Until(d).Microseconds(), 1))
	}
	seq := s.seq.Load() + 1
	s.seq.Store(seq)
	s.capacity, s.exposed, s.since = uint32(capacity), r.Exposed, clock()
	d := desc(s.req.b[:descBytes])
	d.put(&descFields{op: r.Op, flags: r.Flags, slot: s.index, seq: seq, generation: l.peer.Generation, label: uint32(l.label.Shard),
		payload: uint32(n), capacity: uint32(capacity), token: r.Token, deadline: remaining})
	putSum(d, sum(d, payload[:n], l.cfg.HeaderChecksum))
	putWord(s.commit.b, makeWord(seq, uint16(l.peer.Generation), wordReady))
	err := l.post(s, descBytes+n)
	if err == nil {
		l.count.SubmitRequest.Add(1)
		lap(&l.count.SubmitRequestNS, start)
	}
	return err
}

// makeRoom waits until a request can be posted: there is a receive for its
// answer, and room in the send queue, which is taken.
func (l *Lane) makeRoom(ctx context.Context, s *slot) error {
	if l.notify != Scan {
		if err := l.drainReceives(ctx); err != nil {
			return err
		}
	}
	if l.takeRoom() {
		return nil
	}
	return l.waitRoom(ctx, s)
}

func (l *Lane) takeRoom() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.sq.reserve(2)
}

// post queues the two WRITEs of a request for which room was taken.
func (l *Lane) post(s *slot, n int) error {
	l.mu.Lock()
	if l.destroyed || l.State() != Active {
		l.mu.Unlock()
		return l.down("call")
	}
	signal := l.sq.wants(2)
	wrs := append(l.wrs[:0],
		verbs.SendWR{ID: wrid(kindSend, s.index, l.id, l.idGen), Op: verbs.OpWrite, RemoteAddr: s.remote, RKey: l.peer.Slots.RKey, NumSGE: 1},
		verbs.SendWR{ID: wrid(kindSend, s.index, l.id, l.idGen), Op: verbs.OpWrite, RemoteAddr: s.remoteW, RKey: l.peer.Slots.RKey, NumSGE: 1})
	if l.notify != Scan {
		wrs[1].Op, wrs[1].Imm, wrs[1].Flags = verbs.OpWriteImm, makeImm(s.index, s.seq.Load()), verbs.Solicited
	}
	if signal {
		wrs[1].Flags |= verbs.Signaled
	}
	sges := append(l.sges[:0], s.req.sge, s.commit.sge)
	sges[0].Length = uint32(n)
	_, err := l.qp.PostSend(wrs, sges)
	if err == nil {
		l.sq.posted(2, signal)
	}
	l.mu.Unlock()
	if err != nil {
		// Part of it may be on its way: nothing is known of the slot any more.
		l.Fail(l.errorf(LayerPost, "call", err), false)
		return l.down("call")
	}
	return nil
}

// down is the lane's cause in the name of op.
func (l *Lane) down(op string) error {
	if e := l.cause.Load(); e != nil {
		return e.as(op)
	}
	return l.errorf(LayerUsage, op, ErrDown)
}

// drainReceives sees to it that there is a receive for the answer of every slot:
// answers that were seen in memory keep theirs until their completion is polled.
func (l *Lane) drainReceives(ctx context.Context) error {
	limit := int32(l.cfg.recvDepth() - l.cfg.Slots)
	if int32(l.seen.Load()-l.polled.Load()) <= limit {
		return nil
	}
	start := time.Now()
	for i := 1; int32(l.seen.Load()-l.polled.Load()) > limit; i++ {
		if !l.poller.help() {
			runtime.Gosched()
		}
		if i%64 == 0 {
			if err := l.stopped(ctx, start); err != nil {
				return err
			}
		}
	}
	return nil
}

// stopped says why a wait for completions cannot go on.
func (l *Lane) stopped(ctx context.Context, start time.Time) error {
	switch {
	case l.State() != Active:
		return l.down("call")
	case ctx.Err() != nil:
		return l.errorf(LayerWait, "call", ctx.Err())
	case time.Since(start) >= l.cfg.TrackedTimeout:
		return l.trackedTimeout()
	}
	return nil
}

// waitRoom waits for completions that free entries of the send queue.
func (l *Lane) waitRoom(ctx context.Context, s *slot) error {
	l.count.DrainSubmit.Add(1)
	watch := stopwatch(l.cfg.Profile)
	defer lap(&l.count.DrainSubmitNS, watch)
	start := time.Now()
	l.poller.helpers.Add(1)
	for i := 1; !l.takeRoom(); i++ {
		if err := l.stopped(ctx, start); err != nil {
			return err
		}
		if !l.poller.help() {
			if time.Since(start) >= l.cfg.Spin {
				return l.sleepForRoom(ctx, s, start)
			}
			runtime.Gosched()
		}
	}
	return nil
}

func (l *Lane) sleepForRoom(ctx context.Context, s *slot, start time.Time) error {
	l.poller.sleeping(1, l.notify == Scan)
	defer l.poller.sleeping(-1, l.notify == Scan)
	s.timer.Reset(l.cfg.TrackedTimeout)
	defer s.timer.Stop()
	for !l.takeRoom() {
		if err := l.stopped(ctx, start); err != nil {
			return err
		}
		select {
		case <-l.room:
		case <-s.timer.C:
		case <-ctx.Done():
		}
	}
	l.signalRoom() // another one may be waiting, too
	return nil
}

func (l *Lane) trackedTimeout() error {
	e := l.errorf(LayerTracked, "call", fmt.Errorf("%w: %v", ErrTracked, l.cfg.TrackedTimeout))
	l.Fail(e, true)
	return l.down("call")
}

// await returns nil when the answer is in the slot and checked. Any other return
// means that the lane failed, or, with ctx's error inside, that the caller gave
// up and the slot must be put aside.
func (l *Lane) await(ctx context.Context, s *slot) error {
	if l.cfg.Spin == 0 || l.notify == Adaptive && !l.spin.worth(s.seq.Load()) {
		return l.sleep(ctx, s)
	}
	l.poller.helpers.Add(1)
	for i := 1; ; i++ {
		if l.answered(s) {
			l.spin.hit()
			return l.accept(s)
		}
		did := l.poller.help()
		if i%8 != 0 {
			continue
		}
		if l.lost(s) {
			return l.down("call")
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		if !did {
			runtime.Gosched()
		}
		if clock()-s.since > l.cfg.Spin {
			l.spin.miss()
			return l.sleep(ctx, s)
		}
	}
}

// lost reports that the request will not be answered any more.
func (l *Lane) lost(s *slot) bool { return l.State() != Active || s.epoch != l.epoch.Load() }

// sleep is the second part of await.
func (l *Lane) sleep(ctx context.Context, s *slot) error {
	l.count.WaitSleeps.Add(1)
	scan := l.notify == Scan
	l.poller.sleeping(1, scan)
	defer l.poller.sleeping(-1, scan)
	s.waiting.Store(true)
	defer s.waiting.Store(false)
	touch, harvest := newAlarm(l.cfg.TouchAfter, l.cfg.TouchEvery), newAlarm(l.cfg.HarvestEvery, l.cfg.HarvestEvery)
	ask := newAlarm(l.cfg.ProbeAfter, l.cfg.ProbeEvery)
	for {
		if l.answered(s) {
			return l.accept(s)
		}
		if l.lost(s) {
			return l.down("call")
		}
		if w := loadWord(s.word); w != 0 && !w.ok() {
			// Words are written whole: this one will not become the answer any more.
			l.count.BadResponses.Add(1)
			l.Fail(l.errorf(LayerIntegrity, "call", fmt.Errorf("%w: status word %#016x", ErrBadResponse, uint64(w))), true)
			return l.down("call")
		}
		waited := clock() - s.since
		if waited >= l.cfg.WaitTimeout {
			l.count.Timeouts.Add(1)
			l.Fail(l.errorf(LayerWait, "call", fmt.Errorf("%w: %v", ErrTimeout, l.cfg.WaitTimeout)), true)
			return l.down("call")
		}
		if harvest.rings(waited) {
			l.count.Harvests.Add(1)
			l.poller.help()
			continue
		}
		if touch.rings(waited) {
			l.touch(s)
			if l.State() != Active {
				continue
			}
		}
		if ask.rings(waited) {
			l.ask()
		}
		s.timer.Reset(min(l.cfg.WaitTimeout, touch.at, harvest.at, ask.at) - waited)
		select {
		case <-s.wake:
		case <-s.timer.C:
		case <-ctx.Done():
			s.timer.Stop()
			return ctx.Err()
		}
		s.timer.Stop()
	}
}

// ask wants the peer's health known.
func (l *Lane) ask() {
	if l.cfg.Waiting != nil {
		l.count.Probes.Add(1)
		l.cfg.Waiting(l.label)
	}
}

// alarm is a moment of a wait and its repetitions.
type alarm struct{ at, every time.Duration }

func newAlarm(after, every time.Duration) alarm {
	if after < 0 || every < 0 {
		return alarm{at: math.MaxInt64}
	}
	return alarm{at: after, every: every}
}

// rings reports whether it is time, and sets the next time.
func (a *alarm) rings(waited time.Duration) bool {
	if waited < a.at {
		return false
	}
	a.at = waited + a.every
	return true
}

// touch writes nothing to the peer. Once a request was acknowledged the client has
// nothing under way, and its QP cannot notice that the peer's has gone: only a
// retry that runs out can tell. One touch at a time is enough for a lane; when the
// send queue has no room, something is under way already.
//
// Where words come with an immediate the touch has one, too, that of the slot which
// waits: should the completion of the first have been lost at the server, this one
// makes it look.
func (l *Lane) touch(s *slot) {
	l.mu.Lock()
	if l.touching && clock()-l.touched >= l.cfg.TouchTimeout && l.cfg.TouchTimeout > 0 {
		l.mu.Unlock()
		l.Fail(l.errorf(LayerTracked, "call", fmt.Errorf("%w: %v", ErrTracked, l.cfg.TouchTimeout)), true)
		return
	}
	if l.destroyed || l.touching || l.State() != Active || !l.sq.reserve(1) {
		l.mu.Unlock()
		return
	}
	wrs := append(l.wrs[:0], verbs.SendWR{ID: wrid(kindTouch, 0, l.id, l.idGen), Op: verbs.OpWrite,
		RemoteAddr: l.peer.Slots.Addr, RKey: l.peer.Slots.RKey, Flags: verbs.Signaled})
	if l.notify != Scan {
		wrs[0].Op, wrs[0].Imm, wrs[0].Flags = verbs.OpWriteImm, makeImm(s.index, s.seq.Load()), verbs.Signaled|verbs.Solicited
	}
	_, err := l.qp.PostSend(wrs, nil)
	if err == nil {
		l.sq.posted(1, true)
		l.touching, l.touched = true, clock()
		l.count.Touches.Add(1)
	}
	l.mu.Unlock()
	if err != nil {
		l.Fail(l.errorf(LayerPost, "call", err), false)
	}
}

// accept checks the response behind a status word that is there. The word may
// have become visible before the rest: then the rest is awaited.
func (l *Lane) accept(s *slot) error {
	err := l.check(s)
	if err != nil {
		err = l.settle(s, err)
	}
	if err != nil {
		l.count.BadResponses.Add(1)
		l.Fail(l.errorf(LayerIntegrity, "call", err), true)
		return l.down("call")
	}
	l.seen.Add(1)
	return nil
}

func (l *Lane) settle(s *slot, err error) error {
	for start := time.Now(); time.Since(start) < l.cfg.Settle && l.State() == Active; {
		l.poller.help()
		runtime.Gosched()
		if err = l.check(s); err == nil {
			l.count.Settled.Add(1)
			return nil
		}
	}
	return err
}

// awaitQuiet waits for the late answer of a request that was given up. When it
// does not come, the lane fails and the caller destroys the QP, so that the peer
// can reach nothing any more.
func (l *Lane) awaitQuiet(s *slot) (answered bool) {
	ctx, cancel := context.WithTimeout(context.Background(), l.cfg.Quiesce)
	defer cancel()
	if l.sleep(ctx, s) == nil {
		return true
	}
	l.Fail(l.errorf(LayerWait, "call", fmt.Errorf("%w: the request was given up and could still reach this process's memory", ErrTimeout)), true)
	return false
}
