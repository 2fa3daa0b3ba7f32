package lanes

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/railstore/railstore/ctrl"
	"github.com/railstore/railstore/cue/deploy"
	"github.com/railstore/railstore/pipeline"
	"github.com/railstore/railstore/stages/rail"
	"github.com/railstore/railstore/verbs"
	"github.com/railstore/railstore/verbs/lane"
)

// site is a running deployment of a world: two shards and one client.
type site struct {
	*world
	t       *testing.T
	servers [2]*Server
	scopes  [2]*pipeline.Scope
	sets    [2]*rail.Set
	control [2]*ctrl.Client
	set     *rail.Set
	member  *ctrl.Client
	client  *Client
	scope   *pipeline.Scope

	orphaned bool // the control plane is gone: nobody can leave
}

func newSite(t *testing.T, w *world) *site {
	t.Helper()
	leaks := goleak.IgnoreCurrent()
	t.Cleanup(func() { goleak.VerifyNone(t, leaks) })
	s := &site{world: w, t: t, scope: pipeline.NewScope()}
	t.Cleanup(func() {
		for _, scope := range []*pipeline.Scope{s.scope, s.scopes[0], s.scopes[1]} {
			if err := scope.Close(w.ctx); err != nil && !s.orphaned {
				t.Error(err)
			}
		}
		_ = w.server.Close()
	})
	for i := range s.servers {
		s.start(i)
	}
	var cfg lane.Config
	s.set, s.member, cfg = w.member(t, s.scope, "c", ctrl.ClientID("x"), ClientDemand)
	var err error
	if s.client, err = Dial(w.ctx, s.scope, ClientInput{Set: s.set, Control: s.member, Config: cfg, Name: "client/x"}); err != nil {
		t.Fatal(err)
	}
	if err := s.member.SetReport(s.client.Report); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *site) start(i int) {
	s.scopes[i] = pipeline.NewScope()
	s.servers[i], s.sets[i], s.control[i] = s.serve(s.t, s.scopes[i], i)
}

func (s *site) stop(i int) {
	s.t.Helper()
	if err := s.scopes[i].Close(s.ctx); err != nil {
		s.t.Fatal(err)
	}
}

// call asks a shard over a rail and checks the answer.
func (s *site) call(shard int, railName string) error {
	var resp [64]byte
	r, err := s.client.Pool(shard).Call(s.ctx, lane.Request{Op: 0x0701, Payload: []byte(railName), Rail: railName}, resp[:])
	if want := fmt.Sprintf("shard %d: %s", shard, railName); err == nil && (r.Status != lane.StatusOK || string(resp[:r.N]) != want) {
		s.t.Errorf("status %v, %q, want %q", r.Status, resp[:r.N], want)
	}
	return err
}

func (s *site) mustCall(shard int, railName string) {
	s.t.Helper()
	if err := s.call(shard, railName); err != nil {
		s.t.Fatal(err)
	}
}

// breakLane ends a lane at the shard's side, as a device that fails does.
func (s *site) breakLane(shard int, railName string) {
	s.t.Helper()
	for _, l := range s.servers[shard].acceptor.Lanes() {
		if l.Label().Rail == railName {
			l.FailFrom(lane.LayerDevice, errors.New("broken by the test"))
			return
		}
	}
	s.t.Fatalf("shard %d has no lane on rail %s", shard, railName)
}

func (s *site) until(what string, ok func() bool) {
	s.t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !ok(); runtime.Gosched() {
		if time.Now().After(deadline) {
			s.t.Fatalf("waited 20 s for %s; lanes %+v, events %v", what, s.client.Status(), s.names())
		}
		<-time.After(time.Millisecond)
	}
}

func (w *world) names() (out []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, e := range w.events {
		out = append(out, e.Event)
	}
	return out
}

func (s *site) lane(shard int, railName string) LaneStatus {
	for _, st := range s.client.Status() {
		if st.Shard == shard && st.Rail == railName {
			return st
		}
	}
	return LaneStatus{}
}

