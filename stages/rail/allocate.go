package rail

import (
	"context"
	"errors"
	"fmt"
	"sync"

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
}

// Allocate makes PD, CQ and registered memory on every rail. The memory is one
// region, registered once a rail; each QP gets a block of it.
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
	// Every QP of every peer may complete into the rail's one CQ at once; it must
	// not overrun. A peer may put all its QPs on this rail. The one more is for
	// completions of a destroyed QP that are unpolled when its successor works.
	depth := max(1, s.Demand.CQEs*(max(s.Demand.QPs, len(s.Rails))*s.Demand.MaxPeers+1))
	if depth > lim.MaxCQE {
		return fmt.Errorf("%s: %d peers with %d QPs of %d completions need a CQ of %d, the device allows %d; lower lanes.maxClients, lanes.qpsPerClientPerShard or lanes.slotsPerQP",
			r.Ctx.Name(), s.Demand.MaxPeers, s.Demand.QPs, s.Demand.CQEs, depth, lim.MaxCQE)
	}
	pd, err := r.Ctx.AllocPD()
	if err != nil {
		return err
	}
	scope.DeferClose("free PD of rail "+r.Name(), pd.Close)
	cq, err := r.Ctx.CreateCQ(depth)
	if err != nil {
		return err
	}
	scope.DeferClose("destroy CQ of rail "+r.Name(), cq.Close)
	mr, err := pd.Register(s.region, s.Demand.Access)
	if err != nil {
		return err
	}
	scope.DeferClose("deregister lane memory of rail "+r.Name(), mr.Close)
	r.PD, r.CQ, r.MR = pd, cq, mr
	return nil
}

func (s *Set) runEvents(ctx context.Context, r *Rail) {
	defer s.wg.Done()
	ch := r.Ctx.Events()
	for {
		select {
		case <-ctx.Done():
			return
		case e, ok := <-ch:
			if !ok {
				return
			}
			if r.note(e) {
				st, why := r.Health()
				pipeline.Emit(ctx, pipeline.Event{Event: "rail_" + string(st), Rail: r.Name(), Reason: why})
			}
		}
	}
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
	mrs    map[string]*verbs.MR
}

// MR is the registration on one rail, or nil.
func (g *Registration) MR(rail string) *verbs.MR { return g.mrs[rail] }

// Register registers a region on the given rails (nil: all). On an error nothing
// stays registered. The caller closes the Registration before the region.
func (s *Set) Register(region *verbs.Region, access verbs.Access, rails []*Rail) (*Registration, error) {
	if rails == nil {
		rails = s.Rails
	}
	g := &Registration{Region: region, mrs: make(map[string]*verbs.MR, len(rails))}
	for _, r := range rails {
		mr, err := r.PD.Register(region, access)
		if err != nil {
			return nil, errors.Join(pipeline.Wrap(err, pipeline.LayerResource, "register", pipeline.AtRail(r.Name())), g.Close())
		}
		g.mrs[r.Name()] = mr
	}
	return g, nil
}

// Close deregisters on every rail. An error means that a rail may still reach
// the memory: the region must then not be reused.
func (g *Registration) Close() error {
	var errs []error
	for _, mr := range g.mrs {
		errs = append(errs, mr.Close())
	}
	return errors.Join(errs...)
}
