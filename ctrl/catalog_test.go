package ctrl

import (
	"errors"
	"fmt"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// eachStore runs a test on every kind of store. reopen closes and opens again;
// only a store that survives gets it.
func eachStore(t *testing.T, f func(t *testing.T, s Store, reopen func() Store)) {
	t.Run("memory", func(t *testing.T) {
		s := NewMemoryStore()
		defer s.Close()
		f(t, s, nil)
	})
	t.Run("bbolt", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "sub", "control.db")
		s, err := OpenBoltStore(path)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = s.Close() }()
		f(t, s, func() Store {
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			if s, err = OpenBoltStore(path); err != nil {
				t.Fatal(err)
			}
			return s
		})
	})
}

func object(key ObjectKey, generation, size, stripe uint64) Object {
	o := Object{Key: key, Handle: fmt.Sprintf("%s@%d", key, generation), Generation: generation, XXH3: "0123456789abcdef", LayoutVersion: 1,
		Size: size, StripeBytes: stripe, Created: time.Unix(1700000000, 123).UTC(), Placement: Placement{Epoch: 3, Policy: "round_robin", LayoutHash: "00000000000000aa"}}
	for off := uint64(0); off < size; off += stripe {
		i := uint32(off / stripe)
		o.Placement.Stripes = append(o.Placement.Stripes, Stripe{Index: i, Shard: int(i) % 2, Dir: int(i/2) % 2, Offset: off, Length: min(stripe, size-off),
			XXH3: "fedcba9876543210", File: fmt.Sprintf("%02x/%d.g%d", i, i, generation)})
	}
	return o
}

var key = ObjectKey{"kv", "layer0"}

func TestStore(t *testing.T) {
	eachStore(t, func(t *testing.T, s Store, reopen func() Store) {
		must := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		must(s.Apply([]Cond{{"a", nil}}, []Change{{"a", []byte("1")}, {"b", []byte{}}, {"bb", []byte("2")}, {"c", []byte("3")}}))
		if err := s.Apply([]Cond{{"a", nil}}, []Change{{"a", []byte("9")}}); !errors.Is(err, ErrChanged) {
			t.Errorf("absent: %v", err)
		}
		if err := s.Apply([]Cond{{"b", nil}}, []Change{{"a", []byte("9")}}); !errors.Is(err, ErrChanged) {
			t.Errorf("an empty value is taken for none: %v", err)
		}
		if err := s.Apply([]Cond{{"a", []byte("1")}, {"c", []byte("x")}}, []Change{{"a", []byte("9")}}); !errors.Is(err, ErrChanged) {
			t.Errorf("another value: %v", err)
		}
		if reopen != nil {
			s = reopen()
		}
		if v, ok, err := s.Get("a"); err != nil || !ok || string(v) != "1" {
			t.Errorf("%q %v %v", v, ok, err)
		}
		if v, ok, err := s.Get("b"); err != nil || !ok || len(v) != 0 {
			t.Errorf("%q %v %v", v, ok, err)
		}
		if _, ok, err := s.Get("zz"); err != nil || ok {
			t.Errorf("%v %v", ok, err)
		}
		list := func(prefix, after string, limit int) (out []string) {
			es, err := s.List(prefix, after, limit)
			must(err)
			for _, e := range es {
				out = append(out, e.Key)
			}
			return out
		}
		for _, c := range []struct {
			prefix, after string
			limit         int
			want          []string
		}{{"", "", 9, []string{"a", "b", "bb", "c"}}, {"b", "", 9, []string{"b", "bb"}}, {"b", "b", 9, []string{"bb"}}, {"", "bb", 9, []string{"c"}},
			{"b", "a", 1, []string{"b"}}, {"b", "z", 9, nil}, {"x", "", 9, nil}} {
			if got := list(c.prefix, c.after, c.limit); !slices.Equal(got, c.want) {
				t.Errorf("%q after %q: %q, want %q", c.prefix, c.after, got, c.want)
			}
		}
		must(s.Apply(nil, []Change{{"a", nil}, {"nothing", nil}}))
		if _, ok, _ := s.Get("a"); ok {
			t.Error("removed, still there")
		}
		must(s.Close())
		if err := s.Apply(nil, []Change{{"a", nil}}); !errors.Is(err, ErrClosed) {
			t.Errorf("after close: %v", err)
		}
		if _, _, err := s.Get("a"); !errors.Is(err, ErrClosed) {
			t.Errorf("after close: %v", err)
		}
	})
}

