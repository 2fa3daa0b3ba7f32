package lane

import (
	"context"
	"errors"
	"testing"
	"time"
)

// Requests go where Sort says: to the poller, to the workers, to a pool. One that
// holds up its pool holds up nobody else.
func TestSort(t *testing.T) {
	modes(t, func(t *testing.T, o rigOptions) {
		release, began := make(chan struct{}), make(chan struct{}, 1)
		h := HandlerFunc(func(x *Exchange) {
			if x.Op() == 2 {
				began <- struct{}{}
				select {
				case <-release:
				case <-x.Context().Done():
				}
			}
			where := byte('w')
			if x.inline {
				where = 'p'
			}
			x.Response()[0] = where
			x.Reply(StatusOK, 1)
		})
		o.cfg.Slots, o.workers = 4, 1
		o.sort = func(op, _ uint16) int {
			switch op {
			case 1:
				return ToPoller
			case 2:
				return 1
			case 3:
				return ToWorkers
			}
			return 99 // no such pool: the workers
		}
		o.pools = []int{1}
		r := newRig(t, o, h)
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		held, err := r.pool.Start(ctx, Request{Op: 2})
		if err != nil {
			t.Fatal(err)
		}
		<-began
		for range 50 {
			for op, want := range map[uint16]byte{1: 'p', 3: 'w', 4: 'w'} {
				var b [1]byte
				if _, err := r.pool.Call(ctx, Request{Op: op, Payload: []byte("x")}, b[:]); err != nil || b[0] != want {
					t.Fatalf("op %d was served by %q (%v), want %q", op, b[0], err, want)
				}
			}
		}
		close(release)
		if rsp, err := held.Wait(ctx, nil); err != nil || rsp.Status != StatusOK {
			t.Fatal(rsp, err)
		}
	})
}

// TryStart never waits, and what it did not start took nothing.
func TestTryStart(t *testing.T) {
	release := make(chan struct{})
	r := newRig(t, rigOptions{workers: 2, cfg: Config{Slots: 2}}, HandlerFunc(func(x *Exchange) {
		select {
		case <-release:
		case <-x.Context().Done():
		}
		x.Reply(StatusOK, 0)
	}))
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	var ts []Ticket
	for i := range 5 {
		tk, ok, err := r.pool.TryStart(ctx, Request{})
		if err != nil || ok != (i < 2) {
			t.Fatalf("try %d: started %v, %v", i, ok, err)
		}
		if ok {
			ts = append(ts, tk)
		}
	}
	close(release)
	for _, tk := range ts {
		if _, err := tk.Wait(ctx, nil); err != nil {
			t.Fatal(err)
		}
	}
	if tk, ok, err := r.pool.TryStart(ctx, Request{}); !ok || err != nil {
		t.Fatalf("a slot is free: %v, %v", ok, err)
	} else if _, err := tk.Wait(ctx, nil); err != nil {
		t.Fatal(err)
	}
	if err := r.pool.Close(); err != nil {
		t.Fatal(err)
	}
	if _, ok, err := r.pool.TryStart(ctx, Request{}); ok || !errors.Is(err, ErrClosed) {
		t.Errorf("closed: %v, %v", ok, err)
	}
}
