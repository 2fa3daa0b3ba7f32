package object

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/zeebo/xxh3"
	"go.uber.org/goleak"

	"github.com/railstore/railstore/ctrl"
	"github.com/railstore/railstore/cue/deploy"
)

// TestReadRange reads random ranges: the bytes are right, whole stripes and no others
// are fetched, and the plan that is explained is the one that is carried out.
func TestReadRange(t *testing.T) {
	r := rand.New(rand.NewPCG(testSeed(t), 0))
	x := newWorld(t, nil)
	size := uint64(20*Align + 777)
	data := randomBytes(1, int(size))
	x.mustPut(testKey, data)
	for n := range 300 {
		g := Range{Offset: r.Uint64N(size), Length: 0}
		if r.IntN(4) > 0 {
			g.Length = 1 + r.Uint64N(size-g.Offset)
		}
		want := data[g.Offset:]
		if g.Length > 0 {
			want = want[:g.Length]
		}
		fetched := map[uint32]bool{}
		x.script(func(o wireOp) *fault {
			if isFetch(o) {
				fetched[o.ref.Index] = true // under the lock of the net
			}
			return nil
		})
		plan, err := x.w.ExplainRead(context.Background(), testKey, ReadOptions{Range: &g})
		if err != nil || len(fetched) != 0 {
			t.Fatalf("%+v: %v, %d fetches", g, err, len(fetched))
		}
		buf, rep, err := x.w.Read(context.Background(), testKey, ReadOptions{Range: &g})
		if err != nil {
			t.Fatalf("%+v: %v", g, err)
		}
		if !bytes.Equal(buf.Bytes(), want) || rep.Bytes != uint64(len(want)) || rep.Offset != g.Offset || rep.ObjectBytes != size || !rep.Exact {
			t.Fatalf("range %d, %+v: %d bytes, %+v", n, g, len(buf.Bytes()), rep)
		}
		if h := Hex(xxh3.Hash(want)); rep.XXH3 != h {
			t.Fatalf("xxh3 %s of the range, want %s", rep.XXH3, h)
		}
		first, last := uint32(g.Offset/Align), uint32((g.Offset+uint64(len(want))-1)/Align)
		if len(fetched) != int(last-first)+1 || !fetched[first] || !fetched[last] {
			t.Fatalf("%+v: fetched %v, want %d to %d", g, fetched, first, last)
		}
		for i, p := range plan.Rails {
			if rep.Rails[i].Bytes != p.PlannedBytes {
				t.Fatalf("rail %s carried %d bytes, explained were %d", p.Name, rep.Rails[i].Bytes, p.PlannedBytes)
			}
		}
		buf.Release()
	}
	x.idle()
	for _, g := range []Range{{size, 0}, {size, 1}, {size - 1, 2}, {1 << 63, 1 << 63}, {0, size + 1}} {
		if _, _, err := x.w.Read(context.Background(), testKey, ReadOptions{Range: &g}); !errors.Is(err, ErrRange) || !strings.Contains(err.Error(), fmt.Sprint(size)) {
			t.Errorf("%+v: %v", g, err)
		}
	}
	// Of an empty object there is one range.
	empty := Key{Namespace: "kv", Name: "empty"}
	x.mustPut(empty, nil)
	if buf, _, err := x.w.Read(context.Background(), empty, ReadOptions{Range: &Range{}}); err != nil || len(buf.Bytes()) != 0 {
		t.Errorf("%v", err)
	}
	if _, _, err := x.w.Read(context.Background(), empty, ReadOptions{Range: &Range{Offset: 1}}); !errors.Is(err, ErrRange) {
		t.Errorf("%v", err)
	}
}

// TestReadRangeVerifies: a bit that is wrong anywhere in a stripe that the range
// touches is found, also outside the range.
func TestReadRangeVerifies(t *testing.T) {
	x := newWorld(t, nil)
	data := randomBytes(1, 8*Align)
	x.mustPut(testKey, data)
	x.script(func(o wireOp) *fault {
		if isFetch(o) && o.ref.Index == 5 {
			return &fault{flip: true} // in the middle of the stripe
		}
		return nil
	})
	dst := bytes.Repeat([]byte{7}, 10)
	_, _, err := x.w.ReadInto(context.Background(), testKey, dst, ReadOptions{Range: &Range{5 * Align, 10}})
	if !errors.Is(err, ErrChecksum) || !bytes.Equal(dst, bytes.Repeat([]byte{7}, 10)) {
		t.Errorf("%v, %v", err, dst)
	}
	n, _, err := x.w.ReadInto(context.Background(), testKey, dst, ReadOptions{Range: &Range{6 * Align, 10}})
	if err != nil || n != 10 || !bytes.Equal(dst, data[6*Align:][:10]) {
		t.Errorf("%v", err)
	}
	x.idle()
}

