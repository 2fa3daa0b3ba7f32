package lane

import (
	"context"
	"testing"
	"time"

	"github.com/railstore/railstore/verbs"
	"github.com/railstore/railstore/verbs/verbstest"
)

// TestPeerGoneWhileWaiting: the server's QP vanishes when every WRITE of the
// request has been acknowledged. Nobody else calls, and nobody is asked; the wait
// finds out by itself, long before its time is over.
func TestPeerGoneWhileWaiting(t *testing.T) {
	for _, notify := range []Notify{Scan, Imm, Adaptive} {
		t.Run(notify.String(), func(t *testing.T) {
			h := newHeld()
			cfg := Config{Notify: notify, WaitTimeout: 30 * time.Second, TouchAfter: 10 * time.Millisecond, TouchEvery: 10 * time.Millisecond}
			r := newRig(t, rigOptions{cfg: cfg, workers: 1, path: verbs.PathOpts{RetryCount: 1, RNRRetry: 7, Timeout: 10}}, h)
			tk, err := r.pool.Start(context.Background(), Request{})
			if err != nil {
				t.Fatal(err)
			}
			<-h.in
			if err := r.served[0].Close(); err != nil {
				t.Fatal(err)
			}
			start := time.Now()
			_, err = tk.Wait(context.Background(), nil)
			wantLayer(t, err, LayerDevice, verbs.WCRetryExceeded)
			if took := time.Since(start); took > 15*time.Second || !r.lanes[0].Flags().Rebuildable {
				t.Fatalf("after %v, flags %+v", took, r.lanes[0].Flags())
			}
		})
	}
}

// TestCorruptStatusWord: a bit of the status word flips where no checksum of the
// transport sees it. The caller does not wait for its whole time.
func TestCorruptStatusWord(t *testing.T) {
	for _, notify := range []Notify{Scan, Imm, Adaptive} {
		t.Run(notify.String(), func(t *testing.T) {
			h := newHeld()
			r := newRig(t, rigOptions{cfg: Config{Notify: notify, WaitTimeout: 30 * time.Second}, workers: 1}, h)
			for bit := range 64 {
				tk, err := r.pool.Start(context.Background(), Request{})
				if err != nil {
					t.Fatal(err)
				}
				<-h.in
				s := &r.lanes[0].slots[0]
				verbs.StoreWord(s.word, uint64(makeWord(s.seq.Load(), uint16(r.lanes[0].gen), wordDone))^1<<bit)
				_, err = tk.Wait(context.Background(), nil)
				wantLayer(t, err, LayerIntegrity, ErrBadResponse)
				if bit < 63 {
					r.rebuild(uint32(1000+bit), uint32(2000+bit))
				}
			}
		})
	}
}

// TestLostReceive: the server's completion of a request is lost. The touch of the
// call that waits makes it look at the slot.
func TestLostReceive(t *testing.T) {
	for _, notify := range []Notify{Imm, Adaptive} {
		t.Run(notify.String(), func(t *testing.T) {
			f := verbstest.NewFault(verbstest.NewLoop(verbstest.LoopOptions{}))
			cfg := Config{Notify: notify, TouchAfter: 10 * time.Millisecond, TouchEvery: 10 * time.Millisecond, WaitTimeout: 30 * time.Second}
			r := newRig(t, rigOptions{driver: f, cfg: cfg, workers: 1}, echo)
			if _, err := r.pool.Call(context.Background(), Request{}, nil); err != nil {
				t.Fatal(err)
			}
			server := r.served[0].QPN()
			lost := false
			f.DropCompletions(func(wc verbs.WC) bool {
				if lost || wc.QPN != server || wc.Flags&verbs.WCWithImm == 0 {
					return false
				}
				lost = true
				return true
			})
			start := time.Now()
			if _, err := r.pool.Call(context.Background(), Request{}, nil); err != nil || !lost {
				t.Fatalf("%v, a completion was lost: %v", err, lost)
			}
			if took := time.Since(start); took > 20*time.Second {
				t.Fatalf("it took %v", took)
			}
		})
	}
}

// TestTouchesDoNotFillTheQueue: a slow server is touched many times, and its lane
// works on.
func TestTouchesDoNotFillTheQueue(t *testing.T) {
	h := newHeld()
	cfg := Config{TouchAfter: time.Microsecond, TouchEvery: time.Microsecond}
	r := newRig(t, rigOptions{cfg: cfg, workers: 1}, h)
	for range 20 {
		go func() {
			<-h.in
			<-time.After(5 * time.Millisecond) // the slow server
			h.goOn <- struct{}{}
		}()
		if _, err := r.pool.Call(context.Background(), Request{Payload: []byte("x")}, make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
	}
}
