package table

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"sync"
	"testing"
)

// kept is a save of a test, with what it must load.
type kept struct {
	id    SaveID
	chain [][]byte // the last one is itself
	want  map[string]any
}

func (k *kept) load(t testing.TB, s *Store) {
	t.Helper()
	readers := make([]*bytes.Reader, len(k.chain))
	for i := range readers {
		readers[i] = bytes.NewReader(k.chain[i])
	}
	if err := s.LoadFrom(ctx(t), asReaders(readers)...); err != nil {
		t.Fatal(err)
	}
}

func saveOn(t testing.TB, s *Store, base *kept) (*kept, Snapshot) {
	t.Helper()
	var spec SaveSpec
	k := &kept{}
	if base != nil {
		spec.Base, spec.BaseName = base.id, "base"
		k.chain = slices.Clone(base.chain)
	}
	var b bytes.Buffer
	info, err := s.SaveTo(ctx(t), &b, spec)
	if err != nil {
		t.Fatal(err)
	}
	k.id, k.chain = info.ID, append(k.chain, b.Bytes())
	return k, info
}

// TestChanges plays random calls and saves, whole ones and ones on top of any save that is
// remembered: whatever is loaded, in the same store or another, is what was there when it
// was saved, with the optimizers' state.
func TestChanges(t *testing.T) {
	seed := testSeed(t)
	steps, rounds := 400, 4
	if raceEnabled || testing.Short() {
		steps, rounds = 100, 2
	}
	for round := range rounds {
		r := rand.New(rand.NewPCG(seed, uint64(round)))
		s := openTest(t, Config{})
		specs := []Spec{
			{Name: "sgd", Dim: 3},
			{Name: "adam", Dim: 2, Optimizer: Defaults(Adam)},
			{Name: "wide", Dim: 100, Optimizer: Defaults(RowwiseAdaGrad)},
		}
		for _, sp := range specs {
			mustInit(t, s, sp)
		}
		var saves []*kept // those that may be bases
		incremental, partly := 0, 0
		keys := func() []uint64 {
			out := make([]uint64, 1+r.IntN(60))
			for i := range out {
				out[i] = r.Uint64N(600)
			}
			return out
		}
		for range steps {
			tb := mustInit(t, s, specs[r.IntN(len(specs))])
			dim := tb.Spec().Dim
			switch p := r.IntN(100); {
			case p < 30:
				ks := keys()
				v := r.Float32()
				mustPut(t, tb, ks, rowsOf(ks, dim, func(uint64) float32 { return v }))
			case p < 50:
				ks := keys()
				if _, err := tb.Update(ks, rowsOf(ks, dim, func(k uint64) float32 { return float32(k%5) + 1 }), Token{}); err != nil {
					t.Fatal(err)
				}
			case p < 65:
				if _, err := tb.Delete(keys()); err != nil {
					t.Fatal(err)
				}
			case p < 67: // so many that the index grows
				from := int(r.Uint64N(1 << 20))
				ks := sequence(1000+from, 2500)
				mustPut(t, tb, ks, rowsOf(ks, dim, func(uint64) float32 { return 1 }))
			case p < 69:
				ks := slices.Collect(maps.Keys(content(t, tb)))
				if _, err := tb.Delete(ks[:len(ks)*3/4]); err != nil {
					t.Fatal(err)
				}
			case p < 71:
				if err := tb.Clear(); err != nil {
					t.Fatal(err)
				}
			case p < 73:
				if _, err := s.Drop(tb.Spec().Name); err != nil {
					t.Fatal(err)
				}
			case p < 78:
				k, info := saveOn(t, s, nil)
				if k.want = contents(t, s); info.Whole != info.Tables || info.Deleted != 0 {
					t.Fatalf("a save without a base: %+v", info)
				}
				saves = append(saves, k)
			case p < 96 && len(saves) > 0:
				base := saves[len(saves)-1]
				if r.IntN(3) == 0 {
					base = saves[r.IntN(len(saves))]
				}
				k, info := saveOn(t, s, base)
				k.want = contents(t, s)
				if len(k.chain) < MaxChain {
					saves = append(saves, k)
				}
				if incremental++; info.Whole < info.Tables {
					partly++
				}
				to := openTest(t, Config{})
				k.load(t, to)
				if got := contents(t, to); !reflect.DeepEqual(got, k.want) {
					t.Fatalf("a chain of %d loads something else", len(k.chain))
				}
			case len(saves) > 0: // back to an earlier one, which is a base from then on
				k := saves[r.IntN(len(saves))]
				for _, sp := range specs {
					if _, err := s.Drop(sp.Name); err != nil {
						t.Fatal(err)
					}
				}
				k.load(t, s)
				if got := contents(t, s); !reflect.DeepEqual(got, k.want) {
					t.Fatalf("a chain of %d loads something else over what was there", len(k.chain))
				}
				saves = append(saves, k)
			}
			if len(saves) > keepMarks-1 {
				saves = saves[1:]
			}
		}
		for _, tb := range s.Tables() {
			checkIndex(t, tb)
		}
		t.Logf("round %d: %d saves on a base, %d of them of changes", round, incremental, partly)
		if partly == 0 {
			t.Error("no save was of changes only")
		}
	}
}

