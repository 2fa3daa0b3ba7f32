package object

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/railstore/railstore/pipeline"
)

// threeRails is a world with a rail more.
func threeRails(t *testing.T, change func(*Config)) *world {
	return newWorld(t, func(c *Config) {
		c.Rails = append(c.Rails, PlanRail{Name: "c", Device: "fake:c", Provider: "fake", Weight: 2, Shards: []int{0, 1}})
		if change != nil {
			change(c)
		}
	})
}

// accounted checks the sums of a report: each rail carried what was planned, less what
// moved away, plus what moved to it; the moves are those of the rails; all is the object.
func accounted(t testing.TB, rep *ReadReport) {
	t.Helper()
	var planned, got, moved uint64
	out, in := map[string]uint64{}, map[string]uint64{}
	for _, m := range rep.Moves {
		out[m.From] += m.Bytes
		in[m.To] += m.Bytes
		moved += m.Bytes
		if m.From == m.To || m.Stripes == 0 || m.Bytes == 0 {
			t.Errorf("move %+v", m)
		}
	}
	exact := true
	for _, r := range rep.Rails {
		planned, got = planned+r.PlannedBytes, got+r.Bytes
		if r.Bytes != r.PlannedBytes-r.MovedOut+r.MovedIn || r.MovedOut != out[r.Name] || r.MovedIn != in[r.Name] {
			t.Errorf("rail %s: planned %d, out %d, in %d, carried %d; moves %+v", r.Name, r.PlannedBytes, r.MovedOut, r.MovedIn, r.Bytes, rep.Moves)
		}
		exact = exact && r.Bytes == r.PlannedBytes
	}
	if planned != rep.ObjectBytes || got != rep.ObjectBytes || rep.Exact != exact || !exact && moved == 0 || moved > 0 && !rep.Degraded {
		t.Errorf("planned %d, carried %d of %d, exact %v, %d moved, degraded %v", planned, got, rep.ObjectBytes, rep.Exact, moved, rep.Degraded)
	}
}

// TestFailoverAccounts: a dead rail's stripes move to the others, once, by weight, and
// every byte is accounted for, whenever it dies; also when a second one follows it.
func TestFailoverAccounts(t *testing.T) {
	defer goleak.VerifyNone(t)
	for n := range 12 {
		x := threeRails(t, func(c *Config) { c.Limits.TaskDepth = 1 + n%3 })
		data := randomBytes(1, 32*Align)
		x.mustPut(testKey, data)
		asked := map[uint32]int{}
		dead := "b"
		x.script(func(o wireOp) *fault {
			if !isFetch(o) {
				return nil
			}
			asked[o.ref.Index]++
			if n%4 == 3 && o.n >= 2*n { // the second follows
				dead = "ab"
			}
			if o.n >= n && strings.Contains(dead, o.at.Rail) {
				return &fault{err: errWire, late: n%2 == 0}
			}
			return nil
		})
		rep := x.reads(testKey, data)
		accounted(t, rep)
		if x.net.fireLate() != 0 {
			t.Error("transfers were not fenced")
		}
		for _, m := range rep.Moves {
			if m.Why != MoveFailover || !strings.Contains("ab", m.From) {
				t.Errorf("%+v", m)
			}
		}
		for i, k := range asked {
			if k > 1+len(dead) {
				t.Errorf("stripe %d was asked for %d times", i, k)
			}
		}
		if rep.ReroutedBytes > 0 && (len(rep.Faults) == 0 || !strings.Contains(dead, rep.Faults[0].Rail) || rep.Faults[0].Cause == "") {
			t.Errorf("%+v", rep.Faults)
		}
		x.idle()
	}
}

