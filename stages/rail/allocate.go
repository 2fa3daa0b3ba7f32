package rail

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/railstore/railstore/cue/deploy"
	"github.com/railstore/railstore/pipeline"
	"github.com/railstore/railstore/verbs"
)

// Demand is what the user of the rails needs for each peer.
type Demand struct {
	QPs      int               // QPs to a peer over all rails; every usable rail gets at least one
	MaxPeers int               // peers at once
	Cap      verbs.QPCap       // queue depths of a QP
	CQEs     int               // completions that one QP can have outstanding
	CQs      int               // of a rail, among which its QPs are divided; 0: 1
	Bytes    int               // registered bytes of each QP; a multiple of 64
	Access   verbs.Access      // remote rights on those bytes
	Params   map[string]string // compared with the peer's; a difference refuses the connection
}

// AllocateInput is the second stage's input.
type AllocateInput struct {
	Deployment *deploy.Deployment
	Host       string
	Rails      []*Rail
	Demand     Demand
}

// Set is the rails of a process with their resources.
type Set struct {
	Deployment *deploy.Deployment
	Host       string
	Rails      []*Rail
	Demand     Demand

	region *verbs.Region
	arena  *arena
	wg     sync.WaitGroup

	mu        sync.Mutex
	onQPEvent func(*Rail, verbs.AsyncEvent)
	onState   func(*Rail)

	offers atomic.Uint64 // that this process made to shards: where the generations of the next begin
}

// Allocate makes PD, CQs and registered memory on every rail. The memory is one
// region, registered once a rail, between blocks in several MRs where the device's
// max_mr_size asks for it; each QP gets a block of it.
var Allocate = pipeline.Stage[AllocateInput, *Set]{
	Name: "allocate", Layer: pipeline.LayerResource, Run: allocate,
}

func allocate(ctx context.Context, scope *pipeline.Scope, in AllocateInput) (*Set, error) {
	d := in.Demand
	if d.QPs < 1 || d.MaxPeers < 1 || d.Bytes < 0 || d.Bytes%64 != 0 {
		return nil, pipeline.Errorf(pipeline.LayerInternal, "allocate", pipeline.Nowhere, "demand of %d QPs, %d peers, %d bytes", d.QPs, d.MaxPeers, d.Bytes)
	}
	// A peer that reaches only one of our rails puts all its QPs there.
	blocks := max(d.QPs, len(in.Rails)) * d.MaxPeers
	region, err := verbs.MapRegion(blocks * d.Bytes)
	if err != nil {
		return nil, err
	}
	scope.DeferClose("unmap lane memory", region.Close)
	s := &Set{Deployment: in.Deployment, Host: in.Host, Rails: in.Rails, Demand: d, region: region, arena: newArena(d.Bytes, blocks)}
	for _, r := range in.Rails {
		if err := s.allocateRail(scope, r); err != nil {
			return nil, pipeline.Wrap(err, pipeline.LayerResource, "allocate", pipeline.AtRail(r.Name()))
		}
	}
	// Events end when the device closes, which the scope does after this: so the
	// readers are told to stop by their own context.
	evctx, stop := context.WithCancel(context.WithoutCancel(ctx))
	for _, r := range in.Rails {
		r.health.set(Active, "")
		s.wg.Add(1)
		go s.runEvents(evctx, r)
	}
	scope.DeferClose("stop event readers", func() error { stop(); s.wg.Wait(); return nil })
	return s, nil
}

func (s *Set) allocateRail(scope *pipeline.Scope, r *Rail) error {
	lim := r.Ctx.Attr()
	// Every QP of a CQ may complete into it at once; it must not overrun. A peer may put
	// all its QPs on this rail. The one more is for completions of a destroyed QP that
	// are unpolled when its successor works.
	n := max(1, s.Demand.CQs)
	depth := max(1, s.Demand.CQEs*(share(max(s.Demand.QPs, len(s.Rails))*s.Demand.MaxPeers, n)+1))
	if depth > lim.MaxCQE {
		return fmt.Errorf("%s: %d peers with %d QPs of %d completions need %d CQs of %d, the device allows %d; lower lanes.maxClients, lanes.qpsPerClientPerShard or lanes.slotsPerQP",
			r.Ctx.Name(), s.Demand.MaxPeers, s.Demand.QPs, s.Demand.CQEs, n, depth, lim.MaxCQE)
	}
	pd, err := r.Ctx.AllocPD()
	if err != nil {
		return err
	}
	scope.DeferClose("free PD of rail "+r.Name(), pd.Close)
	r.CQs, r.queues.qps = nil, make([]int, n)
	for range n {
		cq, err := r.Ctx.CreateCQ(depth)
		if err != nil {
			return err
		}
		scope.DeferClose("destroy CQ of rail "+r.Name(), cq.Close)
		r.CQs = append(r.CQs, cq)
	}
	if limit := lim.MaxMRSize; limit > 0 && uint64(s.Demand.Bytes) > limit {
		return fmt.Errorf("%s: the slots of one QP are %d bytes, the device registers at most %d at once (max_mr_size); lower lanes.slotsPerQP, lanes.requestBytes or lanes.responseBytes",
			r.Ctx.Name(), s.Demand.Bytes, limit)
	}
	memory, err := pd.RegisterSpan(s.region, uint64(s.Demand.Bytes), s.Demand.Access)
	if err != nil {
		return err
	}
	scope.DeferClose("deregister lane memory of rail "+r.Name(), memory.Close)
	r.PD, r.memory = pd, memory
	return nil
}

