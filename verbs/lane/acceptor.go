package lane

import (
	"errors"
	"sync"

	"github.com/railstore/railstore/verbs"
)

// Handler serves requests. Serve is called by a worker, or by the poller's
// goroutine or the lane's scanner when the acceptor has no workers. It answers with
// x.Reply; one that returns without answers StatusInvalid, one that panics
// StatusInternal. x is Serve's alone and only until it returns.
type Handler interface{ Serve(x *Exchange) }

// HandlerFunc is a function as a Handler.
type HandlerFunc func(x *Exchange)

// Serve calls f.
func (f HandlerFunc) Serve(x *Exchange) { f(x) }

// AcceptorConfig of an acceptor.
type AcceptorConfig struct {
	// Workers serve requests; 0: the pollers' goroutines do. Without workers a
	// handler that takes long holds up every other lane of its poller or scanner.
	Workers  int
	Counters *Counters
	// Sort, if set, says who serves a request, by its operation and flags: ToWorkers,
	// ToPoller, or a number from 1 to len(Pools), whose workers do. Descriptors are then
	// checked by the poller. It must not block.
	Sort  func(op, flags uint16) int
	Pools []int // further pools: the number of workers of each, at least 1
}

// What Sort may give besides the number of a pool.
const (
	ToPoller  = -1 // short and without waiting; everything else of the poller, or the scanner, waits for it
	ToWorkers = 0  // those of AcceptorConfig.Workers
)

// Acceptor is the server's side of the lanes of one shard: any number of lanes
// on any number of rails, and the workers that serve them.
type Acceptor struct {
	h     Handler
	cfg   AcceptorConfig
	count *Counters
	work  *workQueue
	pools []*workQueue
	wg    sync.WaitGroup

	mu     sync.Mutex
	lanes  map[*ServerLane]struct{}
	closed bool
}

// NewAcceptor makes an acceptor and starts its workers.
func NewAcceptor(h Handler, cfg AcceptorConfig) *Acceptor {
	a := &Acceptor{h: h, cfg: cfg, count: cfg.Counters, work: newWorkQueue(), lanes: map[*ServerLane]struct{}{}}
	if a.count == nil {
		a.count = new(Counters)
	}
	a.start(a.work, cfg.Workers)
	for _, n := range cfg.Pools {
		q := newWorkQueue()
		a.pools = append(a.pools, q)
		a.start(q, max(n, 1))
	}
	return a
}

func (a *Acceptor) start(q *workQueue, workers int) {
	for range workers {
		a.wg.Add(1)
		go a.run(q)
	}
}

func (a *Acceptor) run(q *workQueue) {
	defer a.wg.Done()
	for x := q.pop(); x != nil; x = q.pop() {
		x.lane.serve(x)
	}
}

// queueOf is where a checked request is to be served; nil: where it is.
func (a *Acceptor) queueOf(x *Exchange) *workQueue {
	switch n := a.cfg.Sort(x.Op(), x.Flags()); {
	case n > 0 && n <= len(a.pools):
		return a.pools[n-1]
	case n != ToPoller && a.cfg.Workers > 0:
		return a.work
	}
	return nil
}

// Counters of all lanes.
func (a *Acceptor) Counters() *Counters { return a.count }

// Add takes a lane of a client on: a connected QP, which it takes over on
// success, and the memory that was published to that client. From now on its
// requests are served.
func (a *Acceptor) Add(p *Poller, qp *verbs.QP, mem Memory, peer Peer, cfg Config, label Label) (*ServerLane, error) {
	if cfg.Counters == nil {
		cfg.Counters = a.count
	}
	sl, err := newServerLane(a, p, qp, mem, peer, cfg.withDefaults(), label)
	if err != nil {
		return nil, err
	}
	if err := sl.join(); err != nil {
		return nil, sl.errorf(LayerPost, "accept", err)
	}
	a.mu.Lock()
	closed := a.closed
	if !closed {
		a.lanes[sl] = struct{}{}
	}
	a.mu.Unlock()
	if closed {
		return nil, errors.Join(sl.errorf(LayerUsage, "accept", ErrClosed), sl.Close())
	}
	return sl, nil
}

func (a *Acceptor) drop(sl *ServerLane) {
	a.mu.Lock()
	delete(a.lanes, sl)
	a.mu.Unlock()
}

// Lanes are the lanes that are not closed.
func (a *Acceptor) Lanes() []*ServerLane {
	a.mu.Lock()
	defer a.mu.Unlock()
	out := make([]*ServerLane, 0, len(a.lanes))
	for sl := range a.lanes {
		out = append(out, sl)
	}
	return out
}

// Busy reports whether a lane serves a request or has an answer under way. Answers
// whose completion was not asked for count as sent.
func (a *Acceptor) Busy() bool {
	for _, sl := range a.Lanes() {
		if sl.busy() {
			return true
		}
	}
	return false
}

// Close closes every lane, ends the workers and waits for them.
func (a *Acceptor) Close() error {
	a.mu.Lock()
	a.closed = true
	a.mu.Unlock()
	var errs []error
	for _, sl := range a.Lanes() {
		errs = append(errs, sl.Close())
	}
	a.work.close()
	for _, q := range a.pools {
		q.close()
	}
	a.wg.Wait()
	return errors.Join(errs...)
}
