package table

import (
	"fmt"
	"sync/atomic"
)

// Table is a named map of keys to rows. Its methods may be called by any number of
// goroutines at once.
type Table struct {
	store  *Store
	spec   Spec
	layout layout
	body   atomic.Pointer[body] // nil: dropped
}

// layout is how a slot of a table looks: the row, then the optimizer's state.
type layout struct {
	dim   int
	row   int // bytes of a row
	state int // bytes of the state behind it
	slot  int
}

func (s *Store) layout(spec Spec) (layout, error) {
	l := layout{dim: spec.Dim, row: 4 * spec.Dim, state: 4 * spec.Optimizer.stateWords(spec.Dim)}
	l.slot = slotBytes(l.row + l.state)
	if l.slot > s.pageBytes {
		return l, &ShapeError{Table: spec.Name, Field: "bytes of a row with its state", Got: l.slot, Want: fmt.Sprintf("up to %d, the page", s.pageBytes)}
	}
	return l, nil
}

// Spec is the table's shape, with defaults filled in.
func (t *Table) Spec() Spec { return t.spec }

// RowRef is where a row is: Dim float32s at Off of the chunk whose ID is Chunk. Of a
// missing key Chunk is -1.
type RowRef struct {
	Chunk int32
	Off   uint64
}

// enter begins a call on the table.
func (t *Table) enter() (*Pin, *body, error) {
	p, err := t.store.enter()
	if err != nil {
		return nil, nil, err
	}
	b := t.body.Load()
	if b == nil {
		p.release()
		return nil, nil, ErrDropped
	}
	return p, b, nil
}

// fail puts an error of a call on the table into its layer.
func (t *Table) fail(op string, err error) error {
	if err == ErrDropped || err == ErrClosed {
		err = fmt.Errorf("table %q: %w", t.spec.Name, err)
	}
	return fail(op, err)
}

// checkFloats demands that floats are n rows. It never multiplies what a peer sent.
func (t *Table) checkFloats(what string, n, floats int) error {
	if floats/t.spec.Dim != n || floats%t.spec.Dim != 0 {
		return &ShapeError{Table: t.spec.Name, Field: what, Got: fmt.Sprintf("%d floats", floats),
			Want: fmt.Sprintf("%d for each of %d keys", t.spec.Dim, n)}
	}
	return nil
}

func (t *Table) checkFound(n int, found []uint64) error {
	if found != nil && len(found) < (n+63)/64 {
		return &ShapeError{Table: t.spec.Name, Field: "found", Got: fmt.Sprintf("%d words", len(found)), Want: fmt.Sprintf("a bit for each of %d keys", n)}
	}
	return nil
}

// block is how many keys are looked up side by side: enough for all misses that a core
// can have under way, few enough that what was touched is still in the first cache.
const block = 32

// lookup finds the references of up to block keys; of missing ones they are below
// refFirst.
func (d *directory) lookup(mix mixer, keys []uint64, refs *[block]uint64) {
	var at [block]*line
	if len(keys) > block {
		return
	}
	for i, k := range keys {
		h := mix.of(k)
		l := &d.mem[d.index(h)].Load()[home(h)]
		at[i] = l
		refs[i] = l.ref(0) // the miss begins here, and nothing waits for it yet
	}
	for i, k := range keys {
		l := at[i]
		// Which slot it is cannot be foreseen, so no branch asks. The references before
		// the keys; see row_unsafe.go. Of the slots with this key at most one has a
		// reference: the key of an empty slot is 0, and so is its reference.
		r0, r1, r2, r3 := l.ref(0), l.ref(1), l.ref(2), l.ref(3)
		k0, k1, k2, k3 := l.key(0), l.key(1), l.key(2), l.key(3)
		var ref uint64
		if k0 == k {
			ref = r0
		}
		if k1 == k {
			ref |= r1
		}
		if k2 == k {
			ref |= r2
		}
		if k3 == k {
			ref |= r3
		}
		// Slots fill from the first: where the last is empty, the key is nowhere else.
		if ref == refEmpty && r3 != refEmpty {
			ref = d.far(mix.of(k), k)
		}
		refs[i] = ref
	}
}

