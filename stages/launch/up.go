package launch

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/railstore/railstore/ctrl"
	"github.com/railstore/railstore/cue/deploy"
	"github.com/railstore/railstore/pipeline"
)

// UpConfig is what Up brings up and how.
type UpConfig struct {
	Deployment *deploy.Deployment
	Recipe     string  // where it came from, for people
	Program    Program // of a shard; nil is this program
	Control    Control
	Timeout    time.Duration // until every shard serves
	Grace      time.Duration // for shards that must be stopped again after a failure
	LockWait   time.Duration // for another command that changes the deployment
}

// UpResult is what Up did. Started is empty when everything served already.
type UpResult struct {
	Started []int
	Status  *ctrl.Status
}

// Up makes every shard of the deployment serve. Shards of the same deployment
// that run already stay; those that are missing are started. When not all serve
// in time, or ctx ends, what this call started is stopped again.
func (f Folder) Up(ctx context.Context, cfg UpConfig) (*UpResult, error) {
	d := cfg.Deployment
	if err := checkLocal(d); err != nil {
		return nil, err
	}
	if err := f.Create(); err != nil {
		return nil, err
	}
	lock, err := f.Lock(ctx, "up", cfg.LockWait)
	if err != nil {
		return nil, err
	}
	defer func() { _ = lock.Unlock() }()
	missing, err := f.missing(d)
	if err != nil {
		return nil, err
	}
	log, err := f.OpenEvents(-1)
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }()
	u := &upRun{f: f, cfg: cfg, emit: log.Emit}
	if len(missing) > 0 {
		if err := f.writeResolved(d, cfg.Recipe); err != nil {
			return nil, err
		}
		if err := f.setMark(); err != nil {
			return nil, err
		}
	}
	st, err := u.run(ctx, missing)
	if err != nil {
		return nil, u.undo(ctx, err)
	}
	return &UpResult{Started: missing, Status: st}, nil
}

// missing are the shards without a process. It refuses when shards of another
// recipe run under this name.
func (f Folder) missing(d *deploy.Deployment) ([]int, error) {
	live, err := f.live()
	if err != nil {
		return nil, err
	}
	if len(live) > 0 {
		r, err := f.Resolved()
		if err != nil {
			return nil, err
		}
		if r.Digest != d.Digest() {
			from := ""
			if r.Recipe != "" {
				from = " from " + r.Recipe
			}
			return nil, pipeline.Errorf(pipeline.LayerProcess, "up", pipeline.Nowhere, "%s: %w: digest %.12s%s, and this recipe has %.12s",
				d.Name, ErrConflict, r.Digest, from, d.Digest()).
				WithHint("rs down --deployment %s first, or give this recipe another name", d.Name)
		}
	}
	has := make(map[int]bool, len(live))
	for _, n := range live {
		has[n] = true
	}
	var out []int
	for i := range d.Shards {
		if !has[d.Shards[i].ID] {
			out = append(out, d.Shards[i].ID)
		}
	}
	return out, nil
}

// upRun is one call of Up.
type upRun struct {
	f        Folder
	cfg      UpConfig
	emit     pipeline.Sink
	children []*child
}

func (u *upRun) run(ctx context.Context, missing []int) (*ctrl.Status, error) {
	for _, n := range missing {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		c, err := u.f.spawn(n, u.cfg.Program)
		if c != nil {
			u.children = append(u.children, c)
		}
		if err != nil {
			return nil, err
		}
		u.emit(pipeline.Event{Event: "shard_started", Shard: &n, Fields: map[string]any{"pid": c.proc.pid}})
	}
	st, err := u.wait(ctx)
	if err != nil {
		return nil, err
	}
	if len(missing) > 0 {
		u.emit(pipeline.Event{Event: "deployment_serving"})
	}
	return st, nil
}

// answer is one look at the control plane.
type answer struct {
	told *ctrl.Status
	err  error
}

