package lane

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/railstore/railstore/verbs"
	"github.com/railstore/railstore/verbs/ibv"
	"github.com/railstore/railstore/verbs/soft"
)

// TestDetectionTimes measures how long a caller waits for the news that its peer is
// gone, with the usual time-outs of a QP. What counts is which layer tells it; the
// times are for the log.
func TestDetectionTimes(t *testing.T) {
	names, real := deviceNames(t)
	open, most := func() verbs.Driver { return soft.New(soft.Options{}) }, uint8(7)
	if real {
		open, most = func() verbs.Driver { return ibv.New(ibv.Options{}) }, 6 // 7 is for ever on rxe
	}
	rounds := 3
	if testing.Short() {
		rounds = 1
	}
	for _, c := range []struct {
		what  string
		retry uint8
		cfg   Config
		acked bool // the peer goes after it acknowledged the request
		layer Layer
		ibv   bool // on RDMA devices only
	}{
		{"gone before the request", most, Config{}, false, LayerDevice, false},
		{"gone after its ACK", most, Config{}, true, LayerDevice, false},
		{"gone after its ACK, touched first after 1 s", most, Config{TouchAfter: time.Second}, true, LayerDevice, false},
		{"gone after its ACK, timeout 14, retry 1", 1, Config{}, true, LayerDevice, false},
		{"gone after its ACK, retries for ever", 7, Config{}, true, LayerTracked, true},
		{"gone after its ACK, retries for ever, touch time-out 500 ms", 7, Config{TouchTimeout: 500 * time.Millisecond}, true, LayerTracked, true},
	} {
		if c.ibv && !real {
			continue
		}
		t.Run(c.what, func(t *testing.T) {
			var took []time.Duration
			for range rounds {
				h := newHeld()
				r := newRig(t, rigOptions{cfg: c.cfg, driver: open(), names: names, workers: 1, path: verbs.PathOpts{RetryCount: c.retry, RNRRetry: 7, Timeout: 14}}, h)
				if !c.acked {
					if err := r.served[0].Close(); err != nil {
						t.Fatal(err)
					}
				}
				start := time.Now()
				tk, err := r.pool.Start(context.Background(), Request{})
				if err != nil {
					t.Fatal(err)
				}
				if c.acked {
					<-h.in
					if err := r.served[0].Close(); err != nil {
						t.Fatal(err)
					}
				}
				_, err = tk.Wait(context.Background(), nil)
				took = append(took, time.Since(start))
				wantLayer(t, err, c.layer, nil)
			}
			slices.Sort(took)
			t.Logf("%v to %v", took[0].Round(time.Millisecond), took[len(took)-1].Round(time.Millisecond))
		})
	}
}
