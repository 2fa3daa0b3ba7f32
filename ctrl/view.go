package ctrl

import (
	"cmp"
	"maps"
	"slices"
)

// view is what a node knows of its world: a value without locks, clocks or
// goroutines. The watch stream and the replies of Publish change it; cursors turn
// it into events.
type view struct {
	peers map[NodeID]*peerEntry
	gone  []goneEntry // the last ones, oldest first
	stop  string
	seq   uint64 // counts offers, for their order
	rev   uint64 // of the last sync

	rejoins uint64 // how often this node joined again
	rejoin  Rejoined
}

// goneEntry remembers an end. own means that it was this node's lease that ended:
// the peer may still be there and be met again.
type goneEntry struct {
	PeerGone
	own bool
}

type peerEntry struct {
	PeerView
	offer *Offer // the newest one from the peer
	seq   uint64 // when it came
	rev   uint64 // of the registry when a reply said that the two are linked; 0: the stream said it
}

// maxGone bounds what is kept to tell why a peer went.
const maxGone = 256

// unheard is the reason for a peer that is missing from a whole state.
const unheard = "it left or was replaced while this node could not hear of it"

func newView() *view { return &view{peers: map[NodeID]*peerEntry{}} }

// peer gives the entry for one incarnation. Another one of the same id ends.
func (v *view) peer(id NodeID, inc uint64) *peerEntry {
	e := v.peers[id]
	if e != nil && e.Incarnation != inc {
		v.drop(PeerGone{ID: id, Incarnation: e.Incarnation, State: StateStopped, Reason: "it was replaced"})
		e = nil
	}
	if e == nil {
		e = &peerEntry{PeerView: PeerView{ID: id, Incarnation: inc}}
		v.peers[id] = e
	}
	return e
}

// drop takes a peer out, if it is that incarnation, and keeps the reason.
func (v *view) drop(g PeerGone) {
	if e := v.peers[g.ID]; e != nil && e.Incarnation == g.Incarnation {
		delete(v.peers, g.ID)
	}
	if len(v.gone) == maxGone {
		v.gone = slices.Delete(v.gone, 0, maxGone/2)
	}
	v.gone = append(v.gone, goneEntry{PeerGone: g})
}

// ended gives the last end of a node that is known, of one incarnation or (0) of
// any.
func (v *view) ended(id NodeID, inc uint64) (g goneEntry, ok bool) {
	for i := len(v.gone) - 1; i >= 0; i-- {
		if g := v.gone[i]; g.ID == id && (inc == 0 || g.Incarnation == inc) {
			return g, true
		}
	}
	return goneEntry{}, false
}

// link notes that this node's offer to a peer was taken at a revision. It fails
// when the peer is known to have gone meanwhile.
func (v *view) link(id NodeID, inc, rev uint64) error {
	g, gone := v.ended(id, inc)
	gone = gone && !g.own
	if e := v.peers[id]; !gone && v.rev >= rev && (e == nil || e.Incarnation != inc) {
		// The stream has told the state of after this reply, without the peer.
		g.State, g.Reason, gone = StateStopped, unheard, true
	}
	if gone {
		return &AbsentError{ID: id, State: g.State, Reason: g.Reason}
	}
	v.peer(id, inc).rev = rev
	return nil
}

func (v *view) offered(o Offer) {
	e := v.peer(o.From, o.FromIncarnation)
	if e.offer != nil && e.offer.Generation >= o.Generation {
		return
	}
	v.seq++
	e.offer, e.seq = &o, v.seq
}

func (v *view) setState(p PeerView) {
	e := v.peer(p.ID, p.Incarnation)
	e.State, e.Reason = p.State, p.Reason
}

