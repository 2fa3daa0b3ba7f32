package object

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/railstore/railstore/ctrl"
	"github.com/railstore/railstore/pipeline"
)

func TestPutThenRead(t *testing.T) {
	defer goleak.VerifyNone(t)
	x := newWorld(t, nil)
	for _, n := range []int{0, 1, Align - 1, Align, Align + 1, 2*Align - 1, 2 * Align, 16 * Align, 37*Align + 5} {
		k := Key{Namespace: "kv", Name: fmt.Sprint("size", n)}
		data := randomBytes(uint64(n), n)
		rep, err := x.put(k, data, PutOptions{})
		if err != nil {
			t.Fatal(n, err)
		}
		stripes := (n + Align - 1) / Align
		if rep.Bytes != uint64(n) || rep.XXH3 != Sum(data) || rep.Stripes != stripes || rep.Generation != 1 || rep.Replaced != 0 {
			t.Fatalf("%d bytes: %+v", n, rep)
		}
		r := x.reads(k, data)
		if r.XXH3 != rep.XXH3 || r.Attempts != 1 || r.Degraded {
			t.Fatalf("%d bytes: %+v", n, r)
		}
		var moved, planned uint64
		for _, s := range r.Rails {
			moved += s.Bytes
			planned += s.PlannedBytes
			if s.Bytes != s.PlannedBytes {
				t.Errorf("%d bytes: rail %s moved %d, planned %d", n, s.Name, s.Bytes, s.PlannedBytes)
			}
		}
		if moved != uint64(n) || planned != uint64(n) {
			t.Errorf("%d bytes: moved %d, planned %d", n, moved, planned)
		}
	}
	x.idle()
}

func TestPutOverwrites(t *testing.T) {
	x := newWorld(t, nil)
	first, second := randomBytes(1, 5*Align), randomBytes(2, 3*Align+1)
	x.mustPut(testKey, first)
	rep := x.mustPut(testKey, second)
	if rep.Generation != 2 || rep.Replaced != 1 || rep.RemovedStripes != 5 || rep.LeftStripes != 0 {
		t.Fatalf("%+v", rep)
	}
	if n := x.stripeFiles(); n != 4 {
		t.Errorf("%d files for 4 stripes", n)
	}
	if n := x.catalog.garbage(t); n != 0 {
		t.Errorf("%d generations are garbage", n)
	}
	x.reads(testKey, second)
	_, err := x.put(testKey, first, PutOptions{IfAbsent: true})
	if !errors.Is(err, ErrExists) {
		t.Errorf("if-absent on an existing object: %v", err)
	}
	x.reads(testKey, second)
	if _, err := x.w.Remove(context.Background(), testKey); err != nil {
		t.Fatal(err)
	}
	if n := x.stripeFiles(); n != 0 {
		t.Errorf("%d files after the removal", n)
	}
	if _, err := x.w.Remove(context.Background(), testKey); !errors.Is(err, ErrNotFound) {
		t.Errorf("removed twice: %v", err)
	}
	if _, _, err := x.w.Read(context.Background(), testKey, ReadOptions{}); !errors.Is(err, ErrNotFound) {
		t.Errorf("read after the removal: %v", err)
	}
	if rep, err = x.put(testKey, first, PutOptions{IfAbsent: true}); err != nil || rep.Generation <= 2 {
		t.Errorf("a generation was used again: %+v, %v", rep, err)
	}
	x.idle()
}

func TestPutSourceOfWrongSize(t *testing.T) {
	x := newWorld(t, nil)
	old := randomBytes(1, 3*Align)
	x.mustPut(testKey, old)
	data := randomBytes(2, 4*Align)
	for name, s := range map[string]*Source{
		"short":  NewSource(bytes.NewReader(data[:3*Align+5]), 4*Align, "pipe"),
		"empty":  NewSource(bytes.NewReader(nil), 1, "pipe"),
		"long":   NewSource(bytes.NewReader(data), 4*Align-1, "pipe"),
		"not 0":  NewSource(bytes.NewReader(data), 0, "pipe"),
		"broken": NewSource(io.MultiReader(bytes.NewReader(data[:Align]), errReader{}), 4*Align, "pipe"),
	} {
		_, err := x.w.Put(context.Background(), testKey, s, PutOptions{})
		if !errors.Is(err, ErrSource) || !strings.Contains(err.Error(), "pipe") {
			t.Errorf("%s: %v", name, err)
		}
		if name == "broken" && !errors.Is(err, errInjected) {
			t.Errorf("the cause is lost: %v", err)
		}
		if n := x.stripeFiles(); n != 3 {
			t.Errorf("%s: %d files, want the old 3", name, n)
		}
	}
	x.reads(testKey, old)
	x.idle()
}

