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
	Range    *Range         // nil: the whole object
	// Deadline, counted from the call on; 0: that of the limits. One of the context that is
	// nearer counts.
	Deadline time.Duration

	found *Object // looked up already
	later bool    // the caller looks again when it is read
}

// Range is a part of an object. Only whole stripes have checksums, so those that the
// range touches are fetched and verified whole.
type Range struct {
	Offset uint64
	Length uint64 // 0: to the end
}

// spanOf is what must be fetched of an object for a range, and how many bytes of it
// the range has.
func spanOf(o *Object, r *Range) (sp span, n uint64, err error) {
	count := uint32(len(o.Placement.Stripes))
	if r == nil || o.Size == 0 && r.Offset == 0 && r.Length == 0 {
		return span{0, count, 0, o.Size}, o.Size, nil
	}
	n = r.Length
	if n == 0 && r.Offset < o.Size {
		n = o.Size - r.Offset
	}
	if r.Offset >= o.Size || n > o.Size-r.Offset {
		return span{}, 0, fmt.Errorf("%w: %d bytes from %d on, %s has %d", ErrRange, n, r.Offset, o.Key, o.Size)
	}
	sp.first = uint32(r.Offset / o.StripeBytes)
	sp.last = uint32((r.Offset+n-1)/o.StripeBytes) + 1
	sp.off = uint64(sp.first) * o.StripeBytes
	sp.end = min(uint64(sp.last)*o.StripeBytes, o.Size)
	return sp, n, nil
}

// ReadReport is what a read did. Rails that the read was not allowed to use are
// not in it.
type ReadReport struct {
	Namespace      string         `json:"namespace"`
	Object         string         `json:"object"`
	Generation     uint64         `json:"generation"`
	Offset         uint64         `json:"offset"`       // of the bytes that were asked for
	Bytes          uint64         `json:"bytes"`        // that were asked for
	ObjectBytes    uint64         `json:"object_bytes"` // of the whole object
	XXH3           string         `json:"xxh3"`         // of Bytes
	Verified       string         `json:"verified"`     // VerifiedWhole | VerifiedStripes
	Seconds        float64        `json:"seconds"`
	BytesPerSecond float64        `json:"bytes_per_second"`
	Output         string         `json:"output"`
	Attempts       int            `json:"attempts"`       // 1 unless the object changed meanwhile
	Rereads        uint64         `json:"rereads"`        // stripes that came wrong and were read again
	ReroutedBytes  uint64         `json:"rerouted_bytes"` // that another rail took over from one that failed
	Hedges         uint64         `json:"hedges"`         // stripes that were asked for over two rails, being late
	Exact          bool           `json:"exact"`          // each rail carried the bytes of the plan; else moves say why not
	Moves          []Move         `json:"moves"`
	Corruptions    []Corruption   `json:"corruptions"`
	Faults         []PathFault    `json:"faults"`   // paths that failed during the read
	Degraded       bool           `json:"degraded"` // complete and verified, but not as planned
	Excluded       []string       `json:"excluded"` // rails and paths that were not planned with, and why
	Rails          []RailSnapshot `json:"rails"`
}

// What was hashed before a read handed anything over.
const (
	VerifiedWhole   = "whole"   // each stripe, and all bytes in order
	VerifiedStripes = "stripes" // each stripe
)

// PathFault is a path that failed under a read.
type PathFault struct {
	Rail    string  `json:"rail"`
	Shard   int     `json:"shard"`
	Verdict Verdict `json:"verdict"`
	Cause   string  `json:"cause"`
}

// LeasedBuffer is a whole, verified object, or a part of one, in registered memory.
// Nobody writes to it any more. It is the holder's until Release.
type LeasedBuffer struct {
	object   Object
	ext      *Extent
	lo, n    uint64
	released atomic.Bool
}

// Bytes is the content; it must not be used after Release.
func (b *LeasedBuffer) Bytes() []byte { return b.ext.Bytes()[b.lo : b.lo+b.n : b.lo+b.n] }

// Object is the descriptor that was read.
func (b *LeasedBuffer) Object() *Object { return &b.object }

// Release gives the memory back. Further calls do nothing.
func (b *LeasedBuffer) Release() {
	if !b.released.Swap(true) {
		b.ext.Release()
	}
}

