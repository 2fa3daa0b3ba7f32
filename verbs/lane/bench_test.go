package lane

import (
	"context"
	"fmt"
	"testing"
)

func benchRig(b *testing.B, o rigOptions) *rig {
	b.Helper()
	o.noLeak = true
	if o.cfg.RequestBytes == 0 {
		o.cfg.RequestBytes, o.cfg.ResponseBytes = 8192, 8192
	}
	return newRig(b, o, echo)
}

// BenchmarkCall is one call at a time: the round trip.
func BenchmarkCall(b *testing.B) {
	for _, p := range providers {
		for _, notify := range []Notify{Adaptive, Imm, Scan} {
			for _, size := range []int{0, 64, 4096} {
				b.Run(fmt.Sprintf("provider=%s/notify=%v/size=%d", p.name, notify, size), func(b *testing.B) {
					r := benchRig(b, rigOptions{driver: p.open(), cfg: Config{Notify: notify}})
					payload, buf := make([]byte, size), make([]byte, size)
					ctx := context.Background()
					b.ReportAllocs()
					b.SetBytes(int64(2 * size))
					for b.Loop() {
						if _, err := r.pool.Call(ctx, Request{Payload: payload}, buf); err != nil {
							b.Fatal(err)
						}
					}
				})
			}
		}
	}
}

// BenchmarkInFlight has several calls under way, by one goroutine.
func BenchmarkInFlight(b *testing.B) {
	for _, p := range providers {
		for _, workers := range []int{0, 1} {
			for _, depth := range []int{1, 2, 4, 8, 16} {
				b.Run(fmt.Sprintf("provider=%s/workers=%d/inflight=%d", p.name, workers, depth), func(b *testing.B) {
					r := benchRig(b, rigOptions{driver: p.open(), workers: workers, cfg: Config{Slots: depth}})
					payload, buf := make([]byte, 64), make([]byte, 64)
					ctx := context.Background()
					tickets := make([]Ticket, depth)
					b.ReportAllocs()
					n := 0
					for b.Loop() {
						k := n % depth
						if n >= depth {
							if _, err := tickets[k].Wait(ctx, buf); err != nil {
								b.Fatal(err)
							}
						}
						var err error
						if tickets[k], err = r.pool.Start(ctx, Request{Payload: payload}); err != nil {
							b.Fatal(err)
						}
						n++
					}
					b.StopTimer()
					b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "calls/s")
					for k := range min(n, depth) {
						if _, err := tickets[k].Wait(ctx, buf); err != nil {
							b.Fatal(err)
						}
					}
				})
			}
		}
	}
}

// BenchmarkChecksum is what the checksums of a payload cost, once a side.
func BenchmarkChecksum(b *testing.B) {
	for _, n := range []int{64, 4096, 256 << 10} {
		b.Run(fmt.Sprintf("size=%d", n), func(b *testing.B) {
			head, p := make([]byte, descBytes), make([]byte, n)
			b.SetBytes(int64(n))
			for b.Loop() {
				sum(head, p, false)
			}
		})
	}
}
