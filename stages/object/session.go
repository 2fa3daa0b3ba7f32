package object

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/railstore/railstore/ctrl"
	"github.com/railstore/railstore/cue/deploy"
	"github.com/railstore/railstore/pipeline"
	"github.com/railstore/railstore/stages/lanes"
	"github.com/railstore/railstore/stages/rail"
	"github.com/railstore/railstore/verbs"
)

// SessionConfig says how a process reads and puts objects.
type SessionConfig struct {
	Deployment *deploy.Deployment
	Host       string   // whose rails are used; empty: Deployment.ClientHost
	Rails      []string // of the host; empty: all
	Drivers    rail.Drivers
	Control    string // address of the control plane
	Identity   ctrl.Identity
	Options    ctrl.ClientOptions
	Name       string // of the client; empty: drawn
	Limits     Limits
	// Staging is the registered memory for objects in transfer and for those held
	// in leased buffers, bytes; 0: the deployment's.
	Staging int64
}

// Session is a process's connection to the shards of a deployment, with the
// Worker that puts and reads objects over it.
type Session struct {
	*Worker
	scope   *pipeline.Scope
	control *ctrl.Client
	client  *lanes.Client
	name    string
}

// OpenSession runs the stages for a client: resolve, allocate, publish, connect.
// When one fails everything is undone. ctx bounds the opening, not the session.
func OpenSession(ctx context.Context, cfg SessionConfig) (_ *Session, err error) {
	s := &Session{scope: pipeline.NewScope()}
	defer func() {
		if err != nil {
			err = both(err, s.Close(context.WithoutCancel(ctx)))
		}
	}()
	d := cfg.Deployment
	if cfg.Host == "" {
		h := d.ClientHost()
		if h == nil {
			return nil, pipeline.Errorf(pipeline.LayerConfig, "connect", pipeline.Nowhere, "the deployment has no host")
		}
		cfg.Host = h.Name
	}
	if cfg.Name == "" {
		var b [8]byte
		_, _ = rand.Read(b[:]) // never fails
		cfg.Name = fmt.Sprintf("%s-%d-%s", cfg.Host, os.Getpid(), hex.EncodeToString(b[:4]))
	}
	s.name = cfg.Name
	if cfg.Staging == 0 {
		cfg.Staging = d.Reader.MaxStaging
	}
	lc, err := lanes.ConfigOf(ctx, d)
	if err != nil {
		return nil, err
	}
	if lc.RequestBytes < MaxRequestBytes || lc.ResponseBytes < MaxResponseBytes {
		return nil, pipeline.Errorf(pipeline.LayerConfig, "connect", pipeline.Nowhere,
			"slots of %d and %d bytes: stripe requests have up to %d bytes and answers up to %d; raise lanes.requestBytes or lanes.responseBytes",
			d.Lanes.RequestBytes, d.Lanes.ResponseBytes, MaxRequestBytes, MaxResponseBytes)
	}
	set, err := s.rails(ctx, cfg, lanes.ClientDemand(d, lc))
	if err != nil {
		return nil, err
	}
	// The shards read what is put and write what is read.
	slab, reg, err := s.staging(set, cfg.Staging, uint64(d.Objects.StripeBytes))
	if err != nil {
		return nil, err
	}
	if err := s.join(ctx, cfg, set); err != nil {
		return nil, err
	}
	if s.client, err = lanes.Dial(ctx, s.scope, lanes.ClientInput{Set: set, Control: s.control, Config: lc, Name: string(ctrl.ClientID(cfg.Name))}); err != nil {
		return nil, err
	}
	if err := s.control.SetReport(s.client.Report); err != nil {
		return nil, err
	}
	wc := Config{Catalog: s.control, Slab: slab, Epoch: d.Epoch, StripeBytes: uint64(d.Objects.StripeBytes), Limits: cfg.Limits,
		Transport: NewLaneTransport(LaneTransportConfig{Client: s.client, Memory: reg})}
	for _, r := range set.Rails {
		pr := PlanRail{Name: r.Name(), Device: r.Ctx.Name(), Provider: r.Provider(), Weight: r.Spec.Weight}
		for i := range d.Shards {
			if slices.Contains(s.client.Reach(d.Shards[i].ID), r.Name()) {
				pr.Shards = append(pr.Shards, d.Shards[i].ID)
			}
		}
		wc.Rails = append(wc.Rails, pr)
	}
	for i := range d.Shards {
		if n := len(d.Shards[i].Dirs); n > 0 {
			wc.Nodes = append(wc.Nodes, Node{Shard: d.Shards[i].ID, Dirs: n})
		}
	}
	wc.RailState = func(name string) string {
		if r, ok := set.Rail(name); ok {
			if st, why := r.Health(); st != rail.Active {
				return fmt.Sprintf("%s (%s)", st, why)
			}
		}
		return ""
	}
	wc.ShardState = s.client.Absent
	s.Worker, err = NewWorker(wc)
	return s, err
}

