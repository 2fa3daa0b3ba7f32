package vectors

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

// tensor is one entry of the header of a .safetensors file.
type tensor struct {
	name       string
	dtype      string
	shape      []int64
	begin, end int64 // of the bytes behind the header
}

var stElements = map[string]element{
	"F16": {kind: 'f', size: 2}, "BF16": {kind: 'b', size: 2}, "F32": {kind: 'f', size: 4}, "F64": {kind: 'f', size: 8},
}

// stSizes are the element sizes of all types, in bits.
var stSizes = map[string]int64{
	"BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F6_E2M3": 6, "F6_E3M2": 6, "F4": 4,
	"U16": 16, "I16": 16, "F16": 16, "BF16": 16, "U32": 32, "I32": 32, "F32": 32,
	"U64": 64, "I64": 64, "F64": 64, "C64": 64,
}

func openSafeTensors(f io.ReaderAt, size int64, name string) (source, error) {
	tensors, data, err := readSTHeader(f, size)
	if err != nil {
		return nil, err
	}
	t, err := chooseTensor(tensors, name)
	if err != nil {
		return nil, err
	}
	if t.shape[1] < 1 || t.shape[1] > MaxDim {
		return nil, at(8).fault(ErrShape, "the rows of tensor %s have %d floats, want 1 to %d", shorten(t.name), t.shape[1], MaxDim)
	}
	return &dense{f: f, kind: SafeTensors, el: stElements[t.dtype], data: data + t.begin, size: size, rows: t.shape[0], dim: int(t.shape[1])}, nil
}

// chooseTensor wants a matrix of floats.
func chooseTensor(all []tensor, name string) (tensor, error) {
	fits := func(t tensor) bool { _, ok := stElements[t.dtype]; return ok && len(t.shape) == 2 }
	var names []string
	var only []tensor
	for _, t := range all {
		if t.name == name && name != "" {
			if !fits(t) {
				return t, at(8).fault(ErrShape, "tensor %s is %s with %d dimensions, want F16, BF16, F32 or F64 with 2", shorten(t.name), t.dtype, len(t.shape))
			}
			return t, nil
		}
		if fits(t) {
			only = append(only, t)
			if len(names) < 8 {
				names = append(names, shorten(t.name))
			}
		}
	}
	if len(only) > len(names) {
		names = append(names, fmt.Sprintf("and %d more", len(only)-len(names)))
	}
	list := strings.Join(names, ", ")
	if list == "" {
		list = "none"
	}
	switch {
	case name != "":
		return tensor{}, at(8).fault(ErrShape, "there is no tensor %s; matrices of floats: %s", shorten(name), list)
	case len(only) == 1:
		return only[0], nil
	}
	return tensor{}, at(8).fault(ErrShape, "which tensor is not said, as with --tensor NAME; matrices of floats: %s", list)
}

// readSTHeader reads and checks the header of a file of size bytes: the tensors lie in
// what follows it without overlaps, without holes, and to its end. data is where that
// begins.
func readSTHeader(f io.ReaderAt, size int64) (tensors []tensor, data int64, err error) {
	var pre [8]byte
	if size < 8 {
		return nil, 0, at(size).fault(ErrTruncated, "the file ends in the length of its header")
	}
	if _, err := f.ReadAt(pre[:], 0); err != nil {
		return nil, 0, err
	}
	length := binary.LittleEndian.Uint64(pre[:])
	if length < 2 || length > maxSTHeader {
		return nil, 0, at(0).fault(ErrFormat, "a header of %d bytes, want 2 to %d", length, maxSTHeader)
	}
	data = 8 + int64(length)
	if data > size {
		return nil, 0, at(size).fault(ErrTruncated, "the header has %d bytes, the file ends after %d of them", length, size-8)
	}
	text := make([]byte, length)
	if _, err := f.ReadAt(text, 8); err != nil {
		return nil, 0, err
	}
	dec := json.NewDecoder(bytes.NewReader(text))
	tensors, err = decodeSTHeader(text, dec)
	if err != nil {
		return nil, 0, at(8+dec.InputOffset()).fault(ErrFormat, "header: %v", err)
	}
	return tensors, data, checkTensors(tensors, data, size)
}

// decodeSTHeader goes by tokens, because a decoder into a map would let a name come
// twice and the last one win.
func decodeSTHeader(text []byte, dec *json.Decoder) ([]tensor, error) {
	if text[0] != '{' {
		return nil, errors.New("it does not begin with {")
	}
	if _, err := dec.Token(); err != nil {
		return nil, err
	}
	var out []tensor
	seen := map[string]bool{}
	for dec.More() {
		tok, err := dec.Token()
		if err != nil {
			return nil, err
		}
		name, ok := tok.(string)
		if !ok {
			return nil, errors.New("want a name")
		}
		if seen[name] {
			return nil, fmt.Errorf("%s twice", shorten(name))
		}
		seen[name] = true
		if name == "__metadata__" {
			var m map[string]string
			if err := dec.Decode(&m); err != nil {
				return nil, fmt.Errorf("__metadata__: %w", err)
			}
			continue
		}
		if len(out) == maxTensors {
			return nil, fmt.Errorf("more than %d tensors", maxTensors)
		}
		var t struct {
			DType   *string  `json:"dtype"`
			Shape   *[]int64 `json:"shape"`
			Offsets *[]int64 `json:"data_offsets"`
		}
		if err := dec.Decode(&t); err != nil {
			return nil, fmt.Errorf("%s: %w", shorten(name), err)
		}
		if t.DType == nil || t.Shape == nil || t.Offsets == nil || len(*t.Offsets) != 2 || len(*t.Shape) > 64 {
			return nil, fmt.Errorf("%s: want dtype, shape and two data_offsets", shorten(name))
		}
		out = append(out, tensor{name: name, dtype: *t.DType, shape: *t.Shape, begin: (*t.Offsets)[0], end: (*t.Offsets)[1]})
	}
	if _, err := dec.Token(); err != nil {
		return nil, err
	}
	if rest := bytes.TrimRight(text[dec.InputOffset():], " "); len(rest) > 0 {
		return nil, errors.New("something follows it")
	}
	return out, nil
}

func checkTensors(tensors []tensor, data, size int64) error {
	order := slices.Clone(tensors)
	slices.SortFunc(order, func(a, b tensor) int { return cmp.Or(cmp.Compare(a.begin, b.begin), cmp.Compare(a.end, b.end)) })
	var end int64
	for _, t := range order {
		bits, ok := stSizes[t.dtype]
		if !ok {
			return at(8).fault(ErrFormat, "tensor %s: unknown dtype %s", shorten(t.name), shorten(t.dtype))
		}
		n := bits
		for _, d := range t.shape {
			if d < 0 || d > 0 && n > (1<<62)/d {
				return at(8).fault(ErrFormat, "tensor %s: the shape %d cannot be", shorten(t.name), t.shape)
			}
			n *= d
		}
		switch {
		case t.begin != end:
			return at(8).fault(ErrFormat, "tensor %s begins at %d, want %d: tensors must follow each other", shorten(t.name), t.begin, end)
		case t.end < t.begin || t.end-t.begin != (n+7)/8:
			return at(8).fault(ErrFormat, "tensor %s has the bytes %d to %d, its shape needs %d", shorten(t.name), t.begin, t.end, (n+7)/8)
		}
		end = t.end
	}
	switch {
	case end > size-data:
		return at(size).fault(ErrTruncated, "the tensors have %d bytes, the file %d of them", end, size-data)
	case end < size-data:
		return at(data+end).fault(ErrTrailing, "%d bytes follow the tensors", size-data-end)
	}
	return nil
}
