package ps

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/railstore/railstore/cue/deploy"
	"github.com/railstore/railstore/stages/table"
	"github.com/railstore/railstore/verbs/lane"
)

// rowOf is the row of a key in tests: exact in float32.
func rowOf(key uint64, dim int, version float32) []float32 {
	r := make([]float32, dim)
	for i := range r {
		r[i] = float32(key%4096)*8 + float32(i%8) + version/64
	}
	return r
}

func rowsOf(keys []uint64, dim int, version float32) (out []float32) {
	for _, k := range keys {
		out = append(out, rowOf(k, dim, version)...)
	}
	return out
}

func same(a, b []float32) bool {
	return slices.EqualFunc(a, b, func(x, y float32) bool { return math.Float32bits(x) == math.Float32bits(y) })
}

// Every way of rows, every width from one float to longer than a slot, batches of one
// key and of many chunks.
func TestRowsComeBackExact(t *testing.T) {
	each(t, func(t *testing.T, w where) {
		s := newSite(t, w, nil)
		for m, mode := range modes {
			ss := s.session(func(c *SessionConfig) { c.Modes = mode })
			for _, dim := range []int{1, 3, 16, 128, 900, 1024, 5000, 65536} {
				most := 300
				if dim >= 1024 {
					most = 7
				}
				name := fmt.Sprintf("t%d-%d", m, dim)
				spec := table.Spec{Name: name, Dim: dim}
				tb := s.table(ss, spec)
				ctx := within(t, 60*time.Second)
				keys := make([]uint64, most)
				for i := range keys {
					keys[i] = uint64(i) * 0x9e3779b97f4a7c15
				}
				long := dim > 900
				err := tb.Put(ctx, keys, rowsOf(keys, dim, 1))
				if long && mode.PutProtocol == 1 {
					if !errors.Is(err, ErrTooLarge) {
						t.Errorf("%+v dim %d: a PUT of protocol 1 beyond the slot: %v", mode, dim, err)
					}
					continue
				}
				if long && mode.Put == Push && mode.Get == StagingCopy {
					if !errors.Is(err, ErrTooLarge) {
						t.Errorf("%+v dim %d: beyond the slot and no staging: %v", mode, dim, err)
					}
					continue
				}
				if err != nil {
					t.Fatalf("%+v dim %d: put: %v", mode, dim, err)
				}
				// Duplicates and missing keys, in an order of their own.
				ask := append(slices.Clone(keys), keys[0], 12345678901, keys[len(keys)-1], keys[0])
				slices.Reverse(ask)
				rows, found := make([]float32, len(ask)*dim), make([]bool, len(ask))
				for i := range rows {
					rows[i] = -1
				}
				if err := tb.Get(ctx, ask, rows, found); err != nil {
					t.Fatalf("%+v dim %d: get: %v", mode, dim, err)
				}
				for i, k := range ask {
					want := rowOf(k, dim, 1)
					if k == 12345678901 {
						want = make([]float32, dim)
					}
					if found[i] != (k != 12345678901) || !same(rows[i*dim:][:dim], want) {
						t.Fatalf("%+v dim %d: position %d key %d: found %v, row %v", mode, dim, i, k, found[i], rows[i*dim])
					}
				}
				if _, err := ss.Drop(ctx, name); err != nil {
					t.Fatal(err)
				}
			}
		}
	})
}

// Of duplicate keys in a PUT the last row stays, also when they lie in different chunks;
// in an UPDATE they add up in one step of the optimizer.
func TestDuplicatesOverChunks(t *testing.T) {
	each(t, func(t *testing.T, w where) {
		s := newSite(t, w, nil)
		for m, mode := range modes {
			ss := s.session(func(c *SessionConfig) { c.Modes = mode })
			const dim, distinct, times = 16, 150, 5
			opt := table.Defaults(table.AdaGrad)
			opt.LearningRate = 0.5
			tb := s.table(ss, table.Spec{Name: fmt.Sprint("d", m), Dim: dim, Optimizer: opt})
			ctx := within(t, 30*time.Second)
			var keys []uint64
			var rows []float32
			for v := range times {
				for k := range distinct {
					keys = append(keys, uint64(k))
					rows = append(rows, rowOf(uint64(k), dim, float32(v))...)
				}
			}
			if err := tb.Put(ctx, keys, rows); err != nil {
				t.Fatal(err)
			}
			uniq := keys[:distinct]
			got := make([]float32, distinct*dim)
			if err := tb.Get(ctx, uniq, got, nil); err != nil {
				t.Fatal(err)
			}
			if !same(got, rowsOf(uniq, dim, times-1)) {
				t.Fatalf("%+v: the last row of a key did not stay", mode)
			}
			// The same by a store alone.
			ref, err := table.Open(table.Config{})
			if err != nil {
				t.Fatal(err)
			}
			defer ref.Close()
			rt, err := ref.Init(tb.Spec())
			if err != nil {
				t.Fatal(err)
			}
			if err := rt.Put(uniq, got); err != nil {
				t.Fatal(err)
			}
			grads := make([]float32, len(keys)*dim)
			for i := range grads {
				grads[i] = float32(i%101)/7 - 6
			}
			if err := tb.Update(ctx, keys, grads); err != nil {
				t.Fatal(err)
			}
			if _, err := rt.Update(keys, grads, table.Token{}); err != nil {
				t.Fatal(err)
			}
			want := make([]float32, distinct*dim)
			if _, err := rt.Get(uniq, want, nil); err != nil {
				t.Fatal(err)
			}
			if err := tb.Get(ctx, uniq, got, nil); err != nil {
				t.Fatal(err)
			}
			if !same(got, want) {
				t.Fatalf("%+v: an UPDATE over several chunks differs from one batch", mode)
			}
		}
	})
}

