package lane

import (
	"container/list"
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"
)

// Pool is the lanes to one shard, over one or several rails. It hands out their
// slots: to the least loaded usable lane, or to callers in the order they came
// when all slots are taken.
type Pool struct {
	count atomic.Pointer[Counters] // the first lane's; nil before

	mu     sync.Mutex
	lanes  []*Lane
	next   int       // where picking starts, so that equals take turns
	queue  list.List // of *waiter
	closed bool
	keeper Keeper
	refuse error     // why no call is taken
	idle   []*waiter // for reuse
}

type waiter struct {
	rail string
	el   *list.Element
	ch   chan grant // cap 1
}

// grant is a slot for one caller, good in the lane's epoch only.
type grant struct {
	l     *Lane
	s     *slot
	epoch uint32
	err   error
}

// grant hands an idle slot out; p.mu is held.
func (p *Pool) grant(l *Lane, s *slot) grant {
	s.state = slotInFlight
	return grant{l: l, s: s, epoch: l.epoch.Load()}
}

// NewPool makes a pool of lanes and takes them over. A lane is in one pool.
func NewPool(lanes ...*Lane) *Pool {
	p := &Pool{}
	for _, l := range lanes {
		p.Add(l)
	}
	return p
}

// Add puts one more lane into the pool.
func (p *Pool) Add(l *Lane) {
	l.pool.Store(p)
	p.mu.Lock()
	p.count.CompareAndSwap(nil, l.count)
	p.lanes = append(p.lanes, l)
	p.fill(l)
	p.mu.Unlock()
}

// Remove takes a lane out; its calls under way go on.
func (p *Pool) Remove(l *Lane) {
	p.mu.Lock()
	for i, x := range p.lanes {
		if x == l {
			p.lanes = append(p.lanes[:i], p.lanes[i+1:]...)
			break
		}
	}
	l.free = nil
	p.mu.Unlock()
	p.failStranded(ErrDown)
}

// Lanes are the pool's lanes.
func (p *Pool) Lanes() []*Lane {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]*Lane(nil), p.lanes...)
}

// Counters are those of the first lane, which the lanes usually share.
func (p *Pool) Counters() *Counters {
	if c := p.count.Load(); c != nil {
		return c
	}
	return new(Counters)
}

// fill makes every slot of a lane idle; p.mu is held.
func (p *Pool) fill(l *Lane) {
	l.free = make([]uint16, 0, len(l.slots))
	for i := len(l.slots) - 1; i >= 0; i-- {
		l.slots[i].state = slotIdle
		p.give(l, &l.slots[i])
	}
}

// give hands an idle slot to the first in the queue that may have it, or keeps
// it; p.mu is held.
func (p *Pool) give(l *Lane, s *slot) {
	if l.State() != Active {
		return
	}
	for e := p.queue.Front(); e != nil; e = e.Next() {
		w := e.Value.(*waiter)
		if w.rail == "" || w.rail == l.label.Rail {
			p.queue.Remove(e)
			w.el = nil
			w.ch <- p.grant(l, s)
			return
		}
	}
	l.free = append(l.free, s.index)
}

// pick takes a slot of the least loaded lane; p.mu is held. usable tells whether
// a lane could have given one, down whether another one cannot.
func (p *Pool) pick(rail string) (g grant, usable, down bool) {
	best := -1
	for i := range p.lanes {
		k := (p.next + i) % len(p.lanes)
		x := p.lanes[k]
		if rail != "" && rail != x.label.Rail {
			continue
		}
		if x.State() != Active {
			down = true
			continue
		}
		usable = true
		if len(x.free) > 0 && (best < 0 || len(x.free) > len(p.lanes[best].free)) {
			best = k
		}
	}
	if best < 0 {
		return grant{}, usable, down
	}
	p.next = best + 1
	l := p.lanes[best]
	i := l.free[len(l.free)-1]
	l.free = l.free[:len(l.free)-1]
	return p.grant(l, &l.slots[i]), true, down
}

// acquire gets a slot and enters its lane's gate. Inside, the epoch stays. Without
// wait the error is errNoSlot where a slot would be waited for.
func (p *Pool) acquire(ctx context.Context, rail string, wait bool) (*Lane, *slot, error) {
	for {
		g := p.slot(ctx, rail, wait)
		if g.err == errNoSlot {
			return nil, nil, errNoSlot
		}
		if g.err != nil {
			p.Counters().AcquireQPFailures.Add(1)
			return nil, nil, g.err
		}
		if g.enter() {
			return g.l, g.s, nil
		}
	}
}

