package soft

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/railstore/railstore/verbs"
	"github.com/railstore/railstore/verbs/verbstest"
)

// TestFaultLateVisibility: the word overtakes the payload, unless something asks
// for order.
func TestFaultLateVisibility(t *testing.T) {
	const by = 500 * time.Millisecond
	p := faulty(t, verbstest.Fixture{}, nil, []Fault{{Do: "late_visibility", By: by}})
	r := verbstest.Seed(t)
	const n = 10000 // several packets
	payload, stale := p.A.Bytes()[64:64+n], make([]byte, n)
	there := func() []byte { return p.B.Bytes()[64 : 64+n] }
	renew := func() {
		p.A.Until("the payload of the last time", func() bool {
			s := driverOf(p.B).script
			s.mu.Lock()
			defer s.mu.Unlock()
			return deviceOf(p.B.Ctx).player.late.Load() == 0
		})
		clear(there())
		verbstest.Fill(r, payload)
	}
	word := uint64(0)
	commit := func() {
		word++
		verbs.StoreWord(p.A.Bytes(), word)
		p.A.Write(2, 0, 8, p.B, 0, verbs.Signaled)
	}
	renew()
	p.A.Write(1, 64, n, p.B, 64, verbs.Signaled)
	commit()
	p.A.OK(1)
	p.A.OK(2)
	seen := time.Now()
	if got := verbs.LoadWord(p.B.Bytes()); got != word {
		t.Fatalf("the word is %d", got)
	}
	if !bytes.Equal(there(), stale) {
		t.Error("the payload was there before its time")
	}
	p.B.Until("the payload", func() bool { return bytes.Equal(there(), payload) })
	if d := time.Since(seen); d < by/2 {
		t.Errorf("the payload was late by %v only", d)
	}

	addr, rkey := p.B.At(64)
	for name, ask := range map[string]func(){
		"READ": func() {
			p.A.Send(verbs.SendWR{ID: 3, Op: verbs.OpRead, RemoteAddr: addr, RKey: rkey, Flags: verbs.Signaled}, p.A.SGE(32<<10, n))
			p.A.OK(3)
			if !bytes.Equal(p.A.Bytes()[32<<10:32<<10+n], payload) {
				t.Error("a READ brought old payload")
			}
		},
		"SEND": func() {
			p.B.Recv(4)
			p.A.Send(verbs.SendWR{ID: 3, Op: verbs.OpSend, Flags: verbs.Signaled})
			p.B.OK(4)
			p.A.OK(3)
		},
		"WRITE with immediate": func() {
			p.B.Recv(4)
			p.A.Send(verbs.SendWR{ID: 3, Op: verbs.OpWriteImm, Flags: verbs.Signaled, RemoteAddr: addr, RKey: rkey}, p.A.SGE(64, 100))
			p.B.OK(4)
			p.A.OK(3)
		},
		"a word over it": func() {
			verbs.StoreWord(payload[16:24], 42)
			p.A.Write(3, 64+16, 8, p.B, 64+16, verbs.Signaled)
			p.A.OK(3)
		},
	} {
		renew()
		p.A.Write(1, 64, n, p.B, 64, verbs.Signaled)
		p.A.OK(1)
		ask()
		if !bytes.Equal(there(), payload) {
			t.Errorf("%s: the payload is not there", name)
		}
	}
}

// TestFaultLateWrite: what was written comes long after its sender was told that it
// failed. It lands while the receiver has the QP, and finds none once it was replaced.
func TestFaultLateWrite(t *testing.T) {
	const by = 300 * time.Millisecond // longer than all tries of the sender
	for _, dir := range []string{"in", "out"} {
		for _, replaced := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/replaced=%v", dir, replaced), func(t *testing.T) {
				p := faulty(t, impatient(), nil, nil)
				at := p.B
				if dir == "out" {
					at = p.A
				}
				id := add(t, at, Fault{Do: "late_write", By: by, For: by / 2, Match: FaultMatch{Direction: dir}})
				verbs.StoreWord(p.A.Bytes(), 7)
				p.A.Write(1, 0, 8, p.B, 0, verbs.Signaled)
				p.A.Bad(1, verbs.WCRetryExceeded)
				if err := p.A.QP.Close(); err != nil {
					t.Fatal(err)
				}
				if verbs.LoadWord(p.B.Bytes()) != 0 {
					t.Fatal("the WRITE was not late")
				}
				if replaced {
					if err := p.B.QP.Close(); err != nil {
						t.Fatal(err)
					}
					a, b := linkPair(t, p, p.A.CQ)
					defer func() { _, _ = a.Close(), b.Close() }()
				}
				hits := fault(t, at, id).Hits
				if !replaced {
					p.B.Until("the late WRITE", func() bool { return verbs.LoadWord(p.B.Bytes()) == 7 })
					return
				}
				p.B.Until("the late packets", func() bool { return deviceOf(p.B.Ctx).count().UnknownQP >= hits })
				if w := verbs.LoadWord(p.B.Bytes()); w != 0 || hits == 0 {
					t.Errorf("%d packets were late, and the word is %d", hits, w)
				}
			})
		}
	}
}

