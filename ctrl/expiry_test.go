package ctrl

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// hands is a clock that moves when it is told to.
type hands struct{ t time.Time }

func newHands() *hands                  { return &hands{time.Unix(1_700_000_000, 0)} }
func (h *hands) now() time.Time         { return h.t }
func (h *hands) add(d time.Duration)    { h.t = h.t.Add(d) }
func (h *hands) on(c *Catalog) *Catalog { c.Clock = h.now; return c }
func ttlObject(g uint64, ttl time.Duration) Object {
	o := object(key, g, 9, 4)
	o.TTL = ttl
	return o
}

// An object is there until its time is over and not an instant longer, also for a
// catalog that was opened again; then its key is free, its stripes are garbage once
// somebody looks, and nothing is lost on the way.
func TestTimeOfAnObject(t *testing.T) {
	eachStore(t, func(t *testing.T, s Store, reopen func() Store) {
		h := newHands()
		c := h.on(NewCatalog(s, []int{0, 1}))
		must := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		there := func(want uint64) {
			t.Helper()
			o, found, err := c.Lookup(key)
			if err != nil || found != (want != 0) || o.Generation != want {
				t.Fatalf("%d %v %v, want %d", o.Generation, found, err, want)
			}
			for _, over := range []bool{false, true} {
				l, more, err := c.List(ListQuery{Namespace: key.Namespace, Limit: 1, Over: over})
				if n := len(l); err != nil || more || (n == 1) != (over || want != 0) {
					t.Fatalf("listed %v %v %v", l, more, err)
				}
			}
		}
		for range 3 {
			_, err := c.Begin(key)
			must(err)
		}
		_, _, err := c.Commit(ttlObject(1, time.Minute), 0)
		must(err)
		want := h.t.Add(time.Minute)
		h.add(time.Minute - 1)
		// A repeat of the commit, as after a lost answer, does not prolong it.
		_, _, err = c.Commit(ttlObject(1, time.Minute), 0)
		must(err)
		if o, _, _ := c.Lookup(key); !o.Expires.Equal(want) || o.TTL != time.Minute {
			t.Fatalf("it ends at %v after %v, want %v", o.Expires, o.TTL, want)
		}
		if n, more, err := c.Expire(10); n != 0 || more || err != nil {
			t.Fatal(n, more, err)
		}
		there(1)
		if reopen != nil {
			c = h.on(NewCatalog(reopen(), []int{0, 1}))
			there(1)
		}
		h.add(1)
		there(0)
		h.add(-time.Hour) // the clock is set back: what was over stays over
		there(0)
		h.add(time.Hour)
		var conflict *ConflictError
		if _, _, err := c.Commit(ttlObject(2, 0), 1); !errors.As(err, &conflict) || conflict.Have != 0 {
			t.Fatalf("committed on a generation whose time is over: %v", err)
		}
		if old, found, err := c.Delete(key, AnyOlder); found || err != nil {
			t.Fatalf("deleted what is not there: %v %v", old, err)
		}
		// Put if absent replaces it.
		old, replaced, err := c.Commit(ttlObject(2, time.Second), 0)
		if must(err); !replaced || old.Generation != 1 {
			t.Fatalf("%v %v", old, replaced)
		}
		there(2)
		// Replacing takes the time of the old one with it.
		_, _, err = c.Commit(ttlObject(3, 0), 2)
		must(err)
		h.add(time.Hour)
		if n, more, err := c.Expire(10); n != 0 || more || err != nil {
			t.Fatal(n, more, err)
		}
		there(3)
		if es, err := s.List("", "", 100); reopen == nil && (err != nil || len(es) != 5) {
			t.Fatalf("%d entries are kept, want the object, its stripes, the counter and two of garbage: %v %v", len(es), es, err)
		}
	})
}

