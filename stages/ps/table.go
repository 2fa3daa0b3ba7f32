package ps

import (
	"context"
	"fmt"

	"github.com/railstore/railstore/pipeline"
	"github.com/railstore/railstore/stages/table"
)

// Table is a table of all shards. It is safe for concurrent use.
type Table struct {
	c    *Client
	spec table.Spec
	only int // place of the one shard that is asked, -1: keys are routed
}

// Spec is the table's shape.
func (t *Table) Spec() table.Spec { return t.spec }

// Dim is how many floats a row has.
func (t *Table) Dim() int { return t.spec.Dim }

// On is the table at one shard, for who routes keys himself.
func (t *Table) On(shard int) (*Table, error) {
	place, err := t.c.place(shard)
	if err != nil {
		return nil, err
	}
	return &Table{c: t.c, spec: t.spec, only: place}, nil
}

// gathers is the rule of auto: rows are gathered where that saves more in requests than it
// costs in elements. slot and piece are how many rows one request brings either way, rows
// how many a shard is asked for. What one slot holds is copied: that is one request, too.
func gathers(slot, piece, rows int) bool {
	return slot == 0 || rows > slot && piece > slot && (piece-slot)*gatherRows > slot*piece
}

// gatherRows is how many gathered elements cost about as much as a request: measured on
// soft (BenchmarkGetWideRows), 24 µs and 0.6 µs of processor time.
const gatherRows = 40

// chunkKeys is how many keys go in one request, and whether their rows go through memory.
// longest is how many keys the shard with the most has.
func (t *Table) chunkKeys(op uint16, longest int) (keys int, memory bool, err error) {
	c, row := t.c, t.spec.Dim*4
	req, rsp := c.slot.RequestBytes-headerBytes, c.slot.ResponseBytes-responseHeader-8
	bits := rsp * 8 // an answer has a bit for each
	switch op {
	case OpGet:
		slot := min(req/8, rsp*8/(8*row+1))
		piece := min(req/8, bits, MaxPiece/row)
		memory = c.cfg.Staging != nil && (c.cfg.Mode.Get == DirectSG || c.cfg.Mode.Get == Auto && gathers(slot, piece, longest))
		if keys = slot; memory {
			keys = piece
		}
	case OpPut, OpUpdate:
		slot := req / (8 + row)
		piece := min(req/8, MaxPiece/row)
		// UPDATEs are pushed: they have no transfer mode. Rows that are too long are read.
		memory = c.cfg.Staging != nil && (op == OpPut && c.cfg.Mode.Put == Read && c.cfg.Mode.PutProtocol == 2 ||
			slot == 0 && !(op == OpPut && c.cfg.Mode.PutProtocol == 1))
		if keys = slot; memory {
			keys = piece
		}
	case OpExists:
		keys = min(req/8, bits)
	default:
		keys = req / 8
	}
	if keys == 0 {
		return 0, false, pipeline.Errorf(pipeline.LayerUsage, opName(op), pipeline.Nowhere,
			"%w: a row of table %q is %d bytes", ErrTooLarge, t.spec.Name, row).
			WithHint("raise lanes.requestBytes and lanes.responseBytes, or use direct_sg and read with PUT protocol 2")
	}
	return keys, memory, nil
}

func (t *Table) check(op uint16, keys []uint64, rows []float32, found []bool, wantRows bool) error {
	fail := func(format string, args ...any) error {
		return pipeline.Errorf(pipeline.LayerUsage, opName(op), pipeline.Nowhere, "%w: table %q: %s", ErrShape, t.spec.Name, fmt.Sprintf(format, args...))
	}
	switch {
	case t.c.closed.Load():
		return ErrClosed
	case wantRows && (len(rows)/t.spec.Dim != len(keys) || len(rows)%t.spec.Dim != 0):
		return fail("%d floats for %d keys of %d each", len(rows), len(keys), t.spec.Dim)
	case found != nil && len(found) != len(keys):
		return fail("a found list of %d for %d keys", len(found), len(keys))
	}
	return nil
}

// do runs a call to its end.
func (t *Table) do(ctx context.Context, op uint16, keys []uint64, rows []float32, found []bool) (n int, err error) {
	if err := t.check(op, keys, rows, found, op == OpGet || op == OpPut || op == OpUpdate); err != nil {
		return 0, err
	}
	if len(keys) == 0 {
		return 0, nil
	}
	b := t.c.borrow()
	if err = b.begin(t, op, keys, rows, found); err == nil {
		err = b.finish(ctx)
	}
	n = b.count
	t.c.lend(b)
	return n, err
}

