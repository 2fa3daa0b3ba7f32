package verbstest

import (
	"bytes"
	"testing"
	"time"

	"github.com/railstore/railstore/verbs"
)

var lifeCases = []namedCase{
	{"busy_parents", caseBusyParents},
	{"close_twice", caseCloseTwice},
	{"use_after_close", caseUseAfterClose},
	{"mr_close_fences", caseMRCloseFences},
	{"qp_close_fences", caseQPCloseFences},
	{"close_with_outstanding", caseCloseOutstanding},
	{"open_close_many", caseOpenCloseMany},
	{"reregister", caseReregister},
}

func caseBusyParents(t *testing.T, open Open) {
	p := Fixture{}.New(t, open)
	wantKind(t, p.A.Ctx.Close(), verbs.ErrBusy, "device with children")
	wantKind(t, p.A.PD.Close(), verbs.ErrBusy, "PD with children")
	wantKind(t, p.A.CQ.Close(), verbs.ErrBusy, "CQ with a QP")
	wantKind(t, p.A.Region.Close(), verbs.ErrBusy, "region with an MR")
	// Nothing of it did harm.
	p.A.Write(1, 0, 8, p.B, 0, verbs.Signaled)
	p.A.OK(1)
	Need(t, p.A.QP.Close())
	wantKind(t, p.A.PD.Close(), verbs.ErrBusy, "PD with an MR")
}

func caseCloseTwice(t *testing.T, open Open) {
	p := Fixture{}.New(t, open)
	for range 2 {
		Need(t, p.A.QP.Close())
	}
	for range 2 {
		Need(t, p.A.CQ.Close())
	}
	for range 2 {
		Need(t, p.A.MR.Close())
	}
	for range 2 {
		Need(t, p.A.Region.Close())
	}
	for range 2 {
		Need(t, p.A.PD.Close())
	}
	for range 2 {
		Need(t, p.A.Ctx.Close())
	}
	for range p.A.Ctx.Events() { // closed with the device
	}
}

func caseUseAfterClose(t *testing.T, open Open) {
	p := Fixture{}.New(t, open)
	Need(t, p.A.QP.Close())
	wantKind(t, p.A.QP.Fail(), verbs.ErrClosed, "modify of a closed QP")
	Need(t, p.A.MR.Close())
	Need(t, p.A.PD.Close())
	_, err := p.A.PD.Register(p.A.Region, All)
	wantKind(t, err, verbs.ErrClosed, "register in a closed PD")
	Need(t, p.A.CQ.Close())
	Need(t, p.A.Ctx.Close())
	_, err = p.A.Ctx.AllocPD()
	wantKind(t, err, verbs.ErrClosed, "PD of a closed device")
}

// hammer keeps WRITEs of changing bytes running from A to B until stop is
// closed or the QP fails; the returned channel closes at its end.
func hammer(p *Pair, stop <-chan struct{}) <-chan struct{} {
	done := make(chan struct{})
	go func() {
		defer close(done)
		addr, rkey := p.B.At(0)
		var wcs [32]verbs.WC
		busy, v := 0, byte(0)
		for {
			select {
			case <-stop:
				return
			default:
			}
			for busy < 16 {
				v++
				p.A.Bytes()[0], p.A.Bytes()[4095] = v, v
				wr := verbs.SendWR{Op: verbs.OpWrite, RemoteAddr: addr, RKey: rkey, NumSGE: 1, Flags: verbs.Signaled}
				if _, err := p.A.QP.PostSend([]verbs.SendWR{wr}, []verbs.SGE{p.A.SGE(0, 4096)}); err != nil {
					return
				}
				busy++
			}
			p.A.Ctx.Progress()
			n, err := p.A.CQ.Poll(wcs[:])
			if err != nil {
				return
			}
			for _, wc := range wcs[:n] {
				if wc.Status != verbs.WCSuccess {
					return
				}
			}
			if busy -= n; n == 0 {
				pause()
			}
		}
	}()
	return done
}

