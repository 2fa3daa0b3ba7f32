package vectors

import (
	"encoding/binary"
	"fmt"
	"io"
	"strconv"
	"strings"
)

const npyMagic = "\x93NUMPY"

// npyHeader is what stands in front of the data of a .npy file.
type npyHeader struct {
	descr   string
	fortran bool
	shape   []int64
	data    int64 // offset of the first byte of the data
}

// readNpyHeader reads it from a file of size bytes. All that it says is checked, but for
// what descr and shape are good for.
func readNpyHeader(r io.ReaderAt, size int64) (npyHeader, error) {
	var h npyHeader
	var pre [12]byte
	n, err := r.ReadAt(pre[:], 0)
	if err != nil && err != io.EOF {
		return h, err
	}
	if m := min(n, len(npyMagic)); string(pre[:m]) != npyMagic[:m] || n == 0 {
		return h, at(0).fault(ErrFormat, "a .npy file begins with \\x93NUMPY")
	}
	if n < 10 {
		return h, at(int64(n)).fault(ErrTruncated, "the file ends in its header")
	}
	var length, begin int64
	switch major := pre[6]; major {
	case 1:
		length, begin = int64(binary.LittleEndian.Uint16(pre[8:])), 10
	case 2, 3:
		if n < 12 {
			return h, at(int64(n)).fault(ErrTruncated, "the file ends in its header")
		}
		length, begin = int64(binary.LittleEndian.Uint32(pre[8:])), 12
	default:
		return h, at(6).fault(ErrFormat, "version %d.%d of the format, want 1 to 3", major, pre[7])
	}
	if length > maxNpyHeader {
		return h, at(8).fault(ErrFormat, "a header of %d bytes, want at most %d", length, maxNpyHeader)
	}
	if begin+length > size {
		return h, at(size).fault(ErrTruncated, "the header has %d bytes, the file ends after %d of them", length, size-begin)
	}
	text := make([]byte, length)
	if _, err := r.ReadAt(text, begin); err != nil {
		return h, err
	}
	h.data = begin + length
	p := pyDict{text: string(text)}
	if err := p.parse(&h); err != nil {
		return h, at(begin+int64(p.pos)).fault(ErrFormat, "header: %v", err)
	}
	return h, nil
}

// rowsAndDim wants a matrix.
func (h *npyHeader) rowsAndDim() (rows int64, dim int, err error) {
	if len(h.shape) != 2 {
		return 0, 0, at(0).fault(ErrShape, "the array has %d dimensions, want 2: rows and floats of a row", len(h.shape))
	}
	if h.shape[1] < 1 || h.shape[1] > MaxDim {
		return 0, 0, at(0).fault(ErrShape, "the rows have %d floats, want 1 to %d", h.shape[1], MaxDim)
	}
	return h.shape[0], int(h.shape[1]), nil
}

// checkSize compares what the header says with the bytes that are there.
func checkSize(data, size, rows int64, row int) error {
	// rows is at most 2^48 and row 2^19: both products may be beyond int64.
	if rows > maxRows || rows > (1<<62)/int64(row) {
		return at(0).fault(ErrShape, "%d rows are more than a file can have", rows)
	}
	want := data + rows*int64(row)
	switch {
	case size < want:
		return at(size).fault(ErrTruncated, "%d rows need %d bytes, the file has %d", rows, want, size)
	case size > want:
		return at(want).fault(ErrTrailing, "%d bytes follow the %d rows", size-want, rows)
	}
	return nil
}

// pyDict parses the Python dictionary of a header: string keys; a string, a boolean and
// a tuple of whole numbers as values; nothing else.
type pyDict struct {
	text string
	pos  int
}

