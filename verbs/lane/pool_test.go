package lane

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/railstore/railstore/verbs"
	"github.com/railstore/railstore/verbs/verbstest"
)

func TestQueueIsFairAndHonoursContext(t *testing.T) {
	h := newHeld()
	r := newRig(t, rigOptions{workers: 1}, h)
	first, err := r.pool.Start(context.Background(), Request{})
	if err != nil {
		t.Fatal(err)
	}
	<-h.in
	queued := func(n int) func() bool {
		return func() bool {
			r.pool.mu.Lock()
			defer r.pool.mu.Unlock()
			return r.pool.queue.Len() == n
		}
	}
	order := make(chan int, 10)
	ctx, cancel := context.WithCancel(context.Background())
	gaveUp := make(chan error, 1)
	for i := range 6 {
		go func() {
			c := context.Background()
			if i == 2 {
				c = ctx
			}
			_, err := r.pool.Call(c, Request{Payload: []byte{byte(i)}}, nil)
			if i == 2 {
				gaveUp <- err
			} else if err != nil {
				t.Error(err)
			}
		}()
		r.until("the caller to queue", queued(i+1))
	}
	cancel()
	le := wantLayer(t, <-gaveUp, LayerWait, context.Canceled)
	if le.Label.Shard != 3 {
		t.Fatalf("label %+v", le.Label)
	}
	go func() {
		for range 5 {
			x := <-h.in
			order <- int(x.Payload()[0])
			h.goOn <- struct{}{}
		}
		close(order)
	}()
	h.goOn <- struct{}{}
	if _, err := first.Wait(context.Background(), nil); err != nil {
		t.Fatal(err)
	}
	var got []int
	for i := range order {
		got = append(got, i)
	}
	if !slices.Equal(got, []int{0, 1, 3, 4, 5}) {
		t.Fatalf("served in the order %v", got)
	}
	r.until("the end of the calls", func() bool { return r.pool.Counters().PendingRPC.Load() == 0 })
	if n := r.pool.Counters().AcquireQPFailures.Load(); n != 1 {
		t.Fatalf("%d failures to get a slot", n)
	}
}

