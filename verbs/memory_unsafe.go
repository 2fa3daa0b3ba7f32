package verbs

import (
	"sync/atomic"
	"unsafe"
)

// This is the package's one file with unsafe. Memory order: LoadWord is an
// acquire load and StoreWord a release store (Go's atomics are sequentially
// consistent). A provider writes an aligned 8-byte remote WRITE with StoreWord
// after every earlier byte of that QP, so whoever sees the word by LoadWord sees
// those bytes.

func addrOf(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) }

// AddrOf is the virtual address of the first byte of registered memory.
func AddrOf(b []byte) uint64 { return addrOf(b) }

// LoadWord reads the 8-byte aligned little-endian word at b[0:8], which a peer
// may be writing. The caller keeps b inside a live Region.
func LoadWord(b []byte) uint64 {
	_ = b[7]
	return atomic.LoadUint64((*uint64)(unsafe.Pointer(unsafe.SliceData(b))))
}

// StoreWord writes the 8-byte aligned word at b[0:8] for others to see.
func StoreWord(b []byte, v uint64) {
	_ = b[7]
	atomic.StoreUint64((*uint64)(unsafe.Pointer(unsafe.SliceData(b))), v)
}

// CompareAndSwapWord and AddWord are the two remote atomics on local memory
// (IBTA 9.4.5); both return the old value.
func CompareAndSwapWord(b []byte, compare, swap uint64) uint64 {
	_ = b[7]
	p := (*uint64)(unsafe.Pointer(unsafe.SliceData(b)))
	for {
		old := atomic.LoadUint64(p)
		if old != compare || atomic.CompareAndSwapUint64(p, old, swap) {
			return old
		}
	}
}

// AddWord adds to the aligned word at b[0:8] and returns the old value.
func AddWord(b []byte, add uint64) uint64 {
	_ = b[7]
	return atomic.AddUint64((*uint64)(unsafe.Pointer(unsafe.SliceData(b))), add) - add
}
