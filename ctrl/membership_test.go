package ctrl

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/railstore/railstore/ctrl/internal/pb"
	"github.com/railstore/railstore/pipeline"
)

func TestLeaseExpiryTellsTheShards(t *testing.T) {
	s := startServer(t, ServerConfig{Timing: quick})
	ctx := testContext(t)
	shard, client := join(t, s.Addr(), "shard/0"), join(t, s.Addr(), "client/a")
	ev := watch(t, shard)
	if err := client.Publish(ctx, offer("shard/0", 1, 1)); err != nil {
		t.Fatal(err)
	}
	want[OfferReceived](ev)
	_ = client.Close() // as when the process is killed: nobody leaves
	if g := want[PeerGone](ev); g.ID != "client/a" || !strings.Contains(g.Reason, "no heartbeat") {
		t.Fatalf("%+v", g)
	}
	if h := shard.Health(ctx, "client/a"); h.Known {
		t.Errorf("%v", h)
	}
}

func TestDeadShard(t *testing.T) {
	s := startServer(t, ServerConfig{Timing: quick})
	ctx := testContext(t)
	shard, client := join(t, s.Addr(), "shard/0"), join(t, s.Addr(), "client/a")
	if err := shard.SetState(ctx, StateServing, ""); err != nil {
		t.Fatal(err)
	}
	if err := client.Publish(ctx, offer("shard/0", 1, 1)); err != nil {
		t.Fatal(err)
	}
	if h := client.Health(ctx, "shard/0"); !h.Known || h.State != StateServing {
		t.Errorf("%v", h)
	}
	got := make(chan error, 1)
	go func() {
		_, err := client.Fetch(ctx, "shard/0", 1)
		got <- err
	}()
	_ = shard.Close()
	err := <-got // the answer will never come, and that is known
	var absent *AbsentError
	var pe *pipeline.Error
	if !errors.As(err, &absent) || absent.ID != "shard/0" || !errors.As(err, &pe) || pe.Where.Shard != 0 {
		t.Fatal(err)
	}
	t.Log(err)
	if _, err := client.Fetch(ctx, "shard/0", 1); !errors.As(err, &absent) {
		t.Fatalf("asked later: %v", err)
	}
	if h := client.Health(ctx, "shard/0"); !h.Dead() {
		t.Errorf("%v", h)
	}
	short, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	if err := client.WaitReady(short); err == nil || !strings.Contains(err.Error(), "shard/0 is dead (no heartbeat") || !strings.Contains(err.Error(), "shard/1 has not joined") {
		t.Errorf("%v", err)
	}
}

func TestHealthWhenUnreachable(t *testing.T) {
	s := startServer(t, ServerConfig{})
	c := join(t, s.Addr(), "client/a")
	_ = s.Close()
	if h := c.Health(testContext(t), "shard/0"); h.Known || h.Dead() || h.Reason == "" {
		t.Errorf("%v", h)
	}
}

func TestRestartedShard(t *testing.T) {
	s := startServer(t, ServerConfig{})
	ctx := testContext(t)
	old, client := join(t, s.Addr(), "shard/0"), join(t, s.Addr(), "client/a")
	ev := watch(t, client)
	if err := client.Publish(ctx, offer("shard/0", 1, 1)); err != nil {
		t.Fatal(err)
	}
	if err := old.Publish(ctx, offer("client/a", 1, 1)); err != nil {
		t.Fatal(err)
	}
	first := want[OfferReceived](ev).Offer
	fresh := join(t, s.Addr(), "shard/0")
	if g := want[PeerGone](ev); g.ID != "shard/0" || g.Incarnation != first.FromIncarnation {
		t.Fatalf("%+v", g)
	}
	// An answer of the old process cannot reach anybody.
	var replaced *ReplacedError
	if err := old.Publish(ctx, offer("client/a", 2, 1)); !errors.As(err, &replaced) {
		t.Fatal(err)
	}
	var last error
	for _, err := range old.Watch(ctx) {
		last = err
	}
	if !errors.As(last, &replaced) {
		t.Fatal(last)
	}
	if err := client.Publish(ctx, offer("shard/0", 1, 1)); err != nil {
		t.Fatal(err)
	}
	shardEvents := watch(t, fresh)
	o := want[OfferReceived](shardEvents).Offer
	if err := fresh.Publish(ctx, o.Answer(nil, nil)); err != nil {
		t.Fatal(err)
	}
	if got := want[OfferReceived](ev).Offer; got.FromIncarnation == first.FromIncarnation {
		t.Fatalf("%+v", got)
	}
	if err := old.Leave(ctx, ""); err != nil {
		t.Errorf("leaving when replaced: %v", err)
	}
	if h := client.Health(ctx, "shard/0"); !h.Known || h.Dead() {
		t.Errorf("the old process took the new one out: %v", h)
	}
}