func TestRailPinsTheLane(t *testing.T) {
	var mu sync.Mutex
	byRail := map[string]int{}
	r := newRig(t, rigOptions{lanes: 4, rails: 2, workers: 1}, HandlerFunc(func(x *Exchange) {
		mu.Lock()
		byRail[x.Label().Rail]++
		mu.Unlock()
		x.Reply(StatusOK, 0)
	}))
	for i := range 30 {
		q := Request{Rail: "r1"}
		if i%3 == 0 {
			q.Rail = "r0"
		}
		if _, err := r.pool.Call(context.Background(), q, nil); err != nil {
			t.Fatal(err)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	if byRail["r0"] != 10 || byRail["r1"] != 20 {
		t.Fatalf("calls by rail: %v", byRail)
	}
	mu.Unlock()
	defer mu.Lock()
	// A rail whose lanes are gone fails its own callers only.
	r.lanes[1].Fail(&Error{Layer: LayerNode, Err: ErrPeerDead}, true)
	r.lanes[3].Fail(&Error{Layer: LayerNode, Err: ErrPeerDead}, true)
	_, err := r.pool.Call(context.Background(), Request{Rail: "r1"}, nil)
	wantLayer(t, err, LayerNode, ErrDown)
	if _, err := r.pool.Call(context.Background(), Request{}, nil); err != nil {
		t.Fatal(err)
	}
}

// TestLastLaneFailsTheQueue: callers that wait for a slot do not wait for ever.
func TestLastLaneFailsTheQueue(t *testing.T) {
	h := newHeld()
	r := newRig(t, rigOptions{workers: 1}, h)
	tk, err := r.pool.Start(context.Background(), Request{})
	if err != nil {
		t.Fatal(err)
	}
	<-h.in
	got := make(chan error, 1)
	go func() {
		_, err := r.pool.Call(context.Background(), Request{}, nil)
		got <- err
	}()
	r.until("the caller to queue", func() bool { return r.pool.Counters().AcquireQueued.Load() == 1 })
	r.lanes[0].Fail(&Error{Layer: LayerNode, Err: ErrPeerDead}, true)
	wantLayer(t, <-got, LayerNode, ErrPeerDead)
	_, err = tk.Wait(context.Background(), nil)
	wantLayer(t, err, LayerNode, ErrPeerDead)
}

// TestCloseWhileBusy closes pool, lanes and acceptor under load, in either order;
// nothing may hang, crash on unmapped memory, or leak.
func TestCloseWhileBusy(t *testing.T) {
	modes(t, func(t *testing.T, o rigOptions) {
		for _, serverFirst := range []bool{false, true} {
			t.Run(fmt.Sprintf("serverFirst=%v", serverFirst), func(t *testing.T) {
				o := o
				o.lanes, o.cfg.Slots = 2, 2
				o.path = verbs.PathOpts{RetryCount: 3, RNRRetry: 7}
				o.cfg.WaitTimeout = 2 * time.Second
				r := newRig(t, o, HandlerFunc(func(x *Exchange) {
					if x.Op() == 1 {
						<-time.After(200 * time.Microsecond)
					}
					x.Reply(StatusOK, copy(x.Response(), x.Payload()))
				}))
				var wg sync.WaitGroup
				var closing atomic.Bool
				started := make(chan struct{}, 64)
				for i := range 6 {
					wg.Add(1)
					go func() {
						defer wg.Done()
						buf := make([]byte, 3000)
						for k := 0; ; k++ {
							if k == 20 {
								started <- struct{}{}
							}
							if _, err := r.pool.Call(context.Background(), Request{Op: uint16(i % 2), Payload: buf}, buf); err != nil {
								var le *Error
								if !errors.As(err, &le) {
									t.Errorf("%v is not a *lane.Error", err)
								}
								if !closing.Load() {
									t.Errorf("before anything was closed: %v", err)
									started <- struct{}{}
								}
								return
							}
						}
					}()
				}
				<-started
				closing.Store(true)
				if serverFirst {
					if err := r.acceptor.Close(); err != nil {
						t.Error(err)
					}
				}
				if err := r.pool.Close(); err != nil {
					t.Error(err)
				}
				wg.Wait()
			})
		}
	})
}

// TestGivingUpBeforePosting: a call that waits for room in the send queue honours
// its context and leaves neither its slot nor a gap behind.
func TestGivingUpBeforePosting(t *testing.T) {
	f := verbstest.NewFault(verbstest.NewLoop(verbstest.LoopOptions{}))
	r := newRig(t, rigOptions{driver: f, workers: 1}, echo)
	l := r.lanes[0]
	f.DropCompletions(func(wc verbs.WC) bool { return wc.Op == verbs.WCWrite && wc.QPN == l.local.QPN })
	var err error
	for i := 0; err == nil && i < 100; i++ {
		ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
		_, err = r.pool.Call(ctx, Request{}, nil)
		cancel()
	}
	wantLayer(t, err, LayerWait, context.DeadlineExceeded)
	if c := r.pool.Counters(); c.DrainSubmit.Load() != 1 || c.Quarantined.Load() != 0 || l.State() != Active {
		t.Fatalf("counters %v, lane %v", c.Fields(), l.State())
	}
	f.Clear()
	l.mu.Lock()
	for l.sq.count > 0 {
		l.sq.completed() // what was lost
	}
	l.mu.Unlock()
	got, err := r.pool.Call(context.Background(), Request{}, nil)
	if err != nil || got.Status != StatusOK {
		t.Fatalf("%+v, %v", got, err)
	}
}

// TestCallbacksPanic: a payload or view function that panics costs nothing.
func TestCallbacksPanic(t *testing.T) {
	r := newRig(t, rigOptions{workers: 1}, echo)
	caught := func(f func()) (v any) {
		defer func() { v = recover() }()
		f()
		return nil
	}
	for range 3 {
		if v := caught(func() {
			_, _ = r.pool.Call(context.Background(), Request{Fill: func([]byte) int { panic("fill") }}, nil)
		}); v != "fill" {
			t.Fatalf("recovered %v", v)
		}
		tk, err := r.pool.Start(context.Background(), Request{})
		if err != nil {
			t.Fatal(err)
		}
		if v := caught(func() {
			_, _ = tk.View(context.Background(), func(Response, []byte) error { panic("view") })
		}); v != "view" {
			t.Fatalf("recovered %v", v)
		}
	}
	if got, err := r.pool.Call(context.Background(), Request{}, nil); err != nil || got.Status != StatusOK {
		t.Fatalf("%+v, %v", got, err)
	}
}

// TestAddToClosedAcceptor: nothing is left behind.
func TestAddToClosedAcceptor(t *testing.T) {
	r := newRig(t, rigOptions{spare: 1 << 18}, echo)
	c, s := r.qps(r.cfg, r.cfg, verbs.PathOpts{})
	defer c.Close()
	defer s.Close()
	if err := r.acceptor.Close(); err != nil {
		t.Fatal(err)
	}
	_, err := r.acceptor.Add(r.server.poller, s, r.server.take(r.cfg.ServerBytes(), 9), r.served[0].peer, r.cfg, Label{})
	wantLayer(t, err, LayerUsage, ErrClosed)
	if n := len(r.acceptor.Lanes()); n != 0 {
		t.Fatalf("%d lanes", n)
	}
}

// TestCloseWaitsForHandlers: memory that a handler still uses is not given back.
func TestCloseWaitsForHandlers(t *testing.T) {
	for _, workers := range []int{0, 1} {
		in, goOn := make(chan struct{}), make(chan struct{})
		var left atomic.Bool
		r := newRig(t, rigOptions{workers: workers, noLeak: true}, HandlerFunc(func(x *Exchange) {
			close(in)
			<-goOn
			left.Store(true)
			x.Reply(StatusOK, 0)
		}))
		if _, err := r.pool.Start(context.Background(), Request{}); err != nil {
			t.Fatal(err)
		}
		<-in
		closed := make(chan error, 1)
		go func() { closed <- r.served[0].Close() }()
		<-r.served[0].Done()
		select {
		case <-closed:
			t.Fatal("Close returned while a handler ran")
		case <-time.After(30 * time.Millisecond):
		}
		close(goOn)
		if err := <-closed; err != nil || !left.Load() {
			t.Fatalf("closed with %v, handler left %v", err, left.Load())
		}
	}
}

// TestAnswersAlwaysFindAReceive: completions that nobody polls keep receives
// taken; a call waits for them rather than have the server's answer find none.
func TestAnswersAlwaysFindAReceive(t *testing.T) {
	r := newRig(t, rigOptions{workers: 1, cfg: Config{Spin: time.Second}}, echo)
	const calls = 20
	done := make(chan error, 1)
	r.client.poller.mu.Lock() // as if somebody else were polling, slowly
	go func() {
		for range calls {
			if _, err := r.pool.Call(context.Background(), Request{}, nil); err != nil {
				done <- err
				return
			}
		}
		done <- nil
	}()
	depth := r.cfg.withDefaults().recvDepth()
	r.until("the receives to be used up", func() bool { return int(r.lanes[0].seen.Load()) >= depth })
	select {
	case err := <-done:
		t.Fatalf("%d calls with %d receives, %v", calls, depth, err)
	case <-time.After(30 * time.Millisecond):
	}
	if n := int(r.pool.Counters().SubmitRequest.Load()); n != depth {
		t.Fatalf("%d requests were posted with %d receives", n, depth)
	}
	r.client.poller.mu.Unlock()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}
