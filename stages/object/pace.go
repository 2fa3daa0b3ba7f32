package object

import "time"

// pace is what a rail carried lately and what that makes of its share. A share is
// changed only by what shows again and again: it follows neither noise nor one slow
// read, and it comes back as slowly as it went.
type pace struct {
	rate  float64 // bytes per second, a moving average; 0: nothing measured
	share int     // thousandths
	lean  int     // reads in a row that asked for more (> 0) or for less (< 0)
	dark  int     // reads in a row that told nothing of the rail, having given it too little
}

const (
	paceWeight = 0.3 // of the newest read in the average
	paceBand   = 0.2 // a deviation of less than this part changes nothing
	paceReads  = 3   // reads in a row that must agree
	paceDark   = 8   // reads that tell nothing of a rail before it gets more, to see
	leastShare = fullShare / 20
	shareStep  = fullShare / 100 // shares are multiples of it
)

// pacedRail is a rail's part in one read.
type pacedRail struct {
	name   string
	weight int
	bytes  uint64
	busy   time.Duration // from its first request to its last answer
}

// observe learns from a read. A rail that carried less than two stripes tells nothing:
// the time of one is that of the way, not of the rail's breadth. One that is given so
// little because it was slow gets more after a while, or it could not show that it is
// well again.
func (h *Health) observe(rails []pacedRail, stripe uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	var told []*pace
	var perWeight []float64
	var whole uint64
	best := 0.0
	for i := range rails {
		whole += rails[i].bytes
	}
	for i := range rails {
		r := &rails[i]
		p := &h.railLocked(r.name).pace
		if r.bytes < 2*stripe || r.busy <= 0 {
			if whole >= 2*stripe*uint64(len(rails)) {
				p.unseen()
			}
			continue
		}
		p.dark = 0
		now := float64(r.bytes) / r.busy.Seconds()
		if p.rate == 0 {
			p.rate = now
		} else {
			p.rate += paceWeight * (now - p.rate)
		}
		told, perWeight = append(told, p), append(perWeight, p.rate/float64(r.weight))
		best = max(best, p.rate/float64(r.weight))
	}
	if len(told) < 2 {
		return // nothing to compare
	}
	for i, p := range told {
		p.follow(perWeight[i] / best)
	}
}

// unseen takes note of a read that had enough for all rails and told nothing of this.
func (p *pace) unseen() {
	if p.dark++; p.dark >= paceDark {
		p.dark, p.share = 0, min(p.share*2, fullShare)
	}
}

// follow moves the share towards what the rail carries beside the best one.
func (p *pace) follow(part float64) {
	want := part * fullShare
	switch d := want - float64(p.share); {
	case d > paceBand*float64(p.share):
		p.lean = max(p.lean, 0) + 1
	case d < -paceBand*float64(p.share):
		p.lean = min(p.lean, 0) - 1
	case p.share < fullShare && want > fullShare*(1-paceBand):
		p.lean = max(p.lean, 0) + 1 // as good as whole again
	default:
		p.lean = 0
	}
	if p.lean < paceReads && p.lean > -paceReads {
		return
	}
	p.lean = 0
	if want > fullShare*(1-paceBand) {
		want = fullShare
	}
	// At most to the double or the half at once.
	next := min(max(int(want), p.share/2), p.share*2)
	p.share = min(max(next/shareStep*shareStep, leastShare), fullShare)
}

// rateOf is the sum of what the rails carried lately, bytes per second; 0 if nothing
// is known of one of them.
func (h *Health) rateOf(rails []PlanRail) float64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	sum := 0.0
	for i := range rails {
		r := h.rails[rails[i].Name]
		if r == nil || r.pace.rate == 0 {
			return 0
		}
		sum += r.pace.rate
	}
	return sum
}