// A call that comes upon a broken lane fails, because nobody knows whether it was
// done; the next one waits for the new QPs and is answered.
func TestLaneIsRebuiltOnDemand(t *testing.T) {
	s := newSite(t, newWorld(t, func(d *deploy.Deployment) { d.Rebuild.Cooldown = 0 }))
	qps := s.sets[0].QPsInUse()
	for round := 1; round <= 20; round++ {
		s.mustCall(0, "a")
		before := s.lane(0, "a")
		s.breakLane(0, "a")
		var le *lane.Error
		if err := s.call(0, "a"); !errors.As(err, &le) || le.Layer != lane.LayerDevice || le.Status != verbs.WCRetryExceeded || le.Local.Name != "client/x" || le.Remote.Name != "shard/0" || le.Device == "" {
			t.Fatalf("round %d: %v, %+v", round, err, le)
		}
		s.mustCall(0, "a")
		st := s.lane(0, "a")
		if st.State != "active" || st.Epoch != before.Epoch+1 || st.Generation != before.Generation+1 {
			t.Fatalf("round %d: %+v, before %+v", round, st, before)
		}
		if other := s.lane(0, "b"); other.Epoch != 1 || other.Generation != 1 {
			t.Fatalf("the lane beside was touched: %+v", other)
		}
		s.mustCall(0, "b")
		s.mustCall(1, "a")
		if round >= 3 { // the budget of three would be spent
			s.forgive(0)
		}
	}
	if n := s.sets[0].QPsInUse(); n != qps {
		t.Fatalf("%d QPs in use at the shard, there were %d", n, qps)
	}
	e := s.named(lane.EventLaneRecovered)
	if len(e) != 20 || e[2].Reason != "attempts=3" || *e[2].Shard != 0 || e[2].Rail != "a" {
		t.Fatalf("events %+v", e)
	}
	dirty := s.named(lane.EventLaneDirty)
	if !slices.ContainsFunc(dirty, func(e pipeline.Event) bool { return e.Reason == "device" && e.Fields["verdict"] != nil }) {
		t.Fatalf("no lane_dirty with a verdict: %+v", dirty)
	}
}

// forgive clears the accounts of a shard's lanes.
func (s *site) forgive(shard int) {
	k := s.client.keepers[shard]
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, w := range k.wards {
		w.ledger = ledger{}
	}
}

func TestRebuildDisabled(t *testing.T) {
	s := newSite(t, newWorld(t, func(d *deploy.Deployment) { d.Rebuild.Enabled = false }))
	s.mustCall(0, "a")
	s.breakLane(0, "a")
	if s.call(0, "a") == nil {
		t.Fatal("a call over a broken lane succeeded")
	}
	if err := s.call(0, "a"); !errors.Is(err, lane.ErrDown) || !strings.Contains(err.Error(), "retry") {
		t.Fatalf("err = %v", err)
	}
	s.mustCall(0, "b")
	s.until("the event", func() bool { return len(s.named(EventRebuildSkipped)) > 0 })
	if e := s.named(EventRebuildSkipped)[0]; e.Reason != "disabled" {
		t.Fatalf("%+v", e)
	}
}

// A local fault and a peer that refuses are not cured by new QPs.
func TestNotRebuildable(t *testing.T) {
	s := newSite(t, newWorld(t))
	l := s.client.Lanes("a")[0]
	l.FailFrom(lane.LayerDevice, verbs.WCLocProt, false)
	s.until("the event", func() bool { return len(s.named(EventRebuildSkipped)) > 0 })
	if e := s.named(EventRebuildSkipped)[0]; e.Reason != "not_rebuildable" {
		t.Fatalf("%+v", e)
	}
	if err := s.call(0, "a"); !errors.Is(err, lane.ErrDown) || !errors.Is(err, verbs.WCLocProt) {
		t.Fatalf("err = %v", err)
	}
	if st := s.lane(0, "a"); st.State != "dirty" || st.Attempts != 0 {
		t.Fatalf("%+v", st)
	}
}

