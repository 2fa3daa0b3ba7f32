package ctrl

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// model is the registry written without care for speed: flat sets of what is,
// searched through for every question.
type model struct {
	live   map[Peer]*modelNode
	links  map[[2]Peer]bool // both orders
	offers map[[2]Peer]uint64
}

type modelNode struct {
	seen          time.Time
	state, before State
	known         map[Peer]State  // what its notices said of its peers
	got           map[Peer]uint64 // newest offer generation that its notices brought
}

func (m *model) lease(p Peer) (suspect, gone time.Duration) {
	if _, ok := p.ID.Shard(); ok {
		return 3 * time.Second, 9 * time.Second
	}
	return 5 * time.Second, 10 * time.Second
}

func (m *model) current(id NodeID) (Peer, bool) {
	for p := range m.live {
		if p.ID == id {
			return p, true
		}
	}
	return Peer{}, false
}

// end gives who must hear of the end.
func (m *model) end(p Peer) (tell []Peer) {
	delete(m.live, p)
	for l := range m.links {
		if l[0] == p {
			tell = append(tell, l[1])
			delete(m.links, l)
			delete(m.links, [2]Peer{l[1], l[0]})
		}
	}
	for o := range m.offers {
		if o[0] == p || o[1] == p {
			delete(m.offers, o)
		}
	}
	return tell
}

func TestRegistryAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		now := time.Unix(1e9, 0)
		r, err := NewRegistry(now, 1, []int{0, 1}, Timing{})
		if err != nil {
			t.Fatal(err)
		}
		m := &model{live: map[Peer]*modelNode{}, links: map[[2]Peer]bool{}, offers: map[[2]Peer]uint64{}}
		ids := []NodeID{"shard/0", "shard/1", "client/a", "client/b", "client/c"}
		nextInc, lastRev := uint64(100), uint64(0)
		anyID := rapid.SampledFrom(ids)

		// absorb checks that exactly those are told that p is gone, and keeps
		// what the notices say.
		absorb := func(ns []Notice, ended map[Peer][]Peer) {
			told := map[Peer][]Peer{}
			for _, n := range ns {
				if n.Rev < lastRev || n.Rev > r.Rev() {
					t.Fatalf("notice of revision %d after %d, now %d", n.Rev, lastRev, r.Rev())
				}
				lastRev = n.Rev
				to := Peer{n.To, n.Inc}
				node := m.live[to]
				switch e := n.Event.(type) {
				case PeerGone:
					told[Peer{e.ID, e.Incarnation}] = append(told[Peer{e.ID, e.Incarnation}], to)
					if node != nil {
						delete(node.known, Peer{e.ID, e.Incarnation})
						delete(node.got, Peer{e.ID, e.Incarnation})
					}
				case PeerState:
					node.known[Peer{e.ID, e.Incarnation}] = e.State
				case Draining:
					node.known[Peer{e.ID, e.Incarnation}] = StateDraining
				case OfferReceived:
					node.got[Peer{e.Offer.From, e.Offer.FromIncarnation}] = e.Offer.Generation
				}
			}
			for p, want := range ended {
				slices.SortFunc(want, byPeer)
				got := told[p]
				slices.SortFunc(got, byPeer)
				if !slices.Equal(got, want) {
					t.Fatalf("end of %v: told %v, want %v", p, got, want)
				}
				delete(told, p)
			}
			if len(told) > 0 {
				t.Fatalf("told of ends that did not happen: %v", told)
			}
		}
		pick := func() (Peer, *modelNode) {
			if len(m.live) == 0 {
				t.Skip("nobody is there")
			}
			p := rapid.SampledFrom(slices.SortedFunc(maps.Keys(m.live), byPeer)).Draw(t, "who")
			return p, m.live[p]
		}
		pass := func(d time.Duration) {
			now = now.Add(d)
			ended := map[Peer][]Peer{}
			for _, p := range slices.SortedFunc(maps.Keys(m.live), byPeer) {
				n := m.live[p]
				suspect, gone := m.lease(p)
				switch idle := now.Sub(n.seen); {
				case idle >= gone:
					ended[p] = m.end(p)
				case idle >= suspect && n.state != StateSuspect:
					n.before, n.state = n.state, StateSuspect
				}
			}
			// Who ended in the same moment may or may not hear of the
			// others; only those that live count.
			ns := slices.DeleteFunc(r.Expire(now), func(n Notice) bool { return m.live[Peer{n.To, n.Inc}] == nil })
			for p := range ended {
				ended[p] = slices.DeleteFunc(ended[p], func(q Peer) bool { return m.live[q] == nil })
			}
			absorb(ns, ended)
		}
		beat := func(p Peer) {
			n := m.live[p]
			n.seen = now
			if n.state == StateSuspect {
				n.state = n.before
			}
			ns, err := r.Heartbeat(now, p.ID, p.Incarnation, Report{})
			if err != nil {
				t.Fatal(err)
			}
			absorb(ns, nil)
		}
		t.Repeat(map[string]func(*rapid.T){
			"join": func(t *rapid.T) {
				id := anyID.Draw(t, "id")
				nextInc++
				ended := map[Peer][]Peer{}
				if old, ok := m.current(id); ok {
					ended[old] = m.end(old)
				}
				m.live[Peer{id, nextInc}] = &modelNode{seen: now, state: StateStarting, known: map[Peer]State{}, got: map[Peer]uint64{}}
				ns, err := r.Join(now, JoinRequest{Info: info(id), Incarnation: nextInc})
				if err != nil {
					t.Fatal(err)
				}
				absorb(ns, ended)
			},
			"leave": func(t *rapid.T) {
				p, _ := pick()
				tell := m.end(p)
				ns, err := r.Leave(now, p.ID, p.Incarnation, "")
				if err != nil {
					t.Fatal(err)
				}
				absorb(ns, map[Peer][]Peer{p: tell})
			},
			"heartbeat": func(t *rapid.T) {
				p, _ := pick()
				beat(p)
			},
			"heartbeat of the past": func(t *rapid.T) {
				id := anyID.Draw(t, "id")
				inc := uint64(rapid.IntRange(1, int(nextInc)).Draw(t, "inc"))
				if m.live[Peer{id, inc}] != nil {
					t.Skip("it lives")
				}
				_, err := r.Heartbeat(now, id, inc, Report{})
				var replaced *ReplacedError
				if _, ok := m.current(id); ok != errors.As(err, &replaced) || ok == errors.Is(err, ErrLeaseLost) {
					t.Fatalf("another lives: %v; got %v", ok, err)
				}
			},
			"state": func(t *rapid.T) {
				p, n := pick()
				n.seen = now
				n.state = rapid.SampledFrom([]State{StateStarting, StateServing, StateDraining}).Draw(t, "state")
				ns, err := r.SetState(now, p.ID, p.Incarnation, n.state, "said")
				if err != nil {
					t.Fatal(err)
				}
				absorb(ns, nil)
			},
			"publish": func(t *rapid.T) {
				p, _ := pick()
				q, _ := pick()
				g := uint64(rapid.IntRange(1, 4).Draw(t, "generation"))
				o := offer(q.ID, g, 1)
				o.From, o.ToIncarnation = p.ID, rapid.SampledFrom([]uint64{0, q.Incarnation}).Draw(t, "pin")
				_, ns, err := r.Publish(now, p.Incarnation, o)
				if p == q {
					if err == nil {
						t.Fatal("an offer to itself")
					}
					return
				}
				have := m.offers[[2]Peer{p, q}]
				if (err == nil) != (g >= have) {
					t.Fatalf("generation %d after %d: %v", g, have, err)
				}
				if err == nil {
					if !m.links[[2]Peer{p, q}] { // both learn of each other from their snapshots
						m.live[p].known[q], m.live[q].known[p] = m.live[q].state, m.live[p].state
					}
					m.offers[[2]Peer{p, q}] = g
					m.links[[2]Peer{p, q}], m.links[[2]Peer{q, p}] = true, true
				}
				absorb(ns, nil)
			},
			"time": func(t *rapid.T) {
				pass(time.Duration(rapid.IntRange(1, 2900).Draw(t, "ms")) * time.Millisecond)
			},
			"silence of one": func(t *rapid.T) {
				silent, _ := pick()
				for range rapid.IntRange(2, 30).Draw(t, "ticks") {
					for _, p := range slices.SortedFunc(maps.Keys(m.live), byPeer) {
						if p != silent {
							beat(p)
						}
					}
					pass(500 * time.Millisecond)
				}
			},
			"": func(t *rapid.T) { compareToModel(t, r, m) },
		})
	})
}

