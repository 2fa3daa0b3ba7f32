package ctrl

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"
)

// Timing is failure detection. Zero fields take the default beside them.
type Timing struct {
	Heartbeat   time.Duration // 1 s, how often a shard reports
	Stale       time.Duration // 3 s, a shard without heartbeat is suspect
	Dead        time.Duration // 9 s, and then dead
	ClientLease time.Duration // 10 s, of a client that asks for none
}

func (t Timing) withDefaults() Timing {
	return Timing{cmp.Or(t.Heartbeat, time.Second), cmp.Or(t.Stale, 3*time.Second), cmp.Or(t.Dead, 9*time.Second),
		cmp.Or(t.ClientLease, 10*time.Second)}
}

func (t Timing) validate() error {
	if t.Heartbeat <= 0 || t.Stale <= t.Heartbeat || t.Dead <= t.Stale {
		return invalidf("health", "heartbeat %v, stale %v and dead %v must be positive and grow", t.Heartbeat, t.Stale, t.Dead)
	}
	if t.ClientLease < MinLease || t.ClientLease > MaxLease {
		return invalidf("health.clientLease", "%v is outside %v to %v", t.ClientLease, MinLease, MaxLease)
	}
	return nil
}

// Notice is an event to deliver to one node. Rev grows with every change of a
// registry.
type Notice struct {
	To  NodeID
	Inc uint64 // the incarnation it is for
	Rev uint64
	Event
}

// Registry knows the nodes of one deployment: leases, states, offers, barriers.
// It is a pure value: the caller serialises the calls, gives the time with each
// and delivers the notices that a change returns, in their order.
//
// Invariant: an offer exists only while both its ends are members, that is
// neither dead nor stopped; the two ends are then in each other's peers.
type Registry struct {
	timing   Timing
	shards   []int // ids of the deployment, sorted
	instance uint64
	rev      uint64
	started  time.Time
	checked  time.Time // of the last Expire
	nodes    map[NodeID]*node
	offers   map[NodeID]map[NodeID]*Offer // by receiver, then publisher
	barriers map[string]*barrier
	buried   map[Peer]struct{} // expected nodes that did not come; they may not return as who they were
	stopping string            // reason of a stop of everything; "" is none
}

// node is one incarnation of a node.
type node struct {
	info     NodeInfo
	inc      uint64
	expected bool // named by a peer after a restart of the control plane, not heard of yet
	state    State
	reason   string
	lanes    LaneCounts
	joined   time.Time
	seen     time.Time // last heartbeat
	resume   State     // state before suspect
	stop     string    // reason of the stop directive; "" is none
	peers    map[NodeID]struct{}
}

func (n *node) member() bool { return !n.state.Ended() }

// lease gives after how long a silence the node is suspect, and then gone.
func (r *Registry) lease(n *node) (suspect, gone time.Duration) {
	switch {
	case n.expected:
		return r.timing.Dead, r.timing.Dead
	case n.info.Role == RoleShard:
		return r.timing.Stale, r.timing.Dead
	}
	return n.info.Lease / 2, n.info.Lease
}

// NewRegistry makes an empty registry. instance must differ from that of every
// earlier registry of the deployment; shards are the ids that may join.
func NewRegistry(now time.Time, instance uint64, shards []int, t Timing) (*Registry, error) {
	t = t.withDefaults()
	if err := t.validate(); err != nil {
		return nil, err
	}
	if len(shards) == 0 {
		return nil, invalidf("shards", "a deployment has at least one")
	}
	ids := slices.Clone(shards)
	slices.Sort(ids)
	return &Registry{timing: t, shards: slices.Compact(ids), instance: instance, started: now, checked: now,
		nodes: map[NodeID]*node{}, offers: map[NodeID]map[NodeID]*Offer{}, barriers: map[string]*barrier{}, buried: map[Peer]struct{}{}}, nil
}

// Timing is what the registry was made with, defaults filled in.
func (r *Registry) Timing() Timing { return r.timing }

// Instance tells this registry from an earlier one of the same deployment.
func (r *Registry) Instance() uint64 { return r.instance }

// Rev is the number of the last change.
func (r *Registry) Rev() uint64 { return r.rev }

// Peer names one incarnation of a node.
type Peer struct {
	ID          NodeID
	Incarnation uint64
}

// JoinRequest is what a node joins with. Rejoin is set by a process that was a
// member before and lost its control plane: it never replaces a live namesake,
// and names the peers that it has.
type JoinRequest struct {
	Info        NodeInfo
	Incarnation uint64
	State       State // on a rejoin, the state it was in
	Reason      string
	Rejoin      bool
	Peers       []Peer
}

