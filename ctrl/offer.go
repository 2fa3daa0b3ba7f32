package ctrl

import (
	"github.com/railstore/railstore/verbs"
)

// Offer is what one node publishes for one other: the endpoints of the QPs that
// it made for it. Offers are immutable once published.
//
// The generation grows with every new set of QPs between the same two
// incarnations; it starts at 1. Publishing the same offer twice is no error, an
// older or a different one of the same generation is.
type Offer struct {
	From, To   NodeID
	Generation uint64
	Lanes      []LaneMeta
	Params     map[string]string // compared at both ends: slots, bytes, notify
	// FromIncarnation is filled by the control plane. ToIncarnation, if not 0,
	// pins the offer to one life of the receiver: it is refused when the
	// receiver was replaced meanwhile.
	FromIncarnation, ToIncarnation uint64
}

// LaneMeta is one end of a lane, or why it could not be made.
type LaneMeta struct {
	Rail       string             `json:"rail"`      // of the publisher
	PeerRail   string             `json:"peer_rail"` // of the receiver
	Fabric     string             `json:"fabric"`
	Index      int                `json:"index"`
	Endpoint   verbs.Endpoint     `json:"endpoint"`
	Slots      verbs.RemoteRegion `json:"slots"`
	Generation uint32             `json:"generation"`
	Error      string             `json:"error,omitempty"`
}

// Answer starts the offer that answers o: the other direction, the same
// generation, pinned to the incarnation that o came from.
func (o Offer) Answer(lanes []LaneMeta, params map[string]string) Offer {
	return Offer{From: o.To, To: o.From, Generation: o.Generation, Lanes: lanes, Params: params, ToIncarnation: o.FromIncarnation}
}