// Get copies the rows of keys to rows, in the order of keys, which may repeat. Of a key
// without a row the row is all zero. found, unless nil, tells which keys have one. After
// an error the rows of the positions that it names are undefined, all others are right.
func (t *Table) Get(ctx context.Context, keys []uint64, rows []float32, found []bool) error {
	_, err := t.do(ctx, OpGet, keys, rows, found)
	return err
}

// Put gives each key its row; of a key that comes more than once the last row stays.
func (t *Table) Put(ctx context.Context, keys []uint64, rows []float32) error {
	_, err := t.do(ctx, OpPut, keys, rows, nil)
	return err
}

// Update applies a gradient to the row of each key by the table's optimizer. Gradients of
// a key that comes more than once are added up first.
func (t *Table) Update(ctx context.Context, keys []uint64, grads []float32) error {
	_, err := t.do(ctx, OpUpdate, keys, grads, nil)
	return err
}

// Exists tells which keys have a row.
func (t *Table) Exists(ctx context.Context, keys []uint64, found []bool) error {
	_, err := t.do(ctx, OpExists, keys, nil, found)
	return err
}

// Delete removes the rows of keys and counts those that were there. After an error the
// count is of the shards that answered.
func (t *Table) Delete(ctx context.Context, keys []uint64) (int, error) {
	return t.do(ctx, OpDelete, keys, nil, nil)
}

// Clear removes all rows, at each shard at once.
func (t *Table) Clear(ctx context.Context) error {
	clearAt := func(ctx context.Context, place int) error {
		var r request
		r.setName(t.spec.Name)
		_, err := t.c.call(ctx, place, OpClear, &r, nil, nil)
		return err
	}
	if t.only >= 0 {
		return clearAt(ctx, t.only)
	}
	return t.c.everywhere(ctx, clearAt)
}

// Resume sends what failed of a PUT or UPDATE again, with the tokens that it had: what an
// UPDATE has applied is not applied again. keys and rows must be those of the call that
// gave the error. A PUT of which it is not known whether it was applied is sent again: a
// PUT of somebody else that came between is lost then.
func (t *Table) Resume(ctx context.Context, failed *BatchError, keys []uint64, rows []float32) error {
	op := OpPut
	if failed.Op == opName(OpUpdate) {
		op = OpUpdate
	}
	if failed.Table != t.spec.Name || failed.Keys != len(keys) || failed.Op != opName(op) || failed.only != t.only {
		return pipeline.Errorf(pipeline.LayerUsage, "resume", pipeline.Nowhere, "%w: the error is of %s of %d keys of table %q", ErrBadRequest, failed.Op, failed.Keys, failed.Table)
	}
	if err := t.check(op, keys, rows, nil, true); err != nil {
		return err
	}
	b := t.c.borrow()
	err := b.resume(t, op, keys, rows, failed.redo)
	if err == nil {
		err = b.finish(ctx)
	}
	t.c.lend(b)
	return err
}

// resume is begin for chunks that there were before.
func (b *batch) resume(t *Table, op uint16, keys []uint64, rows []float32, todo []redo) error {
	b.t, b.op, b.keys, b.rows, b.found = t, op, keys, rows, nil
	b.count, b.late, b.handle = 0, false, false
	b.n, b.idle, b.first, b.flying = 0, 0, 0, b.flying[:0]
	_, memory, err := t.chunkKeys(op, len(keys))
	if err != nil {
		return err
	}
	p := &b.plan
	p.united = true
	p.next = resize(p.next, len(keys))
	b.order = resize(p.order, len(keys))[:0]
	for _, r := range todo {
		k := b.next()
		k.place, k.at, k.token, k.doubt = r.place, len(b.order), r.sequence, r.unknown
		from := int32(0)
		for _, end := range r.lens {
			key := r.pos[from:end]
			b.order = append(b.order, key[0])
			for i, pos := range key {
				p.next[pos] = -1
				if i+1 < len(key) {
					p.next[pos] = key[i+1]
				}
			}
			from = end
		}
		k.n = len(b.order) - k.at
		k.req.setName(t.spec.Name)
		k.setUp(memory)
	}
	p.order = b.order
	return nil
}
