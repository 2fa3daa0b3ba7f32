package lanes

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
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

// world is two shards and a client on two rails of a loop network.
type world struct {
	dep    *deploy.Deployment
	driver verbs.Driver
	open   func(deploy.Rail) verbs.Driver // instead of driver, if set
	server *ctrl.Server
	other  lane.Handler // of the operations 0x80 and above, if set
	ctx    context.Context

	release     chan struct{} // ends the requests that shards hold
	answerDelay atomic.Int64

	mu     sync.Mutex
	events []pipeline.Event
	done   map[uint64]int // how often shards handled a request, by its token
}

// delayed is a driver with the fault delay_answer.
type delayed struct {
	verbs.Driver
	w *world
}

func (d *delayed) AnswerDelay() time.Duration { return time.Duration(d.w.answerDelay.Load()) }

func newWorld(t *testing.T, change ...func(*deploy.Deployment)) *world {
	w := &world{release: make(chan struct{}), done: map[uint64]int{}}
	w.driver = &delayed{verbstest.NewLoop(verbstest.LoopOptions{}), w}
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	t.Cleanup(cancel)
	w.ctx = pipeline.WithSink(ctx, w.note)
	d := &deploy.Deployment{Name: "test", Epoch: 1, Shards: []deploy.Shard{{ID: 0, Host: "s0"}, {ID: 1, Host: "s1"}},
		Lanes: deploy.Lanes{QPs: 2, Slots: 2, RequestBytes: 4096, ResponseBytes: 4096, Notify: "adaptive", Spin: deploy.Duration(20 * time.Microsecond),
			WaitTimeout: deploy.Duration(10 * time.Second), MaxClients: 2}}
	d.Pipeline.Connect.Deadline = deploy.Duration(5 * time.Second)
	d.Health.TouchAfter, d.Health.TouchTimeout = deploy.Duration(20*time.Millisecond), deploy.Duration(time.Second)
	d.Health.ProbeAfter, d.Health.ProbeInterval, d.Health.ProbeTimeout = deploy.Duration(30*time.Millisecond), deploy.Duration(30*time.Millisecond), deploy.Duration(time.Second)
	d.Rebuild = deploy.Rebuild{Enabled: true, MaxAttempts: 3, Wait: deploy.Duration(2 * time.Second), Poll: deploy.Duration(5 * time.Millisecond),
		PollMax: deploy.Duration(50 * time.Millisecond), PollTimeout: deploy.Duration(100 * time.Millisecond), Cooldown: deploy.Duration(time.Millisecond), Rejoin: true}
	for i, name := range []string{"s0", "s1", "c"} {
		h := deploy.Host{Name: name}
		for r, rn := range []string{"a", "b"} {
			h.Rails = append(h.Rails, deploy.Rail{Name: rn, Fabric: rn, Device: fmt.Sprintf("loop:10.%d.0.%d", r, i+1), Port: 1, Weight: 1, HopLimit: 64, Timeout: 9, RetryCount: 1})
		}
		d.Hosts = append(d.Hosts, h)
	}
	for _, f := range change {
		f(d)
	}
	srv, err := ctrl.NewServer(ctrl.ServerConfig{Address: "127.0.0.1:0", Identity: identity(d), Shards: []int{0, 1},
		Timing: ctrl.Timing{Heartbeat: 20 * time.Millisecond, Stale: 200 * time.Millisecond, Dead: 2 * time.Second, ClientLease: 2 * time.Second}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = srv.Close() })
	w.dep, w.server = d, srv
	return w
}

func (w *world) note(e pipeline.Event) {
	w.mu.Lock()
	w.events = append(w.events, e)
	w.mu.Unlock()
}

// named are the events of a name so far.
func (w *world) named(name string) (out []pipeline.Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, e := range w.events {
		if e.Event == name {
			out = append(out, e)
		}
	}
	return out
}

func identity(d *deploy.Deployment) ctrl.Identity {
	return ctrl.Identity{Namespace: d.Name, Deployment: d.Name, Epoch: d.Epoch, Digest: d.Digest()}
}