// sync takes over the whole state as it was at s.Rev. Peers that it does not have
// are gone, but for those that a reply linked later than that.
func (v *view) sync(s Snapshot) {
	v.rev = s.Rev
	there := make(map[NodeID]uint64, len(s.Peers))
	for _, p := range s.Peers {
		there[p.ID] = p.Incarnation
	}
	for _, id := range slices.Sorted(maps.Keys(v.peers)) {
		e := v.peers[id]
		if there[id] != e.Incarnation && e.rev <= s.Rev {
			v.drop(PeerGone{ID: id, Incarnation: e.Incarnation, State: StateStopped, Reason: unheard})
		}
	}
	for _, p := range s.Peers {
		if e := v.peers[p.ID]; e == nil || e.Incarnation == p.Incarnation || e.rev <= s.Rev {
			v.setState(p)
		}
	}
	for _, o := range s.Offers {
		if e := v.peers[o.From]; e == nil || e.Incarnation == o.FromIncarnation {
			v.offered(*o)
		}
	}
	if s.Stop != "" {
		v.stop = s.Stop
	}
}

// rejoined notes that the node joined again. With Lost every peer is gone.
func (v *view) rejoined(r Rejoined) {
	v.rejoins++
	v.rejoin, v.rev = r, 0
	for _, id := range slices.Sorted(maps.Keys(v.peers)) {
		e := v.peers[id]
		e.rev = 0 // revisions of the registry before mean nothing to this one
		if r.Lost {
			v.drop(PeerGone{ID: id, Incarnation: e.Incarnation, State: StateStopped, Reason: "this node's own lease ended, its peers were told"})
			v.gone[len(v.gone)-1].own = true
		}
	}
}

func (v *view) claims() []Peer {
	var out []Peer
	for _, id := range slices.Sorted(maps.Keys(v.peers)) {
		out = append(out, Peer{id, v.peers[id].Incarnation})
	}
	return out
}

// cursor is what one watcher was given so far.
type cursor struct {
	peers   map[NodeID]given
	stop    bool
	rejoins uint64
}

type given struct {
	inc, generation uint64
	state           State
}

func newCursor(v *view) *cursor {
	return &cursor{peers: map[NodeID]given{}, rejoins: v.rejoins}
}

// next gives what the watcher must be told to know what the view knows: who is
// gone first, then states and offers in the order in which the offers came.
func (c *cursor) next(v *view) (out []Event) {
	if c.rejoins != v.rejoins {
		c.rejoins = v.rejoins
		out = append(out, v.rejoin)
	}
	for _, id := range slices.Sorted(maps.Keys(c.peers)) {
		g := c.peers[id]
		if e := v.peers[id]; e != nil && e.Incarnation == g.inc {
			continue
		}
		delete(c.peers, id)
		end, ok := v.ended(id, g.inc)
		if !ok { // so long ago that it is forgotten
			end.PeerGone = PeerGone{ID: id, Incarnation: g.inc, State: StateStopped, Reason: "it left"}
		}
		out = append(out, end.PeerGone)
	}
	var due []*peerEntry
	for id, e := range v.peers {
		g, known := c.peers[id]
		newOffer := e.offer != nil && e.offer.Generation > g.generation
		if !known || newOffer || g.state != e.State {
			due = append(due, e)
		}
	}
	slices.SortFunc(due, func(a, b *peerEntry) int {
		return cmp.Or(cmp.Compare(a.seq, b.seq), cmp.Compare(a.ID, b.ID))
	})
	for _, e := range due {
		g, known := c.peers[e.ID]
		if g.state != e.State {
			switch {
			case e.State == StateDraining:
				out = append(out, Draining{ID: e.ID, Incarnation: e.Incarnation, Reason: e.Reason})
			case e.State == StateSuspect, e.State == StateServing && known && g.state != StateUnknown:
				out = append(out, PeerState(e.PeerView))
			}
		}
		if e.offer != nil && e.offer.Generation > g.generation {
			g.generation = e.offer.Generation
			out = append(out, OfferReceived{Offer: *e.offer})
		}
		g.inc, g.state = e.Incarnation, e.State
		c.peers[e.ID] = g
	}
	if v.stop != "" && !c.stop {
		c.stop = true
		out = append(out, Stop{Reason: v.stop})
	}
	return out
}