// enter reports whether the caller is inside the gate and the slot still its own.
// If not the lane was closed or rebuilt since, and a rebuild has given every slot
// out anew.
func (g grant) enter() bool {
	if !g.l.inside.enter() {
		return false
	}
	if g.l.epoch.Load() == g.epoch {
		return true
	}
	g.l.inside.leave()
	return false
}

// errNoSlot says that every slot is taken.
var errNoSlot = errors.New("every slot is taken")

func (p *Pool) slot(ctx context.Context, rail string, wait bool) grant {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return grant{err: &Error{Layer: LayerUsage, Op: "call", Err: ErrClosed}}
	}
	if p.refuse != nil {
		err := p.refuse
		p.mu.Unlock()
		return grant{err: err}
	}
	g, usable, down := p.pick(rail)
	if down && p.wanted(rail) {
		usable = true // soon
	}
	if g.l != nil {
		p.mu.Unlock()
		return g
	}
	if !usable {
		err := p.downLocked(rail)
		p.mu.Unlock()
		return grant{err: err}
	}
	if !wait {
		p.mu.Unlock()
		return grant{err: errNoSlot}
	}
	p.Counters().AcquireQueued.Add(1)
	w := p.newWaiter(rail)
	w.el = p.queue.PushBack(w)
	p.mu.Unlock()
	select {
	case g := <-w.ch:
		p.freeWaiter(w)
		return g
	case <-ctx.Done():
	}
	p.mu.Lock()
	if w.el != nil {
		p.queue.Remove(w.el)
		w.el = nil
	} else if g := <-w.ch; g.l != nil && g.epoch == g.l.epoch.Load() {
		g.s.state = slotIdle
		p.give(g.l, g.s)
	}
	p.mu.Unlock()
	p.freeWaiter(w)
	return grant{err: &Error{Layer: LayerWait, Op: "call", Label: p.anyLabel(rail), Err: ctx.Err()}}
}

func (p *Pool) newWaiter(rail string) *waiter {
	if n := len(p.idle); n > 0 {
		w := p.idle[n-1]
		p.idle = p.idle[:n-1]
		w.rail = rail
		return w
	}
	return &waiter{rail: rail, ch: make(chan grant, 1)}
}

func (p *Pool) freeWaiter(w *waiter) {
	p.mu.Lock()
	p.idle = append(p.idle, w)
	p.mu.Unlock()
}

func (p *Pool) anyLabel(rail string) Label {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, l := range p.lanes {
		if rail == "" || rail == l.label.Rail {
			return Label{Shard: l.label.Shard, Index: -1, Rail: rail, Local: l.label.Local, Remote: l.label.Remote}
		}
	}
	return Label{Shard: -1, Index: -1, Rail: rail}
}

// downLocked is the error of a pool without usable lanes for a rail.
func (p *Pool) downLocked(rail string) error {
	for _, l := range p.lanes {
		if rail == "" || rail == l.label.Rail {
			if e := l.cause.Load(); e != nil {
				out := e.as("call")
				out.Err = joined{ErrDown, e.Err}
				return out
			}
		}
	}
	return &Error{Layer: LayerUsage, Op: "call", Label: Label{Shard: -1, Index: -1, Rail: rail}, Err: ErrDown}
}

// joined is two errors on one line.
type joined struct{ what, why error }

func (j joined) Error() string   { return j.what.Error() + ": " + j.why.Error() }
func (j joined) Unwrap() []error { return []error{j.what, j.why} }

// laneDown fails the callers in the queue that no lane is left for.
func (p *Pool) laneDown(l *Lane) {
	p.mu.Lock()
	l.free = l.free[:0]
	if p.keeper != nil {
		p.keeper.Down(l)
	}
	p.strand(nil, true)
	p.mu.Unlock()
}

// failStranded answers those in the queue that cannot be served.
func (p *Pool) failStranded(because error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.strand(because, false)
}