// An error of this end is cured by a new QP where the port was down meanwhile, whichever
// of both is told first; not before the port is up.
func TestPortDownLocalError(t *testing.T) {
	for _, first := range []string{"error", "port"} {
		t.Run(first, func(t *testing.T) {
			f := newFaulty(t, quickTouch, rebuildOf(func(r *deploy.Rebuild) { r.Sweep = deploy.Duration(time.Millisecond) }))
			l := f.lane0()
			broke := func() {
				if err := held(func(f *faulty) { f.forger.forge(l.QPN(), verbs.WCLocQPOp) })(f); !errors.Is(err, verbs.WCLocQPOp) {
					t.Fatalf("%v", err)
				}
			}
			r, _ := f.set.Rail("a")
			device := strings.TrimPrefix(r.Ctx.Name(), "loop:")
			told := func(st rail.State) {
				f.until("the rail", func() bool { now, _ := r.Health(); return now == st })
			}
			if first == "error" {
				broke()
			}
			f.forger.tell(device, verbs.EventPortError)
			told(rail.Down)
			if first == "port" {
				broke()
			}
			f.until("the event", func() bool { return len(f.named(EventRebuildSkipped)) > 0 })
			if l.State() != lane.Dirty || l.Flags().Rebuildable {
				t.Errorf("%v %+v while the port is down", l.State(), l.Flags())
			}
			f.forger.tell(device, verbs.EventPortActive)
			f.until("the lane", func() bool { return l.State() == lane.Active && l.Flags().Epoch == 2 })
			f.mustCall(0, "a")
			// The port was up all the time since: what fails now is not the port's.
			broke()
			f.forger.tell(device, verbs.EventPortActive)
			f.until("the event", func() bool { return len(f.named(EventRebuildSkipped)) > 1 })
			if l.State() != lane.Dirty || l.Flags().Rebuildable {
				t.Errorf("%v %+v without an outage of the port", l.State(), l.Flags())
			}
		})
	}
}

// Capacity comes back without a call.
func TestSweep(t *testing.T) {
	s := newSite(t, newWorld(t, func(d *deploy.Deployment) { d.Rebuild.Sweep = deploy.Duration(10 * time.Millisecond) }))
	for _, l := range s.client.Lanes("a") {
		l.FailFrom(lane.LayerNode, lane.ErrPeerDead, true)
	}
	s.until("both lanes", func() bool { return s.lane(0, "a").State == "active" && s.lane(1, "a").State == "active" })
	if st := s.lane(1, "a"); st.Epoch != 2 || st.Attempts != 1 {
		t.Fatalf("%+v", st)
	}
	s.mustCall(1, "a")
	// And nothing more is done for lanes that are well.
	n := len(s.named("peer_renewed"))
	<-time.After(50 * time.Millisecond)
	if len(s.named("peer_renewed")) != n {
		t.Fatal("healthy lanes were rebuilt")
	}
}

// Without a sweep nothing is done until a call comes.
func TestNoSweep(t *testing.T) {
	s := newSite(t, newWorld(t))
	s.client.Lanes("a")[0].FailFrom(lane.LayerNode, lane.ErrPeerDead, true)
	<-time.After(60 * time.Millisecond)
	if st := s.lane(0, "a"); st.State != "dirty" || st.Attempts != 0 {
		t.Fatalf("%+v", st)
	}
	s.mustCall(0, "a")
}