func TestReadBatch(t *testing.T) {
	defer goleak.VerifyNone(t)
	x := newWorld(t, nil)
	var items []BatchItem
	var want [][]byte
	for i := range 12 {
		k := Key{Namespace: "kv", Name: fmt.Sprint(i)}
		data := randomBytes(uint64(i), 1+i*Align/2)
		items, want = append(items, BatchItem{Key: k}), append(want, data)
		if i != 7 {
			x.mustPut(k, data)
		}
	}
	items[4].Range = &Range{10, 100}
	want[4] = want[4][10:110]
	for _, together := range []int{0, 1, 3, 100} {
		got := x.w.ReadBatch(context.Background(), items, together, ReadOptions{})
		for i, r := range got {
			if i == 7 {
				if !errors.Is(r.Err, ErrNotFound) || r.Buffer != nil {
					t.Errorf("item 7: %+v", r)
				}
				continue
			}
			if r.Err != nil || !bytes.Equal(r.Buffer.Bytes(), want[i]) || r.Report.Object != items[i].Key.Name {
				t.Fatalf("%d together, item %d: %v", together, i, r.Err)
			}
			r.Buffer.Release()
		}
		x.idle()
	}
	// Two questions for all that is there, and one more for what is not.
	x.catalog.calls = nil
	for _, r := range x.w.ReadBatch(context.Background(), items, 0, ReadOptions{}) {
		if r.Err == nil {
			r.Buffer.Release()
		}
	}
	if got := x.catalog.calls; !slices.Equal(got, []string{"lookupmany", "lookup", "lookupmany"}) {
		t.Errorf("calls %v", got)
	}
	// One that is replaced while the batch is read is read anew; its neighbours are not.
	changed, fresh := items[3].Key, randomBytes(99, 5*Align)
	x.catalog.before = func(call string) error {
		if call == "lookupmany" && x.net.count("fetch") > 0 {
			x.catalog.mu.Lock()
			x.catalog.before = nil
			x.catalog.mu.Unlock()
			x.mustPut(changed, fresh)
		}
		return nil
	}
	x.net.counts = map[string]int{}
	for i, r := range x.w.ReadBatch(context.Background(), items, 0, ReadOptions{}) {
		if i == 7 {
			continue
		}
		if r.Err != nil {
			t.Fatal(r.Err)
		}
		if i == 3 && (!bytes.Equal(r.Buffer.Bytes(), fresh) || r.Report.Attempts != 2 || !r.Report.Degraded || r.Report.Generation != 2) {
			t.Errorf("%+v", r.Report)
		}
		if i != 3 && (r.Report.Attempts != 1 || r.Report.Degraded) {
			t.Errorf("%+v", r.Report)
		}
		r.Buffer.Release()
	}
	x.idle()
	// A catalog that does not answer is an error of each, and no buffer is lost.
	x.catalog.before = func(call string) error {
		if x.net.count("fetch") > 0 && strings.HasPrefix(call, "lookup") {
			return ctrl.ErrClosed
		}
		return nil
	}
	x.net.counts = map[string]int{}
	for i, r := range x.w.ReadBatch(context.Background(), items, 0, ReadOptions{}) {
		if r.Err == nil || r.Buffer != nil {
			t.Errorf("item %d: %+v", i, r)
		}
	}
	x.catalog.before = nil
	x.idle()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	for i, r := range x.w.ReadBatch(ctx, items, 2, ReadOptions{}) {
		if r.Err == nil {
			t.Errorf("item %d of a cancelled batch", i)
		}
	}
	if got := x.w.ReadBatch(context.Background(), nil, 0, ReadOptions{}); len(got) != 0 {
		t.Error(got)
	}
	x.idle()
}

