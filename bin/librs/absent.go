//go:build !cgo

package main

// Without cgo there is no C interface: who calls it is C, and export_unsafe.go and shim.c
// are what it enters by. The rest of the package is plain Go; it is built and tested so
// that a change which breaks it is noticed here, too.
