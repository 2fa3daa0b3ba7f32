package lanes

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/railstore/railstore/ctrl"
	"github.com/railstore/railstore/pipeline"
	"github.com/railstore/railstore/stages/rail"
	"github.com/railstore/railstore/verbs"
	"github.com/railstore/railstore/verbs/lane"
)

// Server serves the lanes of every client of a shard.
type Server struct {
	set      *rail.Set
	shard    int
	cfg      lane.Config
	acceptor *lane.Acceptor
	gone     func(node string)
	pollers  pollers
	listener atomic.Pointer[rail.Listener]

	mu    sync.Mutex
	lanes map[*rail.Peer][]*lane.ServerLane // in the order of the peer's links; nil: that link has none
}

// ServerInput is what Serve is made of.
type ServerInput struct {
	Set     *rail.Set
	Control *ctrl.Client // joined
	Shard   int
	Config  lane.Config
	Handler lane.Handler
	Workers int // that serve requests; 0: the pollers do
	// Sort and Pools, if set, give requests to others; see lane.AcceptorConfig.
	Sort  func(op, flags uint16) int
	Pools []int
	// Gone, if set, hears of every client that has left or whose lease has ended, when
	// nothing of it is being served any more. Its node is the Remote of its lanes' labels.
	Gone func(node string)
}

// Serve starts to take clients. The scope closes it: no new clients, lanes
// closed, pollers ended.
func Serve(ctx context.Context, scope *pipeline.Scope, in ServerInput) *Server {
	s := &Server{set: in.Set, shard: in.Shard, cfg: in.Config, gone: in.Gone, pollers: startPollers(in.Set, in.Config, in.Set.Deployment.Server.CoroutinesPerThread),
		acceptor: lane.NewAcceptor(in.Handler, lane.AcceptorConfig{Workers: in.Workers, Sort: in.Sort, Pools: in.Pools, Counters: in.Config.Counters}),
		lanes:    map[*rail.Peer][]*lane.ServerLane{}}
	sink := in.Config.Events
	s.cfg.Events = func(e lane.Event) {
		if l := s.listener.Load(); l != nil && e.Name == lane.EventLaneDirty {
			l.Look(ctrl.NodeID(e.Label.Remote))
		}
		if sink != nil {
			sink(e)
		}
	}
	scope.DeferClose("pollers", func() error { s.pollers.stop(); return nil })
	scope.DeferClose("acceptor", s.acceptor.Close)
	in.Set.OnQPEvent(s.qpEvent)
	scope.DeferClose("device events", func() error { in.Set.OnQPEvent(nil); return nil })
	rb := in.Set.Deployment.Rebuild
	l := rail.Listen(ctx, in.Set, in.Control, s, rail.ListenConfig{Renew: rb.Enabled, Poll: rb.Poll.D(), PollMax: rb.PollMax.D(),
		PollTimeout: rb.PollTimeout.D(), Broken: s.broken})
	s.listener.Store(l)
	scope.DeferClose("listener", l.Close)
	return s
}

// pollers are those of every rail by name, one for each of its CQs.
type pollers map[string][]*lane.Poller

func startPollers(set *rail.Set, c lane.Config, scanners int) pollers {
	out := make(pollers, len(set.Rails))
	for _, r := range set.Rails {
		for _, cq := range r.CQs {
			out[r.Name()] = append(out[r.Name()], lane.StartPoller(cq, lane.PollerConfig{Spin: c.Spin, Counters: c.Counters, Scanners: scanners}))
		}
	}
	return out
}

func (ps pollers) of(l *rail.Link) *lane.Poller { return ps[l.Rail.Name()][l.CQ] }

func (ps pollers) stop() {
	for _, list := range ps {
		for _, p := range list {
			p.Close()
		}
	}
}

// Accept makes a lane of every link of a client.
func (s *Server) Accept(p *rail.Peer) error {
	var ls []*lane.ServerLane
	for _, l := range p.Links {
		sl, err := s.lane(p, l)
		if err != nil {
			return errors.Join(err, closeAll(ls))
		}
		ls = append(ls, sl)
	}
	s.mu.Lock()
	s.lanes[p] = ls
	s.mu.Unlock()
	return nil
}