// TestReadUnsafe: bytes land where the caller wants them without a copy, and what
// cannot be silenced is not used again.
func TestReadUnsafe(t *testing.T) {
	x := newWorld(t, nil)
	data := randomBytes(1, 6*Align+9)
	x.mustPut(testKey, data)
	closed, before := 0, x.slab.Stats().HighWater
	dst := &UserBuffer{mem: make([]byte, 7*Align), undo: func() error { closed++; return nil }}
	ctx := context.Background()
	n, rep, err := x.w.ReadUnsafe(ctx, testKey, dst, ReadOptions{})
	if err != nil || n != len(data) || !bytes.Equal(dst.Bytes()[:n], data) || !rep.Exact {
		t.Fatal(n, err)
	}
	if st := x.slab.Stats(); st.HighWater != before {
		t.Errorf("the session's memory was used: %+v", st)
	}
	if n, _, err := x.w.ReadUnsafe(ctx, testKey, dst, ReadOptions{Range: &Range{2 * Align, 2 * Align}}); err != nil || n != 2*Align || !bytes.Equal(dst.Bytes()[:n], data[2*Align:4*Align]) {
		t.Error(n, err)
	}
	if _, _, err := x.w.ReadUnsafe(ctx, testKey, dst, ReadOptions{Range: &Range{1, 2 * Align}}); !errors.Is(err, ErrRange) {
		t.Errorf("%v", err)
	}
	small := &UserBuffer{mem: make([]byte, 6*Align)}
	if _, _, err := x.w.ReadUnsafe(ctx, testKey, small, ReadOptions{}); !errors.Is(err, ErrTooSmall) {
		t.Errorf("%v", err)
	}
	// During a read it is neither closed nor read into again.
	x.script(func(o wireOp) *fault {
		if isFetch(o) && o.ref.Index == 3 {
			return &fault{doFirst: func() {
				if err := dst.Close(); !errors.Is(err, ErrLeased) {
					t.Errorf("closed during a read: %v", err)
				}
				if _, _, err := x.w.ReadUnsafe(ctx, testKey, dst, ReadOptions{}); !errors.Is(err, ErrLeased) {
					t.Errorf("two reads at once: %v", err)
				}
			}}
		}
		return nil
	})
	if _, _, err := x.w.ReadUnsafe(ctx, testKey, dst, ReadOptions{}); err != nil {
		t.Error(err)
	}
	x.net.noQuiet = errors.New("the QP does not go")
	x.script(func(o wireOp) *fault { return &fault{err: errWire, late: true} })
	if _, _, err := x.w.ReadUnsafe(ctx, testKey, dst, ReadOptions{}); !errors.Is(err, ErrNotQuiet) {
		t.Errorf("%v", err)
	}
	var werr error
	if x.w, werr = NewWorker(x.cfg); werr != nil { // one that knows of no failed paths
		t.Fatal(werr)
	}
	if _, _, err := x.w.ReadUnsafe(ctx, testKey, dst, ReadOptions{}); !errors.Is(err, ErrNotQuiet) || !strings.Contains(err.Error(), "earlier read") {
		t.Errorf("%v", err)
	}
	if err := errors.Join(dst.Close(), dst.Close()); err != nil || closed != 1 {
		t.Error(err, closed)
	}
	x.script(nil)
	if _, _, err := x.w.ReadUnsafe(ctx, testKey, dst, ReadOptions{}); !errors.Is(err, ErrClosed) {
		t.Errorf("%v", err)
	}
}

// TestSessionUnsafe does it with registered memory over lanes.
func TestSessionUnsafe(t *testing.T) {
	defer goleak.VerifyNone(t)
	x := newSite(t, nil)
	defer x.close()
	s := x.open(nil)
	defer x.shut(s)
	data := randomBytes(1, 32*Align+5)
	putBytes(t, s.Worker, testKey, data)
	before := s.staged.slab.Stats().HighWater
	buf, err := s.MapBuffer(33 * Align)
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		clear(buf.Bytes())
		n, rep, err := s.ReadUnsafe(context.Background(), testKey, buf, ReadOptions{})
		if err != nil || !bytes.Equal(buf.Bytes()[:n], data) || !rep.Exact {
			t.Fatal(n, err)
		}
	}
	if after := s.staged.slab.Stats(); after.HighWater != before {
		t.Errorf("the session's memory was used: %+v", after)
	}
	if err := buf.Close(); err != nil {
		t.Error(err)
	}
}

