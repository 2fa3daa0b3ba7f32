package rc

import "github.com/railstore/railstore/verbs/soft/internal/wire"

// minWindow is what remains of the window after a timeout.
const minWindow = 4

// window bounds the packets in flight: requests that are not acknowledged, and
// responses to READs that have not come. It grows by one packet for each that
// arrives up to the threshold, then by one a window; loss halves it. The
// transport itself has no such bound (a lossless link and end-to-end credits are
// assumed), but sockets drop what their buffers do not hold.
type window struct {
	size      uint32
	threshold uint32
	max       uint32
	credit    uint32   // arrivals since the last growth past the threshold
	recover   wire.PSN // losses before this PSN have been answered already
	lost      bool     // recover is valid
	limited   bool     // the window, and nothing else, held packets back lately
	share     uint32   // what Share allows; 0: no bound

	// What the last timeout changed, until the next change.
	sizeWas, thresholdWas uint32
}

func (w *window) init(initial, most int) {
	*w = window{max: uint32(most), threshold: uint32(most), share: w.share}
	w.size = min(uint32(initial), w.max)
}

// room is how many packets may be in flight now.
func (w *window) room() uint32 {
	if w.share != 0 && w.share < w.size {
		return w.share
	}
	return w.size
}

// full notes that the window holds packets back. Where it is the share, that says
// nothing of the path.
func (w *window) full() { w.limited = w.room() == w.size }

// arrived notes n packets that the peer has answered.
func (w *window) arrived(n uint32, una wire.PSN) {
	if w.lost && !una.Before(w.recover) {
		w.lost = false
	}
	w.sizeWas = 0
	if !w.limited || w.size >= w.max {
		return
	}
	if w.size < w.threshold {
		w.size = min(w.size+n, w.max)
		return
	}
	w.credit += n
	if w.credit >= w.size {
		w.credit = 0
		w.size++
	}
}

// loss notes that a packet in flight was lost and the peer said so.
func (w *window) loss(una, top wire.PSN) {
	if w.lost && una.Before(w.recover) {
		return
	}
	w.threshold = max(w.size/2, min(minWindow, w.max))
	w.size = w.threshold
	w.credit, w.recover, w.lost, w.limited = 0, top, true, false
	w.sizeWas = 0
}

// timeout notes that nothing came back at all.
func (w *window) timeout(una, top wire.PSN) {
	if w.sizeWas == 0 {
		w.sizeWas, w.thresholdWas = w.size, w.threshold
	}
	if !w.lost || !una.Before(w.recover) {
		w.threshold = max(w.size/2, min(minWindow, w.max))
	}
	w.size = min(minWindow, w.max)
	w.credit, w.recover, w.lost, w.limited = 0, top, true, false
}

// early notes, before arrived, that answers come to what was not sent again since the
// last timeout: they were only late, as happens when a processor is taken away for
// some milliseconds.
func (w *window) early() {
	if w.sizeWas != 0 {
		w.size, w.threshold, w.lost = w.sizeWas, w.thresholdWas, false
	}
}
