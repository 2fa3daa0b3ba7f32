package ps

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/railstore/railstore/cue/deploy"
	"github.com/railstore/railstore/stages/table"
	"github.com/railstore/railstore/verbs"
	"github.com/railstore/railstore/verbs/verbstest"
)

// Handles fill every slot, the next one is refused; when they were waited for all is
// usable again. A handle is waited for once.
func TestHandles(t *testing.T) {
	each(t, func(t *testing.T, w where) {
		s := newSite(t, w, nil)
		for m, mode := range modes {
			ss := s.session(func(c *SessionConfig) { c.Modes = mode })
			const dim = 8
			tb := s.table(ss, table.Spec{Name: fmt.Sprint("h", m), Dim: dim})
			ctx := within(t, 30*time.Second)
			keys := make([]uint64, 40)
			for i := range keys {
				keys[i] = uint64(i)
			}
			if err := tb.Put(ctx, keys, rowsOf(keys, dim, 2)); err != nil {
				t.Fatal(err)
			}
			depth := s.dep.Lanes.QPs * s.dep.Lanes.Slots
			for round := range 3 {
				var hs []Handle
				rows := make([][]float32, depth)
				for i := range depth {
					rows[i] = make([]float32, dim)
					h, err := tb.StartGet(ctx, keys[i:i+1], rows[i], nil)
					if err != nil {
						t.Fatalf("%+v handle %d: %v", mode, i, err)
					}
					hs = append(hs, h)
				}
				if _, err := tb.StartGet(ctx, keys[:1], make([]float32, dim), nil); !errors.Is(err, ErrDepth) {
					t.Fatalf("one more than asyncDepth: %v", err)
				}
				if round == 1 {
					slices.Reverse(hs)
					slices.Reverse(rows)
				}
				for i, h := range hs {
					if err := h.Wait(ctx); err != nil {
						t.Fatal(err)
					}
					if err := h.Wait(ctx); !errors.Is(err, ErrHandleUsed) {
						t.Fatalf("waited for twice: %v", err)
					}
					k := uint64(i)
					if round == 1 {
						k = uint64(depth - 1 - i)
					}
					if !same(rows[i], rowOf(k, dim, 2)) {
						t.Fatalf("key %d: %v", k, rows[i])
					}
				}
				if n := ss.InFlight(); n != 0 {
					t.Fatalf("%d in flight", n)
				}
			}
			// A handle of far more chunks than the depth, and others beside it.
			many := make([]uint64, 20000)
			for i := range many {
				many[i] = uint64(i)
			}
			grads := make([]float32, len(many)*dim)
			for i := range grads {
				grads[i] = 1
			}
			h1, err := tb.StartUpdate(ctx, many, grads)
			if err != nil {
				t.Fatal(err)
			}
			if err := h1.Wait(ctx); err != nil {
				t.Fatal(err)
			}
			got := make([]float32, len(many)*dim)
			h2, err := tb.StartGet(ctx, many, got, nil)
			if err != nil {
				t.Fatal(err)
			}
			if err := h2.Wait(ctx); err != nil {
				t.Fatal(err)
			}
			if v := got[len(got)-1]; v != -0.01 {
				t.Fatalf("an UPDATE of a missing row made %v of it", v)
			}
			if err := (Handle{}).Wait(ctx); !errors.Is(err, ErrHandleUsed) {
				t.Error(err)
			}
		}
		if _, err := OpenSession(within(t, 10*time.Second), SessionConfig{Deployment: s.dep, Host: "c", Drivers: s.drivers, Control: s.server.Addr(),
			Identity: s.identity(), Depth: 9}); err == nil {
			t.Error("a depth beyond QPs × slots was taken")
		}
	})
}