// far looks a key up that is not in its first line.
func (d *directory) far(hash, key uint64) uint64 {
	if at, slot, ok := d.mem[d.index(hash)].Load().find(hash, key); ok {
		return at.ref(slot)
	}
	return refEmpty
}

// touchBytes is how much of a row is touched before it is read: as much as it takes for
// the hardware to see where it goes on.
const touchBytes = 2 * 64

// touch reads a word of each of the first cache lines of the rows, one after the other:
// the misses overlap, and what reads the rows next finds them at hand. Its result is
// worth nothing; it keeps the compiler from leaving the reads out.
func (c chunkTable) touch(refs []uint64, n int) (sum byte) {
	n = min(n, touchBytes)
	for _, ref := range refs {
		if ref < refFirst {
			continue
		}
		row := c.at(ref, n)
		for i := 0; i < len(row); i += 64 {
			sum |= row[i]
		}
	}
	return sum
}

// Get copies the rows of keys to dst, in their order; a missing key's row is all zero.
// In found, unless it is nil, bit i%64 of word i/64 tells whether key i has a row. It
// returns how many have. Keys may repeat. Each row is one version of it; rows of
// different keys may be of different moments.
func (t *Table) Get(keys []uint64, dst []float32, found []uint64) (n int, err error) {
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
	for i := 0; i < len(keys); i += block {
		part := keys[i:min(i+block, len(keys))]
		d.lookup(t.store.mix, part, &refs)
		chunks := *t.store.table.Load() // after the references: it has their chunks
		chunks.touch(refs[:len(part)], size)
		for j, ref := range refs[:len(part)] {
			row := out[:size:size]
			out = out[size:]
			if ref < refFirst {
				clear(row)
				continue
			}
			copy(row, chunks.at(ref, size))
			n++
			if found != nil {
				found[(i+j)/64] |= 1 << ((i + j) % 64)
			}
		}
	}
	return n, nil
}

// Locate tells where the rows of keys are, for who gathers them without a copy. They
// are there, and do not change, while pin is held, which was taken before.
func (t *Table) Locate(pin *Pin, keys []uint64, rows []RowRef) (missing int, err error) {
	switch {
	case len(rows) < len(keys):
		err = &ShapeError{Table: t.spec.Name, Field: "rows", Got: len(rows), Want: len(keys)}
	case pin == nil || pin.owner != t.store || pin.epoch.Load() == 0:
		err = &ShapeError{Table: t.spec.Name, Field: "pin", Got: "one that is not held", Want: "a pin of this store"}
	}
	if err != nil {
		return 0, t.fail("table_locate", err)
	}
	p, b, err := t.enter()
	if err != nil {
		return 0, t.fail("table_locate", err)
	}
	defer p.release()
	var refs [block]uint64
	d := b.dir.Load()
	for i := 0; i < len(keys); i += block {
		part := keys[i:min(i+block, len(keys))]
		d.lookup(t.store.mix, part, &refs)
		for j, ref := range refs[:len(part)] {
			if ref < refFirst {
				rows[i+j] = RowRef{Chunk: -1}
				missing++
				continue
			}
			rows[i+j] = RowRef{Chunk: int32(refChunk(ref)), Off: refOffset(ref)}
		}
	}
	return missing, nil
}

// Exists sets the bits of the keys that have a row, as Get does, and counts them.
func (t *Table) Exists(keys []uint64, found []uint64) (n int, err error) {
	if err := t.checkFound(len(keys), found); err != nil {
		return 0, t.fail("table_exists", err)
	}
	p, b, err := t.enter()
	if err != nil {
		return 0, t.fail("table_exists", err)
	}
	defer p.release()
	clear(found)
	var refs [block]uint64
	d := b.dir.Load()
	for i := 0; i < len(keys); i += block {
		part := keys[i:min(i+block, len(keys))]
		d.lookup(t.store.mix, part, &refs)
		for j, ref := range refs[:len(part)] {
			if ref < refFirst {
				continue
			}
			n++
			if found != nil {
				found[(i+j)/64] |= 1 << ((i + j) % 64)
			}
		}
	}
	return n, nil
}

// Len is how many keys have a row. While calls that change the table run it may be of a
// moment before.
func (t *Table) Len() int {
	b := t.body.Load()
	if b == nil {
		return 0
	}
	return int(b.rows.Load())
}
