package object

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

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
	b, err := json.Marshal(rep)
	if err != nil {
		t.Fatal(err)
	}
	var m map[string]any
	if err := json.Unmarshal(b, &m); err != nil {
		t.Fatal(err)
	}
	for _, k := range []string{"namespace", "object", "generation", "bytes", "xxh3", "seconds", "bytes_per_second", "output", "rails"} {
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

// TestReadLosesRail: with fail the read ends and nothing is handed over, with
// reroute the other rail takes over what is missing.
func TestReadLosesRail(t *testing.T) {
	defer goleak.VerifyNone(t)
	for _, late := range []bool{false, true} {
		for n := range 8 {
			x := newWorld(t, func(c *Config) { c.Limits.OnRailFailure = FailRead })
			data := randomBytes(1, 16*Align)
			x.mustPut(testKey, data)
			down := func(o wireOp) *fault {
				if isFetch(o) && o.at.Rail == "b" && o.n >= n {
					return &fault{err: errWire, late: late}
				}
				return nil
			}
			x.script(down)
			err := x.wantReadFails(errWire)
			var pe *pipeline.Error
			if errors.As(err, &pe); pe.Where.Rail != "b" {
				t.Errorf("blamed %v: %v", pe.Where, err)
			}
			x.net.counts["fetch"] = 0
			x.cfg.Limits.OnRailFailure = Reroute
			var errw error
			if x.w, errw = NewWorker(x.cfg); errw != nil {
				t.Fatal(errw)
			}
			rep := x.reads(testKey, data)
			if !rep.Degraded || rep.ReroutedBytes == 0 || rep.Rails[0].Bytes+rep.Rails[1].Bytes != 16*Align || rep.Rails[1].Errors == 0 {
				t.Errorf("%+v", rep)
			}
			if x.net.fireLate() != 0 {
				t.Error("transfers were not fenced")
			}
			// The rail cools down: the next read does not touch it, and says so.
			x.script(func(o wireOp) *fault {
				if isFetch(o) && o.at.Rail == "b" {
					t.Error("asked a rail that cools down")
				}
				return nil
			})
			paths := 0
			for p := range x.w.down {
				if p.Rail != "b" {
					t.Errorf("path %v cools down", p)
				}
				paths++
			}
			if paths == 2 {
				if rep = x.reads(testKey, data); !rep.Degraded || len(rep.Excluded) != 2 || rep.ReroutedBytes != 0 {
					t.Errorf("%+v", rep)
				}
			}
			x.idle()
		}
	}
}

func TestReadRailReturnsAfterCooldown(t *testing.T) {
	x := newWorld(t, func(c *Config) { c.Limits.Cooldown = time.Millisecond })
	data := randomBytes(1, 8*Align)
	x.mustPut(testKey, data)
	x.script(func(o wireOp) *fault {
		if o.at.Rail == "b" {
			return &fault{err: errWire}
		}
		return nil
	})
	x.reads(testKey, data)
	x.script(nil)
	waitFor(t, func() bool { rs, ex, _ := x.w.usable(nil); return len(rs) == 2 && len(ex) == 0 })
	if rep := x.reads(testKey, data); rep.Degraded || rep.Rails[1].Bytes != 4*Align {
		t.Errorf("%+v", rep)
	}
	if len(x.w.down) != 0 {
		t.Errorf("%v", x.w.down)
	}
}

func TestReadDeadShard(t *testing.T) {
	x := newWorld(t, nil)
	x.mustPut(testKey, randomBytes(1, 8*Align))
	x.script(func(o wireOp) *fault {
		if o.at.Shard == 1 {
			return &fault{err: errWire, late: true}
		}
		return nil
	})
	err := x.wantReadFails(ErrNoRails)
	if !errors.Is(err, errWire) || !strings.Contains(err.Error(), "shard 1 rail a") || !strings.Contains(err.Error(), "shard 1 rail b") {
		t.Errorf("%v", err)
	}
	// Objects on the other shard alone can still be read: no rail is blamed whole.
	for i := range 50 {
		k := Key{Namespace: "kv", Name: fmt.Sprint("small", i)}
		if st, _ := Place(k, NewHandle(k, 1, 1, 9, Align, 0), 9, Align, x.cfg.Nodes); st[0].Shard == 0 {
			x.mustPut(k, []byte("something"))
			x.reads(k, []byte("something"))
			return
		}
	}
	t.Fatal("no object has its home on shard 0")
}

func TestReadMinRails(t *testing.T) {
	state := ""
	x := newWorld(t, func(c *Config) {
		c.Limits.MinRails = 2
		c.RailState = func(r string) string {
			if r == "b" {
				return state
			}
			return ""
		}
	})
	data := randomBytes(1, 4*Align)
	x.mustPut(testKey, data)
	x.mustPut(Key{Namespace: "kv", Name: "empty"}, nil)
	state = "down (port down)"
	err := x.wantReadFails(ErrNoRails)
	if !strings.Contains(err.Error(), "rail b is down (port down)") || x.net.counts["fetch"] != 0 {
		t.Errorf("%v, %d fetches", err, x.net.counts["fetch"])
	}
	x.reads(Key{Namespace: "kv", Name: "empty"}, nil) // needs no rail
	if s := x.w.Snapshot(); s[1].State != state || s[0].State != "active" {
		t.Errorf("%+v", s)
	}
	x.cfg.Limits.MinRails = 1
	x.w, _ = NewWorker(x.cfg)
	if rep := x.reads(testKey, data); !rep.Degraded || len(rep.Rails) != 1 {
		t.Errorf("%+v", rep)
	}
}

func TestReadWrongBytes(t *testing.T) {
	x := newWorld(t, nil)
	data := randomBytes(1, 8*Align)
	x.mustPut(testKey, data)
	// Damaged on the way, once: read again over the other rail.
	var again []wireOp
	x.script(func(o wireOp) *fault {
		if isFetch(o) && o.at.Rail == "b" && o.ref.Index == 3 {
			return &fault{flip: true}
		}
		if isFetch(o) && o.ref.Index == 3 {
			again = append(again, o)
		}
		return nil
	})
	rep := x.reads(testKey, data)
	planB := slices.Contains(mustExplain(x).Rails[1].Stripes, 3)
	if planB && (rep.Rereads != 1 || !rep.Degraded || len(again) != 1 || again[0].at.Rail != "a" || rep.Rails[1].Errors != 1) {
		t.Errorf("%+v, again %+v", rep, again)
	}
	if len(x.w.down) != 0 {
		t.Error("a wrong checksum took a rail down")
	}
	// Damaged on the way, always.
	x.script(func(o wireOp) *fault {
		if isFetch(o) && o.ref.Index == 3 {
			return &fault{flip: true}
		}
		return nil
	})
	err := x.wantReadFails(ErrChecksum)
	if errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), "stripe 3") || !strings.Contains(err.Error(), "read again over rail") {
		t.Errorf("%v", err)
	}
	// The same over one rail only.
	if _, _, err := x.w.Read(context.Background(), testKey, ReadOptions{Rails: []string{"a"}}); !errors.Is(err, ErrChecksum) {
		t.Errorf("%v", err)
	}
	x.script(nil)
	x.reads(testKey, data)
	// Damaged on the disk: the shard itself says so the second time.
	o, err := x.w.Lookup(context.Background(), testKey)
	if err != nil {
		t.Fatal(err)
	}
	s := o.Placement.Stripes[5]
	path := filepath.Join(x.dirs[s.Shard][s.Dir], s.File)
	flipByte(t, path, 100)
	err = x.wantReadFails(ErrCorrupt)
	var pe *pipeline.Error
	if errors.As(err, &pe); pe.Layer != pipeline.LayerIntegrity || pe.Where.Shard != s.Shard || pe.Hint == "" {
		t.Errorf("%+v", pe)
	}
	flipByte(t, path, 100)
	x.reads(testKey, data)
	// Cut short, and its trailer damaged.
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, bad := range [][]byte{whole[:1000], nil, whole[:len(whole)-1]} {
		if err := os.WriteFile(path, bad, 0o644); err != nil {
			t.Fatal(err)
		}
		x.wantReadFails(ErrCorrupt)
	}
	if err := os.WriteFile(path, whole, 0o644); err != nil {
		t.Fatal(err)
	}
	x.reads(testKey, data)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	x.wantReadFails(ErrLost)
}