func TestCatalogLife(t *testing.T) {
	eachStore(t, func(t *testing.T, s Store, reopen func() Store) {
		c := NewCatalog(s, []int{0, 1})
		again := func() {
			if reopen != nil {
				c = NewCatalog(reopen(), []int{0, 1})
			}
		}
		if _, found, err := c.Lookup(key); found || err != nil {
			t.Fatal(found, err)
		}
		g, err := c.Begin(key)
		if err != nil || g != 1 {
			t.Fatal(g, err)
		}
		o := object(key, g, 10, 4)
		for range 2 { // the second is as after a lost reply
			if _, replaced, err := c.Commit(o, 0); err != nil || replaced {
				t.Fatal(replaced, err)
			}
			again()
		}
		got, found, err := c.Lookup(key)
		if err != nil || !found || !reflect.DeepEqual(got, o) {
			t.Fatalf("%+v\nwant %+v (%v)", got, o, err)
		}
		// Reserved twice, only the second is used.
		if g, err = c.Begin(key); g != 2 || err != nil {
			t.Fatal(g, err)
		}
		again()
		if g, err = c.Begin(key); g != 3 || err != nil {
			t.Fatal(g, err)
		}
		o3 := object(key, 3, 0, 4) // an empty object has no stripes
		var conflict *ConflictError
		for _, expect := range []uint64{0, 2, 7} {
			if _, _, err := c.Commit(o3, expect); !errors.As(err, &conflict) || conflict.Have != 1 {
				t.Errorf("expect %d: %v", expect, err)
			}
		}
		for range 2 {
			old, replaced, err := c.Commit(o3, 1)
			if err != nil || !replaced || !reflect.DeepEqual(old, o) {
				t.Fatalf("%+v %v %v", old, replaced, err)
			}
			again()
		}
		// Late writers of older generations lose, whatever they expect.
		if _, _, err := c.Commit(object(key, 2, 10, 4), AnyOlder); !errors.As(err, &conflict) {
			t.Errorf("an older generation: %v", err)
		}
		if _, _, err := c.Delete(key, 1); !errors.As(err, &conflict) || conflict.Have != 3 {
			t.Errorf("delete of the old generation: %v", err)
		}
		for range 2 {
			old, found, err := c.Delete(key, 3)
			if err != nil || !found || old.Generation != 3 {
				t.Fatalf("%+v %v %v", old, found, err)
			}
			again()
		}
		if _, found, err := c.Lookup(key); found || err != nil {
			t.Fatal(found, err)
		}
		// The generations survive, and a lost commit does not come back.
		if _, _, err := c.Commit(o3, 0); !errors.As(err, &conflict) {
			t.Errorf("a commit after the delete: %v", err)
		}
		if g, err = c.Begin(key); g != 4 || err != nil {
			t.Fatal(g, err)
		}
		if _, _, err := c.Commit(object(key, 4, 1, 4), 3); !errors.As(err, &conflict) || conflict.Have != 0 {
			t.Errorf("replacing what is gone: %v", err)
		}
		if _, replaced, err := c.Commit(object(key, 4, 1, 4), AnyOlder); err != nil || replaced {
			t.Errorf("%v %v", replaced, err)
		}
		if _, _, err := c.Commit(object(key, 5, 1, 4), AnyOlder); err == nil || !strings.Contains(err.Error(), "not reserved") {
			t.Errorf("a generation of its own: %v", err)
		}
	})
}

