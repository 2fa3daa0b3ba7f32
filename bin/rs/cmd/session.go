package cmd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/railstore/railstore/ctrl"
	"github.com/railstore/railstore/cue/deploy"
	"github.com/railstore/railstore/pipeline"
	"github.com/railstore/railstore/stages/launch"
	"github.com/railstore/railstore/stages/object"
)

// leaveTime bounds the leave of a session. When it is over, the lease ends it.
const leaveTime = 10 * time.Second

// sessionFor says for whom a session is opened.
type sessionFor struct {
	folder launch.Folder
	host   string         // whose rails are used; empty: the deployment's client host
	rails  []string       // of the host; nil: all
	reader *deploy.Reader // limits of its reads; nil: the deployment's
}

// connectTime is what --timeout allows; a command line that makes no sense is told before
// anything is looked at.
func connectTime(c *cli.Command) (time.Duration, error) {
	t := c.Duration(flagTimeout)
	if t <= 0 {
		return 0, usagef("--timeout %v: want a time above zero, such as 30s", t)
	}
	return t, nil
}

// openSession connects to the deployment that the command means, over the rails
// that it names, from the host of --host.
func (a *app) openSession(ctx context.Context, c *cli.Command, rails []string) (_ context.Context, s *object.Session, done func() error, err error) {
	if _, err := connectTime(c); err != nil {
		return nil, nil, nil, err
	}
	f, err := a.folder(c)
	if err != nil {
		return nil, nil, nil, err
	}
	return a.openSessionFor(ctx, c, sessionFor{folder: f, host: c.String(flagHost), rails: rails})
}

// openSessionFor connects to a deployment. The context that it gives back is ctx whose
// events go to those of the deployment. done ends the session.
func (a *app) openSessionFor(ctx context.Context, c *cli.Command, of sessionFor) (_ context.Context, s *object.Session, done func() error, err error) {
	timeout, err := connectTime(c)
	if err != nil {
		return nil, nil, nil, err
	}
	f, host := of.folder, of.host
	r, err := f.RequireShards()
	if err != nil {
		return nil, nil, nil, err
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
	d := r.Deployment
	if host != "" {
		if _, ok := d.Host(host); !ok {
			_ = log.Close()
			return nil, nil, nil, usagef("--host %s: %s has no such host", host, d.Name)
		}
	}
	env, err := object.ReadEnvironment(os.Environ())
	if err != nil {
		_ = log.Close()
		return nil, nil, nil, usagef("%v", err)
	}
	mine := host
	if h := d.ClientHost(); mine == "" && h != nil {
		mine = h.Name
	}
	limited := *d
	if of.reader != nil {
		limited.Reader = *of.reader
	}
	seen, err := env.Apply(&limited, mine)
	if err != nil {
		_ = log.Close()
		return nil, nil, nil, usagef("%v", err)
	}
	control := env.Control
	if control == "" {
		control = launch.ControlAddress(d)
	}
	octx, cancel := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("the shards were not all reached within %v", timeout))
	defer cancel()
	stop := a.whenSlow(func() { a.progress("waiting for the shards of %s, for at most %v", d.Name, timeout) })
	s, err = object.OpenSession(octx, object.SessionConfig{
		Deployment: seen, Host: host, Rails: of.rails, Drivers: devs.open,
		Control: control, Identity: launch.Identity(d),
		Options: ctrl.ClientOptions{TLS: launch.TLS(d), Timeout: d.Control.Timeout.D()},
		Limits:  object.LimitsOf(seen.Reader),
	})
	stop()
	if err != nil {
		_ = log.Close()
		return nil, nil, nil, err
	}
	scope := pipeline.NewScope()
	o := observed{deployment: d, set: s.Lanes().Set, control: s.Control(), counters: s.Lanes().Counters(), lanes: s.Lanes().Status, devices: devs, events: counts,
		process: launch.Process{ID: string(ctrl.ClientID(s.Name())), Shard: -1, Host: s.Lanes().Set.Host, Command: c.Name}}
	if err := o.observe(ctx, scope, f); err != nil { // a client has no address that could be taken
		_ = s.Close(ctx)
		_ = log.Close()
		return nil, nil, nil, err
	}
	return ctx, s, func() error {
		defer func() { _ = log.Close() }()
		cctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveTime)
		defer cancel()
		return errors.Join(scope.Close(cctx), s.Close(cctx))
	}, nil
}

// slow is the time after which somebody who waits is told for what.
const slow = 2 * time.Second

// whenSlow calls fn once if stop is not called soon. stop waits for fn.
func (a *app) whenSlow(fn func()) (stop func()) {
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		t := time.NewTimer(slow)
		defer t.Stop()
		select {
		case <-t.C:
			fn()
		case <-done:
		}
	})
	return func() {
		close(done)
		wg.Wait()
	}
}

// clientEvent writes an event of a short-lived client: its stages only when they
// fail, else every command would fill the events with its start.
func clientEvent(log *launch.EventLog, e pipeline.Event) {
	switch e.Event {
	case "stage_start", "stage_done":
		return
	}
	fields := map[string]any{"client_pid": os.Getpid()}
	for k, v := range e.Fields {
		fields[k] = v
	}
	e.Fields = fields
	log.Emit(e)
}
