package table

import "time"

// GetTimes is where the time of Gets went.
type GetTimes struct {
	Lookup   time.Duration
	ZeroFill time.Duration // of rows that are missing
	RowCopy  time.Duration
}

// GetTimed is Get that adds what it took to times. It goes over the rows twice, so that
// no clock is asked for each of them.
func (t *Table) GetTimed(keys []uint64, dst []float32, found []uint64, times *GetTimes) (n int, err error) {
	if err := t.checkFloats("rows", len(keys), len(dst)); err != nil {
		return 0, t.fail("table_get", err)
	}
	if err := t.checkFound(len(keys), found); err != nil {
		return 0, t.fail("table_get", err)
	}
	p, b, err := t.enter()
	if err != nil {
		return 0, t.fail("table_get", err)
	}
	defer p.release()
	clear(found)
	var (
		refs [block]uint64
		d    = b.dir.Load()
		out  = floatBytes(dst)
		size = t.layout.row
	)
	at := time.Now()
	lap := func(to *time.Duration) {
		now := time.Now()
		*to += now.Sub(at)
		at = now
	}
	for i := 0; i < len(keys); i += block {
		part := keys[i:min(i+block, len(keys))]
		d.lookup(t.store.mix, part, &refs)
		chunks := *t.store.table.Load() // after the references: it has their chunks
		lap(&times.Lookup)
		for j, ref := range refs[:len(part)] {
			if ref < refFirst {
				clear(out[j*size : (j+1)*size])
			}
		}
		lap(&times.ZeroFill)
		chunks.touch(refs[:len(part)], size)
		for j, ref := range refs[:len(part)] {
			if ref < refFirst {
				continue
			}
			copy(out[j*size:(j+1)*size], chunks.at(ref, size))
			n++
			if found != nil {
				found[(i+j)/64] |= 1 << ((i + j) % 64)
			}
		}
		out = out[len(part)*size:]
		lap(&times.RowCopy)
	}
	return n, nil
}
