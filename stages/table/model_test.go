package table

import (
	"bytes"
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// TestModel plays random calls on a table and on a Go map, and compares all they say.
// The table's state of the optimizer is left out here (SGD has none), see
// optimizer_test.go.
func TestModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		dim := rapid.SampledFrom([]int{1, 3, 16, 100, 128}).Draw(rt, "dim")
		s, err := Open(Config{Memory: newHeap(), PageBytes: 4096, ChunkBytes: 8192, Seed: rapid.Uint64Min(1).Draw(rt, "seed")})
		if err != nil {
			rt.Fatal(err)
		}
		s.indexMemory = newHeap()
		defer func() {
			if err := s.Close(); err != nil {
				rt.Error(err)
			}
		}()
		spec := Spec{Name: "t", Dim: dim, Optimizer: Optimizer{Kind: SGD, LearningRate: 0.5}}
		tb, err := s.Init(spec)
		if err != nil {
			rt.Fatal(err)
		}
		model := make(map[uint64]float32)
		var pin *Pin
		var pinned map[uint64]float32
		var pinnedKeys []uint64
		var pinnedRefs []RowRef
		key := rapid.OneOf(rapid.Uint64Range(0, 40), rapid.SampledFrom([]uint64{1<<64 - 1, 1<<63 - 1, 1 << 63}), rapid.Uint64Range(1000, 4000))
		keys := rapid.SliceOfN(key, 0, 200)
		value := rapid.Float32Range(-8, 8)
		version := float32(0)
		rt.Repeat(map[string]func(*rapid.T){
			"put": func(rt *rapid.T) {
				ks := keys.Draw(rt, "keys")
				rows := make([]float32, 0, len(ks)*dim)
				for _, k := range ks {
					version++
					model[k] = version
					for range dim {
						rows = append(rows, version)
					}
				}
				if err := tb.Put(ks, rows); err != nil {
					rt.Fatal(err)
				}
			},
			"put many": func(rt *rapid.T) {
				from := rapid.Uint64Range(0, 1<<20).Draw(rt, "from")
				version++
				ks := sequence(int(from), 3000)
				for _, k := range ks {
					model[k] = version
				}
				if err := tb.Put(ks, rowsOf(ks, dim, func(uint64) float32 { return version })); err != nil {
					rt.Fatal(err)
				}
			},
			"update": func(rt *rapid.T) {
				ks := keys.Draw(rt, "keys")
				g := float32(int(value.Draw(rt, "gradient"))) // halves of it are exact
				for _, k := range ks {
					model[k] -= 0.5 * g
				}
				if ok, err := tb.Update(ks, rowsOf(ks, dim, func(uint64) float32 { return g }), Token{}); err != nil || !ok {
					rt.Fatal(ok, err)
				}
			},
			"delete": func(rt *rapid.T) {
				ks := keys.Draw(rt, "keys")
				want := 0
				for _, k := range ks {
					if _, ok := model[k]; ok {
						delete(model, k)
						want++
					}
				}
				if n, err := tb.Delete(ks); err != nil || n != want {
					rt.Fatalf("deleted %d, %v; want %d", n, err, want)
				}
			},
			"delete all": func(rt *rapid.T) {
				ks := slices.Collect(maps.Keys(model))
				clear(model)
				if n, err := tb.Delete(ks); err != nil || n != len(ks) {
					rt.Fatal(n, err)
				}
			},
			"clear": func(rt *rapid.T) {
				clear(model)
				if err := tb.Clear(); err != nil {
					rt.Fatal(err)
				}
			},
			"drop": func(rt *rapid.T) {
				clear(model)
				old := tb
				if ok, err := s.Drop("t"); err != nil || !ok {
					rt.Fatal(ok, err)
				}
				if tb, err = s.Init(spec); err != nil {
					rt.Fatal(err)
				}
				if _, err := old.Exists(nil, nil); err == nil {
					rt.Fatal("a dropped table answers")
				}
			},
			"save and load": func(rt *rapid.T) {
				var buf bytes.Buffer
				if _, err := s.SaveTo(t.Context(), &buf, SaveSpec{}); err != nil {
					rt.Fatal(err)
				}
				if rapid.Bool().Draw(rt, "changed") {
					if err := tb.Put([]uint64{5, 77777}, make([]float32, 2*dim)); err != nil {
						rt.Fatal(err)
					}
				}
				if err := s.LoadFrom(t.Context(), &buf); err != nil {
					rt.Fatal(err)
				}
			},
			"pin": func(rt *rapid.T) {
				if pin != nil {
					return
				}
				pin = s.Pin("model")
				pinnedKeys = append(slices.Collect(maps.Keys(model)), 1<<50)
				pinned = maps.Clone(model)
				pinnedRefs = make([]RowRef, len(pinnedKeys))
				if missing, err := tb.Locate(pin, pinnedKeys, pinnedRefs); err != nil || missing != 1 {
					rt.Fatal(missing, err)
				}
			},
			"unpin": func(*rapid.T) {
				if pin != nil {
					pin.Unpin()
					pin = nil
				}
			},
			"": func(rt *rapid.T) {
				if tb.Len() != len(model) {
					rt.Fatalf("%d rows, want %d", tb.Len(), len(model))
				}
				ks := append(slices.Collect(maps.Keys(model)), keys.Draw(rt, "others")...)
				checkModel(rt, tb, ks, model)
				if pin == nil {
					return
				}
				for i, ref := range pinnedRefs {
					want, ok := pinned[pinnedKeys[i]]
					if !ok {
						if ref.Chunk != -1 {
							rt.Fatalf("a missing key is at %+v", ref)
						}
						continue
					}
					for _, f := range asFloats((*s.table.Load())[ref.Chunk][ref.Off:][:4*dim]) {
						if f != want {
							rt.Fatalf("key %d: pinned row has %v, want %v", pinnedKeys[i], f, want)
						}
					}
				}
			},
		})
		checkIndex(rt, tb)
		if pin != nil {
			pin.Unpin()
		}
	})
}

func checkModel(rt *rapid.T, tb *Table, ks []uint64, model map[uint64]float32) {
	dim := tb.Spec().Dim
	rows := make([]float32, len(ks)*dim)
	for i := range rows {
		rows[i] = -12345
	}
	found := make([]uint64, (len(ks)+63)/64+1)
	found[len(found)-1] = 1 << 63 // what was there before goes
	n, err := tb.Get(ks, rows, found)
	if err != nil {
		rt.Fatal(err)
	}
	exist := make([]uint64, len(found))
	if m, err := tb.Exists(ks, exist); err != nil || m != n || !slices.Equal(exist, found) {
		rt.Fatalf("exists says %d, %v, get %d", m, err, n)
	}
	want := 0
	for i, k := range ks {
		v, ok := model[k]
		if ok {
			want++
		}
		if bit(found, i) != ok {
			rt.Fatalf("key %d: found %v, want %v", k, bit(found, i), ok)
		}
		for j, f := range rows[i*dim:][:dim] {
			if f != v {
				rt.Fatalf("key %d, element %d: %v, want %v", k, j, f, v)
			}
		}
	}
	if n != want || found[len(found)-1]>>63 != 0 && len(ks) <= (len(found)-1)*64 {
		rt.Fatalf("%d found, want %d", n, want)
	}
}
