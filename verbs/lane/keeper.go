package lane

// Keeper cures the lanes of a pool. Its methods are called under the pool's lock
// and must not block or call the pool.
type Keeper interface {
	// Wanted tells that a call came upon a lane of that rail (empty: any) that is
	// down. It reports whether lanes are being cured, or begin to be now: then a call
	// for which there is no other lane waits for the outcome. Each time it has
	// reported true, Pool.Settled follows.
	Wanted(rail string) bool
	// Down tells that a lane is not Active any more.
	Down(l *Lane)
}

// SetKeeper says who cures the pool's lanes; nil: nobody.
func (p *Pool) SetKeeper(k Keeper) {
	p.mu.Lock()
	p.keeper = k
	p.mu.Unlock()
}

func (p *Pool) wanted(rail string) bool { return p.keeper != nil && p.keeper.Wanted(rail) }

// Settled ends the hope of callers that wait for lanes to be cured: those that no
// lane is there for fail.
func (p *Pool) Settled() { p.failStranded(nil) }

// Refuse fails every call that has no slot yet with err, and those to come; with
// nil they are taken again. Calls under way go on.
func (p *Pool) Refuse(err *Error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err == nil {
		p.refuse = nil
		return
	}
	p.refuse = err
	p.strand(nil, false)
}

// InFlight is the number of calls that have a slot.
func (p *Pool) InFlight() (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, l := range p.lanes {
		for i := range l.slots {
			if l.State() == Active && l.slots[i].state != slotIdle {
				n++
			}
		}
	}
	return n
}
