package ps

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/railstore/railstore/pipeline"
	"github.com/railstore/railstore/stages/table"
	"github.com/railstore/railstore/verbs"
	"github.com/railstore/railstore/verbs/lane"
)

// ServiceConfig of a shard's parameter service.
type ServiceConfig struct {
	Store *table.Store
	Slabs *Slabs // the store's Memory
	Shard int
	// Snapshots is the folder of SAVE and LOAD; empty: they are refused.
	Snapshots string
	// Place is where the shard is among so many Shards that share the keys: a snapshot
	// holds the keys of one place, and is loaded there only.
	Place, Shards int
	// Measure takes the times of ServiceStats, which cost a little.
	Measure bool
}

// Service answers the requests of family 0x02. A request is served on the goroutine that
// calls Serve; a SAVE or LOAD has one of its own, which Close waits for.
type Service struct {
	cfg   ServiceConfig
	ctx   context.Context
	stop  context.CancelFunc
	wg    sync.WaitGroup
	count serviceCounters
	fence fence

	owners owners
	mu     sync.Mutex
	tables atomic.Pointer[map[string]*table.Table] // what requests named; may have dropped ones
	free   []*work
	folder *table.Folder
	lease  time.Duration // of a LOAD that is prepared
	jobs   map[uint64]*job
	order  []uint64 // of jobs
	closed bool
}

// serviceCounters are counts and, with Measure, nanoseconds.
type serviceCounters struct {
	gets, puts, updates, others        atomic.Uint64
	keys, missing                      atomic.Uint64
	direct, fallback                   atomic.Uint64
	bad, failed, repeated              atomic.Uint64
	getNS, batchGetNS, gatherNS, setNS atomic.Uint64
	zeroNS, copyNS                     atomic.Uint64
}

// ServiceStats are counts since the start.
type ServiceStats struct {
	Gets        uint64 `json:"gets"`
	Puts        uint64 `json:"puts"`
	Updates     uint64 `json:"updates"`
	Others      uint64 `json:"others"`
	Keys        uint64 `json:"keys"` // of GETs, PUTs and UPDATEs
	MissingRows uint64 `json:"missing_rows"`
	DirectSG    uint64 `json:"direct_sg"`           // GETs that were gathered
	Fallbacks   uint64 `json:"direct_sg_fallbacks"` // and those that were copied instead
	Bad         uint64 `json:"bad_requests"`
	Failed      uint64 `json:"failed"`
	Repeated    uint64 `json:"repeated_tokens"` // UPDATEs that had been applied before

	// With Measure only.
	HandleGetNS uint64 `json:"handle_get_ns"`
	BatchGetNS  uint64 `json:"get_batch_get_ns"` // lookup of staging_copy
	ZeroFillNS  uint64 `json:"get_zero_fill_ns"` // its missing rows
	RowCopyNS   uint64 `json:"get_row_copy_ns"`  // and those that are there
	GatherNS    uint64 `json:"get_gather_ns"`    // lookup and transfer of direct_sg
	HandleSetNS uint64 `json:"handle_put_update_ns"`
}

// work is the memory that serving a request takes. It is used again.
type work struct {
	req   request
	keys  []uint64
	found []uint64
	refs  []table.RowRef
	sges  []verbs.SGE
}

// NewService makes the service of a shard.
func NewService(cfg ServiceConfig) *Service {
	s := &Service{cfg: cfg, jobs: map[uint64]*job{}, lease: loadLease}
	s.folder = &table.Folder{Store: cfg.Store, Dir: cfg.Snapshots, Place: cfg.Place, Shards: cfg.Shards}
	s.ctx, s.stop = context.WithCancel(context.Background())
	s.tables.Store(new(map[string]*table.Table))
	return s
}

// Close ends saves and loads and makes later requests fail. It does not wait for requests
// being served: the lanes' owner does that.
func (s *Service) Close() error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.stop()
	s.wg.Wait()
	return nil
}

// Stats is a snapshot.
func (s *Service) Stats() ServiceStats {
	c := &s.count
	return ServiceStats{Gets: c.gets.Load(), Puts: c.puts.Load(), Updates: c.updates.Load(), Others: c.others.Load(), Keys: c.keys.Load(),
		MissingRows: c.missing.Load(), DirectSG: c.direct.Load(), Fallbacks: c.fallback.Load(), Bad: c.bad.Load(), Failed: c.failed.Load(),
		Repeated: c.repeated.Load(), HandleGetNS: c.getNS.Load(), BatchGetNS: c.batchGetNS.Load(),
		ZeroFillNS: c.zeroNS.Load(), RowCopyNS: c.copyNS.Load(), GatherNS: c.gatherNS.Load(), HandleSetNS: c.setNS.Load()}
}

// Sort gives a lane.AcceptorConfig's Sort for a shard. GETs that are copied and EXISTS are
// served by the poller, or by the first further pool if getWorkers is not 0; so are GETs
// that are gathered, if there is that pool. Everything else goes to the workers.
func Sort(getWorkers int) (sort func(op, flags uint16) int, pools []int) {
	get := lane.ToPoller
	if getWorkers > 0 {
		get, pools = 1, []int{getWorkers}
	}
	return func(op, flags uint16) int {
		if op != OpGet && op != OpExists {
			return lane.ToWorkers
		}
		if flags&waits != 0 && getWorkers == 0 {
			return lane.ToWorkers
		}
		return get
	}, pools
}

// exchange is what serving a request needs of a lane. Read and Write return when the
// device has done with the local memory, whatever the outcome.
type exchange interface {
	Context() context.Context // ends when nobody waits for the answer any more
	Op() uint16
	Rail() string
	Node() string // whose request it is
	Payload() []byte
	Response() []byte
	Read(ctx context.Context, dst []verbs.SGE, src verbs.RemoteRegion) error
	Write(ctx context.Context, src []verbs.SGE, dst verbs.RemoteRegion) error
	Reply(st lane.Status, n int)
}