func TestGarbageIsKeptUntilForgotten(t *testing.T) {
	eachStore(t, func(t *testing.T, s Store, reopen func() Store) {
		c := NewCatalog(s, []int{0, 1})
		other := ObjectKey{"kv", "layer0/x"}
		for _, k := range []ObjectKey{key, other} {
			for range 3 {
				g, err := c.Begin(k)
				if err != nil {
					t.Fatal(err)
				}
				if _, _, err := c.Commit(object(k, g, 9, 4), AnyOlder); err != nil {
					t.Fatal(err)
				}
			}
		}
		if _, _, err := c.Delete(other, AnyOlder); err != nil {
			t.Fatal(err)
		}
		if reopen != nil {
			c = NewCatalog(reopen(), []int{0, 1})
		}
		collect := func() (out []string) {
			var after ObjectKey
			var g uint64
			for {
				o, found, err := c.Garbage(after, g)
				if err != nil {
					t.Fatal(err)
				}
				if !found {
					return out
				}
				if len(o.Placement.Stripes) != 3 {
					t.Errorf("%+v", o)
				}
				out = append(out, o.Handle)
				after, g = o.Key, o.Generation
			}
		}
		if got := fmt.Sprint(collect()); got != "[kv/layer0@1 kv/layer0@2 kv/layer0/x@1 kv/layer0/x@2 kv/layer0/x@3]" {
			t.Error(got)
		}
		for range 2 {
			if err := c.Forget(other, 2); err != nil {
				t.Fatal(err)
			}
		}
		if got := fmt.Sprint(collect()); got != "[kv/layer0@1 kv/layer0@2 kv/layer0/x@1 kv/layer0/x@3]" {
			t.Error(got)
		}
	})
}

func TestList(t *testing.T) {
	eachStore(t, func(t *testing.T, s Store, _ func() Store) {
		c := NewCatalog(s, []int{0, 1})
		var all []ObjectKey
		for _, ns := range []string{"a", "ab", "b"} {
			for _, n := range []string{"x", "x/1", "x/2", "y", "ü"} {
				all = append(all, ObjectKey{ns, n})
			}
		}
		for _, k := range all {
			g, _ := c.Begin(k)
			if _, _, err := c.Commit(object(k, g, 9, 4), 0); err != nil {
				t.Fatal(err)
			}
		}
		page := func(q ListQuery) (out []ObjectKey) {
			for {
				objects, more, err := c.List(q)
				if err != nil {
					t.Fatal(err)
				}
				for _, o := range objects {
					if o.Placement.Stripes != nil || o.Size != 9 {
						t.Errorf("%+v", o)
					}
					out = append(out, o.Key)
				}
				if !more {
					return out
				}
				q.After = out[len(out)-1]
			}
		}
		for limit := range 6 {
			if got := page(ListQuery{Limit: limit}); !slices.Equal(got, all) {
				t.Errorf("limit %d: %v", limit, got)
			}
			if got := page(ListQuery{Namespace: "a", Limit: limit}); !slices.Equal(got, all[:5]) {
				t.Errorf("limit %d: %v", limit, got)
			}
			if got := page(ListQuery{Namespace: "ab", Prefix: "x/", Limit: limit}); !slices.Equal(got, all[6:8]) {
				t.Errorf("limit %d: %v", limit, got)
			}
		}
		for _, q := range []ListQuery{{Namespace: "a/b"}, {Prefix: "x"}, {Namespace: "a", Prefix: "\x00"}, {Limit: -1}, {Limit: 1001}, {After: ObjectKey{Name: "x"}}} {
			var invalid *InvalidError
			if _, _, err := c.List(q); !errors.As(err, &invalid) {
				t.Errorf("%+v: %v", q, err)
			}
		}
	})
}