func mustExplain(x *world) *Plan {
	x.t.Helper()
	p, err := x.w.Explain(context.Background(), testKey, nil)
	if err != nil {
		x.t.Fatal(err)
	}
	return p
}

func flipByte(t *testing.T, path string, at int) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	b[at] ^= 0x40
	if err := os.WriteFile(path, b, 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestReadRereadLosesRail(t *testing.T) {
	x := newWorld(t, nil)
	data := randomBytes(1, 8*Align)
	x.mustPut(testKey, data)
	// A stripe comes wrong over one rail; the other fails while it is read again;
	// the third time, over the first rail, it is right.
	var target atomic.Int64
	target.Store(-1)
	seen := 0
	x.script(func(o wireOp) *fault {
		if !isFetch(o) || o.at.Rail == "b" && target.Load() < 0 {
			return nil
		}
		if target.Load() < 0 {
			target.Store(int64(o.ref.Index))
		}
		if int64(o.ref.Index) != target.Load() {
			return nil
		}
		seen++
		switch seen {
		case 1:
			return &fault{flip: true}
		case 2:
			return &fault{err: errWire, late: true}
		}
		return nil
	})
	rep := x.reads(testKey, data)
	if rep.Rereads != 1 || rep.ReroutedBytes != Align || seen != 3 {
		t.Errorf("%+v, seen %d", rep, seen)
	}
	if x.net.fireLate() != 0 {
		t.Error("transfers were not fenced")
	}
	x.idle()
}

func TestReadServiceErrorsEndIt(t *testing.T) {
	for _, e := range []error{ErrIO, ErrTooSmall, ErrBadRequest, ErrBusy, ErrInternal, ErrWrongShard} {
		x := newWorld(t, nil)
		x.mustPut(testKey, randomBytes(1, 4*Align))
		x.script(func(o wireOp) *fault {
			if isFetch(o) && o.ref.Index == 1 {
				return &fault{err: e}
			}
			return nil
		})
		x.wantReadFails(e)
		if len(x.w.down) != 0 {
			t.Errorf("%v took a rail down", e)
		}
	}
	x := newWorld(t, nil)
	x.mustPut(testKey, randomBytes(1, 4*Align))
	x.script(func(o wireOp) *fault { return &fault{lieLen: true} })
	x.wantReadFails(ErrWrongLength)
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
	if x.reads(testKey, first); !slices.Equal(x.catalog.calls, []string{"begin", "commit", "lookup"}) {
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
}

// fixedCatalog says the same of every object.
type fixedCatalog struct {
	*memCatalog
	o Object
}

func (f fixedCatalog) Lookup(context.Context, Key) (Object, bool, error) { return f.o, true, nil }

func TestReadCancelled(t *testing.T) {
	defer goleak.VerifyNone(t)
	for n := range 6 {
		x := newWorld(t, nil)
		data := randomBytes(1, 12*Align)
		x.mustPut(testKey, data)
		cause := errors.New("interrupted")
		ctx, cancel := context.WithCancelCause(context.Background())
		x.script(func(o wireOp) *fault {
			if isFetch(o) && o.n >= n {
				return &fault{doFirst: func() { cancel(cause) }, hang: true, late: true}
			}
			return nil
		})
		buf, _, err := x.w.Read(ctx, testKey, ReadOptions{})
		if !errors.Is(err, cause) || buf != nil {
			t.Fatalf("%v", err)
		}
		if x.net.fireLate() != 0 {
			t.Error("transfers were not fenced")
		}
		if len(x.w.down) != 0 {
			t.Error("a cancel took a rail down")
		}
		x.idle()
		// The memory can be used again at once.
		x.script(nil)
		x.reads(testKey, data)
	}
}

func TestReadTimesOut(t *testing.T) {
	x := newWorld(t, func(c *Config) { c.Limits.IOTimeout = 20 * time.Millisecond })
	data := randomBytes(1, 4*Align)
	x.mustPut(testKey, data)
	x.script(func(o wireOp) *fault {
		if isFetch(o) && o.at.Rail == "a" {
			return &fault{hang: true, late: true}
		}
		return nil
	})
	rep := x.reads(testKey, data)
	if rep.Rails[0].Timeouts == 0 || rep.Rails[0].Timeouts > rep.Rails[0].Errors || rep.Rails[1].Bytes != 4*Align {
		t.Errorf("%+v", rep)
	}
	if x.net.fireLate() != 0 || x.net.quiesced[Path{"a", 0}]+x.net.quiesced[Path{"a", 1}] == 0 {
		t.Error("transfers were not fenced")
	}
	x.idle()
}

// TestReadMemoryThatStaysDirty: when a path cannot be silenced, its memory is never
// used again and the read fails.
func TestReadMemoryThatStaysDirty(t *testing.T) {
	x := newWorld(t, nil)
	data := randomBytes(1, 4*Align)
	x.mustPut(testKey, data)
	x.net.noQuiet = errors.New("the QP does not go")
	x.script(func(o wireOp) *fault {
		if isFetch(o) && o.at.Rail == "a" {
			return &fault{err: errWire, late: true}
		}
		return nil
	})
	if _, _, err := x.read(); !errors.Is(err, ErrNotQuiet) || !strings.Contains(err.Error(), "does not go") {
		t.Fatalf("%v", err)
	}
	if st := x.slab.Stats(); st.Condemned != 4*Align || st.Used != 4*Align {
		t.Errorf("%+v", st)
	}
	x.script(nil)
	x.net.noQuiet = nil
	w, err := NewWorker(x.cfg)
	if err != nil {
		t.Fatal(err)
	}
	buf, _, err := w.Read(context.Background(), testKey, ReadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer buf.Release()
	if x.net.fireLate() == 0 {
		t.Fatal("no write was late; the test shows nothing")
	}
	if !bytes.Equal(buf.Bytes(), data) {
		t.Error("a late write hit memory that is in use")
	}
}

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

// TestReadUnderRandomFaults reads and puts while the wire fails at random. What a
// read hands over is always one of the contents that were put, whole.
func TestReadUnderRandomFaults(t *testing.T) {
	defer goleak.VerifyNone(t)
	seed := testSeed(t)
	r := rand.New(rand.NewPCG(seed, 0))
	for round := range 60 {
		x := newWorld(t, func(c *Config) {
			c.Limits.TaskMaxStripes = r.IntN(3)
			c.Limits.TaskDepth = 1 + r.IntN(3)
			c.Limits.Cooldown = 0
			c.Limits.IOTimeout = 300 * time.Millisecond
			if r.IntN(3) == 0 {
				c.Limits.OnRailFailure = FailRead
			}
		})
		data := randomBytes(seed+uint64(round), 1+r.IntN(20*Align))
		x.mustPut(testKey, data)
		rate := r.IntN(30)
		var mu sync.Mutex
		x.script(func(o wireOp) *fault {
			mu.Lock()
			defer mu.Unlock()
			if r.IntN(100) >= rate {
				return nil
			}
			switch r.IntN(8) {
			case 0, 1, 2:
				return &fault{err: errWire, late: true}
			case 3:
				return &fault{err: errWire}
			case 4, 5:
				return &fault{flip: true}
			case 6:
				return &fault{err: ErrBusy}
			}
			return &fault{err: ErrStripeNotFound}
		})
		for range 4 {
			buf, _, err := x.read()
			if n := x.net.fireLate(); n != 0 {
				t.Fatalf("round %d: %d transfers were not fenced", round, n)
			}
			if err != nil {
				continue
			}
			if !bytes.Equal(buf.Bytes(), data) {
				t.Fatalf("round %d: wrong bytes handed over", round)
			}
			buf.Release()
		}
		next := randomBytes(seed^uint64(round), 1+r.IntN(8*Align))
		_, err := x.put(testKey, next, PutOptions{})
		x.script(nil)
		if err == nil {
			data = next
		}
		x.reads(testKey, data)
		x.idle()
	}
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
