//go:build cgo && linux

package ibv

import (
	"os"
	"strings"
	"testing"

	"github.com/railstore/railstore/verbs"
)

// The library destroys a QP or a CQ only when every event about it is acknowledged:
// that must not need what who destroys it holds.
func TestDestroyWithEventsOutstanding(t *testing.T) {
	f := newFake(t)
	t.Setenv("FAKE_SLOW_ACK", "5")
	const rounds = 10
	for i, number := range []string{"0", "1", "2", "3", "4"} {
		t.Setenv("FAKE_EVENT", number)
		for range rounds {
			b := f.bare()
			if err := b.qp.Modify(&verbs.QPAttr{State: verbs.QPErr}, verbs.MaskState); err != nil {
				t.Fatal(err)
			}
			b.close(t)
			// What was read before the device closed is still there to be taken. It was
			// acknowledged as it was read: its CQ may be gone when it is handed on, and
			// then the event names none.
			e, ok := <-b.dev.Events()
			if !ok || e.Type.OfQP() != (i > 0) || i > 0 && e.QPN != b.qp.QPN() || i == 0 && e.CQ != nil && e.CQ != b.cq {
				t.Errorf("%+v %v", e, ok)
			}
		}
	}
	log, err := os.ReadFile(os.Getenv("FAKE_LOG"))
	if err != nil {
		t.Fatal(err)
	}
	// In the order of the log no QP or CQ goes while an event of it is outstanding.
	acks, qps, cqs := 0, 0, 0
	for l := range strings.Lines(string(log)) {
		switch strings.TrimSpace(l) {
		case "- async-event":
			acks++
		case "- qp":
			if qps++; qps > acks && qps > rounds {
				t.Fatalf("QP %d was destroyed after %d acknowledgements", qps, acks)
			}
		case "- cq":
			if cqs++; cqs > acks {
				t.Fatalf("CQ %d was destroyed after %d acknowledgements", cqs, acks)
			}
		}
	}
	if acks != 5*rounds || qps != acks || cqs != acks {
		t.Errorf("%d acknowledgements, %d QPs, %d CQs; want %d each", acks, qps, cqs, 5*rounds)
	}
}
