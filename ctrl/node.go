package ctrl

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/railstore/railstore/verbs"
)

// NodeID names a node: "shard/0", "client/<anything>".
type NodeID string

// ShardID is the node id of a shard.
func ShardID(n int) NodeID { return NodeID("shard/" + strconv.Itoa(n)) }

// ClientID is the node id of a client.
func ClientID(name string) NodeID { return NodeID("client/" + name) }

// Shard is the number in a shard's id; ok is false for every other id.
func (id NodeID) Shard() (n int, ok bool) {
	s, found := strings.CutPrefix(string(id), "shard/")
	if !found {
		return 0, false
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < 0 || strconv.Itoa(n) != s {
		return 0, false
	}
	return n, true
}

// Role is what a node does.
type Role uint8

const (
	RoleShard Role = iota + 1
	RoleClient
)

func (r Role) String() string {
	switch r {
	case RoleShard:
		return "shard"
	case RoleClient:
		return "client"
	}
	return fmt.Sprintf("role %d", uint8(r))
}

// State is where a node is in its life.
type State uint8

const (
	// StateUnknown is a node that the control plane has not heard from: it
	// never joined, or not since the control plane restarted. It is no verdict.
	StateUnknown State = iota
	StateStarting
	StateServing
	StateSuspect
	StateDead
	StateDraining
	StateStopped
)

var stateNames = [...]string{"unknown", "starting", "serving", "suspect", "dead", "draining", "stopped"}

func (s State) String() string {
	if int(s) < len(stateNames) {
		return stateNames[s]
	}
	return fmt.Sprintf("state %d", uint8(s))
}

// MarshalText writes the form of String.
func (s State) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads the form of String.
func (s *State) UnmarshalText(b []byte) error {
	for i, n := range stateNames {
		if n == string(b) {
			*s = State(i)
			return nil
		}
	}
	return fmt.Errorf("state %q: want one of %q", b, stateNames)
}

// Ended reports a state from which the incarnation does not return.
func (s State) Ended() bool { return s == StateDead || s == StateStopped }

// NodeInfo is what a node says of itself when it joins.
type NodeInfo struct {
	ID      NodeID
	Role    Role
	Host    string
	PID     int
	Rails   []RailInfo
	Started time.Time
	// Lease of a client: 0 takes the control plane's default. A shard's lease
	// is Timing.Dead.
	Lease time.Duration
}

// RailInfo is the state of one rail of a node.
type RailInfo struct {
	Name     string    `json:"name"`
	Fabric   string    `json:"fabric"`
	Device   string    `json:"device"`
	Provider string    `json:"provider"`
	GID      verbs.GID `json:"gid"`
	GIDType  string    `json:"gid_type"`
	MTU      int       `json:"mtu"`
	Weight   int       `json:"weight"`
	State    string    `json:"state"`
	Reason   string    `json:"reason"`
	UDPPort  uint16    `json:"udp_port,omitempty"`
}

// LaneCounts are the lanes of a node by state.
type LaneCounts struct {
	Active     int `json:"active"`
	Dirty      int `json:"dirty"`
	Rebuilding int `json:"rebuilding"`
	Dead       int `json:"dead"`
}

// Report is what a node says of itself with each heartbeat. A nil Rails keeps
// what was said before.
type Report struct {
	Lanes LaneCounts
	Rails []RailInfo
}

// NodeStatus is what the control plane knows of a node.
type NodeStatus struct {
	Info        NodeInfo
	Incarnation uint64
	State       State
	Reason      string
	Lanes       LaneCounts
	Joined      time.Time     // on the control plane's clock
	Idle        time.Duration // since the last heartbeat
}

// Health is the verdict on a node. Known is false when there is none: the control
// plane cannot be reached, or it has not heard of the node. That is not a sign of
// a fault at the node.
type Health struct {
	ID     NodeID
	Known  bool
	State  State
	Idle   time.Duration // since the last heartbeat
	Reason string
}

// Dead reports that the node is known to be gone.
func (h Health) Dead() bool { return h.Known && h.State.Ended() }

func (h Health) String() string {
	s := fmt.Sprintf("%s: %s", h.ID, h.State)
	if h.Known {
		s += fmt.Sprintf(" (last heartbeat %v ago)", h.Idle.Round(time.Millisecond))
	}
	if h.Reason != "" {
		s += ": " + h.Reason
	}
	return s
}
