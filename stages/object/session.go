package object

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/railstore/railstore/ctrl"
	"github.com/railstore/railstore/cue/deploy"
	"github.com/railstore/railstore/pipeline"
	"github.com/railstore/railstore/stages/lanes"
	"github.com/railstore/railstore/stages/rail"
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
	// Health of the process, where several sessions to one deployment share what they
	// know of its paths; nil: the session's own.
	Health *Health
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
	set     *rail.Set
	staged  *staging
	lock    memlock
	name    string
}

// OpenSession runs the stages for a client: resolve, allocate, publish, connect.
// When one fails everything is undone. Where it is for one rail, it is done again without
// that one, as long as Limits.MinRails are left and the caller did not name the rails;
// every result tells of it. ctx bounds the opening, not the session.
func OpenSession(ctx context.Context, cfg SessionConfig) (*Session, error) {
	var absent []AbsentRail
	for {
		s, err := openSession(ctx, cfg, absent)
		if err == nil {
			return s, nil
		}
		name := railOf(err)
		lost := slices.ContainsFunc(absent, func(a AbsentRail) bool { return a.Name == name })
		h := hostOf(&cfg)
		if name == "" || lost || cfg.Rails != nil || ctx.Err() != nil || h == nil || len(h.Rails)-len(absent)-1 < max(cfg.Limits.MinRails, 1) {
			return nil, err
		}
		absent = append(absent, AbsentRail{name, err.Error()})
		pipeline.Emit(ctx, pipeline.Event{Event: "rail_absent", Rail: name, Reason: err.Error()})
	}
}

// railOf is the rail that an error is about, or empty.
func railOf(err error) string {
	var pe *pipeline.Error
	if errors.As(err, &pe) {
		return pe.Where.Rail
	}
	return ""
}

// hostOf is the host whose rails a session uses.
func hostOf(cfg *SessionConfig) *deploy.Host {
	if cfg.Host == "" {
		return cfg.Deployment.ClientHost()
	}
	h, _ := cfg.Deployment.Host(cfg.Host)
	return h
}

// openSession opens a session without the rails that are absent.
func openSession(ctx context.Context, cfg SessionConfig, absent []AbsentRail) (_ *Session, err error) {
	s := &Session{scope: pipeline.NewScope(), lock: processMemlock}
	defer func() {
		if err != nil {
			err = both(err, s.Close(context.WithoutCancel(ctx)))
		}
	}()
	d := cfg.Deployment
	if cfg.Host, err = rail.ClientHost(d, cfg.Host); err != nil {
		return nil, err
	}
	if cfg.Name == "" {
		cfg.Name = rail.ClientName(cfg.Host)
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
	set, err := s.rails(ctx, cfg, absent, lanes.ClientDemand(d, lc))
	if err != nil {
		return nil, err
	}
	s.set = set
	if s.staged, err = newStaging(set.Rails, cfg.Staging, uint64(d.Objects.StripeBytes), s.lock); err != nil {
		return nil, err
	}
	s.scope.DeferClose("staging", s.staged.close)
	s.control, err = rail.Join(ctx, s.scope, rail.ClientInput{Set: set, Name: cfg.Name, Control: cfg.Control, Identity: cfg.Identity, Options: cfg.Options})
	if err != nil {
		return nil, err
	}
	if s.client, err = lanes.Dial(ctx, s.scope, lanes.ClientInput{Set: set, Control: s.control, Config: lc, Name: string(ctrl.ClientID(cfg.Name))}); err != nil {
		return nil, err
	}
	if err := s.control.SetReport(s.client.Report); err != nil {
		return nil, err
	}
	if err := s.control.SetState(ctx, ctrl.StateServing, ""); err != nil {
		return nil, err
	}
	wc := Config{Catalog: s.control, Slab: s.staged.slab, Epoch: d.Epoch, StripeBytes: uint64(d.Objects.StripeBytes), Limits: cfg.Limits, Health: cfg.Health,
		Absent: absent, Reach: s.client.Reach, Transport: NewLaneTransport(LaneTransportConfig{Client: s.client, Memory: s.staged})}
	for _, r := range set.Rails {
		wc.Rails = append(wc.Rails, PlanRail{Name: r.Name(), Device: r.Ctx.Name(), Provider: r.Provider(), Fabric: r.Spec.Fabric, Weight: r.Spec.Weight})
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
	wc.Expect = func(name string, shard int) bool { return expects(d, set, name, shard) }
	if s.Worker, err = NewWorker(wc); err != nil {
		return s, err
	}
	health := s.Worker.Health()
	s.client.OnRenewed(func(shard int, rail string) { health.renewed(Path{rail, shard}) })
	return s, nil
}

// expects reports whether a rail leads to a shard by the recipe: they have a fabric in
// common. A rail whose listeners are named leads where those are.
func expects(d *deploy.Deployment, set *rail.Set, name string, shard int) bool {
	r, ok := set.Rail(name)
	i := slices.IndexFunc(d.Shards, func(s deploy.Shard) bool { return s.ID == shard })
	return ok && i >= 0 && len(r.Spec.Listeners) == 0 &&
		slices.ContainsFunc(d.ShardRails(&d.Shards[i]), func(o deploy.Rail) bool { return o.Fabric == r.Spec.Fabric })
}

// rails opens the host's rails, or those that are named, without those that are absent,
// and gives them their resources.
func (s *Session) rails(ctx context.Context, cfg SessionConfig, absent []AbsentRail, demand rail.Demand) (*rail.Set, error) {
	d, names := cfg.Deployment, cfg.Rails
	if h := hostOf(&cfg); len(absent) > 0 && h != nil {
		for i := range h.Rails {
			if n := h.Rails[i].Name; !slices.ContainsFunc(absent, func(a AbsentRail) bool { return a.Name == n }) {
				names = append(names, n)
			}
		}
	}
	return rail.Open(ctx, s.scope, rail.ResolveInput{Deployment: d, Host: cfg.Host, Rails: names, Drivers: cfg.Drivers}, demand)
}

// Control is the session's membership of the control plane.
func (s *Session) Control() *ctrl.Client { return s.control }

// Lanes are the session's lanes to the shards.
func (s *Session) Lanes() *lanes.Client { return s.client }

// Name is the client's name; ctrl.ClientID of it is what the control plane knows.
func (s *Session) Name() string { return s.name }

// Close ends the session: lanes are closed, the shards are told, memory is given
// back. Leased buffers should have been released; one that was not stays readable, and is
// an error here. It is idempotent.
func (s *Session) Close(ctx context.Context) error { return s.scope.Close(ctx) }
