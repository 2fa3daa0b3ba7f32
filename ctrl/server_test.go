package ctrl

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"runtime"
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