// member brings a host's rails up and joins.
func (w *world) member(t *testing.T, scope *pipeline.Scope, host string, id ctrl.NodeID, demand func(*deploy.Deployment, lane.Config) rail.Demand) (*rail.Set, *ctrl.Client, lane.Config) {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	cfg, err := ConfigOf(w.ctx, w.dep)
	must(err)
	rails, err := pipeline.Run(w.ctx, scope, rail.Resolve, rail.ResolveInput{Deployment: w.dep, Host: host,
		Drivers: func(_ string, r deploy.Rail) (verbs.Driver, error) {
			if w.open != nil {
				return w.open(r), nil
			}
			return w.driver, nil
		}})
	must(err)
	set, err := pipeline.Run(w.ctx, scope, rail.Allocate, rail.AllocateInput{Deployment: w.dep, Host: host, Rails: rails, Demand: demand(w.dep, cfg)})
	must(err)
	c, err := ctrl.Dial(w.ctx, w.server.Addr(), identity(w.dep), ctrl.ClientOptions{})
	must(err)
	scope.DeferClose("control", c.Close)
	role := ctrl.RoleClient
	if _, ok := id.Shard(); ok {
		role = ctrl.RoleShard
	}
	must(c.Join(w.ctx, ctrl.NodeInfo{ID: id, Role: role, Host: host, Rails: set.Info()}))
	scope.Defer("leave", func(ctx context.Context) error { return c.Leave(ctx, "done") })
	return set, c, cfg
}

// shard serves an echo on family 7 that tells which shard answered.
func (w *world) shard(t *testing.T, scope *pipeline.Scope, id int) *Server {
	t.Helper()
	s, _, _ := w.serve(t, scope, id)
	return s
}

// serve is shard, with what it is made of. The operation 2 is never answered, 3
// when the world's release is closed, 4 when the lane has ended; 0x10 to 0x16 get
// the statuses 0 to -6, and 0x20 panics.
func (w *world) serve(t *testing.T, scope *pipeline.Scope, id int) (*Server, *rail.Set, *ctrl.Client) {
	t.Helper()
	set, c, cfg := w.member(t, scope, fmt.Sprintf("s%d", id), ctrl.ShardID(id), ServerDemand)
	r := new(Router)
	r.Handle(7, lane.HandlerFunc(func(x *lane.Exchange) {
		if w.other != nil && x.Op() >= 0x0780 {
			w.other.Serve(x)
			return
		}
		w.mu.Lock()
		w.done[x.Token()]++
		w.mu.Unlock()
		switch op := x.Op(); op {
		case 0x0704:
			<-x.Context().Done()
		case 0x0710, 0x0711, 0x0712, 0x0713, 0x0714, 0x0715, 0x0716:
			x.Reply(lane.Status(0x0710-int(op)), 0)
			return
		case 0x0720:
			panic("a fault of the handler's")
		case 0x0702:
			<-x.Context().Done()
			return
		case 0x0703:
			select {
			case <-w.release:
			case <-x.Context().Done():
				return
			}
		}
		out := x.Response()
		n := copy(out, fmt.Sprintf("shard %d: ", id))
		n += copy(out[n:], x.Payload())
		x.Reply(lane.StatusOK, n)
	}))
	s := Serve(w.ctx, scope, ServerInput{Set: set, Control: c, Shard: id, Config: cfg, Handler: r, Workers: 3})
	if err := c.SetReport(s.Report); err != nil {
		t.Fatal(err)
	}
	if err := c.SetState(w.ctx, ctrl.StateServing, ""); err != nil {
		t.Fatal(err)
	}
	return s, set, c
}

func TestEveryShardAnswersOverEveryRail(t *testing.T) {
	defer goleak.VerifyNone(t)
	w := newWorld(t)
	defer w.server.Close()
	servers := pipeline.NewScope()
	s0, s1 := w.shard(t, servers, 0), w.shard(t, servers, 1)
	scope := pipeline.NewScope()
	set, c, cfg := w.member(t, scope, "c", ctrl.ClientID("x"), ClientDemand)
	cl, err := Dial(w.ctx, scope, ClientInput{Set: set, Control: c, Config: cfg})
	if err != nil {
		t.Fatal(err)
	}
	for shard := range 2 {
		if got := strings.Join(cl.Reach(shard), ","); got != "a,b" || cl.Absent(shard) != "" {
			t.Errorf("shard %d is reached over %q, absent %q", shard, got, cl.Absent(shard))
		}
		for _, rn := range []string{"a", "b"} {
			var resp [64]byte
			r, err := cl.Pool(shard).Call(w.ctx, lane.Request{Op: 0x0701, Payload: []byte("hi over " + rn), Rail: rn}, resp[:])
			if want := fmt.Sprintf("shard %d: hi over %s", shard, rn); err != nil || r.Status != lane.StatusOK || string(resp[:r.N]) != want {
				t.Errorf("%v %v %q, want %q", err, r, resp[:r.N], want)
			}
		}
		r, err := cl.Pool(shard).Call(w.ctx, lane.Request{Op: 0x0801}, nil)
		if err != nil || r.Status != lane.StatusInvalid {
			t.Errorf("an operation nobody serves: %v %v", r, err)
		}
	}
	if n := cl.Report().Lanes.Active; n != 4 {
		t.Errorf("the client reports %d active lanes, want 4", n)
	}
	if a, b := s0.Report().Lanes.Active, s1.Report().Lanes.Active; a != 2 || b != 2 {
		t.Errorf("the shards report %d and %d active lanes, want 2 each", a, b)
	}
	if err := errors.Join(scope.Close(w.ctx), servers.Close(w.ctx)); err != nil {
		t.Error(err)
	}
}

