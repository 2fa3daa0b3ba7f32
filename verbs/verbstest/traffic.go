package verbstest

import (
	"bytes"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/railstore/railstore/verbs"
)

var trafficCases = []namedCase{
	{"model", caseModel},
	{"both_ways", caseBothWays},
}

// caseModel posts random WRITEs, READs and additions and compares both memories
// with a model that executes them in order.
func caseModel(t *testing.T, open Open) {
	const size = 1 << 15
	r := Seed(t)
	p := Fixture{Size: size}.New(t, open)
	Fill(r, p.A.Bytes())
	Fill(r, p.B.Bytes())
	a, b := bytes.Clone(p.A.Bytes()), bytes.Clone(p.B.Bytes())
	base, rkey := p.B.At(0)
	// A's first half is only sent from and its second half only received into, and
	// every request is fenced: the order of an earlier READ and a later WRITE, at
	// either end, is not promised without (IBTA 10.8.3.3, table 76).
	for round := range 60 {
		n := 1 + r.IntN(p.A.Fix.Cap.MaxSendWR)
		wrs, sges := make([]verbs.SendWR, n), make([]verbs.SGE, n)
		recvAt := size / 2
		for i := range wrs {
			wrs[i] = verbs.SendWR{ID: verbs.WRID(i), RKey: rkey, NumSGE: 1, Flags: verbs.Fence}
			off, k := r.IntN(size/2), r.IntN(200)
			if r.IntN(8) == 0 {
				k = r.IntN(size / 4)
			}
			switch op := r.IntN(5); {
			case op < 3:
				from := r.IntN(size/2 - k + 1)
				off = r.IntN(size - k + 1)
				wrs[i].Op, sges[i] = verbs.OpWrite, p.A.SGE(from, k)
				copy(b[off:off+k], a[from:from+k])
			case op == 3 && recvAt+k <= size:
				wrs[i].Op, sges[i] = verbs.OpRead, p.A.SGE(recvAt, k)
				copy(a[recvAt:recvAt+k], b[off:off+k])
				recvAt += k
			default:
				off &^= 7
				to := (recvAt + 7) &^ 7
				if to+8 > size {
					to = size - 8
				}
				recvAt = min(size, to+8)
				wrs[i].Op, wrs[i].CompareAdd, sges[i] = verbs.OpFAA, uint64(r.Uint32()), p.A.SGE(to, 8)
				old := leWord(b[off:])
				putWord(a[to:], old)
				putWord(b[off:], old+wrs[i].CompareAdd)
			}
			wrs[i].RemoteAddr = base + uint64(off)
		}
		wrs[n-1].Flags |= verbs.Signaled
		if k, err := p.A.QP.PostSend(wrs, sges); k != n || err != nil {
			t.Fatalf("round %d: %d of %d taken, %v", round, k, n, err)
		}
		p.A.OK(wrs[n-1].ID)
		if d := firstDiff(p.B.Bytes(), b); d != size {
			t.Fatalf("round %d: byte %d of the peer is %#x, the model has %#x", round, d, p.B.Bytes()[d], b[d])
		}
		if d := firstDiff(p.A.Bytes(), a); d != size {
			t.Fatalf("round %d: own byte %d is %#x, the model has %#x", round, d, p.A.Bytes()[d], a[d])
		}
	}
}

func leWord(b []byte) (v uint64) {
	for i := range 8 {
		v |= uint64(b[i]) << (8 * i)
	}
	return v
}

func putWord(b []byte, v uint64) {
	for i := range 8 {
		b[i] = byte(v >> (8 * i))
	}
}

// caseBothWays runs SENDs and WRITEs in both directions at once.
func caseBothWays(t *testing.T, open Open) {
	const n, size = 300, 1500
	r := Seed(t)
	p := Fixture{Size: 2 * 16 * size, Cap: verbs.QPCap{MaxSendWR: 64, MaxRecvWR: 64, MaxSendSGE: 1, MaxRecvSGE: 1}}.New(t, open)
	var wg sync.WaitGroup
	for i, s := range []*Side{p.A, p.B} {
		rnd := rand.New(rand.NewPCG(r.Uint64(), uint64(i)))
		wg.Add(1)
		go func() {
			defer wg.Done()
			talk(s, rnd, n, size)
		}()
	}
	wg.Wait()
}

// talk sends n numbered messages from the first half of the memory and checks
// the n that come into its second half.
func talk(s *Side, r *rand.Rand, n, size int) {
	const window = 16
	half := window * size
	postRecv := func(i int) {
		k := i % window
		if _, err := s.QP.PostRecv([]verbs.RecvWR{{ID: verbs.WRID(1<<32 | k), NumSGE: 1}}, []verbs.SGE{s.SGE(half+k*size, size)}); err != nil {
			s.TB.Errorf("%s: %v", s.Name, err)
		}
	}
	for i := range window {
		postRecv(i)
	}
	sent, acked, got := 0, 0, 0
	var wcs [16]verbs.WC
	for i := 0; acked < n || got < n; i++ {
		if sent < n && sent-acked < window {
			k := sent % window
			m := s.Bytes()[k*size : k*size+1+r.IntN(size)]
			for j := range m {
				m[j] = byte(sent)
			}
			if _, err := s.QP.PostSend([]verbs.SendWR{{ID: verbs.WRID(k), Op: verbs.OpSend, NumSGE: 1, Flags: verbs.Signaled}}, []verbs.SGE{s.SGE(k*size, len(m))}); err != nil {
				s.TB.Errorf("%s: %v", s.Name, err)
				return
			}
			sent++
		}
		s.Ctx.Progress()
		c, err := s.CQ.Poll(wcs[:])
		if err != nil {
			s.TB.Errorf("%s: %v", s.Name, err)
			return
		}
		for _, wc := range wcs[:c] {
			if wc.Status != verbs.WCSuccess {
				s.TB.Errorf("%s: completion with %v", s.Name, wc.Status)
				return
			}
			if wc.ID>>32 == 0 {
				acked++
				continue
			}
			k := int(wc.ID & 0xffff)
			m := s.Bytes()[half+k*size:][:wc.ByteLen]
			for _, v := range m {
				if v != byte(got) {
					s.TB.Errorf("%s: message %d holds bytes of %d", s.Name, got, v)
					return
				}
			}
			postRecv(got)
			got++
		}
		if c == 0 {
			pause()
			if i > 50_000_000 {
				s.TB.Errorf("%s: stuck: %d sent, %d acknowledged, %d received of %d", s.Name, sent, acked, got, n)
				return
			}
		}
	}
}
