package soft

import (
	"bytes"
	"errors"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/railstore/railstore/verbs"
	"github.com/railstore/railstore/verbs/verbstest"
)

// faulty makes a pair whose sides have fault scripts.
func faulty(t testing.TB, f verbstest.Fixture, a, b []Fault) *verbstest.Pair {
	t.Helper()
	return f.New(t, func(tb testing.TB) (*verbs.Context, *verbs.Context) {
		tb.Helper()
		ca, err := openContext(Options{GIDs: v2First("127.0.0.1"), Faults: a}, "127.0.0.1")
		if err != nil {
			tb.Fatal(err)
		}
		cb, err := openContext(Options{GIDs: v2First("127.0.0.2"), Faults: b}, "127.0.0.2")
		if err != nil {
			_ = ca.Close()
			tb.Fatal(err)
		}
		return ca, cb
	})
}

func driverOf(s *verbstest.Side) *Driver { return deviceOf(s.Ctx).drv }

func add(t testing.TB, s *verbstest.Side, f Fault) int {
	t.Helper()
	id, err := driverOf(s).AddFault(f)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// fault is how far the side's fault of that number has come.
func fault(t testing.TB, s *verbstest.Side, id int) FaultStatus {
	t.Helper()
	for _, f := range driverOf(s).Faults() {
		if f.ID == id {
			return f
		}
	}
	t.Fatalf("%s: no fault %d", s.Name, id)
	return FaultStatus{}
}

// impatient is a fixture whose requester gives up soon: after 8 or 16 ms a try.
func impatient() verbstest.Fixture {
	return verbstest.Fixture{Limited: true, Path: verbs.PathOpts{RetryCount: 1, RNRRetry: 1, Timeout: 11}}
}

// exchange moves messages of every kind in both directions and expects every byte.
func exchange(t *testing.T, p *verbstest.Pair, r *rand.Rand, rounds int) {
	t.Helper()
	size := len(p.A.Bytes())
	for i := range rounds {
		from, to := p.A, p.B
		if r.IntN(2) == 0 {
			from, to = to, from
		}
		n := 1 + r.IntN(size/2)
		src, dst := r.IntN(size-n), r.IntN(size-n)
		id := verbs.WRID(i)
		verbstest.Fill(r, from.Bytes()[src:src+n])
		want := bytes.Clone(from.Bytes()[src : src+n])
		op := []verbs.Opcode{verbs.OpWrite, verbs.OpSend, verbs.OpRead}[r.IntN(3)]
		switch op {
		case verbs.OpWrite:
			from.Write(id, src, n, to, dst, verbs.Signaled)
			from.OK(id)
		case verbs.OpSend:
			to.Recv(id, to.SGE(dst, n))
			from.Send(verbs.SendWR{ID: id, Op: op, Flags: verbs.Signaled}, from.SGE(src, n))
			to.OK(id)
			from.OK(id)
		case verbs.OpRead:
			addr, rkey := from.At(src)
			to.Send(verbs.SendWR{ID: id, Op: op, RemoteAddr: addr, RKey: rkey, Flags: verbs.Signaled}, to.SGE(dst, n))
			to.OK(id)
		}
		if !bytes.Equal(to.Bytes()[dst:dst+n], want) {
			t.Fatalf("round %d: %v of %d bytes arrived otherwise", i, op, n)
		}
	}
}

// TestFaultsDelivered: what the transport repairs is repaired, byte by byte.
func TestFaultsDelivered(t *testing.T) {
	for _, f := range []Fault{
		{Do: "drop", Rate: 0.2},
		{Do: "drop", Rate: 0.2, Match: FaultMatch{Opcode: "ack"}},
		{Do: "duplicate", Rate: 0.5},
		{Do: "reorder", Rate: 0.2},
		{Do: "delay", Rate: 0.1, By: time.Millisecond},
		{Do: "delay", By: 3 * time.Millisecond},
		{Do: "corrupt_wire", Rate: 0.1},
		{Do: "bandwidth", BitsPerSecond: 2e9},
		{Do: "late_write", Rate: 0.1, By: time.Millisecond},
	} {
		for _, dir := range []string{"in", "out", ""} {
			t.Run(fmt.Sprintf("%s/%v%s/%s", f.Do, f.By, f.Match.Opcode, dir), func(t *testing.T) {
				r := verbstest.Seed(t)
				f.Match.Direction = dir
				if f.Rate > 0 {
					f.Seed = r.Uint64()
				}
				p := faulty(t, verbstest.Fixture{Size: 128 << 10}, nil, []Fault{f})
				exchange(t, p, r, 30)
				for i := 0; i < 50 && fault(t, p.B, 1).Hits == 0; i++ {
					exchange(t, p, r, 5)
				}
				s := fault(t, p.B, 1)
				if s.State != FaultActive || s.Hits == 0 {
					t.Errorf("the fault is %s after %d hits", s.State, s.Hits)
				}
				bad := deviceOf(p.A.Ctx).count().BadICRC + deviceOf(p.B.Ctx).count().BadICRC
				// Elsewhere the answer to a READ that is asked for again may be sent
				// while its memory is written for the next round.
				if f.Do == "corrupt_wire" && bad == 0 {
					t.Errorf("%d hits, no packet with a bad ICRC", s.Hits)
				}
				if st := p.A.QP.Stats(); f.Do == "duplicate" && st.Duplicates+p.B.QP.Stats().Duplicates == 0 {
					t.Errorf("no duplicate was noticed: %+v", st)
				}
				if n := driverOf(p.B).ClearFaults(); n != 1 {
					t.Errorf("%d cleared", n)
				}
				exchange(t, p, r, 5)
				until(t, "the device to forget its faults", func() bool {
					exchange(t, p, r, 1)
					return deviceOf(p.B.Ctx).faults.Load() == nil
				})
			})
		}
	}
}

// TestFaultCorrupt: the application alone can see it.
func TestFaultCorrupt(t *testing.T) {
	for _, dir := range []string{"in", "out"} {
		for _, op := range []verbs.Opcode{verbs.OpWrite, verbs.OpRead, verbs.OpSend} {
			t.Run(fmt.Sprintf("%v/%s", op, dir), func(t *testing.T) {
				r := verbstest.Seed(t)
				const n = 30000
				p := faulty(t, verbstest.Fixture{}, nil, nil)
				from, to, at := p.A, p.B, p.B // who has the data, who gets it, where it is spoilt
				if dir == "out" {
					at = p.A
				}
				verbstest.Fill(r, from.Bytes())
				clear(to.Bytes())
				id := add(t, at, Fault{Do: "corrupt", Times: 1, Seed: r.Uint64(), Match: FaultMatch{Direction: dir}})
				switch op {
				case verbs.OpWrite:
					from.Write(1, 0, n, to, 0, verbs.Signaled)
					from.OK(1)
				case verbs.OpSend:
					to.Recv(1, to.SGE(0, n))
					from.Send(verbs.SendWR{ID: 1, Op: op, Flags: verbs.Signaled}, from.SGE(0, n))
					from.OK(1)
					to.OK(1)
				case verbs.OpRead:
					addr, rkey := from.At(0)
					to.Send(verbs.SendWR{ID: 1, Op: op, RemoteAddr: addr, RKey: rkey, Flags: verbs.Signaled}, to.SGE(0, n))
					to.OK(1)
				}
				flipped := 0
				for i := range n {
					flipped += bits.OnesCount8(from.Bytes()[i] ^ to.Bytes()[i])
				}
				if s := fault(t, at, id); flipped != 1 || s.Hits != 1 || s.State != FaultOver {
					t.Errorf("%d bits differ; %+v", flipped, s)
				}
				if c := deviceOf(to.Ctx).count(); c.BadICRC+c.Malformed != 0 {
					t.Errorf("%+v", c)
				}
			})
		}
	}
}

// TestFaultBlackhole: the bytes arrive, and nobody is told.
func TestFaultBlackhole(t *testing.T) {
	p := faulty(t, verbstest.Fixture{}, nil, nil)
	id := add(t, p.A, Fault{Do: "blackhole_completions", Match: FaultMatch{Opcode: "write"}})
	verbs.StoreWord(p.A.Bytes(), 7)
	p.A.Write(1, 0, 8, p.B, 0, verbs.Signaled)
	p.B.Until("the word", func() bool { p.A.Ctx.Progress(); return verbs.LoadWord(p.B.Bytes()) == 7 })
	p.A.Until("the hit", func() bool { return fault(t, p.A, id).Hits == 1 })
	p.A.Nothing(10 * time.Millisecond)
	addr, rkey := p.B.At(0)
	p.A.Send(verbs.SendWR{ID: 2, Op: verbs.OpRead, RemoteAddr: addr, RKey: rkey, Flags: verbs.Signaled}, p.A.SGE(8, 8))
	p.A.OK(2) // READs are not meant

	in := add(t, p.B, Fault{Do: "blackhole_completions", Times: 1, Match: FaultMatch{Opcode: "recv", Direction: "in"}})
	p.B.Recv(1)
	p.B.Recv(2)
	for i := range 2 {
		p.A.Send(verbs.SendWR{ID: verbs.WRID(3 + i), Op: verbs.OpSend, Flags: verbs.Signaled})
		p.A.OK(verbs.WRID(3 + i))
	}
	p.B.OK(2)
	if s := fault(t, p.B, in); s.Hits != 1 || s.State != FaultOver {
		t.Errorf("%+v", s)
	}
}

// TestFaultZeroLength: only messages without payload are lost.
func TestFaultZeroLength(t *testing.T) {
	p := faulty(t, impatient(), nil, []Fault{{Do: "drop_zero_length", Match: FaultMatch{Direction: "in"}}})
	p.A.Write(1, 0, 8, p.B, 0, verbs.Signaled)
	p.A.OK(1)
	addr, rkey := p.B.At(0)
	p.A.Send(verbs.SendWR{ID: 2, Op: verbs.OpWrite, RemoteAddr: addr, RKey: rkey})
	p.A.Bad(2, verbs.WCRetryExceeded)
	if s := fault(t, p.B, 1); s.Hits < 2 {
		t.Errorf("%d hits", s.Hits)
	}
}

// event takes the device's next event and expects that type.
func event(t *testing.T, s *verbstest.Side, want verbs.EventType) {
	t.Helper()
	select {
	case e := <-s.Ctx.Events():
		if e.Type != want || e.Port != 1 {
			t.Fatalf("%s: event %v of port %d, want %v", s.Name, e.Type, e.Port, want)
		}
	case <-time.After(10 * time.Second):
		t.Fatalf("%s: no %v", s.Name, want)
	}
}

func noEvent(t *testing.T, s *verbstest.Side) {
	t.Helper()
	select {
	case e := <-s.Ctx.Events():
		t.Fatalf("%s: event %v", s.Name, e.Type)
	default:
	}
}

func portState(t *testing.T, s *verbstest.Side) verbs.PortState {
	t.Helper()
	a, err := s.Ctx.Port(1)
	if err != nil {
		t.Fatal(err)
	}
	return a.State
}

// silence takes the events of the connection's making.
func silence(t *testing.T, p *verbstest.Pair) {
	t.Helper()
	for _, x := range [][2]*verbstest.Side{{p.A, p.B}, {p.B, p.A}} {
		x[0].Write(99, 0, 8, x[1], 0, verbs.Signaled)
		x[0].OK(99)
	}
	for _, s := range []*verbstest.Side{p.A, p.B} {
		for len(s.Ctx.Events()) > 0 {
			<-s.Ctx.Events()
		}
	}
}

// TestFaultPortDown: nothing comes or goes, until it does again.
func TestFaultPortDown(t *testing.T) {
	for _, do := range []string{"port_down", "port_up_no_event"} {
		t.Run(do, func(t *testing.T) {
			p := faulty(t, verbstest.Fixture{}, nil, nil)
			silence(t, p)
			const down = 250 * time.Millisecond
			id := add(t, p.A, Fault{Do: do, For: down})
			start := time.Now()
			event(t, p.A, verbs.EventPortError)
			if s := portState(t, p.A); s != verbs.PortDown {
				t.Errorf("port %v", s)
			}
			p.A.Write(1, 0, 8, p.B, 0, verbs.Signaled) // lost, and sent again later
			if do == "port_down" {
				event(t, p.A, verbs.EventPortActive)
				if d := time.Since(start); d < down {
					t.Errorf("up after %v", d)
				}
			}
			p.A.OK(1)
			if d := time.Since(start); d < down {
				t.Errorf("a packet passed after %v", d)
			}
			noEvent(t, p.A)
			if s := portState(t, p.A); s != verbs.PortActive {
				t.Errorf("port %v", s)
			}
			if s := fault(t, p.A, id); s.State != FaultOver || s.Hits == 0 {
				t.Errorf("%+v", s)
			}
		})
		t.Run(do+"/for_ever", func(t *testing.T) {
			p := faulty(t, impatient(), nil, nil)
			silence(t, p)
			id := add(t, p.B, Fault{Do: do})
			event(t, p.B, verbs.EventPortError)
			p.A.Write(1, 0, 8, p.B, 0, verbs.Signaled)
			p.A.Bad(1, verbs.WCRetryExceeded)
			if n := driverOf(p.B).ClearFaults(id); n != 1 {
				t.Errorf("%d cleared", n)
			}
			if do == "port_down" {
				event(t, p.B, verbs.EventPortActive)
			}
			noEvent(t, p.B)
			if s := portState(t, p.B); s != verbs.PortActive {
				t.Errorf("port %v", s)
			}
		})
	}
}

// TestFaultRKeyBump: the old key is refused, the new one is not.
func TestFaultRKeyBump(t *testing.T) {
	p := faulty(t, verbstest.Fixture{}, nil, []Fault{{Do: "rkey_bump", At: FaultAt{Packets: 2}}})
	old := p.B.MR.RKey()
	p.A.Write(1, 0, 8, p.B, 0, verbs.Signaled)
	p.A.OK(1)
	addr, _ := p.B.At(0)
	p.A.Send(verbs.SendWR{ID: 2, Op: verbs.OpWrite, RemoteAddr: addr, RKey: old, Flags: verbs.Signaled}, p.A.SGE(0, 8))
	p.A.Bad(2, verbs.WCRemAccess)
	if s := fault(t, p.B, 1); s.State != FaultOver || s.Hits != 1 || p.B.MR.RKey() == old {
		t.Errorf("%+v; key %#x, before %#x", s, p.B.MR.RKey(), old)
	}
	a, b := linkPair(t, p, p.A.CQ)
	defer func() { _, _ = a.Close(), b.Close() }()
	wr := []verbs.SendWR{{ID: 3, Op: verbs.OpWrite, RemoteAddr: addr, RKey: p.B.MR.RKey(), NumSGE: 1, Flags: verbs.Signaled}}
	if _, err := a.PostSend(wr, []verbs.SGE{p.A.SGE(0, 8)}); err != nil {
		t.Fatal(err)
	}
	if wc := p.A.Wait(1)[0]; wc.Status != verbs.WCSuccess {
		t.Errorf("with the new key: %v", wc.Status)
	}
	// Keys stay distinct from those of later regions.
	seen := map[uint32]bool{old: true, p.B.MR.RKey(): true}
	for range 300 {
		mr, err := p.B.PD.Register(p.B.Region, verbstest.All)
		if err != nil {
			t.Fatal(err)
		}
		if seen[mr.RKey()] {
			t.Fatalf("key %#x again", mr.RKey())
		}
		seen[mr.RKey()] = true
		if err := mr.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestFaultGIDMove: the entry is at another index until the fault ends.
func TestFaultGIDMove(t *testing.T) {
	p := faulty(t, verbstest.Fixture{}, nil, nil)
	silence(t, p)
	index := func() int {
		g, err := p.A.Ctx.GIDs(1)
		if err != nil || len(g) != 1 {
			t.Fatal(g, err)
		}
		return g[0].Index
	}
	id := add(t, p.A, Fault{Do: "gid_move"})
	event(t, p.A, verbs.EventGIDChange)
	if i := index(); i != 1 {
		t.Errorf("the GID is at index %d", i)
	}
	connect := func(at int) error {
		qp, err := p.A.PD.CreateQP(verbs.QPInit{SendCQ: p.A.CQ, RecvCQ: p.A.CQ, Cap: p.A.Fix.Cap})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = qp.Close() }()
		path := p.A.Fix.Path
		path.SGIDIndex = at
		return qp.Connect(p.A.Local, p.B.Local, path, nil)
	}
	if err := connect(0); err == nil {
		t.Error("connected from an index where no GID is")
	}
	if err := connect(1); err != nil {
		t.Error(err)
	}
	driverOf(p.A).ClearFaults(id)
	event(t, p.A, verbs.EventGIDChange)
	if i := index(); i != 0 {
		t.Errorf("the GID came back to index %d", i)
	}
	if err := connect(0); err != nil {
		t.Error(err)
	}
}

// TestFaultFail: each verb fails as often as it is told to, with its errno.
func TestFaultFail(t *testing.T) {
	for _, x := range []struct {
		op    string
		errno string
		want  error
		kind  error
	}{
		{"open", "ENODEV", unix.ENODEV, verbs.ErrNotFound},
		{"reg_mr", "ENOMEM", unix.ENOMEM, verbs.ErrNoMemory},
		{"create_cq", "EINVAL", unix.EINVAL, verbs.ErrInvalid},
		{"create_qp", "", unix.EIO, verbs.ErrDevice},
		{"modify_rtr", "ETIMEDOUT", unix.ETIMEDOUT, verbs.ErrDevice},
		{"post_send", "ENOMEM", unix.ENOMEM, verbs.ErrSQFull},
	} {
		t.Run(x.op, func(t *testing.T) {
			p := faulty(t, verbstest.Fixture{}, nil, nil)
			d := driverOf(p.A)
			id := add(t, p.A, Fault{Do: "fail", Op: x.op, Errno: x.errno, Times: 2})
			call := func() error {
				switch x.op {
				case "open":
					c, err := verbs.Open(d, "127.0.0.3")
					if err == nil {
						return c.Close()
					}
					return err
				case "reg_mr":
					mr, err := p.A.PD.Register(p.A.Region, verbstest.All)
					if err == nil {
						return mr.Close()
					}
					return err
				case "create_cq":
					cq, err := p.A.Ctx.CreateCQ(4)
					if err == nil {
						return cq.Close()
					}
					return err
				case "post_send":
					addr, rkey := p.B.At(0)
					_, err := p.A.QP.PostSend([]verbs.SendWR{{Op: verbs.OpWrite, RemoteAddr: addr, RKey: rkey, NumSGE: 1}}, []verbs.SGE{p.A.SGE(0, 8)})
					return err
				}
				qp, err := p.A.PD.CreateQP(verbs.QPInit{SendCQ: p.A.CQ, RecvCQ: p.A.CQ, Cap: p.A.Fix.Cap})
				if err != nil {
					return err
				}
				return errors.Join(qp.Connect(p.A.Local, p.B.Local, p.A.Fix.Path, nil), qp.Close())
			}
			for i := range 4 {
				err := call()
				if i >= 2 {
					if err != nil {
						t.Errorf("call %d: %v", i, err)
					}
					continue
				}
				if !errors.Is(err, x.want) || !errors.Is(err, x.kind) {
					t.Errorf("call %d: %v is not %v with %v", i, err, x.kind, x.want)
				}
			}
			if s := fault(t, p.A, id); s.Hits != 2 || s.State != FaultOver {
				t.Errorf("%+v", s)
			}
		})
	}
}

// TestFaultMatch: what does not match is left alone.
func TestFaultMatch(t *testing.T) {
	r := verbstest.Seed(t)
	for _, m := range []FaultMatch{{Peer: "127.0.0.9"}, {Peer: "10.0.0.0/8"}, {Opcode: "atomic"}, {Opcode: "send_imm"}, {Opcode: "rnr"}} {
		p := faulty(t, verbstest.Fixture{}, nil, []Fault{{Do: "drop", Match: m}})
		exchange(t, p, r, 10)
		if s := fault(t, p.B, 1); s.Hits != 0 {
			t.Errorf("%+v hit %d", m, s.Hits)
		}
	}
	port, err := faulty(t, verbstest.Fixture{}, nil, nil).A.Ctx.Port(1)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range []FaultMatch{{Peer: "127.0.0.1"}, {Peer: "127.0.0.0/8"}, {Opcode: "write"}, {Direction: "in"}, {Opcode: "ack", Direction: "out"}} {
		p := faulty(t, impatient(), nil, []Fault{{Do: "drop", Match: m}})
		p.A.Write(1, 0, 8, p.B, 0, verbs.Signaled)
		p.A.Bad(1, verbs.WCRetryExceeded)
	}
	p := faulty(t, verbstest.Fixture{}, nil, []Fault{{Do: "drop", Match: FaultMatch{Peer: fmt.Sprintf("127.0.0.1:%d", port.UDPPort)}}})
	exchange(t, p, r, 5) // another device of that address
}

// TestFaultBandwidth: the line carries what is left of it.
func TestFaultBandwidth(t *testing.T) {
	const size, rate = 4 << 20, 400e6
	for _, dir := range []string{"in", "out"} {
		t.Run(dir, func(t *testing.T) {
			p := faulty(t, verbstest.Fixture{Size: size}, nil, nil)
			at := p.A
			if dir == "in" {
				at = p.B
			}
			add(t, at, Fault{Do: "bandwidth", BitsPerSecond: rate, Match: FaultMatch{Direction: dir}})
			start := time.Now()
			p.A.Write(1, 0, size, p.B, 0, verbs.Signaled)
			p.A.OK(1)
			d := time.Since(start)
			if least := time.Duration(size * 8 / rate * 1e9); d < least*9/10 || d > 20*least {
				t.Errorf("%d bytes took %v, at that bandwidth it is %v", size, d, least)
			}
			t.Logf("%.0f Mb/s, %d packets sent again", size*8/d.Seconds()/1e6, p.A.QP.Stats().Retransmits)
		})
	}
}