// lookAgain is how often a rail that is down looks at its port: drivers lose events. A
// variable for tests.
var lookAgain = time.Second

func (s *Set) runEvents(ctx context.Context, r *Rail) {
	defer s.wg.Done()
	ch := r.Ctx.Events()
	again := time.NewTicker(lookAgain)
	defer again.Stop()
	tell := func(was State, events []pipeline.Event) {
		for _, say := range events {
			pipeline.Emit(ctx, say)
		}
		if f := s.stateHook(); f != nil {
			if now, _ := r.Health(); now != was {
				f(r)
			}
		}
	}
	for {
		was, _ := r.Health()
		select {
		case <-ctx.Done():
			return
		case <-again.C:
			tell(was, r.recheck())
		case e, ok := <-ch:
			if !ok {
				return
			}
			tell(was, r.note(e))
			if f := s.qpEventHook(); f != nil && (e.Type.OfQP() || e.Type == verbs.EventCQError) {
				f(r, e)
			}
		}
	}
}

// OnQPEvent makes f hear of every later asynchronous event about a QP (e.QPN) or the
// CQ of a rail. It is called on the goroutine that reads the rail's events and must
// not block; there is one f, the newest. The QP may be destroyed by then.
func (s *Set) OnQPEvent(f func(r *Rail, e verbs.AsyncEvent)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.onQPEvent = f
}

func (s *Set) qpEventHook() func(*Rail, verbs.AsyncEvent) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.onQPEvent
}

// OnState makes f hear when a rail goes down or is active again, on the goroutine that
// reads the rail's events. It must not block; there is one f, the newest.
func (s *Set) OnState(f func(r *Rail)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.onState = f
}

func (s *Set) stateHook() func(*Rail) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.onState
}

// Rail finds a rail by name.
func (s *Set) Rail(name string) (*Rail, bool) {
	for _, r := range s.Rails {
		if r.Name() == name {
			return r, true
		}
	}
	return nil, false
}

// QPsInUse is the number of QPs that peers hold.
func (s *Set) QPsInUse() int { return s.arena.inUse() }

// Registration is one region registered on rails of a Set: all of them or none.
type Registration struct {
	Region *verbs.Region
	spans  map[string]*verbs.Span
}

// On is the registration on one rail, or nil.
func (g *Registration) On(rail string) *verbs.Span { return g.spans[rail] }

// Pieces is how the user of a region divides it.
type Pieces struct {
	Align   uint64 // pieces begin at multiples of it
	Longest uint64 // bytes of the longest piece; 0: any piece may lie in many MRs
	Field   string // of the recipe: what to lower when Longest is too long
}

// Register registers a region on the given rails (nil: all), in as many MRs as each
// device's max_mr_size asks for. A piece then lies in at most two MRs. On an error
// nothing stays registered. The caller closes the Registration before the region.
func (s *Set) Register(region *verbs.Region, access verbs.Access, rails []*Rail, p Pieces) (*Registration, error) {
	if rails == nil {
		rails = s.Rails
	}
	g := &Registration{Region: region, spans: make(map[string]*verbs.Span, len(rails))}
	for _, r := range rails {
		span, err := r.register(region, access, p)
		if err != nil {
			return nil, errors.Join(pipeline.Wrap(err, pipeline.LayerResource, "register", pipeline.AtRail(r.Name())), g.Close())
		}
		g.spans[r.Name()] = span
	}
	return g, nil
}

func (r *Rail) register(region *verbs.Region, access verbs.Access, p Pieces) (*verbs.Span, error) {
	span, err := r.PD.RegisterSpan(region, p.Align, access)
	if err != nil {
		return nil, err
	}
	if p.Longest > span.Step() && span.MRs() > 1 {
		return nil, errors.Join(fmt.Errorf("%s: one piece is %d bytes, the device registers at most %d at once (max_mr_size); lower %s",
			r.Ctx.Name(), p.Longest, r.Ctx.Attr().MaxMRSize, p.Field), span.Close())
	}
	return span, nil
}

// Close deregisters on every rail. An error means that a rail may still reach
// the memory: the region must then not be reused.
func (g *Registration) Close() error {
	var errs []error
	for _, span := range g.spans {
		errs = append(errs, span.Close())
	}
	return errors.Join(errs...)
}
