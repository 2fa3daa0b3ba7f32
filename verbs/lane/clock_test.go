package lane

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/railstore/railstore/verbs"
	"github.com/railstore/railstore/verbs/verbstest"
)

// bubble runs a test in virtual time. All that waits must be made inside.
func bubble(t *testing.T, f func(t *testing.T, tl *timeline)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { f(t, &timeline{start: time.Now()}) })
}

// rig is newRig with nothing that spins, so that a bubble's time can pass: both
// ends sleep on the CQ's event.
func (tl *timeline) rig(t *testing.T, cfg Config, d verbs.Driver, h Handler) *rig {
	cfg.Notify = Imm
	cfg.Waiting = func(Label) { tl.note("ask") }
	// A bubble ends only when all its goroutines have: no other check is needed.
	return newRig(t, rigOptions{cfg: cfg, workers: 2, driver: &watchedPosts{d, tl}, poller: PollerConfig{Spin: -1}, noLeak: true}, h)
}

func plainLoop() *verbstest.Loop { return verbstest.NewLoop(verbstest.LoopOptions{}) }

// timeline takes down when what happened.
type timeline struct {
	start time.Time
	mu    sync.Mutex
	at    map[string][]time.Duration
}

func (tl *timeline) note(what string) {
	tl.mu.Lock()
	defer tl.mu.Unlock()
	if tl.at == nil {
		tl.at = map[string][]time.Duration{}
	}
	tl.at[what] = append(tl.at[what], time.Since(tl.start))
}

func (tl *timeline) of(what string) []time.Duration {
	tl.mu.Lock()
	defer tl.mu.Unlock()
	return slices.Clone(tl.at[what])
}

// watchedPosts takes touches down: WRITEs without payload.
type watchedPosts struct {
	verbs.Driver
	tl *timeline
}

func (d *watchedPosts) Open(name string) (verbs.DriverContext, error) {
	c, err := d.Driver.Open(name)
	return &watchedContext{c, d.tl}, err
}

type watchedContext struct {
	verbs.DriverContext
	tl *timeline
}

func (c *watchedContext) AllocPD() (verbs.DriverPD, error) {
	p, err := c.DriverContext.AllocPD()
	return &watchedPD{p, c.tl}, err
}

type watchedPD struct {
	verbs.DriverPD
	tl *timeline
}

func (p *watchedPD) CreateQP(init verbs.DriverQPInit) (verbs.DriverQP, error) {
	q, err := p.DriverPD.CreateQP(init)
	return &watchedQP{q, p.tl}, err
}

type watchedQP struct {
	verbs.DriverQP
	tl *timeline
}

func (q *watchedQP) PostSend(wrs []verbs.SendWR, sges []verbs.SGE) (int, error) {
	for i := range wrs {
		if wrs[i].NumSGE == 0 {
			q.tl.note("touch")
		}
	}
	return q.DriverQP.PostSend(wrs, sges)
}

// series is from, from+every, … below to.
func series(from, every, to time.Duration) (out []time.Duration) {
	for at := from; at < to; at += every {
		out = append(out, at)
	}
	return out
}

func wantTimes(t *testing.T, what string, got, want []time.Duration) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s at %v, want %v", what, got, want)
	}
}

// TestWaitTimes: what a call does while it waits, with the times that lanes have
// when nobody says otherwise, to the nanosecond.
func TestWaitTimes(t *testing.T) {
	bubble(t, func(t *testing.T, tl *timeline) {
		r := tl.rig(t, Config{Slots: 4}, plainLoop(), newHeld())
		c := r.pool.Counters()
		_, err := r.pool.Call(context.Background(), Request{}, nil)
		took := time.Since(tl.start)
		wantLayer(t, err, LayerWait, ErrTimeout)
		if took != time.Minute {
			t.Errorf("the call waited %v, want 60 s", took)
		}
		wantTimes(t, "touches", tl.of("touch"), series(250*time.Millisecond, 250*time.Millisecond, time.Minute))
		wantTimes(t, "questions", tl.of("ask"), series(time.Second, time.Second, time.Minute))
		if n := c.Harvests.Load(); n != 60*20-1 {
			t.Errorf("%d harvests in a minute, want one every 50 ms", n)
		}
	})
}

// TestQuickCallsDoNothing: what is over before a time has come costs none of it.
func TestQuickCallsDoNothing(t *testing.T) {
	for _, c := range []struct {
		serve                    time.Duration
		touches, asks, harvested int
	}{
		{0, 0, 0, 0}, {49 * time.Millisecond, 0, 0, 0}, {51 * time.Millisecond, 0, 0, 1}, {249 * time.Millisecond, 0, 0, 4},
		{251 * time.Millisecond, 1, 0, 5}, {999 * time.Millisecond, 3, 0, 19}, {1001 * time.Millisecond, 4, 1, 20},
	} {
		h := HandlerFunc(func(x *Exchange) {
			if c.serve > 0 {
				<-time.After(c.serve)
			}
			x.Reply(StatusOK, 0)
		})
		bubble(t, func(t *testing.T, tl *timeline) {
			r := tl.rig(t, Config{}, plainLoop(), h)
			if _, err := r.pool.Call(context.Background(), Request{}, nil); err != nil {
				t.Fatal(err)
			}
			if took := time.Since(tl.start); took != c.serve {
				t.Errorf("%v: the call took %v", c.serve, took)
			}
			if a, b, n := len(tl.of("touch")), len(tl.of("ask")), int(r.pool.Counters().Harvests.Load()); a != c.touches || b != c.asks || n != c.harvested {
				t.Errorf("%v: %d touches, %d questions, %d harvests; want %+v", c.serve, a, b, n, c)
			}
		})
	}
}

