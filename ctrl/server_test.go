package ctrl

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"

	"github.com/railstore/railstore/pipeline"
)

func TestIdentityMismatch(t *testing.T) {
	s := startServer(t, ServerConfig{})
	for field, f := range map[string]func(*Identity){
		"namespace":  func(id *Identity) { id.Namespace = "other" },
		"deployment": func(id *Identity) { id.Deployment = "other" },
		"epoch":      func(id *Identity) { id.Epoch = 4 },
		"digest":     func(id *Identity) { id.Digest = "" },
	} {
		id := testIdentity
		f(&id)
		_, err := Dial(testContext(t), s.Addr(), id, ClientOptions{})
		var ie *IdentityError
		if !errors.As(err, &ie) || ie.Field != field || ie.Mine == ie.Theirs {
			t.Errorf("%s: %v", field, err)
			continue
		}
		var pe *pipeline.Error
		if !errors.As(err, &pe) || pe.Layer != pipeline.LayerControl || pe.Hint == "" || !strings.Contains(err.Error(), s.Addr()) {
			t.Errorf("%s: %#v", field, err)
		}
	}
	if e := testIdentity.diff(1, testIdentity, 2); e == nil || e.Field != "protocol_version" {
		t.Errorf("%v", e)
	}
}

// Not only the first call is checked: a control plane of another epoch that comes
// up on the same address ends the membership.
func TestIdentityChangesUnderway(t *testing.T) {
	s := startServer(t, ServerConfig{Timing: quick})
	c := join(t, s.Addr(), "client/a")
	addr := s.Addr()
	_ = s.Close()
	other := testIdentity
	other.Epoch++
	startServer(t, ServerConfig{Timing: quick, Address: addr, Identity: other})
	var last error
	for _, err := range c.Watch(testContext(t)) {
		last = err
	}
	var ie *IdentityError
	if !errors.As(last, &ie) || ie.Field != "epoch" || ie.Mine != "3" || ie.Theirs != "4" {
		t.Fatal(last)
	}
}

func TestAddresses(t *testing.T) {
	s := startServer(t, ServerConfig{})
	_, err := NewServer(ServerConfig{Address: s.Addr(), Shards: []int{0}})
	var used *AddressInUseError
	if !errors.As(err, &used) || used.Address != s.Addr() || used.Hint() == "" {
		t.Errorf("port in use: %v", err)
	}
	for _, a := range []string{"0.0.0.0:0", ":0", "[::]:0", "192.0.2.1:0", "no-such-host.invalid:0"} {
		_, err := NewServer(ServerConfig{Address: a, Shards: []int{0}})
		var ie *InsecureError
		if !errors.As(err, &ie) || !strings.Contains(ie.Hint(), "insecure: true") {
			t.Errorf("%s: %v", a, err)
		}
	}
	open := startServer(t, ServerConfig{Address: "0.0.0.0:0", Insecure: true})
	_ = open.Close()
	for _, a := range []string{"127.0.0.1", "127.0.0.1:99999", ""} {
		if s, err := NewServer(ServerConfig{Address: a, Shards: []int{0}}); err == nil {
			_ = s.Close()
			t.Errorf("%q is taken", a)
		}
	}
	if s, err := NewServer(ServerConfig{Address: "127.0.0.1:0"}); err == nil {
		_ = s.Close()
		t.Error("a deployment without shards is taken")
	}
}

func TestWaitsForControlPlane(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	_ = l.Close()
	ctx, cancel := context.WithTimeout(testContext(t), 300*time.Millisecond)
	_, err = Dial(ctx, addr, testIdentity, ClientOptions{})
	cancel()
	var we *WaitError
	if !errors.As(err, &we) || we.Last == nil || !errors.Is(err, context.DeadlineExceeded) ||
		!strings.Contains(err.Error(), addr) || !strings.Contains(err.Error(), "connection refused") {
		t.Fatal(err)
	}
	t.Log(err)
	if _, err = Dial(testContext(t), addr, testIdentity, ClientOptions{FailFast: true}); errors.As(err, &we) || !strings.Contains(err.Error(), "connection refused") {
		t.Fatal(err)
	}
	t.Log(err)
	got := make(chan error, 1)
	go func() {
		c, err := Dial(testContext(t), addr, testIdentity, ClientOptions{})
		if err == nil {
			err = c.Close()
		}
		got <- err
	}()
	startServer(t, ServerConfig{Address: addr})
	if err := <-got; err != nil {
		t.Fatal(err)
	}
}

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
	short, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
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

