package table

import (
	"errors"
	"math"
	"math/big"
	"reflect"
	"strings"
	"testing"
	"unsafe"
)

func TestOpenRefuses(t *testing.T) {
	for field, c := range map[string]Config{
		"limit":        {Limit: -1},
		"page_bytes":   {PageBytes: 100},
		"chunk_bytes":  {ChunkBytes: -1},
		"clients":      {Clients: -1},
		"token_window": {TokenWindow: 1 << 30},
	} {
		_, err := Open(c)
		var se *ShapeError
		if !errors.As(err, &se) || se.Field != "config."+field {
			t.Errorf("%s: %v", field, err)
		}
	}
	for _, c := range []Config{{PageBytes: math.MaxInt - 63}, {ChunkBytes: math.MaxInt}, {PageBytes: -64}, {TokenWindow: -1}} {
		if _, err := Open(c); err == nil {
			t.Errorf("%+v is taken", c)
		}
	}
}

func TestBatchesThatDoNotFit(t *testing.T) {
	s := openTest(t, Config{})
	tb := mustInit(t, s, Spec{Name: "t", Dim: 4})
	keys := sequence(0, 3)
	pin := s.Pin("test")
	other := openTest(t, Config{})
	foreign := other.Pin("foreign")
	for what, call := range map[string]func() error{
		"get short":            func() error { _, err := tb.Get(keys, make([]float32, 11), nil); return err },
		"get long":             func() error { _, err := tb.Get(keys, make([]float32, 13), nil); return err },
		"get one more":         func() error { _, err := tb.Get(keys, make([]float32, 16), nil); return err },
		"get found":            func() error { _, err := tb.Get(keys, make([]float32, 12), []uint64{}); return err },
		"times dim wraps to 0": func() error { return tb.fail("t", tb.checkFloats("rows", math.MaxInt/2+1, 0)) },
		"times dim wraps to 4": func() error { return tb.fail("t", tb.checkFloats("rows", math.MaxInt/2+2, 4)) },
		"too many":             func() error { return tb.fail("t", tb.checkBatch(maxBatch+1)) },
		"exists found":         func() error { _, err := tb.Exists(sequence(0, 65), make([]uint64, 1)); return err },
		"put":                  func() error { return tb.Put(keys, make([]float32, 8)) },
		"put nothing":          func() error { return tb.Put(keys, nil) },
		"update":               func() error { _, err := tb.Update(keys, make([]float32, 8), Token{}); return err },
		"locate":               func() error { _, err := tb.Locate(pin, keys, make([]RowRef, 2)); return err },
		"locate unpined":       func() error { _, err := tb.Locate(nil, keys, make([]RowRef, 3)); return err },
		"locate foreign":       func() error { _, err := tb.Locate(foreign, keys, make([]RowRef, 3)); return err },
	} {
		var se *ShapeError
		if err := call(); !errors.As(err, &se) || se.Table != "t" || layerOf(err) != "usage" {
			t.Errorf("%s: %v", what, err)
		}
	}
	if tb.Len() != 0 {
		t.Error("a refused batch changed the table")
	}
	pin.Unpin()
	foreign.Unpin()
	defer func() {
		if recover() == nil {
			t.Error("a pin was let go twice")
		}
	}()
	pin.Unpin()
}

func TestEmptyBatches(t *testing.T) {
	s := openTest(t, Config{})
	tb := mustInit(t, s, Spec{Name: "t", Dim: 4})
	if n, err := tb.Get(nil, nil, nil); n != 0 || err != nil {
		t.Error(n, err)
	}
	if err := tb.Put(nil, nil); err != nil {
		t.Error(err)
	}
	if ok, err := tb.Update(nil, nil, Token{}); !ok || err != nil {
		t.Error(ok, err)
	}
	if n, err := tb.Delete(nil); n != 0 || err != nil {
		t.Error(n, err)
	}
	if n, err := tb.Delete([]uint64{1, 1}); n != 0 || err != nil {
		t.Error(n, err)
	}
}

func TestSlotBytes(t *testing.T) {
	for row, want := range map[int]int{4: 16, 8: 16, 16: 16, 20: 32, 32: 32, 36: 48, 64: 64, 100: 112, 128: 128, 400: 448, 512: 512, 1540: 1600} {
		if got := slotBytes(row); got != want {
			t.Errorf("row of %d bytes: slot of %d, want %d", row, got, want)
		}
	}
}

