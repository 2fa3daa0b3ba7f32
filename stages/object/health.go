package object

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

// Health is what a process knows of its ways to the shards of one deployment. All
// workers of the process may share one: what fails under one read is left alone by
// the next, whoever begins it. It is safe for concurrent use.
//
// A path that failed is left alone for the cooldown. Then it is on probation: one
// stripe of a read goes over it, the canary. When that arrives, the path's rail
// carries a quarter of its share, then a half, then all of it; each step takes a
// transfer that succeeds and a quarter of the cooldown. When it fails the path is
// left alone for twice as long as the last time, at most eight times the cooldown.
// A rail whose port was down, and one that comes out of quarantine, begin the same way.
type Health struct {
	mu    sync.Mutex
	now   func() time.Time // replaced by tests
	paths map[Path]*pathHealth
	rails map[string]*railHealth
}

// NewHealth knows nothing bad of anything.
func NewHealth() *Health {
	return &Health{now: time.Now, paths: map[Path]*pathHealth{}, rails: map[string]*railHealth{}}
}

// pathHealth is one path. The zero value is a path in full use.
type pathHealth struct {
	failed, ok time.Time // when the last transfer failed, and arrived
	until      time.Time // left alone
	cooldown   time.Duration
	cause      error
	step       rampStep
	since      time.Time // of the step
	flaps      int       // failures that are not forgotten yet
}

type rampStep uint8

const (
	rampFull rampStep = iota
	rampCanary
	rampQuarter
	rampHalf
)

// fullShare is the share of a rail of which nothing is known but good.
const fullShare = 1000

func (s rampStep) share() int {
	switch s {
	case rampQuarter:
		return fullShare / 4
	case rampHalf:
		return fullShare / 2
	}
	return fullShare
}

// mostFlaps bounds how often the cooldown doubles.
const mostFlaps = 3

// railHealth is one rail.
type railHealth struct {
	down      bool      // its port was, when last looked at
	until     time.Time // in quarantine
	why       string
	corrupted uint64 // stripes that arrived wrong over it and right over another
	pace      pace
}

func (h *Health) pathLocked(at Path) *pathHealth {
	p := h.paths[at]
	if p == nil {
		p = &pathHealth{}
		h.paths[at] = p
	}
	return p
}

func (h *Health) railLocked(name string) *railHealth {
	r := h.rails[name]
	if r == nil {
		r = &railHealth{pace: pace{share: fullShare}}
		h.rails[name] = r
	}
	return r
}

// failedOn leaves a path alone after a failure, and says for how long and what seems
// to be broken. Where that is the rail, its other paths that have failed or never
// worked are left alone, too.
func (h *Health) failedOn(at Path, cause error, cooldown time.Duration) (time.Duration, Verdict) {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := h.now()
	p := h.pathLocked(at)
	if p.step != rampFull && !now.Before(p.until) && p.flaps < mostFlaps { // it had come back only just
		p.flaps++
	}
	p.failed, p.cause, p.step, p.since = now, cause, rampCanary, now
	p.cooldown = cooldown
	alone := cooldown << p.flaps
	p.until = now.Add(alone)
	v := h.verdictLocked(at)
	if v == VerdictLocal {
		for o, q := range h.paths {
			if o.Rail == at.Rail && q.ok.Before(p.failed.Add(-cooldown)) && q.until.Before(p.until) {
				q.until, q.cause, q.step, q.since, q.cooldown = p.until, cause, rampCanary, now, cooldown
			}
		}
	}
	return alone, v
}

// arrived takes note of a transfer that began at a time and arrived. One that began
// before the path's last failure proves nothing. It reports what step the path has
// gone up to, and whether it went up.
func (h *Health) arrived(at Path, began time.Time) (step rampStep, up bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	p := h.pathLocked(at)
	if began.Before(p.failed) {
		return p.step, false
	}
	now := h.now()
	p.ok = now
	switch {
	case p.step == rampFull:
		return rampFull, false
	case p.step == rampCanary:
		p.step = rampQuarter
	case now.Sub(p.since) < p.cooldown/4:
		return p.step, false
	case p.step == rampQuarter:
		p.step = rampHalf
	default:
		p.step, p.cause, p.flaps = rampFull, nil, max(p.flaps-1, 0)
	}
	p.since, p.until = now, time.Time{}
	return p.step, true
}

// renewed ends the time for which a path is left alone: it has new lanes, and what
// failed was over the old ones. It is on probation now.
func (h *Health) renewed(at Path) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if p := h.paths[at]; p != nil && p.step == rampCanary {
		p.until, p.flaps = h.now(), 0
	}
}

// corrupted puts a rail into quarantine: it delivered a stripe with wrong bytes that
// another rail delivered right.
func (h *Health) corrupted(rail string, shards []int, why string, quarantine time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := h.now()
	r := h.railLocked(rail)
	r.corrupted++
	r.until, r.why = now.Add(quarantine), why
	h.probationLocked(rail, shards, now)
}

// look takes note of whether a rail's port is up; after it was not, its paths are on
// probation.
func (h *Health) look(rail string, down bool, shards []int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	r := h.railLocked(rail)
	if r.down && !down {
		h.probationLocked(rail, shards, h.now())
	}
	r.down = down
}

func (h *Health) probationLocked(rail string, shards []int, now time.Time) {
	for _, s := range shards {
		p := h.pathLocked(Path{rail, s})
		p.step, p.since = rampCanary, now
	}
}

