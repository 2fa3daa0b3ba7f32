package ps

import (
	"encoding/binary"
	"unsafe"
)

// This is the package's one file with unsafe. Rows lie in slots, slabs and staging as
// they lie on the wire, little-endian, so they are looked at as floats where they are.

// littleEndian reports whether this machine can do that.
func littleEndian() bool { return binary.NativeEndian.Uint16([]byte{1, 0}) == 1 }

// asFloats looks at memory as floats. It must begin at a multiple of four: slots and
// staging begin at multiples of 64, and what comes before rows in them is a multiple of 8.
func asFloats(b []byte) []float32 {
	return unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/4)
}

// floatBytes is the memory of floats.
func floatBytes(f []float32) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(f))), len(f)*4)
}