func (s *Session) rails(ctx context.Context, cfg SessionConfig, demand rail.Demand) (*rail.Set, error) {
	d := cfg.Deployment
	resolve, allocate := rail.Resolve, rail.Allocate
	resolve.Deadline, allocate.Deadline = d.Pipeline.Resolve.Deadline.D(), d.Pipeline.Allocate.Deadline.D()
	rails, err := pipeline.Run(ctx, s.scope, resolve, rail.ResolveInput{Deployment: d, Host: cfg.Host, Rails: cfg.Rails, Drivers: cfg.Drivers})
	if err != nil {
		return nil, err
	}
	return pipeline.Run(ctx, s.scope, allocate, rail.AllocateInput{Deployment: d, Host: cfg.Host, Rails: rails, Demand: demand})
}

func (s *Session) staging(set *rail.Set, n int64, stripe uint64) (*Slab, *rail.Registration, error) {
	region, err := verbs.MapRegion(int(n))
	if err != nil {
		return nil, nil, pipeline.Wrap(err, pipeline.LayerResource, "allocate", pipeline.Nowhere)
	}
	s.scope.DeferClose("unmap staging", region.Close)
	// A shard is told of two MRs at most that a stripe lies in.
	reg, err := set.Register(region, verbs.LocalWrite|verbs.RemoteWrite|verbs.RemoteRead, nil,
		rail.Pieces{Align: Align, Longest: min(stripe, uint64(n)), Field: "objects.stripeBytes"})
	if err != nil {
		return nil, nil, err
	}
	s.scope.DeferClose("deregister staging", reg.Close)
	slab := NewSlab(region.Bytes())
	s.scope.DeferClose("staging", func() error { slab.Close(); return nil })
	return slab, reg, nil
}

func (s *Session) join(ctx context.Context, cfg SessionConfig, set *rail.Set) error {
	c, err := ctrl.Dial(ctx, cfg.Control, cfg.Identity, cfg.Options)
	if err != nil {
		return err
	}
	s.scope.DeferClose("control client", c.Close)
	err = c.Join(ctx, ctrl.NodeInfo{ID: ctrl.ClientID(cfg.Name), Role: ctrl.RoleClient, Host: cfg.Host, PID: os.Getpid(),
		Started: time.Now(), Rails: set.Info(), Lease: cfg.Deployment.Health.ClientLease.D()})
	if err != nil {
		return err
	}
	s.scope.Defer("leave", func(ctx context.Context) error { return c.Leave(ctx, "done") })
	s.control = c
	return nil
}

// Control is the session's membership of the control plane.
func (s *Session) Control() *ctrl.Client { return s.control }

// Lanes are the session's lanes to the shards.
func (s *Session) Lanes() *lanes.Client { return s.client }

// Name is the client's name; ctrl.ClientID of it is what the control plane knows.
func (s *Session) Name() string { return s.name }

// Close ends the session: lanes are closed, the shards are told, memory is given
// back. Leased buffers must have been released. It is idempotent.
func (s *Session) Close(ctx context.Context) error { return s.scope.Close(ctx) }
