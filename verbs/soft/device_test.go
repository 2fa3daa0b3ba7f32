package soft

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/railstore/railstore/verbs"
	"github.com/railstore/railstore/verbs/verbstest"
)

func TestParseName(t *testing.T) {
	for name, want := range map[string]string{
		"127.0.0.1":           "127.0.0.1:0",
		"127.0.0.1:4791":      "127.0.0.1:4791",
		"::1":                 "[::1]:0",
		"[::1]":               "[::1]:0",
		"[::1]:4791":          "[::1]:4791",
		"::ffff:10.0.0.1":     "10.0.0.1:0",
		"fe80::1%eth0":        "[fe80::1%eth0]:0",
		"[fe80::1%eth0]:4791": "[fe80::1%eth0]:4791",
	} {
		got, err := parseName(name)
		if err != nil || got.String() != want {
			t.Errorf("%q: %v, %v; want %s", name, got, err, want)
		}
	}
	for _, name := range []string{"", "x", "localhost", "127.0.0.1:", "127.0.0.1:0", "127.0.0.1:70000", "0.0.0.0", "[::]:1", "224.0.0.1", "255.255.255.255", "fe80::1", "127.0.0.1:1:2"} {
		if got, err := parseName(name); err == nil {
			t.Errorf("%q: taken as %v", name, got)
		}
	}
}

func TestOpenRefusals(t *testing.T) {
	c, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	taken := c.LocalAddr().(*net.UDPAddr).Port
	for _, x := range []struct {
		name  string
		opt   Options
		kind  error
		errno error
		text  []string
	}{
		{fmt.Sprintf("127.0.0.1:%d", taken), Options{}, verbs.ErrInUse, unix.EADDRINUSE, []string{"127.0.0.1", fmt.Sprint(taken), "choose another port"}},
		{"192.0.2.7", Options{}, verbs.ErrNotFound, unix.EADDRNOTAVAIL, []string{"192.0.2.7 is not an address of this host"}},
		{"nonsense", Options{}, verbs.ErrInvalid, nil, []string{`"nonsense"`, "ADDR:PORT"}},
		{"127.0.0.1", Options{ActiveMTU: 1500}, verbs.ErrInvalid, nil, []string{"active MTU 1500"}},
	} {
		ctx, err := verbs.Open(New(x.opt), x.name)
		if err == nil {
			_ = ctx.Close()
			t.Errorf("%s: opened", x.name)
			continue
		}
		if !errors.Is(err, x.kind) || x.errno != nil && !errors.Is(err, x.errno) {
			t.Errorf("%s: %v is not %v with %v", x.name, err, x.kind, x.errno)
		}
		for _, s := range append(x.text, "open_device soft:"+x.name) {
			if !strings.Contains(err.Error(), s) {
				t.Errorf("%s: %q does not say %q", x.name, err, s)
			}
		}
	}
}

func TestPort(t *testing.T) {
	ctx, err := verbs.Open(New(Options{}), "127.0.0.9")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ctx.Close() }()
	port, err := ctx.Port(1)
	if err != nil {
		t.Fatal(err)
	}
	if port.State != verbs.PortActive || port.ActiveMTU != 4096 || port.LinkLayer != verbs.LinkEthernet || port.UDPPort == 0 || port.GIDs != 2 {
		t.Errorf("port of loopback: %+v", port)
	}
	gids, err := ctx.GIDs(1)
	if err != nil {
		t.Fatal(err)
	}
	want := verbs.GIDFromAddr(netip.MustParseAddr("127.0.0.9"))
	if len(gids) != 2 || gids[0].Type != verbs.GIDTypeRoCEv1 || gids[1].Type != verbs.GIDTypeRoCEv2 || gids[1].GID != want || gids[1].Index != 1 || gids[1].NetDev != "lo" {
		t.Errorf("GIDs: %+v", gids)
	}
	// A definite port is the one that is taken.
	other, err := verbs.Open(New(Options{}), fmt.Sprintf("127.0.0.8:%d", port.UDPPort))
	if err != nil {
		t.Fatal(err)
	}
	p2, err := other.Port(1)
	if err != nil || p2.UDPPort != port.UDPPort {
		t.Errorf("port %d, %v; want %d", p2.UDPPort, err, port.UDPPort)
	}
	if err := other.Close(); err != nil {
		t.Error(err)
	}
}

