package lane

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/railstore/railstore/verbs"
	"github.com/railstore/railstore/verbs/verbstest"
)

// held is a handler that answers only when told.
type held struct {
	in   chan *Exchange
	goOn chan struct{}
}

func newHeld() *held { return &held{in: make(chan *Exchange, 64), goOn: make(chan struct{}, 64)} }

func (h *held) Serve(x *Exchange) {
	p := append([]byte(nil), x.Payload()...)
	h.in <- x
	select {
	case <-h.goOn:
	case <-x.Context().Done():
	}
	x.Reply(StatusOK, copy(x.Response(), p))
}

func wantLayer(t *testing.T, err error, layer Layer, is error) *Error {
	t.Helper()
	var le *Error
	if !errors.As(err, &le) || le.Layer != layer || is != nil && !errors.Is(err, is) {
		t.Fatalf("error %v: want layer %s and %v", err, layer, is)
	}
	return le
}

// TestCancelQuarantinesTheSlot: the slot of a call that was given up is used again
// only after the late answer, the lane goes on meanwhile.
func TestCancelQuarantinesTheSlot(t *testing.T) {
	for _, n := range []Notify{Adaptive, Imm, Scan} {
		t.Run(n.String(), func(t *testing.T) {
			in, goOn := make(chan struct{}, 8), [3]chan struct{}{1: make(chan struct{}), 2: make(chan struct{})}
			r := newRig(t, rigOptions{cfg: Config{Notify: n, Slots: 2}, workers: 4}, HandlerFunc(func(x *Exchange) {
				p := append([]byte(nil), x.Payload()...)
				if c := goOn[x.Op()]; c != nil {
					in <- struct{}{}
					<-c
				}
				x.Reply(StatusOK, copy(x.Response(), p))
			}))
			ctx, cancel := context.WithCancel(context.Background())
			result := make(chan error, 1)
			go func() {
				_, err := r.pool.Call(ctx, Request{Op: 1, Payload: []byte("first")}, make([]byte, 16))
				result <- err
			}()
			<-in
			cancel()
			wantLayer(t, <-result, LayerWait, context.Canceled)
			if r.lanes[0].State() != Active {
				t.Fatalf("a cancelled call made the lane %v", r.lanes[0].State())
			}
			// The other slot serves, over and over; the first stays aside.
			buf := make([]byte, 16)
			for range 5 {
				got, err := r.pool.Call(context.Background(), Request{Payload: []byte("second")}, buf)
				if err != nil || string(buf[:got.N]) != "second" {
					t.Fatalf("answered %q, %v", buf[:got.N], err)
				}
			}
			// With the other slot taken too, a caller has to wait.
			tk, err := r.pool.Start(context.Background(), Request{Op: 2, Payload: []byte("third")})
			if err != nil {
				t.Fatal(err)
			}
			<-in
			short, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
			_, err = r.pool.Call(short, Request{}, nil)
			cancel()
			wantLayer(t, err, LayerWait, context.DeadlineExceeded)
			if n := r.pool.Counters().LateCompletions.Load(); n != 0 {
				t.Fatalf("%d late answers before any", n)
			}
			// The late answer gives the slot to whoever waits for it.
			waiting := make(chan error, 1)
			go func() {
				got, err := r.pool.Call(context.Background(), Request{Payload: []byte("fourth")}, buf)
				if err == nil && string(buf[:got.N]) != "fourth" {
					err = fmt.Errorf("answered %q", buf[:got.N])
				}
				waiting <- err
			}()
			r.until("the caller to queue", func() bool {
				r.pool.mu.Lock()
				defer r.pool.mu.Unlock()
				return r.pool.queue.Len() == 1
			})
			close(goOn[1])
			if err := <-waiting; err != nil {
				t.Fatal(err)
			}
			close(goOn[2])
			got, err := tk.Wait(context.Background(), buf)
			if err != nil || string(buf[:got.N]) != "third" {
				t.Fatalf("answered %q, %v", buf[:got.N], err)
			}
			r.until("the late answer", func() bool { return r.pool.Counters().LateCompletions.Load() == 1 })
			r.until("both slots", func() bool {
				r.pool.mu.Lock()
				defer r.pool.mu.Unlock()
				return len(r.lanes[0].free) == 2
			})
		})
	}
}

