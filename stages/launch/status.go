package launch

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/railstore/railstore/ctrl"
	"github.com/railstore/railstore/cue/deploy"
	"github.com/railstore/railstore/pipeline"
)

// Control asks the control plane of a deployment for its status.
type Control func(ctx context.Context, d *deploy.Deployment) (*ctrl.Status, error)

// States of the control plane in a status.
const (
	ControlServing     = "serving"
	ControlUnreachable = "unreachable"
	ControlStopped     = "stopped"
)

// controlAsk bounds one look at the control plane. A server that is up answers
// at once; one that is not must not hold up a status.
const controlAsk = 2 * time.Second

// Serving is nil when every shard serves. Otherwise it names the first that does
// not and is ErrNotRunning or ErrNotReady.
func Serving(s *ctrl.Status) error {
	running := false
	for i := range s.Shards {
		running = running || s.Shards[i].PID != 0
	}
	if !running {
		return pipeline.Errorf(pipeline.LayerProcess, "status", pipeline.Nowhere, "%s: %w", s.Deployment, ErrNotRunning).
			WithHint("bring it up with rs up RECIPE")
	}
	for i := range s.Shards {
		sh := &s.Shards[i]
		if sh.State != ctrl.StateServing {
			return pipeline.Errorf(pipeline.LayerProcess, "status", pipeline.AtShard(sh.ID), "%w: %s", ErrNotReady, stateText(sh)).
				WithHint("rs logs --deployment %s %d tells more; rs up starts shards that have died", s.Deployment, sh.ID)
		}
	}
	return nil
}

func stateText(s *ctrl.ShardStatus) string {
	if s.Reason == "" {
		return s.State.String()
	}
	return s.State.String() + ": " + s.Reason
}

// Status looks at the folder's processes and asks the control plane.
func (f Folder) Status(ctx context.Context, control Control) (*ctrl.Status, error) {
	r, err := f.Resolved()
	if err != nil {
		return nil, err
	}
	procs, err := f.survey(ctx, r.Deployment)
	if err != nil {
		return nil, err
	}
	var (
		told *ctrl.Status
		cerr = errNoControl
	)
	if procs[controlShard].held {
		actx, cancel := context.WithTimeout(ctx, controlAsk)
		told, cerr = control(actx, r.Deployment)
		cancel()
	}
	return f.compose(r.Deployment, procs, told, cerr), nil
}

// controlStart is how long a control plane that does not answer counts as one that
// is still starting.
const controlStart = 10 * time.Second

var errNoControl = errors.New("shard 0, which serves it, has no process")

// controlShard is the shard that serves the control plane.
const controlShard = 0

// shardProc is what the operating system knows of a shard.
type shardProc struct {
	held   bool // a process holds the shard's lock
	proc   process
	since  time.Time
	hidden bool // there are processes that this user may not look at
}

// unsure is a lock that is held by no process that can be seen although all can
// be: one that is between fork and exec, or between its last signal and its end.
func (p shardProc) unsure() bool { return p.held && p.proc.pid == 0 && !p.hidden }

// settle is how long survey waits for such a process to become one thing or the
// other.
const settle = 500 * time.Millisecond

// survey looks for the process of every shard of the deployment.
func (f Folder) survey(ctx context.Context, d *deploy.Deployment) (map[int]shardProc, error) {
	out := make(map[int]shardProc, len(d.Shards))
	ctx, cancel := context.WithTimeout(ctx, settle)
	defer cancel()
	err := until(ctx, func() (bool, error) {
		sure := true
		for i := range d.Shards {
			p, err := f.look(d.Shards[i].ID)
			if err != nil {
				return false, err
			}
			out[d.Shards[i].ID] = p
			sure = sure && !p.unsure()
		}
		return sure, nil
	})
	if err != nil && ctx.Err() == nil {
		return nil, err
	}
	return out, nil
}

// look finds the process of one shard. A held lock without a process that can be
// named has pid 0: it is about to start or to end, or belongs to another user.
func (f Folder) look(shard int) (shardProc, error) {
	path := f.claimPath(shard)
	held, err := isLocked(path)
	if err != nil {
		return shardProc{}, stateError(path, err)
	}
	if !held {
		return shardProc{}, nil
	}
	out := shardProc{held: true}
	rec, ok := f.readRecord(shard)
	found, hidden, err := holders(path, rec.PID)
	if err != nil {
		return out, stateError(path, err)
	}
	out.hidden = hidden > 0
	if len(found) == 0 {
		return out, nil
	}
	out.proc = found[0]
	if ok && rec.PID == out.proc.pid && rec.Start == out.proc.start {
		out.since = rec.Started
	} else if t, ok := out.proc.startedAt(); ok {
		out.since = t
	}
	return out, nil
}

