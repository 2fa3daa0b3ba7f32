package object

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/railstore/railstore/ctrl"
	"github.com/railstore/railstore/pipeline"
)

// PutOptions of one put.
type PutOptions struct {
	IfAbsent bool // fail if the object exists
	// IfGeneration, if not 0, is the generation that must be the current one; else the
	// put fails with ErrConflict.
	IfGeneration uint64
	// TTL is how long the object is there, from its commit on, by the clock of the
	// control plane; 0 is for ever.
	TTL         time.Duration
	StripeBytes uint64         // 0: the worker's
	Rails       []string       // use only these; nil is all
	Progress    func(n uint64) // called as bytes become durable, from several goroutines
}

// PutReport is what a put did.
type PutReport struct {
	Namespace      string         `json:"namespace"`
	Object         string         `json:"object"`
	Generation     uint64         `json:"generation"`
	Bytes          uint64         `json:"bytes"`
	XXH3           string         `json:"xxh3"`
	Stripes        int            `json:"stripes"`
	StripeBytes    uint64         `json:"stripe_bytes"`
	Seconds        float64        `json:"seconds"`
	BytesPerSecond float64        `json:"bytes_per_second"`
	TTLSeconds     float64        `json:"ttl_seconds"`     // 0: for ever
	Replaced       uint64         `json:"replaced"`        // generation that was there before, 0 for none
	RemovedStripes int            `json:"removed_stripes"` // of the replaced generation
	LeftStripes    int            `json:"left_stripes"`    // of it that could not be removed; they stay garbage
	ReroutedBytes  uint64         `json:"rerouted_bytes"`
	MovedStripes   int            `json:"moved_stripes"` // whose directory took none, so that another one has them, if need be of another shard
	Excluded       []string       `json:"excluded"`      // rails that it did without, and why
	Rails          []RailSnapshot `json:"rails"`
}

// Put stores an object under a new generation: every stripe is durable on its
// shard before the one commit to the catalog makes it the current one; then the
// stripes of the generation before are removed. Until the commit a failure leaves
// the object as it was, and the new stripes are removed as far as the shards can
// be reached.
func (w *Worker) Put(ctx context.Context, key Key, src *Source, opt PutOptions) (*PutReport, error) {
	start := time.Now()
	j := &putJob{w: w, opt: opt, src: src, dirty: map[Path]bool{}, meters: map[string]*meter{}}
	if err := j.prepare(ctx, key); err != nil {
		return nil, fail("put", err, nil)
	}
	sctx, cancel := context.WithTimeoutCause(ctx, MaxPutTime, errPutTooLong)
	defer cancel()
	err := j.store(sctx)
	if err == nil {
		j.o.Placement.LayoutHash = LayoutHash(&j.o)
		err = Validate(&j.o, key, w.cfg.Nodes) // what no reader would accept is not committed
	}
	if err != nil {
		left := j.undo(ctx)
		if left > 0 {
			err = both(err, fmt.Errorf("%d stripes of the failed put may be left on their shards", left))
		}
		return nil, fail("put", err, nil)
	}
	old, replaced, err := j.commit(ctx)
	if err != nil {
		if !errors.Is(err, ErrUnknownOutcome) {
			j.undo(ctx)
		}
		return nil, fail("put", err, nil)
	}
	rep := j.report(start)
	if replaced {
		rep.Replaced = old.Generation
		rep.RemovedStripes, rep.LeftStripes = w.removeGarbage(ctx, &old)
	}
	if rep.LeftStripes == 0 {
		w.tidy(ctx)
	}
	return rep, nil
}

// putJob stores the stripes of one new generation.
type putJob struct {
	w      *Worker
	opt    PutOptions
	src    *Source
	o      Object
	plan   *Plan
	railOf []string // by stripe
	rails  []PlanRail
	not    []string // rails that are done without, and why
	meters map[string]*meter

	mu       sync.Mutex
	err      error
	begun    []bool // stripes that a shard may have
	dirty    map[Path]bool
	kept     []*Extent // memory that may still be read
	rerouted uint64
	refusing map[dirAt]bool // directories that took no stripe
	moved    int
}

