package launch

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"time"

	"github.com/railstore/railstore/ctrl"
	"github.com/railstore/railstore/cue/deploy"
	"github.com/railstore/railstore/pipeline"
)

// Control asks the control plane of a deployment which nodes it knows.
type Control func(ctx context.Context, d *deploy.Deployment) ([]ctrl.NodeStatus, error)

// Status is a deployment as it is: its processes, and what the control plane
// knows of them. The JSON keys are stable.
type Status struct {
	Deployment string         `json:"deployment"`
	Digest     string         `json:"digest"`
	Control    ControlStatus  `json:"control"`
	Shards     []ShardStatus  `json:"shards"`
	Clients    []ClientStatus `json:"clients"`
}

// ControlStatus is the control plane: serving, unreachable or stopped.
type ControlStatus struct {
	Address string `json:"address"`
	State   string `json:"state"`
	Reason  string `json:"reason,omitempty"`
}

// ShardStatus is one shard.
type ShardStatus struct {
	ID     int             `json:"id"`
	Host   string          `json:"host"`
	PID    int             `json:"pid"` // 0: no process
	State  string          `json:"state"`
	Uptime float64         `json:"uptime_s"`
	Reason string          `json:"reason"`
	Lanes  ctrl.LaneCounts `json:"lanes"`
	Rails  []ctrl.RailInfo `json:"rails"`
}

// ClientStatus is one client that has joined.
type ClientStatus struct {
	ID    string          `json:"id"`
	PID   int             `json:"pid"`
	State string          `json:"state"`
	Lanes ctrl.LaneCounts `json:"lanes"`
}

// States of a shard in Status.
const (
	Starting = "starting"
	Serving  = "serving"
	Suspect  = "suspect"
	Draining = "draining"
	Dead     = "dead"
	Stopped  = "stopped"
)

// controlAsk bounds one look at the control plane. A server that is up answers
// at once; one that is not must not hold up a status.
const controlAsk = 2 * time.Second

// Running is whether any shard has a process.
func (s *Status) Running() bool {
	for i := range s.Shards {
		if s.Shards[i].PID != 0 {
			return true
		}
	}
	return false
}

// Err is nil when every shard serves. Otherwise it names those that do not and
// is ErrNotRunning or ErrNotReady.
func (s *Status) Err() error {
	if !s.Running() {
		e := pipeline.Errorf(pipeline.LayerProcess, "status", pipeline.Nowhere, "%s: %w", s.Deployment, ErrNotRunning)
		return e.WithHint("bring it up with rs up RECIPE")
	}
	for i := range s.Shards {
		sh := &s.Shards[i]
		if sh.State == Serving {
			continue
		}
		reason := ""
		if sh.Reason != "" {
			reason = ": " + sh.Reason
		}
		return pipeline.Errorf(pipeline.LayerProcess, "status", pipeline.AtShard(sh.ID), "%w: %s%s", ErrNotReady, sh.State, reason).
			WithHint("rs logs --deployment %s %d tells more; rs up starts shards that have died", s.Deployment, sh.ID)
	}
	return nil
}

// Status looks at the folder's processes and asks the control plane.
func (f Folder) Status(ctx context.Context, control Control) (*Status, error) {
	r, err := f.Resolved()
	if err != nil {
		return nil, err
	}
	procs, err := f.survey(r.Deployment)
	if err != nil {
		return nil, err
	}
	var nodes []ctrl.NodeStatus
	var cerr error
	if p := procs[controlShard]; p.held {
		actx, cancel := context.WithTimeout(ctx, controlAsk)
		nodes, cerr = control(actx, r.Deployment)
		cancel()
	} else {
		cerr = errNoControl
	}
	return f.compose(r.Deployment, procs, nodes, cerr), nil
}

var errNoControl = errors.New("shard 0, which serves it, has no process")

// controlShard is the shard that serves the control plane.
const controlShard = 0

// shardProc is what the operating system knows of a shard.
type shardProc struct {
	held  bool // a process holds the shard's lock
	proc  process
	since time.Time
}

// survey looks for the process of every shard of the deployment.
func (f Folder) survey(d *deploy.Deployment) (map[int]shardProc, error) {
	out := make(map[int]shardProc, len(d.Shards))
	for i := range d.Shards {
		p, err := f.look(d.Shards[i].ID)
		if err != nil {
			return nil, err
		}
		out[d.Shards[i].ID] = p
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
	found, _, err := holders(path, rec.PID)
	if err != nil {
		return out, stateError(path, err)
	}
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
// alive, the control plane who serves.
func (f Folder) compose(d *deploy.Deployment, procs map[int]shardProc, nodes []ctrl.NodeStatus, cerr error) *Status {
	s := &Status{
		Deployment: d.Name,
		Digest:     d.Digest(),
		Control:    ControlStatus{Address: ControlAddress(d), State: Serving},
		Shards:     []ShardStatus{},
		Clients:    []ClientStatus{},
	}
	marked := f.marked()
	switch {
	case cerr == nil:
	case !procs[controlShard].held && !marked:
		s.Control.State = Stopped
	default:
		s.Control.State, s.Control.Reason = "unreachable", OneLine(cerr.Error())
	}
	byID := make(map[ctrl.NodeID]*ctrl.NodeStatus, len(nodes))
	for i := range nodes {
		n := &nodes[i]
		byID[n.Info.ID] = n
		if n.Info.Role == ctrl.RoleClient {
			s.Clients = append(s.Clients, ClientStatus{ID: string(n.Info.ID), PID: n.Info.PID, State: n.State.String(), Lanes: n.Lanes})
		}
	}
	for i := range d.Shards {
		sh := &d.Shards[i]
		p := procs[sh.ID]
		st := ShardStatus{ID: sh.ID, Host: sh.Host, PID: p.proc.pid, Rails: plannedRails(d, sh)}
		if !p.since.IsZero() {
			st.Uptime = max(0, time.Since(p.since).Seconds())
		}
		n := byID[ctrl.ShardID(sh.ID)]
		switch {
		case !p.held && marked:
			st.State, st.Reason = Dead, f.deathReason(sh.ID)
		case !p.held:
			st.State = Stopped
		case n != nil && (p.proc.pid == 0 || n.Info.PID == p.proc.pid):
			st.State, st.Reason, st.Lanes = n.State.String(), n.Reason, n.Lanes
			if len(n.Info.Rails) > 0 {
				st.Rails = n.Info.Rails
			}
			if n.State == ctrl.StateUnknown {
				st.State = Starting
			}
		case cerr != nil && sh.ID != controlShard && !procs[controlShard].held:
			st.State, st.Reason = Suspect, "no control plane: "+OneLine(cerr.Error())
		case cerr != nil:
			st.State, st.Reason = Starting, "the control plane at "+s.Control.Address+" does not answer: "+OneLine(cerr.Error())
		default:
			st.State, st.Reason = Starting, "has not joined the control plane at "+s.Control.Address
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

// ControlAddress is where the control plane listens.
func ControlAddress(d *deploy.Deployment) string {
	return net.JoinHostPort(d.Control.Host, strconv.Itoa(d.Control.Port))
}
