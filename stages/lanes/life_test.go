package lanes

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/railstore/railstore/ctrl"
	"github.com/railstore/railstore/cue/deploy"
	"github.com/railstore/railstore/pipeline"
	"github.com/railstore/railstore/stages/rail"
	"github.com/railstore/railstore/verbs"
	"github.com/railstore/railstore/verbs/lane"
	"github.com/railstore/railstore/verbs/verbstest"
)

// rebuildOf gives a deployment's rebuilding some values.
func rebuildOf(change func(*deploy.Rebuild)) func(*deploy.Deployment) {
	return func(d *deploy.Deployment) { change(&d.Rebuild) }
}

// wantEvent waits for the nth event of a name and checks its reason.
func (s *site) wantEvent(name string, n int, reason string) pipeline.Event {
	s.t.Helper()
	s.until(fmt.Sprintf("%s number %d", name, n), func() bool { return len(s.named(name)) >= n })
	e := s.named(name)[n-1]
	if reason != "" && e.Reason != reason {
		s.t.Errorf("%s says %q, want %q", name, e.Reason, reason)
	}
	return e
}

// 3.1: every edge of a lane's states, and that there are no others.
func TestStates(t *testing.T) {
	f := newFaulty(t, quickTouch, rebuildOf(func(r *deploy.Rebuild) { r.Wait = deploy.Duration(50 * time.Millisecond) }))
	l := f.lane0()
	state := func(want lane.State, epoch uint32) {
		t.Helper()
		fl := l.Flags()
		if l.State() != want || fl != (lane.Flags{Dirty: want == lane.Dirty || want == lane.Rebuilding, Rebuildable: want != lane.Active, Dead: want == lane.Dead, Epoch: epoch}) {
			t.Fatalf("the lane is %v %+v, want %v in epoch %d", l.State(), fl, want, epoch)
		}
		if st := f.lane(0, "a"); st.State != want.String() || (st.Reason == "") != (want == lane.Active) {
			t.Fatalf("status %+v, want %v", st, want)
		}
	}
	state(lane.Active, 1)
	f.breakLane(0, "a")
	_ = f.call(0, "a") // Active to Dirty
	state(lane.Dirty, 1)
	// Dirty to Rebuilding, which lasts while the peer does not answer, and back.
	const delay = 250 * time.Millisecond
	f.answerDelay.Store(int64(delay))
	errs := make(chan error, 1)
	go func() { errs <- f.call(0, "a") }()
	f.until("the attempt", func() bool { return l.State() == lane.Rebuilding })
	late := time.After(delay + 50*time.Millisecond)
	state(lane.Rebuilding, 1)
	if err := <-errs; !errors.Is(err, lane.ErrDown) || !errors.Is(err, verbs.WCRetryExceeded) {
		t.Fatalf("the call that waited: %v", err)
	}
	state(lane.Dirty, 1)
	if e := f.wantEvent(EventRebuildTimeout, 1, "attempts=1"); e.Fields["error"] == nil || *e.Shard != 0 || e.Rail != "a" {
		t.Errorf("%+v", e)
	}
	// Dirty to Active.
	f.answerDelay.Store(0)
	<-late // the shard looks at offers again
	f.until("a shard that answers", func() bool { return f.call(0, "a") == nil })
	state(lane.Active, 2)
	f.wantEvent(lane.EventLaneRecovered, 1, fmt.Sprintf("attempts=%d", f.lane(0, "a").Attempts))
	// Dirty to Dead: attempts are counted in a lane's life.
	f.breakLane(0, "a")
	f.until("the end of the budget", func() bool { _ = f.call(0, "a"); return f.lane(0, "a").Attempts == 3 })
	if l.State() == lane.Active {
		f.breakLane(0, "a")
		_ = f.call(0, "a")
		f.until("the verdict", func() bool { _ = f.call(0, "a"); return l.State() == lane.Dead })
	}
	f.wantEvent(EventRebuildExhausted, 1, "3 attempts")
	epoch := l.Flags().Epoch
	state(lane.Dead, epoch)
	// Dead is for good: neither calls nor failures nor the sweep change it.
	l.FailFrom(lane.LayerNode, lane.ErrPeerDead, true)
	for range 5 {
		if err := f.call(0, "a"); !errors.Is(err, lane.ErrDown) {
			t.Fatal(err)
		}
	}
	if ok, err := l.BeginRebuild(); ok || err != nil {
		t.Fatal("a dead lane was rebuilt", err)
	}
	state(lane.Dead, epoch)
	if n := len(f.named(EventRebuildExhausted)); n != 1 {
		t.Errorf("told %d times", n)
	}
}