// dirAt is a directory of a shard.
type dirAt struct{ shard, dir int }

func (j *putJob) prepare(ctx context.Context, key Key) error {
	w := j.w
	if err := CheckKey(key); err != nil {
		return err
	}
	stripeBytes := j.opt.StripeBytes
	if stripeBytes == 0 {
		stripeBytes = w.cfg.StripeBytes
	}
	count, err := StripeCount(j.src.Size, stripeBytes)
	if err != nil {
		return err
	}
	rails, excluded, err := w.usable(j.opt.Rails, nil, nil)
	if err != nil {
		return err
	}
	j.not = excluded
	if err := j.wanted(ctx, key); err != nil {
		return err
	}
	gen, err := w.cfg.Catalog.Begin(ctx, key)
	if err != nil {
		return err
	}
	created := time.Now().UTC()
	j.o = Object{
		Key: key, Generation: gen, LayoutVersion: LayoutVersion, Size: j.src.Size, StripeBytes: stripeBytes, Created: created, TTL: j.opt.TTL,
		Handle: NewHandle(key, gen, LayoutVersion, j.src.Size, stripeBytes, created.UnixNano()),
	}
	stripes, err := Place(key, j.o.Handle, j.o.Size, stripeBytes, w.cfg.Nodes)
	if err != nil {
		return err
	}
	j.o.Placement = Placement{Epoch: w.cfg.Epoch, Policy: Policy, Stripes: stripes}
	j.begun, j.railOf, j.rails = make([]bool, count), make([]string, count), rails
	if j.plan, err = BuildPlan(&j.o, rails, w.cfg.Limits, nil); err != nil {
		return noRails(err, excluded)
	}
	for i := range j.plan.Rails {
		r := &j.plan.Rails[i]
		j.meters[r.Name] = &meter{}
		j.meters[r.Name].plan(r.PlannedBytes)
		w.rails[r.Name].meter.plan(r.PlannedBytes)
		for _, s := range r.Stripes {
			j.railOf[s] = r.Name
		}
	}
	return nil
}

// wanted checks what the put is to find. The commit decides; this saves the work
// when it is lost already.
func (j *putJob) wanted(ctx context.Context, key Key) error {
	switch {
	case j.opt.IfAbsent && j.opt.IfGeneration != 0:
		return fmt.Errorf("%w: a put if the object is absent and if it is generation %d", ErrBadRequest, j.opt.IfGeneration)
	case j.opt.TTL != 0 && (j.opt.TTL < ctrl.MinTTL || j.opt.TTL > ctrl.MaxTTL):
		return fmt.Errorf("%w: a time of %v: want %v to %v", ErrBadRequest, j.opt.TTL, ctrl.MinTTL, ctrl.MaxTTL)
	case !j.opt.IfAbsent && j.opt.IfGeneration == 0:
		return nil
	}
	o, err := j.w.Lookup(ctx, key)
	switch {
	case errors.Is(err, ErrNotFound):
		if j.opt.IfAbsent {
			return nil
		}
		return fmt.Errorf("%w: %s is not there, generation %d was expected", ErrConflict, key, j.opt.IfGeneration)
	case err != nil:
		return err
	case j.opt.IfAbsent:
		return fmt.Errorf("%w: %s, generation %d", ErrExists, key, o.Generation)
	case o.Generation != j.opt.IfGeneration:
		return fmt.Errorf("%w: %s is generation %d, %d was expected", ErrConflict, key, o.Generation, j.opt.IfGeneration)
	}
	return nil
}

