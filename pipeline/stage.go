package pipeline

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sourcegraph/conc/pool"
)

// Stage is one typed step. Run acquires things into the scope and returns what
// the next stage needs. Deadline 0 is none.
type Stage[In, Out any] struct {
	Name     string
	Layer    Layer
	Deadline time.Duration
	Run      func(ctx context.Context, scope *Scope, in In) (Out, error)
}

// Event is one thing that happened, as a line of events.jsonl and as progress on
// a terminal. Shard and Lane are nil where they do not apply.
type Event struct {
	Event   string         `json:"event"`
	Time    time.Time      `json:"ts"`
	Shard   *int           `json:"shard,omitempty"`
	Lane    *int           `json:"lane,omitempty"`
	Rail    string         `json:"rail,omitempty"`
	Reason  string         `json:"reason,omitempty"`
	Stage   string         `json:"stage,omitempty"`
	Seconds float64        `json:"seconds,omitempty"`
	Fields  map[string]any `json:"fields,omitempty"`
	// Suppressed is set where the event stands for that many of its kind and place
	// that came too fast to be told one by one; the rest of it is of the last one.
	Suppressed int `json:"suppressed,omitempty"`
}

// Sink takes events; it must be safe for concurrent use and must not block.
type Sink func(Event)

type sinkKey struct{}

// WithSink gives a context whose stages report to sink.
func WithSink(ctx context.Context, sink Sink) context.Context {
	return context.WithValue(ctx, sinkKey{}, sink)
}

// Emit reports an event to the context's sink; without one it does nothing. A
// zero time becomes now.
func Emit(ctx context.Context, e Event) {
	if s, ok := ctx.Value(sinkKey{}).(Sink); ok {
		if e.Time.IsZero() {
			e.Time = time.Now()
		}
		s(e)
	}
}

// Run runs one stage under its deadline, reports its start and end, turns a
// panic into an error and puts the stage's layer and name on an error that has
// none. It does not close the scope: the caller does, once, for all stages.
func Run[In, Out any](ctx context.Context, scope *Scope, st Stage[In, Out], in In) (out Out, err error) {
	if st.Deadline > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, st.Deadline, fmt.Errorf("stage %s did not finish within its deadline of %v", st.Name, st.Deadline))
		defer cancel()
	}
	start := time.Now()
	Emit(ctx, Event{Event: "stage_start", Time: start, Stage: st.Name})
	defer func() {
		if r := recover(); r != nil {
			err = Errorf(LayerInternal, st.Name, Nowhere, "panic: %v", r)
		}
		if err != nil && errors.Is(err, context.DeadlineExceeded) {
			if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.DeadlineExceeded) {
				err = fmt.Errorf("%w (%w)", err, cause)
			}
		}
		err = Wrap(err, st.Layer, st.Name, Nowhere)
		e := Event{Event: "stage_done", Stage: st.Name, Seconds: time.Since(start).Seconds()}
		if err != nil {
			e.Event, e.Reason = "stage_failed", err.Error()
		}
		Emit(ctx, e)
	}()
	return st.Run(ctx, scope, in)
}

// Each calls fn for every item at once, cancels the rest at the first error,
// waits for all and joins the errors that are not just the cancellation. Results
// are in the order of the items.
func Each[T, R any](ctx context.Context, items []T, fn func(ctx context.Context, item T) (R, error)) ([]R, error) {
	out := make([]R, len(items))
	errs := make([]error, len(items))
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	p := pool.New()
	for i := range items {
		p.Go(func() {
			defer func() {
				if r := recover(); r != nil {
					errs[i] = Errorf(LayerInternal, "each", Nowhere, "panic: %v", r)
					cancel()
				}
			}()
			out[i], errs[i] = fn(ctx, items[i])
			if errs[i] != nil {
				cancel()
			}
		})
	}
	p.Wait()
	var first []error
	for _, e := range errs {
		if e != nil && !errors.Is(e, context.Canceled) {
			first = append(first, e)
		}
	}
	if len(first) == 0 {
		for _, e := range errs {
			if e != nil {
				return out, e
			}
		}
	}
	return out, errors.Join(first...)
}
