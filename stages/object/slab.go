package object

import (
	"context"
	"fmt"
	"sort"
	"sync"
	"sync/atomic"
)

// Slab hands out pieces of one region of registered memory. Pieces are multiples
// of Align bytes, taken from the smallest gap that is large enough; neighbours
// that are free become one gap again. Who finds no room waits in line: the first
// in line is served first, so a large piece is not starved by small ones.
//
// A slab may grow: it begins with nothing, and has what it manages made ready piece by
// piece, each time when what is there does not do.
type Slab struct {
	mem   []byte
	limit uint64 // that cap may grow to

	chunk uint64                    // the least it grows by
	more  func(off, n uint64) error // makes the next n bytes ready; nil: it does not grow
	owner func(enough func() bool)  // of memory that is only lent; see lend
	grow  sync.Mutex                // held over more

	cap uint64 // under mu

	mu        sync.Mutex
	gaps      []gap // sorted by offset, never adjacent
	line      []*waiter
	used      uint64
	high      uint64
	live      int
	condemned uint64
	closed    bool
}

type gap struct{ off, n uint64 }

type waiter struct {
	need  uint64
	want  int
	ready chan struct{} // closed when got or err is set, under Slab.mu
	got   *Extent
	err   error
}

// lend names who holds memory only as long as nobody else wants it: giveBack is called
// by everyone who has to wait, and releases extents until enough says that it need not
// go on. It is called before the slab is used.
func (s *Slab) lend(giveBack func(enough func() bool)) { s.owner = giveBack }

// served reports whether a waiter need not wait any more.
func (w *waiter) served() bool {
	select {
	case <-w.ready:
		return true
	default:
		return false
	}
}

// NewSlab manages mem, whose tail that is no multiple of Align stays unused. The
// memory stays the caller's and must outlive the slab.
func NewSlab(mem []byte) *Slab {
	s := &Slab{mem: mem, cap: uint64(len(mem)) / Align * Align}
	s.limit = s.cap
	if s.cap > 0 {
		s.gaps = []gap{{0, s.cap}}
	}
	return s
}

// NewGrowingSlab manages mem, of which more makes the n bytes from off on ready, in
// order and without gaps, at least chunk at once but for the last. An error of more is
// that of the Acquire that needs it.
func NewGrowingSlab(mem []byte, chunk uint64, more func(off, n uint64) error) *Slab {
	return &Slab{mem: mem, limit: uint64(len(mem)) / Align * Align, chunk: max(roundUp(chunk), Align), more: more}
}

// ensure grows the slab until it has room for need bytes, or cannot grow any more.
func (s *Slab) ensure(need uint64) error {
	if s.more == nil || !s.short(need) {
		return nil
	}
	s.grow.Lock()
	defer s.grow.Unlock()
	for s.short(need) {
		if err := s.growLocked(need); err != nil {
			return err
		}
	}
	return nil
}

// growLocked tries to double the slab, so that there are few pieces, and then to get by
// with what it must have. Slab.grow is held: nobody else changes cap.
func (s *Slab) growLocked(need uint64) error {
	s.mu.Lock()
	from, tail := s.cap, uint64(0)
	if i := len(s.gaps) - 1; i >= 0 && s.gaps[i].off+s.gaps[i].n == s.cap {
		tail = s.gaps[i].n
	}
	s.mu.Unlock()
	least := min(max(need-min(tail, need), s.chunk), s.limit-from)
	n := min(max(least, min(from, mostGrowth)), s.limit-from)
	err := s.more(from, n)
	if err != nil && least < n {
		n = least
		err = s.more(from, n)
	}
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cap += n
	if i := len(s.gaps) - 1; i >= 0 && s.gaps[i].off+s.gaps[i].n == from {
		s.gaps[i].n += n
	} else {
		s.gaps = append(s.gaps, gap{from, n})
	}
	s.serveLocked()
	return nil
}

// mostGrowth bounds what is made ready on the mere chance that it is needed.
const mostGrowth = 256 << 20

