package verbstest

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/railstore/railstore/verbs"
)

var protectCases = []namedCase{
	{"remote", caseRemoteProtection},
	{"rights_of_mr", caseRightsOfMR},
	{"rights_of_qp", caseRightsOfQP},
	{"local_keys", caseLocalKeys},
	{"read_into_read_only", caseReadIntoReadOnly},
	{"other_pd", caseOtherPD},
	{"recv_too_small", caseRecvTooSmall},
	{"recv_bad_lkey", caseRecvBadLKey},
	{"closed_mr", caseClosedMR},
}

// caseRemoteProtection: what is outside the peer's memory is refused and nothing
// there changes.
func caseRemoteProtection(t *testing.T, open Open) {
	type target struct {
		name string
		at   func(s *Side) (uint64, uint32)
		n    int
	}
	targets := []target{
		{"rkey 0", func(s *Side) (uint64, uint32) { a, _ := s.At(0); return a, 0 }, 8},
		{"wrong rkey", func(s *Side) (uint64, uint32) { a, k := s.At(0); return a, k ^ 0x5500 }, 8},
		{"lkey for rkey", func(s *Side) (uint64, uint32) { a, _ := s.At(0); return a, s.MR.LKey() }, 8},
		{"before the start", func(s *Side) (uint64, uint32) { a, k := s.At(0); return a - 8, k }, 8},
		{"one byte over the end", func(s *Side) (uint64, uint32) { a, k := s.At(s.Fix.Size - 7); return a, k }, 8},
		{"far over the end", func(s *Side) (uint64, uint32) { a, k := s.At(s.Fix.Size - 4096); return a, k }, 10000},
		{"address that wraps", func(s *Side) (uint64, uint32) { _, k := s.At(0); return ^uint64(0) - 3, k }, 8},
	}
	for _, tg := range targets {
		for _, op := range []verbs.Opcode{verbs.OpWrite, verbs.OpWriteImm, verbs.OpRead, verbs.OpCAS, verbs.OpFAA} {
			if (op == verbs.OpCAS || op == verbs.OpFAA) && (tg.n != 8 || tg.name == "one byte over the end" || tg.name == "address that wraps") {
				continue // not aligned, or not 8 bytes: the front refuses it
			}
			t.Run(tg.name+"/"+op.String(), func(t *testing.T) {
				p := Fixture{}.New(t, open)
				if tg.name == "lkey for rkey" && p.B.MR.LKey() == p.B.MR.RKey() {
					t.Skip("this device has one key for both")
				}
				for i := range p.B.Bytes() {
					p.B.Bytes()[i] = 0x5a
				}
				p.B.Recv(9)
				addr, rkey := tg.at(p.B)
				p.A.Send(verbs.SendWR{ID: 3, Flags: verbs.Signaled, Op: op, RemoteAddr: addr, RKey: rkey, CompareAdd: 1}, p.A.SGE(0, tg.n))
				p.A.Write(4, 0, 8, p.B, 0, 0) // must be flushed, not executed
				p.A.Bad(3, verbs.WCRemAccess)
				p.A.Bad(4, verbs.WCFlush)
				want := bytes.Repeat([]byte{0x5a}, p.B.Fix.Size)
				// A WRITE that ends outside may have placed what was inside.
				if tg.name == "far over the end" {
					want = want[:p.B.Fix.Size-4096]
				}
				if d := firstDiff(p.B.Bytes()[:len(want)], want); d != len(want) {
					t.Fatalf("byte %d of the peer changed", d)
				}
			})
		}
	}
}

func caseRightsOfMR(t *testing.T, open Open) {
	for op, lacking := range map[verbs.Opcode]verbs.Access{
		verbs.OpWrite: verbs.LocalWrite | verbs.RemoteRead | verbs.RemoteAtomic,
		verbs.OpRead:  verbs.LocalWrite | verbs.RemoteWrite | verbs.RemoteAtomic,
		verbs.OpFAA:   verbs.LocalWrite | verbs.RemoteWrite | verbs.RemoteRead,
		verbs.OpCAS:   verbs.LocalWrite | verbs.RemoteWrite | verbs.RemoteRead,
	} {
		t.Run(op.String(), func(t *testing.T) {
			p := Fixture{MakeMemory: func(s *Side) error {
				if s.Name == "B" {
					f := *s.Fix
					f.Access = lacking
					s.Fix = &f
				}
				return s.DefaultMemory()
			}}.New(t, open)
			addr, rkey := p.B.At(0)
			p.A.Send(verbs.SendWR{ID: 3, Flags: verbs.Signaled, Op: op, RemoteAddr: addr, RKey: rkey, CompareAdd: 1}, p.A.SGE(0, 8))
			p.A.Bad(3, verbs.WCRemAccess)
			if !allZero(p.B.Bytes()) {
				t.Fatal("the memory changed")
			}
		})
	}
}

func caseRightsOfQP(t *testing.T, open Open) {
	for op, right := range map[verbs.Opcode]verbs.Access{verbs.OpWrite: verbs.RemoteWrite, verbs.OpRead: verbs.RemoteRead, verbs.OpFAA: verbs.RemoteAtomic} {
		t.Run(op.String(), func(t *testing.T) {
			p := Fixture{QPAccess: All &^ right}.New(t, open)
			addr, rkey := p.B.At(0)
			p.A.Send(verbs.SendWR{ID: 3, Flags: verbs.Signaled, Op: op, RemoteAddr: addr, RKey: rkey, CompareAdd: 1}, p.A.SGE(0, 8))
			p.A.Bad(3, verbs.WCRemInvReq, verbs.WCRemAccess)
			if !allZero(p.B.Bytes()) {
				t.Fatal("the memory changed")
			}
		})
	}
}