func TestDevices(t *testing.T) {
	devs, err := New(Options{}).Devices()
	if err != nil {
		t.Fatal(err)
	}
	found := false
	for _, d := range devs {
		found = found || d.Name == "127.0.0.1"
		if d.NodeGUID == 0 || d.Ports != 1 {
			t.Errorf("%+v", d)
		}
	}
	if !found || devs[len(devs)-1].Name != "::1" && devs[len(devs)-1].Name != "127.0.0.1" {
		t.Errorf("loopback is to come last: %+v", devs)
	}
}

// TestLimits: each limit is the device's own, is enforced, and its error names it.
func TestLimits(t *testing.T) {
	o := Options{Caps: verbs.DeviceAttr{MaxQP: 2, MaxMR: 3, MaxPD: 2, MaxCQ: 1, MaxCQE: 10, MaxMRSize: 8192, MaxQPWR: 5, MaxSGE: 2, MaxRDAtomic: 1}}
	ctx, err := verbs.Open(New(o), "127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	full := func(err error, text string) {
		t.Helper()
		if !errors.Is(err, verbs.ErrNoMemory) || !errors.Is(err, unix.ENOMEM) || !strings.Contains(err.Error(), text) {
			t.Errorf("%v; want ErrNoMemory and %q", err, text)
		}
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	pd, err := ctx.AllocPD()
	must(err)
	pd2, err := ctx.AllocPD()
	must(err)
	_, err = ctx.AllocPD()
	full(err, "2 of max_pd 2")
	must(pd2.Close())
	pd2, err = ctx.AllocPD()
	must(err)
	must(pd2.Close())
	cq, err := ctx.CreateCQ(10)
	must(err)
	_, err = ctx.CreateCQ(1)
	full(err, "1 of max_cq 1")
	if _, err = ctx.CreateCQ(11); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("a deeper CQ: %v", err)
	}
	region, err := verbs.MapRegion(8192)
	must(err)
	var mrs []*verbs.MR
	for range 3 {
		m, err := pd.Register(region, verbs.LocalWrite)
		must(err)
		mrs = append(mrs, m)
	}
	_, err = pd.Register(region, 0)
	full(err, "3 of max_mr 3")
	init := verbs.QPInit{SendCQ: cq, RecvCQ: cq, Cap: verbs.QPCap{MaxSendWR: 1}}
	q1, err := pd.CreateQP(init)
	must(err)
	q2, err := pd.CreateQP(init)
	must(err)
	_, err = pd.CreateQP(init)
	full(err, "2 of max_qp 2")
	must(q1.Close())
	q3, err := pd.CreateQP(init)
	must(err)
	if q3.QPN() == q1.QPN() {
		t.Errorf("QP number %#x was given again at once", q1.QPN())
	}
	must(q2.Close())
	must(q3.Close())
	for _, m := range mrs {
		must(m.Close())
	}
	must(region.Close())
	must(cq.Close())
	must(pd.Close())
	must(ctx.Close())
	must(ctx.Close())
}

// TestRoutes: a QP is not connected to what it could not reach.
func TestRoutes(t *testing.T) {
	e := mustEnd(t, "127.0.0.1", 4096, Options{ActiveMTU: 1024})
	defer func() {
		if err := e.close(); err != nil {
			t.Error(err)
		}
	}()
	good := verbs.Endpoint{GID: verbs.GIDFromAddr(netip.MustParseAddr("127.0.0.2")), QPN: 5, MTU: 4096, UDPPort: 1000}
	local := e.hello.Endpoint
	for name, c := range map[string]struct {
		change func(l, r *verbs.Endpoint, o *verbs.PathOpts)
		text   string
	}{
		"RoCE v1":     {func(_, _ *verbs.Endpoint, o *verbs.PathOpts) { o.SGIDIndex = 0 }, "index 0 is RoCE v1"},
		"no such GID": {func(_, _ *verbs.Endpoint, o *verbs.PathOpts) { o.SGIDIndex = 7 }, "index 7"},
		"PKey":        {func(_, _ *verbs.Endpoint, o *verbs.PathOpts) { o.PKeyIndex = 1 }, "PKey index 1"},
		"MTU":         {func(l, _ *verbs.Endpoint, o *verbs.PathOpts) { l.MTU = 4096 }, "active MTU is 1024"},
		"other family": {func(_, r *verbs.Endpoint, _ *verbs.PathOpts) {
			r.GID = verbs.GIDFromAddr(netip.MustParseAddr("fd00::1"))
		}, "not of one IP version"},
		"no GID": {func(_, r *verbs.Endpoint, _ *verbs.PathOpts) { r.GID = verbs.GID{} }, "not an address of a peer"},
		"multicast GID": {func(_, r *verbs.Endpoint, _ *verbs.PathOpts) {
			r.GID = verbs.GIDFromAddr(netip.MustParseAddr("224.0.0.1"))
		}, "not an address of a peer"},
	} {
		l, r, o := local, good, verbs.PathOpts{SGIDIndex: 1}
		c.change(&l, &r, &o)
		err := e.qp.Connect(l, r, o, nil)
		if !errors.Is(err, verbs.ErrInvalid) || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: %v; want %q", name, err, c.text)
		}
		if err := e.qp.Modify(verbs.QPAttr{State: verbs.QPReset}, verbs.MaskState); err != nil {
			t.Fatal(err)
		}
	}
	if err := e.qp.Connect(local, good, verbs.PathOpts{SGIDIndex: 1}, nil); err != nil {
		t.Error(err)
	}
}

