package object

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
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
}

// Worker puts and reads objects over all rails of a process. It is safe for
// concurrent use: the caps on connections and bytes hold for all its jobs
// together. It has no goroutines of its own; a call waits for those it starts.
type Worker struct {
	cfg   Config
	rails map[string]*workerRail
	conns *semaphore.Weighted // tasks at once
	bytes *semaphore.Weighted // in flight

	mu   sync.Mutex
	down map[Path]downPath
}

type workerRail struct {
	PlanRail
	conns *semaphore.Weighted
	bytes *semaphore.Weighted
	meter meter
}

// downPath is a path that failed and is left alone until a time.
type downPath struct {
	until time.Time
	cause error
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
		cfg: cfg, rails: make(map[string]*workerRail, len(cfg.Rails)), down: map[Path]downPath{},
		conns: semaphore.NewWeighted(int64(cfg.Limits.MaxConns)), bytes: semaphore.NewWeighted(cfg.Limits.MaxInflight),
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

// usable gives the rails that may be planned with: those of names (nil: all) whose
// state is good, each with the shards to which its path is not cooling down.
// excluded says why not of everything else that would have a part in reaching the
// shards in need (nil: all).
func (w *Worker) usable(names []string, need []int) (rails []PlanRail, excluded []string, err error) {
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
			excluded = append(excluded, fmt.Sprintf("shard %d is %s", n.Shard, why))
		}
	}
	now := time.Now()
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, r := range w.cfg.Rails {
		if names != nil && !slices.Contains(names, r.Name) {
			continue
		}
		if why := w.state(r.Name); why != "" {
			if slices.ContainsFunc(r.Shards, needed) {
				excluded = append(excluded, fmt.Sprintf("rail %s is %s", r.Name, why))
			}
			continue
		}
		up := make([]int, 0, len(r.Shards))
		for _, s := range r.Shards {
			d, bad := w.down[Path{r.Name, s}]
			if bad && now.Before(d.until) {
				if needed(s) {
					excluded = append(excluded, fmt.Sprintf("%v failed, left alone for %v more: %v", Path{r.Name, s}, d.until.Sub(now).Round(time.Millisecond), d.cause))
				}
				continue
			}
			up = append(up, s)
		}
		if r.Shards = up; len(up) > 0 {
			rails = append(rails, r)
		}
	}
	return rails, excluded, nil
}

func (w *Worker) state(rail string) string {
	if w.cfg.RailState == nil {
		return ""
	}
	return w.cfg.RailState(rail)
}

// cool leaves a path alone for a while.
func (w *Worker) cool(ctx context.Context, at Path, cause error) {
	w.mu.Lock()
	w.down[at] = downPath{until: time.Now().Add(w.cfg.Limits.Cooldown), cause: cause}
	w.mu.Unlock()
	shard := at.Shard
	pipeline.Emit(ctx, pipeline.Event{Event: "path_cooldown", Shard: &shard, Rail: at.Rail, Reason: cause.Error(), Seconds: w.cfg.Limits.Cooldown.Seconds()})
}

// cooling reports whether a path is being left alone.
func (w *Worker) cooling(at Path) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	d, bad := w.down[at]
	return bad && time.Now().Before(d.until)
}

// warm forgets that a path failed: it has just carried something.
func (w *Worker) warm(at Path) {
	w.mu.Lock()
	delete(w.down, at)
	w.mu.Unlock()
}

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
	if why := w.state(rail); why != "" {
		s.State = why
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