// short reports whether need bytes are not there and the slab can still grow.
func (s *Slab) short(need uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.cap == s.limit || need > s.limit-s.condemned || need == 0 {
		return false
	}
	for _, g := range s.gaps {
		if g.n >= need && len(s.line) == 0 {
			return false
		}
	}
	return true
}

// Extent is a leased piece of a slab. It starts with one reference; the piece is
// free again when the last one is released.
type Extent struct {
	slab *Slab
	off  uint64
	n    int    // bytes asked for
	room uint64 // bytes taken
	refs atomic.Int32
	bad  atomic.Bool
}

// Piece is a part of registered memory: its bytes and where they begin in the
// region. It is valid as long as the extent it comes from.
type Piece struct {
	Off   uint64
	Bytes []byte
	// Memory is what the piece is a part of, where that is not the transport's own.
	Memory Memory
}

// roundUp rounds up to Align.
func roundUp(n uint64) uint64 { return (n + Align - 1) / Align * Align }

// Acquire takes n bytes, waiting until they are there or ctx ends. More than the
// slab ever has is ErrNoMemory at once. The bytes are whatever was there before.
func (s *Slab) Acquire(ctx context.Context, n int) (*Extent, error) {
	if n > 0 {
		if err := s.ensure(roundUp(uint64(n))); err != nil && !s.holds(roundUp(uint64(n))) {
			return nil, err
		}
	}
	x, w, err := s.take(n, true)
	if x != nil || err != nil {
		return x, err
	}
	if s.owner != nil {
		s.owner(w.served)
	}
	select {
	case <-w.ready:
		return w.got, w.err
	case <-ctx.Done():
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if w.got != nil || w.err != nil { // it came while we looked away
		return w.got, w.err
	}
	for i, o := range s.line {
		if o == w {
			s.line = append(s.line[:i], s.line[i+1:]...)
			break
		}
	}
	s.serveLocked() // we may have been the large one that held up the others
	return nil, fmt.Errorf("waiting for %d bytes of registered memory (%d of %d in use): %w", n, s.used, s.cap, context.Cause(ctx))
}

// holds reports whether the slab has need bytes, be they in use or not.
func (s *Slab) holds(need uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return need <= s.cap-s.condemned
}

// TryAcquire takes n bytes only if they are there and nobody waits.
func (s *Slab) TryAcquire(n int) (*Extent, bool) {
	if n > 0 && s.ensure(roundUp(uint64(n))) != nil {
		return nil, false
	}
	x, _, err := s.take(n, false)
	return x, x != nil && err == nil
}

func (s *Slab) take(n int, wait bool) (*Extent, *waiter, error) {
	if n < 0 {
		return nil, nil, fmt.Errorf("%w: %d bytes", ErrBadRequest, n)
	}
	need := roundUp(uint64(n))
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return nil, nil, fmt.Errorf("registered memory: %w", ErrClosed)
	case need > s.limit-s.condemned:
		return nil, nil, fmt.Errorf("%w: %d bytes wanted, there are %d in all", ErrNoMemory, n, s.limit-s.condemned)
	}
	if len(s.line) == 0 {
		if x := s.fitLocked(need, n); x != nil {
			return x, nil, nil
		}
	}
	if !wait {
		return nil, nil, nil
	}
	w := &waiter{need: need, want: n, ready: make(chan struct{})}
	s.line = append(s.line, w)
	return nil, w, nil
}

// fitLocked takes need bytes from the smallest gap that has them, the first of
// equals.
func (s *Slab) fitLocked(need uint64, n int) *Extent {
	x := &Extent{slab: s, n: n, room: need}
	x.refs.Store(1)
	if need > 0 {
		best := -1
		for i, g := range s.gaps {
			if g.n >= need && (best < 0 || g.n < s.gaps[best].n) {
				best = i
			}
		}
		if best < 0 {
			return nil
		}
		x.off = s.gaps[best].off
		if s.gaps[best].n == need {
			s.gaps = append(s.gaps[:best], s.gaps[best+1:]...)
		} else {
			s.gaps[best].off += need
			s.gaps[best].n -= need
		}
	}
	s.used += need
	s.high = max(s.high, s.used)
	s.live++
	return x
}

