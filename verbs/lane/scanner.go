package lane

import "time"

// scanner serves the requests of some lanes of a poller, one after the other. A poller
// with one scanner serves on its own goroutine; of several, each has one.
type scanner struct {
	p     *Poller
	q     *workQueue
	own   bool // it has a goroutine of its own
	lanes int  // that it serves; under Poller.mu

	deferred []*ServerLane // with answers to post; only its goroutine's
}

// startScanners divides the poller's lanes among n.
func (p *Poller) startScanners(n int) {
	for range n {
		p.scanners = append(p.scanners, &scanner{p: p, q: newWorkQueue(), own: n > 1})
	}
	if n == 1 {
		return
	}
	for _, s := range p.scanners {
		p.wg.Go(s.run)
	}
}

// enlist gives a lane the scanner that has the fewest.
func (p *Poller) enlist() *scanner {
	p.mu.Lock()
	defer p.mu.Unlock()
	least := p.scanners[0]
	for _, s := range p.scanners[1:] {
		if s.lanes < least.lanes {
			least = s
		}
	}
	least.lanes++
	return least
}

func (p *Poller) dismiss(s *scanner) {
	p.mu.Lock()
	s.lanes--
	p.mu.Unlock()
}

// push queues a request.
func (s *scanner) push(x *Exchange) {
	s.q.push(x)
	if !s.own {
		s.p.kick()
	}
}

func (s *scanner) run() {
	for x := s.q.pop(); x != nil; x = s.q.pop() {
		s.serve(x)
	}
}

// serveReady serves what is queued and reports whether there was anything.
func (s *scanner) serveReady() bool {
	x := s.q.tryPop()
	if x == nil {
		return false
	}
	s.serve(x)
	return true
}

// Answers of one pass go out in one post, but none waits for long.
const (
	deferAnswers = 16
	deferTime    = 20 * time.Microsecond
)

// serve runs the handlers of x and of all that is queued behind it.
func (s *scanner) serve(x *Exchange) {
	first := clock()
	for n := 1; x != nil; n++ {
		x.lane.serve(x)
		if n%deferAnswers == 0 || clock()-first > deferTime {
			s.flush()
			first = clock()
		}
		x = s.q.tryPop()
	}
	s.flush()
}

// deferFlush remembers a lane whose answers are to be posted at the end of the pass.
// Only the scanner's goroutine calls it.
func (s *scanner) deferFlush(sl *ServerLane) {
	for _, d := range s.deferred {
		if d == sl {
			return
		}
	}
	s.deferred = append(s.deferred, sl)
}

func (s *scanner) flush() {
	for i, sl := range s.deferred {
		sl.flush()
		s.deferred[i] = nil
	}
	s.deferred = s.deferred[:0]
}

// closeScanners ends those with goroutines and waits for them.
func (p *Poller) closeScanners() {
	for _, s := range p.scanners {
		s.q.close()
	}
	p.wg.Wait()
}
