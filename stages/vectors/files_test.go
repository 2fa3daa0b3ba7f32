package vectors

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/railstore/railstore/pipeline"
)

// matrix is a file read to its end.
type matrix struct {
	dim  int
	keys []uint64
	rows []float32
}

// readAll reads a few rows at a time, so that blocks end at odd places.
func readAll(path string, opt Options) (m matrix, err error) {
	r, err := Open(path, opt)
	if err != nil {
		return m, err
	}
	defer r.Close()
	m.dim = r.Dim()
	keys, rows := make([]uint64, 3), make([]float32, 3*m.dim)
	for {
		n, err := r.Next(keys, rows)
		m.keys, m.rows = append(m.keys, keys[:n]...), append(m.rows, rows[:n*m.dim]...)
		if err == io.EOF {
			if _, err := r.Next(keys, rows); err != io.EOF {
				return m, fmt.Errorf("after the end: %v", err)
			}
			if r.Consumed() != r.Size() {
				return m, fmt.Errorf("%d of %d bytes consumed at the end", r.Consumed(), r.Size())
			}
			return m, nil
		}
		if err != nil {
			if _, again := r.Next(keys, rows); !errors.Is(again, err) && again == nil {
				return m, errors.New("it went on after an error")
			}
			return m, err
		}
	}
}

func write(t testing.TB, name string, b []byte) string {
	t.Helper()
	p := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(p, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return p
}

// npyFile makes a file by hand, from the text of its dictionary.
func npyFile(major byte, dict string, data []byte) []byte {
	b := append([]byte("\x93NUMPY"), major, 0)
	if major == 1 {
		b = binary.LittleEndian.AppendUint16(b, uint16(len(dict)))
	} else {
		b = binary.LittleEndian.AppendUint32(b, uint32(len(dict)))
	}
	return append(append(b, dict...), data...)
}

func stFile(header string, data []byte) []byte {
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	return append(append(b, header...), data...)
}

func f32le(v ...float32) []byte {
	var b []byte
	for _, f := range v {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(f))
	}
	return b
}

func f32be(v ...float32) []byte {
	var b []byte
	for _, f := range v {
		b = binary.BigEndian.AppendUint32(b, math.Float32bits(f))
	}
	return b
}

func f64le(v ...float64) []byte {
	var b []byte
	for _, f := range v {
		b = binary.LittleEndian.AppendUint64(b, math.Float64bits(f))
	}
	return b
}

func u64le(v ...uint64) []byte {
	var b []byte
	for _, f := range v {
		b = binary.LittleEndian.AppendUint64(b, f)
	}
	return b
}

func u16le(v ...uint16) []byte {
	var b []byte
	for _, f := range v {
		b = binary.LittleEndian.AppendUint16(b, f)
	}
	return b
}

func sameBits(a, b []float32) bool {
	return slices.EqualFunc(a, b, func(x, y float32) bool { return math.Float32bits(x) == math.Float32bits(y) })
}

