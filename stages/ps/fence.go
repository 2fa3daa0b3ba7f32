package ps

import (
	"context"
	"sync"
)

// fence tells when everything has ended that began before a moment. Nothing waits to
// begin.
type fence struct {
	mu   sync.Mutex
	now  *phase
	past []*phase // sealed, with something under way
}

// phase is what began between two moments.
type phase struct {
	n     int
	ended chan struct{} // nil until it is sealed
}

func (f *fence) enter() *phase {
	f.mu.Lock()
	if f.now == nil {
		f.now = new(phase)
	}
	p := f.now
	p.n++
	f.mu.Unlock()
	return p
}

func (f *fence) leave(p *phase) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if p.n--; p.n > 0 || p.ended == nil {
		return
	}
	close(p.ended)
	for i, q := range f.past {
		if q == p {
			f.past = append(f.past[:i], f.past[i+1:]...)
			return
		}
	}
}

// wait returns when all that entered before has left.
func (f *fence) wait(ctx context.Context) error {
	f.mu.Lock()
	if f.now != nil && f.now.n > 0 {
		f.now.ended = make(chan struct{})
		f.past = append(f.past, f.now)
		f.now = nil
	}
	past := append([]*phase(nil), f.past...)
	f.mu.Unlock()
	for _, p := range past {
		select {
		case <-p.ended:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}
