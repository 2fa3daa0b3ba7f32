package vectors

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
)

// Writer writes a .npy file, version 1: rows of little-endian float32 in C order, or
// keys. The file has its name only after Commit.
type Writer struct {
	path string
	f    *os.File // nil when it is over
	w    *bufio.Writer
	dim  int // 0: keys
	rows int64
	buf  [1 << 13]byte
	err  error
}

// CreateMatrix begins a file of rows with dim floats each.
func CreateMatrix(path string, dim int) (*Writer, error) {
	if dim < 1 || dim > MaxDim {
		return nil, fail("vectors", path, fmt.Errorf("rows of %d floats, want 1 to %d", dim, MaxDim))
	}
	return create(path, dim)
}

// CreateKeys begins a file of keys.
func CreateKeys(path string) (*Writer, error) { return create(path, 0) }

func create(path string, dim int) (*Writer, error) {
	if st, err := os.Stat(path); err == nil && !st.Mode().IsRegular() {
		return nil, fail("vectors", path, errors.New("there is something that is not a regular file"))
	}
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return nil, fail("vectors", path, err)
	}
	w := &Writer{path: path, f: f, w: bufio.NewWriterSize(f, 1<<20), dim: dim}
	if _, err := w.w.Write(w.header()); err != nil {
		return nil, errors.Join(fail("vectors", path, err), w.Close())
	}
	return w, nil
}

// header is of the same length whatever the number of rows is, so that it can be written
// again when that is known.
func (w *Writer) header() []byte {
	descr, shape := "<f4", fmt.Sprintf("(%d, %d)", w.rows, w.dim)
	if w.dim == 0 {
		descr, shape = "<u8", fmt.Sprintf("(%d,)", w.rows)
	}
	const length = 128 - 10 // the data begin at a multiple of 64
	text := fmt.Sprintf("{'descr': '%s', 'fortran_order': False, 'shape': %s, }", descr, shape)
	b := append([]byte(npyMagic), 1, 0, length, 0)
	b = append(b, text...)
	b = append(b, strings.Repeat(" ", length-1-len(text))...)
	return append(b, '\n')
}

// Rows appends whole rows.
func (w *Writer) Rows(rows []float32) error {
	if w.dim == 0 || len(rows)%w.dim != 0 {
		return fail("vectors", w.path, fmt.Errorf("%d floats are not whole rows of %d", len(rows), w.dim))
	}
	return w.write(len(rows)/max(w.dim, 1), len(rows), 4, func(b []byte, i int) {
		binary.LittleEndian.PutUint32(b, math.Float32bits(rows[i]))
	})
}

// Keys appends keys.
func (w *Writer) Keys(keys []uint64) error {
	if w.dim != 0 {
		return fail("vectors", w.path, errors.New("keys in a file of rows"))
	}
	return w.write(len(keys), len(keys), 8, func(b []byte, i int) { binary.LittleEndian.PutUint64(b, keys[i]) })
}

func (w *Writer) write(rows, n, size int, put func(b []byte, i int)) error {
	if w.err == nil && w.f == nil {
		w.err = os.ErrClosed
	}
	for i := 0; i < n && w.err == nil; {
		m := min(n-i, len(w.buf)/size)
		for j := range m {
			put(w.buf[j*size:], i+j)
		}
		_, w.err = w.w.Write(w.buf[:m*size])
		i += m
	}
	if w.err != nil {
		return fail("vectors", w.path, w.err)
	}
	w.rows += int64(rows)
	return nil
}

// Written are the rows or keys so far.
func (w *Writer) Written() int64 { return w.rows }

// Commit makes the file durable and gives it its name. The writer is closed then, also
// when it fails.
func (w *Writer) Commit() error {
	if w.f == nil {
		return fail("vectors", w.path, os.ErrClosed)
	}
	err := w.err
	if err == nil {
		err = w.w.Flush()
	}
	if err == nil {
		_, err = w.f.WriteAt(w.header(), 0)
	}
	if err == nil {
		err = w.f.Chmod(0o644)
	}
	if err == nil {
		err = w.f.Sync()
	}
	if err == nil {
		err = os.Rename(w.f.Name(), w.path)
	}
	if err != nil {
		return errors.Join(fail("vectors", w.path, err), w.Close())
	}
	f := w.f
	w.f = nil
	return f.Close()
}

// Close throws away what was not committed. It is idempotent.
func (w *Writer) Close() error {
	if w.f == nil {
		return nil
	}
	f := w.f
	w.f = nil
	return errors.Join(f.Close(), os.Remove(f.Name()))
}