// events records what a client's sink was told.
type sink struct {
	mu   sync.Mutex
	seen []string
}

func (s *sink) add(e pipeline.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen = append(s.seen, e.Event)
}

func (s *sink) has(event string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Contains(s.seen, event)
}

func TestControlPlaneRestarts(t *testing.T) {
	s := startServer(t, ServerConfig{Timing: quick})
	addr, ctx := s.Addr(), testContext(t)
	shard, client := join(t, addr, "shard/0"), dial(t, addr)
	var told sink
	client.opts.Sink = told.add
	if err := client.Join(ctx, info("client/a")); err != nil {
		t.Fatal(err)
	}
	se, ce := watch(t, shard), watch(t, client)
	if err := shard.SetState(ctx, StateServing, "ready"); err != nil {
		t.Fatal(err)
	}
	if err := client.Publish(ctx, offer("shard/0", 1, 2)); err != nil {
		t.Fatal(err)
	}
	if err := shard.Publish(ctx, want[OfferReceived](se).Offer.Answer(offer("", 1, 2).Lanes, nil)); err != nil {
		t.Fatal(err)
	}
	want[OfferReceived](ce)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = startServer(t, ServerConfig{Timing: quick, Address: addr})
	if r := want[Rejoined](ce); r.Lost {
		t.Fatalf("%+v", r)
	}
	if r := want[Rejoined](se); r.Lost {
		t.Fatalf("%+v", r)
	}
	if !told.has("control_rejoined") {
		t.Errorf("the sink was told %v", told.seen)
	}
	has := func(from, to NodeID) bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		_, ok := s.reg.Fetch(from, to)
		return ok
	}
	for !has("client/a", "shard/0") || !has("shard/0", "client/a") {
		if ctx.Err() != nil {
			t.Fatal("the offers were not published again")
		}
		runtime.Gosched()
	}
	// Nothing was lost: state and offers are as before, and no peer is gone.
	if err := client.WaitReady(ctx, "shard/0"); err != nil {
		t.Fatal(err)
	}
	if err := client.Publish(ctx, offer("shard/0", 2, 2)); err != nil {
		t.Fatal(err)
	}
	if o := want[OfferReceived](se).Offer; o.Generation != 2 {
		t.Fatalf("%+v", o)
	}
	if a, err := client.Fetch(ctx, "shard/0", 1); err != nil || a.Generation != 1 {
		t.Fatal(a, err)
	}
	// A shard that dies now is reported as ever.
	_ = shard.Close()
	want[PeerGone](ce)
}

// A call that meets a control plane which has just restarted joins again by itself
// and goes through, also when its receiver is not back yet.
func TestCallsAcrossRestart(t *testing.T) {
	s := startServer(t, ServerConfig{}) // heartbeats do not come in time to help
	addr, ctx := s.Addr(), testContext(t)
	shard, client := join(t, addr, "shard/0"), join(t, addr, "client/a")
	se := watch(t, shard)
	for g := range uint64(4) {
		if err := client.Publish(ctx, offer("shard/0", g+1, 2)); err != nil {
			t.Fatal(err)
		}
		for o := (Offer{}); o.Generation != g+1; {
			switch e := se.get().(type) {
			case OfferReceived:
				o = e.Offer
			case Rejoined, PeerState:
			default:
				t.Fatalf("%T %v", e, e)
			}
		}
		if err := shard.SetState(ctx, StateServing, fmt.Sprint(g)); err != nil {
			t.Fatal(err)
		}
		_ = s.Close()
		s = startServer(t, ServerConfig{Address: addr})
	}
	// The catalog knows nothing of memberships and just goes on.
	if _, err := client.Begin(ctx, key); err != nil {
		t.Fatal(err)
	}
	if err := client.WaitReady(ctx, "shard/0"); err != nil {
		t.Fatal(err)
	}
}

