package object

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/railstore/railstore/pipeline"
)

// Config is what a worker works with. All of it stays the caller's and outlives
// the worker.
type Config struct {
	Catalog     Catalog
	Transport   Transport
	Slab        *Slab
	Rails       []PlanRail // of this process, in the recipe's order
	Nodes       []Node     // shards that store objects
	Epoch       uint64     // of the deployment; becomes part of new placements
	StripeBytes uint64     // of new objects
	Limits      Limits
	// RailState, if set, says why a rail cannot be used now; empty is usable.
	RailState func(rail string) string
	// ShardState, if set, says why a shard is not reached; empty is reached.
	ShardState func(shard int) string
	// Reach, if set, are the rails that lead to a shard now; else those of Rails do.
	// A shard that joins later is used from then on.
	Reach func(shard int) []string
	// Expect, if set, says whether a rail leads to a shard by the recipe. A result tells of
	// every path that should be there and is not.
	Expect func(rail string, shard int) bool
	// Absent are rails of the recipe that could not be opened, and why. They are told
	// of in every result.
	Absent []AbsentRail
	// Health of the process; nil: the worker's own. It is for one deployment.
	Health *Health
}

// AbsentRail is a rail that a process goes without.
type AbsentRail struct{ Name, Reason string }

// Worker puts and reads objects over all rails of a process. It is safe for
// concurrent use: the caps on connections and bytes hold for all its jobs
// together. It has no goroutines of its own; a call waits for those it starts.
type Worker struct {
	cfg   Config
	rails map[string]*workerRail
	conns *semaphore.Weighted // tasks at once
	bytes *semaphore.Weighted // in flight

	health *Health
}

type workerRail struct {
	PlanRail
	conns *semaphore.Weighted
	bytes *semaphore.Weighted
	meter meter
}

// NewWorker checks the configuration.
func NewWorker(cfg Config) (*Worker, error) {
	if err := cfg.Limits.check(); err != nil {
		return nil, err
	}
	if _, err := StripeCount(0, cfg.StripeBytes); err != nil {
		return nil, err
	}
	w := &Worker{
		cfg: cfg, rails: make(map[string]*workerRail, len(cfg.Rails)), health: cfg.Health,
		conns: semaphore.NewWeighted(int64(cfg.Limits.MaxConns)), bytes: semaphore.NewWeighted(cfg.Limits.MaxInflight),
	}
	if w.health == nil {
		w.health = NewHealth()
	}
	for _, r := range cfg.Rails {
		if w.rails[r.Name] != nil || r.Weight < 1 {
			return nil, fmt.Errorf("%w: rail %s with weight %d: names are unique, weights at least 1", ErrBadRequest, r.Name, r.Weight)
		}
		w.rails[r.Name] = &workerRail{
			PlanRail: r,
			conns:    semaphore.NewWeighted(int64(cfg.Limits.MaxConnsPerRail)), bytes: semaphore.NewWeighted(cfg.Limits.MaxInflightPerRail),
		}
	}
	return w, nil
}

// reach are the shards that a rail leads to now.
func (w *Worker) reach(r *PlanRail) []int {
	if w.cfg.Reach == nil {
		return r.Shards
	}
	var out []int
	for _, n := range w.cfg.Nodes {
		if slices.Contains(w.cfg.Reach(n.Shard), r.Name) {
			out = append(out, n.Shard)
		}
	}
	return out
}

