package table

import (
	"fmt"

	"github.com/railstore/railstore/verbs"
)

// A reference, or the address of a page, is a word: 21 bits of the chunk's ID plus one, 36
// of the offset in units of 16 bytes, and 7 that in the index are the stamp of the row's
// last change (period.go) and elsewhere 0. Below refFirst there is no chunk: an empty slot
// of the index, or a key whose row was deleted.
const (
	chunkShift = 43
	unitShift  = 4 // slots begin at multiples of 16
	stampBits  = 7
	stampMask  = 1<<stampBits - 1

	refEmpty = 0
	refFirst = 1 << chunkShift
)

func makeRef(chunk int, off uint64) uint64 { return uint64(chunk+1)<<chunkShift | refStep(off) }
func refChunk(ref uint64) int              { return int(ref>>chunkShift) - 1 }
func refOffset(ref uint64) uint64 {
	return ref >> (stampBits - unitShift) & (1<<(chunkShift-stampBits+unitShift) - 1<<unitShift)
}

// refStep is what a reference grows by with its offset.
func refStep(bytes uint64) uint64 { return bytes << (stampBits - unitShift) }

// chunkTable finds the memory of a reference: chunks by ID. It is copied when a chunk
// comes, so who reads needs no lock.
type chunkTable [][]byte

// at is n bytes behind a reference.
func (c chunkTable) at(ref uint64, n int) []byte {
	off := refOffset(ref)
	return c[refChunk(ref)][off : off+uint64(n) : off+uint64(n)]
}

// chargeLocked takes n bytes of the limit.
func (s *Store) chargeLocked(field string, n int64) error {
	if s.limit > 0 && n > s.limit-s.used {
		return &LimitError{Field: field, Need: n, Used: s.used, Limit: s.limit}
	}
	s.used += n
	return nil
}

// takePages appends n pages to pages, all or none.
func (s *Store) takePages(n int, pages []uint64) ([]uint64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.freePages) < n {
		s.buryLocked()
	}
	for len(s.freePages) < n {
		if err := s.growLocked(n - len(s.freePages)); err != nil {
			return pages, err
		}
	}
	cut := len(s.freePages) - n
	pages = append(pages, s.freePages[cut:]...)
	s.freePages = s.freePages[:cut]
	return pages, nil
}

// growLocked asks Memory for a chunk, best one that has all of the pages that lack.
func (s *Store) growLocked(lack int) error {
	page := int64(s.pageBytes)
	need := int64(lack) * page
	want := max(int64(s.chunkBytes), page)
	if s.limit > 0 {
		room := (s.limit - s.used) / page * page
		if room < need {
			return &LimitError{Field: "rows", Need: need, Used: s.used, Limit: s.limit}
		}
		// Near the limit by halves: the index needs some of what is left for the same rows.
		want = min(want, max(need, room/2/page*page))
	}
	if err := s.chargeLocked("rows", want); err != nil {
		return err
	}
	c, err := s.memory.Grow(int(want))
	if err != nil {
		s.used -= want
		return &memoryError{err}
	}
	if err := s.checkChunk(c, want); err != nil {
		s.used -= want
		if c != nil {
			_ = s.memory.Release(c) // the error that matters is the one below
		}
		return &memoryError{err}
	}
	s.chunks = append(s.chunks, c)
	old := *s.table.Load()
	table := make(chunkTable, max(len(old), c.ID+1))
	copy(table, old)
	table[c.ID] = c.Bytes
	s.table.Store(&table)
	// Pages are taken from the end, so the chunk is used from its beginning.
	for off := want - page; off >= 0; off -= page {
		s.freePages = append(s.freePages, makeRef(c.ID, uint64(off)))
	}
	return nil
}

func (s *Store) checkChunk(c *Chunk, want int64) error {
	switch {
	case c == nil:
		return fmt.Errorf("it gave no chunk and no error")
	case int64(len(c.Bytes)) < want:
		return fmt.Errorf("chunk %d has %d bytes of the %d that were asked for", c.ID, len(c.Bytes), want)
	case c.ID < 0 || c.ID >= maxChunks:
		return fmt.Errorf("chunk ID %d is not from 0 to %d", c.ID, maxChunks-1)
	case verbs.AddrOf(c.Bytes)%rowAlign != 0:
		return fmt.Errorf("chunk %d is not aligned to %d bytes", c.ID, rowAlign)
	}
	for _, have := range s.chunks {
		if have.ID == c.ID {
			return fmt.Errorf("chunk ID %d is in use", c.ID)
		}
	}
	return nil
}