func caseLocalKeys(t *testing.T, open Open) { localKeys(t, open, verbs.WCLocProt) }

func localKeys(t *testing.T, open Open, want ...verbs.WCStatus) {
	bad := map[string]func(s *Side) verbs.SGE{
		"lkey 0":        func(s *Side) verbs.SGE { g := s.SGE(0, 8); g.LKey = 0; return g },
		"wrong lkey":    func(s *Side) verbs.SGE { g := s.SGE(0, 8); g.LKey ^= 0x5500; return g },
		"rkey for lkey": func(s *Side) verbs.SGE { g := s.SGE(0, 8); g.LKey = s.MR.RKey(); return g },
		"over the end":  func(s *Side) verbs.SGE { g := s.SGE(s.Fix.Size-8, 8); g.Length = 9; return g },
		"before start":  func(s *Side) verbs.SGE { g := s.SGE(0, 8); g.Addr--; return g },
	}
	for name, sge := range bad {
		for _, op := range []verbs.Opcode{verbs.OpSend, verbs.OpWrite, verbs.OpRead} {
			t.Run(name+"/"+op.String(), func(t *testing.T) {
				p := Fixture{}.New(t, open)
				g := sge(p.A)
				if name == "rkey for lkey" && p.A.MR.LKey() == p.A.MR.RKey() {
					t.Skip("this device has one key for both")
				}
				p.B.Recv(9, p.B.SGE(0, 64))
				addr, rkey := p.B.At(0)
				p.A.Send(verbs.SendWR{ID: 3, Flags: verbs.Signaled, Op: op, RemoteAddr: addr, RKey: rkey}, g)
				p.A.Bad(3, want...)
			})
		}
	}
}

func caseReadIntoReadOnly(t *testing.T, open Open) {
	p := Fixture{MakeMemory: func(s *Side) error {
		if s.Name == "A" {
			f := *s.Fix
			f.Access = verbs.RemoteRead
			s.Fix = &f
		}
		return s.DefaultMemory()
	}}.New(t, open)
	p.B.Bytes()[0] = 1
	addr, rkey := p.B.At(0)
	p.A.Write(2, 0, 8, p.B, 64, verbs.Signaled) // sending from it is allowed
	p.A.OK(2)
	p.A.Send(verbs.SendWR{ID: 3, Flags: verbs.Signaled, Op: verbs.OpRead, RemoteAddr: addr, RKey: rkey}, p.A.SGE(0, 8))
	p.A.Bad(3, verbs.WCLocProt, verbs.WCLocAccess)
	if !allZero(p.A.Bytes()) {
		t.Fatal("the READ wrote into memory without local write")
	}
}

// caseOtherPD: a key is good only in its own protection domain.
func caseOtherPD(t *testing.T, open Open) {
	p := Fixture{}.New(t, open)
	pd, err := p.B.Ctx.AllocPD()
	Need(t, err)
	defer pd.Close()
	region, err := verbs.MapRegion(4096)
	Need(t, err)
	defer region.Close()
	mr, err := pd.Register(region, All)
	Need(t, err)
	defer mr.Close()
	r := mr.Remote()
	p.A.Send(verbs.SendWR{ID: 3, Flags: verbs.Signaled, Op: verbs.OpWrite, RemoteAddr: r.Addr, RKey: r.RKey}, p.A.SGE(0, 8))
	p.A.Bad(3, verbs.WCRemAccess)
}

func caseRecvTooSmall(t *testing.T, open Open) {
	recvTooSmall(t, open, []verbs.WCStatus{verbs.WCRemInvReq}, []verbs.WCStatus{verbs.WCLocLen})
}

func recvTooSmall(t *testing.T, open Open, sender, receiver []verbs.WCStatus) {
	for _, n := range []int{101, 20000} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			p := Fixture{}.New(t, open)
			for i := range p.A.Bytes() {
				p.A.Bytes()[i] = 0xee
			}
			p.B.Recv(9, p.B.SGE(0, 100))
			p.A.Send(verbs.SendWR{ID: 3, Flags: verbs.Signaled, Op: verbs.OpSend}, p.A.SGE(0, n))
			p.A.Bad(3, sender...)
			p.B.Bad(9, receiver...)
			if !allZero(p.B.Bytes()[100:]) {
				t.Fatalf("%d bytes into a receive of 100: memory after it was written", n)
			}
		})
	}
}

func caseRecvBadLKey(t *testing.T, open Open) { recvBadLKey(t, open, verbs.WCLocProt) }

func recvBadLKey(t *testing.T, open Open, receiver ...verbs.WCStatus) {
	p := Fixture{}.New(t, open)
	g := p.B.SGE(0, 100)
	g.LKey ^= 0x5500
	p.B.Recv(9, g)
	p.A.Send(verbs.SendWR{ID: 3, Flags: verbs.Signaled, Op: verbs.OpSend}, p.A.SGE(0, 50))
	p.B.Bad(9, receiver...)
	p.A.Bad(3, verbs.WCRemOp, verbs.WCRemInvReq)
}

func caseClosedMR(t *testing.T, open Open) {
	p := Fixture{}.New(t, open)
	addr, rkey := p.B.At(0)
	Need(t, p.B.MR.Close())
	p.A.Send(verbs.SendWR{ID: 3, Flags: verbs.Signaled, Op: verbs.OpWrite, RemoteAddr: addr, RKey: rkey}, p.A.SGE(0, 8))
	p.A.Bad(3, verbs.WCRemAccess)
	if !allZero(p.B.Bytes()) {
		t.Fatal("deregistered memory was written")
	}
}
