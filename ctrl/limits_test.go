package ctrl

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

func TestObjectKeys(t *testing.T) {
	long := strings.Repeat("x", 1024)
	for _, k := range []ObjectKey{{"a", "b"}, {long, long}, {"a", "b/c"}, {"a", "/b//c/"}, {"a", "..b/c..d/..."}, {"a", "."}, {"ä ö", "日本語 \u00a0"}, {"a:b", `\`}} {
		if err := k.Validate(); err != nil {
			t.Errorf("%.20q: %v", k, err)
		}
	}
	for _, c := range []struct {
		key  ObjectKey
		want string
	}{
		{ObjectKey{"", "b"}, "namespace: empty"},
		{ObjectKey{"a", ""}, "name: empty"},
		{ObjectKey{long + "x", "b"}, "longer than 1024 bytes"},
		{ObjectKey{"a", long + "x"}, "longer than 1024 bytes"},
		{ObjectKey{"a", strings.Repeat("x", 4096)}, "(4096 bytes) is longer"},
		{ObjectKey{"a", "b\x00"}, "control character U+0000 at byte 1"},
		{ObjectKey{"a\n", "b"}, "control character U+000A at byte 1"},
		{ObjectKey{"a", "b\u0085"}, "control character U+0085"},
		{ObjectKey{"a", "\xff"}, "not valid UTF-8"},
		{ObjectKey{"a", ".."}, `path element ".."`},
		{ObjectKey{"a", "b/../c"}, `path element ".."`},
		{ObjectKey{"a", "b/.."}, `path element ".."`},
		{ObjectKey{"..", "b"}, "namespace"},
		{ObjectKey{"a/b", "c"}, `namespace: "a/b" contains "/"`},
	} {
		if err := c.key.Validate(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%.20q: %v, want ... %s", c.key, err, c.want)
		}
	}
}

func TestNodeIDs(t *testing.T) {
	for _, id := range []NodeID{"shard/0", "shard/17", "client/x", "client/a/b"} {
		if err := id.Validate(); err != nil {
			t.Error(err)
		}
	}
	for _, id := range []NodeID{"", "shard", "shard/", "shard/-1", "shard/01", "shard/+1", "shard/x", "client/", "other/1", "client/\n", NodeID("client/" + strings.Repeat("x", 128))} {
		if err := id.Validate(); err == nil {
			t.Errorf("%.20q is taken", id)
		}
	}
}

func TestPlacements(t *testing.T) {
	good := object(key, 1, 10, 4)
	if err := good.Validate([]int{0, 1}); err != nil {
		t.Fatal(err)
	}
	shuffled := object(key, 1, 10, 4)
	st := shuffled.Placement.Stripes
	st[0], st[2] = st[2], st[0]
	if err := shuffled.Validate([]int{0, 1}); err != nil {
		t.Errorf("stripes in another order: %v", err)
	}
	for _, c := range []struct {
		name string
		f    func(o *Object)
		want string
	}{
		{"one too few", func(o *Object) { o.Placement.Stripes = o.Placement.Stripes[:2] }, "make 3"},
		{"one too many", func(o *Object) { o.Placement.Stripes = append(o.Placement.Stripes, o.Placement.Stripes[0]) }, "make 3"},
		{"twice", func(o *Object) { o.Placement.Stripes[1] = o.Placement.Stripes[0] }, "stripe 0 is there twice"},
		{"index", func(o *Object) { o.Placement.Stripes[1].Index = 3 }, "has 3 stripes"},
		{"huge index", func(o *Object) { o.Placement.Stripes[1].Index = 1<<32 - 1 }, "has 3 stripes"},
		{"offset", func(o *Object) { o.Placement.Stripes[1].Offset++ }, "stripe 1 begins at 4"},
		{"length", func(o *Object) { o.Placement.Stripes[2].Length = 4 }, "stripe 2 has 2 bytes"},
		{"shard", func(o *Object) { o.Placement.Stripes[0].Shard = 2 }, "no shard 2"},
		{"negative shard", func(o *Object) { o.Placement.Stripes[0].Shard = -1 }, "no shard -1"},
		{"dir", func(o *Object) { o.Placement.Stripes[0].Dir = -1 }, "negative"},
		{"absolute", func(o *Object) { o.Placement.Stripes[0].File = "/etc/passwd" }, "not relative"},
		{"up", func(o *Object) { o.Placement.Stripes[0].File = "a/../../b" }, `path element ".."`},
		{"dot", func(o *Object) { o.Placement.Stripes[0].File = "./b" }, `path element "."`},
		{"trailing", func(o *Object) { o.Placement.Stripes[0].File = "b/" }, `path element ""`},
		{"backslash", func(o *Object) { o.Placement.Stripes[0].File = `a\b` }, "not relative"},
		{"no file", func(o *Object) { o.Placement.Stripes[0].File = "" }, "file: empty"},
		{"zero byte", func(o *Object) { o.Placement.Stripes[0].File = "a\x00b" }, "control character"},
		{"long file", func(o *Object) { o.Placement.Stripes[0].File = strings.Repeat("x", MaxFileBytes+1) }, "longer"},
		{"one file for two", func(o *Object) {
			s := o.Placement.Stripes
			s[2].Shard, s[2].Dir, s[2].File = s[0].Shard, s[0].Dir, s[0].File
		}, "holds stripe 0 already"},
		{"hash", func(o *Object) { o.XXH3 = "ABCDEF0123456789" }, "hex"},
		{"stripe hash", func(o *Object) { o.Placement.Stripes[0].XXH3 = "12" }, "hex"},
		{"no stripe size", func(o *Object) { o.StripeBytes = 0 }, "stripe_bytes"},
		{"generation 0", func(o *Object) { o.Generation = 0 }, "generation"},
		{"generation max", func(o *Object) { o.Generation = AnyOlder }, "generation"},
		{"too many", func(o *Object) { o.Size, o.StripeBytes, o.Placement.Stripes = 1<<40, 1, nil }, "use larger stripes"},
		{"overflow", func(o *Object) { o.Size, o.StripeBytes = 1<<63+5, 1<<63 }, "can hold"},
		{"key", func(o *Object) { o.Key.Name = "" }, "name: empty"},
	} {
		o := object(key, 1, 10, 4)
		c.f(&o)
		if err := o.Validate([]int{0, 1}); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want ... %s", c.name, err, c.want)
		}
	}
	if o := object(key, 1, 0, 4); o.Validate([]int{0}) != nil || o.Stripes() != 0 {
		t.Error("an empty object is refused")
	}
	full := object(key, 1, MaxStripes, 1)
	if err := full.Validate([]int{0, 1}); err != nil || full.Stripes() != MaxStripes {
		t.Errorf("%d stripes: %v", MaxStripes, err)
	}
}

func TestNodeInfoChecked(t *testing.T) {
	for name, f := range map[string]func(*NodeInfo){
		"role":     func(n *NodeInfo) { n.Role = RoleShard },
		"no role":  func(n *NodeInfo) { n.Role = 0 },
		"pid":      func(n *NodeInfo) { n.PID = -1 },
		"lease":    func(n *NodeInfo) { n.Lease = time.Millisecond },
		"eternity": func(n *NodeInfo) { n.Lease = 24 * time.Hour },
		"host":     func(n *NodeInfo) { n.Host = "a\nb" },
		"rails":    func(n *NodeInfo) { n.Rails = make([]RailInfo, MaxRails+1) },
		"rail":     func(n *NodeInfo) { n.Rails[0].Reason = strings.Repeat("x", MaxReasonBytes+1) },
		"mtu":      func(n *NodeInfo) { n.Rails[0].MTU = -1 },
	} {
		n := info("client/a")
		if f(&n); n.validate() == nil {
			t.Errorf("%s: %+v is taken", name, n)
		}
	}
}

func TestOffersChecked(t *testing.T) {
	for name, f := range map[string]func(*Offer){
		"generation": func(o *Offer) { o.Generation = 0 },
		"self":       func(o *Offer) { o.To = o.From },
		"lanes":      func(o *Offer) { o.Lanes = make([]LaneMeta, MaxLanes+1) },
		"params": func(o *Offer) {
			o.Params = map[string]string{}
			for i := range MaxParams + 1 {
				o.Params[strings.Repeat("p", i+1)] = ""
			}
		},
		"param":      func(o *Offer) { o.Params = map[string]string{"a": strings.Repeat("x", maxParamBytes+1)} },
		"param name": func(o *Offer) { o.Params = map[string]string{"": "x"} },
		"qpn":        func(o *Offer) { o.Lanes[0].Endpoint.QPN = 1 << 24 },
		"psn":        func(o *Offer) { o.Lanes[0].Endpoint.PSN = 1 << 24 },
		"mtu":        func(o *Offer) { o.Lanes[0].Endpoint.MTU = -1 },
		"index":      func(o *Offer) { o.Lanes[0].Index = -1 },
		"slots":      func(o *Offer) { o.Lanes[0].Slots.Addr = 1<<64 - 1 },
		"rail":       func(o *Offer) { o.Lanes[0].Rail = "\xff" },
	} {
		o := offer("shard/0", 1, 1)
		o.From = "client/a"
		if err := o.validate(); err != nil {
			t.Fatal(err)
		}
		if f(&o); o.validate() == nil {
			t.Errorf("%s is taken", name)
		}
	}
}

func FuzzTexts(f *testing.F) {
	for _, s := range []string{"", "a", "..", "a/../b", "\x00", "\xff\xfe", strings.Repeat("ä", 600), "shard/1", "client/x", "a/b"} {
		f.Add(s, 5)
	}
	f.Fuzz(func(t *testing.T, s string, n int) {
		n = min(max(n, 0), 2000)
		if c := clip(s, n); len(c) > n || !utf8.ValidString(c) || checkText("x", c, 0, n) != nil {
			t.Fatalf("clip(%q, %d) = %q", s, n, c)
		}
		if checkFile("file", s) == nil && (strings.HasPrefix(s, "/") || strings.Contains("/"+s+"/", "/../")) {
			t.Fatalf("file %q is taken", s)
		}
		if (ObjectKey{"a", s}).Validate() == nil && (strings.ContainsRune(s, 0) || !utf8.ValidString(s) || len(s) > MaxKeyBytes) {
			t.Fatalf("name %q is taken", s)
		}
		if NodeID(s).Validate() == nil && !strings.HasPrefix(s, "shard/") && !strings.HasPrefix(s, "client/") {
			t.Fatalf("id %q is taken", s)
		}
		_ = plain(s)
	})
}
