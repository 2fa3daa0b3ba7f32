package lane

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/railstore/railstore/verbs"
	"github.com/railstore/railstore/verbs/verbstest"
)

// rebuild gives lane 0 new QPs on the same memory, as the two ends of a handshake
// would.
func (r *rig) rebuild(cgen, sgen uint32) {
	r.tb.Helper()
	l := r.lanes[0]
	if !begin(r.tb, l) {
		r.tb.Fatalf("a rebuild was refused in state %v, %+v", l.State(), l.Flags())
	}
	if err := r.served[0].Close(); err != nil {
		r.tb.Fatal(err)
	}
	cm := Memory{MR: r.client.mr, Bytes: r.client.region.Bytes()[:r.cfg.ClientBytes()], Generation: cgen}
	sm := Memory{MR: r.server.mr, Bytes: r.server.region.Bytes()[:r.cfg.ServerBytes()], Generation: sgen}
	c, s := r.qps(r.cfg, r.cfg, verbs.PathOpts{RetryCount: 6, RNRRetry: 7, Access: verbs.RemoteWrite | verbs.RemoteRead})
	r.cfg.Clear(sm)
	sl, err := r.acceptor.Add(r.server.poller, s, sm, Peer{Slots: r.cfg.ClientSlots(cm), Generation: cgen}, r.cfg, l.Label())
	if err != nil {
		r.tb.Fatal(err)
	}
	r.served[0] = sl
	if err := l.FinishRebuild(c, cgen, Peer{Slots: r.cfg.ServerSlots(sm), Generation: sgen}); err != nil {
		r.tb.Fatal(err)
	}
}

func begin(tb testing.TB, l *Lane) bool {
	tb.Helper()
	ok, err := l.BeginRebuild()
	if err != nil {
		tb.Fatal(err)
	}
	return ok
}

func TestRebuild(t *testing.T) {
	for _, n := range []Notify{Adaptive, Imm, Scan} {
		t.Run(n.String(), func(t *testing.T) {
			stop := make(chan struct{})
			r := newRig(t, rigOptions{workers: 4, cfg: Config{Notify: n, Slots: 2}}, HandlerFunc(func(x *Exchange) {
				if x.Op() == 1 {
					select {
					case <-stop:
					case <-x.Context().Done():
					}
				}
				x.Reply(StatusOK, copy(x.Response(), x.Payload()))
			}))
			t.Cleanup(func() { close(stop) })
			l := r.lanes[0]
			if begin(t, l) {
				t.Fatal("an active lane was rebuilt")
			}
			for round := range uint32(3) {
				// One slot in quarantine, one with a waiter.
				ctx, cancel := context.WithTimeout(context.Background(), 5*time.Millisecond)
				_, err := r.pool.Call(ctx, Request{Op: 2}, nil)
				cancel()
				if err != nil && !errors.Is(err, context.DeadlineExceeded) {
					t.Fatal(err)
				}
				old, err := r.pool.Start(context.Background(), Request{Op: 1})
				if err != nil {
					t.Fatal(err)
				}
				waited := make(chan error, 1)
				tk, err := r.pool.Start(context.Background(), Request{Op: 1})
				if err != nil {
					t.Fatal(err)
				}
				go func() { _, err := tk.Wait(context.Background(), nil); waited <- err }()
				l.Fail(l.errorf(LayerNode, "call", ErrPeerDead), true)
				wantLayer(t, <-waited, LayerNode, ErrPeerDead)
				epoch := l.Flags().Epoch
				r.rebuild(1000+round, 2000+round)
				if f := l.Flags(); l.State() != Active || f.Dirty || f.Epoch != epoch+1 || l.Err() != nil {
					t.Fatalf("after the rebuild: %v, %+v, %v", l.State(), f, l.Err())
				}
				// A ticket of before does not get an answer of after.
				_, err = old.Wait(context.Background(), nil)
				wantLayer(t, err, LayerNode, ErrPeerDead)
				if n := r.pool.Counters().PendingRPC.Load(); n != 0 {
					t.Fatalf("%d requests are said to be under way", n)
				}
				var wg sync.WaitGroup
				for i := range 20 {
					wg.Add(1)
					go func() {
						defer wg.Done()
						buf := make([]byte, 100)
						p := fmt.Sprintf("round %d call %d", round, i)
						got, err := r.pool.Call(context.Background(), Request{Payload: []byte(p)}, buf)
						if err != nil || string(buf[:got.N]) != p {
							t.Errorf("asked %q, got %q, %v", p, buf[:got.N], err)
						}
					}()
				}
				wg.Wait()
			}
			if got := r.eventNames(); !slices.Contains(got, EventLaneRecovered) {
				t.Fatalf("events %v", got)
			}
			if n := r.client.poller.scanning.Load(); n != 0 {
				t.Fatalf("%d scans too many", n)
			}
		})
	}
}