// store reads the source in order and sends each stripe off as soon as it is read.
// Memory and byte budget hold the reader back when the shards are slower.
func (j *putJob) store(ctx context.Context) error {
	sctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	whole := xxh3.New()
	var wg sync.WaitGroup
	err := func() error {
		for i := range j.o.Placement.Stripes {
			s := &j.o.Placement.Stripes[i]
			release, err := j.w.takeBytes(sctx, j.railOf[i], s.Length)
			if err != nil {
				return err
			}
			ext, err := j.w.cfg.Slab.Acquire(sctx, int(s.Length))
			if err != nil {
				release()
				return err
			}
			if err := j.src.fill(ext.Bytes(), s.Offset); err != nil {
				ext.Release()
				release()
				return err
			}
			_, _ = whole.Write(ext.Bytes())
			wg.Go(func() {
				defer release()
				if err := j.storeStripe(sctx, s, ext); err != nil {
					j.fail(err)
					stop(errPutFailed)
				}
			})
		}
		return j.src.atEnd()
	}()
	if err != nil && !errors.Is(err, errPutFailed) {
		j.fail(err)
		stop(errPutFailed)
	}
	wg.Wait()
	qerr := j.w.quiesce(ctx, j.dirty)
	for _, x := range j.kept {
		if qerr != nil {
			x.Condemn()
		}
		x.Release()
	}
	if ctx.Err() != nil {
		return both(context.Cause(ctx), qerr)
	}
	j.o.XXH3 = Hex(whole.Sum64())
	return both(j.err, qerr)
}

// errPutFailed is why the other stripes of a failed put are given up.
var errPutFailed = errors.New("another stripe of the put failed")

// errPutTooLong ends a put whose stripes a sweep may soon take for abandoned.
var errPutTooLong = fmt.Errorf("the put took longer than %v", MaxPutTime)

// fail keeps the first error.
func (j *putJob) fail(err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.err == nil && !errors.Is(err, errPutFailed) {
		j.err = err
	}
}

