package lane

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"
)

// readyKeeper is at hand and has nothing to do.
type readyKeeper struct{}

func (readyKeeper) Wanted(string) bool { return false }
func (readyKeeper) Down(*Lane)         {}

// watchAll is a lane's configuration with all that looks after waiting calls,
// watchNone with nothing of it.
func watchAll(n Notify) Config {
	return Config{Notify: n, RequestBytes: 8192, ResponseBytes: 8192, Waiting: func(Label) {}}
}

func watchNone(n Notify) Config {
	c := watchAll(n)
	c.Waiting = nil
	c.TouchAfter, c.TouchTimeout, c.HarvestEvery, c.ProbeAfter = -1, -1, -1, -1
	return c
}

// BenchmarkWatched is what looking after lanes costs healthy calls: blocks of calls
// on a lane with all of it and on one with nothing take turns, so that what else
// the machine does hits both. on/off is the ratio of the medians.
func BenchmarkWatched(b *testing.B) {
	const block = 500
	for _, p := range providers {
		for _, n := range []Notify{Adaptive, Imm, Scan} {
			b.Run(fmt.Sprintf("provider=%s/notify=%v", p.name, n), func(b *testing.B) {
				on := benchRig(b, rigOptions{driver: p.open(), cfg: watchAll(n)})
				off := benchRig(b, rigOptions{driver: p.open(), cfg: watchNone(n)})
				on.pool.SetKeeper(readyKeeper{})
				payload, buf := make([]byte, 64), make([]byte, 64)
				ctx := context.Background()
				run := func(r *rig) time.Duration {
					start := time.Now()
					for range block {
						if _, err := r.pool.Call(ctx, Request{Payload: payload}, buf); err != nil {
							b.Fatal(err)
						}
					}
					return time.Since(start)
				}
				run(on)
				run(off)
				var with, without, ratios []time.Duration
				b.ReportAllocs()
				for i := 0; b.Loop(); i++ {
					var x, y time.Duration
					if i%2 == 0 {
						x = run(on)
						y = run(off)
					} else {
						y = run(off)
						x = run(on)
					}
					with, without, ratios = append(with, x), append(without, y), append(ratios, x*1e6/y)
				}
				x, y := median(with), median(without)
				b.ReportMetric(block/x.Seconds(), "on-calls/s")
				b.ReportMetric(block/y.Seconds(), "off-calls/s")
				b.ReportMetric(float64(x)/float64(y), "on/off")
				b.ReportMetric(float64(median(ratios))/1e6, "pairs-on/off")
			})
		}
	}
}

func median(d []time.Duration) time.Duration {
	s := slices.Clone(d)
	slices.Sort(s)
	return s[len(s)/2]
}

// TestWatchingAllocatesNothing: neither for calls that are quick nor for those that
// wait long enough for all that looks after them.
func TestWatchingAllocatesNothing(t *testing.T) {
	if raceEnabled {
		t.Skip("needs a build without -race: the detector allocates")
	}
	for _, n := range []Notify{Adaptive, Imm, Scan} {
		for _, slow := range []bool{false, true} {
			if slow && n == Scan {
				continue // who begins to sleep kicks the poller out of the CQ's event, at the price of a context
			}
			cfg, h := watchAll(n), Handler(echo)
			if slow {
				cfg.TouchAfter, cfg.TouchEvery, cfg.HarvestEvery = 20*time.Microsecond, 20*time.Microsecond, 20*time.Microsecond
				cfg.ProbeAfter, cfg.ProbeEvery = 20*time.Microsecond, 20*time.Microsecond
				h = HandlerFunc(func(x *Exchange) {
					for start := clock(); clock()-start < 300*time.Microsecond; {
						pause()
					}
					x.Reply(StatusOK, 0)
				})
			}
			r := newRig(t, rigOptions{cfg: cfg, workers: 1}, h)
			r.pool.SetKeeper(readyKeeper{})
			ctx, payload, buf := context.Background(), make([]byte, 64), make([]byte, 64)
			call := func() {
				if _, err := r.pool.Call(ctx, Request{Payload: payload}, buf); err != nil {
					t.Fatal(err)
				}
			}
			for range 20 {
				call()
			}
			runs := 500
			if slow {
				runs = 50
			}
			if a := testing.AllocsPerRun(runs, call); a != 0 {
				t.Errorf("%v, slow %v: %v allocations a call", n, slow, a)
			}
			c := r.pool.Counters()
			if slow && (c.Touches.Load() == 0 || c.Harvests.Load() == 0 || c.Probes.Load() == 0) {
				t.Errorf("%v: nothing looked after the calls: %v", n, c.Fields())
			}
		}
	}
}