func TestExpireTakesTheEarliestFirst(t *testing.T) {
	h := newHands()
	c := h.on(NewCatalog(NewMemoryStore(), []int{0, 1}))
	for i := range 5 {
		k := ObjectKey{"kv", fmt.Sprint(i)}
		if _, err := c.Begin(k); err != nil {
			t.Fatal(err)
		}
		o := object(k, 1, 9, 4)
		o.TTL = time.Duration(5-i) * time.Second
		if _, _, err := c.Commit(o, 0); err != nil {
			t.Fatal(err)
		}
	}
	h.add(4 * time.Second) // all but the first
	// A page is full although objects between are over.
	if l, more, err := c.List(ListQuery{Limit: 1}); err != nil || more || len(l) != 1 || l[0].Key.Name != "0" {
		t.Fatal(l, more, err)
	}
	for _, want := range []struct {
		n    int
		more bool
	}{{3, true}, {1, false}, {0, false}} {
		if n, more, err := c.Expire(3); n != want.n || more != want.more || err != nil {
			t.Fatal(n, more, err, want)
		}
	}
	var names []string
	for after, gen := (ObjectKey{}), uint64(0); ; {
		o, found, err := c.Garbage(after, gen)
		if err != nil {
			t.Fatal(err)
		}
		if !found {
			break
		}
		names, after, gen = append(names, o.Key.Name), o.Key, o.Generation
	}
	if !slices.Equal(names, []string{"1", "2", "3", "4"}) {
		t.Fatal(names)
	}
	for _, most := range []int{0, -1, maxListLimit + 1} {
		if _, _, err := c.Expire(most); err == nil {
			t.Errorf("%d", most)
		}
	}
	for _, ttl := range []time.Duration{-1, 1, MaxTTL + 1} {
		o := ttlObject(1, ttl)
		if err := o.Validate([]int{0, 1}); err == nil {
			t.Errorf("a time of %v", ttl)
		}
	}
}

func TestForgetShard(t *testing.T) {
	c := NewCatalog(NewMemoryStore(), []int{0, 1})
	if _, err := c.Begin(key); err != nil {
		t.Fatal(err)
	}
	if _, _, err := c.Commit(object(key, 1, 9, 4), 0); err != nil {
		t.Fatal(err)
	}
	if _, _, err := c.Delete(key, 1); err != nil {
		t.Fatal(err)
	}
	left := func(want int) {
		t.Helper()
		o, found, err := c.Garbage(ObjectKey{}, 0)
		if err != nil || found != (want > 0) || len(o.Placement.Stripes) != want {
			t.Fatalf("%d stripes, %v %v, want %d", len(o.Placement.Stripes), found, err, want)
		}
	}
	left(3)
	for _, step := range []struct{ shard, left int }{{7, 3}, {0, 1}, {0, 1}, {1, 0}, {1, 0}} {
		if err := c.ForgetShard(key, 1, step.shard); err != nil {
			t.Fatal(err)
		}
		left(step.left)
	}
}

func TestLookupMany(t *testing.T) {
	cl := dial(t, startServer(t, ServerConfig{}).Addr())
	ctx := context.Background()
	var keys []ObjectKey
	for i := range 7 {
		k := ObjectKey{"kv", fmt.Sprint(i)}
		if keys = append(keys, k); i%3 == 2 {
			continue // is not there
		}
		if _, err := cl.Begin(ctx, k); err != nil {
			t.Fatal(err)
		}
		// Placements so large that they do not fit one answer together.
		o := object(k, 1, 40_000, 1)
		if _, _, err := cl.Commit(ctx, o, 0); err != nil {
			t.Fatal(err)
		}
	}
	os, err := cl.LookupMany(ctx, keys)
	if err != nil || len(os) != len(keys) {
		t.Fatal(len(os), err)
	}
	for i, o := range os {
		if i%3 == 2 {
			if o.Generation != 0 {
				t.Errorf("%s is there", keys[i])
			}
			continue
		}
		if o.Key != keys[i] || len(o.Placement.Stripes) != 40_000 {
			t.Errorf("%s: %s with %d stripes", keys[i], o.Key, len(o.Placement.Stripes))
		}
	}
	if _, err := cl.LookupMany(ctx, []ObjectKey{{"kv", "a"}, {"", "b"}}); err == nil {
		t.Error("a key that is none was asked for")
	}
}

