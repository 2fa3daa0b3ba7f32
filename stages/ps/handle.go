package ps

import (
	"context"
	"fmt"

	"github.com/railstore/railstore/pipeline"
)

// Handle is a call under way. Wait must be called once: until then its requests take
// slots, and the caller's slices belong to it.
type Handle struct {
	b   *batch
	gen uint64
	op  uint16
}

func (t *Table) launch(ctx context.Context, op uint16, keys []uint64, rows []float32, found []bool, late bool) (Handle, error) {
	if err := t.check(op, keys, rows, found, !late); err != nil {
		return Handle{}, err
	}
	b := t.c.borrow()
	err := b.begin(t, op, keys, rows, found)
	b.late = late
	if err == nil {
		err = b.start(ctx)
	}
	if err != nil {
		for _, k := range b.chunks[:b.n] {
			k.release()
		}
		t.c.lend(b)
		return Handle{}, err
	}
	return Handle{b: b, gen: b.gen.Load(), op: op}, nil
}

// StartGet begins a Get. What finds no slot, or goes beyond lanes.asyncDepth, is sent
// when Wait is called. When nothing at all may be sent for the depth, it is ErrDepth.
func (t *Table) StartGet(ctx context.Context, keys []uint64, rows []float32, found []bool) (Handle, error) {
	return t.launch(ctx, OpGet, keys, rows, found, false)
}

// StartPut begins a Put. Two calls under way at once are done in any order.
func (t *Table) StartPut(ctx context.Context, keys []uint64, rows []float32) (Handle, error) {
	return t.launch(ctx, OpPut, keys, rows, nil, false)
}

// StartUpdate begins an Update.
func (t *Table) StartUpdate(ctx context.Context, keys []uint64, grads []float32) (Handle, error) {
	return t.launch(ctx, OpUpdate, keys, grads, nil, false)
}

// claim makes the handle the caller's, once.
func (h Handle) claim() error {
	if h.b == nil || !h.b.gen.CompareAndSwap(h.gen, h.gen+1) {
		return pipeline.Errorf(pipeline.LayerUsage, "wait", pipeline.Nowhere, "%s: %w", opName(h.op), ErrHandleUsed)
	}
	return nil
}

// Wait ends the call, as the one that is not asynchronous does. A second Wait is
// ErrHandleUsed. When ctx ends, the call is given up, and it is over all the same.
func (h Handle) Wait(ctx context.Context) error {
	if err := h.claim(); err != nil {
		return err
	}
	err := h.b.finish(ctx)
	h.b.c.lend(h.b)
	return err
}

// Prefetch is a GET whose rows wait in their slots until they are taken. The keys belong
// to it until then.
type Prefetch struct {
	h         Handle
	keys, dim int
}

// Prefetch asks for the rows of keys.
func (t *Table) Prefetch(ctx context.Context, keys []uint64) (Prefetch, error) {
	h, err := t.launch(ctx, OpGet, keys, nil, nil, true)
	return Prefetch{h: h, keys: len(keys), dim: t.spec.Dim}, err
}

// Ready reports whether every answer is there: Take will not wait then. After Take, or of
// what was not all sent because of lanes.asyncDepth, it is false.
func (p Prefetch) Ready() bool {
	b := p.h.b
	if b == nil || b.gen.Load() != p.h.gen {
		return false
	}
	for _, k := range b.chunks[:b.n] {
		if k.state == chunkIdle || k.state == chunkFlying && !k.ticket.Ready() {
			return false
		}
	}
	return true
}

// Take gives the rows, as Get does, once. Slices of the wrong length are refused, and
// then the prefetch is as it was.
func (p Prefetch) Take(ctx context.Context, rows []float32, found []bool) error {
	if p.h.b == nil {
		return p.h.claim()
	}
	if len(rows) != p.keys*p.dim || found != nil && len(found) != p.keys {
		return pipeline.Errorf(pipeline.LayerUsage, "take", pipeline.Nowhere, "%w: %s", ErrShape,
			fmt.Sprintf("%d floats and %d found for %d keys of %d floats", len(rows), len(found), p.keys, p.dim))
	}
	if err := p.h.claim(); err != nil {
		return err
	}
	b := p.h.b
	b.rows, b.found = rows, found
	err := b.finish(ctx)
	b.c.lend(b)
	return err
}

// Drop gives a prefetch up. It may wait for answers that are under way.
func (p Prefetch) Drop() {
	if p.h.claim() != nil {
		return
	}
	b := p.h.b
	for b.first < len(b.flying) {
		k := b.flying[b.first]
		b.first++
		if k.piece != nil { // the shard may be writing to it
			ctx, cancel := context.WithCancel(context.Background())
			cancel()
			_, err := k.ticket.Wait(ctx, nil)
			if err != nil {
				k.fail(err)
			}
		} else {
			k.ticket.Cancel()
		}
		b.c.flying.Add(-1)
		k.release()
	}
	for _, k := range b.chunks[:b.n] {
		k.release()
	}
	b.c.lend(b)
}