// TestFailoverUnderRandomFaults checks the sums while anything fails.
func TestFailoverUnderRandomFaults(t *testing.T) {
	defer goleak.VerifyNone(t)
	seed := testSeed(t)
	r := rand.New(rand.NewPCG(seed, 7))
	done, moved := 0, 0
	for round := range 60 {
		x := threeRails(t, func(c *Config) { c.Limits.Cooldown, c.Limits.Quarantine, c.Limits.IOTimeout = 0, 0, time.Second })
		data := randomBytes(seed+uint64(round), 1+r.IntN(40*Align))
		x.mustPut(testKey, data)
		var mu sync.Mutex
		x.script(func(o wireOp) *fault {
			mu.Lock()
			defer mu.Unlock()
			switch k := r.IntN(100); {
			case !isFetch(o) || k > 12:
				return nil
			case k < 8:
				return &fault{err: errWire, late: k%2 == 0}
			default:
				return &fault{flip: true}
			}
		})
		buf, rep, err := x.read()
		if n := x.net.fireLate(); n != 0 {
			t.Fatalf("round %d: %d transfers were not fenced", round, n)
		}
		if err != nil {
			x.idle()
			continue
		}
		if !bytes.Equal(buf.Bytes(), data) {
			t.Fatalf("round %d: wrong bytes", round)
		}
		buf.Release()
		x.idle()
		accounted(t, rep)
		done++
		moved += len(rep.Moves)
	}
	if done < 10 || moved < 10 {
		t.Errorf("%d reads ended well with %d moves: the test shows nothing", done, moved)
	}
}

// TestFailoverFitsDeadline: what the rails that are left cannot bring in time is not
// begun; what they can is.
func TestFailoverFitsDeadline(t *testing.T) {
	x := newWorld(t, func(c *Config) { c.Limits.Hedge = false })
	data := randomBytes(1, 32*Align)
	x.mustPut(testKey, data)
	x.w.health.railLocked("a").pace.rate = 8 * Align // bytes a second
	b := &x.w.health.railLocked("b").pace
	b.rate = 8 * Align
	fetches := map[string]int{}
	x.script(func(o wireOp) *fault {
		if isFetch(o) {
			fetches[o.at.Rail]++
			if o.at.Rail == "b" {
				return &fault{err: errWire}
			}
		}
		return nil
	})
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	start := time.Now()
	_, _, err := x.w.Read(ctx, testKey, ReadOptions{})
	if !errors.Is(err, ErrTooLate) || !errors.Is(err, errWire) || !strings.Contains(err.Error(), "65536 bytes would take the other rails") || fetches["a"] != 16 || time.Since(start) > 900*time.Millisecond {
		t.Errorf("%v, fetches %v", err, fetches)
	}
	x.idle()
	// With time enough, and without a deadline, the other rail takes over.
	for _, within := range []time.Duration{time.Minute, 0} {
		if x.w, err = NewWorker(x.cfg); err != nil {
			t.Fatal(err)
		}
		x.w.health.railLocked("a").pace.rate = 8 * Align
		x.w.health.railLocked("b").pace.rate = 8 * Align
		ctx, cancel := context.Background(), func() {}
		if within > 0 {
			ctx, cancel = context.WithTimeout(ctx, within)
		}
		buf, rep, err := x.w.Read(ctx, testKey, ReadOptions{})
		cancel()
		if err != nil {
			t.Fatal(err)
		}
		accounted(t, rep)
		buf.Release()
	}
}

// TestCanaryNeverEndsARead: a path on probation that fails again costs a move, also
// with onRailFailure fail, and is asked for one stripe of each shard at most.
func TestCanaryNeverEndsARead(t *testing.T) {
	x := newWorld(t, func(c *Config) { c.Limits.OnRailFailure, c.Limits.Cooldown = FailRead, 0 })
	data := randomBytes(1, 16*Align)
	x.mustPut(testKey, data)
	x.w.health.look("b", true, []int{0, 1})
	x.w.health.look("b", false, []int{0, 1})
	asked := 0
	x.script(func(o wireOp) *fault {
		if isFetch(o) && o.at.Rail == "b" {
			asked++
			return &fault{err: errWire}
		}
		return nil
	})
	plan := mustExplain(x)
	if r := plan.Rails[1]; len(r.Stripes) != 2 || len(r.Canary) != 2 || !strings.Contains(plan.String(), "canary to shards 0 1") {
		t.Errorf("%+v\n%s", r, plan)
	}
	rep := x.reads(testKey, data)
	accounted(t, rep)
	if asked != 2 || rep.Rails[1].Errors != 2 || rep.ReroutedBytes != 2*Align {
		t.Errorf("asked %d, %+v", asked, rep)
	}
}

