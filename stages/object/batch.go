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
// itself: one that fails takes no other with it, and none is lost.
//
// The buffers of a batch are held until they are released: a batch whose objects do not
// fit the staging memory together ends with ErrNoMemory for those that wait too long.
func (w *Worker) ReadBatch(ctx context.Context, items []BatchItem, together int, opt ReadOptions) []BatchResult {
	out := make([]BatchResult, len(items))
	if together <= 0 || together > len(items) {
		together = len(items)
	}
	turn := make(chan int, len(items))
	for i := range items {
		turn <- i
	}
	close(turn)
	var wg sync.WaitGroup
	for range together {
		wg.Go(func() {
			for i := range turn {
				o := opt
				o.Range = items[i].Range
				r := &out[i]
				r.Buffer, r.Report, r.Err = w.Read(ctx, items[i].Key, o)
			}
		})
	}
	wg.Wait()
	return out
}