func byPeer(a, b Peer) int {
	if a.ID != b.ID {
		return map[bool]int{true: -1, false: 1}[a.ID < b.ID]
	}
	return int(a.Incarnation) - int(b.Incarnation)
}

func compareToModel(t *rapid.T, r *Registry, m *model) {
	offers := 0
	for to, from := range r.offers {
		for f, o := range from {
			offers++
			if g := m.offers[[2]Peer{{f, o.FromIncarnation}, {to, o.ToIncarnation}}]; g != o.Generation {
				t.Fatalf("offer %s to %s has generation %d, want %d", f, to, o.Generation, g)
			}
		}
	}
	if offers != len(m.offers) {
		t.Fatalf("%d offers, want %d", offers, len(m.offers))
	}
	members := 0
	for id, n := range r.nodes {
		if !n.member() {
			continue
		}
		members++
		p := Peer{id, n.inc}
		want := m.live[p]
		if want == nil || want.state != n.state {
			t.Fatalf("%v is %s, want %+v", p, n.state, want)
		}
		// What the notices said is what a snapshot says.
		snap, err := r.Snapshot(id, n.inc)
		if err != nil {
			t.Fatal(err)
		}
		linked := 0
		for l := range m.links {
			if l[0] == p {
				linked++
			}
		}
		if len(snap.Peers) != linked {
			t.Fatalf("%v has peers %v, want %d", p, snap.Peers, linked)
		}
		for _, v := range snap.Peers {
			q := Peer{v.ID, v.Incarnation}
			if !m.links[[2]Peer{p, q}] {
				t.Fatalf("%v has the peer %v", p, q)
			}
			if s := want.known[q]; s != v.State {
				t.Fatalf("%v was told that %v is %s, it is %s", p, q, s, v.State)
			}
		}
		got := map[Peer]uint64{}
		for _, o := range snap.Offers {
			got[Peer{o.From, o.FromIncarnation}] = o.Generation
		}
		if !maps.Equal(got, want.got) {
			t.Fatalf("%v was told of offers %v, there are %v", p, want.got, got)
		}
	}
	if members != len(m.live) {
		t.Fatalf("%d members, want %v", members, fmt.Sprint(m.live))
	}
}
