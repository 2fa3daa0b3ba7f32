package vectors

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"os"
	"strconv"
	"unicode/utf8"
)

// text is a file of lines, each a word and the numbers of its row. The last dim fields
// are the numbers, so a word may have blanks in it, as some of GloVe's do.
type text struct {
	in     *bufio.Reader
	opt    Options
	size   int64
	dim    int
	rows   int64 // that the first line tells, or -1
	next   int64 // row
	line   int64 // of the line that was read last
	begin  int64 // its offset
	offset int64 // of the byte after it
	buf    []byte
	held   []byte // a line that was read to learn the shape, and comes first
	begins []mark // of the rows of the last read
	first  int64  // row of begins[0]
}

// mark is where a row begins.
type mark struct{ offset, line int64 }

func openText(f *os.File, size int64, opt Options) (source, error) {
	t := &text{in: bufio.NewReaderSize(io.NewSectionReader(f, 0, size), 256<<10), opt: opt, size: size, rows: -1}
	line, err := t.readLine()
	if err == io.EOF {
		return nil, at(0).fault(ErrFormat, "the file is empty")
	}
	if err != nil {
		return nil, err
	}
	if count, dim, ok := t.head(line); ok {
		if dim < 1 || dim > MaxDim {
			return nil, t.fault(0, -1, ErrShape, "the rows have %d floats, want 1 to %d", dim, MaxDim)
		}
		if count > maxRows {
			return nil, t.fault(0, -1, ErrShape, "%d rows are more than a file can have", count)
		}
		t.dim, t.rows = int(dim), count
		return t, nil
	} else if opt.Header == HeaderYes {
		return nil, t.fault(0, -1, ErrFormat, "want the line \"count dim\"")
	}
	if t.dim = opt.Dim; t.dim == 0 {
		// The first word is taken to have no blanks in it.
		t.dim = len(bytes.Fields(line)) - 1
	}
	if t.dim < 1 {
		return nil, t.fault(0, -1, ErrFormat, "want a word and numbers")
	}
	if t.dim > MaxDim {
		return nil, t.fault(0, -1, ErrShape, "the rows have %d floats, want 1 to %d", t.dim, MaxDim)
	}
	t.held = append([]byte(nil), line...)
	return t, nil
}

// head takes the line "count dim" apart, if the line is one.
func (t *text) head(line []byte) (count, dim int64, ok bool) {
	if t.opt.Header == HeaderNo || t.opt.Header == HeaderAuto && t.opt.Dim == 1 {
		return 0, 0, false
	}
	f := bytes.Fields(line)
	if len(f) != 2 || len(f[0]) > 18 || len(f[1]) > 18 {
		return 0, 0, false
	}
	count, err1 := strconv.ParseInt(string(f[0]), 10, 64)
	dim, err2 := strconv.ParseInt(string(f[1]), 10, 64)
	return count, dim, err1 == nil && err2 == nil && count >= 0
}

func (t *text) shape() (int, int64) { return t.dim, t.rows }
func (t *text) keyed() bool         { return true }
func (t *text) format() Format      { return Text }
func (t *text) consumed() int64     { return t.offset }

func (t *text) where(row int64, column int) place {
	p := place{offset: t.begin, line: max(t.line, 1), row: row, column: column}
	if i := row - t.first; i >= 0 && i < int64(len(t.begins)) {
		p.offset, p.line = t.begins[i].offset, t.begins[i].line
	}
	return p
}

// fault is one of the line that was read last, at a byte of it.
func (t *text) fault(in int, column int, kind error, format string, args ...any) *FaultError {
	return place{offset: t.begin + int64(in), line: t.line, row: t.next, column: column}.fault(kind, format, args...)
}

// readLine gives the next line without its end. It lives until the next call.
func (t *text) readLine() ([]byte, error) {
	t.begin = t.offset
	t.line++
	t.buf = t.buf[:0]
	for {
		part, err := t.in.ReadSlice('\n')
		t.offset += int64(len(part))
		if err == nil && len(t.buf) == 0 {
			return trimEnd(part), nil
		}
		t.buf = append(t.buf, part...)
		switch {
		case len(t.buf) > maxLine:
			return nil, t.fault(0, -1, ErrFormat, "a line of more than %d bytes", maxLine)
		case err == nil:
			return trimEnd(t.buf), nil
		case errors.Is(err, bufio.ErrBufferFull):
		case err == io.EOF && t.offset < t.size:
			return nil, at(t.offset).fault(ErrTruncated, "the file was cut while it was read")
		case err == io.EOF && len(t.buf) > 0:
			return bytes.TrimSuffix(t.buf, []byte{'\r'}), nil // the last line may lack its end
		default:
			return nil, err
		}
	}
}

