package table

import (
	"sync"
	"sync/atomic"
)

const (
	firstDepth = 4  // segments of an empty table, as a power of two
	mostDepth  = 28 // of the directory; hashes are secret, so it takes 2^30 rows to come near
)

// directory finds the segment of a hash by its first bits. It is replaced when it must
// be longer; its entries change in place when a segment is.
type directory struct {
	depth    uint
	mem      []atomic.Pointer[lines] // what readers need, without the way over the segment
	segments []atomic.Pointer[segment]
}

func newDirectory(depth uint) *directory {
	return &directory{
		depth:    depth,
		mem:      make([]atomic.Pointer[lines], 1<<depth),
		segments: make([]atomic.Pointer[segment], 1<<depth),
	}
}

func (d *directory) index(hash uint64) int { return int(hash >> ((64 - d.depth) & 63)) }
func (d *directory) bytes() int64          { return int64(len(d.mem)) * 16 }

// set points the hashes that begin like hash in seg.depth bits to seg.
func (d *directory) set(hash uint64, seg *segment) {
	wide := uint(d.depth - seg.depth)
	first := d.index(hash) >> wide << wide
	for i := first; i < first+1<<wide; i++ {
		d.segments[i].Store(seg)
		d.mem[i].Store(seg.mem)
	}
}

// body is what a table contains: an index and the rows.
type body struct {
	store *Store
	id    uint64 // no other body of the store has it
	slab  slab
	dir   atomic.Pointer[directory]
	mu    sync.Mutex // for changes of the directory
	rows  atomic.Int64
	// floor is a period up to whose end deletions may have been forgotten.
	floor atomic.Uint64
}

func (s *Store) newBody(l layout) (*body, error) {
	b := &body{store: s, id: s.history.bodies.Add(1), slab: slab{store: s, slot: l.slot, per: s.pageBytes / l.slot}}
	d := newDirectory(firstDepth)
	s.mu.Lock()
	err := s.chargeLocked("directory", d.bytes())
	s.mu.Unlock()
	if err != nil {
		return nil, err
	}
	for i := range d.mem {
		m, err := s.takeSegment()
		if err != nil {
			s.mu.Lock()
			for j := range i {
				s.freeSegmentLocked(d.mem[j].Load())
			}
			s.used -= d.bytes()
			s.mu.Unlock()
			return nil, err
		}
		d.segments[i].Store(&segment{mem: m, depth: firstDepth})
		d.mem[i].Store(m)
	}
	b.dir.Store(d)
	return b, nil
}

// lock gives the segment of a hash with its lock held.
func (b *body) lock(hash uint64) *segment {
	for {
		d := b.dir.Load()
		seg := d.segments[d.index(hash)].Load()
		seg.mu.Lock()
		if !seg.dead {
			return seg
		}
		seg.mu.Unlock() // its successors are in the directory by now
	}
}

// insert finds the slot of a key in seg, which is locked, or makes one for it. It may
// replace the segment: the one that it returns is locked then, in place of seg. On an
// error none is.
func (b *body) insert(seg *segment, hash, key uint64) (*segment, *line, int, error) {
	for {
		at, slot, ok := seg.mem.find(hash, key)
		if ok {
			return seg, at, slot, nil
		}
		if seg.used < segmentFull {
			at.setKey(slot, key)
			return seg, at, slot, nil
		}
		err := b.renew(seg, hash)
		if err != nil && seg.used < segmentBrim {
			at.setKey(slot, key)
			return seg, at, slot, nil
		}
		seg.mu.Unlock()
		if err != nil {
			return nil, nil, 0, err
		}
		seg = b.lock(hash)
	}
}

// swing gives a key the reference ref, in a slot that insert gave, and returns the one
// that it had.
func (seg *segment) swing(at *line, slot int, ref uint64) (old uint64) {
	old = at.ref(slot)
	if old == refEmpty {
		seg.used++
	}
	if old < refFirst {
		seg.live++
	}
	at.setRef(slot, ref)
	return old
}