// compose puts the two views together. The operating system decides who is
// alive, the control plane who serves. told is nil when cerr is not.
func (f Folder) compose(d *deploy.Deployment, procs map[int]shardProc, told *ctrl.Status, cerr error) *ctrl.Status {
	s := &ctrl.Status{
		Deployment: d.Name,
		Digest:     d.Digest(),
		Control:    ctrl.ControlStatus{Address: ControlAddress(d)},
		Shards:     []ctrl.ShardStatus{},
		Clients:    []ctrl.ClientStatus{},
	}
	marked := f.marked()
	byID := make(map[int]*ctrl.ShardStatus)
	switch {
	case cerr == nil:
		s.Control.State, s.Control.UptimeS, s.Control.Reason = told.Control.State, told.Control.UptimeS, told.Control.Reason
		for i := range told.Shards {
			byID[told.Shards[i].ID] = &told.Shards[i]
		}
		s.Clients = append(s.Clients, told.Clients...)
	case !procs[controlShard].held && !marked:
		s.Control.State = ControlStopped
	default:
		s.Control.State, s.Control.Reason = ControlUnreachable, OneLine(cerr.Error())
	}
	for i := range d.Shards {
		sh := &d.Shards[i]
		p := procs[sh.ID]
		st := ctrl.ShardStatus{ID: sh.ID, Host: sh.Host, PID: p.proc.pid, Rails: plannedRails(d, sh)}
		if !p.since.IsZero() {
			st.UptimeS = max(0, time.Since(p.since).Seconds())
		}
		n := byID[sh.ID]
		switch {
		case !p.held && marked:
			if reason, ok := f.readEnd(sh.ID); ok {
				st.State, st.Reason = ctrl.StateStopped, "ended as asked: "+reason
				break
			}
			st.State, st.Reason = ctrl.StateDead, f.deathReason(sh.ID)
		case !p.held:
			st.State = ctrl.StateStopped
		case n != nil && n.State != ctrl.StateUnknown && (p.proc.pid == 0 || n.PID == p.proc.pid):
			st.State, st.Reason, st.Lanes, st.IdleS = n.State, n.Reason, n.Lanes, n.IdleS
			if len(n.Rails) > 0 {
				st.Rails = n.Rails
			}
		case cerr != nil && sh.ID != controlShard && !procs[controlShard].held:
			st.State, st.Reason = ctrl.StateSuspect, "no control plane: "+OneLine(cerr.Error())
		case cerr != nil && !procs[controlShard].since.IsZero() && time.Since(procs[controlShard].since) > controlStart:
			// It has long been up: it hangs, or the machine is too busy.
			st.State, st.Reason = ctrl.StateSuspect, "the control plane at "+s.Control.Address+" does not answer any more: "+OneLine(cerr.Error())
		case cerr != nil:
			st.State, st.Reason = ctrl.StateStarting, "the control plane at "+s.Control.Address+" does not answer: "+OneLine(cerr.Error())
		default:
			st.State, st.Reason = ctrl.StateStarting, "has not joined the control plane at "+s.Control.Address
		}
		s.Shards = append(s.Shards, st)
	}
	return s
}

// plannedRails are the rails of a shard as far as the deployment alone tells.
func plannedRails(d *deploy.Deployment, s *deploy.Shard) []ctrl.RailInfo {
	out := []ctrl.RailInfo{}
	for _, r := range d.ShardRails(s) {
		out = append(out, ctrl.RailInfo{Name: r.Name, Fabric: r.Fabric, Device: r.Device, MTU: r.MTU, Weight: r.Weight})
	}
	return out
}

func (f Folder) deathReason(shard int) string {
	if r, ok := f.readExit(shard); ok {
		return fmt.Sprintf("ended with exit code %d: %s", r.Code, r.Error.String())
	}
	return "its process is gone without a word: killed, or the machine was restarted"
}

// RequireControl gives the resolved deployment if its control plane has a
// process, so that a command says at once that there is nobody to talk to.
func (f Folder) RequireControl() (*Resolved, error) {
	r, err := f.Resolved()
	if err != nil {
		return nil, err
	}
	if err := f.require(controlShard); err != nil {
		return nil, err
	}
	return r, nil
}

// RequireShards is RequireControl for a command that needs every shard: a process
// that is gone need not be waited for.
func (f Folder) RequireShards() (*Resolved, error) {
	r, err := f.RequireControl()
	if err != nil {
		return nil, err
	}
	var errs []error
	for i := range r.Deployment.Shards {
		errs = append(errs, f.require(r.Deployment.Shards[i].ID))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return r, nil
}

func (f Folder) require(shard int) error {
	held, err := isLocked(f.claimPath(shard))
	switch {
	case err != nil:
		return stateError(f.claimPath(shard), err)
	case held:
		return nil
	case f.marked():
		return pipeline.Errorf(pipeline.LayerProcess, "deployment", pipeline.AtShard(shard), "%s: %w: %s", f.Name, ErrNotRunning, f.deathReason(shard)).
			WithHint("rs up RECIPE starts the shards that are missing")
	}
	return pipeline.Errorf(pipeline.LayerProcess, "deployment", pipeline.AtShard(shard), "%s: %w", f.Name, ErrNotRunning).
		WithHint("bring it up with rs up RECIPE")
}