// A stop of everything reaches also who had to join again, and nobody returns.
func TestStopOfEverything(t *testing.T) {
	s := startServer(t, ServerConfig{Timing: quick})
	ctx := testContext(t)
	a, b := join(t, s.Addr(), "client/a"), join(t, s.Addr(), "client/b")
	if err := a.Stop(ctx, "maintenance"); err != nil {
		t.Fatal(err)
	}
	if e := want[Stop](watch(t, b)); e.Reason != "maintenance" {
		t.Fatalf("%+v", e)
	}
	s.mu.Lock()
	inc := s.reg.nodes["client/b"].inc
	s.mu.Unlock()
	if err := s.change(func(now time.Time) ([]Notice, error) { return s.reg.Leave(now, "client/b", inc, "test") }); err != nil {
		t.Fatal(err)
	}
	var last error
	for _, err := range b.Watch(ctx) {
		last = err
	}
	if !errors.Is(last, ErrStopping) || !strings.Contains(last.Error(), "maintenance") {
		t.Fatal(last)
	}
	if st := s.Status(); st.Control.State != "stopping" || st.Control.Reason != "maintenance" {
		t.Errorf("%+v", st.Control)
	}
}

func TestPeerLostDuringRestart(t *testing.T) {
	s := startServer(t, ServerConfig{Timing: quick})
	addr, ctx := s.Addr(), testContext(t)
	shard, client := join(t, addr, "shard/0"), join(t, addr, "client/a")
	ev := watch(t, client)
	if err := client.Publish(ctx, offer("shard/0", 1, 1)); err != nil {
		t.Fatal(err)
	}
	if err := shard.Publish(ctx, offer("client/a", 1, 1)); err != nil {
		t.Fatal(err)
	}
	want[OfferReceived](ev)
	_ = s.Close()
	_ = shard.Close()
	startServer(t, ServerConfig{Timing: quick, Address: addr})
	want[Rejoined](ev)
	if g := want[PeerGone](ev); g.ID != "shard/0" {
		t.Fatalf("%+v", g)
	}
}

// A client that was cut off for longer than its lease learns that its peers have
// dropped it, and is a member again.
func TestLostLease(t *testing.T) {
	s := startServer(t, ServerConfig{Timing: quick})
	ctx := testContext(t)
	proxy := newProxy(t, s.Addr())
	shard, client := join(t, s.Addr(), "shard/0"), join(t, proxy.addr(), "client/a")
	se, ce := watch(t, shard), watch(t, client)
	if err := client.Publish(ctx, offer("shard/0", 1, 1)); err != nil {
		t.Fatal(err)
	}
	first := want[OfferReceived](se).Offer
	if err := shard.Publish(ctx, first.Answer(nil, nil)); err != nil {
		t.Fatal(err)
	}
	want[OfferReceived](ce)
	proxy.cut()
	if g := want[PeerGone](se); g.ID != "client/a" || g.Incarnation != first.FromIncarnation {
		t.Fatalf("%+v", g)
	}
	proxy.mend()
	if r := want[Rejoined](ce); !r.Lost {
		t.Fatalf("%+v", r)
	}
	if g := want[PeerGone](ce); g.ID != "shard/0" {
		t.Fatalf("%+v", g)
	}
	if err := client.Publish(ctx, offer("shard/0", 1, 1)); err != nil {
		t.Fatal(err)
	}
	if o := want[OfferReceived](se).Offer; o.FromIncarnation == first.FromIncarnation {
		t.Fatalf("%+v", o)
	}
}

// What happened while the connection was away is made up by the resync.
func TestWatchCatchesUp(t *testing.T) {
	s := startServer(t, ServerConfig{})
	ctx := testContext(t)
	proxy := newProxy(t, s.Addr())
	shard := join(t, proxy.addr(), "shard/0")
	a, b := join(t, s.Addr(), "client/a"), join(t, s.Addr(), "client/b")
	ev := watch(t, shard)
	if err := a.Publish(ctx, offer("shard/0", 1, 1)); err != nil {
		t.Fatal(err)
	}
	want[OfferReceived](ev)
	proxy.cut()
	if err := a.Leave(ctx, ""); err != nil {
		t.Fatal(err)
	}
	if err := b.Publish(ctx, offer("shard/0", 1, 1)); err != nil {
		t.Fatal(err)
	}
	proxy.mend()
	if g := want[PeerGone](ev); g.ID != "client/a" {
		t.Fatalf("%+v", g)
	}
	if o := want[OfferReceived](ev).Offer; o.From != "client/b" {
		t.Fatalf("%+v", o)
	}
}

// TestLeaveDoesNotWaitForTheGone: whoever leaves a control plane that has gone says
// so after a moment, however long it might wait.
func TestLeaveDoesNotWaitForTheGone(t *testing.T) {
	s := startServer(t, ServerConfig{})
	proxy := newProxy(t, s.Addr())
	c := join(t, proxy.addr(), "client/a")
	proxy.cut()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	start := time.Now()
	err := c.Leave(ctx, "done")
	if took := time.Since(start); err == nil || took > 20*time.Second {
		t.Fatalf("%v after %v", err, took)
	}
}

