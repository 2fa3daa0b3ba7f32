package object

import (
	"errors"
	"math/rand/v2"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// makeObject builds a valid object of the given size, with contents that no test
// looks at unless it stores them.
func makeObject(t testing.TB, k Key, gen, size, stripeBytes uint64, nodes []Node) Object {
	t.Helper()
	o := Object{Key: k, Generation: gen, LayoutVersion: LayoutVersion, Size: size, StripeBytes: stripeBytes, XXH3: Sum(nil)}
	o.Handle = NewHandle(k, gen, LayoutVersion, size, stripeBytes, 42)
	st, err := Place(k, o.Handle, size, stripeBytes, nodes)
	if err != nil {
		t.Fatal(err)
	}
	for i := range st {
		st[i].XXH3 = Sum(nil)
	}
	o.Placement = Placement{Epoch: 1, Policy: Policy, Stripes: st}
	o.Placement.LayoutHash = LayoutHash(&o)
	return o
}

func TestStripeCount(t *testing.T) {
	const s = 1 << 20
	for size, want := range map[uint64]int{0: 0, 1: 1, s - 1: 1, s: 1, s + 1: 2, 10 * s: 10, MaxStripes * s: MaxStripes} {
		if n, err := StripeCount(size, s); n != want || err != nil {
			t.Errorf("%d bytes: %d, %v, want %d", size, n, err, want)
		}
	}
	for _, c := range [][2]uint64{{1, 0}, {1, 4095}, {1, 4097}, {1, MaxStripeBytes + Align}, {MaxStripes*s + 1, s}, {1<<64 - 1, Align}} {
		if _, err := StripeCount(c[0], c[1]); !errors.Is(err, ErrDescriptor) {
			t.Errorf("%d bytes in stripes of %d: %v", c[0], c[1], err)
		}
	}
}

func TestPlace(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		nodes := make([]Node, rapid.IntRange(1, 6).Draw(t, "nodes"))
		for i, shard := range rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "order"), 0)).Perm(len(nodes)) {
			nodes[i] = Node{Shard: shard, Dirs: rapid.IntRange(1, 4).Draw(t, "dirs")}
		}
		dirs := map[int]int{}
		for _, n := range nodes {
			dirs[n.Shard] = n.Dirs
		}
		k := Key{Namespace: "ns", Name: rapid.StringN(1, 20, -1).Draw(t, "name")}
		size := rapid.Uint64Range(0, 64*Align).Draw(t, "size")
		h := NewHandle(k, 1, LayoutVersion, size, Align, 0)
		st, err := Place(k, h, size, Align, nodes)
		if err != nil {
			t.Fatal(err)
		}
		var at uint64
		perNode := map[int][]int{}
		for i, s := range st {
			if int(s.Index) != i || s.Offset != at || s.Length == 0 {
				t.Fatalf("stripe %d: %+v, expected at %d", i, s, at)
			}
			if i > 0 && s.Shard != (st[i-1].Shard+1)%len(nodes) {
				t.Fatalf("stripe %d on shard %d after %d", i, s.Shard, st[i-1].Shard)
			}
			at += s.Length
			perNode[s.Shard] = append(perNode[s.Shard], s.Dir)
		}
		if at != size {
			t.Fatalf("%d of %d bytes placed", at, size)
		}
		// On a node consecutive stripes use consecutive directories, whatever the
		// number of nodes is.
		for shard, ds := range perNode {
			for i, d := range ds {
				if d < 0 || d >= dirs[shard] || i > 0 && d != (ds[i-1]+1)%dirs[shard] {
					t.Fatalf("shard %d with %d directories: %v", shard, dirs[shard], ds)
				}
			}
		}
		again, err := Place(k, h, size, Align, nodes)
		if err != nil || len(again) != len(st) {
			t.Fatal("not deterministic")
		}
		for i := range st {
			if st[i] != again[i] {
				t.Fatal("not deterministic")
			}
		}
	})
}

// TestPlaceSpreadsSmallObjects: with as many shards as directories every pair of
// them is the home of some object of one stripe.
func TestPlaceSpreadsSmallObjects(t *testing.T) {
	homes := map[[2]int]int{}
	for i := range 400 {
		k := Key{Namespace: "ns", Name: strings.Repeat("x", i+1)}
		st, err := Place(k, NewHandle(k, 1, 1, 1, Align, 0), 1, Align, []Node{{0, 2}, {1, 2}})
		if err != nil {
			t.Fatal(err)
		}
		homes[[2]int{st[0].Shard, st[0].Dir}]++
	}
	for _, p := range [][2]int{{0, 0}, {0, 1}, {1, 0}, {1, 1}} {
		if homes[p] < 60 {
			t.Errorf("shard %d directory %d is home of %d of 400", p[0], p[1], homes[p])
		}
	}
}

func TestPlaceNeedsNodes(t *testing.T) {
	k := Key{Namespace: "ns", Name: "x"}
	h := NewHandle(k, 1, 1, 1, Align, 0)
	for _, nodes := range [][]Node{nil, {{Shard: 0, Dirs: 0}}} {
		if _, err := Place(k, h, 1, Align, nodes); !errors.Is(err, ErrUnknownShard) {
			t.Errorf("%v: %v", nodes, err)
		}
	}
	if st, err := Place(k, h, 0, Align, nil); err != nil || len(st) != 0 {
		t.Errorf("an empty object needs no node: %v, %v", st, err)
	}
}

