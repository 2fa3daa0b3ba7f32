package table

import (
	"cmp"
	"slices"
)

// hashed is a key with its hash.
type hashed struct{ hash, key uint64 }

// Scan gives keys that have rows, as many as dst has room for, in the order of their
// hashes, which means nothing outside of this store: at first from 0, then from where the
// call before said, until that is 0. A key that has a row all the time comes once; one
// that comes or goes meanwhile may come or not. Clear and Load end what a scan knows: it
// goes on in what is there then.
func (t *Table) Scan(from uint64, dst []uint64) (n int, next uint64, err error) {
	if len(dst) == 0 {
		return 0, 0, t.fail("table_scan", &ShapeError{Table: t.spec.Name, Field: "keys", Got: 0, Want: "room for a key"})
	}
	p, b, err := t.enter()
	if err != nil {
		return 0, 0, t.fail("table_scan", err)
	}
	defer p.release()
	found := make([]hashed, 0, slotsPerSegment)
	// Segments only ever divide, so the end of one is where another begins.
	for n < len(dst) {
		d := b.dir.Load()
		seg := d.segments[d.index(from)].Load()
		found = found[:0]
		for i := range seg.mem {
			at := &seg.mem[i]
			for j := range slotsPerLine {
				if at.ref(j) < refFirst { // before the key; see row_unsafe.go
					continue
				}
				if k := at.key(j); t.store.mix.of(k) >= from {
					found = append(found, hashed{t.store.mix.of(k), k})
				}
			}
		}
		if room := len(dst) - n; len(found) > room {
			// No two keys have one hash: the next call begins with the first that is left.
			slices.SortFunc(found, func(a, b hashed) int { return cmp.Compare(a.hash, b.hash) })
			for _, f := range found[:room] {
				dst[n] = f.key
				n++
			}
			return n, found[room].hash, nil
		}
		for _, f := range found {
			dst[n] = f.key
			n++
		}
		if from = (from>>(64-seg.depth) + 1) << (64 - seg.depth); from == 0 {
			return n, 0, nil
		}
	}
	return n, from, nil
}
