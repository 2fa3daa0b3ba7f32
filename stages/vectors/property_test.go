package vectors

import (
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// TestRoundTripNpy: what was written is read, bit by bit, whatever the pieces.
func TestRoundTripNpy(t *testing.T) {
	dir := t.TempDir()
	rapid.Check(t, func(t *rapid.T) {
		dim := rapid.IntRange(1, 9).Draw(t, "dim")
		n := rapid.IntRange(0, 40).Draw(t, "rows")
		bits := rapid.SliceOfN(rapid.Uint32(), n*dim, n*dim).Draw(t, "bits")
		keys := rapid.SliceOfNDistinct(rapid.Uint64(), n, n, rapid.ID[uint64]).Draw(t, "keys")
		rows := make([]float32, len(bits))
		for i, b := range bits {
			rows[i] = math.Float32frombits(b)
		}
		mp, kp := filepath.Join(dir, "m.npy"), filepath.Join(dir, "k.npy")
		m, err := CreateMatrix(mp, dim)
		if err != nil {
			t.Fatal(err)
		}
		k, err := CreateKeys(kp)
		if err != nil {
			t.Fatal(err)
		}
		for at := 0; at < n; {
			c := rapid.IntRange(1, n-at).Draw(t, "piece")
			if err := m.Rows(rows[at*dim : (at+c)*dim]); err != nil {
				t.Fatal(err)
			}
			if err := k.Keys(keys[at : at+c]); err != nil {
				t.Fatal(err)
			}
			at += c
		}
		if err := m.Commit(); err != nil {
			t.Fatal(err)
		}
		if err := k.Commit(); err != nil {
			t.Fatal(err)
		}
		got, err := readAll(mp, Options{Keys: kp, NaN: NaNKeep, Dim: dim})
		if err != nil || !slices.Equal(got.keys, keys) || !sameBits(got.rows, rows) {
			t.Fatalf("%v: %v %v, want %v %v", err, got.keys, got.rows, keys, rows)
		}
	})
	if left, _ := filepath.Glob(filepath.Join(dir, ".*")); len(left) > 0 {
		t.Errorf("left over: %v", left)
	}
}

// TestOrders: the same matrix in both orders, both byte orders and every type is the same.
func TestOrders(t *testing.T) {
	dir := t.TempDir()
	rapid.Check(t, func(t *rapid.T) {
		dim, n := rapid.IntRange(1, 5).Draw(t, "dim"), rapid.IntRange(1, 9).Draw(t, "rows")
		vals := rapid.SliceOfN(rapid.IntRange(-2048, 2048), n*dim, n*dim).Draw(t, "values") // exact in every type but bf16
		size := rapid.SampledFrom([]int{2, 4, 8}).Draw(t, "size")
		big, cols := rapid.Bool().Draw(t, "big"), rapid.Bool().Draw(t, "columns")
		var order binary.AppendByteOrder = binary.LittleEndian
		sign := "<"
		if big {
			order, sign = binary.BigEndian, ">"
		}
		var data []byte
		want := make([]float32, n*dim)
		for i := range vals {
			r, c := i/dim, i%dim
			if cols {
				r, c = i%n, i/n
			}
			v := float32(vals[r*dim+c])
			want[r*dim+c] = v
			switch size {
			case 2:
				data = order.AppendUint16(data, halfOf(v))
			case 4:
				data = order.AppendUint32(data, math.Float32bits(v))
			case 8:
				data = order.AppendUint64(data, math.Float64bits(float64(v)))
			}
		}
		dict := fmt.Sprintf("{'descr': '%sf%d', 'fortran_order': %s, 'shape': (%d, %d), }\n", sign, size, map[bool]string{false: "False", true: "True"}[cols], n, dim)
		p := filepath.Join(dir, "a.npy")
		if err := os.WriteFile(p, npyFile(1, dict, data), 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := readAll(p, Options{})
		if err != nil || !sameBits(got.rows, want) {
			t.Fatalf("%s: %v: %v, want %v", dict, err, got.rows, want)
		}
	})
}

// halfOf is the half of a whole number up to 2048.
func halfOf(v float32) uint16 {
	b := math.Float32bits(v)
	if v == 0 {
		return uint16(b >> 16)
	}
	return uint16(b>>16&0x8000) | uint16((b>>23&0xff)-127+15)<<10 | uint16(b>>13&0x3ff)
}

// TestHalf checks every half against its definition.
func TestHalf(t *testing.T) {
	for h := range 1 << 16 {
		exp, man := h>>10&31, float64(h&0x3ff)
		var want float64
		switch exp {
		case 0:
			want = math.Ldexp(man, -24)
		case 31:
			if want = math.Inf(1); man != 0 {
				want = math.NaN()
			}
		default:
			want = math.Ldexp(1024+man, exp-25)
		}
		if h>>15 == 1 {
			want = -want
		}
		got := float64(fromHalf(uint16(h)))
		if got != want && !(math.IsNaN(got) && math.IsNaN(want)) || math.Signbit(got) != (h>>15 == 1) {
			t.Fatalf("%#x: %v, want %v", h, got, want)
		}
	}
}

// TestRoundTripText: words with blanks and numbers of the shortest form come back.
func TestRoundTripText(t *testing.T) {
	dir := t.TempDir()
	word := rapid.StringMatching(`[a-zA-Zäöü.,'-]{1,8}( [a-zA-Zäöü,']{1,6})?`)
	rapid.Check(t, func(t *rapid.T) {
		dim := rapid.IntRange(1, 6).Draw(t, "dim")
		words := rapid.SliceOfNDistinct(word, 1, 20, rapid.ID[string]).Draw(t, "words")
		rows := rapid.SliceOfN(rapid.Float32Range(-1e30, 1e30), len(words)*dim, len(words)*dim).Draw(t, "rows")
		end := rapid.SampledFrom([]string{"\n", " \n", "\r\n"}).Draw(t, "end")
		var b strings.Builder
		opt := Options{Dim: dim, Header: HeaderNo}
		if rapid.Bool().Draw(t, "header") {
			opt = Options{Header: HeaderYes}
			fmt.Fprintf(&b, "%d %d%s", len(words), dim, end)
		}
		var keys []uint64
		for i, w := range words {
			keys = append(keys, WordKey(w))
			b.WriteString(w)
			for _, v := range rows[i*dim : (i+1)*dim] {
				b.WriteString(" " + strconv.FormatFloat(float64(v), 'g', -1, 32))
			}
			b.WriteString(end)
		}
		p := filepath.Join(dir, "a.txt")
		if err := os.WriteFile(p, []byte(b.String()), 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := readAll(p, opt)
		if err != nil || !slices.Equal(got.keys, keys) || !sameBits(got.rows, rows) {
			t.Fatalf("%v: %v %v, want %v %v of\n%s", err, got.keys, got.rows, keys, rows, b.String())
		}
	})
}

// TestKeySet holds the set to a map.
func TestKeySet(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var s keySet
		model := map[uint64]bool{}
		key := rapid.OneOf(rapid.Uint64Range(0, 50), rapid.Uint64())
		for _, k := range rapid.SliceOfN(key, 0, 3000).Draw(t, "keys") {
			if got := s.add(k); got == model[k] {
				t.Fatalf("key %d new: %v", k, got)
			}
			model[k] = true
		}
		if s.len() != len(model) {
			t.Fatalf("%d keys, want %d", s.len(), len(model))
		}
	})
}