func (s *Server) lane(p *rail.Peer, l *rail.Link) (*lane.ServerLane, error) {
	return s.acceptor.Add(s.pollers.of(l), l.QP, memory(l), peerOf(l), s.cfg,
		lane.Label{Shard: s.shard, Index: l.Index, Rail: l.Rail.Name(), Local: string(ctrl.ShardID(s.shard)), Remote: string(p.Node)})
}

// Retire closes the lane of one link.
func (s *Server) Retire(p *rail.Peer, l *rail.Link) error {
	sl := s.setLane(p, l, nil)
	if sl == nil {
		return nil
	}
	return sl.Close()
}

// Adopt makes a lane of a link again.
func (s *Server) Adopt(p *rail.Peer, l *rail.Link) error {
	sl, err := s.lane(p, l)
	if err == nil {
		s.setLane(p, l, sl)
	}
	return err
}

func (s *Server) setLane(p *rail.Peer, l *rail.Link, sl *lane.ServerLane) (old *lane.ServerLane) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.Index(p.Links, l)
	old, s.lanes[p][i] = s.lanes[p][i], sl
	return old
}

// broken reports whether a client has lanes that serve no more.
func (s *Server) broken(p *rail.Peer) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(s.lanes[p], func(sl *lane.ServerLane) bool { return sl == nil || sl.Err() != nil })
}

func (s *Server) qpEvent(_ *rail.Rail, e verbs.AsyncEvent) {
	if !broken(e) {
		return
	}
	for _, sl := range s.acceptor.Lanes() {
		if sl.QPN() == e.QPN {
			sl.FailFrom(lane.LayerDevice, eventError(e))
		}
	}
}

// drainQuiet is how long a shard with clients must have had nothing to do. In that
// time they hear that it drains.
const drainQuiet = 200 * time.Millisecond

// Drain waits until no request is being served and every answer was sent, at most
// until ctx ends. Clients that were told that the shard drains send no more.
func (s *Server) Drain(ctx context.Context) error {
	// There is no event for it: requests come from outside until the last client has
	// heard. So it is quiet when it was so for a while.
	const step = 5 * time.Millisecond
	quiet := int(drainQuiet / step)
	if s.listener.Load().Peers() == 0 {
		quiet = 1
	}
	tick := time.NewTicker(step)
	defer tick.Stop()
	for still := 0; still < quiet; {
		if s.acceptor.Busy() {
			still = 0
		} else {
			still++
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return pipeline.Errorf(pipeline.LayerService, "drain", pipeline.AtShard(s.shard), "requests were still being served: %w", ctx.Err())
		}
	}
	return nil
}

func closeAll(ls []*lane.ServerLane) error {
	var errs []error
	for _, l := range ls {
		if l != nil {
			errs = append(errs, l.Close())
		}
	}
	return errors.Join(errs...)
}

// Drop closes the lanes of a client and returns when nothing uses them.
func (s *Server) Drop(p *rail.Peer, _ string) {
	s.mu.Lock()
	ls := s.lanes[p]
	delete(s.lanes, p)
	s.mu.Unlock()
	_ = closeAll(ls) // what could not be destroyed is not given back by the peer's Close
	if p.Gone && s.gone != nil {
		s.gone(string(p.Node))
	}
}

// Stopped is closed when the control plane tells the shard to stop.
func (s *Server) Stopped() <-chan struct{} { return s.listener.Load().Stopped() }

// Done is closed when the shard cannot take clients any more; Err says why.
func (s *Server) Done() <-chan struct{} { return s.listener.Load().Done() }

// Err is the reason of the end.
func (s *Server) Err() error { return s.listener.Load().Err() }

// Counters of all lanes.
func (s *Server) Counters() *lane.Counters { return s.acceptor.Counters() }

// Report is what heartbeats carry: lanes by state, and the rails.
func (s *Server) Report() ctrl.Report {
	s.mu.Lock()
	defer s.mu.Unlock()
	var c ctrl.LaneCounts
	for _, ls := range s.lanes {
		for _, l := range ls {
			// A shard does not rebuild by itself: a lane serves, or waits for its client
			// to come back or leave.
			if l == nil || l.Err() != nil {
				c.Dirty++
			} else {
				c.Active++
			}
		}
	}
	return ctrl.Report{Lanes: c, Rails: s.set.Info()}
}
