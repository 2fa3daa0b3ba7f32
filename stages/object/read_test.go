package object

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/railstore/railstore/pipeline"
)

func isFetch(o wireOp) bool { return o.op == "fetch" }

func (x *world) read() (*LeasedBuffer, *ReadReport, error) {
	return x.w.Read(context.Background(), testKey, ReadOptions{})
}

// wantReadFails reads and checks that nothing is left behind: no buffer, no memory
// in use, no write that could still land.
func (x *world) wantReadFails(want error) error {
	x.t.Helper()
	buf, rep, err := x.read()
	if !errors.Is(err, want) || buf != nil || rep != nil {
		x.t.Fatalf("%v, want %v", err, want)
	}
	var pe *pipeline.Error
	if !errors.As(err, &pe) || strings.Contains(err.Error(), "\n") {
		x.t.Errorf("not one line with a place: %v", err)
	}
	if x.net.fireLate() != 0 {
		x.t.Error("transfers were not fenced")
	}
	x.idle()
	return err
}

func TestReadReportJSON(t *testing.T) {
	x := newWorld(t, nil)
	data := randomBytes(1, 16*Align)
	x.mustPut(testKey, data)
	rep := x.reads(testKey, data)
	if rep.Verified != VerifiedStripes {
		t.Errorf("verified: %s", rep.Verified)
	}
	b, err := json.Marshal(rep)
	if err != nil {
		t.Fatal(err)
	}
	var m map[string]any
	if err := json.Unmarshal(b, &m); err != nil {
		t.Fatal(err)
	}
	for _, k := range []string{"namespace", "object", "generation", "bytes", "xxh3", "verified", "seconds", "bytes_per_second", "output", "rails"} {
		if _, ok := m[k]; !ok {
			t.Errorf("no key %q in %s", k, b)
		}
	}
	r := m["rails"].([]any)[0].(map[string]any)
	for _, k := range []string{"name", "device", "provider", "planned_bytes", "bytes", "stripes", "bytes_per_second", "latency_avg_us", "latency_max_us",
		"errors", "timeouts", "inflight_requests", "inflight_bytes", "registered_bytes", "connections_created", "connections_quiesced", "retransmits"} {
		if _, ok := r[k]; !ok {
			t.Errorf("no key %q in the rails of %s", k, b)
		}
	}
	if rep.Rails[0].Bytes != 8*Align || rep.Rails[1].Bytes != 8*Align || rep.Rails[0].Stripes != 8 || rep.Rails[0].LatencyAvgUS <= 0 ||
		rep.Rails[0].LatencyMaxUS < rep.Rails[0].LatencyAvgUS || rep.Rails[0].BytesPerSecond <= 0 || rep.Rails[0].ConnectionsCreated != 2 {
		t.Errorf("%+v", rep.Rails)
	}
	if x.net.moved["a"] != 8*Align || x.net.moved["b"] != 8*Align {
		t.Errorf("moved %v", x.net.moved)
	}
}

func TestReadOverChosenRails(t *testing.T) {
	x := newWorld(t, func(c *Config) { c.Rails[0].Weight = 2 })
	data := randomBytes(1, 9*Align)
	x.mustPut(testKey, data)
	for _, c := range []struct {
		rails []string
		want  []uint64
	}{{nil, []uint64{6 * Align, 3 * Align}}, {[]string{"a"}, []uint64{9 * Align}}, {[]string{"b"}, []uint64{9 * Align}}} {
		buf, rep, err := x.w.Read(context.Background(), testKey, ReadOptions{Rails: c.rails})
		if err != nil || !bytes.Equal(buf.Bytes(), data) {
			t.Fatal(c.rails, err)
		}
		var got []uint64
		for _, r := range rep.Rails {
			got = append(got, r.Bytes)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("rails %v: %v, want %v", c.rails, got, c.want)
		}
		p, err := x.w.Explain(context.Background(), testKey, c.rails)
		if err != nil || p.Rails[0].PlannedBytes != c.want[0] {
			t.Errorf("explained %+v, %v", p, err)
		}
		buf.Release()
		buf.Release()
	}
	if _, _, err := x.w.Read(context.Background(), testKey, ReadOptions{Rails: []string{"a", "z"}}); !errors.Is(err, ErrBadRequest) || !strings.Contains(err.Error(), `"z"`) {
		t.Errorf("%v", err)
	}
	x.idle()
}