// TestQuarantine: a rail that delivers wrong bytes, which another delivers right, is
// named with the offset, and left alone until its time is over.
func TestQuarantine(t *testing.T) {
	x := newWorld(t, func(c *Config) { c.Limits.Quarantine = time.Hour })
	now := time.Now()
	x.w.health.now = func() time.Time { return now }
	data := randomBytes(1, 16*Align)
	x.mustPut(testKey, data)
	stripe := mustExplain(x).Rails[1].Stripes[3]
	x.script(func(o wireOp) *fault {
		if isFetch(o) && o.at.Rail == "b" && o.ref.Index == stripe {
			return &fault{flip: true}
		}
		return nil
	})
	rep := x.reads(testKey, data)
	accounted(t, rep)
	if len(rep.Corruptions) != 1 {
		t.Fatalf("%+v", rep)
	}
	c := rep.Corruptions[0]
	if c.Rail != "b" || c.Stripe != stripe || c.Offset != uint64(stripe)*Align+Align/2 || c.Wrong != 1 || c.RereadOn != "a" || !c.Corrected {
		t.Errorf("%+v", c)
	}
	if len(rep.Moves) != 1 || rep.Moves[0] != (Move{From: "b", To: "a", Why: MoveChecksum, Stripes: 1, Bytes: Align}) || rep.ReroutedBytes != 0 {
		t.Errorf("%+v", rep.Moves)
	}
	if s := x.w.Snapshot()[1].State; !strings.Contains(s, "quarantined for corruption") || !strings.Contains(s, fmt.Sprint("stripe ", stripe)) {
		t.Errorf("%q", s)
	}
	x.net.moved = map[string]uint64{}
	if rep := x.reads(testKey, data); !rep.Degraded || x.net.moved["b"] != 0 || len(rep.Excluded) != 1 {
		t.Errorf("%+v", rep)
	}
	// Its time is over: canaries first.
	x.script(nil)
	now = now.Add(time.Hour)
	if rep := x.reads(testKey, data); rep.Rails[1].Stripes != 2 || len(rep.Excluded) != 0 {
		t.Errorf("%+v", rep)
	}
	// One rail alone that is wrong once: nothing tells it from chance.
	y := newWorld(t, func(c *Config) { c.Rails = c.Rails[:1] })
	y.mustPut(testKey, data)
	var once atomic.Bool
	y.script(func(o wireOp) *fault {
		if isFetch(o) && !once.Swap(true) {
			return &fault{flip: true}
		}
		return nil
	})
	if rep := y.reads(testKey, data); len(rep.Corruptions) != 1 || rep.Corruptions[0].RereadOn != "a" || len(rep.Moves) != 0 || y.w.Snapshot()[0].State != "active" {
		t.Errorf("%+v", rep)
	}
	// A rail that alone reaches a shard goes on with it: every stripe is checked.
	z := newWorld(t, func(c *Config) { c.Rails[0].Shards = []int{0} })
	z.mustPut(testKey, data)
	z.script(func(o wireOp) *fault {
		if isFetch(o) && o.at == (Path{"b", 0}) {
			return &fault{flip: true}
		}
		return nil
	})
	accounted(t, z.reads(testKey, data))
	// A file that its shard finds wrong, and right when it is asked again, is no rail's fault.
	v := newWorld(t, nil)
	v.mustPut(testKey, data)
	v.script(func(o wireOp) *fault {
		if isFetch(o) && o.at.Rail == "b" && o.ref.Index == stripe {
			return &fault{err: fmt.Errorf("%w: for a moment", ErrCorrupt)}
		}
		return nil
	})
	rep = v.reads(testKey, data)
	accounted(t, rep)
	if len(rep.Corruptions) != 1 || v.w.Snapshot()[1].State != "active" {
		t.Errorf("%+v, %s", rep, v.w.Snapshot()[1].State)
	}
}