// 3.3: the budget is the lane's life's, and success does not give it back.
func TestBudgetCountsSuccesses(t *testing.T) {
	f := newFaulty(t, quickTouch)
	for i := 1; i <= 3; i++ {
		f.breakLane(0, "a")
		_ = f.call(0, "a")
		f.until("the lane", func() bool { return f.call(0, "a") == nil })
		if st := f.lane(0, "a"); st.Attempts != i || st.State != "active" {
			t.Fatalf("%+v", st)
		}
		f.wantEvent(lane.EventLaneRecovered, i, fmt.Sprintf("attempts=%d", i))
	}
	f.breakLane(0, "a")
	_ = f.call(0, "a")
	f.until("the end", func() bool { _ = f.call(0, "a"); return f.lane(0, "a").State == "dead" })
	f.wantEvent(EventRebuildExhausted, 1, "3 attempts")
	if n := f.lane(0, "a").Attempts; n != 3 {
		t.Errorf("%d attempts", n)
	}
}

// 3.3: between the beginnings of two attempts at a lane is the cooldown, and calls
// meanwhile fail at once.
func TestCooldown(t *testing.T) {
	const cooldown = 300 * time.Millisecond
	f := newFaulty(t, quickTouch, rebuildOf(func(r *deploy.Rebuild) { r.Cooldown = deploy.Duration(cooldown) }))
	f.breakLane(0, "a")
	_ = f.call(0, "a")
	first := time.Now() // not before the attempt's beginning, less a little
	f.mustCall(0, "a")
	f.breakLane(0, "a")
	_ = f.call(0, "a")
	if time.Since(first) < cooldown/2 { // else the machine was busy
		asked := time.Now()
		if err := f.call(0, "a"); !errors.Is(err, lane.ErrDown) && time.Since(first) < cooldown {
			t.Errorf("in the cooldown: %v", err)
		}
		if took := time.Since(asked); took > cooldown/2 {
			t.Errorf("the call waited %v for a lane that may not be cured yet", took)
		}
	}
	f.until("the end of the cooldown", func() bool { return f.call(0, "a") == nil })
	if took := time.Since(first); took < cooldown-20*time.Millisecond {
		t.Errorf("two attempts in %v", took)
	}
}

// 3.3: an attempt has succeeded when the peer's generation has grown. An answer
// with the old one, of a shard that made no new QP, is refused.
func TestStaleAnswerIsRefused(t *testing.T) {
	f := newFaulty(t, quickTouch, rebuildOf(func(r *deploy.Rebuild) { r.Wait, r.Poll = deploy.Duration(500*time.Millisecond), 0 }))
	stale, err := f.member.Fetch(f.ctx, ctrl.ShardID(0), 0) // what the shard answered at first
	if err != nil {
		t.Fatal(err)
	}
	const delay = time.Second
	f.answerDelay.Store(int64(delay)) // the true answer comes too late
	f.breakLane(0, "a")
	_ = f.call(0, "a")
	gen := f.lane(0, "a").Generation
	errs := make(chan error, 1)
	go func() { errs <- f.call(0, "a") }()
	f.until("the attempt", func() bool { return f.lane0().State() == lane.Rebuilding })
	late := time.After(delay + 50*time.Millisecond)
	stale.Generation++ // it does answer the new offer
	stale.ToIncarnation = 0
	f.until("an answer", func() bool { return f.control[0].Publish(f.ctx, stale) == nil })
	if err := <-errs; !errors.Is(err, lane.ErrDown) {
		t.Fatal(err)
	}
	e := f.wantEvent(EventRebuildFailed, 1, "attempts=1")
	if text := fmt.Sprint(e.Fields["error"]); !strings.Contains(text, rail.ErrNotGrown.Error()) {
		t.Errorf("%s", text)
	}
	// This end's own generation was pushed up by it, which is no success either.
	if st := f.lane(0, "a"); st.State != "dirty" || st.Epoch != 1 || st.Generation != gen {
		t.Errorf("%+v", st)
	}
	f.answerDelay.Store(0)
	<-late
	f.until("the true answer", func() bool { return f.call(0, "a") == nil })
	if st := f.lane(0, "a"); st.Epoch != 2 || st.Generation <= gen {
		t.Errorf("%+v", st)
	}
}

