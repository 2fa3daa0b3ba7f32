package verbstest

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/railstore/railstore/verbs"
)

// Open opens two devices that reach each other. They may be of one device. The
// caller closes them.
type Open func(tb testing.TB) (a, b *verbs.Context)

// patience bounds every wait of the suite.
const patience = 20 * time.Second

// All are all rights.
const All = verbs.LocalWrite | verbs.RemoteWrite | verbs.RemoteRead | verbs.RemoteAtomic

// Fixture says what a Pair is made of. Zero fields get the values said beside
// them. A step that is set replaces the default one; each runs for A, then for B.
type Fixture struct {
	Size     int            // bytes of registered memory a side: 64 KiB
	Access   verbs.Access   // of the MR: All
	QPAccess verbs.Access   // of the QP: All
	Cap      verbs.QPCap    // 64 requests of 4 elements, both ways
	Depth    int            // of the CQ: all that a QP can complete
	SigAll   bool           // every send is signaled
	Path     verbs.PathOpts // unless Limited is set, RetryCount and RNRRetry are 7 and Timeout is 17 (0.5 s)
	Limited  bool           // take RetryCount and RNRRetry as they are

	MakePD     func(*Side) error
	MakeCQ     func(*Side) error
	MakeMemory func(*Side) error
	MakeQP     func(*Side) error
	Connect    func(self, peer *Side) error
}

// Side is one end of a Pair.
type Side struct {
	TB     testing.TB
	Name   string
	Fix    *Fixture
	Ctx    *verbs.Context
	PD     *verbs.PD
	CQ     *verbs.CQ
	Region *verbs.Region
	MR     *verbs.MR
	QP     *verbs.QP
	Local  verbs.Endpoint
}

// Pair is two devices with a connected QP each.
type Pair struct{ A, B *Side }

// Need fails the test on an error, or skips it when the provider says that it
// does not support this.
func Need(tb testing.TB, err error) {
	tb.Helper()
	if errors.Is(err, verbs.ErrNotSupported) {
		tb.Skipf("the provider does not support this: %v", err)
	}
	if err != nil {
		tb.Fatal(err)
	}
}

// New makes the pair; the test's end takes it down in order and fails if
// something cannot be closed.
func (f Fixture) New(tb testing.TB, open Open) *Pair {
	tb.Helper()
	if f.Size == 0 {
		f.Size = 64 << 10
	}
	if f.Access == 0 {
		f.Access = All
	}
	if f.QPAccess == 0 {
		f.QPAccess = All
	}
	if f.Cap == (verbs.QPCap{}) {
		f.Cap = verbs.QPCap{MaxSendWR: 64, MaxRecvWR: 64, MaxSendSGE: 4, MaxRecvSGE: 4}
	}
	if f.Depth == 0 {
		f.Depth = 2 * (f.Cap.MaxSendWR + f.Cap.MaxRecvWR)
	}
	if !f.Limited {
		f.Path.RetryCount, f.Path.RNRRetry = 7, 7
		if f.Path.Timeout == 0 {
			// A busy machine takes the processor away for longer than eight
			// times the usual 67 ms.
			f.Path.Timeout = 17
		}
	}
	f.Path.Access = f.QPAccess
	a, b := open(tb)
	p := &Pair{A: &Side{TB: tb, Name: "A", Fix: &f, Ctx: a}, B: &Side{TB: tb, Name: "B", Fix: &f, Ctx: b}}
	for _, s := range []*Side{p.A, p.B} {
		tb.Cleanup(s.close)
	}
	for _, s := range []*Side{p.A, p.B} {
		Need(tb, orDefault(f.MakePD, (*Side).DefaultPD)(s))
		Need(tb, orDefault(f.MakeCQ, (*Side).DefaultCQ)(s))
		Need(tb, orDefault(f.MakeMemory, (*Side).DefaultMemory)(s))
		Need(tb, orDefault(f.MakeQP, (*Side).DefaultQP)(s))
	}
	connect := f.Connect
	if connect == nil {
		connect = func(self, peer *Side) error { return self.QP.Connect(self.Local, peer.Local, f.Path, nil) }
	}
	Need(tb, connect(p.A, p.B))
	Need(tb, connect(p.B, p.A))
	return p
}

func orDefault(f, d func(*Side) error) func(*Side) error {
	if f != nil {
		return f
	}
	return d
}

// DefaultPD allocates the PD.
func (s *Side) DefaultPD() (err error) {
	s.PD, err = s.Ctx.AllocPD()
	return err
}

// DefaultCQ makes one CQ for sends and receives.
func (s *Side) DefaultCQ() (err error) {
	s.CQ, err = s.Ctx.CreateCQ(s.Fix.Depth)
	return err
}

// DefaultMemory maps and registers the memory.
func (s *Side) DefaultMemory() (err error) {
	if s.Region, err = verbs.MapRegion(s.Fix.Size); err != nil {
		return err
	}
	s.MR, err = s.PD.Register(s.Region, s.Fix.Access)
	return err
}

// DefaultQP creates the QP and fills Local.
func (s *Side) DefaultQP() (err error) {
	s.QP, err = s.PD.CreateQP(verbs.QPInit{SendCQ: s.CQ, RecvCQ: s.CQ, Cap: s.Fix.Cap, SigAll: s.Fix.SigAll})
	if err != nil {
		return err
	}
	s.Local, err = s.EndpointOf(s.QP)
	return err
}

