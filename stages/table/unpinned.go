package table

import (
	"context"
	"sync"
)

// wakeUp wakes all who wait for the next time that something happens.
type wakeUp struct {
	mu   sync.Mutex
	next chan struct{} // closed then; nil: nobody asked
}

func (w *wakeUp) channel() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.next == nil {
		w.next = make(chan struct{})
	}
	return w.next
}

func (w *wakeUp) wake() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.next != nil {
		close(w.next)
		w.next = nil
	}
}

// Unpinned waits until everything that was replaced or deleted before the call may be
// used again: until the pins that are held now, those of running calls among them, have
// been let go. It tells whether there was anything to wait for, and ends with ctx.
func (s *Store) Unpinned(ctx context.Context) (waited bool, _ error) {
	e := &s.epochs
	// What was retired has an epoch before this one.
	until := e.now.Load()
	e.waiting.Add(1)
	defer e.waiting.Add(-1)
	for ; ; waited = true {
		next := e.left.channel()
		if e.oldest() >= until {
			return waited, nil
		}
		select {
		case <-next:
		case <-ctx.Done():
			return true, context.Cause(ctx)
		}
	}
}

// Retired counts the rows that were replaced or deleted and are not to be used again yet:
// for pins, or because nobody has needed room since.
func (t *Table) Retired() int {
	b := t.body.Load()
	if b == nil {
		return 0
	}
	b.slab.mu.Lock()
	defer b.slab.mu.Unlock()
	return b.slab.retired.n
}