// Who holds every slot by handles and then calls without one is told, not kept for ever.
func TestHandlesThatHoldEverything(t *testing.T) {
	each(t, func(t *testing.T, w where) {
		s := newSite(t, w, func(d *deploy.Deployment) {
			d.Lanes.QPs, d.Lanes.Slots, d.Lanes.WaitTimeout = 1, 1, deploy.Duration(200*time.Millisecond)
			for i := range d.Hosts {
				d.Hosts[i].Rails = d.Hosts[i].Rails[:1]
			}
		})
		for m, mode := range modes {
			ss := s.session(func(c *SessionConfig) { c.Modes = mode })
			tb, err := s.table(ss, table.Spec{Name: fmt.Sprint("f", m), Dim: 1}).On(0)
			if err != nil {
				t.Fatal(err)
			}
			row := []float32{0}
			h, err := tb.StartGet(context.Background(), []uint64{1}, row, nil)
			if err != nil {
				t.Fatal(err)
			}
			if err := tb.Get(context.Background(), []uint64{1}, row, nil); !errors.Is(err, ErrBusy) || shardErrors(err)[0].Applied != NotApplied {
				t.Errorf("%+v: %v", mode, err)
			}
			if err := h.Wait(context.Background()); err != nil {
				t.Fatal(err)
			}
			if err := tb.Get(context.Background(), []uint64{1}, row, nil); err != nil {
				t.Error(err)
			}
		}
	})
}

func TestPrefetchIsTakenOnce(t *testing.T) {
	each(t, func(t *testing.T, w where) {
		s := newSite(t, w, nil)
		for m, mode := range modes {
			ss := s.session(func(c *SessionConfig) { c.Modes = mode })
			const dim = 8
			tb := s.table(ss, table.Spec{Name: fmt.Sprint("p", m), Dim: dim})
			ctx := within(t, 30*time.Second)
			keys := []uint64{5, 6, 7, 5, 99}
			if err := tb.Put(ctx, keys[:3], rowsOf(keys[:3], dim, 4)); err != nil {
				t.Fatal(err)
			}
			p, err := tb.Prefetch(ctx, keys)
			if err != nil {
				t.Fatal(err)
			}
			for !p.Ready() {
				if ctx.Err() != nil {
					t.Fatal("it is never ready")
				}
			}
			rows, found := make([]float32, len(keys)*dim), make([]bool, len(keys))
			if err := p.Take(ctx, rows[:3], nil); !errors.Is(err, ErrShape) {
				t.Fatalf("rows of the wrong length: %v", err)
			}
			if err := p.Take(ctx, rows, found); err != nil {
				t.Fatal(err)
			}
			want := append(rowsOf(keys[:4], dim, 4), make([]float32, dim)...)
			if !same(rows, want) || !slices.Equal(found, []bool{true, true, true, true, false}) {
				t.Fatalf("%v %v", rows, found)
			}
			if err := p.Take(ctx, rows, found); !errors.Is(err, ErrHandleUsed) || p.Ready() {
				t.Errorf("taken twice: %v", err)
			}
			for range 30 {
				q, err := tb.Prefetch(ctx, keys)
				if err != nil {
					t.Fatal(err)
				}
				q.Drop()
			}
			if err := tb.Get(ctx, keys, rows, nil); err != nil || ss.InFlight() != 0 {
				t.Fatalf("after prefetches that were dropped: %v, %d in flight", err, ss.InFlight())
			}
		}
	})
}

// Warm GETs and UPDATEs allocate nothing, at the client and at the shard (both are in
// this process).
func TestWarmCallsAllocateNothing(t *testing.T) {
	if raceOn {
		t.Skip("needs a build without the race detector, which allocates")
	}
	if os.Getenv("RS_TEST_IBV") != "" {
		t.Skip("needs the providers loop and soft, RS_TEST_IBV names devices")
	}
	for _, w := range wheres(t) {
		if w.name == "loop" {
			w.open = func() verbs.Driver { return verbstest.NewLoop(verbstest.LoopOptions{}) }
		}
		w.beat = time.Minute // heartbeats allocate
		for _, workers := range []int{0, 1} {
			t.Run(fmt.Sprintf("%s/getWorkers=%d", w.name, workers), func(t *testing.T) { warmCalls(t, w, workers) })
		}
	}
}

