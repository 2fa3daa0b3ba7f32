package launch

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/railstore/railstore/pipeline"
)

// DownConfig is how Down works.
type DownConfig struct {
	// Grace is how long the shards may take to drain before they are killed; 0
	// takes the deployment's shutdown timeout and a little.
	Grace time.Duration
	// LockWait is how long another command may take that changes the deployment.
	LockWait time.Duration
}

// DownResult is what Down found and did.
type DownResult struct {
	Deployment string         `json:"deployment"`
	Shards     []StoppedShard `json:"shards"` // empty: nothing was running
}

// Forced are the shards that had to be killed.
func (r *DownResult) Forced() []int {
	var out []int
	for _, s := range r.Shards {
		if s.How == Forced {
			out = append(out, s.Shard)
		}
	}
	return out
}

const (
	defaultGrace = 10 * time.Second
	// graceMargin is what a process needs to end after it has drained.
	graceMargin = 2 * time.Second
)

// Down ends every process of the deployment, whatever brought it up and whether
// or not that finished. It does not need the resolved deployment. The shard with
// the control plane goes last, so that the others can take their leave.
func (f Folder) Down(ctx context.Context, cfg DownConfig) (*DownResult, error) {
	res := &DownResult{Deployment: f.Name, Shards: []StoppedShard{}}
	if !f.Exists() {
		return res, nil
	}
	lock, err := f.Lock(ctx, "down", cfg.LockWait)
	if err != nil {
		return res, err
	}
	defer func() { _ = lock.Unlock() }()
	live, err := f.live()
	if err != nil {
		return res, err
	}
	if len(live) == 0 {
		return res, f.clearMark()
	}
	grace := cfg.Grace
	if grace == 0 {
		grace = defaultGrace
		if r, err := f.Resolved(); err == nil {
			if t := r.Deployment.Server.ShutdownTimeout.D(); t > 0 {
				grace = t + graceMargin
			}
		}
	}
	emit := func(pipeline.Event) {}
	if log, err := f.OpenEvents(-1); err == nil {
		// Without events: a full disk must not keep a deployment up.
		defer func() { _ = log.Close() }()
		emit = log.Emit
	}
	emit(pipeline.Event{Event: "deployment_stopping"})
	err = f.stopInOrder(ctx, live, grace, func(s StoppedShard) {
		res.Shards = append(res.Shards, s)
		emit(pipeline.Event{Event: "shard_stopped", Shard: &s.Shard, Reason: s.How, Seconds: s.Seconds, Fields: map[string]any{"pid": s.PID}})
	})
	if err != nil {
		return res, err
	}
	emit(pipeline.Event{Event: "deployment_stopped"})
	slices.SortFunc(res.Shards, func(a, b StoppedShard) int { return a.Shard - b.Shard })
	return res, f.clearMark()
}

// stopInOrder stops all shards but the control plane's, then that one, which
// gets what is left of the grace, but not less than a second.
func (f Folder) stopInOrder(ctx context.Context, shards []int, grace time.Duration, report func(StoppedShard)) error {
	begin := time.Now()
	var errs []error
	step := func(shards []int, grace time.Duration) {
		done, err := f.stop(ctx, shards, grace)
		for _, s := range done {
			report(s)
		}
		errs = append(errs, err)
	}
	others := slices.DeleteFunc(slices.Clone(shards), func(n int) bool { return n == controlShard })
	if len(others) > 0 {
		step(others, grace)
	}
	if len(others) < len(shards) {
		step([]int{controlShard}, max(grace-time.Since(begin), time.Second))
	}
	return errors.Join(errs...)
}
