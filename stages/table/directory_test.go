package table

import (
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"
)

// checkIndex demands of an index at rest what readers and writers rely on.
func checkIndex(t rapid.TB, tb *Table) {
	t.Helper()
	b := tb.body.Load()
	d := b.dir.Load()
	for i := 0; i < len(d.segments); {
		seg := d.segments[i].Load()
		wide := 1 << (d.depth - seg.depth)
		if seg.dead || i%wide != 0 {
			t.Fatalf("entry %d: a segment of depth %d, dead %v, in a directory of depth %d", i, seg.depth, seg.dead, d.depth)
		}
		for j := i; j < i+wide; j++ {
			if d.segments[j].Load() != seg || d.mem[j].Load() != seg.mem {
				t.Fatalf("entry %d is not that of its segment", j)
			}
		}
		used, live := 0, 0
		for k := range seg.mem {
			for slot := range slotsPerLine {
				ref, key := seg.mem[k].ref(slot), seg.mem[k].key(slot)
				if ref == refEmpty {
					continue
				}
				used++
				if ref >= refFirst {
					live++
				}
				h := b.store.mix.of(key)
				if d.index(h)/wide != i/wide {
					t.Fatalf("key %d with hash %x is in the segment of entry %d", key, h, i)
				}
				if at, s, ok := seg.mem.find(h, key); !ok || at != &seg.mem[k] || s != slot {
					t.Fatalf("key %d is not found where it is", key)
				}
			}
		}
		if used != seg.used || live != seg.live {
			t.Fatalf("entry %d: %d used and %d live slots, it counts %d and %d", i, used, live, seg.used, seg.live)
		}
		i += wide
	}
}

// TestUnevenIndex has a directory that is long for a few keys, so that most segments
// stand in many of its entries when they are replaced.
func TestUnevenIndex(t *testing.T) {
	seed := testSeed(t)
	r := rand.New(rand.NewPCG(seed, 0))
	s := openTest(t, Config{Seed: seed | 1})
	tb := mustInit(t, s, Spec{Name: "t", Dim: 1})
	model := make(map[uint64]bool)
	put := func(keys []uint64) {
		mustPut(t, tb, keys, rowsOf(keys, 1, func(k uint64) float32 { return float32(k % 1000) }))
		for _, k := range keys {
			model[k] = true
		}
	}
	crowd := make([]uint64, 3000)
	for i := range crowd {
		crowd[i] = s.mix.inverse(0x5a3<<52 | r.Uint64()>>12)
	}
	put(crowd)
	if st := tb.Stats(); st.Depth < 12 {
		t.Fatalf("%+v", st)
	}
	checkIndex(t, tb)
	for round := range 12 {
		keys := make([]uint64, 3000)
		for i := range keys {
			keys[i] = r.Uint64()
		}
		put(keys)
		if round%4 != 0 {
			if _, err := tb.Delete(keys); err != nil {
				t.Fatal(err)
			}
			for _, k := range keys {
				delete(model, k)
			}
		}
		checkIndex(t, tb)
	}
	for i := range crowd {
		crowd[i] = s.mix.inverse(0x111<<52 | r.Uint64()>>12) // where a segment is wide
	}
	put(crowd)
	checkIndex(t, tb)
	if tb.Len() != len(model) {
		t.Errorf("%d rows, want %d", tb.Len(), len(model))
	}
	for k := range model {
		row := make([]float32, 1)
		if n, err := tb.Get([]uint64{k}, row, nil); n != 1 || err != nil || row[0] != float32(k%1000) {
			t.Fatal(k, n, err, row)
		}
	}
}
