package table

// Update applies a gradient to the row of each key by the table's optimizer. Gradients
// of a key that comes more than once are added up first. A key without a row gets one of
// zeros first.
//
// applied is false when the batch of the token was applied before. When a batch was
// applied in part (see BatchError), a retry with its token goes on where it stopped; it
// must be the same batch. While another call applies the same token, this one waits.
func (t *Table) Update(keys []uint64, grads []float32, token Token) (applied bool, _ error) {
	if err := t.checkFloats("grads", len(keys), len(grads)); err != nil {
		return false, t.fail("table_update", err)
	}
	if err := t.checkBatch(len(keys)); err != nil {
		return false, t.fail("table_update", err)
	}
	w := t.store.borrow()
	defer t.store.lend(w)
	w.group(t.store.mix, keys)
	if err := t.checkGradients(w, keys, grads); err != nil {
		return false, t.fail("table_update", err)
	}
	upTo, whole := 0, false
	if token != (Token{}) {
		from, done, err := t.store.clients.begin(token)
		if err != nil {
			return false, t.fail("table_update", err)
		}
		if done {
			return false, nil
		}
		upTo = from
		defer func() { t.store.clients.end(token, whole, upTo) }()
	}
	p, b, err := t.enter()
	if err != nil {
		return false, t.fail("table_update", err)
	}
	defer p.release()
	upTo, err = b.update(t, w, keys, grads, upTo)
	if err != nil {
		return false, t.fail("table_update", t.partly(len(keys), upTo, err))
	}
	whole = true
	return true, nil
}

// checkGradients refuses what the table's policy refuses, before anything changes.
func (t *Table) checkGradients(w *batch, keys []uint64, grads []float32) error {
	if t.spec.NonFinite != RejectNonFinite {
		return nil
	}
	dim := t.spec.Dim
	if !allFinite(grads) {
		for i, v := range grads {
			if !finite(v) {
				return &GradientError{Table: t.spec.Name, Key: keys[i/dim], Position: i / dim, Element: i % dim, Value: v}
			}
		}
	}
	if len(w.unique) == len(keys) {
		return nil
	}
	for u := range w.unique {
		if w.next[w.first[u]] < 0 {
			continue
		}
		if g, bad := w.gradient(u, dim, grads, false); bad >= 0 {
			return &GradientError{Table: t.spec.Name, Key: w.unique[u], Position: int(w.first[u]), Element: bad, Value: g[bad]}
		}
	}
	return nil
}

// update applies the keys of w whose first position is from or beyond.
func (b *body) update(t *Table, w *batch, keys []uint64, grads []float32, from int) (applied int, err error) {
	skip := 0
	for skip < len(w.first) && int(w.first[skip]) < from {
		skip++
	}
	first, unique := w.first[skip:], w.unique[skip:]
	if err := b.take(w, len(unique)); err != nil {
		return from, err
	}
	var (
		refs  [block]uint64
		l     = t.layout
		whole = l.row + l.state
		zero  = t.spec.NonFinite == ZeroNonFinite
		o     = &t.spec.Optimizer
		done  int
		added int
	)
	applied = len(keys)
	for u, key := range unique {
		if u%block == 0 {
			// To have index and rows at hand. Rows that are replaced meanwhile stay readable:
			// this call holds a pin.
			part := unique[u:min(u+block, len(unique))]
			b.dir.Load().lookup(t.store.mix, part, &refs)
			(*t.store.table.Load()).touch(refs[:len(part)], whole)
		}
		g, _ := w.gradient(skip+u, l.dim, grads, zero)
		ref := w.fresh[u]
		hash := t.store.mix.of(key)
		seg, at, j, e := b.insert(b.lock(hash), hash, key)
		if e != nil {
			err = e
			applied = int(first[u])
			break
		}
		chunks := *t.store.table.Load()
		slot := asFloats(chunks.at(ref, whole))
		row, state := slot[:l.dim], slot[l.dim:]
		if old := at.ref(j); old >= refFirst {
			was := asFloats(chunks.at(old, whole))
			o.apply(row, state, was[:l.dim], was[l.dim:], g, &w.memo)
		} else {
			clear(row)
			o.begin(state)
			o.apply(row, state, row, state, g, &w.memo)
		}
		if old := seg.swing(at, j, ref|t.store.stamp()); old >= refFirst {
			w.replaced = append(w.replaced, old)
		} else {
			added++
		}
		seg.mu.Unlock()
		done++
	}
	b.rows.Add(int64(added))
	b.slab.give(w.fresh[done:], w.replaced)
	return applied, err
}
