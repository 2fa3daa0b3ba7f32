package lanes

import (
	"context"
	"errors"
	"sync"

	"github.com/railstore/railstore/ctrl"
	"github.com/railstore/railstore/pipeline"
	"github.com/railstore/railstore/stages/rail"
	"github.com/railstore/railstore/verbs/lane"
)

// Server serves the lanes of every client of a shard.
type Server struct {
	set      *rail.Set
	shard    int
	cfg      lane.Config
	acceptor *lane.Acceptor
	pollers  map[string]*lane.Poller
	listener *rail.Listener

	mu    sync.Mutex
	lanes map[*rail.Peer][]*lane.ServerLane
}

// ServerInput is what Serve is made of.
type ServerInput struct {
	Set     *rail.Set
	Control *ctrl.Client // joined
	Shard   int
	Config  lane.Config
	Handler lane.Handler
	Workers int // that serve requests; 0: the pollers do
}

// Serve starts to take clients. The scope closes it: no new clients, lanes
// closed, pollers ended.
func Serve(ctx context.Context, scope *pipeline.Scope, in ServerInput) *Server {
	s := &Server{set: in.Set, shard: in.Shard, cfg: in.Config, pollers: startPollers(in.Set, in.Config),
		acceptor: lane.NewAcceptor(in.Handler, lane.AcceptorConfig{Workers: in.Workers, Counters: in.Config.Counters}),
		lanes:    map[*rail.Peer][]*lane.ServerLane{}}
	scope.DeferClose("pollers", func() error { stopPollers(s.pollers); return nil })
	scope.DeferClose("acceptor", s.acceptor.Close)
	s.listener = rail.Listen(ctx, in.Set, in.Control, s)
	scope.DeferClose("listener", s.listener.Close)
	return s
}

func startPollers(set *rail.Set, c lane.Config) map[string]*lane.Poller {
	out := make(map[string]*lane.Poller, len(set.Rails))
	for _, r := range set.Rails {
		out[r.Name()] = lane.StartPoller(r.CQ, lane.PollerConfig{Spin: c.Spin, Counters: c.Counters})
	}
	return out
}

func stopPollers(ps map[string]*lane.Poller) {
	for _, p := range ps {
		p.Close()
	}
}

// Accept makes a lane of every link of a client.
func (s *Server) Accept(p *rail.Peer) error {
	var ls []*lane.ServerLane
	for _, l := range p.Links {
		sl, err := s.acceptor.Add(s.pollers[l.Rail.Name()], l.QP, memory(l), peerOf(l), s.cfg,
			lane.Label{Shard: s.shard, Index: l.Index, Rail: l.Rail.Name(), Local: string(ctrl.ShardID(s.shard)), Remote: string(p.Node)})
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

func closeAll(ls []*lane.ServerLane) error {
	var errs []error
	for _, l := range ls {
		errs = append(errs, l.Close())
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
}

// Stopped is closed when the control plane tells the shard to stop.
func (s *Server) Stopped() <-chan struct{} { return s.listener.Stopped() }

// Done is closed when the shard cannot take clients any more; Err says why.
func (s *Server) Done() <-chan struct{} { return s.listener.Done() }

// Err is the reason of the end.
func (s *Server) Err() error { return s.listener.Err() }

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
			if l.Err() != nil {
				c.Dirty++
			} else {
				c.Active++
			}
		}
	}
	return ctrl.Report{Lanes: c, Rails: s.set.Info()}
}