// strand answers those in the queue that no lane is left for and, if hopeful,
// none is coming for; p.mu is held.
func (p *Pool) strand(because error, hopeful bool) {
	for e := p.queue.Front(); e != nil; {
		next := e.Next()
		w := e.Value.(*waiter)
		usable := false
		for _, l := range p.lanes {
			if l.State() == Active && (w.rail == "" || w.rail == l.label.Rail) {
				usable = true
				break
			}
		}
		if !usable && hopeful && p.refuse == nil {
			usable = p.wanted(w.rail)
		}
		if !usable || p.closed || p.refuse != nil {
			p.queue.Remove(e)
			w.el = nil
			err := p.downLocked(w.rail)
			if p.closed {
				err = &Error{Layer: LayerUsage, Op: "call", Err: ErrClosed}
			} else if p.refuse != nil {
				err = p.refuse
			} else if because != nil && !errors.Is(err, because) {
				err = &Error{Layer: LayerUsage, Op: "call", Err: because}
			}
			w.ch <- grant{err: err}
		}
		e = next
	}
}

// release gives a slot back whose answer was taken.
func (p *Pool) release(l *Lane, s *slot) {
	p.mu.Lock()
	if s.epoch == l.epoch.Load() {
		s.state = slotIdle
		p.give(l, s)
	}
	p.mu.Unlock()
}

// quarantine puts a slot aside whose caller gave up. Its late answer frees it;
// when none comes in time the lane is retired. Meanwhile the timer does for the
// slot what a waiting caller would: with all slots aside nobody else does, and a
// peer that has gone would be noticed only by the time-out.
func (p *Pool) quarantine(l *Lane, s *slot) {
	l.count.Quarantined.Add(1)
	seq, epoch := s.seq.Load(), s.epoch
	p.mu.Lock()
	s.state = slotQuarantined
	s.touch, s.ask = newAlarm(l.cfg.TouchAfter, l.cfg.TouchEvery), newAlarm(l.cfg.ProbeAfter, l.cfg.ProbeEvery)
	s.expiry = time.AfterFunc(s.next(l.cfg.WaitTimeout), func() { p.watch(l, s, seq, epoch) })
	s.late.Store(true)
	if l.notify == Scan {
		l.poller.sleeping(1, true)
	}
	p.mu.Unlock()
	p.reap(l, s) // it may have come just now
}

// next is the time until something is due for a quarantined slot.
func (s *slot) next(timeout time.Duration) time.Duration {
	return max(min(timeout, s.touch.at, s.ask.at)-(clock()-s.since), 0)
}

// watch is what the timer of a quarantined slot does.
func (p *Pool) watch(l *Lane, s *slot, seq, epoch uint32) {
	p.mu.Lock()
	if s.state != slotQuarantined || !s.late.Load() || s.seq.Load() != seq || s.epoch != epoch {
		p.mu.Unlock()
		return
	}
	waited := clock() - s.since
	over, touch, ask := waited >= l.cfg.WaitTimeout, s.touch.rings(waited), s.ask.rings(waited)
	if !over {
		s.expiry.Reset(s.next(l.cfg.WaitTimeout))
	}
	p.mu.Unlock()
	if over {
		l.count.Timeouts.Add(1)
		l.failEpoch(l.errorf(LayerWait, "call", joined{ErrTimeout, errAbandoned}), true, epoch)
		return
	}
	if touch && (grant{l: l, epoch: epoch}).enter() {
		l.touch(s)
		l.inside.leave()
	}
	if ask {
		l.ask()
	}
}

var errAbandoned = errors.New("a request that its caller gave up was never answered")

// endQuarantine stops watching for a late answer; p.mu is held.
func (p *Pool) endQuarantine(l *Lane, s *slot) {
	if !s.late.Swap(false) {
		return
	}
	s.expiry.Stop()
	if l.notify == Scan {
		l.poller.sleeping(-1, true)
	}
}

// reap takes the late answer of a quarantined slot if it is there. The caller is
// inside the lane's gate or under its poller's lock.
func (p *Pool) reap(l *Lane, s *slot) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s.state != slotQuarantined || !l.answered(s) || l.check(s) != nil {
		return
	}
	p.endQuarantine(l, s)
	l.seen.Add(1)
	l.count.LateCompletions.Add(1)
	if s.epoch == l.epoch.Load() {
		s.state = slotIdle
		p.give(l, s)
	}
}

// Close fails the queue, closes every lane and returns when no call is inside
// any more.
func (p *Pool) Close() error {
	p.mu.Lock()
	p.closed = true
	lanes := append([]*Lane(nil), p.lanes...)
	p.mu.Unlock()
	p.failStranded(nil)
	var errs []error
	for _, l := range lanes {
		errs = append(errs, l.Close())
	}
	return errors.Join(errs...)
}
