package lanes

import (
	"fmt"

	"github.com/railstore/railstore/verbs/lane"
)

// Router serves each operation by the handler of its family, the upper eight
// bits of the code.
type Router struct{ families [256]lane.Handler }

// Handle gives the operations family<<8 to family<<8|255 to h.
func (r *Router) Handle(family uint8, h lane.Handler) {
	if r.families[family] != nil {
		panic(fmt.Sprintf("lanes: two handlers for the operations %#02x..", family))
	}
	r.families[family] = h
}

// Serve hands an exchange on; an operation that nobody serves is answered with
// StatusInvalid.
func (r *Router) Serve(x *lane.Exchange) {
	if h := r.families[x.Op()>>8]; h != nil {
		h.Serve(x)
		return
	}
	x.Reply(lane.StatusInvalid, 0)
}
