package ctrl

import "fmt"

// Event is one thing that Watch reports. The types below are all there are.
type Event interface {
	fmt.Stringer
	event()
}

// OfferReceived is a new offer for this node.
type OfferReceived struct{ Offer Offer }

// PeerGone says that a node with which this one exchanged offers has left, died
// or been replaced. Everything made for that incarnation can be freed: neither
// its offers nor this node's to it exist any more.
type PeerGone struct {
	ID          NodeID
	Incarnation uint64
	State       State // dead; stopped when it left or was replaced
	Reason      string
}

// Draining says that a peer takes no new work.
type Draining struct {
	ID          NodeID
	Incarnation uint64
	Reason      string
}

// PeerState says that a peer is serving or suspect (again).
type PeerState struct {
	ID          NodeID
	Incarnation uint64
	State       State
	Reason      string
}

// Stop asks this node to drain and leave.
type Stop struct{ Reason string }

// Rejoined says that this node had to join again. With Lost its lease had ended
// and its peers were told so: a PeerGone for each of them follows, and offers must
// be published anew. Without it the control plane had restarted and nothing was
// lost: the offers were published again.
type Rejoined struct {
	Lost   bool
	Reason string
}

func (OfferReceived) event() {}
func (PeerGone) event()      {}
func (Draining) event()      {}
func (PeerState) event()     {}
func (Stop) event()          {}
func (Rejoined) event()      {}

func (e OfferReceived) String() string {
	return fmt.Sprintf("offer %s to %s, generation %d, %d lanes", e.Offer.From, e.Offer.To, e.Offer.Generation, len(e.Offer.Lanes))
}
func (e PeerGone) String() string { return fmt.Sprintf("%s gone: %s", e.ID, e.Reason) }
func (e Draining) String() string { return fmt.Sprintf("%s draining: %s", e.ID, e.Reason) }
func (e PeerState) String() string {
	return fmt.Sprintf("%s %s: %s", e.ID, e.State, e.Reason)
}
func (e Stop) String() string { return "stop: " + e.Reason }
func (e Rejoined) String() string {
	if e.Lost {
		return "joined again, lease lost: " + e.Reason
	}
	return "joined again: " + e.Reason
}
