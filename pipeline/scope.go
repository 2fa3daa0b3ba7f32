package pipeline

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

// Scope owns what stages acquired. Close undoes it, last first.
type Scope struct {
	mu     sync.Mutex
	undo   []undoEntry
	closed bool
	done   chan struct{}
	err    error
}

type undoEntry struct {
	what string
	fn   func(context.Context) error
}

// NewScope makes an empty scope.
func NewScope() *Scope { return &Scope{done: make(chan struct{})} }

// Defer adds an undo step; what names it in errors. On a closed scope the step
// runs at once, so that nothing acquired late is lost.
func (s *Scope) Defer(what string, fn func(context.Context) error) {
	s.mu.Lock()
	if !s.closed {
		s.undo = append(s.undo, undoEntry{what, fn})
		s.mu.Unlock()
		return
	}
	s.mu.Unlock()
	_ = fn(context.Background())
}

// DeferClose adds a step that takes no context.
func (s *Scope) DeferClose(what string, fn func() error) {
	s.Defer(what, func(context.Context) error { return fn() })
}

// Close runs every step, last first, also when some fail, and joins the errors.
// It is idempotent; a second caller waits for the first and gets its error. ctx
// is handed to the steps: one that waits for peers bounds its wait by it.
func (s *Scope) Close(ctx context.Context) error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		<-s.done
		return s.err
	}
	s.closed = true
	undo := s.undo
	s.undo = nil
	s.mu.Unlock()
	var errs []error
	for i := len(undo) - 1; i >= 0; i-- {
		if err := runUndo(ctx, undo[i]); err != nil {
			errs = append(errs, err)
		}
	}
	s.err = errors.Join(errs...)
	close(s.done)
	return s.err
}

func runUndo(ctx context.Context, u undoEntry) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%s: panic: %v", u.what, r)
		}
	}()
	if err := u.fn(ctx); err != nil {
		return fmt.Errorf("%s: %w", u.what, err)
	}
	return nil
}