// laneExchange is a lane's exchange as the service sees it.
type laneExchange struct{ *lane.Exchange }

func (x laneExchange) Rail() string { return x.Label().Rail }
func (x laneExchange) Node() string { return x.Label().Remote }

// Serve answers one request of a client.
func (s *Service) Serve(x *lane.Exchange) { s.serve(laneExchange{x}) }

func (s *Service) serve(x exchange) {
	w := s.borrow()
	n, err := s.do(x, w)
	s.lend(w)
	if err != nil {
		code, applied := codeOf(err)
		if code == CodeBadRequest {
			s.count.bad.Add(1)
		} else {
			s.count.failed.Add(1)
		}
		x.Reply(codes[code].status, putError(x.Response(), code, applied, reason(err)))
		return
	}
	x.Reply(lane.StatusOK, n)
}

// reason is an error without the names of calls inside the shard.
func reason(err error) string {
	var pe *pipeline.Error
	if errors.As(err, &pe) && pe.Err != nil {
		return pe.Err.Error()
	}
	return err.Error()
}

func (s *Service) do(x exchange, w *work) (n int, err error) {
	// A bug must cost one request, not the shard. The lane would answer with StatusInternal
	// as well; this one says why.
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%w: panic: %v", ErrInternal, r)
		}
	}()
	if s.ctx.Err() != nil {
		return 0, s.stopping()
	}
	out := x.Response()
	if len(out) < responseHeader {
		return 0, fmt.Errorf("%w: room for an answer of %d bytes, it has at least %d", ErrTooLarge, len(out), responseHeader)
	}
	op := x.Op()
	rest, err := w.req.parse(op, x.Payload())
	if err != nil {
		return 0, err
	}
	if op == OpBarrier {
		s.count.others.Add(1)
		if err := empty(&w.req, rest); err != nil {
			return 0, err
		}
		if err := s.fence.wait(x.Context()); err != nil {
			return 0, fmt.Errorf("%w: requests were still being served: %w", ErrBusy, err)
		}
		return (&response{}).put(out), nil
	}
	p := s.fence.enter()
	defer s.fence.leave(p)
	switch op {
	case OpGet:
		s.count.gets.Add(1)
		defer s.lap(&s.count.getNS, s.now())
		return s.get(x, w, rest)
	case OpPut:
		s.count.puts.Add(1)
		defer s.lap(&s.count.setNS, s.now())
		return s.change(x, w, rest)
	case OpUpdate:
		s.count.updates.Add(1)
		defer s.lap(&s.count.setNS, s.now())
		return s.change(x, w, rest)
	case OpExists, OpDelete:
		s.count.others.Add(1)
		return s.lookup(x, w, rest)
	}
	s.count.others.Add(1)
	return s.admin(x, w, rest)
}

// empty refuses what has no business in a request without keys and body.
func empty(r *request, rest []byte) error {
	if r.keys != 0 || r.dim != 0 || len(rest) != 0 {
		return fmt.Errorf("%w: %d keys, rows of %d floats and %d bytes where none are wanted", ErrBadRequest, r.keys, r.dim, len(rest))
	}
	return nil
}

func (s *Service) stopping() error {
	return fmt.Errorf("%w: shard %d is stopping", ErrBusy, s.cfg.Shard)
}

func (s *Service) now() time.Time {
	if !s.cfg.Measure {
		return time.Time{}
	}
	return time.Now()
}

func (s *Service) lap(to *atomic.Uint64, since time.Time) {
	if !since.IsZero() {
		to.Add(uint64(time.Since(since)))
	}
}

func (s *Service) borrow() *work {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := len(s.free); n > 0 {
		w := s.free[n-1]
		s.free = s.free[:n-1]
		return w
	}
	return new(work)
}

func (s *Service) lend(w *work) {
	s.mu.Lock()
	s.free = append(s.free, w)
	s.mu.Unlock()
}

// table finds the table that a request names, without allocation if it was named before.
func (s *Service) table(r *request) (*table.Table, error) {
	name := r.name[:r.nameLen]
	if t := (*s.tables.Load())[string(name)]; t != nil {
		return t, nil
	}
	t := s.cfg.Store.Table(string(name))
	if t == nil {
		return nil, s.noTable(r)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	// Only tables that are there: names that peers invent must not pile up.
	tables := map[string]*table.Table{string(name): t}
	for k, v := range *s.tables.Load() {
		if k != string(name) && s.cfg.Store.Table(k) == v {
			tables[k] = v
		}
	}
	s.tables.Store(&tables)
	return t, nil
}

func (s *Service) noTable(r *request) error {
	return fmt.Errorf("%w: shard %d has no table %q", ErrNoTable, s.cfg.Shard, r.name[:r.nameLen])
}

// forget makes the next request look a table up again.
func (s *Service) forget(t *table.Table) {
	s.mu.Lock()
	defer s.mu.Unlock()
	tables := map[string]*table.Table{}
	for k, v := range *s.tables.Load() {
		if v != t {
			tables[k] = v
		}
	}
	s.tables.Store(&tables)
}

// on calls f with the table of a request, once more if that one was dropped and another
// one of the name has come.
func (s *Service) on(r *request, f func(*table.Table) error) error {
	t, err := s.table(r)
	if err != nil {
		return err
	}
	if err = f(t); !errors.Is(err, table.ErrDropped) {
		return err
	}
	s.forget(t)
	if t, err = s.table(r); err != nil {
		return err
	}
	return f(t)
}