func TestRebuildSteps(t *testing.T) {
	r := newRig(t, rigOptions{}, echo)
	l := r.lanes[0]
	if err := l.FinishRebuild(nil, 1, Peer{}); err == nil {
		t.Fatal("an active lane took new QPs")
	}
	l.Fail(l.errorf(LayerDevice, "call", verbs.WCRemAccess), false)
	if begin(t, l) {
		t.Fatal("what cannot be cured was rebuilt")
	}
	l.rebuildable.Store(true)
	if !begin(t, l) || l.State() != Rebuilding || begin(t, l) {
		t.Fatal("begin")
	}
	if err := l.FinishRebuild(nil, l.gen, l.peer); err == nil {
		t.Fatal("the old generation was taken")
	}
	l.AbortRebuild(false)
	if l.State() != Dirty || !begin(t, l) {
		t.Fatalf("after an abort: %v", l.State())
	}
	l.AbortRebuild(true)
	if l.State() != Dead || begin(t, l) || !l.Flags().Dead {
		t.Fatalf("after the last abort: %v", l.State())
	}
	_, err := r.pool.Call(context.Background(), Request{}, nil)
	wantLayer(t, err, LayerDevice, verbs.WCRemAccess)
}

// TestFailEachVerb brings a lane up, uses it and takes it down with each verb
// failing in turn.
func TestFailEachVerb(t *testing.T) {
	verbstest.FailEach(t, func() verbs.Driver { return verbstest.NewLoop(verbstest.LoopOptions{}) }, func(d verbs.Driver) (err error) {
		var undo []func() error
		defer func() {
			for i := len(undo) - 1; i >= 0; i-- {
				err = errors.Join(err, undo[i]())
			}
		}()
		own := func(f func() error) { undo = append(undo, f) }
		// What fails after the last call is told by an event only.
		var mu sync.Mutex
		var told []error
		own(func() error { mu.Lock(); defer mu.Unlock(); return errors.Join(told...) })
		cfg := Config{Slots: 2, RequestBytes: 64, ResponseBytes: 64, WaitTimeout: 100 * time.Millisecond, Events: func(e Event) {
			mu.Lock()
			defer mu.Unlock()
			told = append(told, e.Err)
		}}
		type side struct {
			ctx *verbs.Context
			pd  *verbs.PD
			cq  *verbs.CQ
			mem Memory
			qp  *verbs.QP
			ep  verbs.Endpoint
			p   *Poller
		}
		var s [2]side
		acceptor := NewAcceptor(echo, AcceptorConfig{})
		own(acceptor.Close)
		for i := range s {
			x := &s[i]
			if x.ctx, err = verbs.Open(d, fmt.Sprint("127.0.1.", i)); err != nil {
				return err
			}
			own(x.ctx.Close)
			if x.pd, err = x.ctx.AllocPD(); err != nil {
				return err
			}
			own(x.pd.Close)
			region, err := verbs.MapRegion(max(cfg.ClientBytes(), cfg.ServerBytes()))
			if err != nil {
				return err
			}
			own(region.Close)
			mr, err := x.pd.Register(region, verbs.LocalWrite|verbs.RemoteWrite)
			if err != nil {
				return err
			}
			own(mr.Close)
			x.mem = Memory{MR: mr, Bytes: region.Bytes(), Generation: uint32(i)}
			if x.cq, err = x.ctx.CreateCQ(CQDepth(cfg, 1, 1)); err != nil {
				return err
			}
			own(x.cq.Close)
			x.p = StartPoller(x.cq, PollerConfig{})
			own(func() error { x.p.Close(); return x.p.Err() })
			caps := cfg.ClientCap()
			if i == 1 {
				caps = cfg.ServerCap()
			}
			if x.qp, err = x.pd.CreateQP(verbs.QPInit{SendCQ: x.cq, RecvCQ: x.cq, Cap: caps}); err != nil {
				return err
			}
			own(x.qp.Close)
			gids, err := x.ctx.GIDs(1)
			if err != nil {
				return err
			}
			x.ep = verbs.Endpoint{GID: gids[0].GID, QPN: x.qp.QPN(), MTU: 1024}
		}
		for i := range s {
			if err := s[i].qp.Connect(s[i].ep, s[1-i].ep, verbs.PathOpts{RetryCount: 1, RNRRetry: 7, Timeout: 8, Access: verbs.RemoteWrite}, nil); err != nil {
				return err
			}
		}
		if _, err := acceptor.Add(s[1].p, s[1].qp, s[1].mem, Peer{Slots: cfg.ClientSlots(s[0].mem)}, cfg, Label{}); err != nil {
			return err
		}
		l, err := New(s[0].p, s[0].qp, s[0].mem, Peer{Slots: cfg.ServerSlots(s[1].mem), Generation: 1}, cfg, Label{})
		if err != nil {
			return err
		}
		pool := NewPool(l)
		own(pool.Close)
		const calls = 3
		for range calls {
			if _, err := pool.Call(context.Background(), Request{}, nil); err != nil {
				return err
			}
		}
		// An answer is seen in memory before its completion is polled, and the receive
		// is posted again after that. What fails once the lane closes is told nobody.
		for l.State() == Active && l.polled.Load() < calls {
			s[0].p.help()
		}
		for i := range s {
			_ = s[i].p.Err() // waits for the lock, which is held until what is owed was posted
		}
		return nil
	})
}