// TestChangesAreFew: a save with a base has what has changed since, and nothing else.
func TestChangesAreFew(t *testing.T) {
	s := openTest(t, Config{})
	tb := mustInit(t, s, Spec{Name: "t", Dim: 1})
	other := mustInit(t, s, Spec{Name: "u", Dim: 1})
	ks := sequence(0, 5000)
	mustPut(t, tb, ks, rowsOf(ks, 1, func(k uint64) float32 { return 1 }))
	mustPut(t, other, ks, rowsOf(ks, 1, func(k uint64) float32 { return 1 }))
	want := func(info Snapshot, whole int, rows, deleted uint64) {
		t.Helper()
		if info.Whole != whole || info.Rows != rows || info.Deleted != deleted {
			t.Errorf("%d tables whole, %d rows, %d deleted keys; want %d, %d, %d", info.Whole, info.Rows, info.Deleted, whole, rows, deleted)
		}
	}
	a, info := saveOn(t, s, nil)
	want(info, 2, 10000, 0)
	b, info := saveOn(t, s, a)
	want(info, 0, 0, 0)
	mustPut(t, tb, ks[:10], make([]float32, 10))
	if _, err := tb.Update(ks[5:15], make([]float32, 10), Token{}); err != nil {
		t.Fatal(err)
	}
	if n, err := tb.Delete(append(ks[20:25:25], 1<<40)); err != nil || n != 5 {
		t.Fatal(n, err)
	}
	c, info := saveOn(t, s, b)
	want(info, 0, 15, 5)
	// Segments divide, and what was deleted is still known.
	more := sequence(10000, 20000)
	mustPut(t, tb, more, make([]float32, len(more)))
	_, info = saveOn(t, s, c)
	want(info, 0, 20000, 0)
	_, info = saveOn(t, s, a)
	want(info, 0, 20015, 5)
	if err := other.Clear(); err != nil {
		t.Fatal(err)
	}
	mustPut(t, other, ks[:7], make([]float32, 7))
	_, info = saveOn(t, s, c)
	want(info, 1, 20007, 0)

	// A store that has loaded a save goes on from it.
	to := openTest(t, Config{})
	c.load(t, to)
	mustPut(t, to.Table("t"), ks[:3], make([]float32, 3))
	d, info := saveOn(t, to, c)
	want(info, 0, 3, 0)
	d.want = contents(t, to)
	third := openTest(t, Config{})
	d.load(t, third)
	if !reflect.DeepEqual(contents(t, third), d.want) {
		t.Error("a save on top of a load loads something else")
	}
	// And a base of which nobody knows is refused.
	var be *BaseError
	if _, err := third.SaveTo(ctx(t), new(bytes.Buffer), SaveSpec{Base: SaveID{1, 2}, BaseName: "nightly"}); !errors.As(err, &be) || be.Name != "nightly" || layerOf(err) != "usage" {
		t.Error(err)
	}
}