// 3.3: a request that was under way fails and is not done a second time; who
// waited in the epoch before fails at once; a handler that ends after that writes
// no status.
func TestInterrupted(t *testing.T) {
	f := newFaulty(t, rebuildOf(func(r *deploy.Rebuild) { r.Sweep = deploy.Duration(time.Millisecond) }))
	l := f.lane0()
	waiting := make(chan error, 1)
	tk, err := f.client.Pool(0).Start(f.ctx, lane.Request{Op: 0x0704, Token: 1, Rail: "a"})
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		_, err := f.client.Pool(0).Call(f.ctx, lane.Request{Op: 0x0704, Token: 2, Rail: "a"}, nil)
		waiting <- err
	}()
	f.until("both", func() bool { return f.handled(1) == 1 && f.handled(2) == 1 })
	start := time.Now()
	l.FailFrom(lane.LayerNode, lane.ErrPeerDead, true)
	if err := <-waiting; !errors.Is(err, lane.ErrPeerDead) || time.Since(start) > 2*time.Second {
		t.Errorf("%v after %v", err, time.Since(start))
	}
	f.until("the new epoch", func() bool { return l.State() == lane.Active && l.Flags().Epoch == 2 })
	// Who asks only now gets the cause of then, at once.
	start = time.Now()
	var le *lane.Error
	if _, err := tk.Wait(f.ctx, nil); !errors.As(err, &le) || le.Layer != lane.LayerNode || !errors.Is(err, lane.ErrPeerDead) || time.Since(start) > time.Second {
		t.Errorf("%v after %v", err, time.Since(start))
	}
	f.until("the dropped answers", func() bool { return f.servers[0].Counters().DroppedStale.Load() == 2 })
	if e := f.wantEvent(lane.EventDroppedStale, 1, ""); *e.Shard != 0 || e.Rail != "a" {
		t.Errorf("%+v", e)
	}
	for range 10 {
		f.mustCall(0, "a")
	}
	if a, b := f.handled(1), f.handled(2); a != 1 || b != 1 {
		t.Errorf("the requests were handled %d and %d times", a, b)
	}
	if c := f.client.cfg.Counters; c.PendingRPC.Load() != 0 || c.BadResponses.Load() != 0 {
		t.Errorf("%v", c.Fields())
	}
}

