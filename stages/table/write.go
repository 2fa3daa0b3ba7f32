package table

import (
	"fmt"
)

// Put gives each key its row. Of a key that comes more than once the last row stays. The
// optimizer's state of a key that has one is kept; a new key's is the initial one.
//
// The batch takes all the slots that it needs before it changes anything: when they are
// not to be had it is a *LimitError and nothing was changed. Only an index without room
// can stop it later; the error then is a *BatchError.
func (t *Table) Put(keys []uint64, rows []float32) error {
	if err := t.checkFloats("rows", len(keys), len(rows)); err != nil {
		return t.fail("table_put", err)
	}
	if err := t.checkBatch(len(keys)); err != nil {
		return t.fail("table_put", err)
	}
	p, b, err := t.enter()
	if err != nil {
		return t.fail("table_put", err)
	}
	defer p.release()
	w := t.store.borrow()
	defer t.store.lend(w)
	applied, err := b.put(t, w, keys, rows)
	if err != nil {
		return t.fail("table_put", t.partly(len(keys), applied, err))
	}
	return nil
}

// partly is the error of a batch of which applied positions are done.
func (t *Table) partly(keys, applied int, err error) error {
	if applied == 0 {
		return err
	}
	return &BatchError{Table: t.spec.Name, Keys: keys, Applied: applied, Err: err}
}

func (t *Table) checkBatch(n int) error {
	if n > maxBatch {
		return &ShapeError{Table: t.spec.Name, Field: "keys", Got: n, Want: fmt.Sprintf("up to %d in a batch", maxBatch)}
	}
	return nil
}

// take fills w.fresh with n slots. The pins that keep retired rows are named where there
// is no memory.
func (b *body) take(w *batch, n int) error {
	w.fresh = resize(w.fresh, n)
	err := b.slab.take(w.fresh)
	if limit, ok := err.(*LimitError); ok {
		b.blame(limit)
	}
	return err
}

func (b *body) blame(limit *LimitError) {
	b.slab.mu.Lock()
	waiting := b.slab.retired.n > 0
	b.slab.mu.Unlock()
	if !waiting {
		return
	}
	var pins []PinInfo
	for _, p := range b.store.epochs.held() {
		if p.Who != "" {
			pins = append(pins, p)
		}
	}
	if len(pins) > 0 {
		limit.Pins = pinNames(pins)
	}
}

func (b *body) put(t *Table, w *batch, keys []uint64, rows []float32) (applied int, err error) {
	if err := b.take(w, len(keys)); err != nil {
		return 0, err
	}
	var (
		refs   [block]uint64
		in     = floatBytes(rows)
		l      = t.layout
		added  int
		chunks chunkTable
	)
	for i, key := range keys {
		if i%block == 0 {
			part := keys[i:min(i+block, len(keys))]
			b.dir.Load().lookup(t.store.mix, part, &refs) // only to have the lines at hand
			chunks = *t.store.table.Load()
		}
		ref := w.fresh[i]
		slot := chunks.at(ref, l.row+l.state)
		copy(slot, in[i*l.row:][:l.row])
		hash := t.store.mix.of(key)
		seg, at, j, e := b.insert(b.lock(hash), hash, key)
		if e != nil {
			err = e
			break
		}
		if l.state > 0 {
			if old := at.ref(j); old >= refFirst {
				// The old row may lie in a chunk that came after the block began.
				copy(slot[l.row:], (*t.store.table.Load()).at(old, l.row+l.state)[l.row:])
			} else {
				t.spec.Optimizer.begin(asFloats(slot[l.row:]))
			}
		}
		if old := seg.swing(at, j, ref|t.store.stamp()); old >= refFirst {
			w.replaced = append(w.replaced, old)
		} else {
			added++
		}
		seg.mu.Unlock()
		applied++
	}
	b.rows.Add(int64(added))
	b.slab.give(w.fresh[applied:], w.replaced)
	return applied, err
}

// Delete removes the rows of keys, with their state, and counts those that were there.
func (t *Table) Delete(keys []uint64) (n int, err error) {
	p, b, err := t.enter()
	if err != nil {
		return 0, t.fail("table_delete", err)
	}
	defer p.release()
	w := t.store.borrow()
	defer t.store.lend(w)
	var refs [block]uint64
	for i, key := range keys {
		if i%block == 0 {
			b.dir.Load().lookup(t.store.mix, keys[i:min(i+block, len(keys))], &refs)
		}
		hash := t.store.mix.of(key)
		seg := b.lock(hash)
		if at, j, ok := seg.mem.find(hash, key); ok {
			if old := at.ref(j); old >= refFirst {
				at.setRef(j, deleted(t.store.history.period.Load()))
				seg.live--
				w.replaced = append(w.replaced, old)
			}
		}
		seg.mu.Unlock()
	}
	n = len(w.replaced)
	b.rows.Add(int64(-n))
	b.slab.give(nil, w.replaced)
	return n, nil
}

// Clear removes all rows at once. What other calls write while it runs may go with them.
// It needs the memory of an empty index.
func (t *Table) Clear() error {
	p, _, err := t.enter()
	if err != nil {
		return t.fail("table_clear", err)
	}
	defer p.release()
	fresh, err := t.store.newBody(t.layout)
	if err != nil {
		return t.fail("table_clear", err)
	}
	if err := t.replace(fresh); err != nil {
		return t.fail("table_clear", err)
	}
	return nil
}

// replace swings the table to another body. When the table was dropped meanwhile, the
// other one goes.
func (t *Table) replace(fresh *body) error {
	for {
		old := t.body.Load()
		if old == nil {
			t.store.bury(fresh)
			return ErrDropped
		}
		if t.body.CompareAndSwap(old, fresh) {
			t.store.bury(old)
			return nil
		}
	}
}
