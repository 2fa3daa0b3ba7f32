package object

import (
	"context"
	"sync"
	"time"

	"github.com/railstore/railstore/pipeline"
)

// Janitor sweeps a shard's store when it starts and from time to time, on its own
// goroutine.
type Janitor struct {
	stop context.CancelFunc
	wg   sync.WaitGroup
}

// StartJanitor starts one. Sweeps that removed something or failed are events of
// ctx's sink. Close it before the store.
func StartJanitor(ctx context.Context, s *Store, c Catalog, every time.Duration) *Janitor {
	ctx, stop := context.WithCancel(context.WithoutCancel(ctx))
	j := &Janitor{stop: stop}
	j.wg.Go(func() { j.run(ctx, s, c, every) })
	return j
}

func (j *Janitor) run(ctx context.Context, s *Store, c Catalog, every time.Duration) {
	t := time.NewTicker(every)
	defer t.Stop()
	for {
		rep, err := s.Sweep(ctx, SweepGrace, func(ctx context.Context) (*Live, error) { return LiveOf(ctx, c) })
		shard := s.Shard()
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			pipeline.Emit(ctx, pipeline.Event{Event: "sweep_failed", Shard: &shard, Reason: err.Error()})
		case rep.Doubted > 0:
			pipeline.Emit(ctx, pipeline.Event{Event: "orphans_doubted", Shard: &shard, Fields: map[string]any{"stripes": rep.Doubted},
				Reason: "the catalog knows none of the stripes of this shard: is it the right one?"})
		case rep.Orphans > 0:
			pipeline.Emit(ctx, pipeline.Event{Event: "orphans_removed", Shard: &shard, Fields: map[string]any{"stripes": rep.Orphans, "bytes": rep.Bytes}})
		}
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
	}
}

// Close ends the sweep under way and waits for it.
func (j *Janitor) Close() error {
	j.stop()
	j.wg.Wait()
	return nil
}
