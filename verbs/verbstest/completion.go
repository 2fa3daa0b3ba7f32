package verbstest

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/railstore/railstore/verbs"
)

var completionCases = []namedCase{
	{"unsignaled", caseUnsignaled},
	{"sig_all", caseSigAll},
	{"order", caseOrder},
	{"batch_poll", caseBatchPoll},
	{"arm_wait", caseArmWait},
	{"wake", caseWake},
	{"arm_missed", caseArmMissed},
	{"solicited", caseSolicited},
	{"solicited_error", caseSolicitedError},
	{"wait_ctx", caseWaitCtx},
	{"wait_close", caseWaitClose},
	{"two_cqs", caseTwoCQs},
	{"many_qps", caseManyQPs},
	{"overrun", caseOverrun},
}

func wantKind(t *testing.T, err, kind error, what string) {
	t.Helper()
	var ve *verbs.Error
	if !errors.Is(err, kind) || !errors.As(err, &ve) {
		t.Fatalf("%s: error %v: want a *verbs.Error of kind %q", what, err, kind)
	}
}

func caseUnsignaled(t *testing.T, open Open) {
	p := Fixture{}.New(t, open)
	for i := range 10 {
		p.A.Write(verbs.WRID(i), 0, 100, p.B, 0, 0)
	}
	p.A.Write(99, 0, 100, p.B, 0, verbs.Signaled)
	p.A.OK(99) // and none of the others
	p.A.Nothing(20 * time.Millisecond)
	// A failed request completes although it is unsignaled.
	_, rkey := p.B.At(0)
	p.A.Send(verbs.SendWR{ID: 5, Op: verbs.OpWrite, RemoteAddr: 8, RKey: rkey}, p.A.SGE(0, 8))
	p.A.Bad(5, verbs.WCRemAccess)
}

func caseSigAll(t *testing.T, open Open) {
	p := Fixture{SigAll: true}.New(t, open)
	for i := range 5 {
		p.A.Write(verbs.WRID(i), 0, 10, p.B, 0, 0)
	}
	for i := range 5 {
		p.A.OK(verbs.WRID(i))
	}
}

func caseOrder(t *testing.T, open Open) {
	p := Fixture{Path: verbs.PathOpts{MaxRDAtomic: 4, MaxDestRDAtomic: 4}}.New(t, open)
	r := Seed(t)
	addr, rkey := p.B.At(0)
	for round := range 20 {
		n := p.A.Fix.Cap.MaxSendWR
		wrs := make([]verbs.SendWR, n)
		sges := make([]verbs.SGE, n)
		for i := range wrs {
			wrs[i] = verbs.SendWR{ID: verbs.WRID(round*1000 + i), Op: verbs.OpWrite, RemoteAddr: addr, RKey: rkey, NumSGE: 1, Flags: verbs.Signaled}
			sges[i] = p.A.SGE(0, r.IntN(5000))
			switch r.IntN(4) {
			case 0:
				wrs[i].Op = verbs.OpRead
			case 1:
				wrs[i].Op, sges[i] = verbs.OpFAA, p.A.SGE(8192, 8)
			}
		}
		if k, err := p.A.QP.PostSend(wrs, sges); k != n || err != nil {
			t.Fatalf("a batch of %d into an empty queue: %d taken, %v", n, k, err)
		}
		for i, wc := range p.A.Wait(n) {
			if wc.ID != wrs[i].ID || wc.Status != verbs.WCSuccess || wc.Op != sendOpcode(wrs[i].Op) {
				t.Fatalf("completion %d is %+v, posted was %+v", i, wc, wrs[i])
			}
		}
	}
}