// Any sequence of changes under a clock that goes and jumps, against a flat model.
func TestTimesAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := newHands()
		c := h.on(NewCatalog(NewMemoryStore(), []int{0, 1}))
		latest := c.now()
		var current, reserved uint64
		var ends time.Time
		garbage := map[uint64]map[int]bool{} // shards with stripes
		over := func() bool { return current != 0 && !ends.IsZero() && !latest.Before(ends) }
		takeOut := func() {
			garbage[current] = map[int]bool{0: true, 1: true}
			current = 0
		}
		t.Repeat(map[string]func(*rapid.T){
			"clock": func(t *rapid.T) {
				h.add(time.Duration(rapid.IntRange(-5, 10).Draw(t, "seconds")) * time.Second)
				latest = c.now()
			},
			"put": func(t *rapid.T) {
				g, err := c.Begin(key)
				if err != nil {
					t.Fatal(err)
				}
				reserved = g
				ttl := time.Duration(rapid.IntRange(0, 8).Draw(t, "ttl")) * time.Second
				expect := rapid.SampledFrom([]uint64{0, current, AnyOlder}).Draw(t, "expect")
				present := current
				if over() {
					present = 0
				}
				old, replaced, err := c.Commit(ttlObject(g, ttl), expect)
				if ok := expect == AnyOlder || expect == present; ok != (err == nil) {
					t.Fatalf("commit expecting %d where %d is: %v", expect, present, err)
				}
				if err != nil {
					return
				}
				if replaced != (current != 0) || old.Generation != current {
					t.Fatalf("replaced %v %d, want %d", replaced, old.Generation, current)
				}
				if current != 0 {
					takeOut()
				}
				if current, ends = g, (time.Time{}); ttl != 0 {
					ends = latest.Add(ttl)
				}
			},
			"delete": func(t *rapid.T) {
				old, found, err := c.Delete(key, AnyOlder)
				if err != nil || found != (current != 0 && !over()) {
					t.Fatal(old, found, err)
				}
				if found {
					takeOut()
				}
			},
			"expire": func(t *rapid.T) {
				n, more, err := c.Expire(1)
				if err != nil || more || (n == 1) != over() {
					t.Fatal(n, more, err)
				}
				if n == 1 {
					takeOut()
				}
			},
			"forget": func(t *rapid.T) {
				g := rapid.Uint64Range(1, 1+reserved).Draw(t, "generation")
				shard := rapid.IntRange(0, 1).Draw(t, "shard")
				if err := c.ForgetShard(key, g, shard); err != nil {
					t.Fatal(err)
				}
				if delete(garbage[g], shard); len(garbage[g]) == 0 {
					delete(garbage, g)
				}
			},
			"": func(t *rapid.T) {
				o, found, err := c.Lookup(key)
				if want := current != 0 && !over(); err != nil || found != want || found && o.Generation != current {
					t.Fatalf("%d %v %v, want %v %d", o.Generation, found, err, want, current)
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
					after = x.Generation
					shards := map[int]bool{}
					for _, s := range x.Placement.Stripes {
						shards[s.Shard] = true
					}
					if len(shards) != len(garbage[after]) {
						t.Fatalf("generation %d has stripes on %v, want %v", after, shards, garbage[after])
					}
				}
				if n != len(garbage) {
					t.Fatalf("%d are garbage, want %v", n, garbage)
				}
			},
		})
	})
}

func FuzzStoredTime(f *testing.F) {
	o := object(key, 1, 9, 4)
	o.Expires = time.Unix(1_700_000_000, 5)
	f.Add(expiring(o)[0].Key)
	f.Add("x/")
	f.Add("x/ffffffffffffffff\x00a\x00b")
	f.Fuzz(func(t *testing.T, s string) {
		at, k, err := parseExpiring(s)
		if err != nil {
			return
		}
		again := expiring(Object{Key: k, Expires: at})
		if at2, k2, err := parseExpiring(again[0].Key); err != nil || !at2.Equal(at) || k2 != k {
			t.Fatalf("%q gives %v %v, that gives %v %v %v", s, at, k, at2, k2, err)
		}
	})
}
