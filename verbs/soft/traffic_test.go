package soft

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/railstore/railstore/verbs"
	"github.com/railstore/railstore/verbs/verbstest"
)

// TestBig moves messages of many trains through every way packets can take.
func TestBig(t *testing.T) {
	const size = 24<<20 + 1237
	for mode := range 8 {
		o := Options{NoGSO: mode&1 != 0, NoGRO: mode&2 != 0}
		if mode&4 != 0 {
			o.ActiveMTU = 1024
		}
		t.Run(fmt.Sprintf("gso=%v/gro=%v/mtu=%d", !o.NoGSO, !o.NoGRO, o.ActiveMTU), func(t *testing.T) {
			r := verbstest.Seed(t)
			p := verbstest.Fixture{Size: size}.New(t, openPair(o, "127.0.0.1", "127.0.0.2"))
			verbstest.Fill(r, p.A.Bytes())
			p.A.Write(1, 1, size-1, p.B, 1, verbs.Signaled)
			p.A.OK(1)
			if !bytes.Equal(p.A.Bytes()[1:], p.B.Bytes()[1:]) {
				t.Fatal("the WRITE arrived otherwise")
			}
			verbstest.Fill(r, p.B.Bytes())
			addr, rkey := p.B.At(3)
			p.A.Send(verbs.SendWR{ID: 2, Op: verbs.OpRead, RemoteAddr: addr, RKey: rkey, Flags: verbs.Signaled}, p.A.SGE(3, size-3))
			p.A.OK(2)
			if !bytes.Equal(p.A.Bytes()[3:], p.B.Bytes()[3:]) {
				t.Fatal("the READ brought something else")
			}
			verbstest.Fill(r, p.A.Bytes())
			p.B.Recv(3, p.B.SGE(0, size))
			p.A.Send(verbs.SendWR{ID: 3, Op: verbs.OpSend, Flags: verbs.Signaled}, p.A.SGE(0, 100), p.A.SGE(100, size-100))
			p.A.OK(3)
			p.B.OK(3)
			if !bytes.Equal(p.A.Bytes(), p.B.Bytes()) {
				t.Fatal("the SEND arrived otherwise")
			}
			for _, s := range []*verbstest.Side{p.A, p.B} {
				if c := deviceOf(s.Ctx).count(); c.BadICRC+c.Malformed != 0 {
					t.Errorf("%s: %+v", s.Name, c)
				}
			}
		})
	}
}

// linkPair connects one more QP of each side; the first completes into cq.
func linkPair(t *testing.T, p *verbstest.Pair, cq *verbs.CQ) (a, b *verbs.QP) {
	t.Helper()
	qps := [2]*verbs.QP{}
	var eps [2]verbs.Endpoint
	for i, s := range []*verbstest.Side{p.A, p.B} {
		to := s.CQ
		if i == 0 {
			to = cq
		}
		q, err := s.PD.CreateQP(verbs.QPInit{SendCQ: to, RecvCQ: to, Cap: s.Fix.Cap})
		if err != nil {
			t.Fatal(err)
		}
		if eps[i], err = s.EndpointOf(q); err != nil {
			t.Fatal(err)
		}
		qps[i] = q
	}
	for i, q := range qps {
		if err := q.Connect(eps[i], eps[1-i], verbs.PathOpts{Access: verbstest.All, RetryCount: 7, RNRRetry: 7, Timeout: 18}, nil); err != nil {
			t.Fatal(err)
		}
	}
	return qps[0], qps[1]
}

// TestManyQPs runs many connections of one pair of devices at once; every one has
// its own piece of memory and its own poster. The smaller buffer is what a process
// without privileges gets on many systems: then some is lost and sent again.
func TestManyQPs(t *testing.T) {
	t.Run("large_buffer", func(t *testing.T) { manyQPs(t, Options{}) })
	t.Run("small_buffer", func(t *testing.T) { manyQPs(t, Options{RecvBuffer: 212992}) })
}