// EndpointOf is what a peer must know to connect to a QP of this side. The first
// PSN is near its end so that every test wraps it.
func (s *Side) EndpointOf(qp *verbs.QP) (verbs.Endpoint, error) {
	port, err := s.Ctx.Port(1)
	if err != nil {
		return verbs.Endpoint{}, err
	}
	gids, err := s.Ctx.GIDs(1)
	if err != nil {
		return verbs.Endpoint{}, err
	}
	ep := verbs.Endpoint{LID: port.LID, QPN: qp.QPN(), PSN: 0xfffff0, MTU: port.ActiveMTU, UDPPort: port.UDPPort}
	for _, g := range gids {
		if g.Index == s.Fix.Path.SGIDIndex {
			ep.GID, ep.GIDType = g.GID, g.Type
		}
	}
	return ep, nil
}

func (s *Side) close() {
	s.TB.Helper()
	check := func(what string, err error) {
		if err != nil {
			s.TB.Errorf("%s: closing the %s: %v", s.Name, what, err)
		}
	}
	if s.QP != nil {
		check("QP", s.QP.Close())
	}
	if s.CQ != nil {
		check("CQ", s.CQ.Close())
	}
	if s.MR != nil {
		check("MR", s.MR.Close())
	}
	if s.Region != nil {
		check("region", s.Region.Close())
	}
	if s.PD != nil {
		check("PD", s.PD.Close())
	}
	if s.Ctx != nil {
		check("device", s.Ctx.Close())
	}
}

// Bytes is the side's memory.
func (s *Side) Bytes() []byte { return s.Region.Bytes() }

// At is the remote address of an offset, and the key.
func (s *Side) At(off int) (addr uint64, rkey uint32) {
	r := s.MR.Remote()
	return r.Addr + uint64(off), r.RKey
}

// Send posts one request over the given elements and fails the test if the QP
// does not take it.
func (s *Side) Send(wr verbs.SendWR, sges ...verbs.SGE) {
	s.TB.Helper()
	wr.NumSGE = uint16(len(sges))
	n, err := s.QP.PostSend([]verbs.SendWR{wr}, sges)
	if n != 1 || err != nil {
		Need(s.TB, err)
		s.TB.Fatalf("%s: post %v: %d taken", s.Name, wr.Op, n)
	}
}

// Recv posts one receive.
func (s *Side) Recv(id verbs.WRID, sges ...verbs.SGE) {
	s.TB.Helper()
	n, err := s.QP.PostRecv([]verbs.RecvWR{{ID: id, NumSGE: uint16(len(sges))}}, sges)
	if n != 1 || err != nil {
		Need(s.TB, err)
		s.TB.Fatalf("%s: post receive: %d taken", s.Name, n)
	}
}

// SGE is part of the side's memory.
func (s *Side) SGE(off, n int) verbs.SGE { return s.MR.SGE(uint64(off), uint64(n)) }

// Write is a WRITE from this side's memory to the peer's.
func (s *Side) Write(id verbs.WRID, off, n int, peer *Side, peerOff int, flags verbs.SendFlags) {
	s.TB.Helper()
	addr, rkey := peer.At(peerOff)
	s.Send(verbs.SendWR{ID: id, Op: verbs.OpWrite, RemoteAddr: addr, RKey: rkey, Flags: flags}, s.SGE(off, n))
}

// Wait gets n completions, in order.
func (s *Side) Wait(n int) []verbs.WC {
	s.TB.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	out := make([]verbs.WC, n)
	for got := 0; got < n; {
		k, err := s.CQ.PollWait(ctx, out[got:], 64)
		got += k
		if err != nil {
			s.TB.Fatalf("%s: %d of %d completions, then: %v", s.Name, got, n, err)
		}
	}
	return out
}

// OK gets one completion and expects success and this id.
func (s *Side) OK(id verbs.WRID) verbs.WC {
	s.TB.Helper()
	wc := s.Wait(1)[0]
	if wc.Status != verbs.WCSuccess || wc.ID != id || wc.QPN != s.QP.QPN() {
		s.TB.Fatalf("%s: completion %+v (%v): want success of %d on qp %#x", s.Name, wc, wc.Status, id, s.QP.QPN())
	}
	return wc
}

// Bad gets one completion and expects one of these statuses.
func (s *Side) Bad(id verbs.WRID, want ...verbs.WCStatus) verbs.WC {
	s.TB.Helper()
	wc := s.Wait(1)[0]
	for _, w := range want {
		if wc.Status == w && wc.ID == id {
			return wc
		}
	}
	s.TB.Fatalf("%s: completion %d with %v: want %d with one of %v", s.Name, wc.ID, wc.Status, id, want)
	return wc
}

// Nothing expects that no completion comes for a while.
func (s *Side) Nothing(d time.Duration) {
	s.TB.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	var wc [1]verbs.WC
	n, err := s.CQ.PollWait(ctx, wc[:], 1)
	if n != 0 {
		s.TB.Fatalf("%s: unexpected completion %+v (%v)", s.Name, wc[0], wc[0].Status)
	}
	if !errors.Is(err, context.DeadlineExceeded) {
		s.TB.Fatalf("%s: %v", s.Name, err)
	}
}

// Until spins, doing the device's work, until ok holds.
func (s *Side) Until(what string, ok func() bool) {
	s.TB.Helper()
	deadline := time.Now().Add(patience)
	for i := 0; !ok(); i++ {
		s.Ctx.Progress()
		if i%64 == 63 {
			pause()
			if time.Now().After(deadline) {
				s.TB.Fatalf("%s: waited %v for %s", s.Name, patience, what)
			}
		}
	}
}