// Join makes a node a member. A member of the same id and another incarnation is
// replaced, its peers are told first. Joining again with the same incarnation
// renews.
func (r *Registry) Join(now time.Time, req JoinRequest) ([]Notice, error) {
	if err := req.validate(); err != nil {
		return nil, err
	}
	id := req.Info.ID
	if n, ok := id.Shard(); ok && !slices.Contains(r.shards, n) {
		return nil, invalidf("node id", "the deployment has no %s, its shards are %v", id, r.shards)
	}
	if r.stopping != "" {
		return nil, fmt.Errorf("%w: %s", ErrStopping, r.stopping)
	}
	if _, ok := r.buried[Peer{id, req.Incarnation}]; ok {
		return nil, ErrLeaseLost
	}
	old := r.nodes[id]
	if old != nil && old.inc == req.Incarnation && !old.expected {
		if !old.member() {
			return nil, ErrLeaseLost
		}
		old.seen = now
		return r.recover(old), nil
	}
	if old != nil && req.Rejoin && !old.expected && old.member() {
		return nil, &ReplacedError{ID: id}
	}
	if old == nil && len(r.nodes) >= MaxNodes {
		return nil, fmt.Errorf("%w: %d nodes", ErrLimit, MaxNodes)
	}
	r.rev++
	var out []Notice
	if old != nil && old.inc != req.Incarnation {
		// A directive was for the process that is gone, not for the next.
		out = r.end(old, StateStopped, fmt.Sprintf("another process joined as %s", id))
		delete(r.nodes, id)
		old = nil
	}
	n := old
	if n == nil {
		n = &node{inc: req.Incarnation, peers: map[NodeID]struct{}{}}
		r.nodes[id] = n
	}
	n.info, n.expected, n.joined, n.seen = req.Info, false, now, now
	n.info.Rails = slices.Clone(req.Info.Rails)
	if n.info.Role == RoleClient && n.info.Lease == 0 {
		n.info.Lease = r.timing.ClientLease
	}
	n.state, n.reason = StateStarting, "joined"
	if req.Rejoin && req.State != StateUnknown {
		n.state, n.reason = req.State, req.Reason
	}
	for _, p := range req.Peers {
		out = append(out, r.claim(now, n, p)...)
	}
	return append(out, r.tellState(n)...), nil
}

func (q JoinRequest) validate() error {
	if err := q.Info.validate(); err != nil {
		return err
	}
	if q.Incarnation == 0 {
		return invalidf("incarnation", "0")
	}
	if !q.Rejoin && len(q.Peers) > 0 {
		return invalidf("peers", "only a node that joins again has any")
	}
	if len(q.Peers) > MaxNodes {
		return invalidf("peers", "%d, at most %d are possible", len(q.Peers), MaxNodes)
	}
	for _, p := range q.Peers {
		if err := p.ID.Validate(); err != nil {
			return err
		}
		if p.ID == q.Info.ID || p.Incarnation == 0 {
			return invalidf("peers", "%s with incarnation %d", p.ID, p.Incarnation)
		}
	}
	switch q.State {
	case StateUnknown, StateStarting, StateServing, StateDraining:
	default:
		return invalidf("state", "a node does not join as %s", q.State)
	}
	return checkText("reason", q.Reason, 0, MaxReasonBytes)
}

// claim takes a rejoining node's word that it has p as a peer. Whoever is not
// there is expected for a while; another incarnation means that p is gone.
func (r *Registry) claim(now time.Time, n *node, p Peer) []Notice {
	other := r.nodes[p.ID]
	if other == nil {
		if s, ok := p.ID.Shard(); ok && !slices.Contains(r.shards, s) || len(r.nodes) >= MaxNodes {
			return r.notice(n, PeerGone{ID: p.ID, Incarnation: p.Incarnation, State: StateDead, Reason: "it did not join again"})
		}
		role := RoleClient
		if _, ok := p.ID.Shard(); ok {
			role = RoleShard
		}
		other = &node{info: NodeInfo{ID: p.ID, Role: role}, inc: p.Incarnation, expected: true, joined: now, seen: now,
			reason: "not heard of since the control plane restarted", peers: map[NodeID]struct{}{}}
		r.nodes[p.ID] = other
	}
	if other.inc != p.Incarnation || !other.member() {
		return r.notice(n, PeerGone{ID: p.ID, Incarnation: p.Incarnation, State: StateStopped, Reason: "it was replaced while the control plane was away"})
	}
	n.peers[p.ID] = struct{}{}
	other.peers[n.info.ID] = struct{}{}
	return nil
}

