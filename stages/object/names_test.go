package object

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/zeebo/xxh3"
	"pgregory.net/rapid"
)

func TestParseKey(t *testing.T) {
	for in, want := range map[string]Key{
		"kv/layer0": {Namespace: "kv", Name: "layer0"},
		"kv/a/b/c":  {Namespace: "kv", Name: "a/b/c"},
		"plain":     {Namespace: DefaultNamespace, Name: "plain"},
		"kv/..a":    {Namespace: "kv", Name: "..a"},
		"kv/ü":      {Namespace: "kv", Name: "ü"},
	} {
		if k, err := ParseKey(in); err != nil || k != want {
			t.Errorf("%q: %+v, %v", in, k, err)
		}
	}
	for _, in := range []string{"", "/", "kv/", "/x", "kv/../x", "../x", "kv/a\nb", "kv/\xff", "kv/" + strings.Repeat("a", 4096)} {
		_, err := ParseKey(in)
		if !errors.Is(err, ErrName) {
			t.Errorf("%q: %v", quote(in), err)
		} else if len(err.Error()) > 400 || strings.ContainsRune(err.Error(), 0x0a) || !utf8.ValidString(err.Error()) {
			t.Errorf("%q: not one short line: %q", quote(in), err)
		}
	}
}

func TestHex(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := rapid.Uint64().Draw(t, "hash")
		s := Hex(h)
		if g, ok := ParseHex(s); !ok || g != h || len(s) != 16 || strings.ToLower(s) != s {
			t.Fatalf("%x: %q, %x", h, s, g)
		}
	})
	// The published value of the hash of nothing.
	if s := Sum(nil); s != "2d06800538d394c2" {
		t.Errorf("xxh3 of nothing is %s", s)
	}
	for _, s := range []string{"", "2D06800538D394C2", "2d06800538d394c", "2d06800538d394c22", "2d06800538d394cg", "+d06800538d394c2"} {
		if _, ok := ParseHex(s); ok {
			t.Errorf("%q accepted", s)
		}
	}
}

func TestHandleAndFileName(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		k := Key{Namespace: rapid.String().Draw(t, "ns"), Name: rapid.String().Draw(t, "name")}
		gen, layout := rapid.Uint64().Draw(t, "gen"), rapid.Uint64().Draw(t, "layout")
		idx := rapid.Uint32().Draw(t, "index")
		h := NewHandle(k, gen, layout, rapid.Uint64().Draw(t, "size"), rapid.Uint64().Draw(t, "stripe"), rapid.Int64().Draw(t, "created"))
		if len(h) > MaxHandleBytes {
			t.Fatalf("handle of %d bytes", len(h))
		}
		f, err := FileName(h, idx)
		if err != nil {
			t.Fatal(err)
		}
		if !filepath.IsLocal(f) || strings.Contains(f, "..") || strings.Trim(f, "0123456789abcdefgls./") != "" {
			t.Fatalf("file name %q", f)
		}
		if h2, i2, ok := ParseFileName(f); !ok || h2 != h || i2 != idx {
			t.Fatalf("%q: %q, %d, %v", f, h2, i2, ok)
		}
	})
	for _, h := range []string{"", "rso1", "rso2-" + strings.Repeat("0", 32) + "-g1-l1-" + strings.Repeat("0", 16), "rso1-" + strings.Repeat("0", 31) + "/-g1-l1-" + strings.Repeat("0", 16)} {
		if _, err := FileName(h, 0); !errors.Is(err, ErrDescriptor) {
			t.Errorf("%q: %v", h, err)
		}
	}
}

func TestCanonicalIsInjective(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := rapid.StringN(2, 300, -1).Draw(t, "glued")
		i, j := rapid.IntRange(0, len(s)).Draw(t, "i"), rapid.IntRange(0, len(s)).Draw(t, "j")
		a, b := Key{Namespace: s[:i], Name: s[i:]}, Key{Namespace: s[:j], Name: s[j:]}
		if (keyDigest(a) == keyDigest(b)) != (i == j) {
			t.Fatalf("%+v and %+v", a, b)
		}
	})
}