// TestStagingGrows: a session registers what it needs, on each rail, and no more.
func TestStagingGrows(t *testing.T) {
	defer goleak.VerifyNone(t)
	x := newSite(t, func(d *deploy.Deployment) { d.Reader.MaxStaging = 1 << 30 })
	defer x.close()
	s := x.open(nil)
	if s.staged.On("a") != nil || s.staged.On("z") != nil {
		t.Error("something is registered before anything is read")
	}
	data := randomBytes(1, 8*Align)
	putBytes(t, s.Worker, testKey, data)
	rep := readBytes(t, s.Worker, testKey, data)
	for _, r := range []string{"a", "b"} {
		if n := s.staged.On(r).Len(); n != leastGrowth {
			t.Errorf("rail %s: %d bytes are registered, want %d", r, n, leastGrowth)
		}
	}
	if r := rep.Rails[0].RegisteredBytes; r < leastGrowth || r > 2*leastGrowth {
		t.Errorf("%d bytes registered", r)
	}
	// A lease that is not given back stays readable when the session has gone.
	buf, _, err := s.Read(context.Background(), testKey, ReadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(context.Background()); !errors.Is(err, ErrLeased) || !strings.Contains(err.Error(), "1 leased buffers") {
		t.Errorf("%v", err)
	}
	if !bytes.Equal(buf.Bytes(), data) {
		t.Error("the lease was lost")
	}
}

// TestSessionMemlock: what the process may not lock is refused before a device is
// asked, with the numbers.
func TestSessionMemlock(t *testing.T) {
	st := &staging{pins: 2, lock: func() (uint64, uint64, bool) { return 16 << 20, 7 << 20, true }}
	if err := st.more(0, 5<<20); !errors.Is(err, ErrNoMemory) || !strings.Contains(err.Error(), "RLIMIT_MEMLOCK is 16777216 bytes, 7340032 are locked, and 10485760 more") ||
		!strings.Contains(err.Error(), "ulimit -l to 17408 or more") {
		t.Errorf("%v", err)
	}
	if err := st.more(0, 4<<20); err != nil {
		t.Errorf("%v", err)
	}
	for _, ok := range []memlock{nil, func() (uint64, uint64, bool) { return 1, 1, false }} {
		st.lock = ok
		if err := st.more(0, 1<<40); err != nil {
			t.Errorf("%v", err)
		}
	}
	st.pins, st.lock = 0, func() (uint64, uint64, bool) { return 1, 1, true }
	if err := st.more(0, 1<<40); err != nil {
		t.Errorf("devices that pin nothing: %v", err)
	}
	for _, c := range []struct {
		status string
		used   uint64
		ok     bool
	}{
		{"Name:\tx\nVmLck:\t     8 kB\nVmPin:\t   100 kB\nCapEff:\t0000000000000000\n", 108 << 10, true},
		{"VmLck:\t0 kB\nCapEff:\t0000000000004000\n", 0, false},
		{"VmLck:\tmany\n", 0, false},
		{"", 0, true},
	} {
		limit, used, ok := memlockOf(lines(c.status), 1<<20)
		if ok != c.ok || ok && (used != c.used || limit != 1<<20) {
			t.Errorf("%q: %d, %d, %v", c.status, limit, used, ok)
		}
	}
	if _, used, ok := processMemlock(); ok && used > 1<<40 {
		t.Errorf("this process has locked %d bytes", used)
	}
}

// TestSessionMinRails: a rail that is not there degrades a session, visibly, as long as
// there are enough others and nobody asked for it by name.
func TestSessionMinRails(t *testing.T) {
	defer goleak.VerifyNone(t)
	x := newSite(t, nil)
	defer x.close()
	whole := x.open(nil)
	data := randomBytes(1, 8*Align)
	putBytes(t, whole.Worker, testKey, data)
	x.shut(whole)
	broken := errors.New("no such device")
	open := func(rails []string, least int) (*Session, error) {
		lim := DefaultLimits()
		lim.MinRails = least
		return OpenSession(context.Background(), SessionConfig{Deployment: x.dep, Host: "c", Rails: rails, Drivers: brokenDriver(x, "b", broken),
			Control: x.server.Addr(), Identity: x.identity(), Limits: lim})
	}
	s, err := open(nil, 1)
	if err != nil {
		t.Fatal(err)
	}
	rep := readBytes(t, s.Worker, testKey, data)
	if !rep.Degraded || len(rep.Rails) != 1 || !slices.ContainsFunc(rep.Excluded, func(e string) bool {
		return strings.Contains(e, "rail b is absent") && strings.Contains(e, "no such device")
	}) {
		t.Errorf("%+v", rep)
	}
	if rep, err := readRails(s, "a"); err != nil || len(rep.Excluded) != 0 {
		t.Errorf("not asked for: %v", err)
	}
	x.shut(s)
	for _, c := range []struct {
		rails []string
		least int
	}{{nil, 2}, {[]string{"a", "b"}, 1}, {[]string{"b"}, 1}} {
		if s, err := open(c.rails, c.least); !errors.Is(err, broken) {
			t.Errorf("%+v: %v", c, err)
			if err == nil {
				x.shut(s)
			}
		}
	}
}
