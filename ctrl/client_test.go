package ctrl

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"iter"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/railstore/railstore/verbs"
)

func TestMain(m *testing.M) {
	// Longer conversations than rapid's own 30 steps, so that leases end in them.
	_ = flag.Set("rapid.steps", "80")
	flag.Parse()
	if seed := os.Getenv("RS_TEST_SEED"); seed != "" {
		if err := flag.Set("rapid.seed", seed); err != nil {
			fmt.Fprintln(os.Stderr, "RS_TEST_SEED:", err)
			os.Exit(2)
		}
	}
	goleak.VerifyTestMain(m)
}

var testIdentity = Identity{Namespace: "ns", Deployment: "demo", Epoch: 3, Digest: "d1"}

// quick is a timing that keeps tests short and is still far from the scheduling
// noise of a busy machine.
var quick = Timing{Heartbeat: 50 * time.Millisecond, Stale: 400 * time.Millisecond, Dead: 900 * time.Millisecond, ClientLease: 900 * time.Millisecond}

// slow never expires within a test.
var slow = Timing{Heartbeat: 100 * time.Millisecond, Stale: time.Minute, Dead: 2 * time.Minute, ClientLease: 2 * time.Minute}

func startServer(t *testing.T, cfg ServerConfig) *Server {
	t.Helper()
	if cfg.Address == "" {
		cfg.Address = "127.0.0.1:0"
	}
	if cfg.Identity == (Identity{}) {
		cfg.Identity = testIdentity
	}
	if cfg.Shards == nil {
		cfg.Shards = []int{0, 1}
	}
	if cfg.Timing == (Timing{}) {
		cfg.Timing = slow
	}
	s, err := NewServer(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func testContext(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func dial(t *testing.T, addr string) *Client {
	t.Helper()
	c, err := Dial(testContext(t), addr, testIdentity, ClientOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func join(t *testing.T, addr string, id NodeID) *Client {
	t.Helper()
	c := dial(t, addr)
	if err := c.Join(testContext(t), info(id)); err != nil {
		t.Fatal(err)
	}
	return c
}

func info(id NodeID) NodeInfo {
	role := RoleClient
	if _, ok := id.Shard(); ok {
		role = RoleShard
	}
	return NodeInfo{ID: id, Role: role, Host: "h", PID: 42, Started: time.Now(),
		Rails: []RailInfo{{Name: "r0", Fabric: "f0", Device: "soft:127.0.0.1", Provider: "soft", GIDType: "RoCE v2", MTU: 4096, Weight: 1, State: "up", UDPPort: 4791}}}
}

func offer(to NodeID, generation uint64, lanes int) Offer {
	o := Offer{To: to, Generation: generation, Params: map[string]string{"slots": "4"}}
	for i := range lanes {
		o.Lanes = append(o.Lanes, LaneMeta{Rail: "r0", PeerRail: "r0", Fabric: "f0", Index: i, Generation: 1,
			Endpoint: verbs.Endpoint{GID: verbs.GID{15: byte(i)}, GIDType: verbs.GIDTypeRoCEv2, QPN: uint32(100 + i), PSN: 7, MTU: 4096, UDPPort: 4791},
			Slots:    verbs.RemoteRegion{Addr: 1 << 40, Length: 4096, RKey: 9}})
	}
	return o
}

// events pulls from Watch one event at a time.
type events struct {
	t    *testing.T
	next func() (Event, error, bool)
}

func watch(t *testing.T, c *Client) *events {
	t.Helper()
	next, stop := iter.Pull2(c.Watch(testContext(t)))
	t.Cleanup(stop)
	return &events{t, next}
}

func (e *events) get() Event {
	e.t.Helper()
	ev, err, ok := e.next()
	if !ok || err != nil {
		e.t.Fatalf("watch ended: %v", err)
	}
	return ev
}

// want pulls until an event of type E comes and fails on any other but PeerState.
func want[E Event](e *events) E {
	e.t.Helper()
	for {
		ev := e.get()
		if x, ok := ev.(E); ok {
			return x
		}
		if _, ok := ev.(PeerState); ok {
			continue
		}
		e.t.Fatalf("event %T %v, want %T", ev, ev, *new(E))
	}
}

func TestMainConversation(t *testing.T) {
	s := startServer(t, ServerConfig{})
	ctx := testContext(t)
	shard, client := join(t, s.Addr(), "shard/0"), join(t, s.Addr(), "client/a")
	shardEvents, clientEvents := watch(t, shard), watch(t, client)

	short, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
	err := client.WaitReady(short, "shard/0", "shard/1")
	cancel()
	var we *WaitError
	if !errors.As(err, &we) || len(we.Missing) != 2 || we.Missing[0].State != StateStarting || we.Missing[1].State != StateUnknown {
		t.Fatalf("WaitReady: %v", err)
	}
	t.Log(err)
	if err := shard.SetState(ctx, StateServing, "ready"); err != nil {
		t.Fatal(err)
	}
	if err := client.WaitReady(ctx, "shard/0"); err != nil {
		t.Fatal(err)
	}
	mine := offer("shard/0", 1, 3)
	if err := client.Publish(ctx, mine); err != nil {
		t.Fatal(err)
	}
	got := want[OfferReceived](shardEvents).Offer
	if got.From != "client/a" || fmt.Sprint(got.Lanes) != fmt.Sprint(mine.Lanes) || got.Params["slots"] != "4" {
		t.Fatalf("offer arrived as %+v", got)
	}
	if err := shard.Publish(ctx, got.Answer(offer("", 1, 3).Lanes, nil)); err != nil {
		t.Fatal(err)
	}
	if a, err := client.Fetch(ctx, "shard/0", 1); err != nil || len(a.Lanes) != 3 {
		t.Fatalf("Fetch: %+v, %v", a, err)
	}
	if a, ok, err := client.Latest(ctx, "shard/0"); err != nil || !ok || len(a.Lanes) != 3 {
		t.Fatalf("the newest offer: %+v, %v, %v", a, ok, err)
	}
	if _, ok, err := client.Latest(ctx, "shard/9"); err != nil || ok {
		t.Fatalf("an offer of nobody: %v, %v", ok, err)
	}
	want[OfferReceived](clientEvents)
	if err := shard.SetState(ctx, StateDraining, "going down"); err != nil {
		t.Fatal(err)
	}
	if d := want[Draining](clientEvents); d.ID != "shard/0" || d.Reason != "going down" {
		t.Fatalf("%+v", d)
	}
	if err := client.Stop(ctx, "maintenance"); err != nil {
		t.Fatal(err)
	}
	want[Stop](clientEvents)
	want[Stop](shardEvents)
	st, err := client.Status(ctx)
	if err != nil || len(st.Shards) != 2 || st.Shards[0].State != StateDraining || len(st.Clients) != 1 {
		t.Fatalf("%+v, %v", st, err)
	}
	if err := client.Leave(ctx, "done"); err != nil {
		t.Fatal(err)
	}
	if g := want[PeerGone](shardEvents); g.ID != "client/a" || g.Reason != "done" {
		t.Fatalf("%+v", g)
	}
	if err := client.WaitGone(ctx, "client/a"); err != nil {
		t.Fatal(err)
	}
}