func warmCalls(t *testing.T, w where, workers int) {
	s := newSite(t, w, func(d *deploy.Deployment) {
		d.Server.GetWorkers = workers
		d.Lanes.RequestBytes, d.Lanes.ResponseBytes = 16<<10, 16<<10 // 500 rows are several chunks
		d.Health.TouchTimeout = deploy.Duration(20 * time.Second)    // a loaded machine is no failure
	})
	ctx, cancel := context.WithTimeout(context.Background(), time.Hour) // a deadline is what callers have
	defer cancel()
	for m, mode := range modes {
		ss := s.session(func(c *SessionConfig) { c.Modes = mode })
		const dim = 8
		tb := s.table(ss, table.Spec{Name: fmt.Sprint("a", m), Dim: dim, Optimizer: table.Defaults(table.Adam)})
		for _, n := range []int{1, 64, 500} {
			keys := make([]uint64, n)
			for i := range keys {
				keys[i] = uint64(i % max(1, 3*n/4)) // some come twice
			}
			rows, found := make([]float32, n*dim), make([]bool, n)
			for _, call := range []struct {
				name string
				f    func() error
			}{
				{"put", func() error { return tb.Put(ctx, keys, rows) }},
				{"get", func() error { return tb.Get(ctx, keys, rows, found) }},
				{"update", func() error { return tb.Update(ctx, keys, rows) }},
				{"exists", func() error { return tb.Exists(ctx, keys, found) }},
				{"start", func() error {
					h, err := tb.StartGet(ctx, keys, rows, nil)
					if err == nil {
						err = h.Wait(ctx)
					}
					return err
				}},
			} {
				run := func() {
					if err := call.f(); err != nil {
						t.Fatal(err)
					}
				}
				for range 50 {
					run()
				}
				// What runs beside it (the garbage collector, the control plane) may allocate,
				// too: the least of several runs is what the code itself takes.
				least := 1e9
				for i := 0; i < 10 && least > 0; i++ {
					least = min(least, testing.AllocsPerRun(50, run))
				}
				if least > 0 {
					t.Errorf("%+v: %s of %d rows allocates %v times", mode, call.name, n, least)
				}
			}
		}
	}
}

// Many goroutines over few slots and pieces: nobody waits for ever for what another one
// holds, and every row is a whole version of itself.
func TestManyCallersFewSlots(t *testing.T) {
	each(t, func(t *testing.T, w where) {
		s := newSite(t, w, func(d *deploy.Deployment) {
			d.Lanes.QPs, d.Lanes.Slots = 1, 2
			d.Reader.MaxStaging = 2 * MaxPiece
			d.Server.GetWorkers = 1
			for i := range d.Hosts {
				d.Hosts[i].Rails = d.Hosts[i].Rails[:1]
			}
		})
		for m, mode := range modes {
			ss := s.session(func(c *SessionConfig) { c.Modes = mode })
			const dim = 32
			tb := s.table(ss, table.Spec{Name: fmt.Sprint("m", m), Dim: dim})
			ctx := within(t, 60*time.Second)
			keys := make([]uint64, 120)
			for i := range keys {
				keys[i] = uint64(i)
			}
			if err := tb.Put(ctx, keys, make([]float32, len(keys)*dim)); err != nil {
				t.Fatal(err)
			}
			var wg sync.WaitGroup
			for g := range 6 {
				wg.Go(func() {
					rows := make([]float32, len(keys)*dim)
					for i := range 15 {
						if g < 2 {
							for j := range rows {
								rows[j] = float32(g*1000 + i)
							}
							if err := tb.Put(ctx, keys, rows); err != nil {
								t.Error(err)
								return
							}
							continue
						}
						if err := tb.Get(ctx, keys, rows, nil); err != nil {
							t.Error(err)
							return
						}
						for k := range keys {
							row := rows[k*dim:][:dim]
							if row[0] != row[dim-1] || slices.Min(row) != slices.Max(row) {
								t.Errorf("%+v: a torn row of key %d: %v", mode, k, row)
								return
							}
						}
					}
				})
			}
			wg.Wait()
		}
	})
}