// Attempts that fail use the budget up; then the lane is dead, and says why it was
// given up in the first place.
func TestBudget(t *testing.T) {
	s := newSite(t, newWorld(t, func(d *deploy.Deployment) { d.Rebuild.Wait = deploy.Duration(20 * time.Millisecond) }))
	s.answerDelay.Store(int64(time.Second))
	l := s.client.Lanes("a")[0]
	l.FailFrom(lane.LayerNode, errors.New("first cause"), true)
	for i := 1; i <= 3; i++ {
		var err error
		s.until("an attempt", func() bool { err = s.call(0, "a"); return s.lane(0, "a").Attempts >= i })
		if !errors.Is(err, lane.ErrDown) || !strings.Contains(err.Error(), "first cause") {
			t.Fatalf("attempt %d: %v", i, err)
		}
	}
	if st := s.lane(0, "a"); st.State != "dead" || st.Attempts != 3 || st.Epoch != 1 {
		t.Fatalf("%+v", st)
	}
	s.until("the events", func() bool { return len(s.named(EventRebuildExhausted)) == 1 })
	if n := len(s.named(EventRebuildTimeout)); n != 3 {
		t.Fatalf("%d time-outs told, want 3: %v", n, s.names())
	}
	if err := s.call(0, "a"); !errors.Is(err, lane.ErrDown) {
		t.Fatal(err)
	}
	s.mustCall(0, "b")
	if st := s.lane(0, "a"); st.Attempts != 3 {
		t.Fatalf("a dead lane was tried again: %+v", st)
	}
}

// A budget by window gives no lane up: when the outage is over it heals.
func TestWindowNeverGivesUp(t *testing.T) {
	s := newSite(t, newWorld(t, func(d *deploy.Deployment) {
		d.Rebuild.Wait = deploy.Duration(10 * time.Millisecond)
		d.Rebuild.Window, d.Rebuild.WindowAttempts, d.Rebuild.Sweep = deploy.Duration(60*time.Millisecond), 2, deploy.Duration(time.Millisecond)
	}))
	s.answerDelay.Store(int64(100 * time.Millisecond))
	s.client.Lanes("a")[0].FailFrom(lane.LayerNode, lane.ErrPeerDead, true)
	began := time.Now()
	s.until("five attempts", func() bool { return s.lane(0, "a").Attempts >= 5 })
	if took := time.Since(began); took < 110*time.Millisecond { // two a window
		t.Fatalf("five attempts in %v", took)
	}
	s.answerDelay.Store(0)
	s.until("the lane", func() bool { return s.lane(0, "a").State == "active" })
	s.mustCall(0, "a")
}

// A shard that leaves fails calls at once, and one that comes back in its place is
// met with new lanes and their whole budget.
func TestShardIsRejoined(t *testing.T) {
	s := newSite(t, newWorld(t))
	client := s.set.QPsInUse()
	for round := range 5 {
		s.mustCall(1, "a")
		s.stop(1)
		s.until("the loss", func() bool { return s.client.Absent(1) != "" })
		var le *lane.Error
		if err := s.call(1, "a"); !errors.As(err, &le) || le.Layer != lane.LayerNode || !errors.Is(err, lane.ErrPeerDead) || !strings.Contains(err.Error(), "client/x") {
			t.Fatalf("%v", err)
		}
		s.mustCall(0, "a") // the other is not touched
		s.start(1)
		s.until("the shard", func() bool { return s.client.Absent(1) == "" })
		if err := s.call(1, "b"); err != nil {
			t.Fatalf("round %d: %v; %+v; %v", round, err, s.client.Status(), s.names())
		}
		if st := s.lane(1, "a"); st.State != "active" || st.Attempts != 0 || st.Epoch != 1 {
			t.Fatalf("round %d: %+v", round, st)
		}
	}
	if n := s.set.QPsInUse(); n != client {
		t.Fatalf("%d QPs in use at the client, there were %d", n, client)
	}
	if n := len(s.named(EventShardRejoined)); n != 5 {
		t.Fatalf("%d rejoins told", n)
	}
}

