package soft

import (
	"errors"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/railstore/railstore/verbs"
	"github.com/railstore/railstore/verbs/soft/internal/wire"
	"github.com/railstore/railstore/verbs/verbstest"
)

// TestFaultScript: a fault begins after what it waits for, and ends.
func TestFaultScript(t *testing.T) {
	lost := func(n int) Fault {
		return Fault{Do: "duplicate", Times: n, Match: FaultMatch{Opcode: "write", Direction: "out"}}
	}
	packets, size, later := lost(1), lost(1), lost(1)
	packets.At.Packets, size.At.Bytes, later.At.Time = 10, 64<<10, 50*time.Millisecond
	start := time.Now()
	p := faulty(t, verbstest.Fixture{}, []Fault{packets, size, later}, nil)
	began := map[int]bool{}
	look := func() {
		for _, s := range driverOf(p.A).Faults() {
			if s.State != FaultWaiting && !began[s.ID] {
				began[s.ID] = true
				c := driverOf(p.A).script
				c.mu.Lock()
				n, b := c.packets, c.bytes
				c.mu.Unlock()
				switch {
				case s.ID == 1 && (n < 10 || n > 40), s.ID == 2 && (b < 64<<10 || b > 128<<10), s.ID == 3 && time.Since(start) < 50*time.Millisecond:
					t.Errorf("%s at %+v began after %d packets, %d bytes, %v", s.Fault.Do, s.Fault.At, n, b, time.Since(start))
				}
			}
		}
	}
	for i := 0; len(began) < 3; i++ {
		if time.Since(start) > 10*time.Second {
			t.Fatalf("began so far: %v", began)
		}
		p.A.Write(1, 0, 4000, p.B, 0, verbs.Signaled)
		p.A.OK(1)
		look()
	}
	p.A.Write(1, 0, 8, p.B, 0, verbs.Signaled)
	p.A.OK(1)
	for _, s := range driverOf(p.A).Faults() {
		if s.State != FaultOver || s.Hits != 1 {
			t.Errorf("%+v", s)
		}
	}
	id := add(t, p.A, Fault{Do: "drop", For: 20 * time.Millisecond})
	p.A.Write(1, 0, 8, p.B, 0, verbs.Signaled)
	p.A.OK(1)
	if s := fault(t, p.A, id); s.State != FaultOver || s.Hits == 0 {
		t.Errorf("%+v", s)
	}
}

// TestFaultSeed: the same packets have the same fate under the same seed.
func TestFaultSeed(t *testing.T) {
	fate := func(seed uint64) (out []verdict) {
		p := faulty(t, verbstest.Fixture{}, []Fault{
			{Do: "duplicate", Rate: 0.3, Seed: seed, Match: FaultMatch{Opcode: "write", Peer: "10.0.0.1"}},
			{Do: "corrupt", Rate: 0.3, Seed: seed, Match: FaultMatch{Peer: "10.0.0.1"}},
			{Do: "reorder", Rate: 0.1, Seed: seed, Match: FaultMatch{Peer: "10.0.0.1"}},
		}, nil)
		for i := range 300 {
			k := passing{dir: outward, op: wire.WriteOnly, peer: netip.MustParseAddrPort("10.0.0.1:4791"), size: 100, payload: 50}
			if i%7 == 0 {
				k.op = wire.SendOnly
			}
			out = append(out, deviceOf(p.A.Ctx).player.judge(k))
		}
		return out
	}
	seed := verbstest.Seed(t).Uint64()
	a, b, c := fate(seed), fate(seed), fate(seed+1)
	if !slices.Equal(a, b) || slices.Equal(a, c) {
		t.Errorf("seed %d: %v and %v, the next one: %v", seed, a, b, c)
	}
	twice, spoilt := 0, 0
	for i, v := range a {
		if v.twice {
			twice++
			if i%7 == 0 {
				t.Errorf("packet %d is no WRITE, and is doubled", i)
			}
		}
		if v.corrupt {
			spoilt++
		}
	}
	if twice < 40 || twice > 120 || spoilt < 50 || spoilt > 140 {
		t.Errorf("seed %d: of 300 packets %d are doubled, %d corrupt", seed, twice, spoilt)
	}
}