func TestGoodFiles(t *testing.T) {
	const d23 = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }"
	want := []float32{1, 2, 3, 4, 5, 6}
	rowKeys := []uint64{0, 1}
	word := func(w ...string) (k []uint64) {
		for _, s := range w {
			k = append(k, WordKey(s))
		}
		return k
	}
	for _, tc := range []struct {
		name, file string
		b          []byte
		opt        Options
		keys       []uint64
		rows       []float32
	}{
		{"version 1", "a.npy", npyFile(1, d23+"      \n", f32le(want...)), Options{}, rowKeys, want},
		{"version 2", "a.npy", npyFile(2, d23+"\n", f32le(want...)), Options{}, rowKeys, want},
		{"version 3, another name", "a.bin", npyFile(3, d23+"\n", f32le(want...)), Options{}, rowKeys, want},
		{"order of keys, double quotes, no blanks", "a.npy", npyFile(1, `{"shape":(2,3),"fortran_order":False,"descr":"<f4"}`, f32le(want...)), Options{Dim: 3}, rowKeys, want},
		{"python 2", "a.npy", npyFile(1, "{'descr': '<f4', 'fortran_order': False, 'shape': (2L, 3L), }\n", f32le(want...)), Options{}, rowKeys, want},
		{"columns", "a.npy", npyFile(1, "{'descr': '<f4', 'fortran_order': True, 'shape': (2, 3), }\n", f32le(1, 4, 2, 5, 3, 6)), Options{}, rowKeys, want},
		{"big endian", "a.npy", npyFile(1, "{'descr': '>f4', 'fortran_order': False, 'shape': (2, 3), }\n", f32be(want...)), Options{}, rowKeys, want},
		{"f8", "a.npy", npyFile(1, "{'descr': '<f8', 'fortran_order': False, 'shape': (2, 3), }\n", f64le(1, 2, 3, 4, 5, 6)), Options{}, rowKeys, want},
		{"f2", "a.npy", npyFile(1, "{'descr': '<f2', 'fortran_order': False, 'shape': (2, 3), }\n", u16le(0x3c00, 0xc000, 0x7bff, 0x0001, 0x8000, 0x03ff)), Options{}, rowKeys,
			[]float32{1, -2, 65504, 1.0 / (1 << 24), float32(math.Copysign(0, -1)), 1023.0 / (1 << 24)}},
		{"no rows", "a.npy", npyFile(1, "{'descr': '<f4', 'fortran_order': False, 'shape': (0, 3), }\n", nil), Options{}, nil, nil},
		{"no rows of another dim", "a.npy", npyFile(1, "{'descr': '<f4', 'fortran_order': False, 'shape': (0, 3), }\n", nil), Options{Dim: 4}, nil, nil},
		{"safetensors", "a.safetensors", stFile(`{"__metadata__":{"a":"b"},"w":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}}  `, f32le(want...)), Options{}, rowKeys, want},
		{"safetensors by name", "a.st", stFile(`{"v":{"dtype":"F32","shape":[1,1],"data_offsets":[0,4]},"w":{"dtype":"F32","shape":[2,3],"data_offsets":[4,28]}}`, f32le(9, 1, 2, 3, 4, 5, 6)), Options{Tensor: "w"}, rowKeys, want},
		{"safetensors, the only matrix of floats", "a.st", stFile(`{"n":{"dtype":"I64","shape":[1,1],"data_offsets":[0,8]},"w":{"dtype":"BF16","shape":[2,1],"data_offsets":[8,12]}}`, append(u64le(7), u16le(0x3f80, 0xc040)...)), Options{}, rowKeys, []float32{1, -3}},
		{"safetensors F16", "a.st", stFile(`{"w":{"dtype":"F16","shape":[2,1],"data_offsets":[0,4]}}`, u16le(0x3c00, 0x7c00)), Options{NaN: NaNKeep}, rowKeys, []float32{1, float32(math.Inf(1))}},
		{"glove", "g.txt", []byte("king 1 2 3\nqueen 4 5 6\n"), Options{}, word("king", "queen"), want},
		{"glove, no end of the last line", "g.txt", []byte("king 1 2 3\nqueen 4 5 6"), Options{}, word("king", "queen"), want},
		{"word2vec", "w.txt", []byte("2 3\nking 1 2 3 \nqueen 4 5 6 \n"), Options{}, word("king", "queen"), want},
		{"windows", "w.txt", []byte("2 3\r\nking 1 2 3\r\nqueen 4 5 6\r\n"), Options{}, word("king", "queen"), want},
		{"a word with blanks", "g.txt", []byte("king 1 2 3\n. . . 4 5 6\n"), Options{}, word("king", ". . ."), want},
		{"the first word with blanks", "g.txt", []byte(". . . 1 2 3\nking 4 5 6\n"), Options{Dim: 3}, word(". . .", "king"), want},
		{"tabs, exponents, UTF-8", "g.txt", []byte("é\t1e0\t2.0\t+3\nß 4 0.5e1 6\n"), Options{}, word("é", "ß"), want},
		{"words that are numbers", "g.txt", []byte("1 1 2 3\n-2.5 4 5 6\n"), Options{}, word("1", "-2.5"), want},
		{"dim 1, no header", "g.txt", []byte("5 3\n6 4\n"), Options{Dim: 1}, word("5", "6"), []float32{3, 4}},
		{"no header", "g.txt", []byte("2 3\nx 4\n"), Options{Header: HeaderNo}, word("2", "x"), []float32{3, 4}},
		{"values that are not finite, zero", "g.txt", []byte("a nan 1\nb -inf 1e40\n"), Options{NaN: NaNZero}, word("a", "b"), []float32{0, 1, 0, 0}},
		{"the same key, last", "g.txt", []byte("a 1 2\na 3 4\n"), Options{Duplicates: DuplicatesLast}, word("a", "a"), []float32{1, 2, 3, 4}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m, err := readAll(write(t, tc.file, tc.b), tc.opt)
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(m.keys, tc.keys) || !sameBits(m.rows, tc.rows) {
				t.Errorf("got %v %v, want %v %v", m.keys, m.rows, tc.keys, tc.rows)
			}
		})
	}
}