// A call that waits for a shard which leaves fails at once.
func TestWaitersOfALostShard(t *testing.T) {
	s := newSite(t, newWorld(t))
	errs := make(chan error, 1)
	go func() {
		_, err := s.client.Pool(1).Call(s.ctx, lane.Request{Op: 0x0702}, nil) // which the shard does not answer
		errs <- err
	}()
	s.until("the request", func() bool { return s.servers[1].acceptor.Busy() })
	s.stop(1)
	if err := <-errs; err == nil {
		t.Fatal("it was answered")
	}
	s.start(1)
	s.until("the shard", func() bool { return s.client.Absent(1) == "" })
	s.mustCall(1, "a")
}

func TestDraining(t *testing.T) {
	s := newSite(t, newWorld(t))
	held := make(chan error, 1)
	go func() {
		_, err := s.client.Pool(0).Call(s.ctx, lane.Request{Op: 0x0703}, nil) // which the shard holds until drained
		held <- err
	}()
	s.until("the request", func() bool { return s.servers[0].acceptor.Busy() })
	if err := s.control[0].SetState(s.ctx, ctrl.StateDraining, "maintenance"); err != nil {
		t.Fatal(err)
	}
	s.until("the refusal", func() bool { return errors.Is(s.call(0, "a"), lane.ErrDraining) })
	if err := s.call(0, "b"); !strings.Contains(err.Error(), "maintenance") || !strings.Contains(err.Error(), "shard 0") {
		t.Fatal(err)
	}
	s.mustCall(1, "a")
	short, cancel := context.WithTimeout(s.ctx, 50*time.Millisecond)
	err := s.servers[0].Drain(short)
	cancel()
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("drained with a request in it: %v", err)
	}
	close(s.release)
	if err := <-held; err != nil {
		t.Fatalf("what was under way was not finished: %v", err)
	}
	if err := s.servers[0].Drain(s.ctx); err != nil {
		t.Fatal(err)
	}
	if err := s.control[0].SetState(s.ctx, ctrl.StateServing, ""); err != nil {
		t.Fatal(err)
	}
	s.until("service", func() bool { return s.call(0, "a") == nil })
}

// A lane that breaks while its shard drains is not rebuilt: nobody would use it. It
// is when the shard serves again.
func TestNoRebuildWhileDraining(t *testing.T) {
	f := newFaulty(t, rebuildOf(func(r *deploy.Rebuild) { r.Sweep = deploy.Duration(time.Millisecond) }))
	if err := f.control[0].SetState(f.ctx, ctrl.StateDraining, "maintenance"); err != nil {
		t.Fatal(err)
	}
	f.until("the refusal", func() bool { return errors.Is(f.call(0, "a"), lane.ErrDraining) })
	f.lane0().FailFrom(lane.LayerNode, lane.ErrPeerDead, true)
	<-time.After(100 * time.Millisecond)
	if st := f.lane(0, "a"); st.State != "dirty" || st.Attempts != 0 {
		t.Errorf("while the shard drains: %+v", st)
	}
	if err := f.control[0].SetState(f.ctx, ctrl.StateServing, ""); err != nil {
		t.Fatal(err)
	}
	f.until("the lane", func() bool { return f.call(0, "a") == nil })
	if st := f.lane(0, "a"); st.State != "active" || st.Epoch != 2 || st.Attempts != 1 {
		t.Errorf("when it serves: %+v", st)
	}
}

// The three failures without any sign of the device, see below, are found all the
// same. Here: the shard was killed after it had acknowledged the request.
func TestSilentDeath(t *testing.T) {
	s := newSite(t, newWorld(t))
	errs := make(chan error, 1)
	go func() {
		_, err := s.client.Pool(1).Call(s.ctx, lane.Request{Op: 0x0702, Rail: "a"}, nil)
		errs <- err
	}()
	s.until("the request", func() bool { return s.servers[1].acceptor.Busy() })
	began := time.Now()
	s.breakLane(1, "a") // its QP answers no more; the request was acknowledged
	var le *lane.Error
	if err := <-errs; !errors.As(err, &le) || le.Layer != lane.LayerDevice || time.Since(began) > 5*time.Second {
		t.Fatalf("%v after %v", err, time.Since(began))
	}
}

