package ctrl

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func drain(c *cursor, v *view) string {
	var out []string
	for _, e := range c.next(v) {
		out = append(out, tell(e))
	}
	return strings.Join(out, ", ")
}

func from(id NodeID, inc, generation uint64) Offer {
	o := offer("client/me", generation, 1)
	o.From, o.FromIncarnation = id, inc
	return o
}

func TestCursorTellsDifferences(t *testing.T) {
	v := newView()
	c := newCursor(v)
	step := func(what, want string) {
		t.Helper()
		if got := drain(c, v); got != want {
			t.Fatalf("%s: %q, want %q", what, got, want)
		}
	}
	step("nothing", "")
	v.offered(from("b", 1, 1))
	v.offered(from("a", 2, 1))
	step("offers, in the order in which they came", "offer b#1 g1, offer a#2 g1")
	v.offered(from("b", 1, 2))
	v.offered(from("b", 1, 3))
	v.offered(from("b", 1, 3))
	step("the newest of several", "offer b#1 g3")
	v.drop(PeerGone{ID: "b", Incarnation: 1, Reason: "x"})
	v.offered(from("b", 5, 1))
	step("a restart", "gone b#1, offer b#5 g1")
	v.drop(PeerGone{ID: "a", Incarnation: 1}) // of a life that is over
	step("news of the past", "")
	v.offered(from("c", 9, 1))
	v.drop(PeerGone{ID: "c", Incarnation: 9})
	step("came and went unseen", "")
	v.setState(PeerView{ID: "a", Incarnation: 2, State: StateServing})
	step("serving at first is no news", "")
	v.setState(PeerView{ID: "a", Incarnation: 2, State: StateSuspect})
	step("suspect", "suspect a#2")
	v.setState(PeerView{ID: "a", Incarnation: 2, State: StateServing})
	step("serving again", "serving a#2")
	v.setState(PeerView{ID: "a", Incarnation: 2, State: StateDraining})
	v.stop = "down"
	step("the end", "draining a#2, stop down")
	v.rejoined(Rejoined{Lost: true})
	step("lease lost", "joined again, lease lost: , gone a#2, gone b#5")
	late := newCursor(v)
	v.offered(from("b", 6, 1))
	step("on", "offer b#6 g1")
	if got := drain(late, v); got != "offer b#6 g1, stop down" {
		t.Fatalf("a late watcher: %q", got)
	}
}

func TestLinkAndSyncCross(t *testing.T) {
	// A reply of revision 7 says that the offer to x#1 was taken; a sync taken at
	// revision 5 is still on its way.
	v := newView()
	if err := v.link("x", 1, 7); err != nil {
		t.Fatal(err)
	}
	v.sync(Snapshot{Rev: 5})
	if v.peers["x"] == nil {
		t.Fatal("an older sync took the peer away")
	}
	v.sync(Snapshot{Rev: 8})
	if v.peers["x"] != nil {
		t.Fatal("a younger sync did not take the peer away")
	}
	// The same with the reply being late.
	v = newView()
	v.sync(Snapshot{Rev: 8, Peers: []PeerView{{ID: "x", Incarnation: 2, State: StateServing}}})
	if err := v.link("x", 1, 7); err == nil || v.peers["x"].Incarnation != 2 {
		t.Fatalf("%v %+v", err, v.peers["x"])
	}
	v.drop(PeerGone{ID: "y", Incarnation: 3, Reason: "died"})
	if err := v.link("y", 3, 9); err == nil || !strings.Contains(err.Error(), "died") {
		t.Fatal(err)
	}
}

func TestViewIsBounded(t *testing.T) {
	v := newView()
	c := newCursor(v)
	for i := range 5000 {
		id := NodeID(fmt.Sprint("client/", i))
		v.offered(from(id, 1, 1))
		if i%3 == 0 {
			c.next(v)
		}
		v.drop(PeerGone{ID: id, Incarnation: 1})
	}
	c.next(v)
	if len(v.gone) > maxGone || len(v.peers) != 0 || len(c.peers) != 0 {
		t.Errorf("%d gone, %d peers, %d in the cursor", len(v.gone), len(v.peers), len(c.peers))
	}
}

// However the stream of a registry is cut and synced again, and however seldom a
// watcher looks, what the watcher believes in the end is what is so, and it never
// hears of a peer's new life before the end of the old one.
func TestWatcherConverges(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		type peer struct {
			inc, generation uint64
		}
		truth := map[NodeID]peer{}
		believed := map[NodeID]peer{}
		v := newView()
		c := newCursor(v)
		connected, next, rev := true, uint64(1), uint64(0)
		look := func() {
			for _, e := range c.next(v) {
				switch e := e.(type) {
				case OfferReceived:
					b, ok := believed[e.Offer.From]
					if ok && (b.inc != e.Offer.FromIncarnation || b.generation >= e.Offer.Generation) {
						t.Fatalf("offer %s after %+v", tell(e), b)
					}
					believed[e.Offer.From] = peer{e.Offer.FromIncarnation, e.Offer.Generation}
				case PeerGone:
					if b, ok := believed[e.ID]; ok && b.inc != e.Incarnation {
						t.Fatalf("%s while %+v", tell(e), b)
					}
					delete(believed, e.ID)
				}
			}
		}
		sync := func() {
			s := Snapshot{Rev: rev}
			ids := make([]NodeID, 0, len(truth))
			for id := range truth {
				ids = append(ids, id)
			}
			slices.Sort(ids)
			for _, id := range ids {
				s.Peers = append(s.Peers, PeerView{ID: id, Incarnation: truth[id].inc, State: StateServing})
				o := from(id, truth[id].inc, truth[id].generation)
				s.Offers = append(s.Offers, &o)
			}
			v.sync(s)
		}
		id := rapid.SampledFrom([]NodeID{"a", "b", "c"})
		t.Repeat(map[string]func(*rapid.T){
			"offer": func(t *rapid.T) {
				i := id.Draw(t, "id")
				p, ok := truth[i]
				if !ok {
					next++
					p.inc = next
				}
				p.generation++
				truth[i] = p
				rev++
				if connected {
					v.offered(from(i, p.inc, p.generation))
				}
			},
			"gone": func(t *rapid.T) {
				i := id.Draw(t, "id")
				p, ok := truth[i]
				if !ok {
					t.Skip("not there")
				}
				delete(truth, i)
				rev++
				if connected {
					v.drop(PeerGone{ID: i, Incarnation: p.inc})
				}
			},
			"cut":  func(*rapid.T) { connected = false },
			"sync": func(*rapid.T) { connected = true; sync() },
			"look": func(*rapid.T) { look() },
		})
		sync()
		look()
		if len(believed) != len(truth) {
			t.Fatalf("believed %v, true is %v", believed, truth)
		}
		for i, p := range truth {
			if believed[i] != p {
				t.Fatalf("%s: believed %+v, true is %+v", i, believed[i], p)
			}
		}
	})
}
