package rxe

import (
	"fmt"
	"testing"

	"github.com/railstore/railstore/verbs"
	"github.com/railstore/railstore/verbs/perf"
)

// TestInsidePerf: every measurement of package perf runs between two rxe devices.
// How fast is asked by TestGuestSpeed.
func TestInsidePerf(t *testing.T) {
	inside(t)
	for _, op := range []verbs.Opcode{verbs.OpWrite, verbs.OpRead, verbs.OpSend} {
		for _, kind := range []perf.Kind{perf.Bandwidth, perf.Latency} {
			for _, size := range []int{1, 64, 4096, 1 << 20} {
				test := perf.Test{Op: op, Kind: kind, Size: size, Iters: 20, Warmup: 2, Depth: 8, QPs: 1}
				if kind == perf.Bandwidth {
					test.QPs = 3
				}
				t.Run(fmt.Sprintf("%s/%d", test.Name(), size), func(t *testing.T) {
					if v := ourIBV(test)(t); v <= 0 {
						t.Errorf("measured %v", v)
					}
				})
			}
		}
	}
}
