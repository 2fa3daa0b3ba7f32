package lane

import "github.com/railstore/railstore/verbs"

// kind of work request.
type kind uint8

const (
	kindSend kind = 1 + iota // a client's request or a server's answer
	kindBulk                 // a handler's read or write; the slot is its cell
	kindRecv
	kindTouch // a client's empty WRITE, see Lane.touch
)

// Places of the fields in a WRID: kind 8 bits, slot 16, lane 20, generation 20.
const (
	wridLanes = 1 << 20
	wridGens  = 1 << 20
)

// wrid names a work request: its kind, its slot or cell, the number of its lane
// at the poller, and how often that number was given out, so that a completion
// of a lane that is gone finds nobody.
func wrid(k kind, slot uint16, lane, gen uint32) verbs.WRID {
	return verbs.WRID(uint64(k)<<56 | uint64(slot)<<40 | uint64(lane%wridLanes)<<20 | uint64(gen%wridGens))
}

func splitWRID(id verbs.WRID) (k kind, slot uint16, lane, gen uint32) {
	return kind(id >> 56), uint16(id >> 40), uint32(id>>20) % wridLanes, uint32(id) % wridGens
}
