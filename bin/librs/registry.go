package main

import (
	"sync"

	"github.com/railstore/railstore/pipeline"
)

// registry gives the numbers that C holds in place of pointers. None is used twice, so
// that one which is over is told from one that never was.
type registry struct {
	mu   sync.Mutex
	last uint64
	live map[uint64]any
}

func (r *registry) add(v any) uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.live == nil {
		r.live = map[uint64]any{}
	}
	r.last++
	r.live[r.last] = v
	return r.last
}

// get gives what a number stands for.
func get[T any](r *registry, op string, h uint64) (v T, err error) {
	r.mu.Lock()
	x, ok := r.live[h]
	over := !ok && h != 0 && h <= r.last
	r.mu.Unlock()
	if over {
		return v, usage(op, errClosed, "handle %d was closed", h)
	}
	v, ok = x.(T)
	if !ok {
		return v, usage(op, nil, "%d is no handle of a %s", h, noun[T]())
	}
	return v, nil
}

// take is get for the last time: whoever closes the thing. ok is false when that was
// done before.
func take[T any](r *registry, op string, h uint64) (v T, ok bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	x, found := r.live[h]
	if !found && h != 0 && h <= r.last {
		return v, false, nil
	}
	v, ok = x.(T)
	if !ok {
		return v, false, usage(op, nil, "%d is no handle of a %s", h, noun[T]())
	}
	delete(r.live, h)
	return v, true, nil
}

func noun[T any]() string {
	switch any(*new(T)).(type) {
	case *session:
		return "session"
	case *token:
		return "cancel"
	}
	return "lease"
}

// usage is a call that makes no sense.
func usage(op string, kind error, format string, args ...any) error {
	e := pipeline.Errorf(pipeline.LayerUsage, op, pipeline.Nowhere, format, args...)
	if kind != nil {
		e.Err = kinded{e.Err, kind}
	}
	return e
}

// kinded is an error with a sentinel that its text does not have.
type kinded struct {
	error
	kind error
}

func (k kinded) Unwrap() []error { return []error{k.error, k.kind} }
