package ctrl

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
)

// world drives a registry in virtual time and keeps what it tells.
type world struct {
	t   *testing.T
	r   *Registry
	now time.Time
	log []string
}

func newWorld(t *testing.T) *world {
	now := time.Date(2024, 5, 1, 0, 0, 0, 0, time.UTC)
	r, err := NewRegistry(now, 1, []int{0, 1}, Timing{})
	if err != nil {
		t.Fatal(err)
	}
	return &world{t: t, r: r, now: now}
}

func (w *world) note(ns []Notice, err error) error {
	for _, n := range ns {
		w.log = append(w.log, fmt.Sprintf("%s#%d: %s", n.To, n.Inc, tell(n.Event)))
	}
	return err
}

// tell is an event without the numbers that vary.
func tell(e Event) string {
	switch e := e.(type) {
	case OfferReceived:
		return fmt.Sprintf("offer %s#%d g%d", e.Offer.From, e.Offer.FromIncarnation, e.Offer.Generation)
	case PeerGone:
		return fmt.Sprintf("gone %s#%d", e.ID, e.Incarnation)
	case Draining:
		return fmt.Sprintf("draining %s#%d", e.ID, e.Incarnation)
	case PeerState:
		return fmt.Sprintf("%s %s#%d", e.State, e.ID, e.Incarnation)
	case Stop:
		return "stop " + e.Reason
	}
	return e.String()
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// expect compares what was told since the last expect.
func (w *world) expect(want ...string) {
	w.t.Helper()
	if got := strings.Join(w.log, "\n"); got != strings.Join(want, "\n") {
		w.t.Fatalf("told:\n%s\nwant:\n%s", got, strings.Join(want, "\n"))
	}
	w.log = nil
}

func (w *world) join(id NodeID, inc uint64) {
	w.t.Helper()
	w.must(w.note(w.r.Join(w.now, JoinRequest{Info: info(id), Incarnation: inc})))
}

func (w *world) rejoin(id NodeID, inc uint64, peers ...Peer) error {
	return w.note(w.r.Join(w.now, JoinRequest{Info: info(id), Incarnation: inc, State: StateServing, Reason: "as before", Rejoin: true, Peers: peers}))
}

func (w *world) offer(from NodeID, inc uint64, to NodeID, generation, toInc uint64) error {
	o := offer(to, generation, 2)
	o.From, o.ToIncarnation = from, toInc
	_, ns, err := w.r.Publish(w.now, inc, o)
	return w.note(ns, err)
}

// pass lets time go by in steps as the ticker does, with a heartbeat of each
// (id, incarnation) per step.
func (w *world) pass(d time.Duration, alive ...Peer) {
	w.t.Helper()
	for end := w.now.Add(d); w.now.Before(end); {
		w.now = w.now.Add(500 * time.Millisecond)
		for _, p := range alive {
			w.must(w.note(w.r.Heartbeat(w.now, p.ID, p.Incarnation, Report{})))
		}
		_ = w.note(w.r.Expire(w.now), nil)
	}
}

func (w *world) state(id NodeID, want State) {
	w.t.Helper()
	if got := w.r.stateOf(id); got != want {
		w.t.Fatalf("%s is %s, want %s", id, got, want)
	}
}

func TestOffersReachTheirReceiver(t *testing.T) {
	w := newWorld(t)
	w.join("shard/0", 1)
	w.join("client/a", 2)
	w.must(w.offer("client/a", 2, "shard/0", 1, 0))
	w.must(w.offer("shard/0", 1, "client/a", 1, 2))
	w.expect("shard/0#1: offer client/a#2 g1", "client/a#2: offer shard/0#1 g1")
	if o, ok := w.r.Fetch("shard/0", "client/a"); !ok || o.Generation != 1 {
		t.Fatalf("%+v %v", o, ok)
	}
	// The same again is no news; a younger one is.
	w.must(w.offer("client/a", 2, "shard/0", 1, 0))
	w.must(w.offer("client/a", 2, "shard/0", 2, 0))
	w.expect("shard/0#1: offer client/a#2 g2")
}

func TestOffersRefused(t *testing.T) {
	w := newWorld(t)
	w.join("shard/0", 1)
	w.join("client/a", 2)
	w.must(w.offer("client/a", 2, "shard/0", 5, 0))
	var stale *StaleOfferError
	if err := w.offer("client/a", 2, "shard/0", 4, 0); !errors.As(err, &stale) || stale.Have != 5 {
		t.Errorf("older: %v", err)
	}
	other := offer("shard/0", 5, 3)
	other.From = "client/a"
	if _, _, err := w.r.Publish(w.now, 2, other); !errors.As(err, &stale) {
		t.Errorf("another of the same generation: %v", err)
	}
	var absent *AbsentError
	if err := w.offer("client/a", 2, "shard/1", 1, 0); !errors.As(err, &absent) || absent.ID != "shard/1" {
		t.Errorf("to an absent node: %v", err)
	}
	if err := w.offer("client/a", 2, "shard/0", 6, 99); !errors.As(err, &absent) {
		t.Errorf("to another incarnation: %v", err)
	}
	if err := w.offer("client/b", 2, "shard/0", 6, 0); !errors.Is(err, ErrLeaseLost) {
		t.Errorf("of a stranger: %v", err)
	}
	var replaced *ReplacedError
	if err := w.offer("client/a", 7, "shard/0", 6, 0); !errors.As(err, &replaced) {
		t.Errorf("of a replaced process: %v", err)
	}
	var invalid *InvalidError
	if err := w.offer("client/a", 2, "client/a", 6, 0); !errors.As(err, &invalid) {
		t.Errorf("to itself: %v", err)
	}
	w.log = nil
}

func TestShardDiesSlowly(t *testing.T) {
	w := newWorld(t)
	w.join("shard/0", 1)
	w.join("shard/1", 3)
	w.join("client/a", 2)
	w.must(w.note(w.r.SetState(w.now, "shard/0", 1, StateServing, "ready")))
	w.must(w.offer("client/a", 2, "shard/0", 1, 0))
	w.log = nil
	alive := []Peer{{"client/a", 2}, {"shard/1", 3}}
	w.pass(2500*time.Millisecond, alive...)
	w.expect()
	w.state("shard/0", StateServing)
	w.pass(500*time.Millisecond, alive...)
	w.expect("client/a#2: suspect shard/0#1")
	// A heartbeat ends the suspicion and brings the state of before back.
	w.must(w.note(w.r.Heartbeat(w.now, "shard/0", 1, Report{})))
	w.expect("client/a#2: serving shard/0#1")
	w.pass(8500*time.Millisecond, alive...)
	w.expect("client/a#2: suspect shard/0#1")
	w.pass(500*time.Millisecond, alive...)
	w.expect("client/a#2: gone shard/0#1")
	w.state("shard/0", StateDead)
	if h := w.r.Health(w.now, "shard/0"); !h.Dead() || !strings.Contains(h.Reason, "no heartbeat for 9s") {
		t.Errorf("%v", h)
	}
	if _, ok := w.r.Fetch("client/a", "shard/0"); ok {
		t.Error("the offer to the dead shard is still there")
	}
	if err := w.note(w.r.Heartbeat(w.now, "shard/0", 1, Report{})); !errors.Is(err, ErrLeaseLost) {
		t.Errorf("a heartbeat after death: %v", err)
	}
}

func TestDrainingSurvivesSuspicion(t *testing.T) {
	w := newWorld(t)
	w.join("shard/0", 1)
	w.must(w.note(w.r.SetState(w.now, "shard/0", 1, StateDraining, "down")))
	w.pass(4 * time.Second)
	w.state("shard/0", StateSuspect)
	w.must(w.note(w.r.Heartbeat(w.now, "shard/0", 1, Report{})))
	w.state("shard/0", StateDraining)
}

func TestClientLease(t *testing.T) {
	w := newWorld(t)
	w.join("shard/0", 1)
	w.join("client/a", 2)
	in := info("client/b")
	in.Lease = 2 * time.Second
	w.must(w.note(w.r.Join(w.now, JoinRequest{Info: in, Incarnation: 3})))
	w.must(w.offer("client/a", 2, "shard/0", 1, 0))
	w.must(w.offer("client/b", 3, "shard/0", 1, 0))
	w.log = nil
	w.pass(2*time.Second, Peer{"shard/0", 1})
	w.expect("shard/0#1: suspect client/b#3", "shard/0#1: gone client/b#3")
	w.pass(8*time.Second, Peer{"shard/0", 1})
	w.expect("shard/0#1: suspect client/a#2", "shard/0#1: gone client/a#2")
	if n := len(w.r.Nodes(w.now)); n != 1 {
		t.Errorf("%d nodes left, want the shard only", n)
	}
}

func TestRestartedShardReplacesItself(t *testing.T) {
	w := newWorld(t)
	w.join("shard/0", 1)
	w.join("client/a", 2)
	w.must(w.offer("client/a", 2, "shard/0", 1, 0))
	w.must(w.offer("shard/0", 1, "client/a", 1, 0))
	w.log = nil
	w.join("shard/0", 5)
	w.expect("client/a#2: gone shard/0#1")
	w.must(w.offer("client/a", 2, "shard/0", 1, 0)) // generations begin anew
	w.expect("shard/0#5: offer client/a#2 g1")
	var replaced *ReplacedError
	if err := w.note(w.r.Heartbeat(w.now, "shard/0", 1, Report{})); !errors.As(err, &replaced) {
		t.Errorf("the old process is told %v", err)
	}
	if err := w.note(w.r.Leave(w.now, "shard/0", 1, "")); !errors.As(err, &replaced) {
		t.Errorf("the old process may take the new one out: %v", err)
	}
	if err := w.rejoin("shard/0", 1); !errors.As(err, &replaced) {
		t.Errorf("the old process may come back: %v", err)
	}
	w.expect()
}

func TestUnknownShard(t *testing.T) {
	w := newWorld(t)
	if _, err := w.r.Join(w.now, JoinRequest{Info: info("shard/7"), Incarnation: 1}); err == nil || !strings.Contains(err.Error(), "no shard/7") {
		t.Fatal(err)
	}
}

func TestUnknownIsNotUnhealthy(t *testing.T) {
	w := newWorld(t)
	if h := w.r.Health(w.now, "shard/1"); h.Known || h.Dead() {
		t.Fatalf("%v", h)
	}
	w.must(w.rejoin("client/a", 2, Peer{"shard/1", 9}))
	if h := w.r.Health(w.now, "shard/1"); h.Known || h.Dead() {
		t.Fatalf("%v", h)
	}
	if m := w.r.StillThere([]NodeID{"shard/1"}); len(m) != 1 {
		t.Errorf("an expected shard counts as left")
	}
}

func TestControlPlaneRestart(t *testing.T) {
	t.Run("everybody returns", func(t *testing.T) {
		w := newWorld(t)
		w.must(w.rejoin("client/a", 2, Peer{"shard/0", 1}))
		w.must(w.offer("client/a", 2, "shard/0", 4, 1)) // waits for the shard
		w.expect()
		w.must(w.rejoin("shard/0", 1, Peer{"client/a", 2}))
		w.expect("client/a#2: serving shard/0#1")
		snap, err := w.r.Snapshot("shard/0", 1)
		if err != nil || len(snap.Offers) != 1 || snap.Offers[0].Generation != 4 {
			t.Fatalf("%+v %v", snap, err)
		}
		w.must(w.offer("shard/0", 1, "client/a", 4, 2))
		w.expect("client/a#2: offer shard/0#1 g4")
		w.pass(20*time.Second, Peer{"client/a", 2}, Peer{"shard/0", 1})
		w.expect()
	})
	t.Run("a peer does not return", func(t *testing.T) {
		w := newWorld(t)
		w.must(w.rejoin("client/a", 2, Peer{"shard/0", 1}))
		w.must(w.offer("client/a", 2, "shard/0", 4, 1))
		w.pass(8500*time.Millisecond, Peer{"client/a", 2})
		w.expect()
		w.pass(500*time.Millisecond, Peer{"client/a", 2})
		w.expect("client/a#2: gone shard/0#1")
		// Too late: its peers have freed what it relies on.
		if err := w.rejoin("shard/0", 1); !errors.Is(err, ErrLeaseLost) {
			t.Errorf("%v", err)
		}
		w.must(w.rejoin("shard/0", 11))
	})
	t.Run("a peer returns as another", func(t *testing.T) {
		w := newWorld(t)
		w.must(w.rejoin("client/a", 2, Peer{"shard/0", 1}))
		w.join("shard/0", 5)
		w.expect("client/a#2: gone shard/0#1")
		w.must(w.rejoin("client/b", 3, Peer{"shard/0", 1}))
		w.expect("client/b#3: gone shard/0#1")
	})
}

func TestStoppedControlPlaneKillsNobody(t *testing.T) {
	w := newWorld(t)
	w.join("shard/0", 1)
	w.pass(time.Second, Peer{"shard/0", 1})
	w.now = w.now.Add(time.Minute) // the process was suspended
	_ = w.note(w.r.Expire(w.now), nil)
	w.state("shard/0", StateStarting)
	w.pass(9 * time.Second)
	w.state("shard/0", StateDead)
}

func TestStop(t *testing.T) {
	w := newWorld(t)
	w.join("shard/0", 1)
	w.join("client/a", 2)
	w.must(w.note(w.r.Stop(w.now, []NodeID{"client/a"}, "x")))
	w.expect("client/a#2: stop x")
	w.must(w.note(w.r.Stop(w.now, nil, "down")))
	w.expect("shard/0#1: stop down")
	if snap, _ := w.r.Snapshot("shard/0", 1); snap.Stop != "down" {
		t.Errorf("a late watcher does not learn of the stop: %+v", snap)
	}
	if _, err := w.r.Join(w.now, JoinRequest{Info: info("client/b"), Incarnation: 3}); !errors.Is(err, ErrStopping) {
		t.Errorf("join while stopping: %v", err)
	}
	var absent *AbsentError
	if _, err := w.r.Stop(w.now, []NodeID{"client/zz"}, "x"); !errors.As(err, &absent) {
		t.Errorf("stop of a stranger: %v", err)
	}
}

func TestStatus(t *testing.T) {
	w := newWorld(t)
	w.join("shard/0", 1)
	w.join("client/a", 2)
	w.must(w.note(w.r.Heartbeat(w.now, "shard/0", 1, Report{Lanes: LaneCounts{Active: 3, Dirty: 1}, Rails: []RailInfo{{Name: "r0", State: "down", Reason: "cable"}}})))
	s := w.r.Status(w.now.Add(2 * time.Second))
	if len(s.Shards) != 2 || s.Shards[0].Lanes.Active != 3 || s.Shards[0].Rails[0].Reason != "cable" || s.Shards[0].IdleS != 2 {
		t.Errorf("%+v", s.Shards)
	}
	if s.Shards[1].State != StateUnknown || s.Shards[1].Reason != "it has not joined" || s.Shards[1].Rails == nil {
		t.Errorf("%+v", s.Shards[1])
	}
	if len(s.Clients) != 1 || s.Clients[0].ID != "client/a" {
		t.Errorf("%+v", s.Clients)
	}
}

// What a report keeps must not grow with the number of nodes that came and went.
func TestComingAndGoingLeavesNothing(t *testing.T) {
	w := newWorld(t)
	w.join("shard/0", 1)
	for i := range 300 {
		id := ClientID(fmt.Sprint(i))
		w.join(id, uint64(i+10))
		w.must(w.offer(id, uint64(i+10), "shard/0", 1, 0))
		w.must(w.offer("shard/0", 1, id, 1, 0))
		if _, err := w.r.Arrive(w.now, id, uint64(i+10), "b", 2, 1); err != nil {
			t.Fatal(err)
		}
		if i%2 == 0 {
			w.must(w.note(w.r.Leave(w.now, id, uint64(i+10), "done")))
		} else {
			w.pass(10*time.Second, Peer{"shard/0", 1})
		}
	}
	w.pass(3*time.Minute, Peer{"shard/0", 1})
	if n, o, b, p := len(w.r.nodes), len(w.r.offers), len(w.r.barriers), len(w.r.nodes["shard/0"].peers); n != 1 || o != 0 || b != 0 || p != 0 {
		t.Errorf("left over: %d nodes, offers to %d, %d barriers, %d peers of the shard", n, o, b, p)
	}
}

func TestTimingChecked(t *testing.T) {
	for _, bad := range []Timing{{Heartbeat: 5 * time.Second}, {Stale: 20 * time.Second}, {Heartbeat: -1}, {ClientLease: time.Millisecond}} {
		if _, err := NewRegistry(time.Now(), 1, []int{0}, bad); err == nil {
			t.Errorf("%+v is taken", bad)
		}
	}
	if _, err := NewRegistry(time.Now(), 1, nil, Timing{}); err == nil {
		t.Error("no shards is taken")
	}
}
