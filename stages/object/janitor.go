package object

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/railstore/railstore/pipeline"
)

// JanitorConfig of a Janitor.
type JanitorConfig struct {
	Store   *Store
	Catalog CleanerCatalog
	// Sweep is how often files that no object owns are looked for; 0 is an hour.
	Sweep time.Duration
	// Clean is how often objects whose time is over, and garbage, are looked for; 0 is
	// 30 s.
	Clean time.Duration
	// Check is how often directories are looked at; 0 is as often as the store says.
	Check time.Duration
}

// Janitor looks after a shard's store, on its own goroutine: it takes out objects
// whose time is over, removes the shard's stripes of what was taken out, sweeps, and
// probes directories that are out of use. It begins with all of it.
type Janitor struct {
	cfg   JanitorConfig
	stop  context.CancelFunc
	wg    sync.WaitGroup
	quiet map[string]string // failures that were told already

	cleanPause time.Duration
	cleanAfter time.Time
}

// longestPause bounds how seldom garbage is looked at.
const longestPause = 10 * time.Minute

// StartJanitor starts one. What it removed and what failed are events of ctx's
// sink. Close it before the store.
func StartJanitor(ctx context.Context, cfg JanitorConfig) *Janitor {
	if cfg.Sweep == 0 {
		cfg.Sweep = time.Hour
	}
	if cfg.Clean == 0 {
		cfg.Clean = 30 * time.Second
	}
	if cfg.Check == 0 {
		cfg.Check = probeEvery
	}
	ctx, stop := context.WithCancel(context.WithoutCancel(ctx))
	j := &Janitor{cfg: cfg, stop: stop, quiet: map[string]string{}}
	j.wg.Go(func() { j.run(ctx) })
	return j
}

func (j *Janitor) run(ctx context.Context) {
	jobs := []struct {
		every time.Duration
		do    func(context.Context)
		next  time.Time
	}{
		{every: j.cfg.Check, do: func(context.Context) { j.cfg.Store.Check(time.Now()) }},
		{every: j.cfg.Clean, do: j.clean},
		{every: j.cfg.Sweep, do: j.sweep},
	}
	for {
		wait := time.Duration(1<<63 - 1)
		for i := range jobs {
			if !time.Now().Before(jobs[i].next) {
				jobs[i].do(ctx)
				jobs[i].next = time.Now().Add(jobs[i].every)
			}
			wait = min(wait, time.Until(jobs[i].next))
		}
		t := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			t.Stop()
			return
		case <-t.C:
		}
	}
}

func (j *Janitor) emit(ctx context.Context, e pipeline.Event) {
	shard := j.cfg.Store.Shard()
	e.Shard = &shard
	pipeline.Emit(ctx, e)
}

// failed tells of a failure once, until it is another one.
func (j *Janitor) failed(ctx context.Context, event string, err error) {
	switch {
	case ctx.Err() != nil:
	case err == nil:
		delete(j.quiet, event)
	case j.quiet[event] != err.Error():
		j.quiet[event] = err.Error()
		j.emit(ctx, pipeline.Event{Event: event, Reason: err.Error()})
	}
}

// clean takes out what is over and removes what is garbage.
func (j *Janitor) clean(ctx context.Context) {
	n, err := expireAll(ctx, j.cfg.Catalog)
	if n > 0 {
		j.emit(ctx, pipeline.Event{Event: "objects_expired", Fields: map[string]any{"objects": n}})
	}
	if time.Now().Before(j.cleanAfter) {
		j.failed(ctx, "clean_failed", err)
		return
	}
	rep, err2 := j.cfg.Store.Clean(ctx, j.cfg.Catalog)
	// Garbage that waits for somebody else is looked at less and less often: every
	// look asks the catalog for all of it.
	if j.cleanPause = min(2*max(j.cleanPause, j.cfg.Clean), longestPause); rep.Left == 0 || rep.Stripes > 0 {
		j.cleanPause = 0
	}
	j.cleanAfter = time.Now().Add(j.cleanPause)
	if rep.Stripes > 0 {
		j.emit(ctx, pipeline.Event{Event: "garbage_removed", Fields: map[string]any{"generations": rep.Generations, "stripes": rep.Stripes}})
	}
	j.failed(ctx, "clean_failed", both(err, err2))
}

// expireAll takes out all objects whose time is over.
func expireAll(ctx context.Context, c CleanerCatalog) (n int, err error) {
	for more := true; more; {
		var some int
		if some, more, err = c.Expire(ctx, 500); err != nil {
			return n, err
		}
		n += some
	}
	return n, nil
}

func (j *Janitor) sweep(ctx context.Context) {
	rep, err := j.cfg.Store.Sweep(ctx, SweepGrace, func(ctx context.Context) (*Live, error) { return LiveOf(ctx, j.cfg.Catalog) })
	if rep.Doubted > 0 {
		j.emit(ctx, pipeline.Event{Event: "orphans_doubted", Fields: map[string]any{"stripes": rep.Doubted},
			Reason: "the catalog knows none of the stripes of this shard: is it the right one?"})
	}
	if rep.Orphans > 0 {
		j.emit(ctx, pipeline.Event{Event: "orphans_removed", Fields: map[string]any{"stripes": rep.Orphans, "bytes": rep.Bytes}})
	}
	j.failed(ctx, "sweep_failed", err)
}

// Close ends what is under way and waits for it.
func (j *Janitor) Close() error {
	j.stop()
	j.wg.Wait()
	return nil
}

// CleanReport is what Clean did.
type CleanReport struct {
	Generations int `json:"generations"` // of which this shard has nothing any more
	Stripes     int `json:"stripes"`     // removed
	Left        int `json:"left"`        // generations that stay: another shard, or a directory that is out, has some of it
}

// Clean removes this shard's stripes of objects that were replaced, removed or are
// over, and tells the catalog. What cannot be removed now stays garbage.
func (s *Store) Clean(ctx context.Context, c CleanerCatalog) (rep CleanReport, err error) {
	var after Key
	var gen uint64
	for {
		o, found, e := c.Garbage(ctx, after, gen)
		if e != nil || !found {
			return rep, both(err, e)
		}
		after, gen = o.Key, o.Generation
		mine, gone := 0, 0
		for i := range o.Placement.Stripes {
			st := &o.Placement.Stripes[i]
			if st.Shard != s.shard {
				continue
			}
			mine++
			was, e := s.Delete(st.Dir, st.File, Identity{Handle: o.Handle, Index: st.Index})
			switch {
			case e == nil || errors.Is(e, ErrBadRequest): // a directory that the shard does not have any more
				gone++
				if was {
					rep.Stripes++
				}
			case err == nil:
				err = e
			}
			if e := ctx.Err(); e != nil {
				return rep, e
			}
		}
		if gone < mine || mine == 0 && len(o.Placement.Stripes) > 0 {
			rep.Left++
			continue
		}
		if e := c.ForgetShard(ctx, o.Key, o.Generation, s.shard); e != nil {
			return rep, both(err, e)
		}
		rep.Generations++
	}
}
