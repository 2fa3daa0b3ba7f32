package vectors

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
)

// Format is how a file is laid out.
type Format string

// The formats. Auto goes by the file's first bytes, and what is neither npy nor
// safetensors is text.
const (
	Auto        Format = "auto"
	Npy         Format = "npy"
	SafeTensors Format = "safetensors"
	Text        Format = "text"
)

// NaN is what becomes of a value that is not finite, or too large for a float32.
type NaN string

// The policies.
const (
	NaNReject NaN = "reject" // the default: it is a fault
	NaNZero   NaN = "zero"   // it counts as 0
	NaNKeep   NaN = "keep"
)

// Duplicates is what becomes of a key that comes again.
type Duplicates string

// The policies.
const (
	DuplicatesReject Duplicates = "reject" // the default: it is a fault
	DuplicatesLast   Duplicates = "last"   // rows come as they stand; who puts them in order keeps the last
)

// Header is whether a text begins with the line "count dim".
type Header string

// The ways.
const (
	HeaderAuto Header = "auto" // there is one if the first line is two whole numbers, unless Dim is 1
	HeaderYes  Header = "yes"
	HeaderNo   Header = "no"
)

// Options of Open. The zero value takes every default.
type Options struct {
	Format     Format
	Tensor     string // safetensors: which one; empty: the only one that fits
	Keys       string // npy file with the keys; empty: row numbers, or the words' keys
	Dim        int    // floats of a row that are wanted; 0: what the file has
	NaN        NaN
	Duplicates Duplicates
	Header     Header
	MaxKeys    int // remembered for DuplicatesReject; 0: DefaultMaxKeys

	// Words is called with each word of a text and its key, in the file's order. The
	// slice is lent for the call.
	Words func(word []byte, key uint64) error
}

func (o *Options) complete() error {
	def := func(v *string, d string, all ...string) error {
		if *v == "" {
			*v = d
		}
		for _, a := range all {
			if *v == a {
				return nil
			}
		}
		return fmt.Errorf("%q: want one of %s", *v, strings.Join(all, ", "))
	}
	for _, f := range []struct {
		name string
		err  error
	}{
		{"format", def((*string)(&o.Format), string(Auto), string(Auto), string(Npy), string(SafeTensors), string(Text))},
		{"policy for values that are not finite", def((*string)(&o.NaN), string(NaNReject), string(NaNReject), string(NaNZero), string(NaNKeep))},
		{"policy for duplicates", def((*string)(&o.Duplicates), string(DuplicatesReject), string(DuplicatesReject), string(DuplicatesLast))},
		{"header", def((*string)(&o.Header), string(HeaderAuto), string(HeaderAuto), string(HeaderYes), string(HeaderNo))},
	} {
		if f.err != nil {
			return fmt.Errorf("%s %w", f.name, f.err)
		}
	}
	if o.Dim < 0 || o.Dim > MaxDim {
		return fmt.Errorf("dim %d: want 0 (the file's) to %d", o.Dim, MaxDim)
	}
	if o.MaxKeys == 0 {
		o.MaxKeys = DefaultMaxKeys
	}
	return nil
}

// source is a file of one format.
type source interface {
	// shape are the floats of a row, and the rows, -1 when only the end tells.
	shape() (dim int, rows int64)
	// read fills rows, at most n of them, and, if the format has keys of its own, keys.
	// It gives the whole rows that came before an error. bad is told of values that are
	// finite and do not fit.
	read(n int, keys []uint64, rows []float32, bad func(row int64, column int) error) (int, error)
	// where is the place of a float of a row that was read last.
	where(row int64, column int) place
	// consumed are the bytes that were read.
	consumed() int64
	// keyed says that read fills keys.
	keyed() bool
	format() Format
}

// Reader gives the rows of a file, in its order.
type Reader struct {
	path string
	opt  Options
	file *os.File
	size int64
	src  source
	dim  int
	rows int64 // -1: not known
	next int64 // row
	keys *keyFile
	seen keySet
	err  error // sticky

	bad func(row int64, column int) error // overflow, as a value
}