func TestExistsDeleteClear(t *testing.T) {
	each(t, func(t *testing.T, w where) {
		s := newSite(t, w, nil)
		ss := s.session(nil)
		tb := s.table(ss, table.Spec{Name: "e", Dim: 2})
		ctx := within(t, 30*time.Second)
		var keys []uint64
		for i := range 3000 {
			keys = append(keys, uint64(i))
		}
		if err := tb.Put(ctx, keys, rowsOf(keys, 2, 0)); err != nil {
			t.Fatal(err)
		}
		n, err := tb.Delete(ctx, keys[1000:2000])
		if err != nil || n != 1000 {
			t.Fatalf("deleted %d, %v", n, err)
		}
		found := make([]bool, len(keys))
		if err := tb.Exists(ctx, keys, found); err != nil {
			t.Fatal(err)
		}
		for i, f := range found {
			if f != (i < 1000 || i >= 2000) {
				t.Fatalf("key %d exists: %v", i, f)
			}
		}
		infos, err := ss.Tables(ctx)
		if err != nil || len(infos) != 1 || infos[0].Rows != 2000 || len(infos[0].Shards) != 2 || infos[0].Spec.Name != "e" {
			t.Fatalf("%+v, %v", infos, err)
		}
		st, err := ss.Stats(ctx, 1)
		if err != nil || st.Shard != 1 || st.Service.Puts == 0 || st.Tables["e"].Rows == 0 {
			t.Fatalf("%+v, %v", st, err)
		}
		if err := tb.Clear(ctx); err != nil {
			t.Fatal(err)
		}
		if err := tb.Exists(ctx, keys, found); err != nil || slices.Contains(found, true) {
			t.Fatalf("rows after clear, %v", err)
		}
		// One shard alone.
		one, err := tb.On(1)
		if err != nil {
			t.Fatal(err)
		}
		if err := one.Put(ctx, keys[:7], rowsOf(keys[:7], 2, 3)); err != nil {
			t.Fatal(err)
		}
		got := make([]float32, 14)
		if err := one.Get(ctx, keys[:7], got, found[:7]); err != nil || !same(got, rowsOf(keys[:7], 2, 3)) {
			t.Fatalf("%v %v", got, err)
		}
		if other, _ := tb.On(0); other.Exists(ctx, keys[:7], found[:7]) != nil || slices.Contains(found[:7], true) {
			t.Error("the other shard has them, too")
		}
		if _, err := tb.On(9); err == nil {
			t.Error("there is no shard 9")
		}
	})
}