// usable gives the rails that may be planned with: those of names (nil: all) whose
// state is good, each with the shards to which its path is not left alone, its share
// and its canaries. excluded says why not of everything else that would have a part
// in reaching the shards in need (nil: all).
func (w *Worker) usable(names []string, need []int, adv advice) (rails []PlanRail, excluded []string, err error) {
	needed := func(shard int) bool { return need == nil || slices.Contains(need, shard) }
	for _, n := range names {
		if w.rails[n] == nil {
			return nil, nil, fmt.Errorf("%w: this host has no rail %q; it has %s", ErrBadRequest, n, railNames(w.cfg.Rails))
		}
	}
	for _, n := range w.cfg.Nodes {
		if w.cfg.ShardState == nil {
			break
		}
		if why := w.cfg.ShardState(n.Shard); why != "" && needed(n.Shard) {
			excluded = append(excluded, fmt.Sprintf("shard %d is not reached: %s", n.Shard, why))
		}
	}
	for _, a := range w.cfg.Absent {
		if names == nil || slices.Contains(names, a.Name) {
			excluded = append(excluded, fmt.Sprintf("rail %s is absent (%s)", a.Name, a.Reason))
		}
	}
	var alone, wrong lastResort
	for _, r := range w.cfg.Rails {
		r.Shards = w.reach(&r)
		why := w.state(r.Name)
		w.health.look(r.Name, why != "", r.Shards)
		if names != nil && !slices.Contains(names, r.Name) {
			continue
		}
		unwell := ""
		if why == "" {
			unwell = w.health.quarantined(r.Name)
		}
		if why != "" || unwell != "" {
			if slices.ContainsFunc(r.Shards, needed) {
				excluded = append(excluded, fmt.Sprintf("rail %s is %s", r.Name, why+unwell))
			}
			if why == "" {
				wrong.add(r, r.Shards)
			}
			continue
		}
		for _, s := range w.unmet(&r) {
			if needed(s) {
				excluded = append(excluded, fmt.Sprintf("%v is not connected: the shard had no rail on fabric %s that this one can talk to", Path{r.Name, s}, r.Fabric))
			}
		}
		var idle []int
		up := make([]int, 0, len(r.Shards))
		for _, s := range r.Shards {
			left, verdict, canary, cause := w.health.alone(Path{r.Name, s})
			if left > 0 {
				idle = append(idle, s)
				if needed(s) {
					what := ""
					if verdict != VerdictPath {
						what = fmt.Sprintf(" (it is the %s)", verdict)
					}
					excluded = append(excluded, fmt.Sprintf("%v failed%s, left alone for %v more: %v", Path{r.Name, s}, what, left.Round(time.Millisecond), cause))
				}
				continue
			}
			if up = append(up, s); canary {
				r.Canary = append(r.Canary, s)
			}
		}
		alone.add(r, idle)
		if r.Shards = up; len(up) > 0 {
			r.Share = w.health.share(r.Name, up, w.cfg.Limits.Adaptive)
			rails = append(rails, r)
		}
	}
	rails, dark := adv.apply(rails, needed)
	rails = wrong.fill(alone.fill(rails, needed), needed)
	slices.SortStableFunc(rails, func(a, b PlanRail) int { return w.place(a.Name) - w.place(b.Name) })
	return rails, append(excluded, dark...), nil
}

// unmet are the shards that a rail should lead to and does not, apart from those that
// are not there at all.
func (w *Worker) unmet(r *PlanRail) (out []int) {
	if w.cfg.Expect == nil {
		return nil
	}
	for _, n := range w.cfg.Nodes {
		if w.cfg.Expect(r.Name, n.Shard) && !r.reaches(n.Shard) && (w.cfg.ShardState == nil || w.cfg.ShardState(n.Shard) == "") {
			out = append(out, n.Shard)
		}
	}
	return out
}

// place is where a rail stands in the recipe.
func (w *Worker) place(rail string) int {
	return slices.IndexFunc(w.cfg.Rails, func(r PlanRail) bool { return r.Name == rail })
}

// lastResort are the paths that are left alone, or those of rails in quarantine. A shard
// that nothing else leads to is tried over all of the first, or else of the second: what failed once may be well again, every
// stripe is checked, and a lane that is still broken says so at once.
type lastResort []PlanRail

func (l *lastResort) add(r PlanRail, shards []int) {
	if len(shards) > 0 {
		r.Shards, r.Canary = slices.Clone(shards), nil
		*l = append(*l, r)
	}
}

