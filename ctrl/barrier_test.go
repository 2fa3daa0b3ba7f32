package ctrl

import (
	"errors"
	"fmt"
	"testing"
	"time"
)

func barrierWorld(t *testing.T) *world {
	w := newWorld(t)
	w.join("shard/0", 1)
	w.join("client/a", 2)
	w.join("client/b", 3)
	return w
}

func (w *world) arrive(id NodeID, inc uint64, n int, ticket uint64) (bool, error) {
	return w.r.Arrive(w.now, id, inc, "go", n, ticket)
}

func TestBarrierPasses(t *testing.T) {
	w := barrierWorld(t)
	for round := uint64(1); round < 4; round++ {
		for i := range 3 { // asking again is no second arrival
			if ok, err := w.arrive("client/a", 2, 2, round); ok || err != nil {
				t.Fatalf("try %d: %v %v", i, ok, err)
			}
		}
		if ok, err := w.arrive("client/b", 3, 2, round); !ok || err != nil {
			t.Fatalf("%v %v", ok, err)
		}
		if ok, err := w.r.Outcome("client/a", "go", round); !ok || err != nil {
			t.Fatalf("%v %v", ok, err)
		}
		if ok, err := w.arrive("client/a", 2, 2, round); !ok || err != nil {
			t.Fatalf("a lost reply: %v %v", ok, err)
		}
	}
}

func TestBarrierBreaks(t *testing.T) {
	w := barrierWorld(t)
	_, _ = w.arrive("client/a", 2, 3, 1)
	_, _ = w.arrive("client/b", 3, 3, 1)
	w.must(w.note(w.r.Leave(w.now, "client/b", 3, "bye")))
	var be *BarrierError
	if _, err := w.r.Outcome("client/a", "go", 1); !errors.As(err, &be) || be.Reason != "client/b went away while waiting: bye" {
		t.Fatal(err)
	}
	if _, err := w.arrive("client/a", 2, 3, 1); !errors.As(err, &be) {
		t.Fatal(err)
	}
	if ok, err := w.arrive("client/a", 2, 1, 2); !ok || err != nil {
		t.Fatalf("the next round: %v %v", ok, err)
	}
}

func TestBarrierRefuses(t *testing.T) {
	w := barrierWorld(t)
	_, _ = w.arrive("client/a", 2, 3, 1)
	var be *BarrierError
	if _, err := w.arrive("client/b", 3, 2, 1); !errors.As(err, &be) {
		t.Errorf("another number of parties: %v", err)
	}
	if _, err := w.arrive("client/zz", 3, 3, 1); !errors.Is(err, ErrLeaseLost) {
		t.Errorf("a stranger: %v", err)
	}
	for _, n := range []int{0, -1, MaxParties + 1} {
		if _, err := w.arrive("client/b", 3, n, 1); err == nil {
			t.Errorf("%d parties are taken", n)
		}
	}
	if _, err := w.r.Arrive(w.now, "client/b", 3, "a\x00b", 1, 1); err == nil {
		t.Error("a control character is taken")
	}
}

func TestBarrierWithdraw(t *testing.T) {
	w := barrierWorld(t)
	_, _ = w.arrive("client/a", 2, 2, 1)
	if !w.r.Withdraw(w.now, "client/a", "go", 1) {
		t.Fatal("withdrawn too late")
	}
	if ok, _ := w.arrive("client/b", 3, 2, 1); ok {
		t.Fatal("passed with one who had withdrawn")
	}
	_, _ = w.arrive("client/a", 2, 2, 2)
	if w.r.Withdraw(w.now, "client/a", "go", 2) {
		t.Fatal("withdrawn after it was passed")
	}
}

func TestBarriersAreForgottenAndBounded(t *testing.T) {
	w := barrierWorld(t)
	for i := range MaxBarriers {
		if _, err := w.r.Arrive(w.now, "client/a", 2, fmt.Sprint("b", i), 2, 1); err != nil {
			t.Fatal(i, err)
		}
	}
	if _, err := w.r.Arrive(w.now, "client/a", 2, "one more", 2, 1); !errors.Is(err, ErrLimit) {
		t.Fatal(err)
	}
	w.must(w.note(w.r.Leave(w.now, "client/a", 2, "")))
	w.pass(barrierMemory + 2*time.Second)
	if len(w.r.barriers) != 0 {
		t.Fatalf("%d barriers are kept", len(w.r.barriers))
	}
}