// wait returns when every shard serves, and earlier with the reason when one of
// the children ends, the time is over or ctx ends.
func (u *upRun) wait(ctx context.Context) (*ctrl.Status, error) {
	d := u.cfg.Deployment
	timeout := time.NewTimer(u.cfg.Timeout)
	defer timeout.Stop()
	answers := make(chan answer)
	pctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { u.runPoll(pctx, answers) })
	defer wg.Wait()
	defer cancel()
	tick := time.NewTicker(lockPoll)
	defer tick.Stop()
	last := answer{err: errors.New("it was not asked yet")}
	told := make(map[int]bool)
	for {
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-timeout.C:
			return nil, u.late(ctx, last)
		case <-tick.C:
			if err := u.childEnded(); err != nil {
				return nil, err
			}
		case last = <-answers:
			procs, err := u.f.survey(ctx, d)
			if err != nil {
				return nil, err
			}
			st := u.f.compose(d, procs, last.told, last.err)
			all := true
			for i := range st.Shards {
				s := &st.Shards[i]
				if s.State != ctrl.StateServing {
					all = false
					if s.PID == 0 && s.State.Ended() && !u.isChild(s.ID) {
						return nil, pipeline.Errorf(pipeline.LayerProcess, "up", pipeline.AtShard(s.ID), "%w: %s", ErrNotRunning, s.Reason).
							WithHint("run rs up again: it starts the shards that are missing")
					}
				} else if !told[s.ID] && u.isChild(s.ID) {
					told[s.ID] = true
					u.emit(pipeline.Event{Event: "shard_ready", Shard: &s.ID, Seconds: s.UptimeS})
				}
			}
			if all {
				return st, nil
			}
		}
	}
}

// runPoll asks the control plane over and over until ctx ends.
func (u *upRun) runPoll(ctx context.Context, answers chan<- answer) {
	t := time.NewTicker(2 * lockPoll)
	defer t.Stop()
	for {
		actx, cancel := context.WithTimeout(ctx, controlAsk)
		told, err := u.cfg.Control(actx, u.cfg.Deployment)
		cancel()
		select {
		case answers <- answer{told, err}:
		case <-ctx.Done():
			return
		}
		select {
		case <-t.C:
		case <-ctx.Done():
			return
		}
	}
}

func (u *upRun) isChild(shard int) bool {
	for _, c := range u.children {
		if c.shard == shard {
			return true
		}
	}
	return false
}

// childEnded gives the cause of each child that has ended.
func (u *upRun) childEnded() error {
	var errs []error
	for _, c := range u.children {
		if !c.ended && c.reap() {
			err := c.cause(u.f)
			u.emit(pipeline.Event{Event: "shard_failed", Shard: &c.shard, Reason: OneLine(err.Error())})
			errs = append(errs, notReady{err})
		}
	}
	return errors.Join(errs...)
}

// notReady marks the error of a shard that ended as a failure to get ready,
// whatever it was inside the shard.
type notReady struct{ error }

func (e notReady) Unwrap() []error { return []error{e.error, ErrNotReady} }

// late is the error of a time that is over: what every shard that does not serve
// was last seen doing.
func (u *upRun) late(ctx context.Context, last answer) error {
	d := u.cfg.Deployment
	procs, err := u.f.survey(ctx, d)
	if err != nil {
		return err
	}
	var errs []error
	st := u.f.compose(d, procs, last.told, last.err)
	for i := range st.Shards {
		s := &st.Shards[i]
		if s.State == ctrl.StateServing {
			continue
		}
		errs = append(errs, pipeline.Errorf(pipeline.LayerWait, "up", pipeline.AtShard(s.ID), "%w within %v: still %s",
			ErrNotReady, u.cfg.Timeout, stateText(s)).
			WithHint("give it longer with --timeout; its output is in %s", u.f.LogPath(s.ID)))
	}
	return errors.Join(errs...)
}

// undo stops what this call started. ctx may have ended already; stopping has
// its own time. What could not be stopped is added to err.
func (u *upRun) undo(ctx context.Context, err error) error {
	var shards []int
	for _, c := range u.children {
		shards = append(shards, c.shard)
	}
	serr := u.f.stopInOrder(context.WithoutCancel(ctx), shards, u.cfg.Grace, func(s StoppedShard) {
		u.emit(pipeline.Event{Event: "shard_stopped", Shard: &s.Shard, Reason: s.How, Seconds: s.Seconds})
	})
	for _, c := range u.children {
		c.reap()
	}
	if live, lerr := u.f.live(); lerr == nil && len(live) == 0 {
		serr = errors.Join(serr, u.f.clearMark())
	}
	u.emit(pipeline.Event{Event: "deployment_failed", Reason: OneLine(err.Error())})
	return errors.Join(err, serr)
}
