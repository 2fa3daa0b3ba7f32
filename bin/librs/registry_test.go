package main

import (
	"errors"
	"sync"
	"testing"

	"github.com/railstore/railstore/bin/exit"
	"github.com/railstore/railstore/stages/object"
)

func TestRegistry(t *testing.T) {
	var r registry
	x, y := &token{}, &token{}
	a, b := r.add(x), r.add(y)
	if a == b || a == 0 {
		t.Fatalf("handles %d and %d", a, b)
	}
	if got, err := get[*token](&r, "t", a); got != x || err != nil {
		t.Errorf("%p, %v", got, err)
	}
	for _, h := range []uint64{0, b + 1, 1 << 60} {
		if _, err := get[*token](&r, "t", h); exit.Of(err) != exit.Usage || kindOf(err) != "usage" {
			t.Errorf("handle %d that never was: %v", h, err)
		}
		if _, _, err := take[*token](&r, "t", h); exit.Of(err) != exit.Usage {
			t.Errorf("handle %d that never was is taken: %v", h, err)
		}
	}
	if _, err := get[*session](&r, "t", a); exit.Of(err) != exit.Usage || err.Error() != "t: 1 is no handle of a session" {
		t.Errorf("another thing's handle: %v", err)
	}
	if _, _, err := take[*object.LeasedBuffer](&r, "t", a); exit.Of(err) != exit.Usage {
		t.Errorf("another thing's handle is taken: %v", err)
	}
	if got, ok, err := take[*token](&r, "t", a); got != x || !ok || err != nil {
		t.Errorf("%p %v %v", got, ok, err)
	}
	if _, ok, err := take[*token](&r, "t", a); ok || err != nil {
		t.Errorf("taken twice: %v %v", ok, err)
	}
	if _, err := get[*token](&r, "t", a); !errors.Is(err, errClosed) || kindOf(err) != "closed" || exit.Of(err) != exit.Usage {
		t.Errorf("a handle that is over: %v", err)
	}
	if c := r.add(x); c == a || c == b {
		t.Errorf("handle %d is used again", c)
	}
}

// Two threads that close one thing: one does.
func TestRegistryTakenOnce(t *testing.T) {
	var r registry
	for range 100 {
		h := r.add(&token{})
		var mu sync.Mutex
		n := 0
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				if _, ok, err := take[*token](&r, "t", h); ok && err == nil {
					mu.Lock()
					n++
					mu.Unlock()
				}
			})
		}
		if wg.Wait(); n != 1 {
			t.Fatalf("taken %d times", n)
		}
	}
}
