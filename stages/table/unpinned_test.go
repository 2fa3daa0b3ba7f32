package table

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"testing"
	"time"
)

// A store that is full for a pin has room as soon as the pin is let go, and who waits
// hears of it then.
func TestUnpinned(t *testing.T) {
	s, err := Open(Config{Memory: NewRegions(), Limit: 4 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	tb, err := s.Init(Spec{Name: "t", Dim: 256})
	if err != nil {
		t.Fatal(err)
	}
	keys := make([]uint64, 200)
	for i := range keys {
		keys[i] = uint64(i)
	}
	rows := make([]float32, len(keys)*256)
	if waited, err := s.Unpinned(context.Background()); err != nil || waited || tb.Retired() != 0 {
		t.Errorf("without pins: %v, waited %v, %d retired", err, waited, tb.Retired())
	}
	pin, other := s.Pin("a reader"), s.Pin("another")
	full := new(LimitError)
	for err = nil; !errors.As(err, &full); {
		if err = tb.Put(keys, rows); err != nil && !errors.As(err, &full) {
			t.Fatal(err)
		}
	}
	if tb.Retired() == 0 {
		t.Fatal("full without retired rows")
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	why := errors.New("why")
	cancel(why)
	if _, err := s.Unpinned(ctx); err != why {
		t.Errorf("a context that has ended: %v", err)
	}
	done := make(chan error)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		waited, err := s.Unpinned(ctx)
		if !waited {
			err = errors.New("it did not wait")
		}
		done <- err
	}()
	late := s.Pin("after it") // of rows that are there now: it keeps nobody
	other.Unpin()
	for s.epochs.waiting.Load() == 0 {
		runtime.Gosched()
	}
	select {
	case err := <-done:
		t.Errorf("a pin is held: %v", err)
	default:
	}
	pin.Unpin()
	if err := <-done; err != nil {
		t.Errorf("after the pin: %v", err)
	}
	if err := tb.Put(keys, rows); err != nil {
		t.Errorf("with room again: %v", err)
	}
	late.Unpin()
	if names := s.epochs.held(); slices.ContainsFunc(names, func(p PinInfo) bool { return p.Who != "" }) {
		t.Error(names)
	}
}
