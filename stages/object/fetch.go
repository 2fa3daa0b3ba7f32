package object

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/railstore/railstore/pipeline"
)

// readJob moves the stripes of one object into one extent.
type readJob struct {
	w      *Worker
	o      *Object
	ext    *Extent
	opt    ReadOptions
	refs   []StripeRef // by stripe index
	offs   []uint64
	meters map[string]*meter
	order  *inOrder

	excluded []string // rails and paths that were down from the start

	mu       sync.Mutex
	rails    []PlanRail         // without the paths that failed in this job
	missing  []uint32           // stripes for the next round
	bad      []badStripe        // stripes that came wrong
	dirty    map[Path]bool      // paths whose writes may still come
	lost     map[Path]error     // paths that failed
	fatal    error              // first error that ends the read
	stop     context.CancelFunc // of the round
	rereads  uint64
	rerouted uint64
}

func newReadJob(w *Worker, o *Object, ext *Extent, rails []PlanRail, excluded []string, opt ReadOptions) *readJob {
	j := &readJob{
		w: w, o: o, ext: ext, opt: opt, rails: rails, excluded: excluded,
		refs: make([]StripeRef, len(o.Placement.Stripes)), offs: make([]uint64, len(o.Placement.Stripes)),
		meters: make(map[string]*meter, len(rails)), dirty: map[Path]bool{}, lost: map[Path]error{},
	}
	for i := range o.Placement.Stripes {
		s := &o.Placement.Stripes[i]
		j.refs[s.Index], j.offs[s.Index] = refOf(o, s), s.Offset
	}
	for i := range rails {
		j.meters[rails[i].Name] = &meter{}
	}
	j.order = newInOrder(ext.Bytes(), o.StripeBytes, len(j.refs))
	return j
}

// run carries out the plan, and, with Failover, new plans for what failed paths
// left over, until everything is there or a shard is out of reach.
func (j *readJob) run(ctx context.Context, plan *Plan) error {
	for i := range plan.Rails {
		r := &plan.Rails[i]
		j.meters[r.Name].plan(r.PlannedBytes)
		j.w.rails[r.Name].meter.plan(r.PlannedBytes)
	}
	for {
		j.round(ctx, plan)
		err := j.fence(ctx)
		if err == nil && j.fatal == nil {
			j.rereadBad(ctx)
			err = j.fence(ctx)
		}
		switch {
		case err != nil:
			j.ext.Condemn()
			return both(j.fatal, err)
		case j.fatal != nil:
			return j.fatal
		case len(j.missing) == 0:
			return nil
		}
		if plan, err = BuildPlan(j.o, j.rails, j.w.cfg.Limits, j.missing); err != nil {
			return fmt.Errorf("%w: %w", err, j.causes())
		}
		for i := range plan.Rails {
			j.rerouted += plan.Rails[i].PlannedBytes
		}
		j.missing = nil
	}
}

// causes are the failures of all paths, in one line.
func (j *readJob) causes() error {
	var out pathErrors
	for _, n := range j.w.cfg.Nodes {
		for i := range j.w.cfg.Rails {
			if err := j.lost[Path{j.w.cfg.Rails[i].Name, n.Shard}]; err != nil {
				out = append(out, err)
			}
		}
	}
	return out.err()
}

// round runs the tasks of a plan and waits for all of them. Each rail starts its
// tasks in the plan's order as the caps allow.
func (j *readJob) round(ctx context.Context, plan *Plan) {
	rctx, stop := context.WithCancel(ctx)
	defer stop()
	j.stop = stop
	paths := map[Path]*pathRun{}
	perRail := make([][]*Task, len(plan.Rails))
	for i := range plan.Tasks {
		t := &plan.Tasks[i]
		p := Path{t.Rail, t.Shard}
		if paths[p] == nil {
			r := &pathRun{at: p}
			r.ctx, r.stop = context.WithCancelCause(rctx)
			defer r.stop(nil)
			paths[p] = r
		}
		perRail[t.rail] = append(perRail[t.rail], t)
	}
	var wg sync.WaitGroup
	for _, tasks := range perRail {
		wg.Go(func() { j.runRail(rctx, &wg, tasks, paths) })
	}
	wg.Wait()
	if err := ctx.Err(); err != nil && j.fatal == nil && (len(j.missing) > 0 || !j.order.done()) {
		j.fatal = context.Cause(ctx)
	}
}

// pathRun is one path in one round. Its context ends when it fails.
type pathRun struct {
	at   Path
	ctx  context.Context
	stop context.CancelCauseFunc
}

// errPathFailed ends the other transfers of a path that failed.
var errPathFailed = errors.New("another transfer of the path failed")