func TestMembershipErrors(t *testing.T) {
	s := startServer(t, ServerConfig{})
	ctx := testContext(t)
	c := dial(t, s.Addr())
	for what, err := range map[string]error{
		"publish": c.Publish(ctx, offer("shard/0", 1, 1)),
		"state":   c.SetState(ctx, StateServing, ""),
		"report":  c.SetReport(nil),
		"barrier": c.Barrier(ctx, "b", 1),
	} {
		if !errors.Is(err, ErrNotJoined) || !strings.Contains(err.Error(), s.Addr()) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := c.Leave(ctx, ""); err != nil {
		t.Errorf("leaving before joining: %v", err)
	}
	if err := c.Join(ctx, info("client/a")); err != nil {
		t.Fatal(err)
	}
	if err := c.SetState(ctx, StateDead, ""); err == nil {
		t.Error("a node may say that it is dead")
	}
	if err := c.Publish(ctx, offer("shard/1", 1, 1)); err == nil || !strings.Contains(err.Error(), "shard/1 is not there") {
		t.Errorf("%v", err)
	}
	if _, err := c.Node(ctx, "shard/1"); err == nil {
		t.Error("an absent node is found")
	}
	if n, err := c.Node(ctx, "client/a"); err != nil || n.Info.PID != 42 || len(n.Info.Rails) != 1 {
		t.Errorf("%+v %v", n, err)
	}
	if err := c.Leave(ctx, ""); err != nil {
		t.Fatal(err)
	}
	if err := c.Join(ctx, info("client/a")); err != nil {
		t.Errorf("joining again after leaving: %v", err)
	}
	bad := info("client/b")
	bad.Host = "a\nb"
	if err := c.Join(ctx, bad); err == nil {
		t.Error("a host name of two lines is taken")
	}
}

func TestReports(t *testing.T) {
	s := startServer(t, ServerConfig{Timing: quick})
	ctx := testContext(t)
	c := dial(t, s.Addr())
	var told sink
	c.opts.Sink = told.add
	if err := c.Join(ctx, info("shard/0")); err != nil {
		t.Fatal(err)
	}
	active := func(n int) {
		for s.Status().Shards[0].Lanes.Active != n {
			if ctx.Err() != nil {
				t.Fatalf("%+v", s.Status())
			}
			runtime.Gosched()
		}
	}
	_ = c.SetReport(func() Report {
		return Report{Lanes: LaneCounts{Active: 7}, Rails: []RailInfo{{Name: "r0", State: "down"}}}
	})
	active(7)
	if st := s.Status(); st.Shards[0].Rails[0].State != "down" {
		t.Errorf("%+v", st)
	}
	// A report that is refused does not cost the lease.
	_ = c.SetReport(func() Report { return Report{Lanes: LaneCounts{Active: -1}} })
	active(0)
	if !told.has("report_refused") {
		t.Errorf("told %v", told.seen)
	}
}

// TestCallOfAnEarlierLife: a call is on its way while another goroutine joins again
// with a new incarnation. That one has replaced the caller's, which is no reason to
// end the membership.
func TestCallOfAnEarlierLife(t *testing.T) {
	s := startServer(t, ServerConfig{Timing: quick})
	ctx := testContext(t)
	c := join(t, s.Addr(), "shard/0")
	m, err := c.member()
	if err != nil {
		t.Fatal(err)
	}
	first := true
	_, err = memberCall(ctx, m, "set_state", pipeline.Nowhere, func(ctx context.Context, who *pb.Member) (*pb.SetStateReply, error) {
		if first {
			first = false
			if err := s.change(func(now time.Time) ([]Notice, error) {
				return s.reg.Leave(now, "shard/0", who.GetIncarnation(), "as when the lease ends")
			}); err != nil {
				t.Error(err)
			}
			if err := m.lockJoin(ctx); err != nil {
				t.Error(err)
			}
			if err := m.joinAgain(ctx, true); err != nil {
				t.Error(err)
			}
			m.unlockJoin()
		}
		return c.ctl.SetState(ctx, &pb.SetStateRequest{Identity: c.identity(), Member: who, State: pb.State(StateServing)})
	})
	if !errors.Is(err, ErrLeaseLost) {
		t.Fatalf("err = %v", err)
	}
	if err := c.SetState(ctx, StateServing, ""); err != nil {
		t.Fatalf("the next life: %v", err)
	}
	if err := m.ended(); err != nil {
		t.Fatal(err)
	}
}
