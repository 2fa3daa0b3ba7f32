package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"time"

	"github.com/railstore/railstore/bin/exit"
	"github.com/railstore/railstore/pipeline"
)

// token is what ends calls from another thread.
type token struct {
	mu    sync.Mutex
	fired bool
	calls map[*calling]struct{}
}

func (t *token) fire() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.fired = true
	for c := range t.calls {
		c.cancel(exit.ErrInterrupted)
	}
}

// limits are how a call may end before it is done.
type limits struct {
	deadline time.Duration // 0: none
	token    *token        // nil: none
}

// limitsOf makes limits of what C says.
func limitsOf(op string, ms int64, cancel uint64) (l limits, err error) {
	if ms < 0 || ms > math.MaxInt64/int64(time.Millisecond) {
		return l, usage(op, nil, "a deadline of %d ms: want 0 for none, or a number above", ms)
	}
	l.deadline = time.Duration(ms) * time.Millisecond
	if cancel != 0 {
		l.token, err = get[*token](&handles, op, cancel)
	}
	return l, err
}

// calling is a call under way.
type calling struct {
	ctx    context.Context
	cancel context.CancelCauseFunc
	stop   context.CancelFunc
	token  *token
}

// lateError is the cause of a context whose deadline was the caller's.
type lateError struct{ after time.Duration }

func (e *lateError) Error() string { return fmt.Sprintf("not done within the deadline of %v", e.after) }
func (e *lateError) Is(target error) bool {
	return target == errLate || target == context.DeadlineExceeded
}

// errLate is every lateError.
var errLate = errors.New("late")

// begin starts a call's context below another one. The caller ends it.
func (l limits) begin(parent context.Context) *calling {
	c := &calling{token: l.token, stop: func() {}}
	c.ctx, c.cancel = context.WithCancelCause(parent)
	if l.deadline > 0 {
		c.ctx, c.stop = context.WithTimeoutCause(c.ctx, l.deadline, &lateError{l.deadline})
	}
	if t := l.token; t != nil {
		t.mu.Lock()
		defer t.mu.Unlock()
		if t.fired {
			c.cancel(exit.ErrInterrupted)
		} else {
			if t.calls == nil {
				t.calls = map[*calling]struct{}{}
			}
			t.calls[c] = struct{}{}
		}
	}
	return c
}

// end says why the call ended, when that was its caller's doing and not the failure's.
func (c *calling) end(op string, err error) error {
	if t := c.token; t != nil {
		t.mu.Lock()
		delete(t.calls, c)
		t.mu.Unlock()
	}
	err = ended(c.ctx, op, err)
	c.stop()
	c.cancel(nil)
	return err
}

// ended is err, or what ended the context that it failed under.
func ended(ctx context.Context, op string, err error) error {
	cause := context.Cause(ctx)
	if err == nil || cause == nil {
		return err
	}
	pe := pipeline.Errorf(pipeline.LayerWait, op, pipeline.Nowhere, "%w", cause)
	if text := err.Error(); !strings.Contains(text, cause.Error()) {
		pe.Err = fmt.Errorf("%w: %s", cause, text) // what it was at just then
	}
	return pe
}