// TestAbandonedRequestRetiresTheLane: a quarantined slot whose answer never comes
// makes the lane dirty when the wait time-out is over.
func TestAbandonedRequestRetiresTheLane(t *testing.T) {
	stop := make(chan struct{})
	r := newRig(t, rigOptions{cfg: Config{Slots: 2, WaitTimeout: 500 * time.Millisecond}, workers: 1}, HandlerFunc(func(*Exchange) { <-stop }))
	t.Cleanup(func() { close(stop) })
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Millisecond)
	defer cancel()
	_, err := r.pool.Call(ctx, Request{}, nil)
	wantLayer(t, err, LayerWait, context.DeadlineExceeded)
	r.until("the lane to be dirty", func() bool { return r.lanes[0].State() == Dirty })
	if f := r.lanes[0].Flags(); !f.Rebuildable || f.Dead || !errors.Is(r.lanes[0].Err(), ErrTimeout) {
		t.Fatalf("flags %+v, cause %v", f, r.lanes[0].Err())
	}
}

// TestWaitTimeoutRetiresTheLane: also for the other calls on it, at once.
func TestWaitTimeoutRetiresTheLane(t *testing.T) {
	for _, n := range []Notify{Adaptive, Imm, Scan} {
		t.Run(n.String(), func(t *testing.T) {
			h := newHeld()
			r := newRig(t, rigOptions{cfg: Config{Notify: n, Slots: 3, WaitTimeout: 80 * time.Millisecond}, workers: 3}, h)
			var errs [3]error
			var wg sync.WaitGroup
			for i := range errs {
				wg.Add(1)
				go func() {
					defer wg.Done()
					_, errs[i] = r.pool.Call(context.Background(), Request{}, nil)
				}()
				<-h.in
			}
			wg.Wait()
			for _, err := range errs {
				le := wantLayer(t, err, LayerWait, ErrTimeout)
				if le.Label.Shard != 3 || le.Local.QPN == 0 || le.Remote.QPN == 0 || le.Local.GID.IsZero() || le.Remote.GID.IsZero() {
					t.Fatalf("the error does not name both ends: %+v", le)
				}
			}
			_, err := r.pool.Call(context.Background(), Request{}, nil)
			wantLayer(t, err, LayerWait, ErrDown)
			if !errors.Is(err, ErrTimeout) {
				t.Fatalf("a call on a pool without lanes: %v: want the first cause in it", err)
			}
			if got := r.eventNames(); !slices.Contains(got, EventLaneDirty) {
				t.Fatalf("events %v", got)
			}
		})
	}
}

// TestPeerGone: the server's QP vanishes with requests under way.
func TestPeerGone(t *testing.T) {
	h := newHeld()
	r := newRig(t, rigOptions{cfg: Config{Slots: 2}, workers: 2, path: verbs.PathOpts{RetryCount: 1, RNRRetry: 7, Timeout: 10}}, h)
	tk, err := r.pool.Start(context.Background(), Request{})
	if err != nil {
		t.Fatal(err)
	}
	<-h.in
	if err := r.served[0].Close(); err != nil {
		t.Fatal(err)
	}
	if n := r.acceptor.Counters().DroppedStale.Load(); n != 1 {
		t.Fatalf("%d answers dropped, want the one of the running handler", n)
	}
	// The request in flight has no signal of its own; the next WRITE finds out.
	_, err = r.pool.Call(context.Background(), Request{}, nil)
	le := wantLayer(t, err, LayerDevice, verbs.WCRetryExceeded)
	if le.Class != ClassPeerUnreachable || le.Status != verbs.WCRetryExceeded || strings.Count(err.Error(), "RETRY_EXC") != 1 {
		t.Fatalf("%+v: %v", le, err)
	}
	_, err = tk.Wait(context.Background(), nil)
	wantLayer(t, err, LayerDevice, verbs.WCRetryExceeded)
	if f := r.lanes[0].Flags(); !f.Rebuildable {
		t.Fatalf("flags %+v", f)
	}
	if got := r.eventNames(); !slices.Contains(got, EventDroppedStale) {
		t.Fatalf("events %v", got)
	}
}

// TestRejectedIsNotRebuildable: the peer refuses a WRITE because its memory is
// gone.
func TestRejectedIsNotRebuildable(t *testing.T) {
	r := newRig(t, rigOptions{}, echo)
	r.lanes[0].peer.Slots.RKey ^= 0x5500
	_, err := r.pool.Call(context.Background(), Request{}, nil)
	le := wantLayer(t, err, LayerDevice, verbs.WCRemAccess)
	if le.Class != ClassPeerRejected || r.lanes[0].Flags().Rebuildable {
		t.Fatalf("class %s, flags %+v", le.Class, r.lanes[0].Flags())
	}
}