// Devices that gather few pieces, and register little at once.
func TestGatherOnSmallDevices(t *testing.T) {
	w := where{"loop", func() verbs.Driver {
		return verbstest.NewLoop(verbstest.LoopOptions{Attr: func(a *verbs.DeviceAttr) { a.MaxSGE, a.MaxMRSize, a.MaxMR = 2, 512<<10, 4096 }})
	}, func(r, host int) string { return fmt.Sprintf("loop:10.%d.0.%d", r, host+1) }, 2, 0}
	s := newSite(t, w, nil)
	ss := s.session(func(c *SessionConfig) { c.Modes = Modes{Get: DirectSG, Put: Read, PutProtocol: 2} })
	const dim = 1000 // rows that lie in two MRs are among them
	tb := s.table(ss, table.Spec{Name: "s", Dim: dim})
	ctx := within(t, 30*time.Second)
	keys := make([]uint64, 2000)
	for i := range keys {
		keys[i] = uint64(i)
	}
	want := rowsOf(keys, dim, 1)
	if err := tb.Put(ctx, keys, want); err != nil {
		t.Fatal(err)
	}
	got := make([]float32, len(want))
	if err := tb.Get(ctx, keys, got, nil); err != nil {
		t.Fatal(err)
	}
	if !same(got, want) {
		t.Error("rows differ")
	}
	if n := s.shard(0).service.Stats().DirectSG; n == 0 {
		t.Error("nothing was gathered")
	}
}

// A barrier is passed when all have come, and what each did before is done.
func TestBarrier(t *testing.T) {
	each(t, func(t *testing.T, w where) {
		s := newSite(t, w, nil)
		a, b := s.session(nil), s.session(nil)
		ctx := within(t, 30*time.Second)
		ta := s.table(a, table.Spec{Name: "b", Dim: 1})
		tb := s.table(b, table.Spec{Name: "b", Dim: 1})
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := ta.Put(ctx, []uint64{1}, []float32{5}); err != nil {
				t.Error(err)
			}
			if err := a.Barrier(ctx, "x", 2); err != nil {
				t.Error(err)
			}
		})
		if err := b.Barrier(ctx, "x", 2); err != nil {
			t.Error(err)
		}
		row := []float32{0}
		if err := tb.Get(ctx, []uint64{1}, row, nil); err != nil || row[0] != 5 {
			t.Errorf("%v %v", row, err)
		}
		wg.Wait()
		short, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
		defer cancel()
		if err := a.Barrier(short, "alone", 2); err == nil {
			t.Error("a barrier for two was passed by one")
		}
	})
}

func TestFence(t *testing.T) {
	var f fence
	if err := f.wait(context.Background()); err != nil {
		t.Fatal(err)
	}
	a := f.enter()
	short, cancel := context.WithCancel(context.Background())
	cancel()
	if err := f.wait(short); err == nil {
		t.Fatal("it did not wait for what had begun")
	}
	b := f.enter() // after the first wait's moment
	done := make(chan error, 1)
	go func() { done <- f.wait(context.Background()) }()
	f.leave(b)
	select {
	case <-done:
		t.Fatal("it did not wait for what began before an earlier wait")
	case <-time.After(10 * time.Millisecond):
	}
	f.leave(a)
	if err := <-done; err != nil || len(f.past) != 0 {
		t.Fatal(err, f.past)
	}
}

// A session over lanes of another one.
func TestAttach(t *testing.T) {
	each(t, func(t *testing.T, w where) {
		s := newSite(t, w, nil)
		ss := s.session(nil)
		ctx := within(t, 30*time.Second)
		at, err := Attach(ctx, AttachConfig{Lanes: ss.Lanes(), Name: ss.Name(), Modes: Modes{Get: DirectSG}})
		if err != nil {
			t.Fatal(err)
		}
		tb := s.table(ss, table.Spec{Name: "x", Dim: 2})
		other, err := at.Table(ctx, "x")
		if err != nil {
			t.Fatal(err)
		}
		keys := []uint64{1, 2, 3}
		if err := tb.Put(ctx, keys, rowsOf(keys, 2, 0)); err != nil {
			t.Fatal(err)
		}
		got := make([]float32, 6)
		if err := other.Get(ctx, keys, got, nil); err != nil || !same(got, rowsOf(keys, 2, 0)) {
			t.Errorf("%v %v", got, err)
		}
		if err := at.Close(ctx); err != nil {
			t.Error(err)
		}
		if err := other.Get(ctx, keys, got, nil); !errors.Is(err, ErrClosed) {
			t.Errorf("after Close: %v", err)
		}
		if err := tb.Get(ctx, keys, got, nil); err != nil {
			t.Errorf("the lanes' owner after it: %v", err)
		}
	})
}
