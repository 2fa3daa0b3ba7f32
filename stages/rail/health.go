package rail

import (
	"fmt"
	"sync"

	"github.com/railstore/railstore/pipeline"
	"github.com/railstore/railstore/verbs"
	"github.com/railstore/railstore/verbs/fabric"
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
	lost   bool // for good: no event makes it active again
	downs  uint64

	address Address
}

func (h *health) set(s State, reason string) (changed bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.lost {
		return false
	}
	changed = h.state != s
	if changed && s == Down {
		h.downs++
	}
	h.state, h.reason = s, reason
	return changed
}

// lose is set(Down) for good.
func (h *health) lose(reason string) (changed bool) {
	changed = h.set(Down, reason)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.lost = true
	return changed
}

func (h *health) move(a Address) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.address = a
}

// Health is the rail's state and, when it is not active, why.
func (r *Rail) Health() (State, string) {
	r.health.mu.Lock()
	defer r.health.mu.Unlock()
	return r.health.state, r.health.reason
}

// Outages is how often the rail has gone down.
func (r *Rail) Outages() uint64 {
	r.health.mu.Lock()
	defer r.health.mu.Unlock()
	return r.health.downs
}

// note takes one asynchronous event and gives what is to be said of it, the change
// of the rail's state last.
func (r *Rail) note(e verbs.AsyncEvent) []pipeline.Event {
	why := e.Type.String()
	if e.Err != nil {
		why += ": " + e.Err.Error()
	}
	changed := false
	var out []pipeline.Event
	say := func(event, reason string, fields map[string]any) {
		out = append(out, pipeline.Event{Event: event, Rail: r.Name(), Reason: reason, Fields: fields})
	}
	switch {
	case e.Type.OfPort() && e.Port != 0 && int(e.Port) != r.Spec.Port:
		return nil // of the device's other port
	case e.Type == verbs.EventCommEstablished:
		return nil // every connection has it
	case e.Type.OfQP():
		say("qp_event", why, map[string]any{"qpn": e.QPN})
	case e.Type == verbs.EventDeviceFatal:
		changed = r.health.lose(why)
	case e.Type == verbs.EventCQError:
		// Every QP of the rail completes into its one CQ, which does not recover.
		say("cq_event", why, nil)
		changed = r.health.lose(why)
	case e.Type == verbs.EventPortError:
		changed = r.health.set(Down, why)
	default:
		moved, err := r.look()
		for _, m := range moved {
			say(m.event, why+": "+m.text, m.fields)
		}
		if err != nil {
			changed = r.health.set(Down, fmt.Sprintf("%s: the rail was %s: %v", why, gidText(r.Address().GID), err))
		} else {
			changed = r.health.set(Active, "")
		}
		if len(moved) == 0 && !changed {
			say("rail_event", why, nil)
		}
	}
	if changed {
		st, why := r.Health()
		say("rail_"+string(st), why, nil)
	}
	return out
}

// recheck looks at the port of a rail that is down, and gives what is to be said if it is
// well: nobody may have told of it.
func (r *Rail) recheck() (out []pipeline.Event) {
	r.health.mu.Lock()
	down := r.health.state == Down && !r.health.lost
	r.health.mu.Unlock()
	if !down {
		return nil
	}
	moved, err := r.look()
	if err != nil || !r.health.set(Active, "") {
		return nil
	}
	const why = "no event told that the port is well again"
	for _, m := range moved {
		out = append(out, pipeline.Event{Event: m.event, Rail: r.Name(), Reason: why + ": " + m.text, Fields: m.fields})
	}
	return append(out, pipeline.Event{Event: "rail_active", Rail: r.Name(), Reason: why})
}

// look reads the port and its tables again, and chooses again where what was chosen
// is gone. On an error the rail keeps the address that it had.
func (r *Rail) look() ([]move, error) {
	was := r.Address()
	r.at.look(r.Spec, r.Provider(), thisHost)
	now, err := r.choose(&was)
	if err != nil {
		return nil, err
	}
	r.health.move(now)
	return moves(was, now), nil
}

// move is one thing that has changed in a rail's address.
type move struct {
	event, text string
	fields      map[string]any
}

func moves(was, now Address) (out []move) {
	add := func(event, text string, old, new any) {
		out = append(out, move{event, text, map[string]any{"old": old, "new": new}})
	}
	a, b := was.GID.Entry, now.GID.Entry
	switch {
	case a == b:
	case a.GID == b.GID && a.Type == b.Type:
		add("rail_gid_changed", fmt.Sprintf("%v moved from index %d (%s) to index %d (%s)", a.GID.Addr(), a.Index, a.NetDev, b.Index, b.NetDev), a.Index, b.Index)
	default:
		add("rail_gid_changed", fmt.Sprintf("%s is gone, %s is taken", gidText(was.GID), gidText(now.GID)), a.GID.String(), b.GID.String())
	}
	for _, x := range []struct {
		event, text string
		old, new    int
	}{
		{"rail_lid_changed", "LID", int(was.Port.LID), int(now.Port.LID)},
		{"rail_pkey_changed", "index of the partition's key", int(was.PKeyIndex), int(now.PKeyIndex)},
		{"rail_mtu_changed", "active MTU", was.ActiveMTU, now.ActiveMTU},
	} {
		if x.old != x.new {
			add(x.event, fmt.Sprintf("%s was %d, is %d", x.text, x.old, x.new), x.old, x.new)
		}
	}
	return out
}

func gidText(c fabric.Choice) string {
	return fmt.Sprintf("%v (%v, index %d)", c.Entry.GID.Addr(), c.Entry.Type, c.Entry.Index)
}