// A shard that has left does not keep a client from the others, nor does it make
// it wait.
func TestDeadShardIsLeftOut(t *testing.T) {
	defer goleak.VerifyNone(t)
	w := newWorld(t)
	defer w.server.Close()
	servers, gone := pipeline.NewScope(), pipeline.NewScope()
	w.shard(t, servers, 0)
	w.shard(t, gone, 1)
	if err := gone.Close(w.ctx); err != nil {
		t.Fatal(err)
	}
	scope := pipeline.NewScope()
	set, c, cfg := w.member(t, scope, "c", ctrl.ClientID("x"), ClientDemand)
	start := time.Now()
	cl, err := Dial(w.ctx, scope, ClientInput{Set: set, Control: c, Config: cfg})
	if err != nil {
		t.Fatal(err)
	}
	if d := time.Since(start); d >= w.dep.Pipeline.Connect.Deadline.D() {
		t.Errorf("it waited %v for a shard that had left", d)
	}
	if !strings.Contains(cl.Absent(1), "stopped") || cl.Absent(0) != "" || cl.Pool(7) != nil {
		t.Errorf("shard 1 is %q, shard 0 %q", cl.Absent(1), cl.Absent(0))
	}
	var le *lane.Error
	if _, err := cl.Pool(1).Call(w.ctx, lane.Request{Op: 0x0701}, nil); !errors.Is(err, lane.ErrPeerDead) || !errors.As(err, &le) || le.Layer != lane.LayerNode || le.Label.Shard != 1 {
		t.Errorf("a call to it: %v", err)
	}
	if err := servers.Close(w.ctx); err != nil {
		t.Error(err)
	}
	// Now none serves.
	other := pipeline.NewScope()
	set2, c2, _ := w.member(t, other, "c", ctrl.ClientID("y"), ClientDemand)
	_, err = Dial(w.ctx, other, ClientInput{Set: set2, Control: c2, Config: cfg})
	var pe *pipeline.Error
	if !errors.As(err, &pe) || pe.Layer != pipeline.LayerNode || !strings.Contains(err.Error(), "no shard serves: shard 0 is stopped") || pe.Hint == "" {
		t.Errorf("err = %v", err)
	}
	if err := errors.Join(scope.Close(w.ctx), other.Close(w.ctx)); err != nil {
		t.Error(err)
	}
}

// What vet promises of memory must hold of the lanes.
func TestDemandFitsTheBudget(t *testing.T) {
	w := newWorld(t)
	for _, n := range []int{1, 2, 7, 64} {
		w.dep.Lanes.Slots = n
		cfg, err := ConfigOf(context.Background(), w.dep)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range []rail.Demand{ClientDemand(w.dep, cfg), ServerDemand(w.dep, cfg)} {
			if d.Bytes < cfg.ClientBytes() || d.Bytes < cfg.ServerBytes() || int64(d.Bytes) != w.dep.Lanes.LaneBytes() {
				t.Errorf("%d slots: %d bytes a QP, the client's lane takes %d, the shard's %d, the recipe %d", n, d.Bytes, cfg.ClientBytes(), cfg.ServerBytes(), w.dep.Lanes.LaneBytes())
			}
		}
	}
	w.dep.Lanes.Notify = "sometimes"
	if _, err := ConfigOf(context.Background(), w.dep); err == nil {
		t.Error("an unknown way of noticing was taken")
	}
}