type errReader struct{}

func (errReader) Read([]byte) (int, error) { return 0, errInjected }

func TestOpenSource(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "f")
	if err := os.WriteFile(path, []byte("content"), 0o644); err != nil {
		t.Fatal(err)
	}
	s, err := OpenSource(path)
	if err != nil || s.Size != 7 {
		t.Fatal(err)
	}
	x := newWorld(t, nil)
	if _, err := x.w.Put(context.Background(), testKey, s, PutOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	x.reads(testKey, []byte("content"))
	for _, p := range []string{dir, filepath.Join(dir, "none")} {
		if _, err := OpenSource(p); !errors.Is(err, ErrSource) {
			t.Errorf("%s: %v", p, err)
		}
	}
}

// TestPutFailsAtEachStep fails, in turn, every store of a stripe and every call to
// the catalog. Afterwards the object is what it was and no file of the failed put
// is left.
func TestPutFailsAtEachStep(t *testing.T) {
	defer goleak.VerifyNone(t)
	old, data := randomBytes(1, 3*Align), randomBytes(2, 6*Align)
	for _, mode := range []string{FailRead, Failover} {
		for n := range 6 {
			x := newWorld(t, func(c *Config) { c.Limits.OnRailFailure = mode })
			x.mustPut(testKey, old)
			base := x.net.counts["store"]
			bad := &StripeRef{}
			x.script(func(o wireOp) *fault {
				if o.op == "store" && o.n == base+n {
					*bad = o.ref
				}
				if o.op == "store" && bad.File == o.ref.File && bad.File != "" { // over whatever rail
					return &fault{err: errWire, late: true}
				}
				return nil
			})
			_, err := x.put(testKey, data, PutOptions{})
			if !errors.Is(err, errWire) {
				t.Fatalf("%s, store %d: %v", mode, n, err)
			}
			var pe *pipeline.Error
			if !errors.As(err, &pe) || pe.Where.Shard < 0 || pe.Op != "put" {
				t.Errorf("no place in %v", err)
			}
			if got := x.stripeFiles(); got != 3 {
				t.Errorf("%s, store %d: %d files, want the old 3", mode, n, got)
			}
			if l := x.net.fireLate(); l != 0 {
				t.Errorf("%s, store %d: %d transfers were not fenced", mode, n, l)
			}
			x.script(nil)
			x.reads2(old, mode)
			x.idle()
		}
	}
	for _, call := range []string{"begin", "commit"} {
		x := newWorld(t, nil)
		x.mustPut(testKey, old)
		x.catalog.before = func(c string) error {
			if c == call {
				return &ctrl.ConflictError{Key: testKey, Reason: "injected"}
			}
			return nil
		}
		_, err := x.put(testKey, data, PutOptions{})
		var conflict *ctrl.ConflictError
		if !errors.As(err, &conflict) || call == "commit" && !errors.Is(err, ErrConflict) {
			t.Errorf("%s: %v", call, err)
		}
		x.catalog.before = nil
		if got := x.stripeFiles(); got != 3 {
			t.Errorf("%s: %d files, want the old 3", call, got)
		}
		x.reads(testKey, old)
		x.idle()
	}
}

// reads2 reads with a new worker when paths of the old one are cooling down.
func (x *world) reads2(data []byte, _ string) {
	x.t.Helper()
	w, err := NewWorker(x.cfg)
	if err != nil {
		x.t.Fatal(err)
	}
	buf, _, err := w.Read(context.Background(), testKey, ReadOptions{})
	if err != nil {
		x.t.Fatal(err)
	}
	defer buf.Release()
	if !bytes.Equal(buf.Bytes(), data) {
		x.t.Fatal("the old content is gone")
	}
}

