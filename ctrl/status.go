package ctrl

import (
	"cmp"
	"slices"
	"time"
)

// Status is the state of a deployment as rs status prints it.
type Status struct {
	Deployment string         `json:"deployment"`
	Digest     string         `json:"digest"`
	Control    ControlStatus  `json:"control"`
	Shards     []ShardStatus  `json:"shards"`
	Clients    []ClientStatus `json:"clients"`
}

// ControlStatus is the state of the control plane.
type ControlStatus struct {
	Address string  `json:"address"`
	State   string  `json:"state"` // serving, stopping, or unreachable in what others make of it
	UptimeS float64 `json:"uptime_s"`
	Reason  string  `json:"reason,omitempty"`
}

// ShardStatus is one shard of the deployment, joined or not.
type ShardStatus struct {
	ID      int        `json:"id"`
	Host    string     `json:"host"`
	PID     int        `json:"pid"`
	State   State      `json:"state"`
	UptimeS float64    `json:"uptime_s"`
	Reason  string     `json:"reason"`
	IdleS   float64    `json:"last_heartbeat_s"`
	Lanes   LaneCounts `json:"lanes"`
	Rails   []RailInfo `json:"rails"`
}

// ClientStatus is one client.
type ClientStatus struct {
	ID      NodeID     `json:"id"`
	Host    string     `json:"host"`
	PID     int        `json:"pid"`
	State   State      `json:"state"`
	UptimeS float64    `json:"uptime_s"`
	Reason  string     `json:"reason"`
	Lanes   LaneCounts `json:"lanes"`
	Rails   []RailInfo `json:"rails"`
}

// Node gives what is known of one node; ok is false when nothing is.
func (r *Registry) Node(now time.Time, id NodeID) (s NodeStatus, ok bool) {
	n := r.nodes[id]
	if n == nil {
		return NodeStatus{Info: NodeInfo{ID: id}}, false
	}
	s = NodeStatus{Info: n.info, Incarnation: n.inc, State: n.state, Reason: n.reason, Lanes: n.lanes,
		Joined: n.joined, Idle: max(now.Sub(n.seen), 0)}
	s.Info.Rails = slices.Clone(n.info.Rails)
	return s, true
}

// Nodes gives every node, sorted by id.
func (r *Registry) Nodes(now time.Time) []NodeStatus {
	out := make([]NodeStatus, 0, len(r.nodes))
	for _, id := range r.sortedIDs() {
		s, _ := r.Node(now, id)
		out = append(out, s)
	}
	return out
}

// Health is the verdict on one node.
func (r *Registry) Health(now time.Time, id NodeID) Health {
	s, ok := r.Node(now, id)
	if !ok || s.State == StateUnknown {
		return Health{ID: id, Reason: cmp.Or(s.Reason, "it has not joined")}
	}
	return Health{ID: id, Known: true, State: s.State, Idle: s.Idle, Reason: s.Reason}
}

func (r *Registry) stateOf(id NodeID) State {
	if n := r.nodes[id]; n != nil {
		return n.state
	}
	return StateUnknown
}

// NotReady gives those of ids, of all shards when there are none, that are not
// serving.
func (r *Registry) NotReady(ids []NodeID) []Missing {
	return r.missing(ids, func(n *node) bool { return n != nil && n.state == StateServing })
}

// StillThere gives those of ids, of all shards when there are none, that have not
// left or died. A node that is expected back counts as there.
func (r *Registry) StillThere(ids []NodeID) []Missing {
	return r.missing(ids, func(n *node) bool { return n == nil || !n.member() })
}

func (r *Registry) missing(ids []NodeID, ok func(*node) bool) []Missing {
	if len(ids) == 0 {
		for _, s := range r.shards {
			ids = append(ids, ShardID(s))
		}
	}
	var out []Missing
	for _, id := range ids {
		n := r.nodes[id]
		if ok(n) {
			continue
		}
		m := Missing{ID: id}
		if n != nil {
			m.State, m.Reason = n.state, n.reason
		}
		out = append(out, m)
	}
	return out
}

// Status is the state of everything, of every shard of the deployment and of the
// clients that are there.
func (r *Registry) Status(now time.Time) Status {
	return statusOf(now, r.shards, r.Nodes(now), now.Sub(r.started), r.stopping)
}

func statusOf(now time.Time, shards []int, nodes []NodeStatus, up time.Duration, stopping string) Status {
	s := Status{Control: ControlStatus{State: "serving", UptimeS: seconds(up)}, Shards: []ShardStatus{}, Clients: []ClientStatus{}}
	if stopping != "" {
		s.Control.State, s.Control.Reason = "stopping", stopping
	}
	byID := make(map[NodeID]NodeStatus, len(nodes))
	for _, n := range nodes {
		byID[n.Info.ID] = n
		if n.Info.Role == RoleClient {
			s.Clients = append(s.Clients, ClientStatus{ID: n.Info.ID, Host: n.Info.Host, PID: n.Info.PID, State: n.State,
				Reason: n.Reason, Lanes: n.Lanes, Rails: notNil(n.Info.Rails), UptimeS: uptime(now, n)})
		}
	}
	for _, id := range shards {
		n, ok := byID[ShardID(id)]
		if !ok {
			n.Reason = "it has not joined"
		}
		s.Shards = append(s.Shards, ShardStatus{ID: id, Host: n.Info.Host, PID: n.Info.PID, State: n.State, Reason: n.Reason,
			Lanes: n.Lanes, Rails: notNil(n.Info.Rails), UptimeS: uptime(now, n), IdleS: seconds(n.Idle)})
	}
	return s
}

// notNil keeps null out of JSON lists.
func notNil(rails []RailInfo) []RailInfo {
	if rails == nil {
		return []RailInfo{}
	}
	return rails
}

// uptime is that of the process, not of the membership, which is shorter after a
// restart of the control plane. 0 for a process that is not there.
func uptime(now time.Time, n NodeStatus) float64 {
	if n.State.Ended() || n.State == StateUnknown {
		return 0
	}
	from := n.Info.Started
	if from.IsZero() || from.After(n.Joined) {
		from = n.Joined
	}
	return seconds(now.Sub(from))
}

func seconds(d time.Duration) float64 { return max(d, 0).Round(time.Millisecond).Seconds() }

// Snapshot is all that one node must know at a moment: what a watcher gets first
// and when its queue has overflowed.
type Snapshot struct {
	Rev    uint64
	Peers  []PeerView
	Offers []*Offer // immutable
	Stop   string
}

// PeerView is a peer as a node sees it.
type PeerView struct {
	ID          NodeID
	Incarnation uint64
	State       State
	Reason      string
}

// Snapshot gives it for a member.
func (r *Registry) Snapshot(id NodeID, inc uint64) (Snapshot, error) {
	n, err := r.get(id, inc)
	if err != nil {
		return Snapshot{}, err
	}
	s := Snapshot{Rev: r.rev, Stop: n.stop}
	for p := range n.peers {
		o := r.nodes[p]
		s.Peers = append(s.Peers, PeerView{ID: p, Incarnation: o.inc, State: o.state, Reason: o.reason})
	}
	slices.SortFunc(s.Peers, func(a, b PeerView) int { return cmp.Compare(a.ID, b.ID) })
	for _, o := range r.offers[id] {
		s.Offers = append(s.Offers, o)
	}
	slices.SortFunc(s.Offers, func(a, b *Offer) int { return cmp.Compare(a.From, b.From) })
	return s, nil
}
