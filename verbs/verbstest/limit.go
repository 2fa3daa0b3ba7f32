package verbstest

import (
	"testing"
	"time"

	"github.com/railstore/railstore/verbs"
)

var limitCases = []namedCase{
	{"sq_full", caseSQFull},
	{"rq_full", caseRQFull},
	{"rnr_waits", caseRNRWaits},
	{"rnr_exceeded", caseRNRExceeded},
	{"retry_exceeded", caseRetryExceeded},
	{"many_reads", caseManyReads},
}

// roomy is more than a queue that was said to hold n can hold: devices round up,
// to a power of two and then some, and some tell only what was asked for.
func roomy(n int) int { return 4*n + 64 }

// caseSQFull: sends to a peer without receives stay in the queue, so that it
// fills; what does not fit is refused and everything that was taken is sent.
func caseSQFull(t *testing.T, open Open) {
	p := Fixture{Cap: verbs.QPCap{MaxSendWR: 16, MaxRecvWR: 128, MaxSendSGE: 1, MaxRecvSGE: 1}}.New(t, open)
	said := p.A.QP.Cap().MaxSendWR
	wrs := make([]verbs.SendWR, roomy(said))
	for i := range wrs {
		wrs[i] = verbs.SendWR{ID: verbs.WRID(i), Op: verbs.OpSend, Flags: verbs.Signaled}
	}
	n, err := p.A.QP.PostSend(wrs, nil)
	wantKind(t, err, verbs.ErrSQFull, "a batch longer than the queue")
	if n < said {
		t.Fatalf("%d of a batch of %d taken: the queue was said to hold %d", n, len(wrs), said)
	}
	k, err := p.A.QP.PostSend(wrs[n:], nil)
	wantKind(t, err, verbs.ErrSQFull, "one more")
	if k != 0 {
		t.Fatalf("%d taken by a full queue", k)
	}
	for i := range n {
		if i == 100 {
			t.Skipf("the provider granted %d send requests, the test has receives for 100", n)
		}
		p.B.Recv(verbs.WRID(i))
	}
	for i, wc := range p.A.Wait(n) {
		if wc.ID != verbs.WRID(i) || wc.Status != verbs.WCSuccess {
			t.Fatalf("completion %d: %+v", i, wc)
		}
	}
	p.B.Wait(n)
	// There is room again.
	p.B.Recv(1)
	p.A.Send(wrs[n])
	p.A.OK(wrs[n].ID)
	p.B.OK(1)
}

func caseRQFull(t *testing.T, open Open) {
	p := Fixture{Cap: verbs.QPCap{MaxSendWR: 64, MaxRecvWR: 8, MaxSendSGE: 1, MaxRecvSGE: 1}}.New(t, open)
	said := p.B.QP.Cap().MaxRecvWR
	wrs := make([]verbs.RecvWR, roomy(said))
	for i := range wrs {
		wrs[i].ID = verbs.WRID(i)
	}
	n, err := p.B.QP.PostRecv(wrs, nil)
	wantKind(t, err, verbs.ErrRQFull, "a batch longer than the queue")
	if n < said {
		t.Fatalf("%d of a batch of %d taken: the queue was said to hold %d", n, len(wrs), said)
	}
	p.A.Send(verbs.SendWR{ID: 1, Op: verbs.OpSend, Flags: verbs.Signaled})
	p.A.OK(1)
	p.B.OK(0)
	p.B.Recv(77)
}

// caseRNRWaits: with rnr_retry 7 a sender waits for a receive for as long as it
// takes, and sends in order then.
func caseRNRWaits(t *testing.T, open Open) {
	p := Fixture{Path: verbs.PathOpts{MinRNRTimer: 1}}.New(t, open)
	copy(p.A.Bytes(), "one two")
	p.A.Send(verbs.SendWR{ID: 1, Op: verbs.OpSend, Flags: verbs.Signaled}, p.A.SGE(0, 3))
	p.A.Send(verbs.SendWR{ID: 2, Op: verbs.OpSend, Flags: verbs.Signaled}, p.A.SGE(4, 3))
	p.A.Nothing(50 * time.Millisecond)
	p.B.Recv(1, p.B.SGE(0, 3))
	p.A.OK(1)
	p.A.Nothing(20 * time.Millisecond)
	p.B.Recv(2, p.B.SGE(3, 3))
	p.A.OK(2)
	p.B.OK(1)
	p.B.OK(2)
	if got := string(p.B.Bytes()[:6]); got != "onetwo" {
		t.Fatalf("received %q", got)
	}
}

func caseRNRExceeded(t *testing.T, open Open) {
	p := Fixture{Limited: true, Path: verbs.PathOpts{RetryCount: 7, RNRRetry: 1, MinRNRTimer: 1}}.New(t, open)
	p.A.Send(verbs.SendWR{ID: 1, Op: verbs.OpSend})
	p.A.Bad(1, verbs.WCRNRExceeded)
}

// caseRetryExceeded: nobody answers, because the peer's QP is gone.
func caseRetryExceeded(t *testing.T, open Open) {
	p := Fixture{Limited: true, Path: verbs.PathOpts{RetryCount: 2, RNRRetry: 7, Timeout: 10}}.New(t, open)
	Need(t, p.B.QP.Close())
	start := time.Now()
	p.A.Write(1, 0, 100, p.B, 0, 0)
	p.A.Write(2, 0, 100, p.B, 0, 0)
	p.A.Bad(1, verbs.WCRetryExceeded)
	took := time.Since(start)
	p.A.Bad(2, verbs.WCFlush)
	// The time-out is 4.2 ms; a device may stretch it up to four times (IBTA
	// 9.7.6.1.3), tries three times, and this machine may be busy.
	if took < 4*time.Millisecond || took > 5*time.Second {
		t.Fatalf("gave up after %v: the first time-out alone is 4.2 ms", took)
	}
}

// caseManyReads posts more READs than may be outstanding.
func caseManyReads(t *testing.T, open Open) {
	p := Fixture{Size: 1 << 18, Path: verbs.PathOpts{MaxRDAtomic: 2, MaxDestRDAtomic: 2}}.New(t, open)
	r := Seed(t)
	Fill(r, p.B.Bytes())
	const n, size = 60, 3000
	addr, rkey := p.B.At(0)
	for i := range n {
		p.A.Send(verbs.SendWR{ID: verbs.WRID(i), Op: verbs.OpRead, RemoteAddr: addr + uint64(i*size), RKey: rkey, Flags: verbs.Signaled}, p.A.SGE(i*size, size))
	}
	for i, wc := range p.A.Wait(n) {
		if wc.ID != verbs.WRID(i) || wc.Status != verbs.WCSuccess {
			t.Fatalf("completion %d: %+v", i, wc)
		}
	}
	if d := firstDiff(p.A.Bytes()[:n*size], p.B.Bytes()[:n*size]); d != n*size {
		t.Fatalf("differs from byte %d on", d)
	}
}