// TestAccountIsChecked: a read whose rails did not carry what was planned and moved is
// not handed over.
func TestAccountIsChecked(t *testing.T) {
	x := newWorld(t, nil)
	x.mustPut(testKey, randomBytes(1, 4*Align))
	ctx := context.Background()
	o, err := x.w.Lookup(ctx, testKey)
	if err != nil {
		t.Fatal(err)
	}
	p, err := x.w.prepare(testKey, &o, ReadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	land, err := x.w.leased(ctx, &o, p.span, p.lo, p.n)
	if err != nil {
		t.Fatal(err)
	}
	defer land.done(false)
	j := newReadJob(x.w, &o, p.span, land, p.rails, p.excluded, ReadOptions{})
	if err := errors.Join(j.run(ctx, p.plan), j.complete()); err != nil {
		t.Fatal(err)
	}
	for name, m := range j.meters {
		m.moveIn(1)
		if err := j.complete(); !errors.Is(err, ErrIncomplete) || !strings.Contains(err.Error(), "rail "+name) {
			t.Errorf("a byte too few on rail %s: %v", name, err)
		}
		m.moveOut(2)
		if err := j.complete(); !errors.Is(err, ErrIncomplete) {
			t.Errorf("a byte too many on rail %s: %v", name, err)
		}
		m.moveIn(1)
	}
	if err := j.complete(); err != nil {
		t.Error(err)
	}
}

// TestHedge: near the deadline a stripe that hangs is asked for over the other rail.
// Its first writer is silenced before the object is handed over, and the memory of the
// second is given back.
func TestHedge(t *testing.T) {
	defer goleak.VerifyNone(t)
	hang := func(rail string, late bool) func(o wireOp) *fault {
		var once atomic.Bool
		return func(o wireOp) *fault {
			if isFetch(o) && o.at.Rail == rail && !once.Swap(true) {
				return &fault{hang: true, late: late}
			}
			return nil
		}
	}
	read := func(x *world) (*LeasedBuffer, *ReadReport, error) {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		return x.w.Read(ctx, testKey, ReadOptions{})
	}
	for _, late := range []bool{false, true} {
		x := newWorld(t, nil)
		data := randomBytes(1, 16*Align)
		x.mustPut(testKey, data)
		x.script(hang("b", late))
		buf, rep, err := read(x)
		if err != nil {
			t.Fatal(err)
		}
		if x.net.fireLate() != 0 {
			t.Error("the first writer was not silenced")
		}
		if !bytes.Equal(buf.Bytes(), data) {
			t.Error("wrong bytes")
		}
		buf.Release()
		accounted(t, rep)
		if rep.Hedges != 1 || len(rep.Moves) != 1 || rep.Moves[0].Why != MoveHedge || rep.Moves[0].Stripes != 1 || rep.Rails[1].Errors != 0 || len(rep.Faults) != 0 {
			t.Errorf("%+v", rep)
		}
		x.idle()
	}
	// Without it the read runs into its deadline.
	x := newWorld(t, func(c *Config) { c.Limits.Hedge = false })
	data := randomBytes(1, 16*Align)
	x.mustPut(testKey, data)
	x.script(hang("b", true))
	if _, _, err := read(x); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
	x.idle()
	// A deadline of the limits, or of one read, is as good as the caller's.
	for name, opt := range map[string]ReadOptions{"limits": {}, "options": {Deadline: time.Second}} {
		x := newWorld(t, func(c *Config) {
			if c.Limits.Deadline = time.Hour; name == "limits" {
				c.Limits.Deadline = time.Second
			}
		})
		x.mustPut(testKey, data)
		x.script(hang("b", true))
		buf, rep, err := x.w.Read(context.Background(), testKey, opt)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		buf.Release()
		if accounted(t, rep); rep.Hedges != 1 {
			t.Errorf("%s: %+v", name, rep)
		}
		x.idle()
	}
	x = newWorld(t, func(c *Config) { c.Limits.Hedge = false })
	x.mustPut(testKey, data)
	x.script(hang("b", true))
	_, _, err := x.w.Read(context.Background(), testKey, ReadOptions{Deadline: 100 * time.Millisecond})
	if pe := (*pipeline.Error)(nil); !errors.Is(err, context.DeadlineExceeded) || !errors.As(err, &pe) || pe.Layer != pipeline.LayerWait || !strings.Contains(err.Error(), "deadline of 100ms") {
		t.Errorf("%v", err)
	}
	x.idle()
	// The second writer fails, too: the first is waited for.
	x = newWorld(t, nil)
	x.mustPut(testKey, data)
	slow := make(chan struct{})
	var held atomic.Int64
	held.Store(-1)
	x.script(func(o wireOp) *fault {
		switch {
		case !isFetch(o):
		case o.at.Rail == "b" && held.CompareAndSwap(-1, int64(o.ref.Index)):
			return &fault{wait: slow}
		case o.at.Rail == "a" && int64(o.ref.Index) == held.Load():
			// The first goes on a while after the second has failed.
			return &fault{err: errWire, late: true, doFirst: func() { time.AfterFunc(100*time.Millisecond, func() { close(slow) }) }}
		}
		return nil
	})
	buf, rep, err := read(x)
	if err != nil {
		t.Fatal(err)
	}
	if x.net.fireLate() != 0 || !bytes.Equal(buf.Bytes(), data) {
		t.Error("a late write, or wrong bytes")
	}
	buf.Release()
	accounted(t, rep)
	if rep.Hedges != 1 || len(rep.Moves) != 0 || !rep.Exact || len(rep.Faults) != 1 || rep.Faults[0].Rail != "a" || !rep.Degraded {
		t.Errorf("%+v", rep)
	}
	x.idle()
	// Its memory cannot be silenced: it is condemned, and the object is whole.
	x = newWorld(t, nil)
	x.mustPut(testKey, data)
	x.net.noQuiet = errors.New("the QP does not go")
	x.script(hang("b", true))
	if _, _, err := read(x); !errors.Is(err, ErrNotQuiet) {
		t.Errorf("%v", err)
	}
	if st := x.slab.Stats(); st.Condemned != 16*Align || st.Extents != 0 {
		t.Errorf("%+v", st)
	}
}

// TestHedgeUnderRandomFaults hedges all the time while anything is late, wrong or
// fails: what is handed over is right, nothing writes afterwards, and the sums hold.
func TestHedgeUnderRandomFaults(t *testing.T) {
	defer goleak.VerifyNone(t)
	seed := testSeed(t)
	r := rand.New(rand.NewPCG(seed, 9))
	var hedges uint64
	done := 0
	for round := range 25 {
		x := threeRails(t, func(c *Config) { c.Limits.Cooldown, c.Limits.Quarantine = 0, 0 })
		data := randomBytes(seed+uint64(round), 1+r.IntN(24*Align))
		x.mustPut(testKey, data)
		var mu sync.Mutex
		x.script(func(o wireOp) *fault {
			mu.Lock()
			defer mu.Unlock()
			switch k := r.IntN(100); {
			case !isFetch(o) || k > 20:
				return nil
			case k < 10:
				return &fault{hang: true, late: k%2 == 0}
			case k < 15:
				return &fault{err: errWire, late: k%2 == 0}
			default:
				return &fault{flip: true}
			}
		})
		ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
		buf, rep, err := x.w.Read(ctx, testKey, ReadOptions{})
		cancel()
		if n := x.net.fireLate(); n != 0 {
			t.Fatalf("round %d: %d transfers were not silenced", round, n)
		}
		if err != nil {
			x.idle()
			continue
		}
		if !bytes.Equal(buf.Bytes(), data) {
			t.Fatalf("round %d: wrong bytes", round)
		}
		buf.Release()
		x.idle()
		accounted(t, rep)
		hedges += rep.Hedges
		done++
	}
	if done < 4 || hedges < 4 {
		t.Errorf("%d reads ended well with %d hedges: the test shows nothing", done, hedges)
	}
}

// TestReadLastResort: a shard that nothing else leads to is tried over paths that are
// left alone, and over a rail in quarantine; never over one whose port is down.
func TestReadLastResort(t *testing.T) {
	down := ""
	x := newWorld(t, func(c *Config) {
		c.Limits.Quarantine = time.Hour
		c.RailState = func(r string) string {
			if r == "b" {
				return down
			}
			return ""
		}
	})
	data := randomBytes(1, 8*Align)
	x.mustPut(testKey, data)
	x.script(func(o wireOp) *fault {
		if isFetch(o) {
			return &fault{err: errWire}
		}
		return nil
	})
	x.wantReadFails(ErrNoRails) // every path is left alone for an hour now
	x.script(nil)
	rep := x.reads(testKey, data)
	accounted(t, rep)
	if !rep.Degraded || len(rep.Excluded) != 4 {
		t.Errorf("%+v", rep)
	}
	// One shard is reached well, the other by nothing that was well.
	y := newWorld(t, func(c *Config) { c.Limits.Quarantine = time.Hour })
	y.mustPut(testKey, data)
	y.w.health.failedOn(Path{"a", 1}, errWire, time.Hour)
	y.w.health.corrupted("b", []int{0, 1}, "bits", time.Hour)
	plan := mustExplain(y)
	if len(plan.Rails) != 1 || plan.Rails[0].Name != "a" || plan.Rails[0].PlannedBytes != 8*Align {
		t.Errorf("%+v", plan.Rails)
	}
	accounted(t, y.reads(testKey, data))
	y.w.health.failedOn(Path{"a", 0}, errWire, time.Hour)
	if plan := mustExplain(y); len(plan.Rails) != 2 && len(plan.Rails) != 1 || plan.Rails[0].Name != "a" {
		t.Errorf("%+v", plan.Rails)
	}
	// What is down is down.
	down = "down (no cable)"
	x.w.health.failedOn(Path{"a", 0}, errWire, time.Hour)
	x.w.health.failedOn(Path{"a", 1}, errWire, time.Hour)
	if rep := x.reads(testKey, data); len(rep.Rails) != 1 || rep.Rails[0].Name != "a" {
		t.Errorf("%+v", rep.Rails)
	}
}

// TestHealthIsShared: what one worker of a process learns of a path, the others know.
func TestHealthIsShared(t *testing.T) {
	x := newWorld(t, func(c *Config) { c.Health = NewHealth() })
	data := randomBytes(1, 8*Align)
	x.mustPut(testKey, data)
	x.script(func(o wireOp) *fault {
		if isFetch(o) && o.at.Rail == "b" {
			return &fault{err: errWire}
		}
		return nil
	})
	x.reads(testKey, data)
	x.script(nil)
	x.net.moved = map[string]uint64{}
	other, err := NewWorker(x.cfg)
	if err != nil {
		t.Fatal(err)
	}
	left := len(x.cfg.Health.Status())
	rep := readBytes(t, other, testKey, data)
	if left == 0 || len(rep.Excluded) != left || !rep.Degraded {
		t.Errorf("%d paths are left alone, the other worker excludes %q", left, rep.Excluded)
	}
}