func TestFailedPostRetiresTheLane(t *testing.T) {
	f := verbstest.NewFault(verbstest.NewLoop(verbstest.LoopOptions{}))
	r := newRig(t, rigOptions{driver: f, lanes: 2}, echo)
	f.Fail("post_send", 1, 1, syscall.ENOMEM)
	_, err := r.pool.Call(context.Background(), Request{}, nil)
	wantLayer(t, err, LayerPost, syscall.ENOMEM)
	states := fmt.Sprint(r.lanes[0].State(), r.lanes[1].State())
	if states != "dirty active" && states != "active dirty" {
		t.Fatalf("lanes are %s", states)
	}
	for range 10 { // the other lane serves
		if _, err := r.pool.Call(context.Background(), Request{}, nil); err != nil {
			t.Fatal(err)
		}
	}
}

// TestLostCompletions: send completions that stay out are noticed when their
// entries are needed.
func TestLostCompletions(t *testing.T) {
	f := verbstest.NewFault(verbstest.NewLoop(verbstest.LoopOptions{}))
	r := newRig(t, rigOptions{driver: f, cfg: Config{TrackedTimeout: 50 * time.Millisecond}, workers: 1}, echo)
	f.DropCompletions(func(wc verbs.WC) bool { return wc.Op == verbs.WCWrite })
	var err error
	for i := 0; err == nil; i++ {
		if i > 1000 {
			t.Fatal("a thousand calls without a send completion")
		}
		_, err = r.pool.Call(context.Background(), Request{}, nil)
	}
	wantLayer(t, err, LayerTracked, ErrTracked)
}

// TestServerNoticesLostCompletions is the same at the other end.
func TestServerNoticesLostCompletions(t *testing.T) {
	f := verbstest.NewFault(verbstest.NewLoop(verbstest.LoopOptions{}))
	r := newRig(t, rigOptions{driver: f, cfg: Config{Slots: 8, TrackedTimeout: 30 * time.Millisecond, WaitTimeout: 200 * time.Millisecond}, workers: 1}, echo)
	server := r.served[0].local.QPN
	f.DropCompletions(func(wc verbs.WC) bool { return wc.Op == verbs.WCWrite && wc.QPN == server })
	for i := 0; r.served[0].Err() == nil && i < 2000; i++ {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Millisecond)
		_, _ = r.pool.Call(ctx, Request{}, nil)
		cancel()
	}
	wantLayer(t, r.served[0].Err(), LayerTracked, ErrTracked)
}

func TestProbeSaysDead(t *testing.T) {
	asked := make(chan Label, 100)
	h := newHeld()
	r := newRig(t, rigOptions{workers: 1, cfg: Config{ProbeAfter: 10 * time.Millisecond, ProbeEvery: 10 * time.Millisecond,
		Waiting: func(l Label) { asked <- l }}}, h)
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		for range 3 {
			<-asked
		}
		r.lanes[0].FailFrom(LayerNode, fmt.Errorf("%w: no heartbeat for 9 s", ErrPeerDead), true)
	})
	start := time.Now()
	_, err := r.pool.Call(context.Background(), Request{}, nil)
	wantLayer(t, err, LayerNode, ErrPeerDead)
	if !strings.Contains(err.Error(), "no heartbeat for 9 s") || time.Since(start) < 30*time.Millisecond || !r.lanes[0].Flags().Rebuildable {
		t.Fatalf("%v after %v, flags %+v", err, time.Since(start), r.lanes[0].Flags())
	}
}

