package table

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
)

// epochs tells when what was taken out of the index may be used again.
//
// A reader publishes the epoch that it saw, in a Pin, before it reads the index. A
// writer first takes something out of the index and then retires it with the epoch of
// that moment (retire). A reader that could still have a reference to it read the index
// before it was taken out, so its pin stands at that epoch or an earlier one: as long as
// oldest is not beyond the epoch of a retired thing, the thing stays.
//
// A reader that takes an old epoch and publishes it late, after oldest has looked at its
// pin, does no harm: it reads the index later still, when the thing is no longer in it.
// The atomics are sequentially consistent, which this argument needs.
type epochs struct {
	now  atomic.Uint64          // from 1
	pins atomic.Pointer[[]*Pin] // only ever grows
	mu   sync.Mutex             // for growing it

	waiting atomic.Int32 // callers of Unpinned
	left    wakeUp       // of those that a pin was let go
}

// Pin keeps rows from being used again: what Locate gave under it, until Unpin.
type Pin struct {
	epoch atomic.Uint64 // 0: not held
	owner *Store
	id    int
	mu    sync.Mutex // for who; over nothing else
	who   string
	_     [16]byte // a cache line for each, or close to it
}

// PinInfo describes a pin that is held.
type PinInfo struct {
	ID    int    `json:"id"`
	Who   string `json:"who"` // empty: a call that is running
	Epoch uint64 `json:"epoch"`
}

func (p PinInfo) String() string {
	if p.Who == "" {
		return fmt.Sprintf("a running call (pin %d, epoch %d)", p.ID, p.Epoch)
	}
	return fmt.Sprintf("%s (pin %d, epoch %d)", p.Who, p.ID, p.Epoch)
}

const firstPins = 64

func (e *epochs) open(owner *Store) {
	e.now.Store(1)
	pins := make([]*Pin, firstPins)
	for i := range pins {
		pins[i] = &Pin{owner: owner, id: i}
	}
	e.pins.Store(&pins)
}

// acquire takes a free pin and publishes the epoch.
func (e *epochs) acquire() *Pin {
	for {
		pins := *e.pins.Load()
		// A random place: who starts at the first one meets all others there.
		at := int(rand.Uint32() % uint32(len(pins)))
		for range pins {
			p := pins[at]
			if p.epoch.Load() == 0 && p.epoch.CompareAndSwap(0, e.now.Load()) {
				return p
			}
			if at++; at == len(pins) {
				at = 0
			}
		}
		e.more(len(pins))
	}
}

func (e *epochs) more(had int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	old := *e.pins.Load()
	if len(old) > had {
		return
	}
	pins := make([]*Pin, 2*len(old))
	for i := copy(pins, old); i < len(pins); i++ {
		pins[i] = &Pin{owner: old[0].owner, id: i}
	}
	e.pins.Store(&pins)
}

func (p *Pin) release() {
	if p.epoch.Swap(0) == 0 {
		panic("table: Unpin of a pin that is not held")
	}
	// Who waits says so before it looks at the pins.
	if e := &p.owner.epochs; e.waiting.Load() > 0 {
		e.left.wake()
	}
}

// retire is the epoch for what was just taken out of the index, and begins the next.
func (e *epochs) retire() uint64 { return e.now.Add(1) - 1 }

// oldest is the epoch of the oldest pin, or the present one. What was retired at an
// earlier epoch is out of everybody's sight.
func (e *epochs) oldest() uint64 {
	least := e.now.Load()
	for _, p := range *e.pins.Load() {
		if at := p.epoch.Load(); at != 0 && at < least {
			least = at
		}
	}
	return least
}

// held lists the pins that are held.
func (e *epochs) held() []PinInfo {
	var out []PinInfo
	for _, p := range *e.pins.Load() {
		if at := p.epoch.Load(); at != 0 {
			p.mu.Lock()
			out = append(out, PinInfo{ID: p.id, Who: p.who, Epoch: at})
			p.mu.Unlock()
		}
	}
	return out
}

// Pin holds the present epoch for who, a name for errors and Stats: rows that are
// replaced or deleted from now on are not used again before Unpin. Pins are cheap and
// meant to be short: while one is held, memory that changes free up is kept.
func (s *Store) Pin(who string) *Pin {
	p := s.epochs.acquire()
	p.mu.Lock()
	p.who = who
	p.mu.Unlock()
	return p
}

// Unpin lets go of what p kept. It is called once, and p is of no use after it.
func (p *Pin) Unpin() {
	p.mu.Lock()
	p.who = ""
	p.mu.Unlock()
	p.release()
}
