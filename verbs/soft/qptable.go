package soft

import (
	"fmt"
	"math/bits"
	"math/rand/v2"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/railstore/railstore/verbs"
)

// qpTable finds QPs by number without a lock. A number is generation<<bits |
// index: it comes back late, and generations begin at random, so that a packet
// for a QP of an earlier process on the same port finds nothing. A reader of a
// replaced slice may find a QP that is gone; it learns so under its lock.
type qpTable struct {
	slots atomic.Pointer[[]atomic.Pointer[qp]]

	mu   sync.Mutex
	bits uint
	gen  []uint32
	free []uint32 // first in, first out
	used int
	max  int
}

func newQPTable(limit int) *qpTable {
	t := &qpTable{max: limit, bits: uint(bits.Len(uint(limit + 64)))}
	t.slots.Store(new([]atomic.Pointer[qp]))
	return t
}

func (t *qpTable) find(qpn uint32) *qp {
	s := *t.slots.Load()
	i := qpn & (1<<t.bits - 1)
	if int(i) >= len(s) {
		return nil
	}
	if q := s[i].Load(); q != nil && q.qpn == qpn {
		return q
	}
	return nil
}

// all is the table for a scan.
func (t *qpTable) all() []atomic.Pointer[qp] { return *t.slots.Load() }

// reserve gives a number; put makes the QP that has it be found.
func (t *qpTable) reserve() (uint32, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.used >= t.max {
		return 0, &verbs.Error{Op: "create_qp", Kind: verbs.ErrNoMemory, Err: fmt.Errorf("%d of max_qp %d queue pairs in use: %w", t.used, t.max, unix.ENOMEM)}
	}
	if len(t.free) == 0 {
		t.grow()
	}
	i := t.free[0]
	t.free = t.free[1:]
	t.used++
	t.gen[i]++
	return (t.gen[i]<<t.bits | i) & (1<<24 - 1), nil
}

func (t *qpTable) grow() {
	old := *t.slots.Load()
	next := make([]atomic.Pointer[qp], min(max(64, 2*len(old)), 1<<t.bits))
	for i := range old {
		next[i].Store(old[i].Load())
	}
	// Numbers 0 and 1 are the management QPs'; their indices stay out of use.
	for i := max(2, len(old)); i < len(next); i++ {
		t.free = append(t.free, uint32(i))
	}
	gen := make([]uint32, len(next))
	copy(gen, t.gen)
	for i := len(t.gen); i < len(gen); i++ {
		gen[i] = rand.Uint32()
	}
	t.gen = gen
	t.slots.Store(&next)
}

func (t *qpTable) put(q *qp) {
	t.mu.Lock()
	(*t.slots.Load())[q.qpn&(1<<t.bits-1)].Store(q)
	t.mu.Unlock()
}

func (t *qpTable) remove(q *qp) {
	t.mu.Lock()
	defer t.mu.Unlock()
	i := q.qpn & (1<<t.bits - 1)
	(*t.slots.Load())[i].Store(nil)
	t.free = append(t.free, i)
	t.used--
}
