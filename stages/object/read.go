package object

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/railstore/railstore/pipeline"
)

// ReadOptions of one read.
type ReadOptions struct {
	Rails    []string       // use only these; nil is all
	Progress func(n uint64) // called as verified bytes come in, from several goroutines
}

// ReadReport is what a read did. Rails that the read was not allowed to use are
// not in it.
type ReadReport struct {
	Namespace      string         `json:"namespace"`
	Object         string         `json:"object"`
	Generation     uint64         `json:"generation"`
	Bytes          uint64         `json:"bytes"`
	XXH3           string         `json:"xxh3"`
	Seconds        float64        `json:"seconds"`
	BytesPerSecond float64        `json:"bytes_per_second"`
	Output         string         `json:"output"`
	Attempts       int            `json:"attempts"`       // 1 unless the object changed meanwhile
	Rereads        uint64         `json:"rereads"`        // stripes that came wrong and were read again
	ReroutedBytes  uint64         `json:"rerouted_bytes"` // that another rail took over
	Degraded       bool           `json:"degraded"`       // complete and verified, but not as planned
	Excluded       []string       `json:"excluded"`       // rails and paths that were not planned with, and why
	Rails          []RailSnapshot `json:"rails"`
}

// LeasedBuffer is a whole, verified object in registered memory. Nobody writes to
// it any more. It is the holder's until Release.
type LeasedBuffer struct {
	object   Object
	ext      *Extent
	released atomic.Bool
}

// Bytes is the content; it must not be used after Release.
func (b *LeasedBuffer) Bytes() []byte { return b.ext.Bytes() }

// Object is the descriptor that was read.
func (b *LeasedBuffer) Object() *Object { return &b.object }

// Release gives the memory back. Further calls do nothing.
func (b *LeasedBuffer) Release() {
	if !b.released.Swap(true) {
		b.ext.Release()
	}
}

// Read reads an object over all its rails. What it returns is complete: every
// stripe arrived and has its checksum, the bytes in order have the object's, and,
// with Limits.Recheck, the object is still the current one. On an error there is
// no buffer and nothing touches the memory any more.
//
// An object that changes meanwhile is looked up again and read anew, at most
// Limits.StaleRetries times.
func (w *Worker) Read(ctx context.Context, key Key, opt ReadOptions) (*LeasedBuffer, *ReadReport, error) {
	start := time.Now()
	o, err := w.Lookup(ctx, key)
	if err != nil {
		return nil, nil, fail("read", err, nil)
	}
	for attempt := 1; ; attempt++ {
		buf, rep, err := w.readOnce(ctx, key, o, opt)
		if err == nil {
			rep.Attempts = attempt
			rep.Degraded = rep.Degraded || attempt > 1
			rep.Seconds = time.Since(start).Seconds()
			rep.BytesPerSecond = rate(rep.Bytes, time.Since(start))
			return buf, rep, nil
		}
		if classify(err) != classStale || ctx.Err() != nil {
			return nil, nil, fail("read", err, nil)
		}
		now, lerr := w.Lookup(ctx, key)
		if lerr != nil {
			return nil, nil, fail("read", fmt.Errorf("%w (after: %v)", lerr, err), nil)
		}
		if now.Handle == o.Handle && now.Placement.LayoutHash == o.Placement.LayoutHash {
			// The descriptor is current, so it is the shard that is wrong.
			return nil, nil, fail("read", prefix(ErrLost, err), nil)
		}
		if attempt > w.cfg.Limits.StaleRetries {
			return nil, nil, fail("read", prefix(fmt.Errorf("%s changed %d times while it was read", key, attempt), err), nil)
		}
		pipeline.Emit(ctx, pipeline.Event{Event: "read_retry", Reason: err.Error()})
		o = now
	}
}