func TestReadInto(t *testing.T) {
	x := newWorld(t, nil)
	data := randomBytes(1, 3*Align+9)
	x.mustPut(testKey, data)
	dst := make([]byte, len(data)+1)
	n, _, err := x.w.ReadInto(context.Background(), testKey, dst, ReadOptions{})
	if err != nil || n != len(data) || !bytes.Equal(dst[:n], data) {
		t.Fatal(n, err)
	}
	if _, _, err := x.w.ReadInto(context.Background(), testKey, dst[:n-1], ReadOptions{}); !errors.Is(err, ErrTooSmall) {
		t.Errorf("%v", err)
	}
	before := bytes.Clone(dst)
	x.script(func(o wireOp) *fault { return &fault{err: errWire} })
	if _, _, err := x.w.ReadInto(context.Background(), testKey, dst, ReadOptions{}); err == nil || !bytes.Equal(dst, before) {
		t.Errorf("a failed read touched the caller's buffer: %v", err)
	}
	x.idle()
}

// TestReadCancelledAtTheEnd: a cancel wins as long as nothing was handed over, also
// when everything has arrived and the last question is answered.
func TestReadCancelledAtTheEnd(t *testing.T) {
	x := newWorld(t, nil)
	data := randomBytes(1, 3*Align+9)
	x.mustPut(testKey, data)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	lookups := 0
	x.catalog.after = func(c string) error {
		if c == "lookup" {
			if lookups++; lookups == 2 {
				cancel()
			}
		}
		return nil
	}
	dst := make([]byte, len(data))
	if _, _, err := x.w.ReadInto(ctx, testKey, dst, ReadOptions{}); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	if lookups != 2 || !bytes.Equal(dst, make([]byte, len(data))) {
		t.Errorf("%d lookups, the buffer is touched: %v", lookups, !bytes.Equal(dst, make([]byte, len(data))))
	}
	x.idle()
}

func TestReadStale(t *testing.T) {
	first, second := randomBytes(1, 5*Align), randomBytes(2, 3*Align)
	// Replaced during the read: the stripes of the old generation are gone.
	x := newWorld(t, nil)
	x.mustPut(testKey, first)
	var once sync.Once
	x.script(func(o wireOp) *fault {
		if isFetch(o) {
			return &fault{doFirst: func() { once.Do(func() { x.script(nil); x.mustPut(testKey, second) }) }}
		}
		return nil
	})
	// The script runs under the lock of the fake; doFirst does not.
	rep := x.reads(testKey, second)
	if rep.Attempts != 2 || rep.Generation != 2 || !rep.Degraded {
		t.Errorf("%+v", rep)
	}
	// Replaced after the last stripe came: the check at the end finds it.
	x = newWorld(t, nil)
	x.mustPut(testKey, first)
	lookups := 0
	x.catalog.before = func(c string) error {
		if c != "lookup" {
			return nil
		}
		if lookups++; lookups == 2 {
			x.mustPut(testKey, second)
		}
		return nil
	}
	if rep := x.reads(testKey, second); rep.Attempts != 2 {
		t.Errorf("%+v", rep)
	}
	// It changes every time: bounded.
	x = newWorld(t, nil)
	x.mustPut(testKey, first)
	gen := uint64(2)
	x.catalog.before = func(c string) error {
		if c == "lookup" {
			gen++
			x.mustPut(testKey, randomBytes(gen, 2*Align))
		}
		return nil
	}
	err := x.wantReadFails(ErrStale)
	if !strings.Contains(err.Error(), "changed 2 times") {
		t.Errorf("%v", err)
	}
	// Removed meanwhile.
	x = newWorld(t, nil)
	x.mustPut(testKey, first)
	lookups = 0
	x.catalog.before = func(c string) error {
		if c != "lookup" {
			return nil
		}
		if lookups++; lookups == 2 {
			if _, err := x.w.Remove(context.Background(), testKey); err != nil {
				t.Error(err)
			}
		}
		return nil
	}
	x.wantReadFails(ErrNotFound)
	// Without the check a complete old generation is as good as any.
	x = newWorld(t, func(c *Config) { c.Limits.Recheck = false })
	x.mustPut(testKey, first)
	if x.reads(testKey, first); !slices.Equal(x.catalog.calls, []string{"begin", "commit", "garbage", "lookup"}) {
		t.Errorf("%v", x.catalog.calls)
	}
}

