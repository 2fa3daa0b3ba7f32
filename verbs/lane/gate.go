package lane

import "sync/atomic"

// gate counts the goroutines inside something. shut keeps further ones out and
// returns when those inside have left.
type gate struct {
	n    atomic.Int64
	left chan struct{} // cap 1
}

// shutBit makes the count negative.
const shutBit = -1 << 62

func newGate() gate { return gate{left: make(chan struct{}, 1)} }

// enter reports whether the caller is inside; it must leave then.
func (g *gate) enter() bool {
	if g.n.Add(1) > 0 {
		return true
	}
	g.leave()
	return false
}

func (g *gate) leave() {
	if g.n.Add(-1) == shutBit {
		select {
		case g.left <- struct{}{}:
		default:
		}
	}
}

// shut must not be called again before open.
func (g *gate) shut() {
	g.n.Add(shutBit)
	for g.n.Load() != shutBit {
		<-g.left
	}
}

// open undoes a shut.
func (g *gate) open() { g.n.Add(-shutBit) }
