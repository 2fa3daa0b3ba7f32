package table

import "sync"

const (
	slotsPerLine    = 4
	linesPerSegment = 256
	slotsPerSegment = slotsPerLine * linesPerSegment
	segmentBytes    = linesPerSegment * 2 * slotsPerLine * 8

	// A segment is written anew when it has this many keys: beyond, too many keys fall
	// outside the line where they are looked for first.
	segmentFull = slotsPerSegment * 4 / 5
	// It takes this many when there is no memory for a new one. One slot stays empty, so
	// that looking for a key that is not there comes to an end.
	segmentBrim = slotsPerSegment - 1
	// With fewer rows than this a full segment has deleted keys in the main: it is written
	// anew as one, not as two.
	segmentSparse = segmentFull / 2
)

// segment is a piece of the index: the keys whose hashes begin with the same depth bits.
// Its memory is read by anybody and written under mu.
type segment struct {
	mu    sync.Mutex
	mem   *lines
	depth uint
	dead  bool // others have taken its place
	used  int  // slots with a key
	live  int  // of these with a row
}

// home is the line where a key is looked for first: the last bits of its hash, as the
// first ones are alike in a segment.
func home(hash uint64) int { return int(hash & (linesPerSegment - 1)) }

// find looks for a key from its line on. Without one it gives the first slot that is
// empty, or nil.
func (m *lines) find(hash, key uint64) (at *line, slot int, ok bool) {
	for i := range linesPerSegment {
		l := &m[(home(hash)+i)&(linesPerSegment-1)]
		for j := range slotsPerLine {
			// The reference before the key; see row_unsafe.go.
			if l.ref(j) == refEmpty {
				return l, j, false
			}
			if l.key(j) == key {
				return l, j, true
			}
		}
	}
	return nil, 0, false
}

// add puts an entry that is not there into memory that nobody reads yet.
func (m *lines) add(hash, key, ref uint64) {
	at, slot, _ := m.find(hash, key)
	at.setKey(slot, key)
	at.setRef(slot, ref)
}
