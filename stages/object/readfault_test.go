package object

import (
	"bytes"
	"context"
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
			x.cfg.Limits.OnRailFailure = Failover
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
			for _, p := range x.w.health.Status() {
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
	waitFor(t, func() bool { rs, ex, _ := x.w.usable(nil, nil, nil); return len(rs) == 2 && len(ex) == 0 })
	// Canaries first, then more and more: see TestHealthRamp for the steps.
	first := x.reads(testKey, data)
	if first.Degraded || !first.Exact || first.Rails[1].Bytes == 0 || first.Rails[1].Bytes >= 4*Align {
		t.Errorf("%+v", first)
	}
	waitFor(t, func() bool { return x.reads(testKey, data).Rails[1].Bytes == 4*Align && len(x.w.health.Status()) == 0 })
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
	if !errors.Is(err, errWire) || !strings.Contains(err.Error(), "rail a: ") || !strings.Contains(err.Error(), "rail b: ") ||
		!strings.HasPrefix(err.Error(), "read: shard 1: ") || strings.Contains(err.Error(), "shard 1 rail") {
		t.Errorf("%v", err)
	}
	// Objects on the other shard alone can still be read: no rail is blamed whole.
	for i := range 50 {
		k := Key{Namespace: "kv", Name: fmt.Sprint("small", i)}
		if st, _ := Place(k, NewHandle(k, 1, 1, 9, Align, 0), 9, Align, x.cfg.Nodes); st[0].Shard == 0 {
			x.mustPut(k, []byte("something"))
			if rep := x.reads(k, []byte("something")); rep.Degraded || len(rep.Excluded) != 0 {
				t.Errorf("a shard that it does not need degrades a read: %+v", rep)
			}
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
	if len(x.w.health.Status()) != 0 {
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
	if rep.Rereads != 1 || rep.ReroutedBytes != 0 || !rep.Exact || !rep.Degraded || seen != 3 {
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
		if len(x.w.health.Status()) != 0 {
			t.Errorf("%v took a rail down", e)
		}
	}
	x := newWorld(t, nil)
	x.mustPut(testKey, randomBytes(1, 4*Align))
	x.script(func(o wireOp) *fault { return &fault{lieLen: true} })
	x.wantReadFails(ErrWrongLength)
}

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
		if len(x.w.health.Status()) != 0 {
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
