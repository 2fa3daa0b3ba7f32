package ps

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/railstore/railstore/stages/rail"
	"github.com/railstore/railstore/stages/table"
	"github.com/railstore/railstore/verbs"
)

// Registrar makes memory known to every rail; *rail.Set is one.
type Registrar interface {
	Register(region *verbs.Region, access verbs.Access, rails []*rail.Rail, p rail.Pieces) (*rail.Registration, error)
}

// Slabs is the memory of a shard's rows, registered on every rail as it grows, and the
// memory that rows are READ into on their way to a table.
type Slabs struct {
	rails Registrar
	most  int // scratch pieces

	mu      sync.Mutex
	next    int
	chunks  atomic.Pointer[[]*slab] // by ID; replaced when it changes
	zeros   *slab
	made    int // scratch pieces, given or not
	idle    chan *slab
	closing bool
}

// slab is a registered region.
type slab struct {
	region *verbs.Region
	reg    *rail.Registration
}

// NewSlabs makes empty memory; scratch is how many requests may have rows READ at once.
func NewSlabs(rails Registrar, scratch int) *Slabs {
	s := &Slabs{rails: rails, most: max(scratch, 1)}
	s.idle = make(chan *slab, s.most)
	s.chunks.Store(new([]*slab))
	return s
}

// Overhead is the registered memory beside the rows, at most.
func (s *Slabs) Overhead() int64 { return int64(s.most+1) * MaxPiece }

func (s *Slabs) newSlab(n int, access verbs.Access) (*slab, error) {
	region, err := verbs.MapRegion(n)
	if err != nil {
		return nil, err
	}
	// Rows that lie in two MRs are two elements; nothing else depends on where it is cut.
	reg, err := s.rails.Register(region, access, nil, rail.Pieces{Align: 64})
	if err != nil {
		return nil, errors.Join(err, region.Close())
	}
	return &slab{region, reg}, nil
}

// close deregisters and unmaps. What is still registered stays mapped.
func (b *slab) close() error {
	if err := b.reg.Close(); err != nil {
		return err
	}
	return b.region.Close()
}

// Grow gives the table store a chunk.
func (s *Slabs) Grow(n int) (*table.Chunk, error) {
	b, err := s.newSlab(n, verbs.LocalWrite)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	old := *s.chunks.Load()
	id := s.next
	s.next++
	chunks := make([]*slab, id+1)
	copy(chunks, old)
	chunks[id] = b
	s.chunks.Store(&chunks)
	return &table.Chunk{ID: id, Bytes: b.region.Bytes()}, nil
}

// Release takes a chunk back. Nothing gathers from it: the store has no pins then.
func (s *Slabs) Release(c *table.Chunk) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	old := *s.chunks.Load()
	if c.ID < 0 || c.ID >= len(old) || old[c.ID] == nil {
		return fmt.Errorf("chunk %d is not held", c.ID)
	}
	if err := old[c.ID].close(); err != nil {
		return err
	}
	chunks := append([]*slab(nil), old...)
	chunks[c.ID] = nil
	s.chunks.Store(&chunks)
	return nil
}

// zeroRow is registered memory of zeros, for keys without a row.
func (s *Slabs) zeroRow() (*slab, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.zeros == nil {
		b, err := s.newSlab(MaxPiece, verbs.LocalWrite)
		if err != nil {
			return nil, err
		}
		s.zeros = b
	}
	return s.zeros, nil
}

// gather appends the rows, each of n bytes, as elements for one rail. Neighbours become
// one element.
func (s *Slabs) gather(out []verbs.SGE, railName string, rows []table.RowRef, n uint64) ([]verbs.SGE, error) {
	chunks := *s.chunks.Load()
	var zeros *verbs.Span
	for _, r := range rows {
		var span *verbs.Span
		off := r.Off
		if r.Chunk < 0 {
			if zeros == nil {
				z, err := s.zeroRow()
				if err != nil {
					return nil, err
				}
				zeros = z.reg.On(railName)
			}
			span, off = zeros, 0
		} else {
			span = chunks[r.Chunk].reg.On(railName)
		}
		if span == nil {
			return nil, fmt.Errorf("%w: rows are not registered on rail %s", ErrInternal, railName)
		}
		at := len(out)
		out = span.SGEs(out, off, n)
		if at > 0 {
			if last := &out[at-1]; last.LKey == out[at].LKey && last.Addr+uint64(last.Length) == out[at].Addr && uint64(last.Length)+uint64(out[at].Length) <= MaxPiece {
				last.Length += out[at].Length
				out = append(out[:at], out[at+1:]...)
			}
		}
	}
	return out, nil
}

// scratch takes a piece of MaxPiece bytes for rows that are READ, waiting for one until
// ctx ends. give returns it.
func (s *Slabs) scratch(ctx context.Context) (*slab, error) {
	select {
	case b := <-s.idle:
		return b, nil
	default:
	}
	s.mu.Lock()
	if !s.closing && s.made < s.most {
		s.made++
		s.mu.Unlock()
		b, err := s.newSlab(MaxPiece, verbs.LocalWrite)
		if err != nil {
			s.mu.Lock()
			s.made--
			s.mu.Unlock()
			return nil, fmt.Errorf("%w: %w", ErrMemory, err)
		}
		return b, nil
	}
	s.mu.Unlock()
	select {
	case b := <-s.idle:
		return b, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("%w: no memory to read rows into: %w", ErrBusy, context.Cause(ctx))
	}
}

func (s *Slabs) give(b *slab) { s.idle <- b }

// Close gives back what is not the store's, which is closed before. No request is being
// served any more.
func (s *Slabs) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closing = true
	var errs []error
	for s.made > 0 {
		select {
		case b := <-s.idle:
			s.made--
			errs = append(errs, b.close())
			continue
		default:
		}
		errs = append(errs, fmt.Errorf("%d pieces of memory for rows are in use", s.made))
		break
	}
	if s.zeros != nil {
		errs = append(errs, s.zeros.close())
		s.zeros = nil
	}
	return errors.Join(errs...)
}
