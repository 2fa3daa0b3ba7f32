package object

import (
	"fmt"
	"time"

	"github.com/railstore/railstore/cue/deploy"
)

// Limits bound what a worker does at once.
type Limits struct {
	IOTimeout          time.Duration // of one stripe, waiting for byte budget included
	Cooldown           time.Duration // for which a failed rail is not planned with
	MaxConnsPerRail    int           // tasks at once on a rail
	MaxConns           int           // tasks at once
	MaxInflightPerRail int64         // bytes asked for and not yet there
	MaxInflight        int64
	TaskMaxStripes     int           // stripes of one task; 0 does not split
	TaskDepth          int           // stripes in flight of one task
	OnRailFailure      string        // FailRead | Failover
	MinRails           int           // healthy rails without which nothing is begun
	Adaptive           bool          // the rails' shares follow what they carried lately
	Deadline           time.Duration // of a read; 0: none but the caller's
	Hedge              bool          // near a deadline late stripes are asked for over another rail, too
	Quarantine         time.Duration // for which a rail that delivered wrong bytes is left alone
	Recheck            bool          // look the object up again after reading it
	VerifyWhole        bool          // the hash of the whole, too; else the stripes' checksums, which the layout hash covers, stand for it
	StaleRetries       int           // times a read starts over because the object changed
}

// What a read does when a rail fails under it.
const (
	FailRead = "fail"     // the read fails, nothing is handed over
	Failover = "failover" // the others take over what is missing, if that fits the deadline
)

// DefaultLimits are the limits of a deployment that says nothing.
func DefaultLimits() Limits {
	return Limits{
		IOTimeout: 30 * time.Second, Cooldown: 10 * time.Second,
		MaxConnsPerRail: 8, MaxConns: 32,
		MaxInflightPerRail: 64 << 20, MaxInflight: 256 << 20,
		TaskDepth: 2, OnRailFailure: Failover, MinRails: 1, Hedge: true, Quarantine: time.Minute, Recheck: true, StaleRetries: 1,
	}
}

// LimitsOf are the limits of a deployment's reader.
func LimitsOf(r deploy.Reader) Limits {
	l := DefaultLimits()
	set := func(dst *int, v int) {
		if v > 0 {
			*dst = v
		}
	}
	set64 := func(dst *int64, v int64) {
		if v > 0 {
			*dst = v
		}
	}
	if r.IOTimeout > 0 {
		l.IOTimeout = r.IOTimeout.D()
	}
	l.Cooldown = r.Cooldown.D()
	set(&l.MaxConnsPerRail, r.MaxConnectionsPerRail)
	set(&l.MaxConns, r.MaxConnections)
	set64(&l.MaxInflightPerRail, r.MaxInflightPerRail)
	set64(&l.MaxInflight, r.MaxInflight)
	l.TaskMaxStripes = r.TaskMaxStripes
	if r.OnRailFailure != "" {
		l.OnRailFailure = r.OnRailFailure
	}
	set(&l.MinRails, r.MinRails)
	l.Adaptive, l.Hedge, l.Quarantine = r.Weights == "adaptive", r.Hedge, r.Quarantine.D()
	l.Recheck, l.Deadline, l.VerifyWhole = r.Recheck, r.Deadline.D(), r.Verify == VerifiedWhole
	return l
}

func (l *Limits) check() error {
	switch {
	case l.IOTimeout <= 0, l.Cooldown < 0, l.Quarantine < 0, l.Deadline < 0, l.MaxConnsPerRail < 1, l.MaxConns < 1, l.MaxInflight < 1, l.MaxInflightPerRail < 1,
		l.TaskMaxStripes < 0, l.TaskDepth < 1, l.MinRails < 1, l.StaleRetries < 0:
		return fmt.Errorf("%w: limits %+v", ErrBadRequest, *l)
	case l.OnRailFailure != FailRead && l.OnRailFailure != Failover:
		return fmt.Errorf("%w: onRailFailure %q: want %q or %q", ErrBadRequest, l.OnRailFailure, FailRead, Failover)
	}
	return nil
}

// stripeFits refuses a stripe that no budget would ever let through.
func (l *Limits) stripeFits(n uint64) error {
	if m := min(l.MaxInflight, l.MaxInflightPerRail); n > uint64(m) {
		return fmt.Errorf("%w: a stripe of %d bytes is larger than the %d bytes that %w", ErrNoMemory, n, m, errInflight)
	}
	return nil
}
