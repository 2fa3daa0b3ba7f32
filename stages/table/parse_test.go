package table

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"os"
	"reflect"
	"testing"

	"github.com/zeebo/xxh3"
)

// FuzzSnapshot: whatever is loaded is refused, or it is what a save writes.
func FuzzSnapshot(f *testing.F) {
	b := saved(f, small(f, 1))
	f.Add(b)
	f.Add(saved(f, small(f, 1), "adamw"))
	f.Add(b[:len(b)/2])
	f.Add(append(bytes.Clone(b), b...))
	s := small(f, 1)
	// IDs that are the same in every process of the fuzzer.
	save := func(spec SaveSpec) []byte {
		var b bytes.Buffer
		if _, err := s.SaveTo(ctx(f), &b, spec); err != nil {
			f.Fatal(err)
		}
		return b.Bytes()
	}
	base := save(SaveSpec{ID: SaveID{1}})
	mustPut(f, s.Table(SGD), []uint64{5, 6}, []float32{5, 6})
	if _, err := s.Table(SGD).Delete([]uint64{0, 5}); err != nil {
		f.Fatal(err)
	}
	f.Add(save(SaveSpec{ID: SaveID{2}, Base: SaveID{1}, BaseName: "base"}))
	if old, err := os.ReadFile("testdata/v1.snapshot"); err == nil {
		f.Add(old)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		s := openFuzz(t, Config{Limit: 16 << 20})
		mustPut(t, mustInit(t, s, Spec{Name: SGD, Dim: 1}), []uint64{3}, []float32{1})
		before := contents(t, s)
		for _, load := range [][]byte{b, mended(b)} {
			// Alone, or as changes since the base.
			chain := []*bytes.Reader{bytes.NewReader(load)}
			if in := (&snapshotReader{r: bufio.NewReader(bytes.NewReader(load)), all: xxh3.New()}); len(load) > headBytes {
				if info, err := in.head(); err == nil && info.Base == (SaveID{1}) {
					chain = []*bytes.Reader{bytes.NewReader(base), chain[0]}
				}
			}
			err := s.LoadFrom(ctx(t), asReaders(chain)...)
			if err != nil {
				if !reflect.DeepEqual(contents(t, s), before) {
					t.Fatalf("%v, and the store changed", err)
				}
				continue
			}
			before = contents(t, s)
			to := openFuzz(t, Config{})
			if err := to.LoadFrom(ctx(t), bytes.NewReader(saved(t, s))); err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(contents(t, to), before) {
				t.Fatal("a save and a load make something else of it")
			}
		}
	})
}

// openFuzz is openTest without the cost of Go's heap.
func openFuzz(t testing.TB, c Config) *Store {
	t.Helper()
	c.Memory, c.Seed = NewRegions(), 1 // the same run for the same input
	s, err := Open(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// mended is b with checksums that are right, as far as its parts can be followed, so that
// the fuzzer comes behind them.
func mended(b []byte) []byte {
	b = bytes.Clone(b)
	if len(b) < headBytes {
		return b
	}
	at, old := headBytes, b[8] == 1
	if old {
		at = firstHeadBytes
	}
	binary.LittleEndian.PutUint64(b[at-8:], xxh3.Hash(b[:at-8]))
	var shapes []byte
	at0 := at
	for range binary.LittleEndian.Uint32(b[12:]) {
		if len(b)-at < 12 {
			return b
		}
		n := int(binary.LittleEndian.Uint32(b[at:]))
		if n > maxSpecBytes || len(b)-at < 4+n+8 {
			return b
		}
		binary.LittleEndian.PutUint64(b[at+4+n:], xxh3.Hash(b[at:at+4+n]))
		sub := &snapshotReader{r: bufio.NewReader(bytes.NewReader(b[at : at+4+n+8])), all: xxh3.New(), old: old}
		spec, _, err := sub.spec()
		if err != nil {
			return b
		}
		shapes = spec.encode(shapes)
		at += 4 + n + 8
		l := layout{row: 4 * spec.Dim, state: 4 * spec.Optimizer.stateWords(spec.Dim)}
		for {
			if len(b)-at < blockHeadBytes {
				return b
			}
			word := binary.LittleEndian.Uint64(b[at:])
			n := int(uint32(word)) * l.record()
			switch {
			case word>>32 == blockEnd && old:
				n = 8
			case word>>32 == blockEnd:
				n = 16
			case word>>32 == blockDeleted:
				n = int(uint32(word)) * 8
			}
			if n < 0 || len(b)-at-blockHeadBytes < n {
				return b
			}
			binary.LittleEndian.PutUint64(b[at+8:], xxh3.HashSeed(b[at+blockHeadBytes:][:n], word))
			at += blockHeadBytes + n
			if word>>32 == blockEnd {
				break
			}
		}
	}
	if !old {
		binary.LittleEndian.PutUint64(b[at0-8-maxBaseName-8:], xxh3.Hash(shapes))
		binary.LittleEndian.PutUint64(b[at0-8:], xxh3.Hash(b[:at0-8]))
	}
	if len(b)-at >= footBytes {
		binary.LittleEndian.PutUint64(b[at+16:], xxh3.Hash(b[:at+16]))
	}
	return b
}