func FuzzFileName(f *testing.F) {
	f.Add("ab/" + strings.Repeat("c", 30) + ".g1.l1." + strings.Repeat("d", 16) + ".s0")
	f.Add("../../etc/passwd")
	f.Fuzz(func(t *testing.T, s string) {
		h, i, ok := ParseFileName(s)
		if !ok {
			return
		}
		if !filepath.IsLocal(s) {
			t.Fatalf("%q is not below its directory", s)
		}
		if back, err := FileName(h, i); err != nil || back != s {
			t.Fatalf("%q: %q, %v: one file has two names", s, back, err)
		}
	})
}

// TestLayoutHashCoversEveryField changes each field in turn.
func TestLayoutHashCoversEveryField(t *testing.T) {
	base := func() Object {
		o := Object{Key: Key{Namespace: "a", Name: "b"}, Handle: "h", Generation: 1, XXH3: Sum(nil), LayoutVersion: 1, Size: 10, StripeBytes: 5,
			Placement: Placement{Epoch: 1, Policy: Policy, Stripes: []Stripe{{Index: 0, Shard: 0, Dir: 0, Offset: 0, Length: 5, XXH3: "x", File: "f"}, {Index: 1, Shard: 1, Dir: 1, Offset: 5, Length: 5, XXH3: "y", File: "g"}}}}
		return o
	}
	want := func() string { o := base(); return LayoutHash(&o) }()
	for name, change := range map[string]func(*Object){
		"namespace":      func(o *Object) { o.Key.Namespace = "ab"; o.Key.Name = "" },
		"name":           func(o *Object) { o.Key.Name = "c" },
		"handle":         func(o *Object) { o.Handle = "i" },
		"generation":     func(o *Object) { o.Generation = 2 },
		"xxh3":           func(o *Object) { o.XXH3 = "z" },
		"layout version": func(o *Object) { o.LayoutVersion = 2 },
		"size":           func(o *Object) { o.Size = 9 },
		"stripe bytes":   func(o *Object) { o.StripeBytes = 6 },
		"epoch":          func(o *Object) { o.Placement.Epoch = 2 },
		"policy":         func(o *Object) { o.Placement.Policy = "p" },
		"count":          func(o *Object) { o.Placement.Stripes = o.Placement.Stripes[:1] },
		"order":          func(o *Object) { s := o.Placement.Stripes; s[0], s[1] = s[1], s[0] },
		"index":          func(o *Object) { o.Placement.Stripes[1].Index = 0 },
		"shard":          func(o *Object) { o.Placement.Stripes[1].Shard = 0 },
		"dir":            func(o *Object) { o.Placement.Stripes[1].Dir = 0 },
		"offset":         func(o *Object) { o.Placement.Stripes[1].Offset = 6 },
		"length":         func(o *Object) { o.Placement.Stripes[1].Length = 4 },
		"stripe xxh3":    func(o *Object) { o.Placement.Stripes[1].XXH3 = "z" },
		"file":           func(o *Object) { o.Placement.Stripes[1].File = "h" },
	} {
		o := base()
		change(&o)
		if LayoutHash(&o) == want {
			t.Errorf("%s is not covered", name)
		}
	}
	o := base()
	o.Created = time.Unix(1, 0)
	o.Placement.LayoutHash = "itself"
	if LayoutHash(&o) != want {
		t.Error("the time or the hash itself is covered")
	}
}

func TestStreamingHashEqualsWhole(t *testing.T) {
	b := randomBytes(testSeed(t), 100000)
	h := xxh3.New()
	for i := 0; i < len(b); i += 777 {
		_, _ = h.Write(b[i:min(i+777, len(b))])
	}
	if Hex(h.Sum64()) != Sum(b) {
		t.Fatal("pieces and whole differ")
	}
}
