package main

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/railstore/railstore/bin/provider"
	"github.com/railstore/railstore/ctrl"
	"github.com/railstore/railstore/cue/deploy"
	"github.com/railstore/railstore/pipeline"
	"github.com/railstore/railstore/stages/launch"
	"github.com/railstore/railstore/stages/object"
	"github.com/railstore/railstore/stages/ps"
)

const (
	openTime  = 30 * time.Second // for reaching the shards, unless the caller says otherwise
	leaveTime = 10 * time.Second // for taking leave of them
)

// handles of the process.
var handles registry

// session is what an rs_session stands for.
type session struct {
	*object.Session
	deployment *deploy.Deployment // as this process sees it
	digest     string             // of the recipe
	host       string
	ctx        context.Context // of all calls
	end        context.CancelCauseFunc
	last       atomic.Pointer[object.ReadReport]

	mu      sync.Mutex
	closing bool
	calls   sync.WaitGroup

	tables sync.Mutex // held while they are attached
	ps     *ps.Session
}

// opening says how to open a session.
type opening struct {
	recipe  string
	host    string
	rails   string
	environ []string
}

// openSession connects to the shards of a deployment that is up.
func openSession(o opening, l limits) (_ *session, err error) {
	if l.deadline == 0 {
		l.deadline = openTime
	}
	call := l.begin(context.Background())
	defer func() { err = call.end("open", err) }()
	d, err := openRecipe(o.recipe, o.environ)
	if err != nil {
		return nil, err
	}
	rails, err := railNames("open", o.rails)
	if err != nil {
		return nil, err
	}
	mine := o.host
	if h := d.ClientHost(); mine == "" && h != nil {
		mine = h.Name
	}
	if _, ok := d.Host(mine); !ok {
		return nil, usage("open", nil, "%s has no host %q", d.Name, mine)
	}
	env, err := object.ReadEnvironment(o.environ)
	if err != nil {
		return nil, usage("open", nil, "%v", err)
	}
	seen, err := env.Apply(d, mine)
	if err != nil {
		return nil, usage("open", nil, "%v", err)
	}
	control := env.Control
	if control == "" {
		control = launch.ControlAddress(d)
	}
	s := &session{deployment: seen, digest: d.Digest(), host: mine}
	s.Session, err = object.OpenSession(call.ctx, object.SessionConfig{
		Deployment: seen, Host: mine, Rails: rails, Drivers: provider.Open,
		Control: control, Identity: launch.Identity(d),
		Options: ctrl.ClientOptions{TLS: launch.TLS(d), Timeout: d.Control.Timeout.D()},
		Limits:  object.LimitsOf(seen.Reader),
	})
	if err != nil {
		return nil, err
	}
	s.ctx, s.end = context.WithCancelCause(context.Background())
	return s, nil
}

// do runs a call on the session.
func (s *session) do(op string, l limits, f func(ctx context.Context) error) error {
	s.mu.Lock()
	if s.closing {
		s.mu.Unlock()
		return usage(op, errClosed, "the session is closed")
	}
	s.calls.Add(1)
	s.mu.Unlock()
	defer s.calls.Done()
	c := l.begin(s.ctx)
	return c.end(op, f(c.ctx))
}

// drain ends the calls that are under way. None begins after it.
func (s *session) drain() {
	s.mu.Lock()
	s.closing = true
	s.mu.Unlock()
	s.end(errClose)
	s.calls.Wait()
}

// close ends the calls and then the session. Whoever holds leases is told; they stay
// readable.
func (s *session) close() error {
	s.drain()
	ctx, cancel := context.WithTimeout(context.Background(), leaveTime)
	defer cancel()
	var err error
	if s.ps != nil {
		err = s.ps.Close(ctx)
	}
	return pipeline.Wrap(errors.Join(err, s.Session.Close(ctx)), pipeline.LayerService, "close", pipeline.Nowhere)
}

// description is what rs_session_describe tells.
type description struct {
	Deployment string                `json:"deployment"`
	Epoch      uint64                `json:"epoch"`
	Digest     string                `json:"digest"`
	Client     string                `json:"client"`
	Host       string                `json:"host"`
	Shards     []int                 `json:"shards"`
	Rails      []object.RailSnapshot `json:"rails"`
}

func (s *session) describe() description {
	d := s.deployment
	out := description{Deployment: d.Name, Epoch: d.Epoch, Digest: s.digest, Client: string(ctrl.ClientID(s.Name())), Host: s.host, Shards: []int{}, Rails: s.Snapshot()}
	for i := range d.Shards {
		out.Shards = append(out.Shards, d.Shards[i].ID)
	}
	return out
}

// table gives a table of the deployment; the first call attaches the session's lanes to
// the parameter services.
func (s *session) table(ctx context.Context, name string) (*ps.Table, error) {
	t, err := s.attached(ctx)
	if err != nil {
		return nil, err
	}
	return t.Table(ctx, name)
}

func (s *session) attached(ctx context.Context) (*ps.Session, error) {
	s.tables.Lock()
	defer s.tables.Unlock()
	if s.ps == nil {
		t, err := ps.Attach(ctx, ps.AttachConfig{Lanes: s.Lanes(), Name: s.Name()})
		if err != nil {
			return nil, err
		}
		s.ps = t
	}
	return s.ps, nil
}
