package object

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/railstore/railstore/pipeline"
)

// errHedged ends the transfer of a stripe that came over another rail first.
var errHedged = errors.New("the stripe came over another rail")

// silence is how long a transfer that is given up may take to be over: its late
// answer is waited for, then its QP is destroyed.
const silence = 1500 * time.Millisecond

// hedgeAt is when a stripe that is asked for now is late: when it takes twice as long
// as others and the deadline of the read is near. It reports false when nothing is to
// be hedged: no deadline, or no other rail.
func (j *readJob) hedgeAt() (time.Time, bool) {
	if !j.w.cfg.Limits.Hedge || j.deadline.IsZero() || len(j.meters) < 2 {
		return time.Time{}, false
	}
	now, typical, whole := time.Now(), j.typical(), j.deadline.Sub(j.start)
	// Near is when there is just time to ask once more, and to silence the first.
	near := min(max(whole/4, 4*typical)+silence, whole/2)
	late := now.Add(2 * typical)
	if typical == 0 {
		late = now.Add(near / 4)
	}
	if at := j.deadline.Add(-near); late.Before(at) {
		late = at
	}
	return late, true
}

// elsewhere is another rail that reaches the shard.
func (j *readJob) elsewhere(at Path) (Path, bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for i := range j.rails {
		if r := &j.rails[i]; r.Name != at.Rail && r.reaches(at.Shard) {
			return Path{r.Name, at.Shard}, true
		}
	}
	return Path{}, false
}

// hedge gets a stripe over a path and, when it is late, over another one, too, into
// memory of its own: two writers never share memory. Whichever comes first counts;
// the other is ended and silenced before the stripe is taken for there. Its
// error is about the first path.
func (j *readJob) hedge(ctx context.Context, at Path, stripe uint32, when time.Time) error {
	actx, stopA := context.WithCancelCause(ctx)
	defer stopA(nil)
	first := make(chan transferred, 1)
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { first <- j.transfer(actx, at, stripe, j.piece(stripe), false) })
	timer := time.NewTimer(time.Until(when))
	defer timer.Stop()
	alone := func(a transferred) error {
		a.settle()
		if a.err == nil {
			j.have(stripe)
		}
		return a.err
	}
	select {
	case a := <-first:
		return alone(a)
	case <-timer.C:
	}
	over, ok := j.elsewhere(at)
	if !ok {
		return alone(<-first)
	}
	scratch, ok := j.w.cfg.Slab.TryAcquire(int(j.refs[stripe].Length))
	if !ok {
		return alone(<-first)
	}
	defer scratch.Release()
	shard := at.Shard
	pipeline.Emit(ctx, pipeline.Event{Event: "stripe_hedged", Shard: &shard, Rail: at.Rail, Fields: map[string]any{"stripe": stripe, "over": over.Rail}})
	j.mu.Lock()
	j.hedges++
	j.mu.Unlock()
	bctx, stopB := context.WithCancelCause(ctx)
	defer stopB(nil)
	second := make(chan transferred, 1)
	wg.Go(func() { second <- j.hedgeOver(bctx, over, stripe, scratch) })

	var a, b transferred
	select {
	case a = <-first:
		if a.err == nil {
			stopB(errHedged)
		}
		b = <-second
	case b = <-second:
		if b.err == nil {
			stopA(errHedged)
		}
		a = <-first
	}
	if errors.Is(b.err, ErrNotQuiet) {
		if err := j.w.quiesce(ctx, map[Path]bool{over: true}); err != nil {
			scratch.Condemn()
		}
	}
	switch {
	case a.err == nil:
		if b.err == nil {
			b.out = stopped
		}
		a.settle()
		b.settle()
		if b.err != nil {
			j.blame(bctx, over, b.err)
		}
		j.have(stripe)
		return nil
	case b.err != nil:
		a.settle()
		b.settle()
		j.blame(bctx, over, b.err)
		return a.err
	}
	a.settle()
	if errors.Is(a.err, ErrNotQuiet) {
		if err := j.w.quiesce(ctx, map[Path]bool{at: true}); err != nil {
			b.settleAs(stopped)
			return both(a.err, err) // the place may still be written
		}
	}
	place := j.piece(stripe).Bytes
	var wrong []byte
	if classify(a.err) == classData {
		wrong = append(wrong, place...)
	}
	copy(place, scratch.Bytes())
	b.settle()
	j.mu.Lock()
	if wrong != nil {
		j.corruptLocked(ctx, badStripe{stripe, at, a.err}, over, wrong, place)
	} else {
		j.moveLocked(stripe, over.Rail, MoveHedge)
		j.late[at] = true
	}
	j.mu.Unlock()
	j.blame(actx, at, a.err)
	j.have(stripe)
	return nil
}