// TestEachCanBeTurnedOff: a negative time is never, for each alone.
func TestEachCanBeTurnedOff(t *testing.T) {
	for _, off := range []string{"touch", "harvest", "ask"} {
		cfg := Config{WaitTimeout: 10 * time.Second}
		switch off {
		case "touch":
			cfg.TouchAfter = -1
		case "harvest":
			cfg.HarvestEvery = -1
		case "ask":
			cfg.ProbeAfter = -1
		}
		bubble(t, func(t *testing.T, tl *timeline) {
			r := tl.rig(t, cfg, plainLoop(), newHeld())
			_, err := r.pool.Call(context.Background(), Request{}, nil)
			wantLayer(t, err, LayerWait, ErrTimeout)
			got := map[string]int{"touch": len(tl.of("touch")), "ask": len(tl.of("ask")), "harvest": int(r.pool.Counters().Harvests.Load())}
			want := map[string]int{"touch": 39, "ask": 9, "harvest": 199}
			want[off] = 0
			for k, n := range want {
				if got[k] != n {
					t.Errorf("without %s: %d of %s in 10 s, want %d", off, got[k], k, n)
				}
			}
		})
	}
}

// TestTouchTimeout: a touch that is neither acknowledged nor refused retires the
// lane two seconds after it, to be noticed with the next one.
func TestTouchTimeout(t *testing.T) {
	bubble(t, func(t *testing.T, tl *timeline) {
		loop, h := plainLoop(), newHeld()
		r := tl.rig(t, Config{}, loop, h)
		go func() {
			<-h.in
			loop.Hold(true) // no packet passes any more
		}()
		_, err := r.pool.Call(context.Background(), Request{}, nil)
		wantLayer(t, err, LayerTracked, ErrTracked)
		if took := time.Since(tl.start); took != 2250*time.Millisecond {
			t.Errorf("noticed after %v, want 250 ms and 2 s", took)
		}
		wantTimes(t, "touches", tl.of("touch"), []time.Duration{250 * time.Millisecond}) // one at a time
		if f := r.lanes[0].Flags(); !f.Rebuildable {
			t.Errorf("%+v", f)
		}
		loop.Hold(false)
	})
}

// TestTrackedTimeout: a caller that finds no room in the send queue waits ten
// seconds for the completions that stay out.
func TestTrackedTimeout(t *testing.T) {
	bubble(t, func(t *testing.T, tl *timeline) {
		fault := verbstest.NewFault(plainLoop())
		r := tl.rig(t, Config{TouchAfter: -1}, fault, echo)
		qpn := r.lanes[0].QPN()
		fault.DropCompletions(func(wc verbs.WC) bool { return wc.Op == verbs.WCWrite && wc.QPN == qpn })
		var err error
		var last time.Time
		for n := 0; err == nil && n < 100; n++ {
			last = time.Now()
			_, err = r.pool.Call(context.Background(), Request{}, nil)
		}
		wantLayer(t, err, LayerTracked, ErrTracked)
		if took := time.Since(last); took != 10*time.Second {
			t.Errorf("waited %v, want 10 s", took)
		}
	})
}

// TestManyWaitersTouchOnce: one touch at a time is enough for a lane, however many
// calls wait on it.
func TestManyWaitersTouchOnce(t *testing.T) {
	bubble(t, func(t *testing.T, tl *timeline) {
		loop, h := plainLoop(), newHeld()
		r := tl.rig(t, Config{Slots: 2, TouchTimeout: -1, WaitTimeout: 5 * time.Second}, loop, h)
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() {
				_, err := r.pool.Call(context.Background(), Request{}, nil)
				if !errors.Is(err, ErrTimeout) {
					t.Error(err)
				}
			})
			<-h.in
		}
		loop.Hold(true)
		wg.Wait()
		wantTimes(t, "touches", tl.of("touch"), []time.Duration{250 * time.Millisecond})
		loop.Hold(false)
	})
}

// TestQuarantineTimes: a slot whose caller gave up is looked after at the same
// times, counted from its request.
func TestQuarantineTimes(t *testing.T) {
	bubble(t, func(t *testing.T, tl *timeline) {
		r := tl.rig(t, Config{WaitTimeout: 4 * time.Second}, plainLoop(), newHeld())
		ctx, cancel := context.WithTimeout(context.Background(), 700*time.Millisecond)
		defer cancel()
		tk, err := r.pool.Start(context.Background(), Request{})
		if err != nil {
			t.Fatal(err)
		}
		_, err = tk.Wait(ctx, nil)
		wantLayer(t, err, LayerWait, context.DeadlineExceeded)
		_, err = r.pool.Call(context.Background(), Request{}, nil) // waits for the slot
		wantLayer(t, err, LayerWait, ErrTimeout)
		if took := time.Since(tl.start); took != 4*time.Second {
			t.Errorf("the lane was given up after %v", took)
		}
		want := append(series(250*time.Millisecond, 250*time.Millisecond, 700*time.Millisecond), series(700*time.Millisecond, 250*time.Millisecond, 4*time.Second)...)
		wantTimes(t, "touches", tl.of("touch"), want)
		wantTimes(t, "questions", tl.of("ask"), series(time.Second, time.Second, 4*time.Second))
	})
}