func manyQPs(t *testing.T, o Options) {
	const qps, rounds, piece = 150, 12, 24 << 10
	p := verbstest.Fixture{Size: qps * piece, Depth: 4096}.New(t, openPair(o, "127.0.0.1", "127.0.0.2"))
	verbstest.Fill(verbstest.Seed(t), p.A.Bytes())
	base, rkey := p.B.At(0)
	var posted [qps]*verbs.QP
	for i := range posted {
		a, b := linkPair(t, p, p.A.CQ)
		posted[i] = a
		t.Cleanup(func() {
			if err := a.Close(); err != nil {
				t.Error(err)
			}
			if err := b.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	var wg sync.WaitGroup
	for i, q := range posted {
		wg.Go(func() {
			for round := range rounds {
				off := i * piece
				wr := []verbs.SendWR{{ID: verbs.WRID(i), Op: verbs.OpWrite, RemoteAddr: base + uint64(off), RKey: rkey, NumSGE: 1, Flags: verbs.Signaled}}
				if n, err := q.PostSend(wr, []verbs.SGE{p.A.SGE(off, piece-round)}); n != 1 || err != nil {
					t.Errorf("QP %d: %v", i, err)
				}
			}
		})
	}
	var count [qps]int
	start := time.Now()
	for _, w := range p.A.Wait(qps * rounds) {
		if w.Status != verbs.WCSuccess {
			t.Fatalf("%+v after %v: %+v; here %+v; there %+v", w, time.Since(start), posted[w.ID].Stats(), deviceOf(p.A.Ctx).count(), deviceOf(p.B.Ctx).count())
		}
		count[w.ID]++
	}
	wg.Wait()
	for i, n := range count {
		if n != rounds {
			t.Errorf("QP %d completed %d of %d", i, n, rounds)
		}
	}
	if !bytes.Equal(p.A.Bytes(), p.B.Bytes()) {
		t.Error("the memories differ")
	}
	resent := uint64(0)
	for _, q := range posted {
		resent += q.Stats().Retransmits
	}
	c := deviceOf(p.B.Ctx).count()
	t.Logf("%d packets, %d sent again, %d datagrams dropped by the socket of %d bytes", c.Packets, resent, c.RecvDrops, c.RecvBuffer)
}

// TestMemoryChurn registers and deregisters memory while other memory is in use,
// and while a peer writes into what goes away: nothing lands in it afterwards.
func TestMemoryChurn(t *testing.T) {
	const size = 256 << 10
	p := verbstest.Fixture{Size: size}.New(t, openPair(Options{}, "127.0.0.1", "127.0.0.2"))
	var stop atomic.Bool
	var wg sync.WaitGroup
	wg.Go(func() { // steady traffic that must not be disturbed
		for i := uint64(1); !stop.Load(); i++ {
			p.A.Write(verbs.WRID(i), 0, size, p.B, 0, verbs.Signaled)
			p.A.OK(verbs.WRID(i))
		}
	})
	// What is written to a region that is gone fails, which is nobody's business.
	spare, err := p.A.Ctx.CreateCQ(1024)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := spare.Close(); err != nil {
			t.Error(err)
		}
	})
	seen := map[uint32]bool{}
	for round := range 60 {
		region, err := verbs.MapRegion(size)
		if err != nil {
			t.Fatal(err)
		}
		mr, err := p.B.PD.Register(region, verbstest.All)
		if err != nil {
			t.Fatal(err)
		}
		if k := mr.RKey(); seen[k] || mr.LKey() == k {
			t.Fatalf("round %d: key %#x again", round, k)
		}
		seen[mr.RKey()] = true
		a, b := linkPair(t, p, spare)
		r := mr.Remote()
		one := func() {
			wr := []verbs.SendWR{{Op: verbs.OpWrite, RemoteAddr: r.Addr, RKey: r.RKey, NumSGE: 1}}
			_, _ = a.PostSend(wr, []verbs.SGE{p.A.SGE(0, size)})
		}
		for range 4 {
			one()
		}
		if round%3 == 0 { // once in a while let some of it land
			until(t, "the first byte", func() bool {
				return verbs.LoadWord(region.Bytes()[size/2&^7:]) == verbs.LoadWord(p.A.Bytes()[size/2&^7:])
			})
		}
		if err := mr.Close(); err != nil {
			t.Fatal(err)
		}
		m := region.Bytes()
		for i := range m {
			m[i] = 0x77
		}
		one()
		for i := 0; i < 200; i++ {
			p.A.Ctx.Progress()
		}
		for i, v := range m {
			if v != 0x77 {
				t.Fatalf("round %d: byte %d was written after the MR was closed", round, i)
			}
		}
		for _, q := range []*verbs.QP{a, b} {
			if err := q.Close(); err != nil {
				t.Fatal(err)
			}
		}
		if err := region.Close(); err != nil {
			t.Fatal(err)
		}
	}
	stop.Store(true)
	wg.Wait()
}

// TestPollersShare: many goroutines poll, post and sleep on one pair of devices.
func TestPollersShare(t *testing.T) {
	p := verbstest.Fixture{Size: 1 << 20, Depth: 2048}.New(t, openPair(Options{}, "127.0.0.1", "127.0.0.2"))
	var stop atomic.Bool
	var wg sync.WaitGroup
	for range 3 {
		for _, s := range []*verbstest.Side{p.A, p.B} {
			wg.Go(func() {
				for !stop.Load() {
					s.Ctx.Progress()
				}
			})
		}
	}
	seed := verbstest.Seed(t)
	a, b := seed.Uint64(), seed.Uint64()
	r := rand.New(rand.NewPCG(a, b))
	for i := range 300 {
		n := 1 + r.IntN(1<<17)
		p.A.Write(verbs.WRID(i), 0, n, p.B, 0, verbs.Signaled)
		p.A.OK(verbs.WRID(i))
	}
	stop.Store(true)
	wg.Wait()
}

// TestNoAllocations: posting, sending, receiving, answering and polling allocate
// nothing once they have run.
func TestNoAllocations(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	for _, size := range []int{8, 64, 4096, 200 << 10} {
		for _, op := range []verbs.Opcode{verbs.OpWrite, verbs.OpRead, verbs.OpSend, verbs.OpFAA} {
			if op == verbs.OpFAA && size != 8 {
				continue
			}
			t.Run(fmt.Sprintf("%v/%d", op, size), func(t *testing.T) {
				p := verbstest.Fixture{Size: 256 << 10}.New(t, openPair(Options{}, "127.0.0.1", "127.0.0.2"))
				addr, rkey := p.B.At(0)
				wr := []verbs.SendWR{{Op: op, RemoteAddr: addr, RKey: rkey, NumSGE: 1, Flags: verbs.Signaled}}
				sge := []verbs.SGE{p.A.SGE(0, size)}
				rwr, rsge := []verbs.RecvWR{{NumSGE: 1}}, []verbs.SGE{p.B.SGE(0, size)}
				wcs := make([]verbs.WC, 8)
				one := func() {
					if op == verbs.OpSend {
						if _, err := p.B.QP.PostRecv(rwr, rsge); err != nil {
							t.Fatal(err)
						}
					}
					if _, err := p.A.QP.PostSend(wr, sge); err != nil {
						t.Fatal(err)
					}
					for got := 0; got == 0; {
						p.B.Ctx.Progress()
						got, _ = p.A.CQ.Poll(wcs)
					}
					if wcs[0].Status != verbs.WCSuccess {
						t.Fatal(wcs[0].Status)
					}
					for op == verbs.OpSend {
						if n, _ := p.B.CQ.Poll(wcs); n > 0 {
							break
						}
					}
				}
				for range 50 {
					one()
				}
				if n := testing.AllocsPerRun(200, one); n != 0 {
					t.Errorf("%v allocations each", n)
				}
			})
		}
	}
}
