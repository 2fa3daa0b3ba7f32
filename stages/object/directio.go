package object

import (
	"errors"
	"fmt"
	"io"
	"sync"

	"golang.org/x/sys/unix"
)

// What StoreConfig.DirectIO may be.
const (
	DirectOff  = "off"  // through the page cache
	DirectAuto = "auto" // around it where the file system lets it, as Directories tells
	DirectOn   = "on"   // around it, or the shard does not start
)

// oDirect has another value on each architecture; the name has the right one.
const oDirect = unix.O_DIRECT

// A stripe file's body is the part of the data up to the last whole block of Align
// bytes; its tail is the rest of the data and the trailer. Direct I/O moves whole
// blocks from and to aligned memory: the body goes straight between the file and
// the registered memory, whose extents and stripes are aligned, and only the tail
// goes through a buffer, padded with zeros that are cut off again.

// bodyLen is the length of the body of n bytes of data.
func bodyLen(n int) int { return n / Align * Align }

// bounceBytes is how much unaligned memory is moved at once; a tail has at most
// Align-1+trailerBytes bytes, which is less.
const bounceBytes = 64 * Align

// bounces are aligned buffers of bounceBytes.
var bounces = sync.Pool{New: func() any {
	b := make([]byte, bounceBytes+Align)
	for !aligned(b) {
		b = b[1:]
	}
	b = b[:bounceBytes:bounceBytes]
	return &b
}}

// writeBlocks writes b, a whole number of blocks, to an offset that is a multiple
// of them.
func writeBlocks(f storedFile, b []byte, off int64) error {
	if aligned(b) {
		_, err := f.WriteAt(b, off)
		return err
	}
	buf := bounces.Get().(*[]byte)
	defer bounces.Put(buf)
	for len(b) > 0 {
		n := copy(*buf, b)
		if _, err := f.WriteAt((*buf)[:n], off); err != nil {
			return err
		}
		b, off = b[n:], off+int64(n)
	}
	return nil
}

// readBlocks fills b, a whole number of blocks.
func readBlocks(f storedFile, b []byte, off int64) error {
	if aligned(b) {
		_, err := f.ReadAt(b, off)
		return err
	}
	buf := bounces.Get().(*[]byte)
	defer bounces.Put(buf)
	for len(b) > 0 {
		part := (*buf)[:min(len(b), bounceBytes)]
		if _, err := f.ReadAt(part, off); err != nil {
			return err
		}
		n := copy(b, part)
		b, off = b[n:], off+int64(n)
	}
	return nil
}

// writeTail writes the end of a file in whole blocks from an offset that is a
// multiple of them, and cuts the file to its length.
func writeTail(f storedFile, off int64, parts ...[]byte) error {
	buf := bounces.Get().(*[]byte)
	defer bounces.Put(buf)
	n := 0
	for _, p := range parts {
		n += copy((*buf)[n:], p)
	}
	whole := int(roundUp(uint64(n)))
	clear((*buf)[n:whole])
	if _, err := f.WriteAt((*buf)[:whole], off); err != nil {
		return err
	}
	return f.truncate(off + int64(n))
}

// readTail calls use with the bytes from off to size, which are few; they are
// valid during the call.
func readTail(f storedFile, off, size int64, use func([]byte) error) error {
	buf := bounces.Get().(*[]byte)
	defer bounces.Put(buf)
	n := int(size - off)
	// Whole blocks are asked for; the file ends before they do.
	got, err := f.ReadAt((*buf)[:roundUp(uint64(n))], off)
	if got < n {
		if err == nil || errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return err
	}
	return use((*buf)[:n])
}

// tryDirect finds out whether the file system of a folder takes direct I/O, by
// writing a block; why says why not.
func tryDirect(fsys fileSystem, name string) (why string, err error) {
	f, err := fsys.open(name, createFlags|oDirect)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP) {
		// Some file systems make the file before they refuse the flag.
		return "the file system refuses O_DIRECT", ignoreMissing(fsys.remove(name))
	}
	if err != nil {
		return "", err
	}
	defer func() { err = both(err, both(f.close(), fsys.remove(name))) }()
	if n := f.directAlign(); n > Align {
		return fmt.Sprintf("direct I/O there wants blocks of %d bytes, stripes are aligned to %d", n, Align), nil
	}
	switch err := writeTail(f, 0, []byte{1}); {
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.EOPNOTSUPP):
		return fmt.Sprintf("a direct write of %d bytes failed: %v", Align, err), nil
	default:
		return "", err
	}
}
