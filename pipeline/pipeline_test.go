package pipeline

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestScopeUndoesLastFirst(t *testing.T) {
	s := NewScope()
	var order []string
	for _, n := range []string{"a", "b", "c"} {
		s.DeferClose(n, func() error {
			order = append(order, n)
			if n == "b" {
				return errors.New("stuck")
			}
			return nil
		})
	}
	s.DeferClose("d", func() error { panic("boom") })
	err := s.Close(context.Background())
	if got := strings.Join(order, ""); got != "cba" {
		t.Errorf("order %s, want cba", got)
	}
	if err == nil || !strings.Contains(err.Error(), "b: stuck") || !strings.Contains(err.Error(), "d: panic: boom") {
		t.Errorf("err = %v", err)
	}
	if again := s.Close(context.Background()); again == nil || again.Error() != err.Error() || len(order) != 3 {
		t.Errorf("second close: %v, order %v", again, order)
	}
	ran := false
	s.DeferClose("late", func() error { ran = true; return nil })
	if !ran {
		t.Error("an undo step added after Close was lost")
	}
}

func TestRunNamesStageLayerAndPlace(t *testing.T) {
	cause := errors.New("no such device")
	st := Stage[int, string]{Name: "resolve", Layer: LayerResource, Run: func(context.Context, *Scope, int) (string, error) {
		return "", cause
	}}
	_, err := Run(context.Background(), NewScope(), st, 1)
	var pe *Error
	if !errors.As(err, &pe) || pe.Layer != LayerResource || pe.Op != "resolve" || !errors.Is(err, cause) {
		t.Fatalf("%#v", err)
	}
	st.Run = func(context.Context, *Scope, int) (string, error) {
		return "", Errorf(LayerDevice, "open", AtRail("a"), "%w", cause)
	}
	_, err = Run(context.Background(), NewScope(), st, 1)
	if !errors.As(err, &pe) || pe.Layer != LayerDevice || pe.Where.Rail != "a" || strings.Count(err.Error(), "no such device") != 1 {
		t.Fatalf("a typed error was told twice or changed: %v", err)
	}
	st.Run = func(context.Context, *Scope, int) (string, error) { panic("bug") }
	if _, err = Run(context.Background(), NewScope(), st, 1); err == nil || !strings.Contains(err.Error(), "panic: bug") {
		t.Fatalf("%v", err)
	}
}

func TestRunDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := Stage[int, int]{Name: "connect", Layer: LayerConnect, Deadline: 30 * time.Second, Run: func(ctx context.Context, _ *Scope, _ int) (int, error) {
			<-ctx.Done()
			return 0, fmt.Errorf("waiting for shard 1: %w", ctx.Err())
		}}
		var events []Event
		ctx := WithSink(t.Context(), func(e Event) { events = append(events, e) })
		_, err := Run(ctx, NewScope(), st, 0)
		if err == nil || !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "deadline of 30s") || !strings.Contains(err.Error(), "shard 1") {
			t.Fatalf("%v", err)
		}
		if len(events) != 2 || events[0].Event != "stage_start" || events[1].Event != "stage_failed" || events[1].Seconds != 30 {
			t.Fatalf("%+v", events)
		}
	})
}

func TestEachWaitsForAllAndJoins(t *testing.T) {
	var running, ended atomic.Int32
	_, err := Each(context.Background(), []int{0, 1, 2, 3}, func(ctx context.Context, i int) (int, error) {
		running.Add(1)
		defer ended.Add(1)
		if i == 2 {
			for running.Load() < 4 {
				time.Sleep(time.Millisecond)
			}
			return 0, errors.New("rail 2 is broken")
		}
		<-ctx.Done()
		return 0, ctx.Err()
	})
	if err == nil || err.Error() != "rail 2 is broken" {
		t.Errorf("err = %v", err)
	}
	if ended.Load() != 4 {
		t.Errorf("returned with %d of 4 ended", ended.Load())
	}
	out, err := Each(context.Background(), []int{1, 2, 3}, func(_ context.Context, i int) (int, error) { return i * i, nil })
	if err != nil || fmt.Sprint(out) != "[1 4 9]" {
		t.Errorf("%v %v", out, err)
	}
	if _, err = Each(context.Background(), []int{1}, func(context.Context, int) (int, error) { panic("x") }); err == nil {
		t.Error("a panic was lost")
	}
}

func TestWrapFillsOnlyWhatIsMissing(t *testing.T) {
	err := Wrap(Errorf(LayerDevice, "read", AtRail("b"), "bad"), LayerWait, "call", Where{Shard: 3, Lane: 1, Rail: "a"})
	var pe *Error
	if !errors.As(err, &pe) || pe.Layer != LayerDevice || pe.Where != (Where{Shard: 3, Lane: 1, Rail: "b"}) {
		t.Errorf("%+v", pe)
	}
	if got := err.Error(); got != "read: shard 3 lane 1 rail b: bad" {
		t.Errorf("%q", got)
	}
	if Wrap(nil, LayerWait, "x", Nowhere) != nil {
		t.Error("nil became an error")
	}
}