func TestBadFiles(t *testing.T) {
	nan := float32(math.NaN())
	dict := func(descr, order, shape string) string {
		return fmt.Sprintf("{'descr': '%s', 'fortran_order': %s, 'shape': %s, }\n", descr, order, shape)
	}
	good := dict("<f4", "False", "(2, 3)") // 60 bytes: the data begin at byte 70
	for _, tc := range []struct {
		name, file string
		b          []byte
		opt        Options
		kind       error
		text       string // in the error, after the path
	}{
		{"empty", "a.npy", nil, Options{}, ErrFormat, "byte 0: a .npy file begins with"},
		{"not npy", "a.npy", []byte("hello world"), Options{}, ErrFormat, "byte 0: a .npy file begins with"},
		{"cut in the magic", "a.npy", []byte("\x93NUM"), Options{}, ErrTruncated, "byte 4: the file ends in its header"},
		{"cut in the header", "a.npy", npyFile(1, good, nil)[:20], Options{}, ErrTruncated, "byte 20: the header has"},
		{"version 4", "a.npy", npyFile(4, good, f32le(1, 2, 3, 4, 5, 6)), Options{}, ErrFormat, "byte 6: version 4.0"},
		{"header too long", "a.npy", append([]byte("\x93NUMPY\x02\x00\xff\xff\xff\xff"), good...), Options{}, ErrFormat, "a header of 4294967295 bytes"},
		{"unknown key", "a.npy", npyFile(1, "{'descr': '<f4', 'x': True}", nil), Options{}, ErrFormat, `header: unknown key "x"`},
		{"key twice", "a.npy", npyFile(1, "{'descr': '<f4', 'descr': '<f4'}", nil), Options{}, ErrFormat, `"descr" twice`},
		{"no shape", "a.npy", npyFile(1, "{'descr': '<f4', 'fortran_order': False}", nil), Options{}, ErrFormat, `no "shape"`},
		{"negative", "a.npy", npyFile(1, dict("<f4", "False", "(-1, 3)"), nil), Options{}, ErrFormat, "shape: want a whole number"},
		{"too large a number", "a.npy", npyFile(1, dict("<f4", "False", "(99999999999999999999, 3)"), nil), Options{}, ErrFormat, "shape: want a whole number"},
		{"an object", "a.npy", npyFile(1, dict("|O", "False", "(2, 3)"), nil), Options{}, ErrShape, `the elements are "|O", want f2, f4 or f8`},
		{"one dimension", "a.npy", npyFile(1, dict("<f4", "False", "(6,)"), f32le(1, 2, 3, 4, 5, 6)), Options{}, ErrShape, "the array has 1 dimensions, want 2"},
		{"too wide", "a.npy", npyFile(1, dict("<f4", "False", "(1, 65537)"), nil), Options{}, ErrShape, "the rows have 65537 floats, want 1 to 65536"},
		{"more rows than can be", "a.npy", npyFile(1, dict("<f4", "False", "(9223372036854775807, 65536)"), nil), Options{}, ErrShape, "are more than a file can have"},
		{"truncated", "a.npy", npyFile(1, good, f32le(1, 2, 3, 4, 5)), Options{}, ErrTruncated, "byte 90: 2 rows need 94 bytes, the file has 90"},
		{"trailing", "a.npy", npyFile(1, good, f32le(1, 2, 3, 4, 5, 6, 7)), Options{}, ErrTrailing, "byte 94: 4 bytes follow the 2 rows"},
		{"wrong dim", "a.npy", npyFile(1, good, f32le(1, 2, 3, 4, 5, 6)), Options{Dim: 4}, ErrShape, "the rows have 3 floats, want 4"},
		{"NaN", "a.npy", npyFile(1, good, f32le(1, 2, 3, 4, nan, 6)), Options{}, ErrNotFinite, "row 1, column 1: byte 86: the value is NaN"},
		{"infinity in columns", "a.npy", npyFile(1, dict("<f4", "True", "(2, 3)"), f32le(1, 2, 3, float32(math.Inf(-1)), 5, 6)), Options{}, ErrNotFinite, "row 1, column 1: byte 81: the value is -Inf"},
		{"beyond float32", "a.npy", npyFile(1, dict("<f8", "False", "(2, 1)"), f64le(1, 1e300)), Options{}, ErrNotFinite, "row 1, column 0: byte 78: the value does not fit"},
		{"beyond float32 in columns", "a.npy", npyFile(1, dict("<f8", "True", "(2, 2)"), f64le(1, 2, 3, -1e39)), Options{}, ErrNotFinite, "row 1, column 1: byte 93: the value does not fit"},
		{"words of npy", "a.npy", npyFile(1, good, f32le(1, 2, 3, 4, 5, 6)), Options{Words: func([]byte, uint64) error { return nil }}, nil, "words are asked for, and the file is npy"},
		{"a tensor of npy", "a.npy", npyFile(1, good, f32le(1, 2, 3, 4, 5, 6)), Options{Tensor: "w"}, nil, `a tensor "w" is asked for`},

		{"st: short", "a.safetensors", []byte("1234567"), Options{}, ErrTruncated, "byte 7: the file ends in the length"},
		{"st: long header", "a.safetensors", []byte("\xff\xff\xff\xff\xff\xff\xff\xff{}"), Options{}, ErrFormat, "a header of 18446744073709551615 bytes"},
		{"st: cut header", "a.safetensors", stFile(`{"w":{"dtype":"F32"`, nil)[:15], Options{}, ErrTruncated, "byte 15: the header has 19 bytes"},
		{"st: not JSON", "a.safetensors", stFile(`{"w":{"dtype"`, nil), Options{}, ErrFormat, "header: "},
		{"st: twice", "a.safetensors", stFile(`{"w":{"dtype":"F32","shape":[1,1],"data_offsets":[0,4]},"w":{"dtype":"F32","shape":[1,1],"data_offsets":[4,8]}}`, f32le(1, 2)), Options{}, ErrFormat, `"w" twice`},
		{"st: unknown type", "a.safetensors", stFile(`{"w":{"dtype":"F31","shape":[1,1],"data_offsets":[0,4]}}`, f32le(1)), Options{}, ErrFormat, `unknown dtype "F31"`},
		{"st: hole", "a.safetensors", stFile(`{"w":{"dtype":"F32","shape":[1,1],"data_offsets":[4,8]}}`, f32le(1, 2)), Options{}, ErrFormat, "begins at 4, want 0"},
		{"st: overlap", "a.safetensors", stFile(`{"v":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]},"w":{"dtype":"F32","shape":[1,1],"data_offsets":[4,8]}}`, f32le(1, 2)), Options{}, ErrFormat, "begins at 4, want 8"},
		{"st: size", "a.safetensors", stFile(`{"w":{"dtype":"F32","shape":[1,2],"data_offsets":[0,4]}}`, f32le(1)), Options{}, ErrFormat, "has the bytes 0 to 4, its shape needs 8"},
		{"st: shape overflows", "a.safetensors", stFile(`{"w":{"dtype":"F32","shape":[4294967296,4294967296,4294967296],"data_offsets":[0,4]}}`, f32le(1)), Options{}, ErrFormat, "cannot be"},
		{"st: truncated", "a.safetensors", stFile(`{"w":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]}}`, f32le(1)), Options{}, ErrTruncated, "the tensors have 8 bytes, the file 4 of them"},
		{"st: trailing", "a.safetensors", stFile(`{"w":{"dtype":"F32","shape":[1,1],"data_offsets":[0,4]}}`, f32le(1, 2)), Options{}, ErrTrailing, "4 bytes follow the tensors"},
		{"st: which", "a.safetensors", stFile(`{"v":{"dtype":"F32","shape":[1,1],"data_offsets":[0,4]},"w":{"dtype":"F32","shape":[1,1],"data_offsets":[4,8]}}`, f32le(1, 2)), Options{}, ErrShape, `which tensor is not said, as with --tensor NAME; matrices of floats: "v", "w"`},
		{"st: no such", "a.safetensors", stFile(`{"v":{"dtype":"F32","shape":[1,1],"data_offsets":[0,4]}}`, f32le(1)), Options{Tensor: "w"}, ErrShape, `there is no tensor "w"; matrices of floats: "v"`},
		{"st: not a matrix", "a.safetensors", stFile(`{"v":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}`, f32le(1)), Options{Tensor: "v"}, ErrShape, "is F32 with 1 dimensions"},

		{"text: empty", "g.txt", nil, Options{}, ErrFormat, "byte 0: the file is empty"},
		{"text: one word", "g.txt", []byte("king\n"), Options{}, ErrFormat, "line 1: byte 0: want a word and numbers"},
		{"text: an empty line", "g.txt", []byte("king 1 2\n\n"), Options{}, ErrFormat, "line 2: byte 9: the line is empty"},
		{"text: too few", "g.txt", []byte("king 1 2\nqueen 3\n"), Options{}, ErrShape, "line 2: byte 9: the row has 1 floats, want 2"},
		{"text: too many", "g.txt", []byte("king 1 2\nqueen 3 4 5\n"), Options{}, ErrShape, "line 2: byte 9: the row has 3 floats, want 2"},
		{"text: wrong dim", "g.txt", []byte("king 1 2 3\nqueen 3 4 5\n"), Options{Dim: 2}, ErrShape, "line 1: byte 0: the row has 3 floats, want 2"},
		{"text: wrong dim, larger", "g.txt", []byte("king 1 2 3\nqueen 3 4 5\n"), Options{Dim: 4}, ErrShape, "line 1: byte 0: the row has 3 floats, want 4"},
		{"text: wrong dim of the header", "g.txt", []byte("1 3\nking 1 2 3\n"), Options{Dim: 4}, ErrShape, "the rows have 3 floats, want 4"},
		{"text: a number with an underscore", "g.txt", []byte("king 1 2\nqueen 3 1_0\n"), Options{}, ErrFormat, `line 2, column 1: byte 17: "1_0" is not a number`},
		{"text: a hexadecimal number", "g.txt", []byte("king 1 2\nqueen 3 0x1p4\n"), Options{}, ErrFormat, `line 2, column 1: byte 17: "0x1p4" is not a number`},
		{"text: not a number", "g.txt", []byte("king 1 2\nqueen 3 x\n"), Options{}, ErrFormat, `line 2, column 1: byte 17: "x" is not a number`},
		{"text: no word", "g.txt", []byte("king 1 2\n 3 4\n"), Options{}, ErrFormat, "line 2: byte 9: there is no word"},
		{"text: not UTF-8", "g.txt", []byte("k\xffng 1 2\n"), Options{}, ErrFormat, "is not UTF-8"},
		{"text: NaN", "g.txt", []byte("king 1 2\nqueen 3 NaN\n"), Options{}, ErrNotFinite, "line 2, column 1: byte 9: the value is NaN"},
		{"text: beyond float32", "g.txt", []byte("king 1 2\nqueen 3 1e39\n"), Options{}, ErrNotFinite, "line 2, column 1: byte 17: the value does not fit"},
		{"text: the same word", "g.txt", []byte("a 1\nb 2\na 3\n"), Options{}, ErrDuplicate, "line 3: byte 8: the word's key"},
		{"text: truncated", "g.txt", []byte("3 1\na 1\nb 2\n"), Options{}, ErrTruncated, "byte 12: the first line tells of 3 rows, there are 2"},
		{"text: trailing", "g.txt", []byte("1 1\na 1\nb 2\n"), Options{}, ErrTrailing, "line 3: byte 8: the first line tells of 1 rows"},
		{"text: want a header", "g.txt", []byte("a 1 2\n"), Options{Header: HeaderYes}, ErrFormat, `want the line "count dim"`},
		{"text: more keys than remembered", "g.txt", []byte("a 1\nb 2\n"), Options{MaxKeys: 1}, ErrDuplicate, "more than 1 keys cannot be checked"},
		{"a policy that is none", "g.txt", []byte("a 1\n"), Options{NaN: "maybe"}, nil, `"maybe": want one of reject, zero, keep`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := write(t, tc.file, tc.b)
			m, err := readAll(p, tc.opt)
			if err == nil {
				t.Fatalf("no error, but %+v", m)
			}
			var pe *pipeline.Error
			if !errors.As(err, &pe) {
				t.Errorf("%T has no layer", err)
			}
			if tc.kind != nil && !errors.Is(err, tc.kind) {
				t.Errorf("%v is not %v", err, tc.kind)
			}
			if s := err.Error(); !strings.Contains(s, p+":") || !strings.Contains(s, tc.text) {
				t.Errorf("%s\nwant in it %s", s, tc.text)
			}
			if len(m.rows) != len(m.keys)*m.dim {
				t.Errorf("%d keys and %d floats of rows before the fault", len(m.keys), len(m.rows))
			}
		})
	}
}

