package table

import (
	"sync/atomic"
	"unsafe"
)

// This is the package's one file with unsafe. It only looks at memory as another
// type; all sharing between goroutines goes through the atomics below.
//
// Memory order. An entry of the index is a key and a reference. A writer, which holds
// the segment's lock, first writes the row, then the key, then the reference
// (setRef). A reader loads the reference first (ref) and the key after it (key), and
// reads the row last. Go's atomics are sequentially consistent, so who sees a
// reference sees the key and the row that were written before it, and a key that was
// written once never changes. Rows themselves are read and written plainly: between
// setRef and the end of the last pin from before its replacement nobody writes them.

// line is a group of the index: four keys, then their references.
type line [2 * slotsPerLine]uint64

func (l *line) key(j int) uint64         { return atomic.LoadUint64(&l[j&3]) }
func (l *line) ref(j int) uint64         { return atomic.LoadUint64(&l[slotsPerLine+j&3]) }
func (l *line) setRef(j int, ref uint64) { atomic.StoreUint64(&l[slotsPerLine+j&3], ref) }
func (l *line) setKey(j int, key uint64) { atomic.StoreUint64(&l[j&3], key) }

// lines is the memory of a segment.
type lines [linesPerSegment]line

// asLines looks at segmentBytes of memory as a segment. The memory outlives the
// pointer: the store unmaps it only when it is closed, and then no reader is left.
func asLines(b []byte) *lines {
	_ = b[segmentBytes-1]
	return (*lines)(unsafe.Pointer(unsafe.SliceData(b)))
}

// floatBytes is the memory of f.
func floatBytes(f []float32) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(f))), len(f)*4)
}

// asFloats looks at bytes, which begin on a multiple of four, as floats.
func asFloats(b []byte) []float32 {
	return unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/4)
}
