package ctrl

import (
	"sync/atomic"
	"time"
)

// Counters are what a client has counted since Dial.
type Counters struct {
	Heartbeats       atomic.Uint64 // that were answered
	HeartbeatsFailed atomic.Uint64
	Rejoins          atomic.Uint64 // after the first Join
	lastBeat         atomic.Int64  // wall clock, nanoseconds

	// Questions after the health of one node, by their answers; there is none where
	// the control plane did not answer in time or does not know the node.
	VerdictsServing, VerdictsSuspect, VerdictsDead, VerdictsOther, VerdictsUnknown atomic.Uint64
}

// Counters are the client's.
func (c *Client) Counters() *Counters { return &c.count }

// LastHeartbeat is when the last heartbeat was answered, the zero time when none
// was.
func (c *Counters) LastHeartbeat() time.Time {
	if n := c.lastBeat.Load(); n != 0 {
		return time.Unix(0, n)
	}
	return time.Time{}
}

func (c *Counters) heartbeat(err error) {
	if err != nil {
		c.HeartbeatsFailed.Add(1)
		return
	}
	c.lastBeat.Store(time.Now().UnixNano())
	c.Heartbeats.Add(1)
}

func (c *Counters) verdict(h Health) {
	switch {
	case !h.Known:
		c.VerdictsUnknown.Add(1)
	case h.State == StateServing:
		c.VerdictsServing.Add(1)
	case h.State == StateSuspect:
		c.VerdictsSuspect.Add(1)
	case h.Dead():
		c.VerdictsDead.Add(1)
	default:
		c.VerdictsOther.Add(1)
	}
}
