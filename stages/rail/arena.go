package rail

import (
	"errors"
	"fmt"
	"sync"
)

// ErrNoRoom says that every block of the arena is taken.
var ErrNoRoom = errors.New("no free block of registered memory")

// arena hands out blocks of one size from the process's registered memory. A
// block is given back only after its QP was destroyed.
type arena struct {
	block int
	mu    sync.Mutex
	free  []int // offsets in blocks, last first
	total int
}

func newArena(block, blocks int) *arena {
	a := &arena{block: block, total: blocks}
	for i := blocks - 1; i >= 0; i-- {
		a.free = append(a.free, i)
	}
	return a
}

func (a *arena) take() (off uint64, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	n := len(a.free)
	if n == 0 {
		return 0, fmt.Errorf("%w: all %d blocks of %d bytes are in use", ErrNoRoom, a.total, a.block)
	}
	i := a.free[n-1]
	a.free = a.free[:n-1]
	return uint64(i) * uint64(a.block), nil
}

func (a *arena) give(off uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.free = append(a.free, int(off/uint64(a.block)))
}

func (a *arena) inUse() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.total - len(a.free)
}
