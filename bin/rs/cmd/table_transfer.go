package cmd

import (
	"cmp"
	"context"
	"errors"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/railstore/railstore/stages/ps"
)

// transfer takes the rows of a file to a table, some batches at a time. It stops at the
// first batch that fails for good and knows then of every row of the file whether it was
// applied.
type transfer struct {
	from   rowSource
	do     func(ctx context.Context, keys []uint64, rows []float32) error
	resume func(ctx context.Context, failed *ps.BatchError, keys []uint64, rows []float32) error
	dim    int
	batch  int // rows
	depth  int // batches at once; 1 keeps their order
	limit  int64
	skip   int64
	// retries of a batch whose shard did not answer; before each, again is asked whether
	// it may, and may wait.
	retries int
	again   func(ctx context.Context, attempt int) error
	moved   func() // after each batch that was read

	mu  sync.Mutex
	rep transferReport
	err error // of the first batch that failed
}

// rowSource is a vectors.Reader.
type rowSource interface {
	Next(keys []uint64, rows []float32) (int, error)
}

// transferReport is what became of the rows. Rows are counted as in the file, from 0.
type transferReport struct {
	Read       int64        `json:"read"` // and given to the table: applied + not_applied + unknown
	Applied    int64        `json:"applied"`
	NotApplied int64        `json:"not_applied"`
	Unknown    int64        `json:"unknown"` // sent, and no answer came
	Retried    int64        `json:"retried_batches"`
	Failed     []failedRows `json:"failed,omitempty"`
}

// failedRows are rows of one shard that were not applied, or of which that is not known.
type failedRows struct {
	Shard   int        `json:"shard"` // -1: they were sent to none
	Applied string     `json:"applied"`
	Count   int64      `json:"count"`
	Rows    [][2]int64 `json:"rows"` // from, and the first that is not of it any more
	Error   string     `json:"error"`
}

// piece is a batch.
type piece struct {
	keys []uint64
	rows []float32
	n    int
	at   int64 // row of the file
}

// run reads until the end, an error, or a batch that fails. Batches that are under way
// then are seen to their end: to give them up would only make it unknown what became of
// them. The error is about the file, or the first batch that failed.
func (t *transfer) run(ctx context.Context) error {
	reading, stop := context.WithCancel(ctx)
	defer stop()
	free, full := make(chan *piece, t.depth+1), make(chan *piece)
	for range t.depth + 1 {
		free <- &piece{keys: make([]uint64, t.batch), rows: make([]float32, t.batch*t.dim)}
	}
	var wg sync.WaitGroup
	for range t.depth {
		wg.Go(func() {
			for p := range full {
				if !t.apply(ctx, reading, p) {
					stop()
				}
				free <- p
			}
		})
	}
	rerr := t.read(reading, free, full)
	close(full)
	wg.Wait()
	// Parts of a failure that came in any order are told in the file's.
	slices.SortStableFunc(t.rep.Failed, func(a, b failedRows) int {
		return cmp.Or(cmp.Compare(a.Rows[0][0], b.Rows[0][0]), cmp.Compare(a.Shard, b.Shard))
	})
	if t.err != nil {
		return t.err
	}
	return rerr
}

func (t *transfer) read(ctx context.Context, free <-chan *piece, full chan<- *piece) error {
	var p *piece // that is not given away
	for at := int64(0); t.limit <= 0 || at < t.skip+t.limit; {
		if p == nil {
			select {
			case p = <-free:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		want := int64(t.batch)
		if at < t.skip {
			want = min(want, t.skip-at)
		} else if t.limit > 0 {
			want = min(want, t.skip+t.limit-at)
		}
		n, err := t.from.Next(p.keys[:want], p.rows)
		if err == io.EOF {
			return nil
		}
		if t.moved != nil {
			t.moved()
		}
		if n > 0 && at >= t.skip {
			p.n, p.at = n, at
			select {
			case full <- p:
				p = nil
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		at += int64(n)
		if err != nil {
			return err // the rows before the fault were good
		}
	}
	return nil
}

// apply sends a batch, again where that helps, and books what became of it.
func (t *transfer) apply(ctx, reading context.Context, p *piece) bool {
	keys, rows := p.keys[:p.n], p.rows[:p.n*t.dim]
	err := t.do(ctx, keys, rows)
	for attempt := 1; err != nil && attempt <= t.retries; attempt++ {
		var failed *ps.BatchError
		if !errors.As(err, &failed) || !retriable(failed) || reading.Err() != nil {
			break
		}
		if aerr := t.again(reading, attempt); aerr != nil {
			err = errors.Join(err, aerr)
			break
		}
		t.mu.Lock()
		t.rep.Retried++
		t.mu.Unlock()
		err = t.resume(ctx, failed, keys, rows)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.book(p, err)
	if err != nil && t.err == nil {
		t.err = err
	}
	return err == nil
}

// book counts a batch. t.mu is held.
func (t *transfer) book(p *piece, err error) {
	t.rep.Read += int64(p.n)
	if err == nil {
		t.rep.Applied += int64(p.n)
		return
	}
	var failed *ps.BatchError
	if !errors.As(err, &failed) {
		// It was refused as a whole, before anything was sent.
		t.rep.NotApplied += int64(p.n)
		t.rep.Failed = append(t.rep.Failed, failedRows{Shard: -1, Applied: "no", Count: int64(p.n), Rows: [][2]int64{{p.at, p.at + int64(p.n)}}, Error: err.Error()})
		return
	}
	bad := int64(0)
	for _, s := range failed.Shards {
		f := failedRows{Shard: s.Shard, Applied: "no", Count: int64(s.Count()), Error: s.Err.Error()}
		for _, r := range s.Keys {
			f.Rows = append(f.Rows, [2]int64{p.at + int64(r.From), p.at + int64(r.To)})
		}
		if s.Applied == ps.AppliedUnknown {
			f.Applied = "unknown"
			t.rep.Unknown += f.Count
		} else {
			t.rep.NotApplied += f.Count
		}
		bad += f.Count
		if len(f.Rows) > 0 {
			t.rep.Failed = append(t.rep.Failed, f)
		}
	}
	t.rep.Applied += int64(p.n) - bad
}

// retriable says that nobody refused the batch for what it is: a shard did not answer,
// or had no time.
func retriable(e *ps.BatchError) bool {
	for _, refusal := range []error{ps.ErrNoTable, ps.ErrShape, ps.ErrMemory, ps.ErrNonFinite, ps.ErrBadRequest, ps.ErrTooLarge, ps.ErrToken, ps.ErrInternal, ps.ErrWrongShard} {
		if errors.Is(e, refusal) {
			return false
		}
	}
	return true
}

// pause waits before a retry.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
