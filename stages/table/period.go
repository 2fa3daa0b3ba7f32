package table

import (
	"math"
	"sync"
	"sync/atomic"
)

// Which rows have changed since a save is known by periods. A period is a number that
// grows with each save. Who changes a row stamps its reference, in the word that it swings
// anyway, with the low bits of the present period; the reference of a deleted key is the
// whole of it. Readers never look at stamps.
//
// A save in period m first makes m+1 the present one. Then it takes and releases the lock
// of each segment before it reads it: a writer that had the lock before is seen by the
// walk, and one that has it later stamps with m+1 or more. So what has changed since the
// moment when the walk read it has a stamp beyond m, and may be told apart by it from
// then on. What changed between the two is told again by the next save, which does no harm.

const (
	// periodWindow is how far back stamps may reach. Seven bits tell 64 periods of the past
	// from as many of the future, which a walk meets when another save begins beside it.
	periodWindow = 48
	// keepMarks is how many saves and loads can be the base of an incremental one.
	keepMarks = 16
)

// deleted is the reference of a key whose row was deleted in a period.
func deleted(period uint64) uint64 { return period<<1 | 1 }

func deletedIn(ref uint64) (period uint64) { return ref >> 1 }

// changedIn is the period of the stamp of a row's reference, seen from the period now.
func changedIn(ref, now uint64) (period uint64) {
	ahead := int8(uint8(ref)<<1-uint8(now)<<1) >> 1
	return now + uint64(int64(ahead))
}

// mark is a snapshot that further saves can be based on.
type mark struct {
	id     SaveID
	period uint64            // changes since then are in later periods
	bodies map[string]uint64 // by table: the body that the snapshot has
	whole  bool              // the save has ended well
}

// history is the periods of a store and its marks.
type history struct {
	period atomic.Uint64 // the present one
	// Of the marks, without any math.MaxUint64: the oldest, and the newest whose save has ended.
	oldest atomic.Uint64
	newest atomic.Uint64
	bodies atomic.Uint64 // numbers of bodies
	mu     sync.Mutex
	lowest uint64 // no stamp is of an earlier period
	marks  []*mark
}

// stamp is that of the present period. Who asks holds the lock of the segment.
func (s *Store) stamp() uint64 { return s.history.period.Load() & stampMask }

func (h *history) open() {
	h.period.Store(1)
	h.oldest.Store(math.MaxUint64)
	h.newest.Store(math.MaxUint64)
}

// begin makes the mark of a save and a new period. The store is entered.
func (s *Store) beginPeriod(id SaveID) *mark {
	h := &s.history
	h.mu.Lock()
	defer h.mu.Unlock()
	now := h.period.Load()
	if now+1-h.lowest >= periodWindow {
		h.lowest = now - periodWindow/2
		for _, t := range s.Tables() {
			if b := t.body.Load(); b != nil {
				b.restamp(now, h.lowest)
			}
		}
	}
	m := &mark{id: id, period: now, bodies: make(map[string]uint64)}
	h.addLocked(m)
	h.period.Store(now + 1)
	return m
}

// addLocked keeps a mark, and lets go of those that are too many or too old. Deletions
// before the oldest one are remembered no longer.
func (h *history) addLocked(m *mark) {
	h.marks = append(h.marks, m)
	for len(h.marks) > keepMarks || len(h.marks) > 0 && h.marks[0].period < h.lowest {
		h.marks = h.marks[1:]
	}
	h.setBoundsLocked()
}

func (h *history) setBoundsLocked() {
	oldest, newest := uint64(math.MaxUint64), uint64(math.MaxUint64)
	for _, m := range h.marks {
		oldest = min(oldest, m.period)
		if m.whole && (newest == math.MaxUint64 || m.period > newest) {
			newest = m.period
		}
	}
	h.oldest.Store(oldest)
	h.newest.Store(newest)
}

// complete makes a mark one that saves can be based on.
func (h *history) complete(m *mark) {
	h.mu.Lock()
	defer h.mu.Unlock()
	m.whole = true
	h.setBoundsLocked()
}

// find is the mark of a snapshot, nil if it is not known (any more).
func (h *history) find(id SaveID) *mark {
	h.mu.Lock()
	defer h.mu.Unlock()
	for i := len(h.marks) - 1; i >= 0; i-- {
		if h.marks[i].id == id && h.marks[i].whole {
			return h.marks[i]
		}
	}
	return nil
}

func (h *history) has(m *mark) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, have := range h.marks {
		if have == m {
			return true
		}
	}
	return false
}

// drop forgets a mark whose save came to nothing.
func (h *history) drop(m *mark) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for i, have := range h.marks {
		if have == m {
			h.marks = append(h.marks[:i:i], h.marks[i+1:]...)
			break
		}
	}
	h.setBoundsLocked()
}

// restamp gives what was changed before period low the stamp of low, so that the few bits
// of a stamp stay unambiguous. To say that a row has changed later than it did is safe.
func (b *body) restamp(now, low uint64) {
	b.walk(func(seg *segment) {
		for i := range seg.mem {
			at := &seg.mem[i]
			for j := range slotsPerLine {
				if ref := at.ref(j); ref >= refFirst && changedIn(ref, now) < low {
					at.setRef(j, ref&^stampMask|low&stampMask)
				}
			}
		}
	})
}

// walk calls f with each segment, its lock held.
func (b *body) walk(f func(seg *segment)) {
	// Segments only ever divide, so the end of one is where another begins.
	for from, more := uint64(0), true; more; more = from != 0 {
		seg := b.lock(from)
		f(seg)
		from += 1 << (64 - seg.depth)
		seg.mu.Unlock()
	}
}