func caseBatchPoll(t *testing.T, open Open) {
	p := Fixture{}.New(t, open)
	var none [4]verbs.WC
	if n, err := p.A.CQ.Poll(none[:]); n != 0 || err != nil {
		t.Fatalf("poll of an empty CQ: %d, %v", n, err)
	}
	if n, err := p.A.CQ.Poll(nil); n != 0 || err != nil {
		t.Fatalf("poll for nothing: %d, %v", n, err)
	}
	for i := range 9 {
		p.A.Write(verbs.WRID(i), 0, 1, p.B, 0, verbs.Signaled)
	}
	next := verbs.WRID(0)
	p.A.Until("nine completions", func() bool {
		n, err := p.A.CQ.Poll(none[:])
		if err != nil || n > len(none) {
			t.Fatalf("poll: %d, %v", n, err)
		}
		for _, wc := range none[:n] {
			if wc.ID != next {
				t.Fatalf("completion %d came where %d was next", wc.ID, next)
			}
			next++
		}
		return next == 9
	})
}

func caseArmWait(t *testing.T, open Open) {
	p := Fixture{}.New(t, open)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for i := range 20 {
		Need(t, p.B.CQ.Arm(false))
		woken := make(chan error, 1)
		go func() { woken <- p.B.CQ.Wait(ctx) }()
		p.B.Recv(verbs.WRID(i))
		p.A.Send(verbs.SendWR{ID: 1, Op: verbs.OpSend, Flags: verbs.Signaled})
		if err := <-woken; err != nil {
			t.Fatalf("round %d: wait: %v", i, err)
		}
		p.B.OK(verbs.WRID(i))
		p.A.OK(1)
	}
}

// caseWake: Wake ends a Wait, also one that comes later, and hides no event.
func caseWake(t *testing.T, open Open) {
	p := Fixture{}.New(t, open)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	woken := make(chan error, 1)
	for i := range 20 {
		Need(t, p.A.CQ.Arm(false))
		p.A.CQ.Wake()
		p.A.CQ.Wake()
		if i%2 == 0 {
			go func() { woken <- p.A.CQ.Wait(ctx) }()
			Need(t, <-woken)
		} else {
			go func() { woken <- p.A.CQ.Wait(ctx) }()
			p.A.CQ.Wake()
			Need(t, <-woken)
		}
		p.A.Write(verbs.WRID(i), 0, 1, p.B, 0, verbs.Signaled)
		// The queue is still armed.
		var wc [1]verbs.WC
		for n := 0; n == 0; {
			Need(t, p.A.CQ.Wait(ctx))
			var err error
			if n, err = p.A.CQ.Poll(wc[:]); err != nil {
				t.Fatal(err)
			}
		}
		if wc[0].ID != verbs.WRID(i) || wc[0].Status != verbs.WCSuccess {
			t.Fatalf("round %d: %+v", i, wc[0])
		}
	}
}

// caseArmMissed: a completion that came before Arm is found by the poll after
// it, one that comes after Arm by Wait, also when nobody waits yet.
func caseArmMissed(t *testing.T, open Open) {
	p := Fixture{}.New(t, open)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	Need(t, p.A.CQ.Arm(false))
	p.A.Write(1, 0, 1, p.B, 0, verbs.Signaled)
	if err := p.A.CQ.Wait(ctx); err != nil {
		t.Fatal(err)
	}
	p.A.OK(1)
	for i := range 200 {
		p.A.Write(verbs.WRID(i), 0, 1, p.B, 0, verbs.Signaled)
		Need(t, p.A.CQ.Arm(false))
		var wc [1]verbs.WC
		n, err := p.A.CQ.Poll(wc[:])
		if err != nil {
			t.Fatal(err)
		}
		if n == 0 {
			if err := p.A.CQ.Wait(ctx); err != nil {
				t.Fatalf("round %d: %v", i, err)
			}
			p.A.OK(verbs.WRID(i))
		}
	}
}

