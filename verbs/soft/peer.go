package soft

import (
	"net/netip"
	"sync"
	"sync/atomic"
)

// peer is a device at the other end: an address and a port with one receive buffer
// behind them. What QPs send there, or are to be sent by it, shares that buffer.
type peer struct {
	addr   netip.AddrPort
	refs   int          // QPs; guarded by peers.mu
	flying atomic.Int32 // packets in flight
	active atomic.Int32 // QPs that have some
	budget int32        // packets in flight that are likely to find room
}

// peers are those that a device has QPs to.
type peers struct {
	budget int32

	mu sync.Mutex
	m  map[netip.AddrPort]*peer
}

func newPeers(budget int) *peers {
	return &peers{budget: int32(max(budget, 1)), m: map[netip.AddrPort]*peer{}}
}

func (s *peers) get(a netip.AddrPort) *peer {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.m[a]
	if p == nil {
		p = &peer{addr: a, budget: s.budget}
		s.m[a] = p
	}
	p.refs++
	return p
}

func (s *peers) put(p *peer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.refs--; p.refs == 0 {
		delete(s.m, p.addr)
	}
}

// toward makes the QP one of those that send to p; nil: to nobody. The QP's lock is
// held.
func (q *qp) toward(p *peer) {
	q.setFlying(0)
	if q.to != nil {
		q.dev.peers.put(q.to)
	}
	q.to = p
}

// share is how many packets the QP may have in flight because others have some,
// too: its part of the budget, not more than is left of it, and always one. 0 is
// any number. The QP's lock is held.
func (q *qp) share() int {
	if q.to == nil {
		return 0
	}
	others := q.to.flying.Load() - q.flying
	if others <= 0 {
		return 0
	}
	n := q.to.active.Load()
	if q.flying == 0 {
		n++
	}
	return int(max(min(q.to.budget/n, q.to.budget-others), 1))
}

// noteFlying counts what the QP has in flight now; its lock is held.
func (q *qp) noteFlying() {
	if q.to != nil {
		q.setFlying(int32(q.conn.InFlight()))
	}
}

func (q *qp) setFlying(n int32) {
	if n == q.flying {
		return
	}
	q.to.flying.Add(n - q.flying)
	switch {
	case q.flying == 0:
		q.to.active.Add(1)
	case n == 0:
		q.to.active.Add(-1)
	}
	q.flying = n
}
