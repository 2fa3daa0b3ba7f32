package object

import (
	"context"
	"encoding/hex"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/railstore/railstore/ctrl"
	"github.com/railstore/railstore/cue/deploy"
	"github.com/railstore/railstore/verbs"
)

// What a release before this one put on the wire for a stripe request and its answer,
// as bytes: both ends of this release must still say and understand exactly that, or the
// version of the protocol must change.
const (
	recordedRequest = "0201020004000000090000000000000001000000000000000020000000000000887766554433221103000000080005000000edfe000000000010000000000000" +
		"4d0000004e0000000000efbe0000000000100000000000006374786f626a2d686162632e34"
	recordedResponse = "020100000000000000200000000000008877665544332211"
)

func TestRecordedMessages(t *testing.T) {
	q := stripeRequest{StripeRef: StripeRef{Identity: Identity{Handle: "ctxobj-h", Generation: 9, LayoutVersion: 1, Index: 4}, Dir: 2, File: "abc.4", Length: 8192, XXH3: 0x1122334455667788},
		shard: 3, verify: true, memory: [maxParts]verbs.RemoteRegion{{Addr: 0xfeed0000, Length: 4096, RKey: 77}, {Addr: 0xbeef0000, Length: 4096, RKey: 78}}}
	b := make([]byte, MaxRequestBytes)
	n, err := q.encode(b)
	if got := hex.EncodeToString(b[:n]); err != nil || got != recordedRequest {
		t.Errorf("a shard of the older release would not understand %s, %v", got, err)
	}
	old, err := hex.DecodeString(recordedRequest)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := decodeRequest(old); err != nil || got != q {
		t.Errorf("the request of an older client is %+v, %v", got, err)
	}
	r := stripeResponse{existed: true, length: 8192, xxh3: 0x1122334455667788}
	n = r.encode(b)
	if got := hex.EncodeToString(b[:n]); got != recordedResponse {
		t.Errorf("an older client would not understand %s", got)
	}
	if old, err = hex.DecodeString(recordedResponse); err != nil {
		t.Fatal(err)
	}
	if got, err := decodeResponse(old); err != nil || got != r {
		t.Errorf("the answer of an older shard is %+v, %v", got, err)
	}
}

// adCatalog is a control plane that advertises rails, or, without shards, an older one
// that does not.
type adCatalog struct {
	Catalog
	shards []ctrl.ShardRails
}

func (c *adCatalog) Lookup(ctx context.Context, k Key) (Object, bool, error) {
	o, found, err := c.Catalog.Lookup(ctx, k)
	o.Placement.Shards = c.shards
	return o, found, err
}