// TestIdleCostsNothing: with adaptive notification neither end's poller wakes up
// while nothing happens.
func TestIdleCostsNothing(t *testing.T) {
	r := newRig(t, rigOptions{workers: 1}, echo)
	for range 50 {
		if _, err := r.pool.Call(context.Background(), Request{}, nil); err != nil {
			t.Fatal(err)
		}
	}
	<-time.After(50 * time.Millisecond) // both fall asleep
	sleeps := r.client.poller.count.PollerSleeps.Load() + r.server.poller.count.PollerSleeps.Load()
	<-time.After(300 * time.Millisecond)
	if n := r.client.poller.count.PollerSleeps.Load() + r.server.poller.count.PollerSleeps.Load() - sleeps; n > 0 {
		t.Fatalf("the pollers woke up %d times in 300 ms of idling", n)
	}
	if _, err := r.pool.Call(context.Background(), Request{}, nil); err != nil {
		t.Fatal(err)
	}
}

// TestBrokenCQ: a queue that cannot be polled any more fails its lanes.
func TestBrokenCQ(t *testing.T) {
	f := verbstest.NewFault(verbstest.NewLoop(verbstest.LoopOptions{}))
	r := newRig(t, rigOptions{driver: f, workers: 1}, echo)
	if _, err := r.pool.Call(context.Background(), Request{}, nil); err != nil {
		t.Fatal(err)
	}
	f.Fail("req_notify_cq", 1, 0, syscall.EIO)
	r.until("a lane to fail", func() bool {
		r.client.poller.kick()
		r.server.poller.kick()
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
		defer cancel()
		_, _ = r.pool.Call(ctx, Request{}, nil)
		return r.lanes[0].State() != Active && r.served[0].Err() != nil
	})
	if r.client.poller.Err() == nil || !errors.Is(r.lanes[0].Err(), syscall.EIO) {
		t.Fatalf("poller %v, lane %v", r.client.poller.Err(), r.lanes[0].Err())
	}
}

func TestNewRefusals(t *testing.T) {
	r := newRig(t, rigOptions{spare: 1 << 18}, echo)
	good := r.cfg
	mem := r.client.take(good.ClientBytes(), 1)
	peer := r.lanes[0].peer
	for what, c := range map[string]struct {
		cfg  Config
		mem  Memory
		peer Peer
	}{
		"config":          {Config{Slots: -1}, mem, peer},
		"no memory":       {good, Memory{}, peer},
		"short memory":    {good, Memory{MR: mem.MR, Bytes: mem.Bytes[:100], Off: mem.Off}, peer},
		"outside the MR":  {good, Memory{MR: mem.MR, Bytes: mem.Bytes, Off: mem.MR.Len() - 64}, peer},
		"other place":     {good, Memory{MR: mem.MR, Bytes: mem.Bytes, Off: mem.Off - 64}, peer},
		"few peer slots":  {good, mem, Peer{Slots: verbs.RemoteRegion{Addr: 64, Length: 100}}},
		"unaligned peer":  {good, mem, Peer{Slots: verbs.RemoteRegion{Addr: 72, Length: 1 << 30}}},
		"QP of few slots": {Config{Slots: 64, RequestBytes: 8, ResponseBytes: 8}, mem, Peer{Slots: verbs.RemoteRegion{Addr: 64, Length: 1 << 30}}},
	} {
		cfg := c.cfg
		_, err := New(r.client.poller, r.lanes[0].qp, c.mem, c.peer, cfg, Label{})
		wantLayer(t, err, LayerUsage, nil)
		if err == nil {
			t.Errorf("%s: accepted", what)
		}
	}
	_, err := New(r.server.poller, r.lanes[0].qp, mem, peer, good, Label{})
	wantLayer(t, err, LayerUsage, nil)
}
