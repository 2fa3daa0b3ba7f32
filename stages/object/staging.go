package object

import (
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/railstore/railstore/pipeline"
	"github.com/railstore/railstore/stages/rail"
	"github.com/railstore/railstore/verbs"
)

// staging is the registered memory of a session. Its addresses are all reserved at
// once, which costs nothing; memory is registered as reads and puts need it.
type staging struct {
	region *verbs.Region
	slab   *Slab
	rails  []*rail.Rail
	spans  map[string]*atomic.Pointer[verbs.Span] // by rail
	access verbs.Access
	lock   memlock
	pins   int // rails whose device pins what is registered
}

// leastGrowth is what is registered at least: doing it has a price of its own.
const leastGrowth = 4 << 20

// newStaging reserves n bytes for stripes of a length.
func newStaging(rails []*rail.Rail, n int64, stripe uint64, lock memlock) (*staging, error) {
	region, err := verbs.MapRegion(int(n))
	if err != nil {
		return nil, pipeline.Wrap(err, pipeline.LayerResource, "allocate", pipeline.Nowhere)
	}
	// The shards read what is put and write what is read.
	s := &staging{region: region, rails: rails, access: verbs.LocalWrite | verbs.RemoteWrite | verbs.RemoteRead, spans: map[string]*atomic.Pointer[verbs.Span]{}, lock: lock, pins: pinning(rails)}
	for _, r := range rails {
		s.spans[r.Name()] = &atomic.Pointer[verbs.Span]{}
		// A shard is told of two MRs at most that a stripe lies in.
		if limit := r.Ctx.Attr().MaxMRSize; limit > 0 && limit/Align*Align < min(stripe, uint64(n)) && limit < uint64(n) {
			return nil, errors.Join(pipeline.Errorf(pipeline.LayerResource, "allocate", pipeline.AtRail(r.Name()),
				"%s: one piece is %d bytes, the device registers at most %d at once (max_mr_size); lower objects.stripeBytes", r.Ctx.Name(), stripe, limit), region.Close())
		}
	}
	chunk := max(stripe, leastGrowth)
	if err := lock.fits(min(chunk, uint64(n)), s.pins); err != nil {
		// Nothing could be read: say so now.
		return nil, both(pipeline.Wrap(fmt.Errorf("%w: %w", ErrNoMemory, err), pipeline.LayerResource, "allocate", pipeline.Nowhere), region.Close())
	}
	s.slab = NewGrowingSlab(region.Bytes(), chunk, s.more)
	return s, nil
}

// On is what is registered on a rail so far.
func (s *staging) On(name string) *verbs.Span {
	if p := s.spans[name]; p != nil {
		return p.Load()
	}
	return nil
}

// more registers the n bytes from off on with every rail. A rail that has them from an
// attempt that failed on another one is not asked again.
func (s *staging) more(off, n uint64) error {
	if err := s.lock.fits(n, s.pins); err != nil {
		return fmt.Errorf("%w: %d bytes for %d rails beside the %d that are registered: %w", ErrNoMemory, n, len(s.rails), off, err)
	}
	for _, r := range s.rails {
		p := s.spans[r.Name()]
		old := p.Load()
		var have uint64
		if old != nil {
			have = old.Len()
		}
		if have >= off+n {
			continue
		}
		span, err := r.PD.GrowSpan(old, s.region, off+n-have, Align, s.access)
		if err != nil {
			return fmt.Errorf("%w: %w", ErrNoMemory, pipeline.Wrap(err, pipeline.LayerResource, "register", pipeline.AtRail(r.Name())))
		}
		p.Store(span)
	}
	return nil
}

// close deregisters everything and unmaps it, unless somebody still reads it: memory
// that a lease holds stays mapped, and is lost with the process.
func (s *staging) close() error {
	s.slab.Close()
	var errs []error
	for _, p := range s.spans {
		if span := p.Load(); span != nil {
			errs = append(errs, span.Close())
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err // a device may still reach it
	}
	if n := s.slab.Stats().Extents; n > 0 {
		return fmt.Errorf("%w: %d leased buffers were not released; their memory stays mapped", ErrLeased, n)
	}
	return s.region.Close()
}

// pinning is how many of the rails have devices that pin what is registered.
func pinning(rails []*rail.Rail) (n int) {
	for _, r := range rails {
		if r.Provider() == "ibv" {
			n++
		}
	}
	return n
}