// fill adds the paths to the shards in need that none of the rails reaches.
func (l lastResort) fill(rails []PlanRail, need func(int) bool) []PlanRail {
	reached := slices.Clone(rails)
	for _, r := range l {
		r.Shards = slices.DeleteFunc(r.Shards, func(s int) bool {
			return !need(s) || slices.ContainsFunc(reached, func(o PlanRail) bool { return o.reaches(s) })
		})
		if len(r.Shards) == 0 {
			continue
		}
		if i := slices.IndexFunc(rails, func(o PlanRail) bool { return o.Name == r.Name }); i >= 0 {
			rails[i].Shards = append(slices.Clone(rails[i].Shards), r.Shards...)
		} else {
			rails = append(rails, r)
		}
	}
	return rails
}

func (w *Worker) state(rail string) string {
	if w.cfg.RailState == nil {
		return ""
	}
	return w.cfg.RailState(rail)
}

// reaches reports whether a rail of the configuration leads to a shard now.
func (w *Worker) reaches(rail string, shard int) bool {
	if w.cfg.Reach == nil {
		return w.rails[rail].reaches(shard)
	}
	return slices.Contains(w.cfg.Reach(shard), rail)
}

// cool leaves a path alone for a while.
func (w *Worker) cool(ctx context.Context, at Path, cause error) {
	alone, verdict := w.health.failedOn(at, cause, w.cfg.Limits.Cooldown)
	shard := at.Shard
	pipeline.Emit(ctx, pipeline.Event{Event: "path_cooldown", Shard: &shard, Rail: at.Rail, Reason: cause.Error(), Seconds: alone.Seconds(), Fields: map[string]any{"verdict": string(verdict)}})
}

// cooling reports whether a path is being left alone.
func (w *Worker) cooling(at Path) bool {
	left, _, _, _ := w.health.alone(at)
	return left > 0
}

// warm takes note that a transfer, which began at a time, arrived.
func (w *Worker) warm(ctx context.Context, at Path, began time.Time) {
	if step, up := w.health.arrived(at, began); up {
		shard := at.Shard
		pipeline.Emit(ctx, pipeline.Event{Event: "path_probation", Shard: &shard, Rail: at.Rail, Fields: map[string]any{"share_permille": step.share()}})
	}
}

// Health is what the worker knows of its paths.
func (w *Worker) Health() *Health { return w.health }

// noRails explains why nothing reaches a shard.
func noRails(err error, excluded []string) error {
	if err == nil || !errors.Is(err, ErrNoRails) || len(excluded) == 0 {
		return err
	}
	return fmt.Errorf("%w (%s)", err, strings.Join(excluded, "; "))
}

// Snapshot is the state of every rail, in the recipe's order.
func (w *Worker) Snapshot() []RailSnapshot {
	out := make([]RailSnapshot, len(w.cfg.Rails))
	for i, r := range w.cfg.Rails {
		out[i] = w.snapshot(r.Name, &w.rails[r.Name].meter)
	}
	return out
}

func (w *Worker) snapshot(rail string, m *meter) RailSnapshot {
	r := w.rails[rail]
	s := RailSnapshot{Name: r.Name, Device: r.Device, Provider: r.Provider, State: "active"}
	for _, why := range []string{w.state(rail), w.health.quarantined(rail), w.health.standing(rail)} {
		if why != "" {
			s.State = why
			break
		}
	}
	m.fill(&s)
	c := w.cfg.Transport.Counters(rail)
	s.RegisteredBytes, s.ConnectionsCreated, s.ConnectionsQuiesced, s.Retransmits = c.RegisteredBytes, c.ConnectionsCreated, c.ConnectionsQuiesced, c.Retransmits
	return s
}

// detached is a context for work that must be done although the caller has given
// up: cleaning up, settling a commit.
func (w *Worker) detached(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), w.cfg.Limits.IOTimeout)
}

// Lookup gives the current generation of an object, or ErrNotFound.
func (w *Worker) Lookup(ctx context.Context, key Key) (Object, error) {
	if err := CheckKey(key); err != nil {
		return Object{}, err
	}
	o, found, err := w.cfg.Catalog.Lookup(ctx, key)
	if err != nil {
		return Object{}, err
	}
	if !found {
		return Object{}, fmt.Errorf("%w: %s", ErrNotFound, key)
	}
	return o, nil
}