// cpu is the processor time of the process so far.
func cpu(t testing.TB) time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// TestIdle: a device that was busy and is idle again uses no processor time, also
// when its poller went away without a word.
func TestIdle(t *testing.T) {
	p := verbstest.Fixture{}.New(t, openPair(Options{}, "127.0.0.1", "127.0.0.2"))
	for i := range 500 {
		p.A.Write(verbs.WRID(i), 0, 4096, p.B, 0, verbs.Signaled)
		p.A.OK(verbs.WRID(i))
		p.B.Ctx.Progress()
	}
	for range 1000 {
		p.B.Ctx.Progress()
	}
	// The lease, the spin and the timers of what was sent all end by themselves.
	var used time.Duration
	until(t, "an idle 100 ms", func() bool {
		start := cpu(t)
		idle, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
		defer cancel()
		<-idle.Done()
		used = cpu(t) - start
		return used < 2*time.Millisecond
	})
	t.Logf("%v of processor time in 100 ms", used)
}

// TestPollerLeaves: packets that come after a poller has gone are handled, whether
// it said so or not, and answers that it held back are sent.
func TestPollerLeaves(t *testing.T) {
	p := verbstest.Fixture{}.New(t, openPair(Options{}, "127.0.0.1", "127.0.0.2"))
	for round := range 50 {
		// B polls without pause until a word comes, then stops at once.
		done := make(chan struct{})
		go func() {
			defer close(done)
			for verbs.LoadWord(p.B.Bytes()) != uint64(round+1) {
				p.B.Ctx.Progress()
			}
			if round%2 == 0 {
				if err := p.B.CQ.Arm(false); err != nil {
					t.Error(err)
				}
			}
		}()
		until(t, "a dense poller", func() bool { return deviceOf(p.B.Ctx).poll.busy.Load() })
		verbs.StoreWord(p.A.Bytes(), uint64(round+1))
		p.A.Write(1, 0, 8, p.B, 0, verbs.Signaled)
		<-done
		p.A.OK(1) // needs B's answer
		p.A.Write(2, 0, 4096, p.B, 4096, verbs.Signaled)
		p.A.OK(2)
	}
	if s := p.A.QP.Stats(); s.Timeouts != 0 {
		t.Errorf("%d timeouts: answers were held back for long", s.Timeouts)
	}
}

// TestCloseWhilePolled: Progress and Poll race with Close.
func TestCloseWhilePolled(t *testing.T) {
	for range 20 {
		ctx, err := verbs.Open(New(Options{}), "127.0.0.1")
		if err != nil {
			t.Fatal(err)
		}
		stop := make(chan struct{})
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
						ctx.Progress()
					}
				}
			})
		}
		if err := ctx.Close(); err != nil {
			t.Error(err)
		}
		if ctx.Progress() {
			t.Error("a closed device has done something")
		}
		if _, open := <-ctx.Events(); open {
			t.Error("the event channel is open after Close")
		}
		close(stop)
		wg.Wait()
	}
}

// TestOpenFailsClean: an open that fails half-way leaves nothing behind.
func TestOpenFailsClean(t *testing.T) {
	count := func() int {
		n := 0
		for fd := range 1024 {
			if _, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil {
				n++
			}
		}
		return n
	}
	d := New(Options{ActiveMTU: 1})
	_, _ = d.Open("127.0.0.1") // whatever the runtime opens once
	before := count()
	for range 5 {
		if _, err := d.Open("127.0.0.1"); err == nil {
			t.Fatal("opened")
		}
	}
	if after := count(); after > before {
		t.Errorf("%d descriptors before, %d after", before, after)
	}
	if len(d.Counters()) != 0 {
		t.Errorf("the driver lists %+v", d.Counters())
	}
}
