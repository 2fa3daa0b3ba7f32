package table

import (
	"fmt"
	"sync"

	"github.com/railstore/railstore/verbs"
)

// Memory gives and takes the memory of rows, outside Go's heap. Who serves rows to
// rails registers each chunk with them in Grow. Calls come one at a time, under a lock
// of the store: they must not call back into it.
type Memory interface {
	// Grow gives a chunk of n bytes, whatever is in them, aligned to 64. Its ID is not that
	// of another chunk that is held, and below 1<<20.
	Grow(n int) (*Chunk, error)
	// Release takes a chunk back. On an error the store keeps it, and Close may be tried
	// again.
	Release(*Chunk) error
}

// Chunk is a piece of Memory. RowRef.Chunk is its ID.
type Chunk struct {
	ID    int
	Bytes []byte
}

// maxChunks bounds IDs: a reference has 21 bits for one more than them.
const maxChunks = 1 << 20

// Regions is the Memory of who registers nothing: mapped anonymous memory.
type Regions struct {
	mu   sync.Mutex
	next int
	held map[int]*verbs.Region
}

// NewRegions makes an empty one.
func NewRegions() *Regions { return &Regions{held: make(map[int]*verbs.Region)} }

// Grow maps n bytes.
func (r *Regions) Grow(n int) (*Chunk, error) {
	region, err := verbs.MapRegion(n)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	c := &Chunk{ID: r.next, Bytes: region.Bytes()}
	r.next++
	r.held[c.ID] = region
	return c, nil
}

// Release unmaps a chunk that Grow gave.
func (r *Regions) Release(c *Chunk) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	region, ok := r.held[c.ID]
	if !ok {
		return fmt.Errorf("chunk %d is not held", c.ID)
	}
	if err := region.Close(); err != nil {
		return err
	}
	delete(r.held, c.ID)
	return nil
}
