package lane

import "sync/atomic"

// hunch tells whether it is worth polling before sleeping: not while polling has
// been in vain lately, but for a try now and then.
type hunch struct{ misses atomic.Int32 }

const (
	hunchLimit = 8  // misses that end the polling
	hunchTry   = 32 // one in so many is a try
)

func (h *hunch) worth(n uint32) bool { return h.misses.Load() < hunchLimit || n%hunchTry == 0 }

func (h *hunch) hit() {
	if m := h.misses.Load(); m > 0 {
		h.misses.Store(max(m-hunchLimit/2, 0))
	}
}

func (h *hunch) miss() {
	if m := h.misses.Load(); m < 2*hunchLimit {
		h.misses.Store(m + 1)
	}
}