// TestManySaves: stamps have few bits, and no save and no change is confused with one of
// long ago.
func TestManySaves(t *testing.T) {
	s := openTest(t, Config{})
	tb := mustInit(t, s, Spec{Name: "t", Dim: 1})
	ks := sequence(0, 3000)
	mustPut(t, tb, ks, make([]float32, len(ks)))
	last, _ := saveOn(t, s, nil)
	first := last
	for i := range 300 { // more than twice round
		mustPut(t, tb, ks[i:i+2], []float32{float32(i), 1})
		if i%7 == 0 { // a save that fails makes a period, too
			if _, err := s.SaveTo(ctx(t), failingWriter{}, SaveSpec{}); err == nil {
				t.Fatal("a save to nowhere succeeded")
			}
		}
		k, info := saveOn(t, s, last)
		if info.Rows != 2 || info.Whole != 0 {
			t.Fatalf("save %d has %d rows", i, info.Rows)
		}
		last = &kept{id: k.id, chain: k.chain[len(k.chain)-1:]}
	}
	if h := &s.history; len(h.marks) != keepMarks || h.period.Load()-h.lowest > periodWindow {
		t.Errorf("%d marks, stamps from %d to %d", len(h.marks), h.lowest, h.period.Load())
	}
	if _, err := s.SaveTo(ctx(t), new(bytes.Buffer), SaveSpec{Base: first.id}); !errors.As(err, new(*BaseError)) {
		t.Errorf("a base of long ago: %v", err)
	}
	// A load that takes so long that the stamps go round meanwhile.
	whole, _ := saveOn(t, s, nil)
	st, err := s.stage(ctx(t), []source{{bytes.NewReader(whole.chain[0]), "a"}})
	if err != nil {
		t.Fatal(err)
	}
	for range 200 {
		saveOn(t, s, nil)
	}
	if err := st.Install(); err != nil {
		t.Fatal(err)
	}
	if _, info := saveOn(t, s, whole); info.Rows != 0 || info.Whole != 0 {
		t.Errorf("after a load: %+v", info)
	}
}

type failingWriter struct{}

func (failingWriter) Write([]byte) (int, error) { return 0, errBroken }

// TestDeletedAreForgotten: keys that were deleted do not fill the index. Where they are
// too many, or there is no memory, a save says all instead of what has changed.
func TestDeletedAreForgotten(t *testing.T) {
	s := openTest(t, Config{})
	tb := mustInit(t, s, Spec{Name: "t", Dim: 1})
	base, _ := saveOn(t, s, nil)
	for i := range 200 {
		ks := sequence(1000*i, 1000)
		mustPut(t, tb, ks, make([]float32, len(ks)))
		if _, err := tb.Delete(ks); err != nil {
			t.Fatal(err)
		}
	}
	if n := tb.Stats().Segments; n > 32 {
		t.Errorf("%d segments for no rows", n)
	}
	mustPut(t, tb, []uint64{7}, []float32{7})
	k, info := saveOn(t, s, base)
	if info.Whole != 1 || info.Rows != 1 {
		t.Errorf("%+v", info)
	}
	to := openTest(t, Config{})
	k.load(t, to)
	if to.Table("t").Len() != 1 {
		t.Errorf("%d rows", to.Table("t").Len())
	}
	// A save for which they were forgotten while it ran is refused.
	base, _ = saveOn(t, s, nil)
	w := &hookWriter{do: func() { tb.body.Load().raiseFloor(s.history.period.Load()) }}
	if _, err := s.SaveTo(ctx(t), w, SaveSpec{Base: base.id}); !errors.Is(err, ErrForgotten) {
		t.Error(err)
	}
	w = &hookWriter{do: func() {
		for range keepMarks {
			saveOn(t, s, nil)
		}
	}}
	base, _ = saveOn(t, s, nil)
	if _, err := s.SaveTo(ctx(t), w, SaveSpec{Base: base.id}); !errors.Is(err, ErrForgotten) {
		t.Error(err)
	}
}

// hookWriter calls do at the second write.
type hookWriter struct {
	n  int
	do func()
}

func (w *hookWriter) Write(b []byte) (int, error) {
	if w.n++; w.n == 2 {
		w.do()
	}
	return len(b), nil
}