// readOnce reads one generation.
func (w *Worker) readOnce(ctx context.Context, key Key, o Object, opt ReadOptions) (_ *LeasedBuffer, _ *ReadReport, err error) {
	if err := Validate(&o, key, w.cfg.Nodes); err != nil {
		return nil, nil, err
	}
	rails, excluded, err := w.usable(opt.Rails, shardsOf(&o))
	if err != nil {
		return nil, nil, err
	}
	if len(rails) < w.cfg.Limits.MinRails && o.Size > 0 {
		return nil, nil, noRails(fmt.Errorf("%w: %d usable, reader.minRails is %d", ErrNoRails, len(rails), w.cfg.Limits.MinRails), excluded)
	}
	plan, err := BuildPlan(&o, rails, w.cfg.Limits, nil)
	if err != nil {
		return nil, nil, noRails(err, excluded)
	}
	actx, cancel := context.WithTimeoutCause(ctx, 2*w.cfg.Limits.IOTimeout, fmt.Errorf("%w: other reads hold it", ErrNoMemory))
	ext, err := w.cfg.Slab.Acquire(actx, int(o.Size))
	cancel()
	if err != nil {
		return nil, nil, fmt.Errorf("%s has %d bytes: %w", key, o.Size, err)
	}
	j := newReadJob(w, &o, ext, rails, excluded, opt)
	defer func() {
		if err != nil {
			ext.Release()
		}
	}()
	if err := j.run(ctx, plan); err != nil {
		return nil, nil, err
	}
	if err := j.complete(); err != nil {
		return nil, nil, err
	}
	if err := w.recheck(ctx, &o); err != nil {
		return nil, nil, err
	}
	// A cancel before this point wins; after it, it is too late.
	if err := ctx.Err(); err != nil {
		return nil, nil, context.Cause(ctx)
	}
	return &LeasedBuffer{object: o, ext: ext}, j.report(plan), nil
}

// recheck refuses what was replaced or removed while it was read.
func (w *Worker) recheck(ctx context.Context, o *Object) error {
	if !w.cfg.Limits.Recheck {
		return nil
	}
	now, err := w.Lookup(ctx, o.Key)
	if errors.Is(err, ErrNotFound) {
		return fmt.Errorf("%w: removed while it was read: %w", ErrStale, err)
	}
	if err != nil {
		return err
	}
	if now.Handle != o.Handle || now.Placement.LayoutHash != o.Placement.LayoutHash {
		return fmt.Errorf("%w: generation %d was replaced by %d while it was read", ErrStale, o.Generation, now.Generation)
	}
	return nil
}

// ReadInto reads an object into dst, which must be large enough, and returns how
// many bytes it has. dst is untouched unless the whole object is there.
func (w *Worker) ReadInto(ctx context.Context, key Key, dst []byte, opt ReadOptions) (int, *ReadReport, error) {
	buf, rep, err := w.Read(ctx, key, opt)
	if err != nil {
		return 0, nil, err
	}
	defer buf.Release()
	if len(dst) < len(buf.Bytes()) {
		return 0, nil, fail("read", fmt.Errorf("%w: %s has %d bytes, the buffer %d", ErrTooSmall, key, len(buf.Bytes()), len(dst)), nil)
	}
	return copy(dst, buf.Bytes()), rep, nil
}

// shardsOf are the shards that hold a part of the object, never nil.
func shardsOf(o *Object) []int {
	out := []int{}
	for i := range o.Placement.Stripes {
		if s := o.Placement.Stripes[i].Shard; !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	return out
}

// Explain is the plan that Read would begin with now.
func (w *Worker) Explain(ctx context.Context, key Key, rails []string) (*Plan, error) {
	o, err := w.Lookup(ctx, key)
	if err == nil {
		err = Validate(&o, key, w.cfg.Nodes)
	}
	if err != nil {
		return nil, fail("plan", err, nil)
	}
	rs, excluded, err := w.usable(rails, shardsOf(&o))
	if err != nil {
		return nil, fail("plan", err, nil)
	}
	p, err := BuildPlan(&o, rs, w.cfg.Limits, nil)
	return p, fail("plan", noRails(err, excluded), nil)
}