// TestFaultAnswerDelay: the provider says how long.
func TestFaultAnswerDelay(t *testing.T) {
	d := New(Options{Faults: []Fault{{Do: "delay_answer", By: time.Second, Times: 2}}})
	for i, want := range []time.Duration{time.Second, time.Second, 0} {
		if got := d.AnswerDelay(); got != want {
			t.Errorf("answer %d is held back by %v, want %v", i, got, want)
		}
	}
	d.ClearFaults()
	if got := d.AnswerDelay(); got != 0 {
		t.Errorf("cleared: %v", got)
	}
}

// TestFaultTimer: an idle device keeps the script's time by itself.
func TestFaultTimer(t *testing.T) {
	d := New(Options{Faults: []Fault{{Do: "port_down", At: FaultAt{Time: 20 * time.Millisecond}, For: 20 * time.Millisecond}}})
	start := time.Now()
	ctx, err := verbs.Open(d, "127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ctx.Close() }()
	s := &verbstest.Side{Name: "A", Ctx: ctx}
	event(t, s, verbs.EventPortError)
	if d := time.Since(start); d < 20*time.Millisecond {
		t.Errorf("down after %v", d)
	}
	event(t, s, verbs.EventPortActive)
	if d := time.Since(start); d < 40*time.Millisecond || d > 5*time.Second {
		t.Errorf("up after %v", d)
	}
	d.mu.Lock()
	dev := d.open[0]
	d.mu.Unlock()
	until(t, "the device to forget the script", func() bool { return dev.faults.Load() == nil })
}

// TestFaultForEver: the longest times there are neither end at once nor keep the
// device busy.
func TestFaultForEver(t *testing.T) {
	const ever = time.Duration(math.MaxInt64)
	p := faulty(t, verbstest.Fixture{}, []Fault{
		{Do: "port_down", At: FaultAt{Time: ever}},
		{Do: "duplicate", For: ever},
		{Do: "delay", By: ever, Times: 1, Match: FaultMatch{Opcode: "send"}},
	}, []Fault{{Do: "late_visibility", By: ever, Times: 1}})
	p.A.Send(verbs.SendWR{ID: 1, Op: verbs.OpSend, Flags: verbs.Signaled})
	p.B.Recv(1)
	p.A.OK(1) // sent again
	p.B.OK(1)
	p.A.Write(2, 0, 64, p.B, 0, verbs.Signaled)
	p.A.OK(2)
	for i, want := range []string{FaultWaiting, FaultActive, FaultOver} {
		if s := fault(t, p.A, i+1); s.State != want {
			t.Errorf("%+v", s)
		}
	}
	before := deviceOf(p.A.Ctx).nextScan.Load()
	if now := deviceOf(p.A.Ctx).now(); before != math.MaxInt64 && before < now-int64(time.Second) {
		t.Errorf("the next look at the timers is due since %v", time.Duration(now-before))
	}
}

// TestFaultsEndWithTheDevice: a device that closes takes what is held back along, and
// its driver's script goes on without it.
func TestFaultsEndWithTheDevice(t *testing.T) {
	d := New(Options{Faults: []Fault{{Do: "delay", By: time.Hour}, {Do: "port_down", At: FaultAt{Time: 30 * time.Millisecond}}}})
	ctx, err := verbs.Open(d, "127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	d.mu.Lock()
	dev := d.open[0]
	d.mu.Unlock()
	p := faulty(t, verbstest.Fixture{}, []Fault{{Do: "delay", By: time.Hour, Match: FaultMatch{Direction: "out"}}}, nil)
	p.A.Write(1, 0, 8, p.B, 0, verbs.Signaled)
	a := deviceOf(p.A.Ctx)
	a.drv.script.mu.Lock()
	n := len(a.player.out)
	a.drv.script.mu.Unlock()
	if n == 0 {
		t.Error("nothing is held back")
	}
	if err := ctx.Close(); err != nil {
		t.Fatal(err)
	}
	if _, open := <-ctx.Events(); open {
		t.Error("an event of a closed device")
	}
	until(t, "the port to go down", func() bool { return d.Faults()[1].State == FaultActive })
	if _, err := d.AddFault(Fault{Do: "gid_move", At: FaultAt{Time: time.Nanosecond}}); err != nil {
		t.Error(err)
	}
	if dev.faults.Load() != nil {
		t.Error("a closed device plays on")
	}
	// A device that is opened now is in the middle of the script.
	ctx, err = verbs.Open(d, "127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	port, err := ctx.Port(1)
	if err != nil || port.State != verbs.PortDown {
		t.Errorf("port %v, %v", port.State, err)
	}
	d.ClearFaults()
	if e := <-ctx.Events(); e.Type != verbs.EventPortActive {
		t.Errorf("event %v", e.Type)
	}
	if err := ctx.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestFaultsChurn adds, lists and clears faults while there is traffic, and while
// devices of the driver come and go.
func TestFaultsChurn(t *testing.T) {
	r := verbstest.Seed(t)
	p := faulty(t, verbstest.Fixture{Size: 128 << 10}, nil, nil)
	kinds := []Fault{
		{Do: "drop", Rate: 0.05}, {Do: "duplicate", Rate: 0.3}, {Do: "reorder", Rate: 0.1}, {Do: "delay", Rate: 0.1, By: time.Millisecond},
		{Do: "corrupt_wire", Rate: 0.05}, {Do: "bandwidth", BitsPerSecond: 2e9}, {Do: "late_write", Rate: 0.05, By: time.Millisecond},
		{Do: "port_down", For: time.Millisecond}, {Do: "gid_move", For: time.Millisecond}, {Do: "delay_answer", By: 1, Times: 3},
		{Do: "fail", Op: "open", Times: 1}, {Do: "late_visibility", At: FaultAt{Time: time.Hour}},
	}
	var stop atomic.Bool
	var wg sync.WaitGroup
	for _, s := range []*verbstest.Side{p.A, p.B} {
		d, fr := driverOf(s), rand.New(rand.NewPCG(r.Uint64(), 1))
		wg.Go(func() {
			pace := time.NewTicker(500 * time.Microsecond)
			defer pace.Stop()
			for !stop.Load() {
				<-pace.C
				f := kinds[fr.IntN(len(kinds))]
				f.At.Packets = 0
				if fr.IntN(3) == 0 && f.At.Time == 0 {
					f.At.Packets = fr.Uint64N(40)
				}
				id, err := d.AddFault(f)
				if err != nil {
					t.Error(err)
				}
				d.Faults()
				d.AnswerDelay()
				c, err := verbs.Open(d, "127.0.0.3")
				if err == nil {
					err = c.Close()
				}
				if err != nil && !errors.Is(err, unix.EIO) {
					t.Error(err)
				}
				if fr.IntN(4) == 0 {
					d.ClearFaults()
				} else if fr.IntN(3) == 0 {
					d.ClearFaults(id)
				}
			}
		})
	}
	exchange(t, p, r, 150)
	stop.Store(true)
	wg.Wait()
	for _, s := range []*verbstest.Side{p.A, p.B} {
		driverOf(s).ClearFaults()
		if n := driverOf(s).script.down.Load() + driverOf(s).script.moved.Load(); n != 0 {
			t.Errorf("%s: %d faults hold on though there are none", s.Name, n)
		}
	}
	exchange(t, p, r, 10)
}

// FuzzFaultPeer: whatever is taken for a peer is one, and says what it meant.
func FuzzFaultPeer(f *testing.F) {
	for _, s := range []string{"", "127.0.0.1", "127.0.0.1:4791", "10.0.0.0/8", "fd00::1", "[fd00::1]", "[fd00::1]:1", "fe80::1%eth0", "::ffff:10.0.0.1", "x", "/"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		p, err := parseFaultPeer(s)
		if err != nil {
			if p != (faultPeer{}) {
				t.Errorf("%q: %v and %+v", s, err, p)
			}
			return
		}
		if s == "" {
			return
		}
		if !p.prefix.IsValid() || !p.is(netip.AddrPortFrom(p.prefix.Addr(), max(p.port, 1))) {
			t.Errorf("%q: %+v is not itself", s, p)
		}
	})
}
