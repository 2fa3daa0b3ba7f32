package soft

import (
	"fmt"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/railstore/railstore/verbs"
)

// A key is index<<9 | remote<<8 | generation. Index 0 is not used, so that a
// zeroed key names nothing.
const (
	keyIndexShift = 9
	keyRemote     = 1 << 8
)

// mr is a registered region; it does not change while it is in the table, but for
// its remote key (see bump).
type mr struct {
	pd     *pd
	mem    []byte
	base   uint64
	lkey   uint32
	rkey   atomic.Uint32
	access verbs.Access
}

// slice is the n bytes at addr when all of them are inside.
func (m *mr) slice(addr, n uint64) ([]byte, bool) {
	off := addr - m.base // wraps far out when addr is below
	size := uint64(len(m.mem))
	if off > size || n > size-off {
		return nil, false
	}
	return m.mem[off : off+n : off+n], true
}

// LKey is the local key.
func (m *mr) LKey() uint32 { return m.lkey }

// RKey is the remote key.
func (m *mr) RKey() uint32 { return m.rkey.Load() }

// Close deregisters; when it returns no packet reaches the memory.
func (m *mr) Close() error {
	m.pd.dev.mrs.remove(m)
	// Whoever looked the region up before holds a QP's lock while using it.
	m.pd.passQPs()
	return nil
}

// mrTable is read without a lock. A reader may hold slots that a grow has
// replaced; it does so under its QP's lock, which mr.Close passes through.
type mrTable struct {
	slots atomic.Pointer[[]atomic.Pointer[mr]]

	mu   sync.Mutex
	gen  []uint8
	free []uint32 // first in, first out: a key comes back as late as possible
	used int
	max  int
}

func newMRTable(limit int) *mrTable {
	t := &mrTable{max: limit}
	t.slots.Store(new([]atomic.Pointer[mr]))
	return t
}

// find is the region of a key of either kind.
func (t *mrTable) find(key uint32) *mr {
	s := *t.slots.Load()
	if i := key >> keyIndexShift; int(i) < len(s) {
		return s[i].Load()
	}
	return nil
}

func (t *mrTable) add(m *mr) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.used >= t.max {
		return &verbs.Error{Op: "reg_mr", Kind: verbs.ErrNoMemory, Err: fmt.Errorf("%d of max_mr %d memory regions in use: %w", t.used, t.max, unix.ENOMEM)}
	}
	// Growing before the free list runs dry keeps a freed index out of use for a
	// while even when few regions come and go.
	if len(t.free) == 0 || len(t.free) < 16 && len(t.gen) < t.max {
		t.grow()
	}
	i := t.free[0]
	t.free = t.free[1:]
	t.used++
	m.lkey = i<<keyIndexShift | uint32(t.gen[i])
	m.rkey.Store(m.lkey | keyRemote)
	(*t.slots.Load())[i].Store(m)
	return nil
}

func (t *mrTable) grow() {
	old := *t.slots.Load()
	next := make([]atomic.Pointer[mr], max(64, 2*len(old)))
	for i := range old {
		next[i].Store(old[i].Load())
	}
	for i := max(1, len(old)); i < len(next); i++ {
		t.free = append(t.free, uint32(i))
	}
	gen := make([]uint8, len(next))
	copy(gen, t.gen)
	t.gen = gen
	t.slots.Store(&next)
}

// bump gives every region another remote key, for the fault rkey_bump, and returns
// how many there are.
func (t *mrTable) bump() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := 0
	slots := *t.slots.Load()
	for i := range slots {
		if m := slots[i].Load(); m != nil {
			// The next region at this index gets a generation that neither had.
			t.gen[i]++
			m.rkey.Store(uint32(i)<<keyIndexShift | keyRemote | uint32(t.gen[i]))
			n++
		}
	}
	return n
}

func (t *mrTable) remove(m *mr) {
	t.mu.Lock()
	defer t.mu.Unlock()
	i := m.lkey >> keyIndexShift
	(*t.slots.Load())[i].Store(nil)
	t.gen[i]++
	t.free = append(t.free, i)
	t.used--
}