// TestPutSurvivesLostAnswers: the commit happened, but the answer did not come.
func TestPutSurvivesLostAnswers(t *testing.T) {
	old, data := randomBytes(1, 3*Align), randomBytes(2, 2*Align)
	x := newWorld(t, nil)
	x.mustPut(testKey, old)
	lost := 0
	x.catalog.after = func(c string) error {
		if c == "commit" && lost < 2 {
			lost++
			return errWire
		}
		return nil
	}
	rep, err := x.put(testKey, data, PutOptions{})
	if err != nil || rep.Generation != 2 || rep.Replaced != 1 || rep.RemovedStripes != 3 {
		t.Fatalf("%+v, %v", rep, err)
	}
	x.reads(testKey, data)

	// No answer at all: nothing may be removed, the new generation is current.
	x.catalog.after = func(c string) error {
		if c == "commit" {
			return errWire
		}
		return nil
	}
	third := randomBytes(3, 4*Align)
	if _, err := x.put(testKey, third, PutOptions{}); !errors.Is(err, ErrUnknownOutcome) || !errors.Is(err, errWire) {
		t.Fatalf("%v", err)
	}
	x.catalog.after = nil
	x.reads(testKey, third)
	// What the lost commit replaced is still known and can be reclaimed.
	if n := x.catalog.garbage(t); n != 1 {
		t.Fatalf("%d generations are garbage", n)
	}
	rc, err := x.w.Reclaim(context.Background())
	if err != nil || rc.Objects != 1 || rc.RemovedStripes != 2 || x.stripeFiles() != 4 {
		t.Fatalf("%+v, %v, %d files", rc, err, x.stripeFiles())
	}
	x.idle()
}

// TestSweepSuperseded: stripes of a generation below the current one are orphans at
// once, those of one above it only after the grace.
func TestSweepSuperseded(t *testing.T) {
	x := newWorld(t, nil)
	stop := func(c string) error {
		if c == "commit" {
			return errWire
		}
		return nil
	}
	data := randomBytes(1, 4*Align)
	sweep := func() (n int) {
		for _, s := range x.stores {
			rep, err := s.Sweep(context.Background(), SweepGrace, func(ctx context.Context) (*Live, error) { return LiveOf(ctx, x.catalog) })
			if err != nil {
				t.Fatal(err)
			}
			n += rep.Orphans
		}
		return n
	}
	x.catalog.before = stop
	if _, err := x.put(testKey, data, PutOptions{}); err == nil || x.stripeFiles() != 4 {
		t.Fatalf("%v, %d files", err, x.stripeFiles())
	}
	if n := sweep(); n != 0 {
		t.Errorf("%d stripes of a put that may be under way were swept", n)
	}
	// All of it is old, but the catalog knows nothing at all: it is not believed.
	for _, s := range x.stores {
		rep, err := s.Sweep(context.Background(), -time.Hour, func(ctx context.Context) (*Live, error) { return LiveOf(ctx, x.catalog) })
		if err != nil || rep.Orphans != 0 || rep.Doubted != 2 {
			t.Errorf("%+v, %v", rep, err)
		}
	}
	x.catalog.before = nil
	x.mustPut(testKey, data)
	if n := sweep(); n != 4 || x.stripeFiles() != 4 {
		t.Errorf("%d stripes swept, %d files", n, x.stripeFiles())
	}
	x.reads(testKey, data)
	// Garbage is owned: it is the catalog's to forget.
	x.script(func(o wireOp) *fault {
		if o.op == "delete" {
			return &fault{err: errWire}
		}
		return nil
	})
	x.mustPut(testKey, data)
	if n := sweep(); n != 0 {
		t.Errorf("%d stripes of garbage were swept", n)
	}
	// The next change tidies up.
	x.script(nil)
	x.mustPut(Key{Namespace: "kv", Name: "other"}, nil)
	if x.catalog.garbage(t) != 0 || x.stripeFiles() != 4 {
		t.Errorf("%d garbage, %d files", x.catalog.garbage(t), x.stripeFiles())
	}
	x.reads(testKey, data)
}