func TestHandlerPanics(t *testing.T) {
	modes(t, func(t *testing.T, o rigOptions) {
		r := newRig(t, o, HandlerFunc(func(x *Exchange) {
			switch x.Op() {
			case 1:
				panic("boom")
			case 2:
				x.Reply(StatusOK, 0)
				panic("boom after the answer")
			case 3:
				return // without an answer
			case 4:
				x.Reply(StatusOK, len(x.Response())+1)
			default:
				x.Reply(StatusOK, 0)
				x.Reply(StatusInternal, 0) // too late
			}
		}))
		for op, want := range []Status{StatusOK, StatusInternal, StatusOK, StatusInvalid, StatusTooLarge, StatusOK} {
			got, err := r.pool.Call(context.Background(), Request{Op: uint16(op)}, nil)
			if err != nil || got.Status != want {
				t.Fatalf("op %d: %+v, %v: want %v", op, got, err, want)
			}
		}
		if n := r.acceptor.Counters().HandlerExceptions.Load(); n != 2 {
			t.Fatalf("%d exceptions counted", n)
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		if e := r.events[0]; e.Name != EventHandlerException || !strings.Contains(e.Reason, "boom") || !strings.Contains(e.Err.Error(), "failure_test.go") {
			t.Fatalf("event %+v", e)
		}
	})
}

// TestExposedRequestIsQuietWhenGivenUp: a call that named memory of this process
// returns only when the server can write it no more.
func TestExposedRequestIsQuietWhenGivenUp(t *testing.T) {
	t.Run("late answer", func(t *testing.T) {
		h := newHeld()
		r := newRig(t, rigOptions{workers: 1}, h)
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		var answered atomic.Bool
		go func() {
			<-h.in
			cancel()
			<-time.After(50 * time.Millisecond)
			answered.Store(true)
			h.goOn <- struct{}{}
			h.goOn <- struct{}{} // for the next call
		}()
		_, err := r.pool.Call(ctx, Request{Exposed: true}, nil)
		wantLayer(t, err, LayerWait, context.Canceled)
		if !answered.Load() || r.lanes[0].State() != Active {
			t.Fatalf("returned before the late answer: %v, lane %v", !answered.Load(), r.lanes[0].State())
		}
		if _, err := r.pool.Call(context.Background(), Request{}, nil); err != nil {
			t.Fatal(err)
		}
	})
	t.Run("no answer", func(t *testing.T) {
		stop := make(chan struct{})
		r := newRig(t, rigOptions{workers: 1, cfg: Config{Quiesce: 20 * time.Millisecond}}, HandlerFunc(func(x *Exchange) { <-stop }))
		t.Cleanup(func() { close(stop) })
		ctx, cancel := context.WithCancel(context.Background())
		tk, err := r.pool.Start(ctx, Request{Exposed: true})
		if err != nil {
			t.Fatal(err)
		}
		cancel()
		_, err = tk.Wait(ctx, nil)
		wantLayer(t, err, LayerWait, context.Canceled)
		if r.lanes[0].State() != Dirty || !r.lanes[0].destroyed {
			t.Fatalf("lane %v, QP destroyed %v", r.lanes[0].State(), r.lanes[0].destroyed)
		}
	})
}

// TestLateVisibility plays a machine on which the word is seen before what it
// announces: nothing wrong is ever accepted.
func TestLateVisibility(t *testing.T) {
	for _, headerOnly := range []bool{false, true} {
		t.Run(fmt.Sprintf("header only=%v", headerOnly), func(t *testing.T) {
			var late atomic.Int64
			var n atomic.Int64
			loop := verbstest.NewLoop(verbstest.LoopOptions{Late: func(wr *verbs.SendWR) time.Duration {
				if wr.Op == verbs.OpWrite && n.Add(1)%3 == 0 {
					return time.Duration(late.Load())
				}
				return 0
			}})
			r := newRig(t, rigOptions{driver: loop, workers: 2, cfg: Config{Slots: 2, HeaderChecksum: headerOnly, Settle: 100 * time.Millisecond}}, echo)
			late.Store(int64(300 * time.Microsecond))
			if headerOnly {
				late.Store(int64(50 * time.Microsecond))
			}
			buf := make([]byte, 64)
			for i := range 60 {
				p := []byte(fmt.Sprintf("request %d", i))
				got, err := r.pool.Call(context.Background(), Request{Payload: p}, buf)
				if err != nil {
					t.Fatal(err)
				}
				if got.Status != StatusOK || string(buf[:got.N]) != string(p) {
					t.Fatalf("asked %q, was answered %q with %v", p, buf[:got.N], got.Status)
				}
			}
			if r.pool.Counters().Settled.Load()+r.acceptor.Counters().Settled.Load() == 0 {
				t.Fatal("nothing came late")
			}
			// What never comes is answered, and a bad answer retires the lane.
			late.Store(int64(time.Hour))
			r.lanes[0].cfg.Settle = 5 * time.Millisecond
			r.served[0].cfg.Settle = 5 * time.Millisecond
			invalid, broken := 0, 0
			for range 20 {
				got, err := r.pool.Call(context.Background(), Request{Payload: []byte{1}}, buf)
				switch {
				case err != nil:
					wantLayer(t, err, LayerIntegrity, ErrBadResponse)
					broken++
				case got.Status == StatusInvalid:
					invalid++
				}
				if broken > 0 {
					break
				}
			}
			if invalid+broken == 0 {
				t.Fatal("twenty requests with lost payloads were all served")
			}
			late.Store(0)
		})
	}
}