// takeSegment gives the empty memory of a segment.
func (s *Store) takeSegment() (*lines, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.freeSegments) == 0 {
		s.recallSegmentsLocked()
	}
	if len(s.freeSegments) == 0 {
		s.buryLocked()
	}
	if len(s.freeSegments) == 0 {
		if err := s.growIndexLocked(); err != nil {
			return nil, err
		}
	}
	last := len(s.freeSegments) - 1
	m := s.freeSegments[last]
	s.freeSegments = s.freeSegments[:last]
	return m, nil
}

// Index memory is mapped in pieces that a huge page can serve, larger ones as it grows.
const (
	leastIndexBytes = 2 << 20
	mostIndexBytes  = 64 << 20
)

func (s *Store) growIndexLocked() error {
	want := int64(leastIndexBytes)
	for want < s.indexBytes/2 && want < mostIndexBytes {
		want *= 2
	}
	if s.limit > 0 {
		// A little of what is left, the least that an empty table needs: rows need the most.
		room := max(s.limit-s.used, 0) / segmentBytes
		want = min(want, min(room, max(room/8, 1<<firstDepth))*segmentBytes)
		if want == 0 {
			return &LimitError{Field: "index", Need: segmentBytes, Used: s.used, Limit: s.limit}
		}
	}
	if err := s.chargeLocked("index", want); err != nil {
		return err
	}
	c, err := s.indexMemory.Grow(int(want))
	if err != nil {
		s.used -= want
		return &memoryError{err}
	}
	s.indexBytes += want
	s.indexChunks = append(s.indexChunks, c)
	for off := want - segmentBytes; off >= 0; off -= segmentBytes {
		s.freeSegments = append(s.freeSegments, asLines(c.Bytes[off:off+segmentBytes]))
	}
	return nil
}

// retired is a segment that readers may still look at.
type retiredSegment struct {
	mem   *lines
	epoch uint64
}

// retireSegment takes a segment back that was just taken out of a directory.
func (s *Store) retireSegment(m *lines) {
	s.mu.Lock()
	s.oldSegments = append(s.oldSegments, retiredSegment{m, s.epochs.retire()})
	s.mu.Unlock()
}

// recallSegmentsLocked makes the retired segments free that nobody can see any more.
func (s *Store) recallSegmentsLocked() {
	oldest := s.epochs.oldest()
	n := 0
	for _, r := range s.oldSegments {
		if r.epoch >= oldest {
			break
		}
		s.freeSegmentLocked(r.mem)
		n++
	}
	s.oldSegments = append(s.oldSegments[:0], s.oldSegments[n:]...)
}

func (s *Store) freeSegmentLocked(m *lines) {
	clear(m[:])
	s.freeSegments = append(s.freeSegments, m)
}

// grave is a body that was taken out of its table, with all that is in it.
type grave struct {
	body  *body
	epoch uint64
}

// bury takes back a body that no table points to any more. Calls that were running may
// still read and change it, so its memory stays until they have ended.
func (s *Store) bury(b *body) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state.Load() == closed {
		return // all memory went with the store
	}
	s.graves = append(s.graves, grave{b, s.epochs.retire()})
	s.buryLocked()
}

func (s *Store) buryLocked() {
	if len(s.graves) == 0 {
		return
	}
	oldest := s.epochs.oldest()
	n := 0
	for _, g := range s.graves {
		if g.epoch >= oldest {
			break
		}
		// Nobody uses the body any more: its locks are not needed.
		d := g.body.dir.Load()
		for i := 0; i < len(d.segments); {
			seg := d.segments[i].Load()
			s.freeSegmentLocked(seg.mem)
			i += 1 << (d.depth - seg.depth)
		}
		s.used -= d.bytes()
		s.freePages = append(s.freePages, g.body.slab.pages...)
		g.body.slab.pages = nil
		n++
	}
	s.graves = append(s.graves[:0], s.graves[n:]...)
}