// Read reads an object over all its rails. What it returns is complete: every
// stripe arrived and has its checksum, with Limits.VerifyWhole the bytes of a whole object
// have its hash in order, and, with Limits.Recheck, the object is still the current one. On an error there is no buffer and nothing touches the
// memory any more.
//
// An object that changes meanwhile is looked up again and read anew, at most
// Limits.StaleRetries times.
func (w *Worker) Read(ctx context.Context, key Key, opt ReadOptions) (*LeasedBuffer, *ReadReport, error) {
	buf, rep, err := w.readCurrent(ctx, key, opt, w.leased)
	if err != nil {
		return nil, nil, err
	}
	return buf.(*leasing).lease, rep, nil
}

// target gives the memory that a generation of an object is read into, sp.end-sp.off
// bytes of which the n from sp.off+lo on are wanted.
type target func(ctx context.Context, o *Object, sp span, lo, n uint64) (ground, error)

// ground is a landing until the read is over.
type ground interface {
	landing
	done(ok bool) // nothing touches the memory any more
}

// leasing lands in a new leased buffer.
type leasing struct {
	*Extent
	lease *LeasedBuffer
}

func (l *leasing) done(ok bool) {
	if !ok {
		l.lease.Release()
	}
}

func (w *Worker) leased(ctx context.Context, o *Object, sp span, lo, n uint64) (ground, error) {
	actx, cancel := context.WithTimeoutCause(ctx, 2*w.cfg.Limits.IOTimeout, fmt.Errorf("%w: other reads hold it", ErrNoMemory))
	defer cancel()
	ext, err := w.cfg.Slab.Acquire(actx, int(sp.end-sp.off))
	if err != nil {
		return nil, fmt.Errorf("%s has %d bytes: %w", o.Key, o.Size, err)
	}
	return &leasing{ext, &LeasedBuffer{object: *o, ext: ext, lo: lo, n: n}}, nil
}

// deadlineError is a read that was given up for its own deadline.
type deadlineError struct{ after time.Duration }

func (e *deadlineError) Error() string {
	return fmt.Sprintf("not read within its deadline of %v", e.after)
}
func (e *deadlineError) Is(target error) bool { return target == context.DeadlineExceeded }

// readCurrent reads the current generation into a target, within the deadline of the read.
func (w *Worker) readCurrent(ctx context.Context, key Key, opt ReadOptions, to target) (ground, *ReadReport, error) {
	after := opt.Deadline
	if after == 0 {
		after = w.cfg.Limits.Deadline
	}
	if after <= 0 {
		return w.readUntimed(ctx, key, opt, to)
	}
	late := &deadlineError{after}
	ctx, cancel := context.WithTimeoutCause(ctx, after, late)
	defer cancel()
	g, rep, err := w.readUntimed(ctx, key, opt, to)
	if err != nil && context.Cause(ctx) == error(late) && !errors.Is(err, error(late)) {
		err = fail("read", prefix(late, err), nil) // what it waited for just then
	}
	return g, rep, err
}

