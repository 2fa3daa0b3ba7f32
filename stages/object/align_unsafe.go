package object

import "unsafe"

// aligned reports whether the memory of b begins at a multiple of Align, as direct
// I/O wants it.
func aligned(b []byte) bool {
	return uintptr(unsafe.Pointer(unsafe.SliceData(b)))%Align == 0
}
