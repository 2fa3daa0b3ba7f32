package table

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
	"unsafe"

	"go.uber.org/goleak"

	"github.com/railstore/railstore/pipeline"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// testSeed is a new seed for each run, logged, or the one in RS_TEST_SEED.
func testSeed(t testing.TB) uint64 {
	t.Helper()
	seed := rand.Uint64()
	if s := os.Getenv("RS_TEST_SEED"); s != "" {
		v, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			t.Fatalf("RS_TEST_SEED=%q: %v", s, err)
		}
		seed = v
	}
	t.Logf("RS_TEST_SEED=%d", seed)
	return seed
}

// heap is a Memory on Go's heap, which the race detector watches: unlike mapped memory,
// so it sees a row that is read while it is written. It counts what is out.
type heap struct {
	mu    sync.Mutex
	next  int
	out   map[int]*Chunk
	grows int
	fail  error // of the next Grow or Release
}

func newHeap() *heap { return &heap{out: make(map[int]*Chunk)} }

func (h *heap) Grow(n int) (*Chunk, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.fail; err != nil {
		h.fail = nil
		return nil, err
	}
	words := make([]uint64, n/8+8)
	b := unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), len(words)*8)
	pad := int(-uintptr(unsafe.Pointer(&words[0])) % rowAlign)
	// IDs with gaps: they are the user's to choose.
	c := &Chunk{ID: h.next, Bytes: b[pad : pad+n]}
	h.next += 3
	h.grows++
	h.out[c.ID] = c
	return c, nil
}

func (h *heap) Release(c *Chunk) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.fail; err != nil {
		h.fail = nil
		return err
	}
	if h.out[c.ID] != c {
		return fmt.Errorf("chunk %d is not out", c.ID)
	}
	delete(h.out, c.ID)
	return nil
}

// openTest opens a store of small pages on the heap and closes it with the test.
func openTest(t testing.TB, c Config) *Store {
	t.Helper()
	if c.Memory == nil {
		c.Memory = newHeap()
	}
	if c.PageBytes == 0 {
		c.PageBytes = 4096
	}
	if c.ChunkBytes == 0 {
		c.ChunkBytes = 16 << 10
	}
	s, err := Open(c)
	if err != nil {
		t.Fatal(err)
	}
	s.indexMemory = newHeap()
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		for _, m := range []Memory{s.memory, s.indexMemory} {
			if h, ok := m.(*heap); ok && len(h.out) > 0 {
				t.Errorf("%d chunks were not given back", len(h.out))
			}
		}
	})
	return s
}

func mustInit(t testing.TB, s *Store, spec Spec) *Table {
	t.Helper()
	tb, err := s.Init(spec)
	if err != nil {
		t.Fatal(err)
	}
	return tb
}

func mustPut(t testing.TB, tb *Table, keys []uint64, rows []float32) {
	t.Helper()
	if err := tb.Put(keys, rows); err != nil {
		t.Fatal(err)
	}
}

// rowsOf makes rows whose every float is f(key).
func rowsOf(keys []uint64, dim int, f func(key uint64) float32) []float32 {
	out := make([]float32, 0, len(keys)*dim)
	for _, k := range keys {
		for range dim {
			out = append(out, f(k))
		}
	}
	return out
}

func sequence(from, n int) []uint64 {
	out := make([]uint64, n)
	for i := range out {
		out[i] = uint64(from + i)
	}
	return out
}

func bit(words []uint64, i int) bool { return words[i/64]>>(i%64)&1 == 1 }

// content is all rows and states of a table, by way of a snapshot's walk.
func content(t testing.TB, tb *Table) map[uint64]string {
	t.Helper()
	out := make(map[uint64]string)
	b := tb.body.Load()
	if b == nil {
		return out
	}
	d := b.dir.Load()
	for i := range d.mem {
		m := d.mem[i].Load()
		for j := range m {
			for k := range slotsPerLine {
				if ref := m[j].ref(k); ref >= refFirst {
					out[m[j].key(k)] = string((*b.store.table.Load()).at(ref, tb.layout.row+tb.layout.state))
				}
			}
		}
	}
	return out
}

func layerOf(err error) pipeline.Layer {
	var pe *pipeline.Error
	if !errors.As(err, &pe) {
		return ""
	}
	return pe.Layer
}

func ctx(t testing.TB) context.Context { return t.Context() }

func asReaders[R io.Reader](in []R) []io.Reader {
	out := make([]io.Reader, len(in))
	for i, r := range in {
		out[i] = r
	}
	return out
}
