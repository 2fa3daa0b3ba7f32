package cmd

import (
	"context"
	"fmt"
	"net/http"
	"slices"

	"github.com/railstore/railstore/ctrl"
	"github.com/railstore/railstore/stages/lanes"
	"github.com/railstore/railstore/stages/launch"
	"github.com/railstore/railstore/stages/object"
)

// statusResult is a status with what only the processes themselves know.
type statusResult struct {
	*ctrl.Status
	// Reasons are of the lanes that are not active, by process and state.
	Reasons []laneReason `json:"lane_reasons"`
	Lanes   []laneRow    `json:"lanes,omitempty"` // with --lanes
	// Directories are those of the shards that answer.
	Directories []object.DirectoryStatus `json:"directories"`
}

// laneReason is why a process's lanes are in a state.
type laneReason struct {
	Process string `json:"process"`
	State   string `json:"state"`
	Lanes   int    `json:"lanes"`
	Reason  string `json:"reason"`           // of the first of them
	Others  int    `json:"others,omitempty"` // that have another reason
}

// laneRow is one lane as one of its ends tells it.
type laneRow struct {
	Process string `json:"process"`
	lanes.LaneStatus
}

// stateUnknown is of the lanes of a process that does not answer.
const stateUnknown = "unknown"

// lookAtLanes asks the processes: all of them for rows, else only those with lanes
// that are not active. One that does not answer is no failure of the status.
func (r *statusResult) lookAtLanes(ctx context.Context, f launch.Folder, rows bool) error {
	blind := r.Control.State != launch.ControlServing
	troubled := map[string]bool{}
	for _, s := range r.Shards {
		troubled[string(ctrl.ShardID(s.ID))] = notActive(s.Lanes)
	}
	for _, c := range r.Clients {
		troubled[string(c.ID)] = notActive(c.Lanes)
	}
	if !rows && !blind && !slices.ContainsFunc(values(troubled), func(b bool) bool { return b }) {
		return nil
	}
	peers, err := f.Admins(ctx)
	if err != nil {
		return err
	}
	if !rows && !blind {
		peers = slices.DeleteFunc(peers, func(p launch.AdminPeer) bool { return !troubled[p.ID] })
	}
	lists, err := askAll[[]lanes.LaneStatus](ctx, peers, http.MethodGet, "/v1/lanes", nil)
	if ctx.Err() != nil {
		return err
	}
	for i, p := range peers {
		if lists[i] == nil {
			r.Reasons = append(r.Reasons, laneReason{Process: p.ID, State: stateUnknown, Reason: "the process does not answer"})
			continue
		}
		r.tell(p, *lists[i], blind)
		r.Reasons = append(r.Reasons, reasonsOf(p.ID, *lists[i])...)
		if rows {
			for _, l := range *lists[i] {
				r.Lanes = append(r.Lanes, laneRow{p.ID, l})
			}
		}
	}
	return nil
}

func values[K comparable, V any](m map[K]V) (out []V) {
	for _, v := range m {
		out = append(out, v)
	}
	return out
}

func notActive(n ctrl.LaneCounts) bool { return n.Dirty+n.Rebuilding+n.Dead > 0 }

// tell puts in what the process knows better than the control plane: the counts of
// its lanes as they are now, and, when the control plane does not answer, that a
// client is there.
func (r *statusResult) tell(p launch.AdminPeer, list []lanes.LaneStatus, blind bool) {
	var n ctrl.LaneCounts
	for _, l := range list {
		switch l.State {
		case "active":
			n.Active++
		case "dirty":
			n.Dirty++
		case "rebuilding":
			n.Rebuilding++
		case "dead":
			n.Dead++
		}
	}
	for i := range r.Clients {
		if string(r.Clients[i].ID) == p.ID {
			r.Clients[i].Lanes = n
			return
		}
	}
	if p.Shard < 0 && blind {
		r.Clients = append(r.Clients, ctrl.ClientStatus{ID: ctrl.NodeID(p.ID), Host: p.Host, PID: p.PID, Lanes: n, Rails: []ctrl.RailInfo{},
			Reason: "the control plane does not answer; the process does"})
		return
	}
	for i := range r.Shards {
		if r.Shards[i].ID == p.Shard {
			r.Shards[i].Lanes = n
		}
	}
}

// reasonsOf sums the lanes up that are not active, in the order of the states.
func reasonsOf(process string, list []lanes.LaneStatus) (out []laneReason) {
	for _, state := range []string{"dirty", "rebuilding", "dead"} {
		r := laneReason{Process: process, State: state}
		for _, l := range list {
			if l.State != state {
				continue
			}
			if r.Lanes++; r.Lanes == 1 {
				r.Reason = l.Reason
			} else if l.Reason != r.Reason {
				r.Others++
			}
		}
		if r.Lanes > 0 {
			out = append(out, r)
		}
	}
	return out
}

func (a *app) printLanes(r *statusResult) {
	if len(r.Reasons) > 0 {
		t := newTable("PROCESS", "LANES", "STATE", "REASON")
		for _, x := range r.Reasons {
			n, why := "-", x.Reason
			if x.Lanes > 0 {
				n = fmt.Sprint(x.Lanes)
			}
			if x.Others > 0 {
				why += fmt.Sprintf(" (%d for other reasons)", x.Others)
			}
			t.row(x.Process, n, a.paintState(x.State), why)
		}
		a.printf("\n%s", t)
	}
	if len(r.Lanes) == 0 {
		return
	}
	t := newTable("PROCESS", "SHARD", "PEER", "RAIL", "LANE", "STATE", "EPOCH", "GEN", "ATTEMPTS", "REASON")
	t.rightAlign(2, 5, 7, 8, 9)
	for _, l := range r.Lanes {
		epoch, attempts := "-", "-" // a shard has neither
		if l.Epoch > 0 {
			epoch, attempts = fmt.Sprint(l.Epoch), fmt.Sprint(l.Attempts)
		}
		t.row(l.Process, l.Shard, l.Peer, l.Rail, l.Index, a.paintState(l.State), epoch, l.Generation, attempts, l.Reason)
	}
	a.printf("\n%s", t)
}