func TestJanitor(t *testing.T) {
	defer goleak.VerifyNone(t)
	x := newWorld(t, nil)
	x.catalog.before = func(c string) error {
		if c == "commit" {
			return errWire
		}
		return nil
	}
	if _, err := x.put(testKey, randomBytes(1, 4*Align), PutOptions{}); err == nil {
		t.Fatal("committed")
	}
	x.catalog.before = nil
	x.mustPut(testKey, []byte("new"))
	events := make(chan pipeline.Event, 8)
	ctx := pipeline.WithSink(context.Background(), func(e pipeline.Event) { events <- e })
	for _, s := range x.stores {
		j := StartJanitor(ctx, JanitorConfig{Store: s, Catalog: x.catalog, Sweep: time.Millisecond, Clean: time.Millisecond, Check: time.Millisecond})
		if e := <-events; e.Event != "orphans_removed" {
			t.Errorf("%+v", e)
		}
		if err := errors.Join(j.Close(), j.Close()); err != nil {
			t.Error(err)
		}
	}
	if n := x.stripeFiles(); n != 1 {
		t.Errorf("%d files", n)
	}
}

func TestPutLosesRace(t *testing.T) {
	x := newWorld(t, nil)
	data := randomBytes(1, 2*Align)
	// Another put begins later and commits first.
	once := sync.Once{}
	x.catalog.before = func(c string) error {
		if c == "commit" {
			once.Do(func() {
				x.catalog.mu.Lock()
				x.catalog.before = nil
				x.catalog.mu.Unlock()
				x.mustPut(testKey, randomBytes(2, 3*Align))
			})
		}
		return nil
	}
	if _, err := x.put(testKey, data, PutOptions{}); !errors.Is(err, ErrConflict) {
		t.Fatalf("%v", err)
	}
	x.reads(testKey, randomBytes(2, 3*Align))
	if n := x.stripeFiles(); n != 3 {
		t.Errorf("%d files", n)
	}
	// Two if-absent puts: exactly one wins.
	k := Key{Namespace: "kv", Name: "raced"}
	var wg sync.WaitGroup
	errs := make([]error, 4)
	for i := range errs {
		wg.Go(func() { _, errs[i] = x.put(k, randomBytes(uint64(i), Align), PutOptions{IfAbsent: true}) })
	}
	wg.Wait()
	won := -1
	for i, err := range errs {
		if err == nil && won < 0 {
			won = i
		} else if !errors.Is(err, ErrExists) {
			t.Errorf("put %d: %v", i, err)
		}
	}
	if won < 0 {
		t.Fatal("nobody won")
	}
	x.reads(k, randomBytes(uint64(won), Align))
	if n := x.stripeFiles(); n != 4 {
		t.Errorf("%d files", n)
	}
	x.idle()
}

func TestPutReroutes(t *testing.T) {
	x := newWorld(t, nil)
	x.script(func(o wireOp) *fault {
		if o.op == "store" && o.at.Rail == "b" {
			return &fault{err: errWire, late: true}
		}
		return nil
	})
	data := randomBytes(1, 8*Align)
	rep := x.mustPut(testKey, data)
	if rep.ReroutedBytes == 0 || rep.Rails[0].Bytes != 8*Align || rep.Rails[1].Errors == 0 {
		t.Errorf("%+v", rep)
	}
	if x.net.fireLate() != 0 {
		t.Error("transfers were not fenced")
	}
	x.script(nil)
	x.reads2(data, "")
	x.idle()
}

func TestPutRereadsWrongBytes(t *testing.T) {
	x := newWorld(t, nil)
	x.script(func(o wireOp) *fault {
		if o.op == "store" && o.n == 2 {
			return &fault{flip: true}
		}
		return nil
	})
	data := randomBytes(1, 4*Align)
	if rep := x.mustPut(testKey, data); rep.ReroutedBytes != Align {
		t.Errorf("%+v", rep)
	}
	x.script(nil)
	x.reads(testKey, data)
}

