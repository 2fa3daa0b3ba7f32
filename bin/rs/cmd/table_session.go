package cmd

import (
	"context"
	"errors"
	"fmt"

	"github.com/urfave/cli/v3"

	"github.com/railstore/railstore/ctrl"
	"github.com/railstore/railstore/cue/deploy"
	"github.com/railstore/railstore/pipeline"
	"github.com/railstore/railstore/stages/launch"
	"github.com/railstore/railstore/stages/ps"
)

// tableFlags are those of every command that calls the shards about tables.
func tableFlags(more ...cli.Flag) []cli.Flag {
	return append([]cli.Flag{deploymentFlag(), hostFlag(), railsFlag(), connectFlag()}, more...)
}

// openTables connects to the tables of the deployment that the command means. The
// context that it gives back is ctx whose events go to those of the deployment. done
// ends the session. change, which may be nil, alters what the recipe says.
func (a *app) openTables(ctx context.Context, c *cli.Command, change func(*ps.SessionConfig)) (_ context.Context, s *ps.Session, done func() error, err error) {
	timeout := c.Duration(flagTimeout)
	if timeout <= 0 {
		return nil, nil, nil, usagef("--timeout %v: want a time above zero, such as 30s", timeout)
	}
	rails, err := railsOf(c)
	if err != nil {
		return nil, nil, nil, err
	}
	f, err := a.folder(c)
	if err != nil {
		return nil, nil, nil, err
	}
	r, err := f.RequireShards()
	if err != nil {
		return nil, nil, nil, err
	}
	d := r.Deployment
	host := c.String(flagHost)
	if _, ok := d.Host(host); host != "" && !ok {
		return nil, nil, nil, usagef("--host %s: %s has no such host", host, d.Name)
	}
	log, err := f.OpenEvents(-1)
	if err != nil {
		return nil, nil, nil, err
	}
	counts, devs := new(eventCounts), new(devices)
	ctx = pipeline.WithSink(ctx, func(e pipeline.Event) {
		counts.take(e)
		clientEvent(log, e)
	})
	octx, cancel := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("the shards were not all reached within %v", timeout))
	defer cancel()
	stop := a.whenSlow(func() { a.progress("waiting for the shards of %s, for at most %v", d.Name, timeout) })
	cfg := ps.SessionConfig{
		Deployment: d, Host: host, Rails: rails, Drivers: devs.open,
		Control: launch.ControlAddress(d), Identity: launch.Identity(d),
		Options: ctrl.ClientOptions{TLS: launch.TLS(d), Timeout: d.Control.Timeout.D()},
	}
	if change != nil {
		change(&cfg)
	}
	s, err = ps.OpenSession(octx, cfg)
	stop()
	if err != nil {
		return nil, nil, nil, errors.Join(err, log.Close())
	}
	scope := pipeline.NewScope()
	o := observed{deployment: d, set: s.Lanes().Set, control: s.Control(), counters: s.Lanes().Counters(), lanes: s.Lanes().Status, devices: devs, events: counts,
		process: launch.Process{ID: string(ctrl.ClientID(s.Name())), Shard: -1, Host: s.Lanes().Set.Host, Command: c.Name}}
	if err := o.observe(ctx, scope, f); err != nil { // a client has no address that could be taken
		return nil, nil, nil, errors.Join(err, s.Close(ctx), log.Close())
	}
	return ctx, s, func() error {
		defer func() { _ = log.Close() }() // events tell what happens, they do not decide it
		cctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveTime)
		defer cancel()
		return errors.Join(scope.Close(cctx), s.Close(cctx))
	}, nil
}

// onTable opens a session and calls fn with the table that the command's first argument
// names.
func (a *app) onTable(ctx context.Context, c *cli.Command, name string, fn func(ctx context.Context, s *ps.Session, t *ps.Table) error) (err error) {
	ctx, s, done, err := a.openTables(ctx, c, nil)
	if err != nil {
		return err
	}
	defer func() { err = joinClose(err, done) }()
	t, err := s.Table(ctx, name)
	if err != nil {
		return tableHint(err, s.Lanes().Set.Deployment)
	}
	return tableFailure(fn(ctx, s, t))
}

// tableHint says what to do about a table that is not there.
func tableHint(err error, d *deploy.Deployment) error {
	var pe *pipeline.Error
	if !errors.Is(err, ps.ErrNoTable) || !errors.As(err, &pe) || pe.Hint != "" {
		return err
	}
	out := *pe
	return out.WithHint("rs table ls -d %s shows those that are there, rs table init makes one", d.Name)
}
