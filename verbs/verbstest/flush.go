package verbstest

import (
	"errors"
	"strings"
	"testing"

	"github.com/railstore/railstore/verbs"
)

var flushCases = []namedCase{
	{"in_order", caseFlushInOrder},
	{"first_cause", caseFirstCause},
	{"post_in_err", casePostInErr},
	{"by_modify", caseFlushByModify},
}

// caseFlushInOrder: requests before the bad one succeed, it fails, those behind
// it are flushed in order, signaled or not, and are not executed.
func caseFlushInOrder(t *testing.T, open Open) {
	p := Fixture{}.New(t, open)
	addr, rkey := p.B.At(0)
	verbs.StoreWord(p.A.Bytes(), 7)
	const bad, n = 5, 20
	for i := range n {
		p.B.Recv(verbs.WRID(i), p.B.SGE(4096, 8))
	}
	wrs, sges := make([]verbs.SendWR, n), make([]verbs.SGE, n)
	for i := range wrs {
		wrs[i] = verbs.SendWR{ID: verbs.WRID(i), Op: verbs.OpWrite, RemoteAddr: addr + uint64(i)*8, RKey: rkey, NumSGE: 1}
		sges[i] = p.A.SGE(0, 8)
		if i < bad {
			wrs[i].Flags = verbs.Signaled
		}
	}
	wrs[bad].RKey ^= 0x7700
	wrs[bad+3].Op = verbs.OpSend
	wrs[bad+4].Op = verbs.OpRead
	if k, err := p.A.QP.PostSend(wrs, sges); k != n || err != nil {
		t.Fatalf("%d taken, %v", k, err)
	}
	for i, wc := range p.A.Wait(n) {
		want := verbs.WCSuccess
		if i == bad {
			want = verbs.WCRemAccess
		} else if i > bad {
			want = verbs.WCFlush
		}
		if wc.ID != verbs.WRID(i) || wc.Status != want {
			t.Fatalf("completion %d is %d with %v: want %v", i, wc.ID, wc.Status, want)
		}
	}
	for i := range n {
		if got := verbs.LoadWord(p.B.Bytes()[i*8:]); (got == 7) != (i < bad) {
			t.Fatalf("word %d at the peer is %d: request %d was the bad one", i, got, bad)
		}
	}
}

func caseFirstCause(t *testing.T, open Open) {
	p := Fixture{}.New(t, open)
	const flushes = 30
	p.A.Send(verbs.SendWR{ID: 1, Op: verbs.OpWrite, RemoteAddr: 8, RKey: 8}, p.A.SGE(0, 8))
	for range flushes {
		p.A.Write(2, 0, 8, p.B, 0, 0)
	}
	p.A.Wait(1 + flushes)
	err := p.A.QP.Err()
	if !errors.Is(err, verbs.WCRemAccess) || errors.Is(err, verbs.WCFlush) {
		t.Fatalf("cause: %v", err)
	}
	if !strings.Contains(err.Error(), "30 flushed") || !strings.Contains(err.Error(), "REM_ACCESS(10)") {
		t.Fatalf("cause: %v: want the name and the number of flushes", err)
	}
	wc, n, ok := p.A.QP.FirstBad()
	if !ok || wc.ID != 1 || n != flushes {
		t.Fatalf("first bad completion %+v, %d flushes", wc, n)
	}
}

func casePostInErr(t *testing.T, open Open) { postInErr(t, open, true) }

func postInErr(t *testing.T, open Open, receives bool) {
	p := Fixture{}.New(t, open)
	Need(t, p.A.QP.Fail())
	for i := range 100 { // more than the queues hold: each is flushed at once
		p.A.Write(verbs.WRID(i), 0, 8, p.B, 0, 0)
		p.A.Bad(verbs.WRID(i), verbs.WCFlush)
		if receives {
			p.A.Recv(verbs.WRID(i))
			p.A.Bad(verbs.WRID(i), verbs.WCFlush)
		}
	}
}

func caseFlushByModify(t *testing.T, open Open) {
	p := Fixture{}.New(t, open)
	for i := range 10 {
		p.A.Recv(verbs.WRID(100 + i))
		p.A.Send(verbs.SendWR{ID: verbs.WRID(i), Op: verbs.OpSend}) // the peer has no receive
	}
	Need(t, p.A.QP.Fail())
	next := map[bool]verbs.WRID{false: 0, true: 100}
	for _, wc := range p.A.Wait(20) {
		isRecv := wc.ID >= 100
		if wc.Status != verbs.WCFlush || wc.ID != next[isRecv] {
			t.Fatalf("completion %d with %v: want a flush of %d", wc.ID, wc.Status, next[isRecv])
		}
		next[isRecv]++
	}
}