func caseSolicited(t *testing.T, open Open) {
	p := Fixture{}.New(t, open)
	Need(t, p.B.CQ.Arm(true))
	for i := range 3 {
		p.B.Recv(verbs.WRID(i))
	}
	p.A.Send(verbs.SendWR{ID: 1, Op: verbs.OpSend, Flags: verbs.Signaled})
	p.A.OK(1)
	short, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	if err := p.B.CQ.Wait(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("a receive that was not solicited woke the waiter: %v", err)
	}
	addr, rkey := p.B.At(0)
	p.A.Send(verbs.SendWR{ID: 2, Op: verbs.OpWriteImm, RemoteAddr: addr, RKey: rkey, Flags: verbs.Signaled | verbs.Solicited}, p.A.SGE(0, 4))
	long, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := p.B.CQ.Wait(long); err != nil {
		t.Fatalf("a solicited receive: %v", err)
	}
	p.B.OK(0)
	p.B.OK(1)
	p.A.OK(2)
}

func caseSolicitedError(t *testing.T, open Open) {
	p := Fixture{}.New(t, open)
	Need(t, p.A.CQ.Arm(true))
	p.A.Send(verbs.SendWR{ID: 2, Op: verbs.OpWrite, RemoteAddr: 64, RKey: 0xdead}, p.A.SGE(0, 4))
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := p.A.CQ.Wait(ctx); err != nil {
		t.Fatalf("a bad completion must wake a waiter for solicited ones: %v", err)
	}
	p.A.Bad(2, verbs.WCRemAccess)
}

func caseWaitCtx(t *testing.T, open Open) {
	p := Fixture{}.New(t, open)
	Need(t, p.A.CQ.Arm(false))
	ctx, cancel := context.WithCancel(context.Background())
	woken := make(chan error, 1)
	go func() { woken <- p.A.CQ.Wait(ctx) }()
	cancel()
	if err := <-woken; !errors.Is(err, context.Canceled) {
		t.Fatalf("cancelled wait: %v", err)
	}
	// The CQ still works.
	p.A.Write(1, 0, 1, p.B, 0, verbs.Signaled)
	p.A.OK(1)
}

func caseWaitClose(t *testing.T, open Open) {
	p := Fixture{}.New(t, open)
	cq, err := p.A.Ctx.CreateCQ(4)
	Need(t, err)
	Need(t, cq.Arm(false))
	woken := make(chan error, 1)
	started := make(chan struct{})
	go func() {
		close(started)
		woken <- cq.Wait(context.Background())
	}()
	<-started
	if err := cq.Close(); err != nil {
		t.Fatal(err)
	}
	wantKind(t, <-woken, verbs.ErrClosed, "wait on a closed CQ")
	if err := cq.Close(); err != nil {
		t.Fatalf("second close: %v", err)
	}
}

func caseTwoCQs(t *testing.T, open Open) {
	var recvCQ [2]*verbs.CQ
	i := 0
	p := Fixture{MakeQP: func(s *Side) error {
		cq, err := s.Ctx.CreateCQ(64)
		if err != nil {
			return err
		}
		recvCQ[i] = cq
		i++
		s.TB.Cleanup(func() { s.QP.Close(); cq.Close() })
		if s.QP, err = s.PD.CreateQP(verbs.QPInit{SendCQ: s.CQ, RecvCQ: cq, Cap: s.Fix.Cap}); err != nil {
			return err
		}
		s.Local, err = s.EndpointOf(s.QP)
		return err
	}}.New(t, open)
	p.B.Recv(2, p.B.SGE(0, 10))
	p.A.Send(verbs.SendWR{ID: 1, Op: verbs.OpSend, Flags: verbs.Signaled}, p.A.SGE(0, 10))
	p.A.OK(1)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var wc [2]verbs.WC
	if n, err := recvCQ[1].PollWait(ctx, wc[:], 10); n != 1 || err != nil || wc[0].ID != 2 {
		t.Fatalf("receive CQ: %d completions, first %+v, %v", n, wc[0], err)
	}
	p.B.Nothing(10 * time.Millisecond)
	if p.A.QP.SendCQ() != p.A.CQ || p.A.QP.RecvCQ() != recvCQ[0] {
		t.Fatal("the QP names other CQs than it was made with")
	}
}