// blame takes a path out of the read for a transfer that failed, unless it was ended
// from here. The stripe itself is somebody else's business by now.
func (j *readJob) blame(ctx context.Context, at Path, err error) {
	if ctx.Err() != nil || classify(err) != classTransport {
		return
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.losePathLocked(ctx, at, fail("read", err, &at))
}

func (j *readJob) hedgeOver(ctx context.Context, at Path, stripe uint32, scratch *Extent) transferred {
	release, err := take(ctx, j.w.rails[at.Rail].conns, j.w.conns, 1)
	if err != nil {
		return transferred{err: err}
	}
	defer release()
	return j.transfer(ctx, at, stripe, scratch.Piece(0, j.refs[stripe].Length), false)
}

// rereadBad gets the stripes that came wrong once more, one at a time, over
// another rail if one reaches the shard. The shard is asked to check its file, so
// a second failure tells a damaged disk from a damaged path. Where the other rail
// brings the right bytes, the first is put into quarantine.
func (j *readJob) rereadBad(ctx context.Context) {
	bad := j.bad
	j.bad = nil
	for _, b := range bad {
		at, other := j.elsewhere(b.from)
		if !other {
			at = b.from
		}
		place := j.piece(b.stripe).Bytes
		wrong := append([]byte(nil), place...)
		j.rereads++
		shard := at.Shard
		pipeline.Emit(ctx, pipeline.Event{Event: "stripe_reread", Shard: &shard, Rail: b.from.Rail, Reason: b.err.Error(), Fields: map[string]any{"stripe": b.stripe, "over": at.Rail}})
		err := j.fetchAlone(ctx, at, b.stripe)
		if err == nil {
			j.mu.Lock()
			j.corruptLocked(ctx, b, at, wrong, place)
			j.mu.Unlock()
			continue
		}
		j.mu.Lock()
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
		j.mu.Unlock()
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
	x := j.transfer(ctx, at, stripe, j.piece(stripe), true)
	x.settle()
	if x.err == nil {
		j.have(stripe)
	}
	return x.err
}

// corruptLocked records a stripe that came right the second time. right is what it
// is, wrong what came first.
func (j *readJob) corruptLocked(ctx context.Context, b badStripe, at Path, wrong, right []byte) {
	c := Corruption{Rail: b.from.Rail, Shard: b.from.Shard, Stripe: b.stripe, RereadOn: at.Rail, Corrected: true}
	for i := range right {
		if wrong[i] != right[i] {
			if c.Wrong == 0 {
				c.Offset = j.refs[b.stripe].off + uint64(i)
			}
			c.Wrong++
		}
	}
	j.corruptions = append(j.corruptions, c)
	if at.Rail == b.from.Rail {
		return // nothing tells the rail from chance
	}
	j.moveLocked(b.stripe, at.Rail, MoveChecksum)
	why := fmt.Sprintf("stripe %d of %s came with %d wrong bytes from offset %d on, and right over rail %s", b.stripe, j.o.Key, c.Wrong, c.Offset, at.Rail)
	if errors.Is(b.err, ErrCorrupt) {
		return // the shard's file was wrong, and is right now
	}
	j.w.quarantine(ctx, b.from.Rail, why)
	// What only this rail reaches it still brings: every stripe is checked.
	rails := slices.Clone(j.rails)
	for i := range rails {
		if rails[i].Name == b.from.Rail {
			rails[i].Shards = slices.DeleteFunc(slices.Clone(rails[i].Shards), func(s int) bool {
				return slices.ContainsFunc(rails, func(o PlanRail) bool { return o.Name != b.from.Rail && o.reaches(s) })
			})
		}
	}
	j.rails = rails
}

// quarantine leaves a rail alone that delivers wrong bytes.
func (w *Worker) quarantine(ctx context.Context, rail, why string) {
	w.health.corrupted(rail, w.reach(&w.rails[rail].PlanRail), why, w.cfg.Limits.Quarantine)
	pipeline.Emit(ctx, pipeline.Event{Event: "rail_quarantined", Rail: rail, Reason: why, Seconds: w.cfg.Limits.Quarantine.Seconds()})
}