// storeStripe stores one stripe, over another rail when the planned one fails:
// storing twice is harmless, the file's name is the same.
func (j *putJob) storeStripe(ctx context.Context, s *Stripe, ext *Extent) error {
	sum := xxh3.Hash(ext.Bytes())
	s.XXH3 = Hex(sum) // each goroutine writes its own stripe; read after they are joined
	dirty := false
	defer func() {
		if !dirty {
			ext.Release()
			return
		}
		j.mu.Lock()
		j.kept = append(j.kept, ext)
		j.mu.Unlock()
	}()
	j.mu.Lock()
	j.begun[s.Index] = true
	j.mu.Unlock()
	var failed pathErrors
	planned := s.Shard
	for _, shard := range j.shardsFor(s) {
		// A shard that said no has kept nothing: until one says yes the stripe is nowhere.
		s.Shard = shard
		done, full, errs := j.storeAt(ctx, s, ext, shard != planned, &dirty)
		if done {
			if shard != planned {
				pipeline.Emit(ctx, pipeline.Event{Event: "stripe_moved", Shard: &planned, Reason: cmp.Or(failed.Error(), "it has no room"), Fields: map[string]any{"stripe": s.Index, "to_shard": shard}})
			}
			return nil
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if failed = append(failed, errs...); !full {
			break
		}
	}
	return failed.err()
}

// shardsFor are the shards that may take a stripe: its own, and the others for when that
// has no room or its disks fail. Those that are known to refuse come last.
func (j *putJob) shardsFor(s *Stripe) []int {
	nodes := slices.SortedFunc(slices.Values(j.w.cfg.Nodes), func(a, b Node) int { return a.Shard - b.Shard })
	at := slices.IndexFunc(nodes, func(n Node) bool { return n.Shard == s.Shard })
	var open, refusing []int
	j.mu.Lock()
	defer j.mu.Unlock()
	for i := range nodes {
		n := nodes[(at+i)%len(nodes)]
		out := 0
		for dir := range n.Dirs {
			if j.refusing[dirAt{n.Shard, dir}] {
				out++
			}
		}
		if out < n.Dirs {
			open = append(open, n.Shard)
		} else {
			refusing = append(refusing, n.Shard)
		}
	}
	return append(open, refusing...)
}

// storeAt stores a stripe at the shard that it names, over some path. full says that all
// directories there refused it.
func (j *putJob) storeAt(ctx context.Context, s *Stripe, ext *Extent, elsewhere bool, dirty *bool) (done, full bool, failed pathErrors) {
	dir := s.Dir
	full = true // so is one that nothing leads to
	for n, at := range j.paths(s) {
		err := j.storeInSome(ctx, at, s, ext, n == 0)
		if err == nil {
			j.mu.Lock()
			if n > 0 {
				j.rerouted += s.Length
			}
			if elsewhere || s.Dir != dir {
				j.moved++
			}
			j.mu.Unlock()
			if j.opt.Progress != nil {
				j.opt.Progress(s.Length)
			}
			return true, false, nil
		}
		if errors.Is(err, ErrNotQuiet) {
			*dirty = true
			j.mu.Lock()
			j.dirty[at] = true
			j.mu.Unlock()
		}
		if ctx.Err() != nil {
			return false, false, nil
		}
		c := classify(err)
		full = n == 0 && refuses(err)
		err = fail("put", err, &at)
		failed = append(failed, err)
		if c == classTransport {
			j.w.cool(ctx, at, err)
		}
		if c != classTransport && c != classData || j.w.cfg.Limits.OnRailFailure == FailRead {
			break
		}
	}
	return false, full, failed
}

// refuses reports whether a directory has not taken a stripe and may not take others.
func refuses(err error) bool { return errors.Is(err, ErrNoSpace) || errors.Is(err, ErrIO) }

// storeInSome stores a stripe in its directory, or in the next one of the shard when
// that is full or fails: the placement says where it went. What a shard refused it
// has not kept.
//
// Only the first path may choose: after one that failed the shard may have the
// stripe, without our knowing, in the directory that was named then.
func (j *putJob) storeInSome(ctx context.Context, at Path, s *Stripe, ext *Extent, choose bool) error {
	dirs := 1
	for _, n := range j.w.cfg.Nodes {
		if n.Shard == s.Shard && choose {
			dirs = n.Dirs
		}
	}
	planned := s.Dir
	var first error
	for i := range dirs {
		dir := planned
		if choose {
			dir = (planned + i) % dirs // it is another shard's, where the stripe's own was full
		}
		j.mu.Lock()
		skip := j.refusing[dirAt{s.Shard, dir}] && i+1 < dirs
		j.mu.Unlock()
		if skip {
			continue
		}
		s.Dir = dir // each goroutine has its own stripe
		ref := refOf(&j.o, s)
		err := j.storeOver(ctx, at, &ref, ext)
		if err == nil {
			return nil
		}
		if first == nil {
			first = err
		}
		if !refuses(err) {
			return err
		}
		j.mu.Lock()
		if j.refusing == nil {
			j.refusing = map[dirAt]bool{}
		}
		j.refusing[dirAt{s.Shard, dir}] = true
		j.mu.Unlock()
		if i+1 < dirs {
			shard := s.Shard
			pipeline.Emit(ctx, pipeline.Event{Event: "stripe_moved", Shard: &shard, Rail: at.Rail, Reason: err.Error(),
				Fields: map[string]any{"stripe": s.Index, "directory": dir}})
		}
	}
	return first
}

// paths are the ways to a stripe's shard, the planned one first.
func (j *putJob) paths(s *Stripe) []Path {
	var out []Path
	if i := slices.IndexFunc(j.rails, func(r PlanRail) bool { return r.Name == j.railOf[s.Index] }); j.rails[i].reaches(s.Shard) {
		out = append(out, Path{j.railOf[s.Index], s.Shard})
	}
	for i := range j.rails {
		if j.rails[i].Name != j.railOf[s.Index] && j.rails[i].reaches(s.Shard) {
			out = append(out, Path{j.rails[i].Name, s.Shard})
		}
	}
	return out
}

func (j *putJob) storeOver(ctx context.Context, at Path, ref *StripeRef, ext *Extent) error {
	w := j.w
	release, err := take(ctx, w.rails[at.Rail].conns, w.conns, 1)
	if err != nil {
		return err
	}
	defer release()
	start := time.Now()
	mine, rail := j.meters[at.Rail], &w.rails[at.Rail].meter
	mine.begin(ref.Length, start)
	rail.begin(ref.Length, start)
	tctx, cancel := context.WithTimeout(ctx, w.cfg.Limits.IOTimeout)
	err = w.cfg.Transport.StoreStripe(tctx, at, *ref, ext.Piece(0, ref.Length))
	cancel()
	out := moved
	switch {
	case err == nil:
		w.warm(ctx, at, start)
	case errors.Is(err, context.DeadlineExceeded):
		out = timedOut
	case ctx.Err() != nil:
		out = stopped
	default:
		out = failed
	}
	end := time.Now()
	mine.end(ref.Length, start, end, out)
	rail.end(ref.Length, start, end, out)
	if err != nil {
		return prefix(fmt.Errorf("stripe %d", ref.Index), err)
	}
	return nil
}

// undo removes the stripes of a put that did not commit and returns how many may
// be left.
func (j *putJob) undo(ctx context.Context) (left int) {
	var some []*Stripe
	for i, b := range j.begun {
		if b {
			some = append(some, &j.o.Placement.Stripes[i])
		}
	}
	_, left = j.w.deleteStripes(ctx, &j.o, some)
	return left
}

// commit makes the new generation the current one. Once it is begun, a cancel is
// too late. The catalog answers the same commit twice with the same words, so an
// answer that got lost is asked for again; without one nothing is removed, because
// either generation may be the current one.
func (j *putJob) commit(ctx context.Context) (Object, bool, error) {
	expect := AnyOlder
	switch {
	case j.opt.IfAbsent:
		expect = 0
	case j.opt.IfGeneration != 0:
		expect = j.opt.IfGeneration
	}
	cctx, cancel := j.w.detached(ctx)
	defer cancel()
	var last error
	for range 3 {
		old, replaced, err := j.w.cfg.Catalog.Commit(cctx, j.o, expect)
		if err == nil {
			return old, replaced, nil
		}
		last = err
		var conflict *ctrl.ConflictError
		var invalid *ctrl.InvalidError
		switch {
		case errors.As(err, &conflict) && j.opt.IfAbsent:
			return Object{}, false, fmt.Errorf("%w: %w", ErrExists, conflict)
		case errors.As(err, &conflict):
			return Object{}, false, fmt.Errorf("%w: %w", ErrConflict, conflict)
		case errors.As(err, &invalid), errors.Is(err, ctrl.ErrLimit):
			return Object{}, false, err
		}
		if cctx.Err() != nil {
			break
		}
	}
	return Object{}, false, fmt.Errorf("%w: %s generation %d: %w", ErrUnknownOutcome, j.o.Key, j.o.Generation, last)
}

func (j *putJob) report(start time.Time) *PutReport {
	d := time.Since(start)
	rep := &PutReport{
		Excluded:  append([]string{}, j.not...),
		Namespace: j.o.Key.Namespace, Object: j.o.Key.Name, Generation: j.o.Generation, Bytes: j.o.Size, XXH3: j.o.XXH3,
		Stripes: len(j.o.Placement.Stripes), StripeBytes: j.o.StripeBytes, Seconds: d.Seconds(), BytesPerSecond: rate(j.o.Size, d),
		ReroutedBytes: j.rerouted, MovedStripes: j.moved, TTLSeconds: j.opt.TTL.Seconds(), Rails: []RailSnapshot{},
	}
	for i := range j.plan.Rails {
		n := j.plan.Rails[i].Name
		rep.Rails = append(rep.Rails, j.w.snapshot(n, j.meters[n]))
	}
	return rep
}
