package object

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/railstore/railstore/ctrl"
	"github.com/railstore/railstore/pipeline"
)

// RemoveReport is what a removal did.
type RemoveReport struct {
	Namespace      string `json:"namespace"`
	Object         string `json:"object"`
	Generation     uint64 `json:"generation"`
	Bytes          uint64 `json:"bytes"`
	RemovedStripes int    `json:"removed_stripes"`
	LeftStripes    int    `json:"left_stripes"` // that could not be removed; they stay garbage
}

// Remove takes an object out of the catalog and then removes its stripes. Once the
// catalog has forgotten it the object is gone, also when stripes are left: they
// stay listed as garbage for Reclaim.
func (w *Worker) Remove(ctx context.Context, key Key) (*RemoveReport, error) {
	return w.RemoveIf(ctx, key, AnyOlder)
}

// RemoveIf is Remove of one generation, or of any with AnyOlder. If another one is
// current it fails with ErrConflict.
func (w *Worker) RemoveIf(ctx context.Context, key Key, generation uint64) (*RemoveReport, error) {
	if err := CheckKey(key); err != nil {
		return nil, fail("rm", err, nil)
	}
	old, found, err := w.cfg.Catalog.Delete(ctx, key, generation)
	if conflict := (*ctrl.ConflictError)(nil); errors.As(err, &conflict) {
		err = fmt.Errorf("%w: %w", ErrConflict, err)
	}
	if err != nil {
		return nil, fail("rm", err, nil)
	}
	if !found {
		return nil, fail("rm", fmt.Errorf("%w: %s", ErrNotFound, key), nil)
	}
	rep := &RemoveReport{Namespace: key.Namespace, Object: key.Name, Generation: old.Generation, Bytes: old.Size}
	rep.RemovedStripes, rep.LeftStripes = w.removeGarbage(ctx, &old)
	if rep.LeftStripes == 0 {
		w.tidy(ctx)
	}
	return rep, nil
}

// ReclaimReport is what Reclaim did.
type ReclaimReport struct {
	Objects        int `json:"objects"` // generations whose stripes are all gone now
	RemovedStripes int `json:"removed_stripes"`
	LeftStripes    int `json:"left_stripes"`
}

// Reclaim removes the stripes of generations that were replaced or removed while a
// shard was out of reach.
func (w *Worker) Reclaim(ctx context.Context) (ReclaimReport, error) {
	return w.reclaim(ctx, math.MaxInt)
}

// tidy reclaims a little of what others had to leave; whoever changes objects pays
// a small part of the cleaning.
func (w *Worker) tidy(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, deleteTimeout)
	defer cancel()
	if _, err := w.reclaim(ctx, 8); err != nil {
		pipeline.Emit(ctx, pipeline.Event{Event: "garbage_kept", Reason: err.Error()})
	}
}

// reclaim looks at most at so many generations.
func (w *Worker) reclaim(ctx context.Context, most int) (ReclaimReport, error) {
	var rep ReclaimReport
	var after Key
	var gen uint64
	for n := 0; ; n++ {
		if n == most {
			return rep, nil
		}
		o, found, err := w.cfg.Catalog.Garbage(ctx, after, gen)
		if err != nil || !found {
			return rep, fail("reclaim", err, nil)
		}
		removed, left := w.removeGarbage(ctx, &o)
		rep.RemovedStripes += removed
		rep.LeftStripes += left
		if left == 0 {
			rep.Objects++
		}
		if err := ctx.Err(); err != nil {
			return rep, err
		}
		after, gen = o.Key, o.Generation
	}
}

// removeGarbage removes the stripes of a generation that the catalog has taken
// out, and lets the catalog forget it when none is left.
func (w *Worker) removeGarbage(ctx context.Context, o *Object) (removed, left int) {
	all := make([]*Stripe, len(o.Placement.Stripes))
	for i := range all {
		all[i] = &o.Placement.Stripes[i]
	}
	removed, left = w.deleteStripes(ctx, o, all)
	if left == 0 {
		dctx, cancel := w.detached(ctx)
		defer cancel()
		if err := w.cfg.Catalog.Forget(dctx, o.Key, o.Generation); err != nil {
			pipeline.Emit(ctx, pipeline.Event{Event: "garbage_kept", Reason: err.Error()})
		}
	}
	return removed, left
}

// deleteStripes removes stripes, several at a time, also after the caller gave up,
// and counts those that are gone and those that may be left. A shard that does not
// answer is not asked again.
func (w *Worker) deleteStripes(ctx context.Context, o *Object, stripes []*Stripe) (removed, left int) {
	if len(stripes) == 0 {
		return 0, 0
	}
	dctx, cancel := w.detached(ctx)
	defer cancel()
	d := &deletion{w: w, o: o, deaf: map[int]bool{}}
	next := make(chan *Stripe)
	var wg sync.WaitGroup
	for range min(w.cfg.Limits.MaxConns, len(stripes), 16) {
		wg.Go(func() {
			for s := range next {
				d.delete(dctx, s)
			}
		})
	}
	for _, s := range stripes {
		next <- s
	}
	close(next)
	wg.Wait()
	if d.err != nil {
		pipeline.Emit(ctx, pipeline.Event{Event: "stripes_left", Reason: d.err.Error(), Fields: map[string]any{"stripes": d.left}})
	}
	return d.removed, d.left
}

type deletion struct {
	w *Worker
	o *Object

	mu            sync.Mutex
	deaf          map[int]bool
	removed, left int
	err           error
}

func (d *deletion) delete(ctx context.Context, s *Stripe) {
	d.mu.Lock()
	deaf := d.deaf[s.Shard]
	d.mu.Unlock()
	err := error(ErrNoRails)
	if !deaf {
		err = d.w.deleteStripe(ctx, refOf(d.o, s), s.Shard)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if err == nil {
		d.removed++
		return
	}
	d.left++
	if c := classify(err); c == classTransport || c == classCanceled {
		d.deaf[s.Shard] = true
	}
	if d.err == nil {
		d.err = err
	}
}

// deleteTimeout bounds one request for removal: it moves no data, and cleaning up
// must not hold up the answer to a failure for long.
const deleteTimeout = 5 * time.Second

// deleteStripe asks over each rail in turn until the shard answers, over paths that
// are cooling down last: they may serve for this still. A stripe that is not there
// counts as removed. No memory is involved, so nothing is fenced.
func (w *Worker) deleteStripe(ctx context.Context, ref StripeRef, shard int) (err error) {
	var tried int
	for _, cooling := range []bool{false, true} {
		for i := range w.cfg.Rails {
			at := Path{w.cfg.Rails[i].Name, shard}
			if !w.reaches(at.Rail, shard) || w.state(at.Rail) != "" || w.cooling(at) != cooling {
				continue
			}
			tried++
			e := w.deleteOver(ctx, at, ref)
			if e == nil {
				return nil
			}
			err = both(err, fail("delete", e, &at))
			if classify(e) != classTransport {
				return err
			}
		}
	}
	if tried == 0 {
		err = fmt.Errorf("%w: shard %d", ErrNoRails, shard)
	}
	return err
}

func (w *Worker) deleteOver(ctx context.Context, at Path, ref StripeRef) error {
	release, err := take(ctx, w.rails[at.Rail].conns, w.conns, 1)
	if err != nil {
		return err
	}
	defer release()
	dctx, cancel := context.WithTimeout(ctx, min(deleteTimeout, w.cfg.Limits.IOTimeout))
	defer cancel()
	_, err = w.cfg.Transport.DeleteStripe(dctx, at, ref)
	return err
}