func TestValidate(t *testing.T) {
	nodes := []Node{{0, 2}, {1, 2}}
	k := Key{Namespace: "kv", Name: "x"}
	rehash := func(o *Object) { o.Placement.LayoutHash = LayoutHash(o) }
	stripes := func(o *Object) []Stripe { return o.Placement.Stripes }
	for _, c := range []struct {
		name   string
		change func(*Object)
		want   []error
		text   string
	}{
		{"valid", func(*Object) {}, nil, ""},
		{"shuffled", func(o *Object) { s := stripes(o); s[0], s[3] = s[3], s[0] }, nil, ""},
		{"other key", func(o *Object) { o.Key.Name = "y" }, []error{ErrForeign}, "kv/y"},
		{"other object's handle", func(o *Object) { o.Handle = NewHandle(Key{Namespace: "kv", Name: "y"}, 3, 1, 1, Align, 0) }, []error{ErrForeign}, "another key"},
		{"no handle", func(o *Object) { o.Handle = "" }, []error{ErrDescriptor}, "handle"},
		{"generation 0", func(o *Object) { o.Generation = 0 }, []error{ErrDescriptor}, "generation 0"},
		{"generation and handle differ", func(o *Object) { o.Generation = 4 }, []error{ErrDescriptor}, "generation 4"},
		{"newer layout", func(o *Object) { o.LayoutVersion = 2 }, []error{ErrDescriptor}, "layout version 2"},
		{"stripe size 0", func(o *Object) { o.StripeBytes = 0 }, []error{ErrDescriptor}, "stripes of 0"},
		{"bad hash", func(o *Object) { o.XXH3 = "XYZ" }, []error{ErrDescriptor}, "XYZ"},
		{"size grown", func(o *Object) { o.Size += Align }, []error{ErrMissingStripe, ErrWrongLength}, "stripe 5"},
		{"size shrunk", func(o *Object) { o.Size = 3 * Align }, []error{ErrOutOfBounds}, "stripes 3-4 (2 in all)"},
		{"one missing", func(o *Object) { o.Placement.Stripes = stripes(o)[1:] }, []error{ErrMissingStripe}, "stripe 0"},
		{"all missing", func(o *Object) { o.Placement.Stripes = nil }, []error{ErrMissingStripe}, "stripes 0-4 (5 in all)"},
		{"duplicate for missing", func(o *Object) { stripes(o)[1] = stripes(o)[2] }, []error{ErrDuplicateStripe, ErrMissingStripe}, "stripe 2"},
		{"duplicate in excess", func(o *Object) { o.Placement.Stripes = append(stripes(o), stripes(o)[4]) }, []error{ErrDuplicateStripe}, "stripe 4"},
		{"index beyond", func(o *Object) { stripes(o)[4].Index = 5 }, []error{ErrOutOfBounds, ErrMissingStripe}, "stripe 5"},
		{"index far beyond", func(o *Object) { stripes(o)[4].Index = 1<<32 - 1 }, []error{ErrOutOfBounds}, "4294967295"},
		{"wrong offset", func(o *Object) { stripes(o)[2].Offset++ }, []error{ErrOutOfBounds}, "begins at 8192, not at 8193"},
		{"offset overflows", func(o *Object) { stripes(o)[2].Offset = 1<<64 - 1 }, []error{ErrOutOfBounds}, "begins at"},
		{"too long", func(o *Object) { stripes(o)[2].Length++ }, []error{ErrWrongLength}, "4096 bytes, not 4097"},
		{"empty stripe", func(o *Object) { stripes(o)[2].Length = 0 }, []error{ErrWrongLength}, "not 0"},
		{"last too long", func(o *Object) { stripes(o)[4].Length = Align }, []error{ErrWrongLength}, "stripe 4"},
		{"unknown shard", func(o *Object) { stripes(o)[2].Shard = 2 }, []error{ErrUnknownShard}, "no shard 2"},
		{"negative shard", func(o *Object) { stripes(o)[2].Shard = -1 }, []error{ErrUnknownShard}, "no shard -1"},
		{"unknown directory", func(o *Object) { stripes(o)[2].Dir = 2 }, []error{ErrUnknownShard}, "2 directories"},
		{"another stripe's file", func(o *Object) { stripes(o)[2].File = stripes(o)[1].File }, []error{ErrForeign}, "not of this object"},
		{"path", func(o *Object) { stripes(o)[2].File = "../../etc/passwd" }, []error{ErrForeign}, "passwd"},
		{"one checksum missing", func(o *Object) { stripes(o)[2].XXH3 = "" }, []error{ErrNoChecksum}, "stripe 2"},
		{"object checksum missing", func(o *Object) { o.XXH3 = "" }, []error{ErrNoChecksum}, "object"},
		{"many faults, one line", func(o *Object) { stripes(o)[0].Shard = 9; stripes(o)[1].Length = 1; stripes(o)[3].Dir = 7 }, []error{ErrUnknownShard, ErrWrongLength}, "; "},
	} {
		o := makeObject(t, k, 3, 4*Align+100, Align, nodes)
		c.change(&o)
		rehash(&o)
		err := Validate(&o, k, nodes)
		if (err == nil) != (c.want == nil) {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		for _, w := range c.want {
			if !errors.Is(err, w) {
				t.Errorf("%s: %v, want %v", c.name, err, w)
			}
		}
		if err != nil && (!strings.Contains(err.Error(), c.text) || strings.Contains(err.Error(), "\n")) {
			t.Errorf("%s: %q does not say %q", c.name, err, c.text)
		}
	}
	o := makeObject(t, k, 3, 4*Align+100, Align, nodes)
	o.Placement.Epoch++
	if err := Validate(&o, k, nodes); !errors.Is(err, ErrDescriptor) || !strings.Contains(err.Error(), "layout hash") {
		t.Errorf("changed without its hash: %v", err)
	}
}
