package lane

import (
	"errors"
	"fmt"
	"sync"

	"github.com/railstore/railstore/verbs"
)

// BeginRebuild moves a Dirty lane that may be cured to Rebuilding. It destroys
// the old QP and returns when nothing touches the slots any more; after that the
// same memory may be published again under a new generation. It reports false
// when the lane is not in that state. With an error the QP could not be destroyed:
// the peer may still write into the slots, and the lane is Dead.
func (l *Lane) BeginRebuild() (bool, error) {
	l.life.Lock()
	defer l.life.Unlock()
	l.failing.Lock() // whoever made it Dirty has done then
	begun := !l.closed && l.rebuildable.Load() && l.state.CompareAndSwap(uint32(Dirty), uint32(Rebuilding))
	l.failing.Unlock()
	if !begun {
		return false, nil
	}
	if err := l.quiet(); err != nil {
		l.state.Store(uint32(Dead))
		return false, l.errorf(LayerPost, "rebuild", err)
	}
	// Completions of the old QP must not take the room of the new one's.
	l.poller.drain()
	return true, nil
}

// FinishRebuild makes a Rebuilding lane Active again, on a new connected QP and
// with the generations that both ends published. What was under way before has
// failed and is not repeated: nobody knows whether the server did it.
func (l *Lane) FinishRebuild(qp *verbs.QP, generation uint32, peer Peer) error {
	l.life.Lock()
	defer l.life.Unlock()
	fail := func(err error) error { return l.errorf(LayerUsage, "rebuild", err) }
	if l.closed || l.State() != Rebuilding {
		return fail(fmt.Errorf("the lane is %v: begin a rebuild first", l.State()))
	}
	if err := peer.check(l.cfg.serverPublished()); err != nil {
		return fail(err)
	}
	if generation == l.gen {
		return fail(errors.New("the generation is that of before the rebuild"))
	}
	l.mu.Lock()
	err := l.use(qp, l.cfg.ClientCap())
	if err == nil {
		l.destroyed, l.destroy, l.owed, l.touching = false, sync.Once{}, 0, false
	}
	l.mu.Unlock()
	if err != nil {
		return fail(err)
	}
	l.mu.Lock()
	l.gen, l.peer = generation, peer
	l.mu.Unlock()
	l.seen.Store(0)
	l.polled.Store(0)
	for i := range l.slots {
		// The server counts from 0 for a new generation.
		l.slots[i].seq.Store(0)
		if l.slots[i].claim.Swap(0) != 0 {
			l.count.pending(-1) // of a ticket that nobody will get an answer for
		}
		select {
		case <-l.slots[i].wake:
		default:
		}
	}
	l.aim()
	if err := l.join(); err != nil {
		l.destroyed = true
		l.destroy.Do(func() {}) // the QP stays the caller's
		return fail(err)
	}
	l.shut = false
	l.count.LanesRecovered.Add(1)
	l.inside.open()
	// In one step for the pool: a slot that it granted in the epoch before is told
	// from those that it grants now.
	p := l.pool.Load()
	if p != nil {
		p.mu.Lock()
	}
	l.epoch.Add(1)
	l.past.Store(l.cause.Swap(nil))
	l.rebuildable.Store(false)
	l.state.Store(uint32(Active))
	if p != nil {
		p.fill(l)
		p.mu.Unlock()
	}
	l.cfg.emit(Event{Name: EventLaneRecovered, Label: l.label})
	return nil
}

// AbortRebuild moves a Rebuilding lane back to Dirty, or to Dead when that was
// its last attempt.
func (l *Lane) AbortRebuild(dead bool) {
	l.life.Lock()
	defer l.life.Unlock()
	to := Dirty
	if dead {
		to = Dead
	}
	l.state.CompareAndSwap(uint32(Rebuilding), uint32(to))
}