// quarantined is why a rail is in quarantine and for how much longer, or empty.
func (h *Health) quarantined(rail string) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	r := h.railLocked(rail)
	if left := r.until.Sub(h.now()); left > 0 {
		return fmt.Sprintf("quarantined for corruption, for %v more: %s", left.Round(time.Millisecond), r.why)
	}
	return ""
}

// alone is how much longer a path is left alone, why, and what seems to be broken;
// 0 is a path that can be used, canary one of which only one stripe may be asked.
func (h *Health) alone(at Path) (left time.Duration, v Verdict, canary bool, cause error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	p := h.paths[at]
	if p == nil {
		return 0, "", false, nil
	}
	if left = p.until.Sub(h.now()); left > 0 {
		return left, h.verdictLocked(at), false, p.cause
	}
	return 0, "", p.step == rampCanary, nil
}

// share is what a rail carries of its weight's part, in thousandths: the mean of its
// paths' steps, those of canaries left out, times what its pace allows.
func (h *Health) share(rail string, shards []int, adaptive bool) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	sum, n := 0, 0
	for _, s := range shards {
		p := h.paths[Path{rail, s}]
		switch {
		case p == nil:
			sum, n = sum+fullShare, n+1
		case p.step != rampCanary:
			sum, n = sum+p.step.share(), n+1
		}
	}
	out := fullShare
	if n > 0 {
		out = sum / n
	}
	if r := h.rails[rail]; adaptive && r != nil {
		out = out * r.pace.share / fullShare
	}
	return max(out, 1)
}

// standing says which paths of a rail are left alone, or else how far those that were
// have come back; it is empty for a rail in full use.
func (h *Health) standing(rail string) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := h.now()
	var alone []int
	worst := rampFull
	for at, p := range h.paths {
		switch {
		case at.Rail != rail:
		case now.Before(p.until):
			alone = append(alone, at.Shard)
		case p.step != rampFull && (worst == rampFull || p.step < worst):
			worst = p.step
		}
	}
	slices.Sort(alone)
	switch {
	case len(alone) == 1:
		return fmt.Sprintf("left alone to shard %d", alone[0])
	case len(alone) > 1:
		return fmt.Sprintf("left alone to shards %s", strings.Trim(strings.ReplaceAll(fmt.Sprint(alone), " ", ", "), "[]"))
	case worst == rampCanary:
		return "probation (canary)"
	case worst != rampFull:
		return fmt.Sprintf("probation (%d%% of its share)", worst.share()/10)
	}
	return ""
}

// Verdict is what seems to be broken where a path failed.
type Verdict string

const (
	VerdictLocal Verdict = "local rail" // the shards that it reaches do not answer over it, and do over others
	VerdictPeer  Verdict = "peer"       // the shard answers over no rail, and others do
	VerdictPath  Verdict = "path"       // neither of both is proven
)

// verdictLocked judges a path that failed by what became of its neighbours in the
// matrix of rails and shards.
func (h *Health) verdictLocked(at Path) Verdict {
	var railBad, railGood, shardBad, shardGood, otherGood int
	for o, p := range h.paths {
		good, bad := p.ok.After(p.failed), !p.failed.IsZero() && !p.ok.After(p.failed)
		switch {
		case o == at:
		case o.Rail == at.Rail && good:
			railGood++
		case o.Rail == at.Rail && bad:
			railBad++
		case o.Shard == at.Shard && good:
			shardGood++
		case o.Shard == at.Shard && bad:
			shardBad++
		case good:
			otherGood++
		}
	}
	switch {
	case railGood == 0 && railBad > 0 && (shardGood > 0 || otherGood > 0):
		return VerdictLocal
	case shardGood == 0 && shardBad > 0 && (railGood > 0 || otherGood > 0):
		return VerdictPeer
	}
	return VerdictPath
}

// Verdict judges a path. It is empty for one that has not failed, or works again.
func (h *Health) Verdict(at Path) Verdict {
	h.mu.Lock()
	defer h.mu.Unlock()
	p := h.paths[at]
	if p == nil || p.failed.IsZero() || p.ok.After(p.failed) {
		return ""
	}
	return h.verdictLocked(at)
}

// PathStatus is what is known against a path.
type PathStatus struct {
	Rail    string        `json:"rail"`
	Shard   int           `json:"shard"`
	State   string        `json:"state"` // cooling, canary, ramp
	Left    time.Duration `json:"-"`
	Cause   string        `json:"cause,omitempty"`
	Verdict Verdict       `json:"verdict,omitempty"`
}

// Status lists the paths that are not in full use, by rail and shard.
func (h *Health) Status() (out []PathStatus) {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := h.now()
	for at, p := range h.paths {
		s := PathStatus{Rail: at.Rail, Shard: at.Shard, Left: max(p.until.Sub(now), 0)}
		switch {
		case s.Left > 0:
			s.State = "cooling"
		case p.step == rampCanary:
			s.State = "canary"
		case p.step != rampFull:
			s.State = "ramp"
		default:
			continue
		}
		if p.cause != nil {
			s.Cause, s.Verdict = p.cause.Error(), h.verdictLocked(at)
		}
		out = append(out, s)
	}
	slices.SortFunc(out, func(a, b PathStatus) int { return comparePaths(Path{a.Rail, a.Shard}, Path{b.Rail, b.Shard}) })
	return out
}