// TestDiscovery: local rails are matched with those of the owners of stripes by the
// fabric; what is advertised can spare a read a dead path, and never costs it the last.
func TestDiscovery(t *testing.T) {
	ads := &adCatalog{}
	x := newWorld(t, func(c *Config) {
		c.Rails[0].Fabric, c.Rails[1].Fabric = "fa", "fb"
		ads.Catalog, c.Catalog = c.Catalog, ads
	})
	data := randomBytes(1, 8*Align)
	x.mustPut(testKey, data)
	on := func(shard int, fabrics ...string) ctrl.ShardRails {
		s := ctrl.ShardRails{Shard: shard}
		for _, f := range fabrics {
			s.Rails = append(s.Rails, ctrl.ShardRail{Name: "peer-" + f, Fabric: f})
		}
		return s
	}
	for _, c := range []struct {
		name     string
		shards   []ctrl.ShardRails
		a, b     uint64 // stripes over the rails
		excluded string
	}{
		{"none advertised, as by an older server", nil, 4, 4, ""},
		{"both owners on both fabrics", []ctrl.ShardRails{on(0, "fa", "fb"), on(1, "fa", "fb")}, 4, 4, ""},
		{"one owner is told of", []ctrl.ShardRails{on(0, "fa", "fb")}, 4, 4, ""},
		{"one owner on one fabric", []ctrl.ShardRails{on(0, "fa", "fb"), on(1, "fb", "other")}, 4, 4, "shard 1 over rail a: shard 1 has no active rail on fabric fa"},
		{"both on one fabric", []ctrl.ShardRails{on(0, "fb"), on(1, "fb")}, 0, 8, "has no active rail on fabric fa"},
		{"no local fabric at all: it may be out of date", []ctrl.ShardRails{on(0, "zz"), on(1)}, 4, 4, ""},
	} {
		ads.shards = c.shards
		rep := x.reads(testKey, data)
		got := map[string]uint64{}
		for _, r := range rep.Rails {
			got[r.Name] = r.Stripes
		}
		if got["a"] != c.a || got["b"] != c.b || (c.excluded == "") != (len(rep.Excluded) == 0) || c.excluded != "" && !strings.Contains(strings.Join(rep.Excluded, "; "), c.excluded) {
			t.Errorf("%s: %v, excluded %q", c.name, got, rep.Excluded)
		}
		accounted(t, rep)
	}
	before := x.net.counts["fetch"]
	for name, shards := range map[string][]ctrl.ShardRails{
		"has no stripe":               {on(0, "fa"), on(5, "fa")},
		"shard 0 twice":               {on(0, "fa"), on(0, "fb")},
		"rail peer-fa of shard 1 twi": {on(1, "fa", "fa")},
		"neither may be empty":        {{Shard: 0, Rails: []ctrl.ShardRail{{Name: "x"}}}},
	} {
		ads.shards = shards
		if _, _, err := x.read(); !errors.Is(err, ErrDescriptor) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if x.net.counts["fetch"] != before {
		t.Error("a placement that does not add up was begun with")
	}
}

// TestSessionDiscovery: a real control plane advertises the rails of the owners, and a
// session reads with them, and with a control plane that does not tell.
func TestSessionDiscovery(t *testing.T) {
	defer goleak.VerifyNone(t)
	x := newSite(t, nil)
	defer x.close()
	s := x.open(nil)
	defer x.shut(s)
	data := randomBytes(1, 16*Align)
	putBytes(t, s.Worker, testKey, data)
	o, err := s.Lookup(context.Background(), testKey)
	if err != nil {
		t.Fatal(err)
	}
	if len(o.Placement.Shards) != 2 {
		t.Fatalf("%+v", o.Placement.Shards)
	}
	for i, sh := range o.Placement.Shards {
		if sh.Shard != i || len(sh.Rails) != 2 || sh.Rails[0].Fabric != "fa" || sh.Rails[1].Fabric != "fb" || sh.Rails[0].GID == "" {
			t.Errorf("%+v", sh)
		}
	}
	if many, err := s.control.LookupMany(context.Background(), []Key{testKey, testKey}); err != nil || len(many) != 2 || !reflect.DeepEqual(many[1], o) {
		t.Errorf("%v, %+v", err, many)
	}
	with := readBytes(t, s.Worker, testKey, data)
	cfg := s.cfg
	cfg.Catalog = &adCatalog{Catalog: cfg.Catalog} // drops what is advertised
	w, err := NewWorker(cfg)
	if err != nil {
		t.Fatal(err)
	}
	without := readBytes(t, w, testKey, data)
	for i := range with.Rails {
		if with.Rails[i].Bytes != without.Rails[i].Bytes {
			t.Errorf("rail %d: %d and %d bytes", i, with.Rails[i].Bytes, without.Rails[i].Bytes)
		}
	}
}

// TestSessionLateShard: a shard that was not there when the session was opened is used
// when it has come.
func TestSessionLateShard(t *testing.T) {
	defer goleak.VerifyNone(t)
	x := newSite(t, func(d *deploy.Deployment) {
		d.Rebuild = deploy.Rebuild{Rejoin: true, Wait: deploy.Duration(5 * time.Second), Cooldown: deploy.Duration(time.Millisecond)}
	})
	defer x.close()
	whole := x.open(nil)
	data := randomBytes(1, 16*Align)
	putBytes(t, whole.Worker, testKey, data)
	x.shut(whole)
	if err := x.shards[1].scope.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	s := x.open(nil)
	defer x.shut(s)
	if _, _, err := s.Read(context.Background(), testKey, ReadOptions{}); !errors.Is(err, ErrNoRails) || !strings.Contains(err.Error(), "shard 1 is not reached: stopped") {
		t.Errorf("%v", err)
	}
	x.shards[1] = x.serve(1)
	waitFor(t, func() bool { return s.client.Absent(1) == "" && len(s.client.Reach(1)) == 2 })
	rep := readBytes(t, s.Worker, testKey, data)
	if rep.Degraded || !slices.ContainsFunc(rep.Rails, func(r RailSnapshot) bool { return r.Name == "b" && r.Bytes > 0 }) {
		t.Errorf("%+v", rep)
	}
}