func (j *readJob) runRail(ctx context.Context, wg *sync.WaitGroup, tasks []*Task, paths map[Path]*pathRun) {
	for i, t := range tasks {
		r := paths[Path{t.Rail, t.Shard}]
		release, err := take(ctx, j.w.rails[t.Rail].conns, j.w.conns, 1)
		if err != nil {
			for _, t := range tasks[i:] {
				j.leave(t.Stripes)
			}
			return
		}
		wg.Go(func() {
			defer release()
			j.runTask(r, t)
		})
	}
}

// runTask fetches the stripes of a task, TaskDepth at a time, so that the shard
// has the next request while we verify.
func (j *readJob) runTask(r *pathRun, t *Task) {
	var next atomic.Int64
	var wg sync.WaitGroup
	for range min(j.w.cfg.Limits.TaskDepth, len(t.Stripes)) {
		wg.Go(func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= len(t.Stripes) {
					return
				}
				if r.ctx.Err() != nil {
					j.leave(t.Stripes[i : i+1])
					continue
				}
				j.settle(r, t.Stripes[i], j.fetch(r.ctx, r.at, t.Stripes[i], false))
			}
		})
	}
	wg.Wait()
}

// leave keeps stripes that were not begun for the next round.
func (j *readJob) leave(stripes []uint32) {
	j.mu.Lock()
	j.missing = append(j.missing, stripes...)
	j.mu.Unlock()
}