// get finds the node and checks that the caller is its present incarnation.
func (r *Registry) get(id NodeID, inc uint64) (*node, error) {
	n := r.nodes[id]
	switch {
	case n == nil || n.expected:
		return nil, ErrLeaseLost
	case n.inc != inc && n.member():
		return nil, &ReplacedError{ID: id}
	case n.inc != inc || !n.member():
		return nil, ErrLeaseLost
	}
	return n, nil
}

// Heartbeat renews the lease and takes the node's report.
func (r *Registry) Heartbeat(now time.Time, id NodeID, inc uint64, rep Report) ([]Notice, error) {
	if err := rep.validate(); err != nil {
		return nil, err
	}
	n, err := r.get(id, inc)
	if err != nil {
		return nil, err
	}
	n.seen, n.lanes = now, rep.Lanes
	if rep.Rails != nil {
		n.info.Rails = slices.Clone(rep.Rails)
	}
	return r.recover(n), nil
}

// recover ends a suspicion.
func (r *Registry) recover(n *node) []Notice {
	if n.state != StateSuspect {
		return nil
	}
	r.rev++
	n.state, n.reason = n.resume, "heartbeats are back"
	return r.tellState(n)
}

// SetState is a node's own word on its state: starting, serving or draining.
func (r *Registry) SetState(now time.Time, id NodeID, inc uint64, s State, reason string) ([]Notice, error) {
	if s != StateStarting && s != StateServing && s != StateDraining {
		return nil, invalidf("state", "a node does not say of itself that it is %s", s)
	}
	if err := checkText("reason", reason, 0, MaxReasonBytes); err != nil {
		return nil, err
	}
	n, err := r.get(id, inc)
	if err != nil {
		return nil, err
	}
	n.seen = now
	if n.state == s && n.reason == reason {
		return nil, nil
	}
	r.rev++
	n.state, n.reason = s, reason
	return r.tellState(n), nil
}

// Leave ends a membership.
func (r *Registry) Leave(_ time.Time, id NodeID, inc uint64, reason string) ([]Notice, error) {
	if err := checkText("reason", reason, 0, MaxReasonBytes); err != nil {
		return nil, err
	}
	n, err := r.get(id, inc)
	if err != nil {
		return nil, err
	}
	r.rev++
	return r.end(n, StateStopped, cmp.Or(reason, "left")), nil
}

// Publish makes an offer known to its receiver and links the two. Publishing the
// same again changes nothing.
func (r *Registry) Publish(_ time.Time, inc uint64, o Offer) (Offer, []Notice, error) {
	if err := o.validate(); err != nil {
		return Offer{}, nil, err
	}
	n, err := r.get(o.From, inc)
	if err != nil {
		return Offer{}, nil, err
	}
	to := r.nodes[o.To]
	if to == nil {
		return Offer{}, nil, &AbsentError{ID: o.To, Reason: "it has not joined"}
	}
	if !to.member() {
		return Offer{}, nil, &AbsentError{ID: o.To, State: to.state, Reason: to.reason}
	}
	if o.ToIncarnation != 0 && o.ToIncarnation != to.inc {
		return Offer{}, nil, &AbsentError{ID: o.To, State: StateStopped, Reason: "another process has taken its place"}
	}
	o.FromIncarnation, o.ToIncarnation = n.inc, to.inc
	o.Lanes, o.Params = slices.Clone(o.Lanes), maps.Clone(o.Params)
	if have := r.offers[o.To][o.From]; have != nil {
		if have.Generation == o.Generation && slices.Equal(have.Lanes, o.Lanes) && maps.Equal(have.Params, o.Params) {
			return *have, nil, nil
		}
		if have.Generation >= o.Generation {
			return Offer{}, nil, &StaleOfferError{From: o.From, To: o.To, Generation: o.Generation, Have: have.Generation}
		}
	}
	r.rev++
	if r.offers[o.To] == nil {
		r.offers[o.To] = map[NodeID]*Offer{}
	}
	r.offers[o.To][o.From] = &o
	n.peers[o.To] = struct{}{}
	to.peers[o.From] = struct{}{}
	return o, r.notice(to, OfferReceived{Offer: o}), nil
}

// Fetch gives the offer that from published for to.
func (r *Registry) Fetch(from, to NodeID) (Offer, bool) {
	if o := r.offers[to][from]; o != nil {
		return *o, true
	}
	return Offer{}, false
}