// A control plane that cannot be reached is not a dead shard.
func TestControlPlaneGone(t *testing.T) {
	s := newSite(t, newWorld(t))
	s.orphaned = true
	if err := s.server.Close(); err != nil {
		t.Fatal(err)
	}
	held := make(chan error, 1)
	go func() {
		_, err := s.client.Pool(0).Call(s.ctx, lane.Request{Op: 0x0703, Rail: "a"}, nil)
		held <- err
	}()
	s.until("several questions", func() bool { return s.client.cfg.Counters.Probes.Load() >= 4 })
	s.mustCall(0, "b")
	s.mustCall(1, "a")
	close(s.release)
	if err := <-held; err != nil {
		t.Fatal(err)
	}
	if st := s.lane(0, "a"); st.State != "active" || s.client.keepers[0].lastVerdict() != "unknown" {
		t.Fatalf("%+v, verdict %s", st, s.client.keepers[0].lastVerdict())
	}
	// And a rebuild cannot be had, which is told as a failure of the control plane.
	s.breakLane(0, "a")
	_ = s.call(0, "a")
	s.client.keepers[0].pol.wait = 20 * time.Millisecond
	_ = s.call(0, "a")
	s.until("the event", func() bool { return len(s.named(EventRebuildTimeout))+len(s.named(EventRebuildFailed)) > 0 })
}

// The control plane's word alone ends calls to a shard that says nothing.
func TestVerdictDead(t *testing.T) {
	s := newSite(t, newWorld(t, func(d *deploy.Deployment) { d.Health.TouchAfter = 0 }))
	errs := make(chan error, 1)
	go func() {
		_, err := s.client.Pool(1).Call(s.ctx, lane.Request{Op: 0x0702}, nil)
		errs <- err
	}()
	s.until("the request", func() bool { return s.servers[1].acceptor.Busy() })
	// Its heartbeats end while its QPs go on: a process that hangs.
	if err := s.control[1].Close(); err != nil {
		t.Fatal(err)
	}
	var le *lane.Error
	if err := <-errs; !errors.As(err, &le) || le.Layer != lane.LayerNode || !errors.Is(err, lane.ErrPeerDead) || !strings.Contains(err.Error(), "no heartbeat for") {
		t.Fatalf("%v", err)
	}
}

// Both ends must agree on whether lanes are rebuilt.
func TestRebuildMustAgree(t *testing.T) {
	w := newWorld(t)
	servers := pipeline.NewScope()
	w.serve(t, servers, 0)
	w.serve(t, servers, 1)
	scope := pipeline.NewScope()
	set, c, cfg := w.member(t, scope, "c", ctrl.ClientID("x"), func(d *deploy.Deployment, c lane.Config) rail.Demand {
		dem := ClientDemand(d, c)
		dem.Params["rebuild"] = "false"
		return dem
	})
	_, err := Dial(w.ctx, scope, ClientInput{Set: set, Control: c, Config: cfg})
	if err == nil || !strings.Contains(err.Error(), "rebuild is false here and true at shard/") {
		t.Fatalf("err = %v", err)
	}
	if err := errors.Join(scope.Close(w.ctx), servers.Close(w.ctx)); err != nil {
		t.Error(err)
	}
}

