package verbstest

import (
	"errors"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/railstore/railstore/verbs"
)

// bringUp opens a device with everything on it, uses it and closes it.
func bringUp(leak string) func(d verbs.Driver) error {
	return func(d verbs.Driver) (err error) {
		ctx, err := verbs.Open(d, "dev")
		if err != nil {
			return err
		}
		undo := func(what string, f func() error) {
			if what != leak {
				err = errors.Join(err, f())
			}
		}
		defer func() { undo("device", ctx.Close) }()
		pd, err := ctx.AllocPD()
		if err != nil {
			return err
		}
		defer func() { undo("pd", pd.Close) }()
		cq, err := ctx.CreateCQ(8)
		if err != nil {
			return err
		}
		defer func() { undo("cq", cq.Close) }()
		qp, err := pd.CreateQP(verbs.QPInit{SendCQ: cq, RecvCQ: cq, Cap: verbs.QPCap{MaxSendWR: 1, MaxRecvWR: 1}})
		if err != nil {
			return err
		}
		defer func() { undo("qp", qp.Close) }()
		ep := verbs.Endpoint{QPN: qp.QPN(), MTU: 1024}
		return qp.Connect(ep, ep, verbs.PathOpts{}, func() error {
			_, err := qp.PostRecv([]verbs.RecvWR{{}}, nil)
			return err
		})
	}
}

func TestFailEach(t *testing.T) {
	FailEach(t, func() verbs.Driver { return NewLoop(LoopOptions{}) }, bringUp(""))
}

func TestFaultCountsHandles(t *testing.T) {
	f := NewFault(NewLoop(LoopOptions{}))
	_ = bringUp("qp")(f)
	if got := strings.Join(f.Live(), ", "); got != "1 CQ, 1 PD, 1 QP, 1 device" {
		t.Fatalf("left open: %s", got)
	}
}

func TestFaultFailsTheNth(t *testing.T) {
	f := NewFault(NewLoop(LoopOptions{}))
	ctx, err := verbs.Open(f, "x")
	Need(t, err)
	defer ctx.Close()
	f.Fail("create_cq", 2, 1, syscall.ENOMEM)
	for i, want := range []bool{true, false, true} {
		cq, err := ctx.CreateCQ(1)
		if (err == nil) != want {
			t.Fatalf("call %d: %v", i+1, err)
		}
		if err != nil {
			if !errors.Is(err, syscall.ENOMEM) || !errors.Is(err, verbs.ErrDevice) {
				t.Fatalf("error %v", err)
			}
			continue
		}
		Need(t, cq.Close())
	}
}

func TestFaultDropsCompletions(t *testing.T) {
	f := NewFault(NewLoop(LoopOptions{}))
	p := Fixture{}.New(t, openOn(f))
	f.DropCompletions(func(wc verbs.WC) bool { return wc.ID == 2 })
	for i := range 4 {
		p.A.Write(verbs.WRID(i), 0, 1, p.B, 0, verbs.Signaled)
	}
	for _, id := range []verbs.WRID{0, 1, 3} {
		p.A.OK(id)
	}
	f.Clear()
	f.Delay("post_send", 20*time.Millisecond)
	start := time.Now()
	p.A.Write(9, 0, 1, p.B, 0, verbs.Signaled)
	p.A.OK(9)
	if time.Since(start) < 20*time.Millisecond {
		t.Fatal("the call was not delayed")
	}
}

// fakeTB takes what Trace reports.
type fakeTB struct {
	testing.TB
	cleanup []func()
	errors  []string
}

func (f *fakeTB) Helper()          {}
func (f *fakeTB) Cleanup(c func()) { f.cleanup = append(f.cleanup, c) }
func (f *fakeTB) Error(a ...any)   { f.errors = append(f.errors, a[0].(string)) }

func TestTraceReportsLeaks(t *testing.T) {
	for leak, kinds := range map[string][]string{"": nil, "qp": {"QP", "CQ", "PD", "device"}, "device": {"device"}} {
		tb := &fakeTB{}
		_ = bringUp(leak)(Trace(tb, NewLoop(LoopOptions{})))
		for _, c := range tb.cleanup {
			c()
		}
		if len(tb.errors) != len(kinds) {
			t.Fatalf("leaking %q: %d reports, want %d", leak, len(tb.errors), len(kinds))
		}
		all := strings.Join(tb.errors, "\n")
		for _, k := range kinds {
			if !strings.Contains(all, k+" left open") || !strings.Contains(all, "bringUp") {
				t.Fatalf("leaking %q: report without %s or the creating function:\n%s", leak, k, all)
			}
		}
	}
}
