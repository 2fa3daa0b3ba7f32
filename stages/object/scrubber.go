package object

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// Scrubber scrubs a shard's store when it is asked to, one scrub at a time, on a
// goroutine of its own that Close waits for.
type Scrubber struct {
	store   *Store
	catalog CleanerCatalog
	ctx     context.Context
	stop    context.CancelFunc
	wg      sync.WaitGroup

	mu  sync.Mutex
	run *scrubRun // the last one
}

type scrubRun struct {
	id      uint64
	opt     ScrubOptions
	started time.Time
	cancel  context.CancelFunc
	done    chan struct{}
	checked atomic.Uint64
	report  *ScrubReport // after done
	err     error
}

// ScrubStatus is the state of the last scrub that was begun.
type ScrubStatus struct {
	ID      uint64       `json:"id"` // 0: none was
	Running bool         `json:"running"`
	Stripes uint64       `json:"stripes"` // looked at
	Report  *ScrubReport `json:"report,omitempty"`
	Error   string       `json:"error,omitempty"` // why it ended early
}

// NewScrubber makes one. Close it before the store.
func NewScrubber(ctx context.Context, s *Store, c CleanerCatalog) *Scrubber {
	ctx, stop := context.WithCancel(context.WithoutCancel(ctx))
	return &Scrubber{store: s, catalog: c, ctx: ctx, stop: stop}
}

// Start begins a scrub and gives its id. While another one runs it fails with
// ErrBusy.
func (s *Scrubber) Start(opt ScrubOptions) (id uint64, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx.Err() != nil {
		return 0, fmt.Errorf("%w: shard %d is stopping", ErrBusy, s.store.Shard())
	}
	r := &scrubRun{id: 1, opt: opt, started: time.Now(), done: make(chan struct{})}
	if last := s.run; last != nil {
		if r.id = last.id + 1; !last.over() {
			return 0, fmt.Errorf("%w: scrub %d of shard %d has been running since %s", ErrBusy, last.id, s.store.Shard(), last.started.UTC().Format(time.RFC3339))
		}
	}
	var ctx context.Context
	ctx, r.cancel = context.WithCancel(s.ctx)
	s.run = r
	s.wg.Go(func() {
		defer r.cancel()
		r.report, r.err = s.store.Scrub(ctx, s.catalog, r.opt, &r.checked)
		close(r.done)
	})
	return r.id, nil
}

func (r *scrubRun) over() bool {
	select {
	case <-r.done:
		return true
	default:
		return false
	}
}

// Status of the last scrub. It waits a little for one that is running.
func (s *Scrubber) Status(wait time.Duration) ScrubStatus {
	s.mu.Lock()
	r := s.run
	s.mu.Unlock()
	if r == nil {
		return ScrubStatus{}
	}
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-r.done:
	case <-t.C:
	}
	st := ScrubStatus{ID: r.id, Running: !r.over(), Stripes: r.checked.Load()}
	if st.Running {
		return st
	}
	if st.Report = r.report; r.err != nil {
		st.Error = withErrno(r.err.Error(), r.err)
		if errors.Is(r.err, context.Canceled) {
			st.Error = "it was stopped"
		}
	}
	return st
}

// Cancel ends the scrub that runs with that id, if it does.
func (s *Scrubber) Cancel(id uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.run != nil && s.run.id == id {
		s.run.cancel()
	}
}

// Close ends the scrub under way and waits for it. It is idempotent.
func (s *Scrubber) Close() error {
	s.mu.Lock()
	s.stop()
	s.mu.Unlock()
	s.wg.Wait()
	return nil
}