func (p *pyDict) parse(h *npyHeader) error {
	if err := p.want('{'); err != nil {
		return err
	}
	seen := map[string]bool{}
	for !p.take('}') {
		key, err := p.str()
		if err != nil {
			return err
		}
		if seen[key] {
			return fmt.Errorf("%s twice", shorten(key))
		}
		seen[key] = true
		if err := p.want(':'); err != nil {
			return err
		}
		switch key {
		case "descr":
			h.descr, err = p.str()
		case "fortran_order":
			h.fortran, err = p.boolean()
		case "shape":
			h.shape, err = p.tuple()
		default:
			return fmt.Errorf("unknown key %s", shorten(key))
		}
		if err != nil {
			return fmt.Errorf("%s: %w", key, err)
		}
		if !p.take(',') {
			if err := p.want('}'); err != nil {
				return err
			}
			break
		}
	}
	for _, k := range []string{"descr", "fortran_order", "shape"} {
		if !seen[k] {
			return fmt.Errorf("no %q", k)
		}
	}
	if p.space(); p.pos != len(p.text) {
		return fmt.Errorf("something follows the dictionary")
	}
	return nil
}

func (p *pyDict) space() {
	for p.pos < len(p.text) && strings.IndexByte(" \t\r\n", p.text[p.pos]) >= 0 {
		p.pos++
	}
}

func (p *pyDict) take(c byte) bool {
	if p.space(); p.pos < len(p.text) && p.text[p.pos] == c {
		p.pos++
		return true
	}
	return false
}

func (p *pyDict) want(c byte) error {
	if !p.take(c) {
		return fmt.Errorf("want %q", c)
	}
	return nil
}

// str is a string without escapes, which no header needs.
func (p *pyDict) str() (string, error) {
	if p.space(); p.pos < len(p.text) {
		if q := p.text[p.pos]; q == '\'' || q == '"' {
			rest := p.text[p.pos+1:]
			if i := strings.IndexByte(rest, q); i >= 0 && !strings.ContainsAny(rest[:i], "\\\n") {
				p.pos += i + 2
				return rest[:i], nil
			}
		}
	}
	return "", fmt.Errorf("want a string")
}

func (p *pyDict) boolean() (bool, error) {
	p.space()
	for _, w := range []string{"True", "False"} {
		if strings.HasPrefix(p.text[p.pos:], w) {
			p.pos += len(w)
			return w == "True", nil
		}
	}
	return false, fmt.Errorf("want True or False")
}

// tuple is () or (3,) or (3, 4); Python 2 wrote an L behind large numbers.
func (p *pyDict) tuple() ([]int64, error) {
	if err := p.want('('); err != nil {
		return nil, err
	}
	var out []int64
	for !p.take(')') {
		p.space()
		begin := p.pos
		for p.pos < len(p.text) && p.text[p.pos] >= '0' && p.text[p.pos] <= '9' {
			p.pos++
		}
		n, err := strconv.ParseInt(p.text[begin:p.pos], 10, 64)
		if err != nil {
			return nil, fmt.Errorf("want a whole number from 0 on")
		}
		p.take('L')
		if out = append(out, n); len(out) > 32 {
			return nil, fmt.Errorf("more than 32 dimensions")
		}
		if !p.take(',') {
			if err := p.want(')'); err != nil {
				return nil, err
			}
			break
		}
	}
	return out, nil
}

// floatOf and keyOf are the types that matrices and keys may have.
func floatOf(descr string) (element, error) {
	switch descr {
	case "<f2", "<f4", "<f8", ">f2", ">f4", ">f8":
		return element{kind: 'f', size: int(descr[2] - '0'), big: descr[0] == '>'}, nil
	}
	return element{}, at(0).fault(ErrShape, "the elements are %s, want f2, f4 or f8", shorten(descr))
}

func keyOf(descr string) (big, signed bool, err error) {
	switch descr {
	case "<u8", ">u8", "<i8", ">i8":
		return descr[0] == '>', descr[1] == 'i', nil
	}
	return false, false, at(0).fault(ErrKeys, "the elements are %s, want u8 or i8", shorten(descr))
}
