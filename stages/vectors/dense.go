package vectors

import (
	"errors"
	"io"
)

// dense is a matrix whose elements lie one after the other in a file, by rows or by
// columns.
type dense struct {
	f       io.ReaderAt
	kind    Format
	el      element
	data    int64 // offset of the first byte
	size    int64 // of the file
	rows    int64
	dim     int
	columns bool
	next    int64 // row

	buf []byte
	// Of a matrix in columns: a block of rows, already turned, and where it begins.
	turned      []float32
	first, last int64
	tooLarge    []int64 // elements of the block that do not fit, as row*dim+column
}

func openNpy(f io.ReaderAt, size int64) (source, error) {
	h, err := readNpyHeader(f, size)
	if err != nil {
		return nil, err
	}
	el, err := floatOf(h.descr)
	if err != nil {
		return nil, err
	}
	rows, dim, err := h.rowsAndDim()
	if err != nil {
		return nil, err
	}
	if err := checkSize(h.data, size, rows, dim*el.size); err != nil {
		return nil, err
	}
	return &dense{f: f, kind: Npy, el: el, data: h.data, size: size, rows: rows, dim: dim, columns: h.fortran && dim > 1 && rows > 1}, nil
}

func (d *dense) shape() (int, int64) { return d.dim, d.rows }
func (d *dense) keyed() bool         { return false }
func (d *dense) format() Format      { return d.kind }

// consumed counts the rest of the file, such as other tensors, with the last row.
func (d *dense) consumed() int64 {
	if d.next == d.rows {
		return d.size
	}
	return d.data + d.next*int64(d.dim*d.el.size)
}

func (d *dense) where(row int64, column int) place {
	i := row*int64(d.dim) + int64(max(column, 0))
	if d.columns {
		i = int64(max(column, 0))*d.rows + row
	}
	return place{offset: d.data + i*int64(d.el.size), row: row, column: column}
}

func (d *dense) read(n int, _ []uint64, rows []float32, bad func(int64, int) error) (int, error) {
	n = int(min(int64(n), d.rows-d.next))
	if n == 0 {
		return 0, io.EOF
	}
	if d.columns {
		return d.readColumns(n, rows, bad)
	}
	rowBytes := d.dim * d.el.size
	n = min(n, max(1, blockBytes/rowBytes))
	b, err := d.bytes(d.data+d.next*int64(rowBytes), n*rowBytes)
	if err != nil {
		return 0, err
	}
	if i := d.el.decode(rows, 1, b); i >= 0 {
		if err := bad(d.next+int64(i/d.dim), i%d.dim); err != nil {
			d.next += int64(i / d.dim)
			return i / d.dim, err
		}
	}
	d.next += int64(n)
	return n, nil
}

// bytes reads into the reader's own memory, which lives until the next call.
func (d *dense) bytes(offset int64, n int) ([]byte, error) {
	if cap(d.buf) < n {
		d.buf = make([]byte, n)
	}
	b := d.buf[:n]
	got, err := d.f.ReadAt(b, offset)
	if got == n {
		return b, nil
	}
	if errors.Is(err, io.EOF) { // it became shorter after it was opened
		return nil, at(offset+int64(got)).fault(ErrTruncated, "the file was cut while it was read")
	}
	return nil, err
}

// readColumns reads a block of many rows, a piece of each column, and gives it out row
// by row: a pass over the file by pieces, not an element at a time.
func (d *dense) readColumns(n int, rows []float32, bad func(int64, int) error) (int, error) {
	if d.next >= d.last {
		if err := d.turn(); err != nil {
			return 0, err
		}
	}
	n = int(min(int64(n), d.last-d.next))
	from := int(d.next-d.first) * d.dim
	copy(rows[:n*d.dim], d.turned[from:])
	for _, i := range d.tooLarge {
		row := i / int64(d.dim)
		if row < d.next || row >= d.next+int64(n) {
			continue
		}
		if err := bad(row, int(i%int64(d.dim))); err != nil {
			n = int(row - d.next)
			d.next = row
			return n, err
		}
	}
	d.next += int64(n)
	return n, nil
}

func (d *dense) turn() error {
	block := min(d.rows-d.next, int64(max(1, columnBytes/(d.dim*4))))
	if n := int(block) * d.dim; cap(d.turned) < n {
		d.turned = make([]float32, n)
	}
	d.turned = d.turned[:int(block)*d.dim]
	d.tooLarge = d.tooLarge[:0]
	for c := range d.dim {
		b, err := d.bytes(d.data+(int64(c)*d.rows+d.next)*int64(d.el.size), int(block)*d.el.size)
		if err != nil {
			return err
		}
		if i := d.el.decode(d.turned[c:], d.dim, b); i >= 0 {
			// One a column is enough: the first row that has one is what is told.
			d.tooLarge = append(d.tooLarge, (d.next+int64(i))*int64(d.dim)+int64(c))
		}
	}
	d.first, d.last = d.next, d.next+block
	return nil
}
