package object

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/zeebo/xxh3"
)

// round runs the tasks of a plan and waits for all of them. Each rail starts its
// tasks in the plan's order as the caps allow.
func (j *readJob) round(ctx context.Context, plan *Plan) {
	rctx, stop := context.WithCancel(ctx)
	defer stop() // of the paths, too
	j.stop, j.roundCtx, j.running = stop, rctx, map[Path]*pathRun{}
	perRail := make([][]*taskRun, len(plan.Rails))
	for i := range plan.Tasks {
		t := &plan.Tasks[i]
		run := &taskRun{Task: t, run: j.pathLocked(Path{t.Rail, t.Shard}), last: len(t.Stripes)}
		j.tasks, perRail[t.rail] = append(j.tasks, run), append(perRail[t.rail], run)
	}
	var wg sync.WaitGroup
	for _, tasks := range perRail {
		wg.Go(func() { j.runRail(rctx, &wg, tasks) })
	}
	wg.Wait()
	j.running, j.tasks = nil, nil
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

func (j *readJob) runRail(ctx context.Context, wg *sync.WaitGroup, tasks []*taskRun) {
	for i, t := range tasks {
		release, err := take(ctx, j.w.rails[t.Rail].conns, j.w.conns, 1)
		if err != nil {
			for _, t := range tasks[i:] {
				j.leave(t)
			}
			return
		}
		wg.Go(func() {
			defer release()
			j.runTask(t)
		})
	}
}

// runTask fetches the stripes of a task, TaskDepth at a time, so that the shard
// has the next request while we verify.
func (j *readJob) runTask(t *taskRun) {
	r := t.run
	var wg sync.WaitGroup
	for range min(j.w.cfg.Limits.TaskDepth, len(t.Stripes)) {
		wg.Go(func() {
			for r.ctx.Err() == nil {
				stripe, ok := j.claim(t)
				if !ok {
					j.help(t.Rail)
					return
				}
				if !j.goRound(r.at, stripe) {
					j.settle(r, stripe, j.fetch(r.ctx, r.at, stripe, false))
				}
			}
			j.leave(t)
		})
	}
	wg.Wait()
}

// leave keeps the stripes of a task that were not begun for the next round.
func (j *readJob) leave(t *taskRun) {
	j.mu.Lock()
	j.missing = append(j.missing, t.Stripes[t.first:t.last]...)
	t.first = t.last
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
	}
}

// losePathLocked takes a path out of the read after a failure, and ends what is under
// way on it. A canary that fails never ends a read: nobody counted on it.
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
		if r := j.running[at]; r != nil {
			r.stop(errPathFailed)
		}
	}
	if j.w.cfg.Limits.OnRailFailure == FailRead && !j.canary[at] {
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

// fetch gets one stripe over one path to where it belongs, and verifies it there, on
// the goroutine that asked for it. It may come over another path in the end; see
// hedge.
func (j *readJob) fetch(ctx context.Context, at Path, stripe uint32, verify bool) error {
	if when, ok := j.hedgeAt(); ok {
		return j.hedge(ctx, at, stripe, when)
	}
	x := j.transfer(ctx, at, stripe, j.piece(stripe), verify)
	x.settle()
	if x.err == nil {
		j.have(stripe)
	}
	return x.err
}

// have says that a stripe is where it belongs.
func (j *readJob) have(stripe uint32) {
	j.order.add(stripe - j.span.first)
	if j.opt.Progress != nil {
		j.opt.Progress(j.refs[stripe].Length)
	}
}

// transferred is one transfer that is over and not yet counted.
type transferred struct {
	err    error
	meters []*meter // nil: it did not begin
	n      uint64
	start  time.Time
	end    time.Time
	out    outcome
}

// settle counts the transfer for what it was.
func (x *transferred) settle() { x.settleAs(x.out) }

// settleAs counts it for something else: of two transfers of one stripe only one has
// moved it.
func (x *transferred) settleAs(o outcome) {
	for _, m := range x.meters {
		m.end(x.n, x.start, x.end, o)
	}
	x.meters = nil
}

// transfer moves one stripe over one path to a place and verifies it there.
func (j *readJob) transfer(ctx context.Context, at Path, stripe uint32, dst Piece, verify bool) (x transferred) {
	w, ref := j.w, &j.refs[stripe]
	release, err := w.takeBytes(ctx, at.Rail, ref.Length)
	if err != nil {
		return transferred{err: err}
	}
	defer release()
	x = transferred{meters: []*meter{j.meters[at.Rail], &w.rails[at.Rail].meter}, n: ref.Length, start: time.Now()}
	for _, m := range x.meters {
		m.begin(ref.Length, x.start)
	}
	limit := w.cfg.Limits.IOTimeout
	if j.canary[at] {
		limit = min(limit, canaryTimeout)
	}
	x.err = w.fetchVerified(ctx, at, ref, dst, verify, limit)
	x.end, x.out = time.Now(), moved
	switch {
	case x.err == nil:
		w.warm(ctx, at, x.start)
	case errors.Is(x.err, context.DeadlineExceeded):
		x.out = timedOut
	case ctx.Err() != nil:
		x.out = stopped
	default:
		x.out = failed
	}
	return x
}

// canaryTimeout bounds a stripe that is to show whether a path works again: a read
// should not wait long for what it does not need.
const canaryTimeout = 5 * time.Second

func (w *Worker) fetchVerified(ctx context.Context, at Path, ref *StripeRef, dst Piece, verify bool, limit time.Duration) error {
	tctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	got, err := w.cfg.Transport.FetchStripe(tctx, at, *ref, dst, verify)
	if err != nil {
		return prefix(fmt.Errorf("stripe %d", ref.Index), err)
	}
	if got.Length != ref.Length {
		return fmt.Errorf("%w: stripe %d: the shard sent %d bytes, the placement says %d", ErrWrongLength, ref.Index, got.Length, ref.Length)
	}
	if h := xxh3.Hash(dst.Bytes); h != ref.XXH3 {
		return fmt.Errorf("%w: stripe %d over rail %s (bytes %d to %d of the object, directory %d, file %s): xxh3 %s, the placement says %s, the shard's file %s",
			ErrChecksum, ref.Index, at.Rail, ref.off, ref.off+ref.Length, ref.Dir, ref.File, Hex(h), Hex(ref.XXH3), Hex(got.XXH3))
	}
	return nil
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
