package ps

import (
	"context"
	"errors"

	"github.com/railstore/railstore/ctrl"
	"github.com/railstore/railstore/cue/deploy"
	"github.com/railstore/railstore/pipeline"
	"github.com/railstore/railstore/stages/lanes"
	"github.com/railstore/railstore/stages/rail"
)

// SessionConfig says how a process uses tables.
type SessionConfig struct {
	Deployment *deploy.Deployment
	Host       string   // whose rails are used; empty: Deployment.ClientHost
	Rails      []string // of the host; empty: all
	Drivers    rail.Drivers
	Control    string // address of the control plane
	Identity   ctrl.Identity
	Options    ctrl.ClientOptions
	Name       string // of the client; empty: drawn
	// Staging is the registered memory for rows that do not go through slots, in bytes; 0:
	// a piece for every request to every shard, within the deployment's maxStagingBytes;
	// negative: none.
	Staging int64
	// Modes of rows; zero fields: the deployment's.
	Modes Modes
	Depth int // of handles; 0: the deployment's asyncDepth
}

// Session is a process's connection to the shards of a deployment, with the Client that
// calls their tables over it.
type Session struct {
	*Client
	scope *pipeline.Scope
	lanes *lanes.Client
	name  string
}

// OpenSession runs the stages for a client: resolve, allocate, publish, connect. When one
// fails everything is undone. ctx bounds the opening, not the session.
func OpenSession(ctx context.Context, cfg SessionConfig) (_ *Session, err error) {
	s := &Session{scope: pipeline.NewScope()}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.scope.Close(context.WithoutCancel(ctx)))
		}
	}()
	d := cfg.Deployment
	if cfg.Host, err = rail.ClientHost(d, cfg.Host); err != nil {
		return nil, err
	}
	if cfg.Name == "" {
		cfg.Name = rail.ClientName(cfg.Host)
	}
	lc, err := lanes.ConfigOf(ctx, d)
	if err != nil {
		return nil, err
	}
	set, err := rail.Open(ctx, s.scope, rail.ResolveInput{Deployment: d, Host: cfg.Host, Rails: cfg.Rails, Drivers: cfg.Drivers}, lanes.ClientDemand(d, lc))
	if err != nil {
		return nil, err
	}
	staging, err := stage(s.scope, set, &cfg)
	if err != nil {
		return nil, err
	}
	control, err := rail.Join(ctx, s.scope, rail.ClientInput{Set: set, Name: cfg.Name, Control: cfg.Control, Identity: cfg.Identity, Options: cfg.Options})
	if err != nil {
		return nil, err
	}
	s.lanes, err = lanes.Dial(ctx, s.scope, lanes.ClientInput{Set: set, Control: control, Config: lc, Name: string(ctrl.ClientID(cfg.Name))})
	if err != nil {
		return nil, err
	}
	if err := control.SetReport(s.lanes.Report); err != nil {
		return nil, err
	}
	if err := s.finish(ctx, &cfg, staging); err != nil {
		return nil, err
	}
	return s, nil
}

// AttachConfig is SessionConfig for lanes that are there.
type AttachConfig struct {
	Lanes   *lanes.Client // of an object session, say; it must outlive the session
	Name    string        // of their client
	Staging int64
	Modes   Modes
	Depth   int
}

// Attach makes a session that shares lanes with somebody else.
func Attach(ctx context.Context, cfg AttachConfig) (_ *Session, err error) {
	s := &Session{scope: pipeline.NewScope(), lanes: cfg.Lanes}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.scope.Close(context.WithoutCancel(ctx)))
		}
	}()
	sc := SessionConfig{Deployment: cfg.Lanes.Set.Deployment, Name: cfg.Name, Staging: cfg.Staging, Modes: cfg.Modes, Depth: cfg.Depth}
	staging, err := stage(s.scope, cfg.Lanes.Set, &sc)
	if err != nil {
		return nil, err
	}
	if err := s.finish(ctx, &sc, staging); err != nil {
		return nil, err
	}
	return s, nil
}

// stage maps and registers the memory for rows, if a way of rows needs it.
func stage(scope *pipeline.Scope, set *rail.Set, cfg *SessionConfig) (*Staging, error) {
	d := cfg.Deployment
	m := ModesOf(d)
	if cfg.Modes.Get == "" {
		cfg.Modes.Get = m.Get
	}
	if cfg.Modes.Put == "" {
		cfg.Modes.Put = m.Put
	}
	if cfg.Modes.PutProtocol == 0 {
		cfg.Modes.PutProtocol = m.PutProtocol
	}
	if cfg.Depth == 0 {
		cfg.Depth = d.Lanes.AsyncDepth
	}
	n := cfg.Staging
	if n == 0 {
		n = int64(d.Lanes.QPs*d.Lanes.Slots) * int64(max(len(d.Shards), 1)) * MaxPiece
		if most := d.Reader.MaxStaging; most > 0 {
			n = min(n, most)
		}
	}
	if n < 0 || cfg.Modes.Get == StagingCopy && (cfg.Modes.Put == Push || cfg.Modes.PutProtocol == 1) {
		return nil, nil
	}
	s, err := NewStaging(set, n)
	if err != nil {
		return nil, err
	}
	scope.DeferClose("rows' staging", s.Close)
	return s, nil
}

func (s *Session) finish(ctx context.Context, cfg *SessionConfig, staging *Staging) (err error) {
	d := cfg.Deployment
	s.name = cfg.Name
	s.Client, err = NewClient(ctx, ClientConfig{Lanes: s.lanes, Staging: staging, Mode: cfg.Modes, Depth: cfg.Depth,
		Attempts: d.Retry.GetAttempts, Backoff: d.Retry.Backoff.D()})
	if err != nil {
		return err
	}
	s.scope.Defer("tables", s.Client.Close)
	return nil
}

// Control is the session's membership of the control plane.
func (s *Session) Control() *ctrl.Client { return s.lanes.Control }

// Lanes are the session's lanes to the shards.
func (s *Session) Lanes() *lanes.Client { return s.lanes }

// Name is the client's name; ctrl.ClientID of it is what the control plane knows.
func (s *Session) Name() string { return s.name }

// Close ends the session: the shards are told, lanes of its own are closed, memory is
// given back. Handles must have been waited for. It is idempotent.
func (s *Session) Close(ctx context.Context) error { return s.scope.Close(ctx) }