// Stop gives the stop directive to the nodes, to all when there are none. After a
// stop of all nobody joins any more.
func (r *Registry) Stop(_ time.Time, ids []NodeID, reason string) ([]Notice, error) {
	if err := checkText("reason", reason, 1, MaxReasonBytes); err != nil {
		return nil, err
	}
	for _, id := range ids {
		if n := r.nodes[id]; n == nil || !n.member() {
			return nil, &AbsentError{ID: id, State: r.stateOf(id)}
		}
	}
	r.rev++
	if len(ids) == 0 {
		r.stopping = reason
		ids = r.sortedIDs()
	}
	var out []Notice
	for _, id := range ids {
		if n := r.nodes[id]; n.member() && n.stop == "" {
			n.stop = reason
			out = append(out, r.notice(n, Stop{Reason: reason})...)
		}
	}
	return out, nil
}

// end takes a node out: peers are told, offers from and to it go, barriers that
// it waits at break. The record of a shard stays, for the status.
func (r *Registry) end(n *node, s State, reason string) []Notice {
	id := n.info.ID
	n.state, n.reason, n.stop, n.lanes = s, reason, "", LaneCounts{}
	delete(r.offers, id)
	var out []Notice
	for _, p := range slices.Sorted(maps.Keys(n.peers)) {
		if from := r.offers[p]; from != nil {
			delete(from, id)
			if len(from) == 0 {
				delete(r.offers, p)
			}
		}
		if peer := r.nodes[p]; peer != nil {
			delete(peer.peers, id)
			if peer.member() {
				out = append(out, r.notice(peer, PeerGone{ID: id, Incarnation: n.inc, State: s, Reason: reason})...)
			}
		}
	}
	n.peers = nil
	r.breakBarriers(id, reason)
	if n.expected && len(r.buried) < MaxNodes {
		r.buried[Peer{id, n.inc}] = struct{}{}
	}
	if n.info.Role != RoleShard || n.expected {
		delete(r.nodes, id)
	}
	return out
}

// Expire takes note of the time: silent nodes become suspect and then dead.
func (r *Registry) Expire(now time.Time) []Notice {
	r.forgive(now)
	r.expireBarriers(now)
	var out []Notice
	for _, id := range r.sortedIDs() {
		n := r.nodes[id]
		if !n.member() {
			continue
		}
		suspect, gone := r.lease(n)
		switch idle := now.Sub(n.seen); {
		case idle >= gone:
			r.rev++
			reason := fmt.Sprintf("no heartbeat for %v", idle.Round(time.Millisecond))
			if n.expected {
				reason = "it did not join again after the control plane restarted"
			}
			out = append(out, r.end(n, StateDead, reason)...)
		case idle >= suspect && n.state != StateSuspect && !n.expected:
			r.rev++
			n.resume, n.state = n.state, StateSuspect
			n.reason = fmt.Sprintf("no heartbeat for %v", idle.Round(time.Millisecond))
			out = append(out, r.tellState(n)...)
		}
	}
	return out
}

// forgive gives every node the time during which the control plane itself did
// not run (stopped, suspended, starved): heartbeats of that time wait in the
// sockets, and nobody is dead because we were not listening.
func (r *Registry) forgive(now time.Time) {
	gap := now.Sub(r.checked)
	r.checked = now
	if gap < r.timing.Stale {
		return
	}
	for _, n := range r.nodes {
		n.seen = n.seen.Add(gap)
		if n.seen.After(now) {
			n.seen = now
		}
	}
}

func (r *Registry) sortedIDs() []NodeID { return slices.Sorted(maps.Keys(r.nodes)) }

// tellState tells the peers the state of n.
func (r *Registry) tellState(n *node) []Notice {
	var out []Notice
	for _, p := range slices.Sorted(maps.Keys(n.peers)) {
		out = append(out, r.notice(r.nodes[p], n.stateEvent())...)
	}
	return out
}

func (n *node) stateEvent() Event {
	if n.state == StateDraining {
		return Draining{ID: n.info.ID, Incarnation: n.inc, Reason: n.reason}
	}
	return PeerState{ID: n.info.ID, Incarnation: n.inc, State: n.state, Reason: n.reason}
}

func (r *Registry) notice(n *node, e Event) []Notice {
	if n.expected {
		return nil // it gets a snapshot when it comes
	}
	return []Notice{{To: n.info.ID, Inc: n.inc, Rev: r.rev, Event: e}}
}