// renew writes a full segment, which is locked, anew: as two, or as one if that is
// enough. Keys that were deleted since the oldest mark come along, so that a save can
// tell of them. Where they are more than the rows, or there is no memory for them, only
// those since the newest mark do, or none: then a save of the table is a whole one.
func (b *body) renew(seg *segment, hash uint64) error {
	h := &b.store.history
	var err error
	for i, since := range [...]uint64{h.oldest.Load(), h.newest.Load(), h.period.Load()} {
		gone := seg.deletedSince(since)
		if gone > seg.live && gone > 0 {
			continue
		}
		if i > 0 {
			b.raiseFloor(min(since, h.period.Load()))
		}
		if err = b.rewrite(seg, hash, since, gone); err == nil || gone == 0 {
			break
		}
	}
	return err
}

func (b *body) raiseFloor(to uint64) {
	for old := b.floor.Load(); old < to; old = b.floor.Load() {
		if b.floor.CompareAndSwap(old, to) {
			return
		}
	}
}

// deletedSince counts the keys that were deleted after a period.
func (seg *segment) deletedSince(period uint64) (n int) {
	if seg.live == seg.used {
		return 0
	}
	for i := range seg.mem {
		for j := range slotsPerLine {
			if ref := seg.mem[i].ref(j); ref < refFirst && ref != refEmpty && deletedIn(ref) > period {
				n++
			}
		}
	}
	return n
}

// rewrite is renew with the keys, gone of them, that were deleted after the period since.
func (b *body) rewrite(seg *segment, hash, since uint64, gone int) error {
	parts := []*segment{{depth: seg.depth + 1}, {depth: seg.depth + 1}}
	if seg.live+gone < segmentSparse {
		parts = []*segment{{depth: seg.depth}}
	} else if seg.depth == mostDepth {
		return &LimitError{Field: "depth", Need: mostDepth + 1, Used: mostDepth, Limit: mostDepth}
	}
	for i, p := range parts {
		m, err := b.store.takeSegment()
		if err != nil {
			if i > 0 {
				b.store.mu.Lock()
				b.store.freeSegmentLocked(parts[0].mem)
				b.store.mu.Unlock()
			}
			return err
		}
		p.mem = m
	}
	for i := range seg.mem {
		l := &seg.mem[i]
		for j := range slotsPerLine {
			ref := l.ref(j)
			if ref == refEmpty || ref < refFirst && deletedIn(ref) <= since {
				continue
			}
			key := l.key(j)
			h := b.store.mix.of(key)
			p := parts[0]
			if len(parts) == 2 {
				p = parts[h>>(63-seg.depth)&1]
			}
			p.mem.add(h, key, ref)
			p.used++
			if ref >= refFirst {
				p.live++
			}
		}
	}
	if err := b.install(seg, parts, hash); err != nil {
		b.store.mu.Lock()
		for _, p := range parts {
			b.store.freeSegmentLocked(p.mem)
		}
		b.store.mu.Unlock()
		return err
	}
	seg.dead = true
	b.store.retireSegment(seg.mem)
	return nil
}

// install puts parts in the place of seg, into a longer directory if need be.
func (b *body) install(seg *segment, parts []*segment, hash uint64) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	d := b.dir.Load()
	if parts[0].depth > d.depth {
		longer, err := b.lengthen(d)
		if err != nil {
			return err
		}
		d = longer
	}
	mask := ^uint64(0) << (64 - seg.depth)
	for i, p := range parts {
		h := hash & mask
		if len(parts) == 2 {
			h |= uint64(i) << (63 - seg.depth)
		}
		d.set(h, p)
	}
	// Readers of the old one find the old segment there: it is retired, not changed.
	b.dir.Store(d)
	return nil
}

func (b *body) lengthen(d *directory) (*directory, error) {
	b.store.mu.Lock()
	// The old one goes to Go's heap when its last reader is done.
	err := b.store.chargeLocked("directory", d.bytes())
	b.store.mu.Unlock()
	if err != nil {
		return nil, err
	}
	longer := newDirectory(d.depth + 1)
	for i := range longer.mem {
		longer.segments[i].Store(d.segments[i/2].Load())
		longer.mem[i].Store(d.mem[i/2].Load())
	}
	return longer, nil
}
