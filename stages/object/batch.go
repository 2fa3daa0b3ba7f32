package object

import (
	"context"
	"sync"
)

// BatchItem is one read of a batch.
type BatchItem struct {
	Key   Key
	Range *Range
}

// BatchResult is what became of one item. Either Err is set, or the other two are; the
// buffer is the caller's to release.
type BatchResult struct {
	Buffer *LeasedBuffer
	Report *ReadReport
	Err    error
}

// ReadBatch reads several objects, at most together (0: all) of them at once, under the
// limits of all reads. Results are in the order of the items, and each stands for
// itself: one that fails takes no other with it, and none is lost. The catalog is asked
// about all of them at once, before and, with Limits.Recheck, afterwards; one that was
// replaced meanwhile is read anew.
//
// The buffers of a batch are held until they are released: a batch whose objects do not
// fit the staging memory together ends with ErrNoMemory for those that wait too long.
func (w *Worker) ReadBatch(ctx context.Context, items []BatchItem, together int, opt ReadOptions) []BatchResult {
	out := make([]BatchResult, len(items))
	every := make([]int, len(items))
	keys := make([]Key, len(items))
	for i := range items {
		every[i], keys[i] = i, items[i].Key
	}
	found := w.lookupMany(ctx, keys)
	w.readSome(ctx, items, every, together, out, func(i int) ReadOptions {
		o := opt
		o.Range, o.later = items[i].Range, true
		if obj, ok := found[items[i].Key]; ok {
			o.found = &obj
		}
		return o
	})
	if !w.cfg.Limits.Recheck {
		return out
	}
	keys = keys[:0]
	for i := range out {
		if out[i].Err == nil {
			keys = append(keys, items[i].Key)
		}
	}
	var again []int
	found = w.lookupMany(ctx, keys)
	for i := range out {
		if r := &out[i]; r.Err == nil {
			if now, ok := found[items[i].Key]; !ok || !same(&now, r.Buffer.Object()) {
				r.Buffer.Release()
				again = append(again, i)
			}
		}
	}
	w.readSome(ctx, items, again, together, out, func(i int) ReadOptions {
		o := opt
		o.Range = items[i].Range
		return o
	})
	for _, i := range again {
		if r := out[i].Report; r != nil {
			r.Attempts++
			r.Degraded = true
		}
	}
	return out
}

// readSome reads the items with the given numbers.
func (w *Worker) readSome(ctx context.Context, items []BatchItem, which []int, together int, out []BatchResult, options func(i int) ReadOptions) {
	if together <= 0 || together > len(which) {
		together = len(which)
	}
	turn := make(chan int, len(which))
	for _, i := range which {
		turn <- i
	}
	close(turn)
	var wg sync.WaitGroup
	for range together {
		wg.Go(func() {
			for i := range turn {
				r := &out[i]
				r.Buffer, r.Report, r.Err = w.Read(ctx, items[i].Key, options(i))
			}
		})
	}
	wg.Wait()
}

// lookupMany gives the objects of the keys that are there. What it does not give is looked
// up by whoever wants it, who then has the error: that a key is none, that there is no such
// object, or that the catalog does not answer.
func (w *Worker) lookupMany(ctx context.Context, keys []Key) map[Key]Object {
	out := make(map[Key]Object, len(keys))
	asked := make([]Key, 0, len(keys))
	for _, k := range keys {
		if _, twice := out[k]; !twice && CheckKey(k) == nil {
			out[k] = Object{}
			asked = append(asked, k)
		}
	}
	clear(out)
	if len(asked) == 0 {
		return out
	}
	objects, err := w.cfg.Catalog.LookupMany(ctx, asked)
	if err != nil {
		return out
	}
	for i := range objects {
		if o := &objects[i]; o.Generation != 0 {
			out[asked[i]] = *o
		}
	}
	return out
}