// TestPutFullShard: what a shard has no room for goes to another one, and the placement
// says so; when all are full the put fails with the room of each, and nothing is left.
func TestPutFullShard(t *testing.T) {
	x := newWorld(t, nil)
	old := randomBytes(1, 2*Align)
	x.mustPut(testKey, old)
	all := false
	x.script(func(o wireOp) *fault {
		if o.op == "store" && (all || o.at.Shard == 1) {
			return &fault{err: fmt.Errorf("%w: /data/%d: %d bytes free", ErrNoSpace, o.at.Shard, 10+o.at.Shard)}
		}
		return nil
	})
	moved := Key{Namespace: "kv", Name: "moved"}
	data := randomBytes(3, 20*Align)
	rep := x.mustPut(moved, data)
	if rep.MovedStripes != 10 || rep.ReroutedBytes != 0 {
		t.Errorf("%+v", rep)
	}
	o, err := x.w.Lookup(context.Background(), moved)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range o.Placement.Stripes {
		if s.Shard != 0 {
			t.Errorf("stripe %d is on shard %d", s.Index, s.Shard)
		}
	}
	if rep := x.reads(moved, data); rep.Degraded {
		t.Errorf("%+v", rep)
	}
	if rep, err := x.w.Remove(context.Background(), moved); err != nil || rep.LeftStripes != 0 {
		t.Errorf("%+v, %v", rep, err)
	}
	all = true
	_, err = x.put(testKey, randomBytes(2, 6*Align), PutOptions{})
	var pe *pipeline.Error
	if !errors.Is(err, ErrNoSpace) || !errors.As(err, &pe) || pe.Layer != pipeline.LayerStorage || pe.Hint == "" {
		t.Fatalf("%v", err)
	}
	for _, want := range []string{"/data/0: 10 bytes free", "/data/1: 11 bytes free"} {
		if strings.Count(err.Error(), want) != 1 {
			t.Errorf("not told, told more than once, or the other rail was tried: %v", err)
		}
	}
	if n := x.stripeFiles(); n != 2 {
		t.Errorf("%d files", n)
	}
	x.script(nil)
	x.reads(testKey, old)
	x.idle()
}

// TestPutMovesOnlyWhatWasRefused: a stripe that a shard may have, since its answer was
// lost, does not go to another one.
func TestPutMovesOnlyWhatWasRefused(t *testing.T) {
	x := newWorld(t, nil)
	first := true
	var mu sync.Mutex
	x.script(func(o wireOp) *fault {
		mu.Lock()
		defer mu.Unlock()
		switch {
		case o.op != "store" || o.at.Shard != 1:
			return nil
		case first:
			first = false
			return &fault{err: errWire}
		}
		return &fault{err: fmt.Errorf("%w: /data/1: 0 bytes free", ErrNoSpace)}
	})
	if _, err := x.put(testKey, randomBytes(2, Align*2), PutOptions{}); !errors.Is(err, ErrNoSpace) || !errors.Is(err, errWire) {
		t.Errorf("%v", err)
	}
	if n := x.stripeFiles(); n != 0 {
		t.Errorf("%d files", n)
	}
	x.idle()
}

// TestPutCrash stops a put dead at each store and before the commit: no undo, no
// answer, as when the process is killed. The catalog is as before; a sweep finds
// what the dead put left, and nothing else.
func TestPutCrash(t *testing.T) {
	old, data := randomBytes(1, 3*Align), randomBytes(2, 5*Align)
	for n := range 6 {
		x := newWorld(t, nil)
		x.mustPut(testKey, old)
		base := x.net.counts["store"]
		dead := func(o wireOp) *fault {
			if o.op == "delete" || o.op == "store" && o.n >= base+n {
				return &fault{err: errWire}
			}
			return nil
		}
		x.script(dead)
		x.catalog.before = func(c string) error {
			if c == "commit" {
				return errWire // unknown to the caller; it never arrived
			}
			return nil
		}
		if _, err := x.put(testKey, data, PutOptions{}); err == nil {
			t.Fatal("the put survived its death")
		}
		x.script(nil)
		x.catalog.before = nil
		left := x.stripeFiles() - 3
		if left != n {
			t.Errorf("crash at %d: %d stripes left", n, left)
		}
		x.reads2(old, "")
		// The shards start again and sweep, but not what may still be committed.
		orphans := 0
		for shard, s := range x.stores {
			_ = s.Close()
			s, err := OpenStore(StoreConfig{Deployment: "test", Shard: shard, Dirs: x.dirs[shard]})
			if err != nil {
				t.Fatal(err)
			}
			x.stores[shard] = s
			live := func(ctx context.Context) (*Live, error) { return LiveOf(ctx, x.catalog) }
			if rep, err := s.Sweep(context.Background(), SweepGrace, live); err != nil || rep.Orphans != 0 {
				t.Fatalf("%+v, %v", rep, err)
			}
			rep, err := s.Sweep(context.Background(), -time.Hour, live)
			if err != nil {
				t.Fatal(err)
			}
			orphans += rep.Orphans
		}
		if orphans != left || x.stripeFiles() != 3 {
			t.Errorf("crash at %d: swept %d of %d, %d files", n, orphans, left, x.stripeFiles())
		}
		x.reads2(old, "")
	}
}