// settle decides what the outcome of a stripe means for the read.
func (j *readJob) settle(r *pathRun, stripe uint32, err error) {
	if err == nil {
		return
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if errors.Is(err, ErrNotQuiet) {
		j.dirty[r.at] = true
	}
	switch c := classify(err); {
	case c == classData:
		j.bad = append(j.bad, badStripe{stripe, r.at, err})
	case c == classStale || c == classService:
		j.endLocked(fail("read", err, &r.at))
	case r.ctx.Err() != nil:
		// Not this transfer's fault: its path or the whole read was ended.
		j.missing = append(j.missing, stripe)
	default:
		j.missing = append(j.missing, stripe)
		j.losePathLocked(r.ctx, r.at, fail("read", err, &r.at))
		r.stop(errPathFailed)
	}
}

// losePathLocked takes a path out of the read after a failure.
func (j *readJob) losePathLocked(ctx context.Context, at Path, err error) {
	if _, known := j.lost[at]; !known {
		j.lost[at] = err
		j.w.cool(ctx, at, err)
		rails := slices.Clone(j.rails)
		for i := range rails {
			if rails[i].Name == at.Rail {
				rails[i].Shards = slices.DeleteFunc(slices.Clone(rails[i].Shards), func(s int) bool { return s == at.Shard })
			}
		}
		j.rails = rails
	}
	if j.w.cfg.Limits.OnRailFailure == FailRead {
		j.endLocked(err)
	}
}

// endLocked ends the read with its first error.
func (j *readJob) endLocked(err error) {
	if j.fatal == nil {
		j.fatal = err
	}
	j.stop()
}

// badStripe is a stripe that arrived with wrong bytes.
type badStripe struct {
	stripe uint32
	from   Path
	err    error
}

// rereadBad gets the stripes that came wrong once more, one at a time, over
// another rail if one reaches the shard. The shard is asked to check its file, so
// a second failure tells a damaged disk from a damaged path.
func (j *readJob) rereadBad(ctx context.Context) {
	bad := j.bad
	j.bad = nil
	for _, b := range bad {
		at := b.from
		for i := range j.rails {
			if j.rails[i].Name != at.Rail && j.rails[i].reaches(at.Shard) {
				at.Rail = j.rails[i].Name
				break
			}
		}
		j.rereads++
		shard := at.Shard
		pipeline.Emit(ctx, pipeline.Event{Event: "stripe_reread", Shard: &shard, Rail: b.from.Rail, Reason: b.err.Error(), Fields: map[string]any{"stripe": b.stripe, "over": at.Rail}})
		err := j.fetchAlone(ctx, at, b.stripe)
		if err == nil {
			continue
		}
		if errors.Is(err, ErrNotQuiet) {
			j.dirty[at] = true
		}
		switch classify(err) {
		case classTransport:
			j.missing = append(j.missing, b.stripe)
			j.losePathLocked(ctx, at, fail("read", err, &at))
		case classCanceled:
			j.endLocked(context.Cause(ctx))
		default:
			// The first error comes first: the bytes were wrong.
			j.endLocked(fail("read", fmt.Errorf("%w; read again over rail %s: %w", b.err, at.Rail, err), &b.from))
		}
		if j.fatal != nil {
			return
		}
	}
}

// fetchAlone fetches one stripe under the caps, outside a plan.
func (j *readJob) fetchAlone(ctx context.Context, at Path, stripe uint32) error {
	release, err := take(ctx, j.w.rails[at.Rail].conns, j.w.conns, 1)
	if err != nil {
		return err
	}
	defer release()
	return j.fetch(ctx, at, stripe, true)
}

// fetch gets one stripe over one path and verifies it where it arrived, on the
// goroutine that asked for it.
func (j *readJob) fetch(ctx context.Context, at Path, stripe uint32, verify bool) error {
	w, ref := j.w, &j.refs[stripe]
	release, err := w.takeBytes(ctx, at.Rail, ref.Length)
	if err != nil {
		return err
	}
	defer release()
	dst := j.ext.Piece(j.offs[stripe], ref.Length)
	start := time.Now()
	mine, rail := j.meters[at.Rail], &w.rails[at.Rail].meter
	mine.begin(ref.Length, start)
	rail.begin(ref.Length, start)
	err = w.fetchVerified(ctx, at, ref, dst, verify)
	end, out := time.Now(), moved
	switch {
	case err == nil:
	case errors.Is(err, context.DeadlineExceeded):
		out = timedOut
	case ctx.Err() != nil:
		out = stopped
	default:
		out = failed
	}
	mine.end(ref.Length, start, end, out)
	rail.end(ref.Length, start, end, out)
	if err != nil {
		return err
	}
	w.warm(at)
	j.order.add(stripe)
	if j.opt.Progress != nil {
		j.opt.Progress(ref.Length)
	}
	return nil
}

func (w *Worker) fetchVerified(ctx context.Context, at Path, ref *StripeRef, dst Piece, verify bool) error {
	tctx, cancel := context.WithTimeout(ctx, w.cfg.Limits.IOTimeout)
	defer cancel()
	got, err := w.cfg.Transport.FetchStripe(tctx, at, *ref, dst, verify)
	if err != nil {
		return prefix(fmt.Errorf("stripe %d", ref.Index), err)
	}
	if got.Length != ref.Length {
		return fmt.Errorf("%w: stripe %d: the shard sent %d bytes, the placement says %d", ErrWrongLength, ref.Index, got.Length, ref.Length)
	}
	if h := xxh3.Hash(dst.Bytes); h != ref.XXH3 {
		return fmt.Errorf("%w: stripe %d (%d bytes, directory %d, file %s): xxh3 %s, the placement says %s, the shard's file %s",
			ErrChecksum, ref.Index, ref.Length, ref.Dir, ref.File, Hex(h), Hex(ref.XXH3), Hex(got.XXH3))
	}
	return nil
}

// fence makes sure that nothing of the round before can still reach the extent.
func (j *readJob) fence(ctx context.Context) error {
	err := j.w.quiesce(ctx, j.dirty)
	if err == nil {
		j.dirty = map[Path]bool{}
	}
	return err
}

// quiesce silences the given paths, also after the caller gave up.
func (w *Worker) quiesce(ctx context.Context, paths map[Path]bool) error {
	if len(paths) == 0 {
		return nil
	}
	dctx, cancel := w.detached(ctx)
	defer cancel()
	var err error
	for p := range paths {
		if e := w.cfg.Transport.Quiesce(dctx, p); e != nil {
			err = both(err, fmt.Errorf("%w: %v was not silenced, the memory stays out of use: %w", ErrNotQuiet, p, e))
		}
	}
	return err
}

// complete is the last check: all stripes, all bytes, and the hash of the whole.
func (j *readJob) complete() error {
	n, bytes, sum := j.order.result()
	if n != len(j.refs) || bytes != j.o.Size {
		return fmt.Errorf("%w: %d of %d stripes, %d of %d bytes", ErrIncomplete, n, len(j.refs), bytes, j.o.Size)
	}
	if h := Hex(sum); h != j.o.XXH3 {
		return fmt.Errorf("%w: every stripe is right but the whole has xxh3 %s, the catalog says %s", ErrChecksum, h, j.o.XXH3)
	}
	return nil
}

func (j *readJob) report(plan *Plan) *ReadReport {
	if j.excluded == nil {
		j.excluded = []string{}
	}
	rep := &ReadReport{
		Namespace: j.o.Key.Namespace, Object: j.o.Key.Name, Generation: j.o.Generation, Bytes: j.o.Size, XXH3: j.o.XXH3,
		Rereads: j.rereads, ReroutedBytes: j.rerouted, Excluded: j.excluded, Degraded: j.rereads > 0 || j.rerouted > 0 || len(j.excluded) > 0, Rails: []RailSnapshot{},
	}
	for i := range plan.Rails {
		rep.Rails = append(rep.Rails, j.w.snapshot(plan.Rails[i].Name, j.meters[plan.Rails[i].Name]))
	}
	return rep
}