// Open opens a regular file and reads as much of it as tells its shape.
func Open(path string, opt Options) (*Reader, error) {
	r, err := open(path, opt)
	if err != nil {
		return nil, fail("vectors", path, err)
	}
	return r, nil
}

func open(path string, opt Options) (_ *Reader, err error) {
	if err := opt.complete(); err != nil {
		return nil, err
	}
	file, size, err := openRegular(path)
	if err != nil {
		return nil, err
	}
	r := &Reader{path: path, opt: opt, file: file, size: size}
	r.bad = r.overflow
	defer func() {
		if err != nil {
			_ = r.Close() // it was only read
		}
	}()
	if r.opt.Format == Auto {
		if r.opt.Format, err = sniff(file, path); err != nil {
			return nil, err
		}
	}
	switch r.opt.Format {
	case Npy:
		r.src, err = openNpy(file, size)
	case SafeTensors:
		r.src, err = openSafeTensors(file, size, opt.Tensor)
	default:
		r.src, err = openText(file, size, r.opt)
	}
	if err != nil {
		return nil, err
	}
	r.dim, r.rows = r.src.shape()
	switch {
	case opt.Tensor != "" && r.opt.Format != SafeTensors:
		return nil, fmt.Errorf("a tensor %q is asked for, and the file is %s", opt.Tensor, r.opt.Format)
	case opt.Words != nil && !r.src.keyed():
		return nil, fmt.Errorf("words are asked for, and the file is %s", r.opt.Format)
	case opt.Keys != "" && r.src.keyed():
		return nil, fmt.Errorf("keys are asked for from %s, and the file has words", opt.Keys)
	case opt.Dim != 0 && r.dim != opt.Dim && r.rows != 0:
		p := r.src.where(0, -1)
		return nil, p.fault(ErrShape, "the rows have %d floats, want %d", r.dim, opt.Dim)
	}
	if opt.Keys == "" {
		return r, nil
	}
	if r.keys, err = openKeys(opt.Keys); err != nil {
		return nil, fail("vectors", opt.Keys, err)
	}
	if r.keys.n != r.rows {
		f := at(0).fault(ErrKeys, "has %d keys, and %s has %d rows", r.keys.n, path, r.rows)
		f.Path = opt.Keys
		return nil, f
	}
	return r, nil
}

// openRegular refuses what has no end or no place to go back to.
func openRegular(path string) (*os.File, int64, error) {
	st, err := os.Stat(path)
	if err != nil {
		return nil, 0, err
	}
	if !st.Mode().IsRegular() {
		return nil, 0, errors.New("not a regular file")
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, 0, err
	}
	st, err = f.Stat()
	if err == nil && !st.Mode().IsRegular() {
		err = errors.New("not a regular file")
	}
	if err != nil {
		_ = f.Close() // it was only read
		return nil, 0, err
	}
	return f, st.Size(), nil
}

func sniff(f *os.File, path string) (Format, error) {
	var b [9]byte
	n, err := f.ReadAt(b[:], 0)
	if err != nil && err != io.EOF {
		return "", err
	}
	ext := strings.ToLower(filepath.Ext(path))
	switch {
	case n >= len(npyMagic) && string(b[:len(npyMagic)]) == npyMagic, ext == ".npy":
		return Npy, nil
	case n == 9 && b[8] == '{', ext == ".safetensors":
		return SafeTensors, nil
	}
	return Text, nil
}

// Format is what the file turned out to be.
func (r *Reader) Format() Format { return r.src.format() }

// Dim are the floats of a row.
func (r *Reader) Dim() int { return r.dim }

// Rows are the rows of the file, -1 when only its end tells.
func (r *Reader) Rows() int64 { return r.rows }

// Size are the bytes of the file, Consumed those that were read.
func (r *Reader) Size() int64     { return r.size }
func (r *Reader) Consumed() int64 { return r.src.consumed() }