// Many writers of one key: every generation is handed out once, and of the commits
// that expect the same generation exactly one goes through.
func TestCommitRace(t *testing.T) {
	eachStore(t, func(t *testing.T, s Store, _ func() Store) {
		c := NewCatalog(s, []int{0, 1})
		const n = 8
		var wg sync.WaitGroup
		generations, results := make([]uint64, n), make([]error, n)
		for i := range n {
			wg.Go(func() { generations[i], _ = c.Begin(key) })
		}
		wg.Wait()
		for i := range n {
			wg.Go(func() { _, _, results[i] = c.Commit(object(key, generations[i], 9, 4), 0) })
		}
		wg.Wait()
		slices.Sort(generations)
		if generations[0] != 1 || len(slices.Compact(generations)) != n {
			t.Errorf("generations %v", generations)
		}
		won := 0
		for _, err := range results {
			var conflict *ConflictError
			switch {
			case err == nil:
				won++
			case !errors.As(err, &conflict):
				t.Error(err)
			}
		}
		if won != 1 {
			t.Errorf("%d commits went through", won)
		}
	})
}

// A sequence of operations on the memory store and a flat model of the rules.
func TestCatalogAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := NewCatalog(NewMemoryStore(), []int{0, 1})
		var current, reserved, committed uint64
		garbage := map[uint64]bool{}
		gen := rapid.Uint64Range(1, 6)
		t.Repeat(map[string]func(*rapid.T){
			"begin": func(t *rapid.T) {
				g, err := c.Begin(key)
				if err != nil || g != reserved+1 {
					t.Fatalf("%d %v, want %d", g, err, reserved+1)
				}
				reserved = g
			},
			"commit": func(t *rapid.T) {
				g := gen.Draw(t, "generation")
				expect := rapid.SampledFrom([]uint64{0, 1, 2, 3, 4, 5, AnyOlder}).Draw(t, "expect")
				old, replaced, err := c.Commit(object(key, g, 9, 4), expect)
				if g == current { // a repeat
					if err != nil {
						t.Fatal(err)
					}
					return
				}
				ok := g <= reserved && g > committed && (expect == AnyOlder || expect == current)
				if ok != (err == nil) {
					t.Fatalf("commit %d expecting %d on %d (committed %d, reserved %d): %v", g, expect, current, committed, reserved, err)
				}
				if !ok {
					return
				}
				if replaced != (current != 0) || old.Generation != current {
					t.Fatalf("replaced %d, want %d", old.Generation, current)
				}
				if current != 0 {
					garbage[current] = true
				}
				current, committed = g, g
			},
			"delete": func(t *rapid.T) {
				g := rapid.SampledFrom([]uint64{1, 2, 3, 4, AnyOlder}).Draw(t, "generation")
				old, found, err := c.Delete(key, g)
				switch {
				case current != 0 && g != AnyOlder && g != current:
					if err == nil {
						t.Fatalf("delete %d of %d", g, current)
					}
				case current != 0:
					if err != nil || !found || old.Generation != current {
						t.Fatal(old, found, err)
					}
					garbage[current] = true
					current = 0
				case found != garbage[g] || err != nil:
					t.Fatal(found, err)
				}
			},
			"forget": func(t *rapid.T) {
				g := gen.Draw(t, "generation")
				if err := c.Forget(key, g); err != nil {
					t.Fatal(err)
				}
				delete(garbage, g)
			},
			"": func(t *rapid.T) {
				o, found, err := c.Lookup(key)
				if err != nil || found != (current != 0) || o.Generation != current {
					t.Fatalf("%d %v %v, want %d", o.Generation, found, err, current)
				}
				n := 0
				for after := uint64(0); ; n++ {
					x, found, err := c.Garbage(key, after)
					if err != nil {
						t.Fatal(err)
					}
					if !found {
						break
					}
					if after = x.Generation; !garbage[after] {
						t.Fatalf("%d is garbage", after)
					}
				}
				if n != len(garbage) {
					t.Fatalf("%d are garbage, want %v", n, garbage)
				}
			},
		})
	})
}