func trimEnd(line []byte) []byte { return bytes.TrimSuffix(line[:len(line)-1], []byte{'\r'}) }

func (t *text) read(n int, keys []uint64, rows []float32, bad func(int64, int) error) (int, error) {
	t.begins, t.first = t.begins[:0], t.next
	for i := range n {
		line, err := t.held, error(nil)
		if t.held = nil; line == nil {
			line, err = t.readLine()
		}
		switch {
		case err == io.EOF && t.rows >= 0 && t.next < t.rows:
			return i, at(t.offset).fault(ErrTruncated, "the first line tells of %d rows, there are %d", t.rows, t.next)
		case err != nil:
			return i, err
		case t.rows >= 0 && t.next >= t.rows:
			return i, t.fault(0, -1, ErrTrailing, "the first line tells of %d rows, and more follow", t.rows)
		}
		key, err := t.parse(line, rows[i*t.dim:(i+1)*t.dim], bad)
		if err != nil {
			return i, err
		}
		keys[i] = key
		t.begins = append(t.begins, mark{t.begin, t.line})
		t.next++
	}
	return n, nil
}

// parse takes a line from its end: dim numbers, and what is left is the word.
func (t *text) parse(line []byte, row []float32, bad func(int64, int) error) (uint64, error) {
	end := len(line)
	for c := t.dim - 1; c >= 0; c-- {
		for end > 0 && isBlank(line[end-1]) {
			end--
		}
		begin := end
		for begin > 0 && !isBlank(line[begin-1]) {
			begin--
		}
		if begin == 0 {
			return 0, t.shapeFault(line)
		}
		if end-begin > maxNumber {
			return 0, t.fault(begin, c, ErrFormat, "a number of %d bytes", end-begin)
		}
		v, err := number(line[begin:end])
		if errors.Is(err, strconv.ErrRange) {
			if err := bad(t.next, c); err != nil {
				var f *FaultError
				if errors.As(err, &f) {
					f.Offset, f.Line = t.begin+int64(begin), t.line
				}
				return 0, err
			}
		} else if err != nil {
			if c == 0 || t.opt.Dim == 0 && t.rows < 0 {
				if n := len(bytes.Fields(line)) - 1; n != t.dim {
					return 0, t.shapeFault(line)
				}
			}
			return 0, t.fault(begin, c, ErrFormat, "%s is not a number", shorten(string(line[begin:end])))
		}
		row[c] = float32(v)
		end = begin
	}
	// One blank separates the word; those before it are the word's.
	word := line[:end-1]
	switch {
	case len(word) == 0:
		return 0, t.fault(0, -1, ErrFormat, "there is no word")
	case len(word) > maxWord:
		return 0, t.fault(0, -1, ErrFormat, "a word of %d bytes, want at most %d", len(word), maxWord)
	case !utf8.Valid(word):
		return 0, t.fault(0, -1, ErrFormat, "the word %s is not UTF-8", shorten(string(word)))
	}
	if extra := t.extraNumbers(word); extra > 0 {
		return 0, t.fault(0, -1, ErrShape, "the row has %d floats, want %d", t.dim+extra, t.dim)
	}
	key := wordKey(word)
	if t.opt.Words != nil {
		if err := t.opt.Words(word, key); err != nil {
			return 0, err
		}
	}
	return key, nil
}

// number reads a decimal number, or one that is not finite. Go's literals go further: 1_0
// and 0x1p4 are no numbers in such files.
func number(s []byte) (float64, error) {
	if bytes.IndexByte(s, '_') >= 0 || bytes.IndexByte(s, 'x') >= 0 || bytes.IndexByte(s, 'X') >= 0 {
		return 0, strconv.ErrSyntax
	}
	return strconv.ParseFloat(string(s), 32)
}

// extraNumbers are numbers at the end of a word, but not its beginning: then the row is
// wider than it should be. A word of several parts whose last is a number cannot be told
// from that, and is refused rather than read with the wrong numbers.
func (t *text) extraNumbers(word []byte) int {
	if !bytes.ContainsAny(word, " \t") {
		return 0
	}
	f := bytes.Fields(word)
	n := 0
	for n < len(f)-1 {
		s := f[len(f)-1-n]
		if len(s) > maxNumber || bytes.IndexByte([]byte("+-.0123456789"), s[0]) < 0 {
			break
		}
		if _, err := number(s); err != nil && !errors.Is(err, strconv.ErrRange) {
			break
		}
		n++
	}
	return n
}

func (t *text) shapeFault(line []byte) error {
	n := len(bytes.Fields(line)) - 1
	if n < 0 {
		return t.fault(0, -1, ErrFormat, "the line is empty")
	}
	return t.fault(0, -1, ErrShape, "the row has %d floats, want %d", n, t.dim)
}

func isBlank(c byte) bool { return c == ' ' || c == '\t' }
