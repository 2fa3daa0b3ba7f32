package object

import (
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
)

// Source is where a put takes an object's content from: exactly Size bytes.
type Source struct {
	io.Reader
	Size uint64
	Name string // for errors
	done func() error
}

// NewSource is a source of size bytes from a reader.
func NewSource(r io.Reader, size uint64, name string) *Source {
	return &Source{Reader: r, Size: size, Name: name}
}

// OpenSource opens a regular file. The caller closes it.
func OpenSource(path string) (*Source, error) {
	// Without O_NONBLOCK the open of a FIFO waits for its writer.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrSource, err)
	}
	fi, err := f.Stat()
	if err == nil && !fi.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a regular file (%v): its size is not known beforehand", path, fi.Mode().Type())
	}
	if err != nil {
		return nil, both(fmt.Errorf("%w: %w", ErrSource, err), f.Close())
	}
	return &Source{Reader: f, Size: uint64(fi.Size()), Name: path, done: f.Close}, nil
}

// Close closes what OpenSource opened.
func (s *Source) Close() error {
	if s.done == nil {
		return nil
	}
	return s.done()
}

// fill reads the next len(b) bytes, of which at were read before.
func (s *Source) fill(b []byte, at uint64) error {
	n, err := io.ReadFull(s.Reader, b)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("%w: %s ended after %d of %d bytes", ErrSource, s.Name, at+uint64(n), s.Size)
	}
	if err != nil {
		return fmt.Errorf("%w: read %s at %d: %w", ErrSource, s.Name, at+uint64(n), err)
	}
	return nil
}

// atEnd checks that nothing follows: a file that grew while it was read would
// otherwise be cut without a word.
func (s *Source) atEnd() error {
	var b [1]byte
	switch n, err := io.ReadFull(s.Reader, b[:]); {
	case n == 1:
		return fmt.Errorf("%w: %s has more than %d bytes", ErrSource, s.Name, s.Size)
	case !errors.Is(err, io.EOF):
		return fmt.Errorf("%w: read %s at %d: %w", ErrSource, s.Name, s.Size, err)
	}
	return nil
}