// still expects that nobody writes B's memory any more.
func still(t *testing.T, p *Pair, what string) {
	t.Helper()
	before := bytes.Clone(p.B.Bytes()[:4096])
	for end := time.Now().Add(30 * time.Millisecond); time.Now().Before(end); {
		p.B.Ctx.Progress()
		pause()
		if !bytes.Equal(before, p.B.Bytes()[:4096]) {
			t.Fatalf("memory changed after %s returned", what)
		}
	}
}

func caseMRCloseFences(t *testing.T, open Open) {
	for range 5 {
		// A subtest, so that each pair is closed before the next.
		t.Run("", func(t *testing.T) {
			p := Fixture{Limited: true, Path: verbs.PathOpts{RetryCount: 1, RNRRetry: 7, Timeout: 10}}.New(t, open)
			stop := make(chan struct{})
			done := hammer(p, stop)
			p.B.Until("the first WRITE", func() bool { return p.B.Bytes()[0] != 0 })
			Need(t, p.B.MR.Close())
			still(t, p, "MR.Close")
			close(stop)
			<-done
		})
	}
}

func caseQPCloseFences(t *testing.T, open Open) {
	for range 5 {
		// A subtest, so that each pair is closed before the next.
		t.Run("", func(t *testing.T) {
			p := Fixture{Limited: true, Path: verbs.PathOpts{RetryCount: 1, RNRRetry: 7, Timeout: 10}}.New(t, open)
			stop := make(chan struct{})
			done := hammer(p, stop)
			p.B.Until("the first WRITE", func() bool { return p.B.Bytes()[0] != 0 })
			Need(t, p.B.QP.Close())
			still(t, p, "QP.Close")
			close(stop)
			<-done
		})
	}
}

// caseCloseOutstanding: a QP with outstanding requests closes, and no completion
// of it comes after what is already in the CQ.
func caseCloseOutstanding(t *testing.T, open Open) {
	p := Fixture{Size: 1 << 20}.New(t, open)
	for i := range 16 {
		p.A.Write(verbs.WRID(i), 0, 1<<19, p.B, 0, verbs.Signaled)
		p.A.Recv(verbs.WRID(100 + i))
	}
	p.B.Recv(1)
	Need(t, p.A.QP.Close())
	var wcs [64]verbs.WC
	for {
		n, err := p.A.CQ.Poll(wcs[:])
		Need(t, err)
		if n == 0 {
			break
		}
	}
	p.A.Nothing(30 * time.Millisecond)
}

func caseOpenCloseMany(t *testing.T, open Open) {
	for i := range 20 {
		// A subtest, so that each pair is closed before the next.
		ok := t.Run("", func(t *testing.T) {
			p := Fixture{}.New(t, open)
			p.A.Write(verbs.WRID(i), 0, 100, p.B, 0, verbs.Signaled)
			p.A.OK(verbs.WRID(i))
		})
		if !ok {
			return
		}
	}
}

// caseReregister: the old key of a region that was registered again is dead.
func caseReregister(t *testing.T, open Open) {
	p := Fixture{}.New(t, open)
	addr, old := p.B.At(0)
	Need(t, p.B.MR.Close())
	Need(t, p.B.DefaultMemoryAgain())
	if _, now := p.B.At(0); now == old {
		t.Fatalf("a new registration has the old key %#x: a stale peer would reach it", old)
	}
	p.A.Write(1, 0, 8, p.B, 0, verbs.Signaled)
	p.A.OK(1)
	p.A.Send(verbs.SendWR{ID: 2, Op: verbs.OpWrite, RemoteAddr: addr, RKey: old}, p.A.SGE(0, 8))
	p.A.Bad(2, verbs.WCRemAccess)
}

// DefaultMemoryAgain registers the side's region once more.
func (s *Side) DefaultMemoryAgain() (err error) {
	s.MR, err = s.PD.Register(s.Region, s.Fix.Access)
	return err
}