// link makes one more connected QP at either side, on the sides' own CQs.
func (p *Pair) link(t testing.TB) (a, b *verbs.QP) {
	t.Helper()
	var ep [2]verbs.Endpoint
	var qp [2]*verbs.QP
	for i, s := range []*Side{p.A, p.B} {
		q, err := s.PD.CreateQP(verbs.QPInit{SendCQ: s.CQ, RecvCQ: s.CQ, Cap: s.Fix.Cap})
		Need(t, err)
		t.Cleanup(func() {
			if err := q.Close(); err != nil {
				t.Error(err)
			}
		})
		qp[i] = q
		ep[i], err = s.EndpointOf(q)
		Need(t, err)
	}
	Need(t, qp[0].Connect(ep[0], ep[1], p.A.Fix.Path, nil))
	Need(t, qp[1].Connect(ep[1], ep[0], p.A.Fix.Path, nil))
	return qp[0], qp[1]
}

func caseManyQPs(t *testing.T, open Open) {
	const qps, each = 12, 30
	p := Fixture{Depth: 4 * qps * 64}.New(t, open)
	qp := make([]*verbs.QP, qps)
	byQPN := map[uint32]int{}
	for i := range qp {
		qp[i], _ = p.link(t)
		byQPN[qp[i].QPN()] = i
	}
	if len(byQPN) != qps {
		t.Fatal("two QPs have one number")
	}
	addr, rkey := p.B.At(0)
	for k := range each {
		for i, q := range qp {
			wr := verbs.SendWR{ID: verbs.WRID(i<<16 | k), Op: verbs.OpWrite, RemoteAddr: addr + uint64(i*64), RKey: rkey, NumSGE: 1, Flags: verbs.Signaled}
			if _, err := q.PostSend([]verbs.SendWR{wr}, []verbs.SGE{p.A.SGE(0, 64)}); err != nil {
				t.Fatal(err)
			}
		}
	}
	next := make([]int, qps)
	for _, wc := range p.A.Wait(qps * each) {
		i := int(wc.ID >> 16)
		if wc.Status != verbs.WCSuccess || byQPN[wc.QPN] != i || int(wc.ID&0xffff) != next[i] {
			t.Fatalf("completion %+v of QP %d: want number %d", wc, i, next[i])
		}
		next[i]++
	}
}

func caseOverrun(t *testing.T, open Open) {
	const n = 200
	p := Fixture{Depth: 4, Cap: verbs.QPCap{MaxSendWR: 256, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1}}.New(t, open)
	for i := range n {
		p.A.Write(verbs.WRID(i), 0, 8, p.B, 0, verbs.Signaled)
	}
	// Nobody polls. A mark that goes there and back tells that A has seen the
	// answers to more requests than its queue holds; a provider may also have
	// stopped the QP by then, whose completions have no place to go.
	told := false
	overrun := func() bool {
		select {
		case e := <-p.A.Ctx.Events():
			if e.Type == verbs.EventCQError {
				told = true
				if !e.IsOf(p.A.CQ) {
					t.Errorf("the event does not name the queue: %+v", e)
				}
			}
		default:
		}
		return told
	}
	verbs.StoreWord(p.A.Bytes()[64:], 1)
	p.A.Write(n, 64, 8, p.B, 64, 0)
	p.B.Until("the mark", func() bool {
		p.A.Ctx.Progress()
		return overrun() || verbs.LoadWord(p.B.Bytes()[64:]) == 1
	})
	p.B.Write(1, 64, 8, p.A, 128, 0)
	p.A.Until("the mark's return", func() bool {
		p.B.Ctx.Progress()
		return overrun() || verbs.LoadWord(p.A.Bytes()[128:]) == 1
	})
	var wc [1]verbs.WC
	p.A.Until("ErrCQOverrun or CQ_ERR", func() bool {
		if overrun() {
			return true
		}
		_, err := p.A.CQ.Poll(wc[:])
		return errors.Is(err, verbs.ErrCQOverrun)
	})
}
