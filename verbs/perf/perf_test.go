package perf

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/railstore/railstore/verbs"
	"github.com/railstore/railstore/verbs/verbstest"
)

// run measures between two devices of the loop provider.
func run(t *testing.T, test Test) (Result, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	l := verbstest.NewLoop(verbstest.LoopOptions{})
	var ends [2]*End
	for i, name := range []string{"10.0.0.1", "10.0.0.2"} {
		vc, err := verbs.Open(l, name)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = vc.Close() })
		gids, err := vc.GIDs(1)
		if err != nil {
			t.Fatal(err)
		}
		if ends[i], err = NewEnd(vc, Path{GID: gids[0]}, test); err != nil {
			return Result{}, err
		}
		defer ends[i].Close()
	}
	if err := errors.Join(ends[0].Connect(ends[1].Hello()), ends[1].Connect(ends[0].Hello())); err != nil {
		t.Fatal(err)
	}
	return Between(ctx, ends[0], ends[1])
}

func TestEveryMeasurement(t *testing.T) {
	for _, op := range []verbs.Opcode{verbs.OpWrite, verbs.OpRead, verbs.OpSend} {
		for _, k := range []Kind{Bandwidth, Latency} {
			for _, size := range []int{1, 7, 64, 4096, 100_000} {
				test := Test{Op: op, Kind: k, Size: size, Iters: 60, Warmup: 5, Depth: 16, QPs: 1}
				if k == Bandwidth {
					test.QPs = 3
				}
				t.Run(test.Name(), func(t *testing.T) {
					r, err := run(t, test)
					if err != nil {
						t.Fatal(err)
					}
					if r.Bytes != size || r.Iterations != 60 || r.Seconds <= 0 {
						t.Errorf("%+v", r)
					}
					if k == Bandwidth && (r.BytesPerSecond <= 0 || r.PeakBytesPerSecond < r.BytesPerSecond || r.MinUS != 0) {
						t.Errorf("%+v", r)
					}
					if k == Latency && !(r.MinUS > 0 && r.MinUS <= r.TypicalUS && r.TypicalUS <= r.P99US && r.P99US <= r.P999US && r.P999US <= r.MaxUS) {
						t.Errorf("%+v", r)
					}
				})
			}
		}
	}
}

func TestCheck(t *testing.T) {
	good := Test{Op: verbs.OpWrite, Kind: Bandwidth, Size: 1, Iters: 1, Depth: 1, QPs: 1}
	for _, c := range []struct {
		change func(*Test)
		says   string
	}{
		{func(x *Test) { x.Op = verbs.OpCAS }, "CAS"},
		{func(x *Test) { x.Kind = "x" }, `"x"`},
		{func(x *Test) { x.Size = 0 }, "size 0"},
		{func(x *Test) { x.Iters = 0 }, "0 iterations"},
		{func(x *Test) { x.Depth = 0 }, "depth 0"},
		{func(x *Test) { x.Kind, x.QPs = Latency, 2 }, "not on 2"},
	} {
		x := good
		c.change(&x)
		if err := x.Check(); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%+v: %v, want %q", x, err, c.says)
		}
	}
}

func TestColumns(t *testing.T) {
	r := Result{Bytes: 65536, Iterations: 5000, BytesPerSecond: 1 << 30, PeakBytesPerSecond: 2 << 30, MessagesPerSecond: 16384}
	if got, want := r.Row(Bandwidth, false), " 65536      5000           2048.00            1024.00              0.016384"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got := strings.Fields(Header(Bandwidth, true)); len(got) != 7 || got[3] != "peak[Gb/sec]" {
		t.Errorf("%q", got)
	}
	if got := len(strings.Fields(Result{}.Row(Latency, false))); got != 9 {
		t.Errorf("a latency row has %d columns", got)
	}
}

// A responder that loses its peer ends with its context and is no error.
func TestRespondEndsWithContext(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	l := verbstest.NewLoop(verbstest.LoopOptions{})
	vc, err := verbs.Open(l, "10.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	defer vc.Close()
	gids, _ := vc.GIDs(1)
	e, err := NewEnd(vc, Path{GID: gids[0]}, Test{Op: verbs.OpSend, Kind: Bandwidth, Size: 8, Iters: 1, Depth: 4, QPs: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	if err := e.Connect(e.Hello()); err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := e.Respond(ctx); err != nil {
		t.Errorf("%v", err)
	}
}