func TestTablesOfAllShards(t *testing.T) {
	each(t, func(t *testing.T, w where) {
		s := newSite(t, w, func(d *deploy.Deployment) {
			d.Tables = []deploy.Table{{Name: "recipe", Dim: 5, Optimizer: deploy.Optimizer{Type: "adam", LearningRate: 0.1, Epsilon: 1e-8, Beta1: 0.9, Beta2: 0.99}}}
		})
		ss := s.session(nil)
		ctx := within(t, 30*time.Second)
		if tb, err := ss.Table(ctx, "recipe"); err != nil || tb.Dim() != 5 || tb.Spec().Optimizer.Kind != table.Adam {
			t.Fatalf("%+v %v", tb, err)
		}
		// More than one answer's worth.
		for i := range 70 {
			if err := ss.Init(ctx, table.Spec{Name: fmt.Sprintf("t%02d", i), Dim: i + 1}); err != nil {
				t.Fatal(err)
			}
		}
		infos, err := ss.Tables(ctx)
		if err != nil || len(infos) != 71 || infos[1].Spec.Name != "t00" || infos[70].Spec.Dim != 70 {
			t.Fatalf("%d tables, %v", len(infos), err)
		}
		if err := ss.Init(ctx, table.Spec{Name: "t03", Dim: 4}); err != nil {
			t.Errorf("the same shape once more: %v", err)
		}
		if err := ss.Init(ctx, table.Spec{Name: "t03", Dim: 9}); !errors.Is(err, ErrShape) || !errors.Is(err, lane.StatusSizeMismatch) {
			t.Errorf("another shape: %v", err)
		}
		old, err := ss.Table(ctx, "t03")
		if err != nil {
			t.Fatal(err)
		}
		if had, err := ss.Drop(ctx, "t03"); err != nil || !had {
			t.Errorf("%v %v", had, err)
		}
		if had, err := ss.Drop(ctx, "t03"); err != nil || had {
			t.Errorf("dropped twice: %v %v", had, err)
		}
		keys := []uint64{1, 2, 3, 4, 5, 6, 7, 8}
		if err := old.Get(ctx, keys, make([]float32, 32), nil); !errors.Is(err, ErrNoTable) || len(shardErrors(err)) != 2 {
			t.Errorf("a dropped table: %v", err)
		}
		if _, err := ss.Table(ctx, "t03"); !errors.Is(err, ErrNoTable) {
			t.Errorf("a dropped table: %v", err)
		}
		if err := ss.Init(ctx, table.Spec{Name: "t03", Dim: 9}); err != nil {
			t.Error(err)
		}
		if err := old.Get(ctx, keys, make([]float32, 32), nil); !errors.Is(err, ErrShape) {
			t.Errorf("the old handle of a table with another width: %v", err)
		}
		if again, err := ss.Table(ctx, "t03"); err != nil || again.Dim() != 9 {
			t.Errorf("%+v, %v", again, err)
		}
		// Wrong calls, which no shard hears of.
		tb, _ := ss.Table(ctx, "t00")
		for _, err := range []error{tb.Get(ctx, keys, make([]float32, 7), nil), tb.Put(ctx, keys, nil), tb.Exists(ctx, keys, make([]bool, 3)),
			tb.Get(ctx, keys, make([]float32, 8), make([]bool, 9))} {
			if !errors.Is(err, ErrShape) {
				t.Errorf("wrong slices: %v", err)
			}
		}
		if err := tb.Get(ctx, nil, nil, nil); err != nil {
			t.Errorf("no keys: %v", err)
		}
		if err := tb.Update(ctx, keys[:1], []float32{float32(math.NaN())}); !errors.Is(err, ErrNonFinite) {
			t.Errorf("a NaN: %v", err)
		}
		if se := shardErrors(tb.Update(ctx, keys[:1], []float32{float32(math.Inf(1))})); len(se) != 1 || se[0].Applied != NotApplied || se[0].Keys[0] != (Range{0, 1}) {
			t.Errorf("%+v", se)
		}
	})
}

// A snapshot brings rows, state and all back, also into shards that were restarted.
func TestSaveLoadRestart(t *testing.T) {
	each(t, func(t *testing.T, w where) {
		s := newSite(t, w, nil)
		ss := s.session(nil)
		const dim = 12
		tb := s.table(ss, table.Spec{Name: "v", Dim: dim, Optimizer: table.Defaults(table.AdamW)})
		ctx := within(t, 60*time.Second)
		var keys []uint64
		for i := range 500 {
			keys = append(keys, uint64(i*i))
		}
		grads := rowsOf(keys, dim, 1)
		for range 3 {
			if err := tb.Update(ctx, keys, grads); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := ss.Save(ctx, "one", ""); err != nil {
			t.Fatal(err)
		}
		step := make([]float32, len(keys)*dim)
		want := make([]float32, len(keys)*dim)
		if err := tb.Update(ctx, keys, grads); err != nil {
			t.Fatal(err)
		}
		if err := tb.Get(ctx, keys, want, nil); err != nil {
			t.Fatal(err)
		}
		for id := range 2 {
			folder := s.shard(id).folder
			s.stop(id)
			s.serve(id, folder)
		}
		var err error
		for { // the lanes need a moment to find the shards again
			if _, err = ss.Load(ctx, "one"); err == nil || ctx.Err() != nil {
				break
			}
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := tb.Update(ctx, keys, grads); err != nil {
			t.Fatal(err)
		}
		if err := tb.Get(ctx, keys, step, nil); err != nil {
			t.Fatal(err)
		}
		if !same(step, want) {
			t.Error("the step after a load differs from the one after the save: state was lost")
		}
		if _, err := ss.Load(ctx, "two"); !errors.Is(err, ErrSnapshot) {
			t.Errorf("a snapshot that is not there: %v", err)
		}
		for _, name := range []string{"../one", "", "a/b", ".hidden"} {
			if _, err := ss.Save(ctx, name, ""); !errors.Is(err, ErrBadRequest) {
				t.Errorf("a snapshot called %q: %v", name, err)
			}
		}
	})
}