// TestLateNeverLands plays receivers that destroy what a late WRITE is meant for and
// use the memory again: it keeps its new contents, whenever the WRITE comes.
func TestLateNeverLands(t *testing.T) {
	rounds := 3000
	if raceEnabled {
		rounds = 600
	}
	if testing.Short() {
		rounds = 200
	}
	const size = 1024
	r := verbstest.Seed(t)
	by := func() time.Duration { return time.Duration(50+r.IntN(400)) * time.Microsecond }
	p := faulty(t, verbstest.Fixture{},
		[]Fault{{Do: "late_write", Rate: 0.3, By: by(), Seed: r.Uint64(), Match: FaultMatch{Direction: "out"}}},
		[]Fault{{Do: "late_write", Rate: 0.3, By: by(), Seed: r.Uint64(), Match: FaultMatch{Direction: "in"}},
			{Do: "late_visibility", Rate: 0.5, By: by(), Seed: r.Uint64()}})
	spare, err := p.A.Ctx.CreateCQ(64)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := spare.Close(); err != nil {
			t.Error(err)
		}
	})
	memory, err := verbs.MapRegion(size)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := memory.Close(); err != nil {
			t.Error(err)
		}
	})
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	post := func(q *verbs.QP, op verbs.Opcode, to verbs.RemoteRegion, at, n int, flags verbs.SendFlags) {
		_, err := q.PostSend([]verbs.SendWR{{Op: op, RemoteAddr: to.Addr + uint64(at), RKey: to.RKey, NumSGE: 1, Flags: flags}}, []verbs.SGE{p.A.SGE(at, n)})
		must(err)
	}
	wait := func(d *device) func() bool {
		return func() bool {
			d.Progress()
			d.drv.script.mu.Lock()
			defer d.drv.script.mu.Unlock()
			return len(d.player.in)+len(d.player.out) == 0 && d.player.late.Load() == 0
		}
	}
	var wcs [16]verbs.WC
	refused, landed := uint64(0), 0
	for round := range rounds {
		mr, err := p.B.PD.Register(memory, verbstest.All)
		must(err)
		a, b := linkPair(t, p, spare)
		verbstest.Fill(r, p.A.Bytes()[:size])
		verbs.StoreWord(p.A.Bytes(), uint64(round)+1)
		clear(memory.Bytes())
		post(a, verbs.OpWrite, mr.Remote(), 64, 256, 0)
		post(a, verbs.OpWrite, mr.Remote(), 0, 8, 0)
		for range r.IntN(60) {
			p.B.Ctx.Progress()
		}
		if verbs.LoadWord(memory.Bytes()) != 0 {
			landed++
		}
		how := r.IntN(3)
		switch how {
		case 0:
			must(b.Close())
		case 1:
			must(mr.Close())
		case 2:
			must(b.Modify(verbs.QPAttr{State: verbs.QPReset}, verbs.MaskState))
		}
		// The memory is its owner's again, and another QP takes the place.
		mine := byte(r.Uint32() | 1)
		for i := range memory.Bytes() {
			memory.Bytes()[i] = mine
		}
		a2, b2 := linkPair(t, p, spare)
		to := p.B.MR.Remote()
		post(a2, verbs.OpWrite, to, 0, 200, 0)
		post(a2, verbs.OpWrite, to, 200, 8, verbs.Signaled)
		until(t, "the new QP's WRITE", func() bool {
			p.B.Ctx.Progress()
			n, err := spare.Poll(wcs[:])
			must(err)
			for _, w := range wcs[:n] {
				if w.QPN == a2.QPN() && w.Status == verbs.WCSuccess {
					return true
				}
			}
			return false
		})
		until(t, "late packets to leave", wait(deviceOf(p.A.Ctx)))
		until(t, "late packets to arrive", wait(deviceOf(p.B.Ctx)))
		if !bytes.Equal(p.B.Bytes()[:208], p.A.Bytes()[:208]) {
			t.Fatalf("round %d: the new QP's bytes are not there", round)
		}
		for i, v := range memory.Bytes() {
			if v != mine {
				t.Fatalf("round %d, way %d: byte %d was written after its owner had it back", round, how, i)
			}
		}
		for _, q := range []*verbs.QP{a, b, a2, b2} {
			must(q.Close())
		}
		must(mr.Close())
		_, err = spare.Poll(wcs[:])
		must(err)
	}
	refused = deviceOf(p.B.Ctx).count().UnknownQP
	for _, s := range append(driverOf(p.A).Faults(), driverOf(p.B).Faults()...) {
		if s.Hits < uint64(rounds/10) {
			t.Errorf("%s hit %d times in %d rounds", s.Fault.Do, s.Hits, rounds)
		}
	}
	t.Logf("%d rounds: in %d the word was there first, %d late packets found no QP", rounds, landed, refused)
	if refused == 0 || landed == 0 || landed == rounds {
		t.Error("the rounds did not differ")
	}
}