func TestLifeOfTables(t *testing.T) {
	h := newHeap()
	s := openTest(t, Config{Memory: h})
	b := mustInit(t, s, Spec{Name: "b", Dim: 4})
	a := mustInit(t, s, Spec{Name: "a", Dim: 4})
	if ts := s.Tables(); len(ts) != 2 || ts[0] != a || ts[1] != b || s.Table("a") != a || s.Table("c") != nil {
		t.Errorf("%v", ts)
	}
	mustPut(t, a, sequence(0, 100), make([]float32, 400))
	if ok, err := s.Drop("a"); !ok || err != nil {
		t.Error(ok, err)
	}
	if ok, err := s.Drop("a"); ok || err != nil {
		t.Error(ok, err)
	}
	for what, call := range map[string]func() error{
		"get":    func() error { _, err := a.Get(nil, nil, nil); return err },
		"put":    func() error { return a.Put([]uint64{1}, make([]float32, 4)) },
		"update": func() error { _, err := a.Update([]uint64{1}, make([]float32, 4), Token{1, 1}); return err },
		"delete": func() error { _, err := a.Delete([]uint64{1}); return err },
		"exists": func() error { _, err := a.Exists([]uint64{1}, nil); return err },
		"clear":  a.Clear,
	} {
		if err := call(); !errors.Is(err, ErrDropped) || !strings.Contains(err.Error(), `"a"`) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if a.Len() != 0 || a.Stats() != (TableStats{}) {
		t.Error("a dropped table has rows")
	}
	// Its token was not used up by the call that found it dropped.
	a = mustInit(t, s, Spec{Name: "a", Dim: 5})
	if ok, err := a.Update([]uint64{1}, make([]float32, 5), Token{1, 1}); !ok || err != nil {
		t.Error(ok, err)
	}
}

func TestCloseWithPins(t *testing.T) {
	h := newHeap()
	s, err := Open(Config{Memory: h, PageBytes: 4096, ChunkBytes: 4096})
	if err != nil {
		t.Fatal(err)
	}
	tb := mustInit(t, s, Spec{Name: "t", Dim: 4})
	mustPut(t, tb, []uint64{1}, []float32{1, 2, 3, 4})
	gather, save := s.Pin("gather of lane 3"), s.Pin("a save")
	err = s.Close()
	var pe *PinsError
	if !errors.As(err, &pe) || len(pe.Pins) != 2 || !strings.Contains(err.Error(), "gather of lane 3") || !strings.Contains(err.Error(), "a save") {
		t.Fatal(err)
	}
	// Nothing happened.
	if n, err := tb.Get([]uint64{1}, make([]float32, 4), nil); n != 1 || err != nil {
		t.Error(n, err)
	}
	gather.Unpin()
	if err := s.Close(); !errors.As(err, &pe) || len(pe.Pins) != 1 || pe.Pins[0].Who != "a save" {
		t.Fatal(err)
	}
	save.Unpin()
	registered := errors.New("still registered")
	h.fail = registered
	if err := s.Close(); !errors.Is(err, registered) || layerOf(err) != "resource" {
		t.Fatal(err)
	}
	if len(h.out) != 1 {
		t.Errorf("%d chunks", len(h.out))
	}
	for what, call := range map[string]func() error{
		"get":  func() error { _, err := tb.Get(nil, nil, nil); return err },
		"init": func() error { _, err := s.Init(Spec{Name: "u", Dim: 1}); return err },
		"drop": func() error { _, err := s.Drop("t"); return err },
		"save": func() error { _, err := s.SaveTo(ctx(t), nil, SaveSpec{}); return err },
		"load": func() error { return s.LoadFrom(ctx(t), strings.NewReader(string(saved(t, small(t, 1))))) },
	} {
		if err := call(); !errors.Is(err, ErrClosed) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := s.Close(); err != nil || len(h.out) != 0 {
		t.Error(err, len(h.out))
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// slowMemory waits in Grow.
type slowMemory struct {
	Memory
	asked, give chan struct{}
}

func (m slowMemory) Grow(n int) (*Chunk, error) {
	m.asked <- struct{}{}
	<-m.give
	return m.Memory.Grow(n)
}

// TestCloseBesideACall: memory is not taken away under a call that runs.
func TestCloseBesideACall(t *testing.T) {
	m := slowMemory{newHeap(), make(chan struct{}), make(chan struct{})}
	s := openTest(t, Config{Memory: m})
	tb := mustInit(t, s, Spec{Name: "t", Dim: 1})
	done := make(chan error)
	go func() { done <- tb.Put([]uint64{1}, []float32{2}) }()
	<-m.asked
	var pe *PinsError
	if err := s.Close(); !errors.As(err, &pe) || len(pe.Pins) != 1 || !strings.Contains(err.Error(), "a running call") {
		t.Error(err)
	}
	close(m.give)
	if err := <-done; err != nil {
		t.Error(err)
	}
	if n, err := tb.Exists([]uint64{1}, nil); n != 1 || err != nil {
		t.Error(n, err)
	}
}

func TestManyPins(t *testing.T) {
	s := openTest(t, Config{})
	pins := make([]*Pin, 5*firstPins)
	seen := make(map[*Pin]bool)
	for i := range pins {
		pins[i] = s.Pin("one of many")
		if seen[pins[i]] {
			t.Fatal("a pin was given twice")
		}
		seen[pins[i]] = true
	}
	if err := s.Close(); err == nil || !strings.Contains(err.Error(), "and 312 more") {
		t.Error(err)
	}
	for _, p := range pins {
		p.Unpin()
	}
}

// TestLimit: a batch that does not fit changes nothing, says what it needs, and names the
// pins that keep memory.
func TestLimit(t *testing.T) {
	const dim = 64 // 16 rows to a page
	s := openTest(t, Config{Limit: 16*segmentBytes + 256 + 10*4096, ChunkBytes: 4096})
	tb := mustInit(t, s, Spec{Name: "t", Dim: dim})
	mustPut(t, tb, sequence(0, 80), make([]float32, 80*dim))
	want := content(t, tb)
	var le *LimitError
	err := tb.Put(sequence(0, 200), rowsOf(sequence(0, 200), dim, func(uint64) float32 { return 1 }))
	if !errors.As(err, &le) || le.Field != "rows" || le.Limit != s.limit || le.Need <= le.Limit-le.Used || le.Pins != "" || layerOf(err) != "resource" {
		t.Fatalf("%v: %+v", err, le)
	}
	token := Token{Client: 1, Sequence: 1}
	if _, err := tb.Update(sequence(1000, 200), rowsOf(sequence(0, 200), dim, func(uint64) float32 { return 1 }), token); !errors.As(err, &le) {
		t.Fatal(err)
	}
	if errors.As(err, new(*BatchError)) || !reflect.DeepEqual(content(t, tb), want) {
		t.Fatal("something was changed")
	}
	// What waits for a pin is not free, and the error says whose pin it is.
	pin := s.Pin("slow gather")
	for range 2 {
		err = tb.Put(sequence(0, 60), make([]float32, 60*dim))
	}
	if !errors.As(err, &le) || !strings.Contains(err.Error(), "slow gather") {
		t.Fatal(err)
	}
	pin.Unpin()
	// After that the same slots serve for ever.
	for range 50 {
		mustPut(t, tb, sequence(0, 60), make([]float32, 60*dim))
	}
	if _, err := s.Init(Spec{Name: "u", Dim: 1}); !errors.As(err, &le) {
		t.Error(err)
	}
	if ok, err := tb.Update(sequence(0, 10), make([]float32, 10*dim), token); !ok || err != nil {
		t.Error(ok, err)
	}
	if st := s.Stats(); st.Used > st.Limit {
		t.Errorf("%+v", st)
	}
	if _, err := s.Drop("t"); err != nil {
		t.Fatal(err)
	}
	u := mustInit(t, s, Spec{Name: "u", Dim: 1})
	mustPut(t, u, sequence(0, 2000), make([]float32, 2000))
}

// TestIndexWithoutRoom stops batches half-way: the error says exactly which keys were
// applied, and a retry of an update applies only the rest.
func TestIndexWithoutRoom(t *testing.T) {
	seed := testSeed(t)
	const n, dim = 20000, 1
	s := openTest(t, Config{Seed: seed | 1, ChunkBytes: 8 << 20})
	tb := mustInit(t, s, Spec{Name: "t", Dim: dim, Optimizer: Optimizer{LearningRate: 1}})
	mustPut(t, tb, []uint64{n}, []float32{0}) // the chunk for all rows is there
	s.mu.Lock()
	s.limit, s.freeSegments = s.used, nil
	s.mu.Unlock()
	keys := sequence(0, n)
	copy(keys[n/2:], keys[:100]) // some come again
	grads := rowsOf(keys, dim, func(uint64) float32 { return -1 })
	token := Token{Client: 9, Sequence: 1}
	_, err := tb.Update(keys, grads, token)
	var be *BatchError
	var le *LimitError
	if !errors.As(err, &be) || !errors.As(err, &le) || le.Field != "index" || be.Keys != n {
		t.Fatal(err)
	}
	// All but the last few of 16 segments fill up to the brim.
	if be.Applied < 12000 || be.Applied >= n {
		t.Fatal(err)
	}
	checkSlots := func() {
		t.Helper()
		if st := tb.Stats(); st.Slots != st.FreeSlots+st.WaitSlots+int64(st.Rows) || st.Rows != len(content(t, tb)) {
			t.Errorf("slots are lost: %+v", st)
		}
	}
	checkSlots()
	values := func() []float32 {
		rows := make([]float32, n)
		if _, err := tb.Get(sequence(0, n), rows, nil); err != nil {
			t.Fatal(err)
		}
		return rows
	}
	for i, f := range values() {
		want := float32(0)
		if i < be.Applied && (i < n/2 || i >= n/2+100) {
			want = 1
		}
		if i < 100 {
			want = 2
		}
		if f != want {
			t.Fatalf("key %d: %v after %v", i, f, err)
		}
	}
	// A put of the same keys, of which some can be replaced, stops where the first new one
	// finds no room.
	err = tb.Put(keys, make([]float32, n))
	if !errors.As(err, &be) || !errors.As(err, &le) {
		t.Fatal(err)
	}
	checkSlots()
	applied := be.Applied
	if err := tb.Put(keys[:applied], rowsOf(keys[:applied], dim, func(k uint64) float32 {
		if k < 100 {
			return 2
		}
		return 1
	})); err != nil {
		t.Fatal(err)
	}
	if err := tb.Put(keys[applied:applied+1], []float32{3}); errors.As(err, &be) && be.Applied > 0 || !errors.As(err, &le) {
		t.Fatal(err)
	}
	// With room the same batch goes on.
	s.mu.Lock()
	s.limit = 0
	s.mu.Unlock()
	for i, want := range []bool{true, false} {
		if ok, err := tb.Update(keys, grads, token); ok != want || err != nil {
			t.Fatal(i, ok, err)
		}
	}
	for i, f := range values() {
		want := float32(1)
		if i < 100 {
			want = 2
		}
		if i >= n/2 && i < n/2+100 {
			want = 0
		}
		if f != want {
			t.Fatalf("key %d: %v after the retry", i, f)
		}
	}
}

// inverse finds the key of a hash, as somebody would who knew a store's secrets.
func (m mixer) inverse(h uint64) uint64 {
	h ^= h >> 32
	h *= inverseOf(m.times)
	h ^= h>>29 ^ h>>58
	h *= inverseOf(0x9e3779b97f4a7c15)
	h ^= h >> 32
	return h ^ m.before
}

func inverseOf(odd uint64) uint64 {
	mod := new(big.Int).Lsh(big.NewInt(1), 64)
	return new(big.Int).ModInverse(new(big.Int).SetUint64(odd), mod).Uint64()
}

// TestKeysThatCollide: keys whose hashes begin alike make the directory longer until the
// limit; there it ends with an error, and what was put is there.
func TestKeysThatCollide(t *testing.T) {
	s := openTest(t, Config{Limit: 24 << 20, ChunkBytes: 64 << 10})
	tb := mustInit(t, s, Spec{Name: "t", Dim: 1})
	keys := make([]uint64, 3000)
	for i := range keys {
		h := 0xabcdef<<40 | uint64(i)
		keys[i] = s.mix.inverse(h)
		if s.mix.of(keys[i]) != h {
			t.Fatal("the inverse is none")
		}
	}
	err := tb.Put(keys, make([]float32, len(keys)))
	var be *BatchError
	var le *LimitError
	if !errors.As(err, &be) || !errors.As(err, &le) || be.Applied != segmentBrim {
		t.Fatal(err)
	}
	if n, err := tb.Exists(keys, nil); n != segmentBrim || err != nil {
		t.Error(n, err)
	}
	if st := s.Stats(); st.Used > st.Limit {
		t.Errorf("%+v", st)
	}
	// Other keys are not in the way.
	mustPut(t, tb, sequence(0, 1000), make([]float32, 1000))
}

// TestDeletedKeysMakeRoom: keys that come and go do not make the index grow.
func TestDeletedKeysMakeRoom(t *testing.T) {
	s := openTest(t, Config{})
	tb := mustInit(t, s, Spec{Name: "t", Dim: 1})
	for i := range 100 {
		keys := sequence(i*3000, 3000)
		mustPut(t, tb, keys, rowsOf(keys, 1, func(k uint64) float32 { return float32(k) }))
		if n, err := tb.Delete(keys); n != len(keys) || err != nil {
			t.Fatal(n, err)
		}
	}
	if st := tb.Stats(); st.Rows != 0 || st.Segments != 1<<firstDepth || st.Pages > 40 {
		t.Errorf("%+v", st)
	}
	if st := s.Stats(); st.IndexBytes > leastIndexBytes {
		t.Errorf("%+v", st)
	}
}

// TestMemoryThatFails: what Memory says comes out, and nothing was changed.
func TestMemoryThatFails(t *testing.T) {
	h := newHeap()
	s := openTest(t, Config{Memory: h})
	tb := mustInit(t, s, Spec{Name: "t", Dim: 4})
	h.fail = errors.New("no more of it")
	fails := h.fail
	if err := tb.Put([]uint64{1}, make([]float32, 4)); !errors.Is(err, fails) || layerOf(err) != "resource" || tb.Len() != 0 {
		t.Error(err)
	}
	mustPut(t, tb, []uint64{1}, make([]float32, 4))
	used := s.Stats().Used
	for _, bad := range []Memory{badMemory{}, badMemory{id: -1, n: 1 << 20}, badMemory{id: 0, n: 1 << 20}, badMemory{id: maxChunks, n: 1 << 20}, badMemory{id: 5, n: 100}, badMemory{id: 5, n: 1 << 20, off: 4}} {
		s.memory = bad
		if err := tb.Put(sequence(0, 5000), make([]float32, 20000)); err == nil || layerOf(err) != "resource" || tb.Len() != 1 {
			t.Errorf("%+v: %v", bad, err)
		}
	}
	s.memory = h
	if got := s.Stats().Used; got != used {
		t.Errorf("%d bytes in use, then %d", used, got)
	}
}

// badMemory gives chunks that cannot be used.
type badMemory struct{ id, n, off int }

func (b badMemory) Grow(int) (*Chunk, error) {
	if b.n == 0 {
		return nil, nil
	}
	words := make([]uint64, b.n/8+16)
	mem := unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), len(words)*8)
	pad := int(-uintptr(unsafe.Pointer(&words[0]))%rowAlign) + b.off
	return &Chunk{ID: b.id, Bytes: mem[pad : pad+b.n]}, nil
}

func (badMemory) Release(*Chunk) error { return nil }

func TestRegions(t *testing.T) {
	r := NewRegions()
	c, err := r.Grow(1 << 16)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Release(&Chunk{ID: 99}); err == nil {
		t.Error("a chunk was taken that was not given")
	}
	if err := r.Release(c); err != nil {
		t.Error(err)
	}
	if err := r.Release(c); err == nil {
		t.Error("a chunk was taken twice")
	}
	if _, err := r.Grow(math.MaxInt / 2); err == nil {
		t.Error("more memory than there is")
	}
}

func TestStats(t *testing.T) {
	s := openTest(t, Config{ChunkBytes: 16 << 10, Limit: 64 << 20})
	tb := mustInit(t, s, Spec{Name: "t", Dim: 100, Optimizer: Defaults(Adam)})
	keys := sequence(0, 30)
	mustPut(t, tb, keys, make([]float32, 3000))
	mustPut(t, tb, keys[:10], make([]float32, 1000))
	st := tb.Stats()
	if st.Rows != 30 || st.RowBytes != 400 || st.SlotBytes != 1216 || st.Slots != 3*int64(st.Pages) || st.WaitSlots != 10 ||
		st.Slots != st.FreeSlots+st.WaitSlots+int64(st.Rows) || st.Segments != 16 || st.Depth != 4 {
		t.Errorf("%+v", st)
	}
	pin := s.Pin("who")
	all := s.Stats()
	pin.Unpin()
	if all.Tables != 1 || len(all.Pins) != 1 || all.Pins[0].Who != "who" || all.Used != all.ChunkBytes+all.IndexBytes+256 || all.Limit != 64<<20 ||
		all.OldestPinEpoch != all.Epoch {
		t.Errorf("%+v", all)
	}
}