// TestChangesWhileWriting: saves while others write. A chain that is closed by a save
// after the writers have stopped has their last word on every key, whatever the saves
// before it met.
func TestChangesWhileWriting(t *testing.T) {
	seed := testSeed(t)
	s := openTest(t, Config{})
	const dim = 8
	tb := mustInit(t, s, Spec{Name: "t", Dim: dim})
	ks := sequence(0, 4000)
	mustPut(t, tb, ks, rowsOf(ks, dim, func(k uint64) float32 { return -1 }))
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for w := range 3 {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(seed, uint64(w)))
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				batch := make([]uint64, 20)
				for i := range batch {
					batch[i] = r.Uint64N(6000)
				}
				v := float32(n)
				var err error
				switch r.IntN(4) {
				case 0:
					_, err = tb.Delete(batch)
				case 1:
					_, err = tb.Update(batch[:1], rowsOf(batch[:1], dim, func(uint64) float32 { return 1 }), Token{})
				default:
					err = tb.Put(batch, rowsOf(batch, dim, func(uint64) float32 { return v }))
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	chain, _ := saveOn(t, s, nil)
	partly := 0
	for range 12 {
		next, info := saveOn(t, s, chain)
		if chain = next; info.Whole == 0 {
			partly++
		}
		// Each row is of one moment: all of its floats are alike.
		to := openTest(t, Config{})
		chain.load(t, to)
		for k, row := range content(t, to.Table("t")) {
			f := asFloats([]byte(row))
			for _, v := range f {
				if v != f[0] {
					t.Fatalf("key %d: row %v", k, f)
				}
			}
		}
	}
	close(stop)
	wg.Wait()
	chain, _ = saveOn(t, s, chain)
	to := openTest(t, Config{})
	chain.load(t, to)
	if got, want := content(t, to.Table("t")), content(t, tb); !reflect.DeepEqual(got, want) {
		n := 0
		for k := range want {
			if got[k] != want[k] {
				n++
			}
		}
		t.Errorf("%d rows, want %d; %d differ", len(got), len(want), n)
	}
	if partly == 0 {
		t.Error("no save was of changes only")
	}
}

// TestChainIsRefused: a chain with a gap, a wrong base or nothing under it.
func TestChainIsRefused(t *testing.T) {
	s := small(t, 1)
	a, _ := saveOn(t, s, nil)
	mustPut(t, s.Table(SGD), []uint64{5}, []float32{5})
	b, _ := saveOn(t, s, a)
	mustPut(t, s.Table(SGD), []uint64{6}, []float32{5})
	c, _ := saveOn(t, s, b)
	other, _ := saveOn(t, s, nil)
	A, B, C, O := c.chain[0], c.chain[1], c.chain[2], other.chain[0]
	to := openTest(t, Config{})
	mustPut(t, mustInit(t, to, Spec{Name: SGD, Dim: 1}), []uint64{0, 77}, []float32{1, 2})
	before := contents(t, to)
	for i, chain := range [][][]byte{{B}, {C}, {A, C}, {O, B}, {A, B, B}, {A, A}, {A, B[:len(B)-1]}, {A[:len(A)-1], B}, {A, append(bytes.Clone(B), 0)}, {B, A}} {
		readers := make([]*bytes.Reader, len(chain))
		for j := range chain {
			readers[j] = bytes.NewReader(chain[j])
		}
		var se *SnapshotError
		if err := to.LoadFrom(ctx(t), asReaders(readers)...); !errors.As(err, &se) || layerOf(err) != "integrity" {
			t.Errorf("chain %d: %v", i, err)
		}
		if !reflect.DeepEqual(contents(t, to), before) {
			t.Fatalf("chain %d: the store changed", i)
		}
	}
	if err := to.LoadFrom(ctx(t)); err == nil {
		t.Error("nothing was loaded")
	}
	for i := range B { // any byte of it
		flipped := bytes.Clone(B)
		flipped[i] ^= 1 << (i % 8)
		if err := to.LoadFrom(ctx(t), bytes.NewReader(A), bytes.NewReader(flipped)); err == nil {
			t.Fatalf("byte %d", i)
		}
	}
	if !reflect.DeepEqual(contents(t, to), before) {
		t.Fatal("the store changed")
	}
	c.want = contents(t, s)
	if _, err := to.Drop(SGD); err != nil { // which has numbers of its own
		t.Fatal(err)
	}
	c.load(t, to)
	if !reflect.DeepEqual(contents(t, to), c.want) {
		t.Error("the chain loads something else")
	}
}

func TestStamps(t *testing.T) {
	for _, now := range []uint64{0, 1, 63, 64, 127, 128, 1 << 20} {
		for d := int64(-63); d < 63; d++ {
			p := int64(now) + d
			if p < 0 {
				continue
			}
			ref := makeRef(5, 1<<20) | uint64(p)&stampMask
			if got := changedIn(ref, now); got != uint64(p) {
				t.Fatalf("period %d seen from %d is %d", p, now, got)
			}
		}
	}
	for _, c := range []int{0, 1, maxChunks - 1} {
		for _, off := range []uint64{0, 16, 4096, 1<<40 - 16} {
			for _, stamp := range []uint64{0, 1, stampMask} {
				if ref := makeRef(c, off) | stamp; refChunk(ref) != c || refOffset(ref) != off || ref < refFirst {
					t.Errorf("chunk %d, offset %d, stamp %d: %d, %d", c, off, stamp, refChunk(ref), refOffset(ref))
				}
			}
		}
	}
	if deleted(1<<41) >= refFirst || deletedIn(deleted(77)) != 77 || deleted(0) == refEmpty {
		t.Error(fmt.Sprint(deleted(0)))
	}
}