// Two hundred times a lane breaks in a random place while calls go on; nothing
// grows.
func TestConstantCounts(t *testing.T) {
	s := newSite(t, newWorld(t, func(d *deploy.Deployment) {
		d.Rebuild.Window, d.Rebuild.WindowAttempts, d.Rebuild.Sweep = deploy.Duration(time.Millisecond), 1000, deploy.Duration(time.Millisecond)
	}))
	settled := func() bool {
		return !slices.ContainsFunc(s.client.Status(), func(l LaneStatus) bool { return l.State != "active" })
	}
	goroutines, at, here := runtime.NumGoroutine(), s.sets[0].QPsInUse(), s.set.QPsInUse()
	for i := range 200 {
		shard, railName := i%2, []string{"a", "b"}[i/2%2]
		switch i % 3 {
		case 0:
			s.breakLane(shard, railName)
			_ = s.call(shard, railName)
		case 1:
			s.client.Lanes(railName)[shard].FailFrom(lane.LayerNode, lane.ErrPeerDead, true)
		default:
			s.breakLane(shard, railName)
			s.client.Lanes(railName)[shard].FailFrom(lane.LayerWait, lane.ErrTimeout, true)
		}
		s.until("the lanes", settled)
		s.mustCall(shard, railName)
	}
	if a, b := s.sets[0].QPsInUse(), s.set.QPsInUse(); a != at || b != here {
		t.Fatalf("%d and %d QPs in use, there were %d and %d", a, b, at, here)
	}
	s.until("the goroutines", func() bool { return runtime.NumGoroutine() <= goroutines+2 })
}

// A shard is replaced by its next process while a client waits for its answer; the
// client meets that one, and the other shard, which had answered, once more.
func TestShardReplacedWhileDialing(t *testing.T) {
	t.Run("rebuild", func(t *testing.T) { shardReplacedWhileDialing(t, true) })
	t.Run("no rebuild", func(t *testing.T) { shardReplacedWhileDialing(t, false) })
}

func shardReplacedWhileDialing(t *testing.T, rebuild bool) {
	defer goleak.VerifyNone(t)
	w := newWorld(t, func(d *deploy.Deployment) { d.Rebuild.Enabled = rebuild })
	defer w.server.Close()
	servers, mute := pipeline.NewScope(), pipeline.NewScope()
	w.shard(t, servers, 0)
	// One that serves, it says, and answers nobody: a process that is stopped.
	_, control, _ := w.member(t, mute, "s1", ctrl.ShardID(1), ServerDemand)
	if err := control.SetState(w.ctx, ctrl.StateServing, ""); err != nil {
		t.Fatal(err)
	}
	scope := pipeline.NewScope()
	set, c, cfg := w.member(t, scope, "c", ctrl.ClientID("x"), ClientDemand)
	dialed := make(chan error, 1)
	var cl *Client
	go func() {
		var err error
		cl, err = Dial(w.ctx, scope, ClientInput{Set: set, Control: c, Config: cfg})
		dialed <- err
	}()
	for e, err := range control.Watch(w.ctx) { // until its offer is there
		if err != nil {
			t.Fatal(err)
		}
		if _, ok := e.(ctrl.OfferReceived); ok {
			break
		}
	}
	for len(w.named("peer_connected")) == 0 { // shard 0 has met it, too
		if err := w.ctx.Err(); err != nil {
			t.Fatal(err)
		}
		runtime.Gosched()
	}
	if err := control.Close(); err != nil { // as when it is killed
		t.Fatal(err)
	}
	w.shard(t, servers, 1)
	if err := <-dialed; err != nil {
		t.Fatal(err)
	}
	var resp [64]byte
	for shard := range 2 {
		for range 4 { // over every lane
			r, err := cl.Pool(shard).Call(w.ctx, lane.Request{Op: 0x0701, Payload: []byte("hi")}, resp[:])
			if want := fmt.Sprintf("shard %d: hi", shard); err != nil || string(resp[:r.N]) != want {
				t.Fatalf("%v %q", err, resp[:r.N])
			}
		}
	}
	if n := set.QPsInUse(); n != 4 {
		t.Errorf("%d QPs in use, want two for each shard", n)
	}
	_ = mute.Close(w.ctx) // it cannot leave: another has its place
	if err := errors.Join(scope.Close(w.ctx), servers.Close(w.ctx)); err != nil {
		t.Error(err)
	}
}