// Next fills keys and rows, as many as fit into both, and says how many there are. At the
// end it gives io.EOF with none. With any other error the rows before the fault are there.
func (r *Reader) Next(keys []uint64, rows []float32) (int, error) {
	if r.err != nil {
		return 0, r.err
	}
	n, err := r.read(min(len(keys), len(rows)/r.dim), keys, rows)
	if err != nil && err != io.EOF {
		err = fail("vectors", r.path, err)
	}
	if err != nil {
		r.err = err
	}
	if n > 0 && err == io.EOF {
		err = nil
	}
	return n, err
}

func (r *Reader) read(n int, keys []uint64, rows []float32) (int, error) {
	if n == 0 {
		return 0, fmt.Errorf("no room for a row of %d floats", r.dim)
	}
	n, rerr := r.src.read(n, keys, rows, r.bad)
	if m, err := r.policy(rows[:n*r.dim]); err != nil {
		n, rerr = m, err
	}
	switch {
	case r.keys != nil:
		if m, err := r.keys.read(keys[:n]); err != nil {
			n, rerr = m, fail("vectors", r.opt.Keys, err)
		}
	case !r.src.keyed():
		for i := range n {
			keys[i] = uint64(r.next) + uint64(i)
		}
	}
	if m, err := r.distinct(keys[:n]); err != nil {
		n, rerr = m, err
	}
	r.next += int64(n)
	return n, rerr
}

// overflow judges a value that is finite in the file and does not fit.
func (r *Reader) overflow(row int64, column int) error {
	if r.opt.NaN != NaNReject {
		return nil // policy sees an infinity
	}
	return r.src.where(row, column).fault(ErrNotFinite, "the value does not fit into a float32")
}

// policy applies the rule for values that are not finite; n are the whole rows before
// the first that it refuses.
func (r *Reader) policy(rows []float32) (n int, err error) {
	if r.opt.NaN == NaNKeep {
		return 0, nil
	}
	for i, v := range rows {
		if finite(v) {
			continue
		}
		if r.opt.NaN == NaNZero {
			rows[i] = 0
			continue
		}
		row, col := i/r.dim, i%r.dim
		what := "NaN"
		if !math.IsNaN(float64(v)) {
			what = fmt.Sprint(v)
		}
		return row, r.src.where(r.next+int64(row), col).fault(ErrNotFinite, "the value is %s", what)
	}
	return 0, nil
}

// distinct finds a key that was there before. Row numbers cannot.
func (r *Reader) distinct(keys []uint64) (n int, err error) {
	if r.opt.Duplicates == DuplicatesLast || r.keys == nil && !r.src.keyed() {
		return 0, nil
	}
	for i, k := range keys {
		p := r.src.where(r.next+int64(i), -1)
		if r.seen.len() >= r.opt.MaxKeys {
			return i, p.fault(ErrDuplicate, "more than %d keys cannot be checked for duplicates", r.opt.MaxKeys)
		}
		if !r.seen.add(k) {
			if r.src.keyed() {
				return i, p.fault(ErrDuplicate, "the word's key %d was there before", k)
			}
			f := at(r.keys.offset(r.next+int64(i))).fault(ErrDuplicate, "the key %d was there before", k)
			f.Path, f.Row = r.opt.Keys, r.next+int64(i)
			return i, f
		}
	}
	return 0, nil
}

// Check reads to the end and gives the rows that there are, without keeping them.
func (r *Reader) Check() (rows int64, err error) {
	n := max(1, blockBytes/4/r.dim)
	keys, buf := make([]uint64, n), make([]float32, n*r.dim)
	for {
		n, err := r.Next(keys, buf)
		rows += int64(n)
		if err == io.EOF {
			return rows, nil
		}
		if err != nil {
			return rows, err
		}
	}
}

// Close closes the files. It is idempotent.
func (r *Reader) Close() error {
	var errs []error
	if r.file != nil {
		errs = append(errs, r.file.Close())
		r.file = nil
	}
	if r.keys != nil {
		errs = append(errs, r.keys.close())
		r.keys = nil
	}
	if r.err == nil {
		r.err = os.ErrClosed
	}
	return errors.Join(errs...)
}