func (w *Worker) readUntimed(ctx context.Context, key Key, opt ReadOptions, to target) (ground, *ReadReport, error) {
	start := time.Now()
	var o Object
	if opt.found != nil {
		o = *opt.found
	} else {
		var err error
		if o, err = w.Lookup(ctx, key); err != nil {
			return nil, nil, fail("read", err, nil)
		}
	}
	for attempt := 1; ; attempt++ {
		buf, rep, err := w.readOnce(ctx, key, o, opt, to)
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
		if same(&now, &o) {
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

// prepared is a read of one generation before its first transfer.
type prepared struct {
	plan     *Plan
	span     span
	lo, n    uint64 // the bytes that are wanted, within the span
	rails    []PlanRail
	excluded []string
}

// prepare checks an object and plans what of it is to be read. It does no I/O.
func (w *Worker) prepare(key Key, o *Object, opt ReadOptions) (p prepared, err error) {
	if err := Validate(o, key, w.cfg.Nodes); err != nil {
		return p, err
	}
	if p.span, p.n, err = spanOf(o, opt.Range); err != nil {
		return p, err
	}
	var only []uint32 // all
	if opt.Range != nil {
		p.lo, only = opt.Range.Offset-p.span.off, p.span.stripes()
	}
	adv, err := adviceOf(o)
	if err != nil {
		return p, err
	}
	if p.rails, p.excluded, err = w.usable(opt.Rails, shardsOf(o, p.span), adv); err != nil {
		return p, err
	}
	if len(p.rails) < w.cfg.Limits.MinRails && p.span.end > p.span.off {
		return p, noRails(fmt.Errorf("%w: %d usable, reader.minRails is %d", ErrNoRails, len(p.rails), w.cfg.Limits.MinRails), p.excluded)
	}
	p.plan, err = BuildPlan(o, p.rails, w.cfg.Limits, only)
	return p, noRails(err, p.excluded)
}

// readOnce reads one generation.
func (w *Worker) readOnce(ctx context.Context, key Key, o Object, opt ReadOptions, to target) (_ ground, _ *ReadReport, err error) {
	p, err := w.prepare(key, &o, opt)
	if err != nil {
		return nil, nil, err
	}
	land, err := to(ctx, &o, p.span, p.lo, p.n)
	if err != nil {
		return nil, nil, err
	}
	defer func() { land.done(err == nil) }()
	j := newReadJob(w, &o, p.span, land, p.rails, p.excluded, opt)
	if err := j.run(ctx, p.plan); err != nil {
		return nil, nil, err
	}
	if err := j.complete(); err != nil {
		return nil, nil, err
	}
	if !opt.later {
		if err := w.recheck(ctx, &o); err != nil {
			return nil, nil, err
		}
	}
	// A cancel before this point wins; after it, it is too late.
	if err := ctx.Err(); err != nil {
		return nil, nil, context.Cause(ctx)
	}
	rep := j.report(p.plan)
	rep.Bytes = p.n
	if opt.Range != nil {
		rep.Offset = opt.Range.Offset
		if p.n < o.Size {
			rep.XXH3 = Sum(land.Bytes()[p.lo : p.lo+p.n])
		}
	}
	return land, rep, nil
}

// same reports whether two descriptors are of one generation, laid out alike.
func same(a, b *Object) bool {
	return a.Handle == b.Handle && a.Placement.LayoutHash == b.Placement.LayoutHash
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
	if !same(&now, o) {
		return fmt.Errorf("%w: generation %d was replaced by %d while it was read", ErrStale, o.Generation, now.Generation)
	}
	return nil
}

// ReadInto reads an object, or a range of it, into dst, which must be large enough,
// and returns how many bytes there are. dst is untouched unless all of it arrived and
// was verified. It is one copy.
func (w *Worker) ReadInto(ctx context.Context, key Key, dst []byte, opt ReadOptions) (int, *ReadReport, error) {
	g, rep, err := w.readCurrent(ctx, key, opt, func(ctx context.Context, o *Object, sp span, lo, n uint64) (ground, error) {
		if uint64(len(dst)) < n {
			return nil, fmt.Errorf("%w: %d bytes of %s, the buffer has %d", ErrTooSmall, n, key, len(dst))
		}
		return w.leased(ctx, o, sp, lo, n)
	})
	if err != nil {
		return 0, nil, err
	}
	buf := g.(*leasing).lease
	defer buf.Release()
	return copy(dst, buf.Bytes()), rep, nil
}

// shardsOf are the shards that hold the stripes of a span, never nil.
func shardsOf(o *Object, sp span) []int {
	out := []int{}
	for i := range o.Placement.Stripes {
		s := &o.Placement.Stripes[i]
		if s.Index >= sp.first && s.Index < sp.last && !slices.Contains(out, s.Shard) {
			out = append(out, s.Shard)
		}
	}
	return out
}

// Explain is the plan that Read would begin with now. It does no I/O but the lookup.
func (w *Worker) Explain(ctx context.Context, key Key, rails []string) (*Plan, error) {
	return w.ExplainRead(ctx, key, ReadOptions{Rails: rails})
}

// ExplainRead is Explain for a read with options.
func (w *Worker) ExplainRead(ctx context.Context, key Key, opt ReadOptions) (*Plan, error) {
	o, err := w.Lookup(ctx, key)
	if err != nil {
		return nil, fail("plan", err, nil)
	}
	p, err := w.prepare(key, &o, opt)
	if err != nil {
		return nil, fail("plan", err, nil)
	}
	p.plan.Excluded = p.excluded
	return p.plan, nil
}
