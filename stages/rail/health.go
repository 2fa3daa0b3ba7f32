package rail

import (
	"sync"

	"github.com/railstore/railstore/verbs"
)

// State of a rail of this process.
type State string

const (
	Active State = "active"
	Down   State = "down"
)

// health is what asynchronous events said of a rail, and its address.
type health struct {
	mu     sync.Mutex
	state  State
	reason string

	address Address
}

func (h *health) set(s State, reason string) (changed bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	changed = h.state != s
	h.state, h.reason = s, reason
	return changed
}

// Health is the rail's state and, when it is not active, why.
func (r *Rail) Health() (State, string) {
	r.health.mu.Lock()
	defer r.health.mu.Unlock()
	return r.health.state, r.health.reason
}

// note takes one asynchronous event; it reports whether the state changed.
func (r *Rail) note(e verbs.AsyncEvent) bool {
	switch e.Type {
	case verbs.EventPortError, verbs.EventDeviceFatal:
		why := e.Type.String()
		if e.Err != nil {
			why += ": " + e.Err.Error()
		}
		return r.health.set(Down, why)
	case verbs.EventPortActive:
		return r.health.set(Active, "")
	}
	return false
}