func TestKeys(t *testing.T) {
	rows := write(t, "rows.npy", npyFile(1, "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 1), }\n", f32le(1, 2, 3)))
	dict := func(descr, shape string) string {
		return fmt.Sprintf("{'descr': '%s', 'fortran_order': False, 'shape': %s, }\n", descr, shape)
	}
	for _, tc := range []struct {
		name string
		b    []byte
		want []uint64
		kind error
		text string
	}{
		{"u8", npyFile(1, dict("<u8", "(3,)"), u64le(1<<63, 0, 7)), []uint64{1 << 63, 0, 7}, nil, ""},
		{"i8, big endian", npyFile(1, dict(">i8", "(3,)"), []byte("\x00\x00\x00\x00\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00\x02\x00\x00\x00\x00\x00\x00\x01\x00")), []uint64{1, 2, 256}, nil, ""},
		{"negative", npyFile(1, dict("<i8", "(3,)"), u64le(1, 1<<64-5, 7)), nil, ErrKeys, "row 1: byte 76: the key is -5"},
		{"twice", npyFile(1, dict("<u8", "(3,)"), u64le(1, 0, 1)), nil, ErrDuplicate, "row 2: byte 84: the key 1 was there before"},
		{"zero twice", npyFile(1, dict("<u8", "(3,)"), u64le(0, 0, 1)), nil, ErrDuplicate, "row 1: byte 76: the key 0 was there before"},
		{"too few", npyFile(1, dict("<u8", "(2,)"), u64le(1, 0)), nil, ErrKeys, "has 2 keys, and"},
		{"of floats", npyFile(1, dict("<f8", "(3,)"), u64le(1, 0, 3)), nil, ErrKeys, `the elements are "<f8", want u8 or i8`},
		{"a matrix", npyFile(1, dict("<u8", "(3, 1)"), u64le(1, 0, 3)), nil, ErrKeys, "the array has 2 dimensions, want 1"},
		{"truncated", npyFile(1, dict("<u8", "(3,)"), u64le(1, 0)), nil, ErrTruncated, "3 rows need"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			keys := write(t, "keys.npy", tc.b)
			m, err := readAll(rows, Options{Keys: keys})
			if tc.kind == nil {
				if err != nil || !slices.Equal(m.keys, tc.want) {
					t.Fatalf("%v, %v, want %v", m.keys, err, tc.want)
				}
				return
			}
			if !errors.Is(err, tc.kind) || !strings.Contains(err.Error(), keys+":") || !strings.Contains(err.Error(), tc.text) {
				t.Errorf("%v\nwant in it %s", err, tc.text)
			}
		})
	}
	t.Run("words have their own", func(t *testing.T) {
		if _, err := Open(write(t, "g.txt", []byte("a 1\n")), Options{Keys: rows}); err == nil {
			t.Error("no error")
		}
	})
	t.Run("not regular", func(t *testing.T) {
		if _, err := Open(t.TempDir(), Options{}); err == nil || !strings.Contains(err.Error(), "not a regular file") {
			t.Error(err)
		}
		if _, err := Open("/dev/zero", Options{}); err == nil || !strings.Contains(err.Error(), "not a regular file") {
			t.Error(err)
		}
	})
}

// TestWordKey holds the hash to its published values: a key that changed would lose
// every table of words.
func TestWordKey(t *testing.T) {
	if got := WordKey(""); got != 0x2d06800538d394c2 {
		t.Errorf("of the empty word: %#x", got)
	}
	words := map[string]uint64{}
	_, err := readAll(write(t, "g.txt", []byte("a b 1\nc 2\n")), Options{Dim: 1, Words: func(w []byte, k uint64) error {
		words[string(bytes.Clone(w))] = k
		return nil
	}})
	if err != nil || len(words) != 2 || words["a b"] != WordKey("a b") || words["c"] != WordKey("c") {
		t.Errorf("%v, %v", words, err)
	}
}