func (s *Slab) serveLocked() {
	for len(s.line) > 0 {
		w := s.line[0]
		if s.closed {
			w.err = fmt.Errorf("registered memory: %w", ErrClosed)
		} else if w.need > s.limit-s.condemned {
			w.err = fmt.Errorf("%w: %d bytes wanted, there are %d in all", ErrNoMemory, w.want, s.limit-s.condemned)
		} else if w.got = s.fitLocked(w.need, w.want); w.got == nil {
			return
		}
		close(w.ready)
		s.line = s.line[1:]
	}
}

func (s *Slab) free(x *Extent) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.live--
	if x.bad.Load() {
		// Stays out of circulation for good: somebody may still write it.
		s.condemned += x.room
		s.serveLocked()
		return
	}
	s.used -= x.room
	if x.room == 0 {
		return
	}
	g := gap{x.off, x.room}
	i := sort.Search(len(s.gaps), func(i int) bool { return s.gaps[i].off > g.off })
	if i < len(s.gaps) && g.off+g.n == s.gaps[i].off {
		g.n += s.gaps[i].n
		s.gaps = append(s.gaps[:i], s.gaps[i+1:]...)
	}
	if i > 0 && s.gaps[i-1].off+s.gaps[i-1].n == g.off {
		s.gaps[i-1].n += g.n
	} else {
		s.gaps = append(s.gaps, gap{})
		copy(s.gaps[i+1:], s.gaps[i:])
		s.gaps[i] = g
	}
	s.serveLocked()
}

// Close ends all waiting. Extents stay valid until they are released; the caller
// waits for Stats().Extents to be 0 before it unmaps.
func (s *Slab) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	s.serveLocked()
}

// SlabStats is the state of a slab.
type SlabStats struct {
	Capacity  uint64 // bytes that are ready
	Limit     uint64 // bytes that it may grow to
	Used      uint64 // of extents, rounded up, condemned ones included
	HighWater uint64 // the most that was ever used
	Condemned uint64 // never to be used again
	Extents   int    // not yet released
	Waiting   int
	Largest   uint64 // the largest gap
}

// Stats is a snapshot.
func (s *Slab) Stats() SlabStats {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := SlabStats{Capacity: s.cap, Limit: s.limit, Used: s.used, HighWater: s.high, Condemned: s.condemned, Extents: s.live, Waiting: len(s.line)}
	for _, g := range s.gaps {
		st.Largest = max(st.Largest, g.n)
	}
	return st
}

// Bytes is the memory of the extent.
func (x *Extent) Bytes() []byte { return x.slab.mem[x.off : x.off+uint64(x.n) : x.off+uint64(x.n)] }

// Len is the number of bytes that were asked for.
func (x *Extent) Len() int { return x.n }

// Piece is the part of n bytes from off on. It panics when that is not inside.
func (x *Extent) Piece(off, n uint64) Piece {
	if off > uint64(x.n) || n > uint64(x.n)-off {
		panic(fmt.Sprintf("object: piece %d+%d of an extent of %d bytes", off, n, x.n))
	}
	at := x.off + off
	return Piece{Off: at, Bytes: x.slab.mem[at : at+n : at+n]}
}

// Retain adds a reference; every holder releases its own.
func (x *Extent) Retain() {
	if x.refs.Add(1) < 2 {
		panic("object: extent retained after its release")
	}
}

// Release drops a reference.
func (x *Extent) Release() {
	switch n := x.refs.Add(-1); {
	case n == 0:
		x.slab.free(x)
	case n < 0:
		panic("object: extent released twice")
	}
}

// Condemn takes the piece out of circulation for good once it is released: for
// memory that a peer may still reach after everything was tried to stop it.
func (x *Extent) Condemn() { x.bad.Store(true) }