func TestReadBadPlacementBeforeAnyIO(t *testing.T) {
	x := newWorld(t, nil)
	x.mustPut(testKey, randomBytes(1, 4*Align))
	x.cfg.Nodes = x.cfg.Nodes[:1]
	x.w, _ = NewWorker(x.cfg)
	err := x.wantReadFails(ErrUnknownShard)
	var pe *pipeline.Error
	if errors.As(err, &pe); pe.Layer != pipeline.LayerPlacement {
		t.Errorf("%+v", pe)
	}
	if x.net.counts["fetch"] != 0 || x.slab.Stats().HighWater > 4*Align {
		t.Error("I/O before the placement was checked")
	}
}

func TestReadWrongWhole(t *testing.T) {
	x := newWorld(t, nil)
	x.w.cfg.Limits.VerifyWhole = true
	k := testKey
	data := randomBytes(1, 2*Align)
	x.mustPut(k, data)
	o, _, err := x.catalog.c.Lookup(k)
	if err != nil {
		t.Fatal(err)
	}
	o.XXH3 = Sum([]byte("something else"))
	o.Placement.LayoutHash = LayoutHash(&o)
	x.w.cfg.Catalog = fixedCatalog{x.catalog, o}
	err = x.wantReadFails(ErrChecksum)
	if !strings.Contains(err.Error(), "every stripe is right") {
		t.Errorf("%v", err)
	}
	// The stripes stand for the whole otherwise, and the report tells.
	x.w.cfg.Limits.VerifyWhole = false
	if rep := x.reads(k, data); rep.Verified != VerifiedStripes {
		t.Errorf("verified: %s", rep.Verified)
	}
}

// fixedCatalog says the same of every object.
type fixedCatalog struct {
	*memCatalog
	o Object
}

func (f fixedCatalog) Lookup(context.Context, Key) (Object, bool, error) { return f.o, true, nil }

func TestReadCapsHold(t *testing.T) {
	x := newWorld(t, func(c *Config) {
		c.Limits.MaxConnsPerRail, c.Limits.MaxConns, c.Limits.TaskMaxStripes, c.Limits.TaskDepth = 2, 3, 1, 1
		c.Limits.MaxInflightPerRail, c.Limits.MaxInflight = 2*Align, 3*Align
	})
	data := randomBytes(1, 30*Align)
	x.mustPut(testKey, data)
	x.net.maxConns, x.net.maxBytes = map[string]int{}, map[string]int64{}
	var wg sync.WaitGroup
	for range 2 { // two reads share the caps
		wg.Go(func() {
			buf, _, err := x.read()
			if err != nil {
				t.Error(err)
				return
			}
			if !bytes.Equal(buf.Bytes(), data) {
				t.Error("wrong bytes")
			}
			buf.Release()
		})
	}
	wg.Wait()
	for r, most := range map[string]int{"a": 2, "b": 2, "": 3} {
		if x.net.maxConns[r] > most || x.net.maxBytes[r] > int64(most)*Align {
			t.Errorf("rail %q: %d transfers and %d bytes at once", r, x.net.maxConns[r], x.net.maxBytes[r])
		}
	}
	x.idle()
}

func TestReadProgress(t *testing.T) {
	x := newWorld(t, nil)
	data := randomBytes(1, 7*Align+3)
	x.mustPut(testKey, data)
	var sum atomic.Uint64
	buf, _, err := x.w.Read(context.Background(), testKey, ReadOptions{Progress: func(n uint64) { sum.Add(n) }})
	if err != nil || sum.Load() != uint64(len(data)) {
		t.Fatal(sum.Load(), err)
	}
	buf.Release()
}

func TestInOrderHash(t *testing.T) {
	buf := randomBytes(testSeed(t), 100*64-7)
	x := newInOrder(buf, 64, 100)
	var wg sync.WaitGroup
	perm := rand.Perm(100)
	for g := range 4 {
		wg.Go(func() {
			for i := g; i < 100; i += 4 {
				x.add(uint32(perm[i]))
			}
		})
	}
	wg.Wait()
	n, b, sum := x.result()
	if n != 100 || b != uint64(len(buf)) || Hex(sum) != Sum(buf) || !x.done() {
		t.Fatalf("%d pieces, %d bytes", n, b)
	}
	y := newInOrder(buf, 64, 100)
	for i := range 100 {
		if i != 50 {
			y.add(uint32(i))
		}
	}
	if n, b, _ := y.result(); n != 50 || b != 50*64 || y.done() {
		t.Fatalf("a hole was hashed over: %d pieces, %d bytes", n, b)
	}
}
