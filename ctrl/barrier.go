package ctrl

import (
	"fmt"
	"time"
)

// barrierMemory is how long the outcome of a round is kept for parties that ask
// again because a reply was lost.
const barrierMemory = time.Minute

// barrier is a named meeting of parties. A party is there once per ticket: asking
// again with the same ticket is no second arrival.
type barrier struct {
	parties int // of the round in progress
	waiting map[NodeID]uint64
	passed  map[NodeID]uint64 // last ticket of each node that passed
	broken  map[NodeID]brokenTicket
	until   time.Time // when an idle barrier is forgotten; zero: not idle
}

type brokenTicket struct {
	ticket uint64
	reason string
}

// Arrive counts a member in at a barrier of n parties and reports whether all of
// them have arrived. When a waiting party leaves or dies the round breaks: each of
// the others gets a BarrierError.
func (r *Registry) Arrive(_ time.Time, id NodeID, inc uint64, name string, n int, ticket uint64) (bool, error) {
	if err := checkText("barrier", name, 1, MaxIDBytes); err != nil {
		return false, err
	}
	if n < 1 || n > MaxParties || ticket == 0 {
		return false, invalidf("barrier", "%q with %d parties, 1 to %d are possible", name, n, MaxParties)
	}
	if _, err := r.get(id, inc); err != nil {
		return false, err
	}
	b := r.barriers[name]
	if b == nil {
		if len(r.barriers) >= MaxBarriers {
			return false, fmt.Errorf("%w: %d barriers", ErrLimit, MaxBarriers)
		}
		b = &barrier{waiting: map[NodeID]uint64{}, passed: map[NodeID]uint64{}, broken: map[NodeID]brokenTicket{}}
		r.barriers[name] = b
	}
	b.until = time.Time{}
	if passed, err := r.Outcome(id, name, ticket); passed || err != nil {
		return passed, err
	}
	if len(b.waiting) > 0 && b.parties != n {
		return false, &BarrierError{Name: name, Reason: fmt.Sprintf("%s came for %d parties, the others wait for %d", id, n, b.parties)}
	}
	b.parties = n
	delete(b.broken, id)
	delete(b.passed, id)
	b.waiting[id] = ticket
	if len(b.waiting) < n {
		return false, nil
	}
	for w, t := range b.waiting {
		b.passed[w] = t
	}
	clear(b.waiting)
	r.rev++
	return true, nil
}

// Outcome reports whether the round that a ticket came for was passed, or why it
// broke.
func (r *Registry) Outcome(id NodeID, name string, ticket uint64) (bool, error) {
	b := r.barriers[name]
	if b == nil {
		return false, nil
	}
	if x := b.broken[id]; x.ticket == ticket {
		return false, &BarrierError{Name: name, Reason: x.reason}
	}
	return b.passed[id] == ticket, nil
}

// Withdraw takes an arrival back; the others go on waiting. It reports false when
// it was too late: the barrier was passed.
func (r *Registry) Withdraw(_ time.Time, id NodeID, name string, ticket uint64) bool {
	b := r.barriers[name]
	if b == nil {
		return true
	}
	if b.waiting[id] == ticket {
		delete(b.waiting, id)
	}
	return b.passed[id] != ticket
}

// Waiting gives how many have arrived at a barrier.
func (r *Registry) Waiting(name string) int {
	if b := r.barriers[name]; b != nil {
		return len(b.waiting)
	}
	return 0
}

func (r *Registry) breakBarriers(id NodeID, reason string) {
	for _, b := range r.barriers {
		delete(b.passed, id)
		delete(b.broken, id)
		if _, ok := b.waiting[id]; !ok {
			continue
		}
		delete(b.waiting, id)
		for w, t := range b.waiting {
			b.broken[w] = brokenTicket{t, fmt.Sprintf("%s went away while waiting: %s", id, reason)}
		}
		clear(b.waiting)
	}
}

func (r *Registry) expireBarriers(now time.Time) {
	for name, b := range r.barriers {
		switch {
		case len(b.waiting) > 0:
			b.until = time.Time{}
		case b.until.IsZero():
			b.until = now.Add(barrierMemory)
		case now.After(b.until):
			delete(r.barriers, name)
		}
	}
}