func TestPutCancelled(t *testing.T) {
	defer goleak.VerifyNone(t)
	x := newWorld(t, nil)
	ctx, cancel := context.WithCancelCause(context.Background())
	cause := errors.New("interrupted")
	x.script(func(o wireOp) *fault {
		if o.op == "store" && o.n == 3 {
			return &fault{doFirst: func() { cancel(cause) }, hang: true, late: true}
		}
		return nil
	})
	data := randomBytes(1, 8*Align)
	_, err := x.w.Put(ctx, testKey, NewSource(bytes.NewReader(data), uint64(len(data)), "test"), PutOptions{})
	if !errors.Is(err, cause) {
		t.Fatalf("%v", err)
	}
	if x.net.fireLate() != 0 {
		t.Error("transfers were not fenced")
	}
	if n := x.stripeFiles(); n != 0 {
		t.Errorf("%d files", n)
	}
	if _, found, _ := x.catalog.c.Lookup(testKey); found {
		t.Error("committed")
	}
	x.idle()
}

// TestPutMemoryThatStaysDirty: memory that a shard may still read is never used for
// another object.
func TestPutMemoryThatStaysDirty(t *testing.T) {
	x := newWorld(t, nil)
	x.net.noQuiet = errors.New("the QP does not go")
	x.script(func(o wireOp) *fault {
		if o.op == "store" && o.at.Rail == "a" {
			return &fault{err: errWire, late: true}
		}
		return nil
	})
	if _, err := x.put(testKey, randomBytes(1, 4*Align), PutOptions{}); !errors.Is(err, ErrNotQuiet) || !strings.Contains(err.Error(), "does not go") {
		t.Fatalf("%v", err)
	}
	if st := x.slab.Stats(); st.Condemned == 0 || st.Condemned > 4*Align || st.Used != st.Condemned || st.Extents != 0 {
		t.Errorf("%+v", st)
	}
	if n := x.stripeFiles(); n != 0 {
		t.Errorf("%d files", n)
	}
}

func TestPutBoundsItsMemory(t *testing.T) {
	x := newWorld(t, func(c *Config) {
		c.Slab = NewSlab(make([]byte, 3*Align))
		c.Limits.MaxInflight, c.Limits.MaxInflightPerRail = 3*Align, 2*Align
		c.Limits.MaxConnsPerRail = 1
	})
	x.slab = x.cfg.Slab
	data := randomBytes(1, 3*Align)
	x.mustPut(Key{Namespace: "kv", Name: "small"}, data)
	big := randomBytes(2, 40*Align)
	x.mustPut(testKey, big)
	if st := x.slab.Stats(); st.HighWater > 3*Align {
		t.Errorf("%+v", st)
	}
	for _, r := range []string{"a", "b"} {
		if x.net.maxConns[r] > 1 || x.net.maxBytes[r] > 2*Align {
			t.Errorf("rail %s: %d transfers, %d bytes at once", r, x.net.maxConns[r], x.net.maxBytes[r])
		}
	}
	if x.net.maxBytes[""] > 3*Align {
		t.Errorf("%d bytes at once", x.net.maxBytes[""])
	}
	// Reading it whole needs more memory than there is: refused at once.
	if _, _, err := x.w.Read(context.Background(), testKey, ReadOptions{}); !errors.Is(err, ErrNoMemory) {
		t.Errorf("%v", err)
	}
	x.idle()
}

func TestRemoveWithDeadShard(t *testing.T) {
	x := newWorld(t, nil)
	x.mustPut(testKey, randomBytes(1, 6*Align))
	x.script(func(o wireOp) *fault {
		if o.at.Shard == 1 {
			return &fault{err: errWire}
		}
		return nil
	})
	rep, err := x.w.Remove(context.Background(), testKey)
	if err != nil || rep.RemovedStripes != 3 || rep.LeftStripes != 3 {
		t.Fatalf("%+v, %v", rep, err)
	}
	if n := x.catalog.garbage(t); n != 1 {
		t.Fatalf("%d generations are garbage", n)
	}
	x.script(nil)
	rc, err := x.w.Reclaim(context.Background())
	if err != nil || rc.Objects != 1 || x.stripeFiles() != 0 || x.catalog.garbage(t) != 0 {
		t.Fatalf("%+v, %v", rc, err)
	}
}
