package udp

import (
	"fmt"
	"hash/crc32"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"
)

type fixedSeal struct{}

func (fixedSeal) ICRC(uint16, []byte, [][]byte, int) uint32 { return 0 }

type crcSeal struct{}

func (crcSeal) ICRC(_ uint16, _ []byte, payload [][]byte, _ int) uint32 {
	return crc32.ChecksumIEEE(payload[0])
}

// BenchmarkTrains is the ceiling for a stream of full packets over loopback: a
// credit of window bytes, given back by the receiver through memory.
func BenchmarkTrains(b *testing.B) {
	const win = 1 << 20
	for _, work := range []bool{false, true} {
		for _, batch := range []int{1, 2, 4, 8} {
			b.Run(fmt.Sprintf("work=%v/recv=%d", work, batch), func(b *testing.B) {
				a := mustOpen(b, Config{Addr: netip.MustParseAddrPort("127.0.0.1:0")})
				c := mustOpen(b, Config{Addr: netip.MustParseAddrPort("127.0.0.1:0")})
				const total = 64 << 20
				src, dst := make([]byte, total), make([]byte, total)
				for i := range src {
					src[i] = byte(i)
				}
				var got atomic.Int64
				var stop atomic.Bool
				done := make(chan struct{})
				r, err := c.NewReceiver(16)
				if err != nil {
					b.Fatal(err)
				}
				go func() {
					defer close(done)
					off := 0
					for !stop.Load() {
						gs, err := r.Recv(batch)
						if err != nil {
							return
						}
						for _, g := range gs {
							n := 0
							for i := range Segments(len(g.Data), g.Seg) {
								p := Segment(g.Data, g.Seg, i)
								if work {
									crc32.ChecksumIEEE(p)
									copy(dst[off:], p[28:len(p)-4])
									off = (off + 4096) % total
								}
								n += 4096
							}
							got.Add(int64(n))
						}
					}
				}()
				d := a.NewDest(c.Addr(), DestOptions{})
				bt := NewBatch(16)
				var hdr [28]byte
				frags := make([][]byte, 15)
				var seal Sealer = fixedSeal{}
				if work {
					seal = crcSeal{}
				}
				b.SetBytes(total)
				b.ResetTimer()
				for i := 0; i < b.N; i++ {
					base := got.Load()
					sent := 0
					for sent < total {
						k := 0
						bt.Reset()
						for ; k < 15 && sent < total; k++ {
							frags[k] = src[sent : sent+4096]
							bt.Add(d, hdr[:], frags[k:k+1], 4096, 0)
							sent += 4096
						}
						for int(got.Load()-base) < sent-win {
						}
						if err := a.Send(bt, seal); err != nil {
							b.Fatal(err)
						}
					}
					dl := time.Now().Add(time.Second)
					for int(got.Load()-base) < total {
						if time.Now().After(dl) {
							b.Fatalf("%d missing, %+v", total-(got.Load()-base), c.Stats())
						}
					}
				}
				b.StopTimer()
				stop.Store(true)
				<-done
				b.ReportMetric(float64(c.Stats().RecvDrops), "drops")
			})
		}
	}
}

func mustOpen(t testing.TB, c Config) *Socket {
	t.Helper()
	s, err := Open(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}
