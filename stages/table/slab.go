package table

import (
	"encoding/binary"
	"sync"
)

// rowAlign is the alignment of chunks, and of rows where that wastes little.
const rowAlign = 64

// slotBytes is how far apart rows are: rows of many lines begin on one, so that none
// touches one line more than it must.
func slotBytes(row int) int {
	for _, align := range []int{64, 32} {
		full := (row + align - 1) / align * align
		if full-row <= row/8 {
			return full
		}
	}
	return (row + 15) / 16 * 16
}

// slab is the slots of a body. The reference to the next free slot stands in the free
// slot itself, so a table that shrank needs nothing to remember them.
type slab struct {
	store *Store
	slot  int // bytes of a slot
	per   int // slots of a page

	mu      sync.Mutex
	pages   []uint64 // all of them
	unused  int      // pages[len-unused:] were never cut
	next    uint64   // in the page that is being cut
	left    int      // slots of that page
	free    uint64   // the first free slot; refEmpty: none
	nfree   int
	retired ring
}

// take fills out with slots, all or none. Their content is whatever it was.
func (l *slab) take(out []uint64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(out) > l.nfree {
		l.recallLocked()
	}
	if lack := len(out) - l.nfree - l.left - l.unused*l.per; lack > 0 {
		had := len(l.pages)
		pages, err := l.store.takePages((lack+l.per-1)/l.per, l.pages)
		if err != nil {
			return err
		}
		l.pages = pages
		l.unused += len(pages) - had
	}
	chunks := *l.store.table.Load()
	for i := range out {
		if l.nfree > 0 {
			out[i] = l.free
			l.free = binary.NativeEndian.Uint64(chunks.at(l.free, 8))
			l.nfree--
			continue
		}
		if l.left == 0 {
			l.next, l.left = l.pages[len(l.pages)-l.unused], l.per
			l.unused--
		}
		out[i] = l.next
		l.next += refStep(uint64(l.slot))
		l.left--
	}
	return nil
}

// give takes back slots: unused ones, which nobody has seen, and replaced ones, which
// were just taken out of the index.
func (l *slab) give(unused, replaced []uint64) {
	if len(unused)+len(replaced) == 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	chunks := *l.store.table.Load()
	for _, ref := range unused {
		l.freeLocked(chunks, ref)
	}
	if len(replaced) > 0 {
		epoch := l.store.epochs.retire()
		for _, ref := range replaced {
			l.retired.push(retiredRow{ref, epoch})
		}
	}
}

func (l *slab) freeLocked(chunks chunkTable, ref uint64) {
	ref &^= stampMask
	binary.NativeEndian.PutUint64(chunks.at(ref, 8), l.free)
	l.free = ref
	l.nfree++
}

// recallLocked frees the retired rows that nobody can see any more.
func (l *slab) recallLocked() {
	if l.retired.n == 0 {
		return
	}
	oldest := l.store.epochs.oldest()
	chunks := *l.store.table.Load()
	for l.retired.n > 0 && l.retired.first().epoch < oldest {
		l.freeLocked(chunks, l.retired.pop().ref)
	}
}

type retiredRow struct {
	ref   uint64
	epoch uint64
}

// ring is a queue that keeps its memory.
type ring struct {
	rows []retiredRow // a power of two of them
	head int
	n    int
}

func (r *ring) first() retiredRow { return r.rows[r.head] }

func (r *ring) pop() retiredRow {
	row := r.rows[r.head]
	r.head = (r.head + 1) & (len(r.rows) - 1)
	if r.n--; r.n == 0 && len(r.rows) > keepRing {
		r.rows, r.head = nil, 0 // after a burst
	}
	return row
}

// keepRing is how long a queue stays when it is empty.
const keepRing = 1 << 16

func (r *ring) push(row retiredRow) {
	if r.n == len(r.rows) {
		rows := make([]retiredRow, max(64, 2*r.n))
		k := copy(rows, r.rows[r.head:])
		copy(rows[k:], r.rows[:r.head])
		r.rows, r.head = rows, 0
	}
	r.rows[(r.head+r.n)&(len(r.rows)-1)] = row
	r.n++
}