// 3.3: lanes are rebuilt also where several processes share a shard's CQ, and the
// others do not notice.
func TestOtherClientsGoOn(t *testing.T) {
	f := newFaulty(t, quickTouch, rebuildOf(func(r *deploy.Rebuild) {
		r.Window, r.WindowAttempts = deploy.Duration(time.Millisecond), 1000
	}))
	scope := pipeline.NewScope()
	set, c, cfg := f.member2(t, scope, "y")
	other, err := Dial(f.ctx, scope, ClientInput{Set: set, Control: c, Config: cfg, Name: "client/y"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := scope.Close(f.ctx); err != nil {
			t.Error(err)
		}
	}()
	ctx, stop := context.WithCancel(f.ctx)
	var wg sync.WaitGroup
	var calls atomic.Int64
	for i := range 2 {
		wg.Go(func() {
			want := fmt.Sprintf("caller %d", i)
			for n := 0; ctx.Err() == nil; n++ {
				var buf [64]byte
				r, err := other.Pool(0).Call(f.ctx, lane.Request{Op: 0x0701, Payload: []byte(want)}, buf[:])
				if err != nil || !bytes.HasSuffix(buf[:r.N], []byte(want)) {
					t.Errorf("the other client's call %d: %v, %q", n, err, buf[:r.N])
					return
				}
				calls.Add(1)
			}
		})
	}
	for i := range 10 {
		before := calls.Load()
		f.breakLaneOf("client/x", 0, "a")
		_ = f.call(0, "a")
		f.until("the lane", func() bool { return f.call(0, "a") == nil })
		f.until("calls of the other", func() bool { return calls.Load() > before+10 || t.Failed() })
		if st := f.lane(0, "a"); st.Epoch != uint32(i+2) {
			t.Fatalf("%+v", st)
		}
	}
	stop()
	wg.Wait()
	for _, st := range other.Status() {
		if st.State != "active" || st.Epoch != 1 {
			t.Errorf("%+v", st)
		}
	}
}

func (s *site) breakLaneOf(client string, shard int, railName string) {
	s.t.Helper()
	for _, l := range s.servers[shard].acceptor.Lanes() {
		if l.Label().Rail == railName && l.Label().Remote == client {
			l.FailFrom(lane.LayerDevice, errors.New("broken by the test"))
			return
		}
	}
	s.t.Fatalf("shard %d has no lane of %s on rail %s", shard, client, railName)
}

// member2 brings one more client up.
func (w *world) member2(t *testing.T, scope *pipeline.Scope, name string) (*rail.Set, *ctrl.Client, lane.Config) {
	return w.member(t, scope, "c", ctrl.ClientID(name), ClientDemand)
}

// 3.1: what fails while a process starts ends it, soon, with the stage, and leaves
// nothing.
func TestStartFailsFast(t *testing.T) {
	type row struct {
		op    string // of the verbs
		nth   int
		stage string // word of the error
	}
	for _, r := range []row{
		{"open_device", 1, "resolve"}, {"query_device", 1, "resolve"}, {"query_port", 1, "resolve"}, {"query_gid", 1, "resolve"},
		{"alloc_pd", 1, "allocate"}, {"create_cq", 1, "allocate"}, {"reg_mr", 1, "allocate"},
		{"create_qp", 1, "publish"}, {"modify_init", 1, "connect"}, {"modify_rtr", 1, "connect"}, {"modify_rts", 1, "connect"},
		{"post_recv", 1, "connect"},
	} {
		t.Run(r.op, func(t *testing.T) {
			defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
			w := newWorld(t)
			defer w.server.Close()
			loop := verbstest.NewLoop(verbstest.LoopOptions{})
			w.driver = loop
			servers := pipeline.NewScope()
			defer func() {
				if err := servers.Close(w.ctx); err != nil {
					t.Error(err)
				}
			}()
			w.shard(t, servers, 0)
			w.shard(t, servers, 1)
			fault := verbstest.NewFault(verbstest.Trace(t, loop)) // the client's alone
			w.driver = fault
			fault.Fail(r.op, r.nth, 0, syscall.EIO)
			scope := pipeline.NewScope()
			start := time.Now()
			err := w.startClient(scope)
			took := time.Since(start)
			if cerr := scope.Close(w.ctx); cerr != nil {
				t.Errorf("what was left: %v", cerr)
			}
			if !errors.Is(err, syscall.EIO) || !strings.Contains(err.Error(), r.stage) || took > 4*time.Second {
				t.Errorf("after %v: %v; want EIO in %s", took, err, r.stage)
			}
			if live := fault.Live(); len(live) > 0 {
				t.Errorf("left open: %v", live)
			}
		})
	}
}

// startClient is member and Dial for a client whose start may fail.
func (w *world) startClient(scope *pipeline.Scope) error {
	cfg, err := ConfigOf(w.ctx, w.dep)
	if err != nil {
		return err
	}
	rails, err := pipeline.Run(w.ctx, scope, rail.Resolve, rail.ResolveInput{Deployment: w.dep, Host: "c",
		Drivers: func(string, deploy.Rail) (verbs.Driver, error) { return w.driver, nil }})
	if err != nil {
		return err
	}
	set, err := pipeline.Run(w.ctx, scope, rail.Allocate, rail.AllocateInput{Deployment: w.dep, Host: "c", Rails: rails, Demand: ClientDemand(w.dep, cfg)})
	if err != nil {
		return err
	}
	c, err := ctrl.Dial(w.ctx, w.server.Addr(), identity(w.dep), ctrl.ClientOptions{})
	if err != nil {
		return err
	}
	scope.DeferClose("control", c.Close)
	id := ctrl.ClientID("x")
	if err := c.Join(w.ctx, ctrl.NodeInfo{ID: id, Role: ctrl.RoleClient, Host: "c", Rails: set.Info()}); err != nil {
		return err
	}
	scope.Defer("leave", func(ctx context.Context) error { return c.Leave(ctx, "done") })
	_, err = Dial(w.ctx, scope, ClientInput{Set: set, Control: c, Config: cfg})
	return err
}

// 3.1: a peer that does not answer ends the start at its deadline.
func TestStartDeadline(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	w := newWorld(t, func(d *deploy.Deployment) { d.Pipeline.Connect.Deadline = deploy.Duration(200 * time.Millisecond) })
	defer w.server.Close()
	servers := pipeline.NewScope()
	w.shard(t, servers, 0)
	w.shard(t, servers, 1)
	w.answerDelay.Store(int64(time.Minute))
	scope := pipeline.NewScope()
	start := time.Now()
	err := w.startClient(scope)
	if took := time.Since(start); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "connect") || took < 150*time.Millisecond || took > 4*time.Second {
		t.Errorf("after %v: %v", took, err)
	}
	if err := errors.Join(scope.Close(w.ctx), servers.Close(w.ctx)); err != nil {
		t.Error(err)
	}
}