// The keys of the status are a promise to programs.
func TestStatusJSON(t *testing.T) {
	s := startServer(t, ServerConfig{})
	c := join(t, s.Addr(), "shard/0")
	join(t, s.Addr(), "client/a")
	st, err := c.Status(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	b, err := json.Marshal(st)
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		Deployment, Digest string
		Control            map[string]any
		Shards, Clients    []map[string]any
	}
	if err := json.Unmarshal(b, &got); err != nil {
		t.Fatal(err)
	}
	has := func(m map[string]any, keys ...string) {
		t.Helper()
		for _, k := range keys {
			if v, ok := m[k]; !ok || v == nil {
				t.Errorf("%q is missing in %v", k, m)
			}
		}
	}
	if got.Deployment != "demo" || got.Digest != "d1" || len(got.Shards) != 2 || len(got.Clients) != 1 {
		t.Fatalf("%s", b)
	}
	has(got.Control, "address", "state")
	for _, x := range got.Shards {
		has(x, "id", "host", "pid", "state", "uptime_s", "reason", "lanes", "rails")
		has(x["lanes"].(map[string]any), "active", "dirty", "rebuilding", "dead")
	}
	has(got.Shards[0]["rails"].([]any)[0].(map[string]any), "name", "fabric", "device", "provider", "gid", "gid_type", "mtu", "weight", "state", "reason")
	has(got.Clients[0], "id", "pid", "lanes")
	var back Status
	if err := json.Unmarshal(b, &back); err != nil || back.Shards[0].State != StateStarting {
		t.Errorf("%+v %v", back, err)
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

// A watcher that does not read holds nobody up and costs a bounded queue.
func TestSlowWatcher(t *testing.T) {
	s := startServer(t, ServerConfig{})
	ctx := testContext(t)
	join(t, s.Addr(), "shard/0") // its stream is taken away below
	c := join(t, s.Addr(), "client/a")
	var w *watcher
	for w == nil {
		s.mu.Lock()
		w = s.watchers["shard/0"]
		s.mu.Unlock()
		runtime.Gosched()
	}
	stuck := newWatcher(w.inc)
	stuck.resync = false
	s.mu.Lock()
	s.watchers["shard/0"] = stuck
	s.mu.Unlock()
	for g := range 3 * maxQueue {
		if err := c.Publish(ctx, offer("shard/0", uint64(g+1), 1)); err != nil {
			t.Fatal(err)
		}
		s.mu.Lock()
		if len(stuck.queue) > maxQueue {
			t.Fatalf("%d notices wait", len(stuck.queue))
		}
		s.mu.Unlock()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !stuck.resync || len(stuck.queue) != 0 {
		t.Errorf("resync %v, queue %d", stuck.resync, len(stuck.queue))
	}
}

// A peer that opens a watch and never reads must not keep Close from returning:
// flow control has stopped the sender in the middle of the first sync.
func TestCloseWithDeafWatcher(t *testing.T) {
	s := startServer(t, ServerConfig{})
	ctx := testContext(t)
	shard := join(t, s.Addr(), "shard/0")
	for i := range 8 {
		c := join(t, s.Addr(), ClientID(fmt.Sprint(i)))
		if err := c.Publish(ctx, offer("shard/0", 1, MaxLanes)); err != nil {
			t.Fatal(err)
		}
	}
	m, _ := shard.membership.me()
	st, err := shard.ctl.Watch(ctx, watchRequest(m))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := st.Header(); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if d := time.Since(start); d > 5*time.Second {
		t.Errorf("Close took %v", d)
	}
}

func TestCloseIsIdempotentAndEndsStreams(t *testing.T) {
	s := startServer(t, ServerConfig{})
	c := join(t, s.Addr(), "client/a")
	ended := make(chan struct{})
	ctx, cancel := context.WithCancel(testContext(t))
	go func() {
		defer close(ended)
		_ = c.WaitReady(ctx)
	}()
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() { _ = s.Close() })
	}
	wg.Wait()
	<-s.Done()
	cancel()
	<-ended
	for range 3 {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
	if err := c.Publish(t.Context(), offer("shard/0", 1, 1)); !errors.Is(err, ErrClosed) {
		t.Errorf("%v", err)
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

func TestBarrierOverTheWire(t *testing.T) {
	s := startServer(t, ServerConfig{})
	ctx := testContext(t)
	const n = 5
	var wg sync.WaitGroup
	var clients []*Client
	for i := range n {
		clients = append(clients, join(t, s.Addr(), ClientID(fmt.Sprint(i))))
	}
	for range 3 {
		for _, c := range clients {
			wg.Go(func() {
				if err := c.Barrier(ctx, "round", n); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
	}
	short, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
	defer cancel()
	err := clients[0].Barrier(short, "round", n)
	if err == nil || !strings.Contains(err.Error(), "1 of 5 have arrived") || !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	for _, c := range clients[1:4] {
		wg.Go(func() {
			var be *BarrierError
			if err := c.Barrier(ctx, "round", n); c != clients[1] && (!errors.As(err, &be) || !strings.Contains(be.Reason, "client/1 went away")) {
				t.Error(err)
			}
		})
	}
	for {
		s.mu.Lock()
		waiting := s.reg.Waiting("round")
		s.mu.Unlock()
		if waiting == 3 {
			break
		}
		runtime.Gosched()
	}
	s.mu.Lock()
	inc := s.reg.nodes["client/1"].inc
	s.mu.Unlock()
	if err := s.change(func(now time.Time) ([]Notice, error) { return s.reg.Leave(now, "client/1", inc, "test") }); err != nil {
		t.Fatal(err)
	}
	_ = clients[1].Close() // it would join again and wait on
	wg.Wait()
}

func TestStandardHealthAndReflection(t *testing.T) {
	s := startServer(t, ServerConfig{})
	ctx := testContext(t)
	conn, err := grpc.NewClient("passthrough:///"+s.Addr(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	hc := healthpb.NewHealthClient(conn)
	check := func(service string, want healthpb.HealthCheckResponse_ServingStatus) {
		t.Helper()
		r, err := hc.Check(ctx, &healthpb.HealthCheckRequest{Service: service})
		if err != nil || r.GetStatus() != want {
			t.Errorf("%q: %v %v, want %v", service, r.GetStatus(), err, want)
		}
	}
	const serving, not = healthpb.HealthCheckResponse_SERVING, healthpb.HealthCheckResponse_NOT_SERVING
	check("", not)
	check("railstore.control.v1.Control", serving)
	shard := join(t, s.Addr(), "shard/0")
	check("", not) // it is there, its data plane is not
	_ = shard.SetState(ctx, StateServing, "")
	check("", serving)
	check("shard/0", serving)
	check("shard/1", not)
	_ = shard.SetState(ctx, StateDraining, "")
	check("", not)
	_ = shard.SetState(ctx, StateServing, "")
	_ = shard.Leave(ctx, "")
	check("shard/0", not)

	rs, err := reflectionpb.NewServerReflectionClient(conn).ServerReflectionInfo(ctx)
	if err != nil {
		t.Fatal(err)
	}
	_ = rs.Send(&reflectionpb.ServerReflectionRequest{MessageRequest: &reflectionpb.ServerReflectionRequest_ListServices{}})
	r, err := rs.Recv()
	if err != nil || !strings.Contains(r.String(), "railstore.control.v1.Catalog") {
		t.Errorf("%v %v", r, err)
	}
	_ = rs.CloseSend()
}

func TestCatalogOverTheWire(t *testing.T) {
	s := startServer(t, ServerConfig{})
	ctx := testContext(t)
	c := dial(t, s.Addr()) // a catalog needs no membership
	g, err := c.Begin(ctx, key)
	if err != nil || g != 1 {
		t.Fatal(g, err)
	}
	o := object(key, 1, MaxStripes*4-1, 4)
	if _, replaced, err := c.Commit(ctx, o, 0); err != nil || replaced {
		t.Fatal(replaced, err)
	}
	got, found, err := c.Lookup(ctx, key)
	if err != nil || !found || len(got.Placement.Stripes) != MaxStripes || got.Placement.Stripes[9] != o.Placement.Stripes[9] || !got.Created.Equal(o.Created) {
		t.Fatal(found, err)
	}
	g, _ = c.Begin(ctx, key)
	var conflict *ConflictError
	if _, _, err := c.Commit(ctx, object(key, g, 1, 4), 0); !errors.As(err, &conflict) || conflict.Have != 1 || conflict.Key != key {
		t.Fatal(err)
	}
	var invalid *InvalidError
	if _, _, err := c.Commit(ctx, object(key, g+1, 1, 4), 1); !errors.As(err, &invalid) {
		t.Fatal(err)
	}
	old, replaced, err := c.Commit(ctx, object(key, g, 1, 4), 1)
	if err != nil || !replaced || old.Generation != 1 || len(old.Placement.Stripes) != MaxStripes {
		t.Fatal(replaced, err)
	}
	objects, more, err := c.List(ctx, ListQuery{Namespace: "kv"})
	if err != nil || more || len(objects) != 1 || objects[0].Generation != 2 {
		t.Fatal(objects, more, err)
	}
	if x, found, err := c.Garbage(ctx, ObjectKey{}, 0); err != nil || !found || x.Generation != 1 {
		t.Fatal(found, err)
	}
	if err := c.Forget(ctx, key, 1); err != nil {
		t.Fatal(err)
	}
	if old, found, err := c.Delete(ctx, key, AnyOlder); err != nil || !found || old.Generation != 2 {
		t.Fatal(found, err)
	}
	if _, found, err := c.Lookup(ctx, key); found || err != nil {
		t.Fatal(found, err)
	}
	for _, k := range []ObjectKey{{"a", "../b"}, {"a", strings.Repeat("x", 4096)}, {"", "x"}} {
		if _, _, err := c.Lookup(ctx, k); !errors.As(err, &invalid) {
			t.Errorf("%.20q: %v", k, err)
		}
		if _, err := c.Begin(ctx, k); !errors.As(err, &invalid) {
			t.Errorf("%.20q: %v", k, err)
		}
	}
}

// 200 clients come, connect to a shard, and go: nothing of them stays.
func TestManyClients(t *testing.T) {
	s := startServer(t, ServerConfig{})
	ctx := testContext(t)
	shard := join(t, s.Addr(), "shard/0")
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wctx, cancel := context.WithCancel(ctx)
	gone := 0
	wg.Go(func() {
		defer close(stop)
		for e, err := range shard.Watch(wctx) {
			if err != nil {
				t.Error(err)
				return
			}
			switch e := e.(type) {
			case OfferReceived:
				var absent *AbsentError // it may be off again before the reply is here
				if err := shard.Publish(ctx, e.Offer.Answer(e.Offer.Lanes, nil)); err != nil && !errors.As(err, &absent) {
					t.Error(err)
				}
			case PeerGone:
				if gone++; gone == 200 {
					return
				}
			}
		}
	})
	for worker := range 4 {
		wg.Go(func() {
			for i := range 50 {
				c, err := Dial(ctx, s.Addr(), testIdentity, ClientOptions{})
				if err != nil {
					t.Error(err)
					return
				}
				err = c.Join(ctx, info(ClientID(fmt.Sprint(worker, "-", i))))
				if err == nil {
					err = c.Publish(ctx, offer("shard/0", 1, 2))
				}
				if err == nil {
					_, err = c.Fetch(ctx, "shard/0", 1)
				}
				if err == nil {
					err = c.Leave(ctx, "done")
				}
				if err = errors.Join(err, c.Close()); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	<-stop
	wg.Wait()
	cancel()
	s.mu.Lock()
	defer s.mu.Unlock()
	if n, o, w := len(s.reg.nodes), len(s.reg.offers), len(s.watchers); n != 1 || o != 0 || w > 1 {
		t.Errorf("left over: %d nodes, offers to %d, %d watchers", n, o, w)
	}
	shard.membership.mu.Lock()
	defer shard.membership.mu.Unlock()
	if p, v := len(shard.membership.published), len(shard.membership.view.peers); p != 0 || v != 0 {
		t.Errorf("left over at the shard: %d offers, %d peers", p, v)
	}
}
