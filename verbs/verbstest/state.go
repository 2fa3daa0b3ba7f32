package verbstest

import (
	"testing"
	"time"

	"github.com/railstore/railstore/verbs"
)

var stateCases = []namedCase{
	{"attributes", caseAttributes},
	{"bad_transitions", caseBadTransitions},
	{"post_in_wrong_state", casePostWrongState},
	{"receive_in_rtr", caseReceiveInRTR},
	{"reset_and_reuse", caseResetReuse},
	{"error_and_back", caseErrorAndBack},
	{"sqd", caseSQD},
	{"bad_attributes", caseBadAttributes},
}

func caseAttributes(t *testing.T, open Open) {
	p := Fixture{}.New(t, open)
	for _, s := range []*Side{p.A, p.B} {
		a := s.Ctx.Attr()
		if a.Ports < 1 || a.MaxQP < 1 || a.MaxCQE < 1 || a.MaxQPWR < 64 || a.MaxSGE < 1 || a.MaxMR < 1 || a.MaxPD < 1 {
			t.Errorf("%s: limits %+v", s.Name, a)
		}
		port, err := s.Ctx.Port(1)
		Need(t, err)
		if port.State != verbs.PortActive || !verbs.ValidMTU(port.ActiveMTU) || port.ActiveMTU > port.MaxMTU {
			t.Errorf("%s: port %+v", s.Name, port)
		}
		if _, err := s.Ctx.Port(0); err == nil {
			t.Error("port 0 was accepted")
		}
		if _, err := s.Ctx.Port(200); err == nil {
			t.Error("port 200 was accepted")
		}
		gids, err := s.Ctx.GIDs(1)
		Need(t, err)
		for _, g := range gids {
			if g.GID.IsZero() {
				t.Errorf("%s: GID %d is empty", s.Name, g.Index)
			}
		}
		keys, err := s.Ctx.PKeys(1)
		Need(t, err)
		if len(keys) == 0 {
			t.Errorf("%s: no PKey", s.Name)
		}
		if got := s.QP.Cap(); got.MaxSendWR < 64 || got.MaxRecvWR < 64 || got.MaxSendSGE < 4 || got.MaxRecvSGE < 4 {
			t.Errorf("%s: granted %+v, less than asked for", s.Name, got)
		}
		if s.QP.QPN() == 0 || s.QP.QPN() >= 1<<24 {
			t.Errorf("%s: QPN %#x", s.Name, s.QP.QPN())
		}
		if s.QP.State() != verbs.QPRTS {
			t.Errorf("%s: state %v after Connect", s.Name, s.QP.State())
		}
	}
	// Devices of one address on two UDP ports count by themselves.
	if a, b := p.A.Local, p.B.Local; a.QPN == b.QPN && a.GID == b.GID && a.UDPPort == b.UDPPort {
		t.Error("two QPs of one address have one number")
	}
}

func unconnected(t *testing.T, open Open) *Pair {
	return Fixture{Connect: func(_, _ *Side) error { return nil }}.New(t, open)
}

func caseBadTransitions(t *testing.T, open Open) {
	p := unconnected(t, open)
	q := p.A.QP
	for _, to := range []verbs.QPState{verbs.QPRTR, verbs.QPRTS, verbs.QPSQD} {
		wantKind(t, q.Modify(verbs.QPAttr{State: to}, verbs.MaskState), verbs.ErrState, "RESET to "+to.String())
	}
	wantKind(t, q.Modify(verbs.QPAttr{State: verbs.QPInitState, Port: 1}, verbs.MaskState|verbs.MaskPort), verbs.ErrState, "INIT without all attributes")
	if q.State() != verbs.QPReset {
		t.Fatalf("state %v after refused changes", q.State())
	}
	Need(t, q.Modify(verbs.QPAttr{State: verbs.QPInitState, Port: 1, Access: All}, verbs.MaskState|verbs.MaskPort|verbs.MaskPKeyIndex|verbs.MaskAccess))
	wantKind(t, q.Modify(verbs.QPAttr{State: verbs.QPRTS}, verbs.MaskState), verbs.ErrState, "INIT to RTS")
	// Every state may go to RESET and to ERR.
	Need(t, q.Modify(verbs.QPAttr{State: verbs.QPReset}, verbs.MaskState))
	Need(t, q.Fail())
	Need(t, q.Modify(verbs.QPAttr{State: verbs.QPReset}, verbs.MaskState))
}

func casePostWrongState(t *testing.T, open Open) {
	p := unconnected(t, open)
	q := p.A.QP
	send := func() error {
		_, err := q.PostSend([]verbs.SendWR{{Op: verbs.OpSend}}, nil)
		return err
	}
	wantKind(t, send(), verbs.ErrState, "send in RESET")
	_, err := q.PostRecv([]verbs.RecvWR{{}}, nil)
	wantKind(t, err, verbs.ErrState, "receive in RESET")
	Need(t, q.Modify(verbs.QPAttr{State: verbs.QPInitState, Port: 1, Access: All}, verbs.MaskState|verbs.MaskPort|verbs.MaskPKeyIndex|verbs.MaskAccess))
	wantKind(t, send(), verbs.ErrState, "send in INIT")
	p.A.Recv(1)
	Need(t, rtr(p.A, p.B))
	wantKind(t, send(), verbs.ErrState, "send in RTR")
	p.A.Recv(2)
	p.A.Nothing(10 * time.Millisecond)
}

// rtr is the second half of Connect without the last step.
func rtr(self, peer *Side) error {
	return self.QP.Modify(verbs.QPAttr{State: verbs.QPRTR, PathMTU: self.Fix.Path.PathMTU(self.Local, peer.Local), DestQPN: peer.Local.QPN,
		RQPSN: peer.Local.PSN, MaxDestRDAtomic: 4, MinRNRTimer: 1,
		AV: verbs.AV{DGID: peer.Local.GID, DLID: peer.Local.LID, SGIDIndex: self.Fix.Path.SGIDIndex, HopLimit: 64, UDPPort: peer.Local.UDPPort}},
		verbs.MaskState|verbs.MaskAV|verbs.MaskPathMTU|verbs.MaskDestQPN|verbs.MaskRQPSN|verbs.MaskMaxDestRDAtomic|verbs.MaskMinRNRTimer)
}

// caseReceiveInRTR: a QP in RTR takes what its peer, already in RTS, sends.
func caseReceiveInRTR(t *testing.T, open Open) {
	p := unconnected(t, open)
	init := func(s *Side) error {
		return s.QP.Modify(verbs.QPAttr{State: verbs.QPInitState, Port: 1, Access: All}, verbs.MaskState|verbs.MaskPort|verbs.MaskPKeyIndex|verbs.MaskAccess)
	}
	Need(t, init(p.B))
	p.B.Recv(1, p.B.SGE(0, 16))
	Need(t, rtr(p.B, p.A))
	Need(t, p.A.QP.Connect(p.A.Local, p.B.Local, p.A.Fix.Path, nil))
	copy(p.A.Bytes(), "hello")
	p.A.Send(verbs.SendWR{ID: 2, Op: verbs.OpSend, Flags: verbs.Signaled}, p.A.SGE(0, 5))
	p.B.OK(1)
	p.A.OK(2)
	if string(p.B.Bytes()[:5]) != "hello" {
		t.Fatalf("received %q", p.B.Bytes()[:5])
	}
}

// caseResetReuse: RESET forgets everything, and the QP can be connected again,
// also with other PSNs.
func caseResetReuse(t *testing.T, open Open) {
	p := Fixture{}.New(t, open)
	for round := range 3 {
		p.B.Recv(1, p.B.SGE(0, 8))
		p.A.Write(2, 0, 5000, p.B, 100, verbs.Signaled)
		p.A.OK(2)
		for _, s := range []*Side{p.A, p.B} {
			Need(t, s.QP.Modify(verbs.QPAttr{State: verbs.QPReset}, verbs.MaskState))
			s.Local.PSN = uint32(round) * 0x1234
		}
		p.B.Nothing(10 * time.Millisecond) // the receive is gone, without a completion
		Need(t, p.A.QP.Connect(p.A.Local, p.B.Local, p.A.Fix.Path, nil))
		Need(t, p.B.QP.Connect(p.B.Local, p.A.Local, p.B.Fix.Path, nil))
	}
	p.B.Recv(3, p.B.SGE(0, 8))
	p.A.Send(verbs.SendWR{ID: 4, Op: verbs.OpSend, Flags: verbs.Signaled}, p.A.SGE(0, 8))
	p.A.OK(4)
	p.B.OK(3)
}

func caseErrorAndBack(t *testing.T, open Open) {
	p := Fixture{}.New(t, open)
	p.A.Send(verbs.SendWR{ID: 1, Op: verbs.OpWrite, RemoteAddr: 1, RKey: 2}, p.A.SGE(0, 8))
	p.A.Bad(1, verbs.WCRemAccess)
	if p.A.QP.State() != verbs.QPErr || p.A.QP.Err() == nil {
		t.Fatalf("after a bad completion: state %v, cause %v", p.A.QP.State(), p.A.QP.Err())
	}
	for _, s := range []*Side{p.A, p.B} {
		Need(t, s.QP.Modify(verbs.QPAttr{State: verbs.QPReset}, verbs.MaskState))
	}
	Need(t, p.A.QP.Connect(p.A.Local, p.B.Local, p.A.Fix.Path, nil))
	Need(t, p.B.QP.Connect(p.B.Local, p.A.Local, p.B.Fix.Path, nil))
	if err := p.A.QP.Err(); err != nil {
		t.Fatalf("RESET keeps the old cause: %v", err)
	}
	p.A.Write(5, 0, 9, p.B, 0, verbs.Signaled)
	p.A.OK(5)
}

func caseSQD(t *testing.T, open Open) {
	p := Fixture{}.New(t, open)
	p.A.Write(1, 0, 9, p.B, 0, verbs.Signaled)
	p.A.OK(1)
	Need(t, p.A.QP.Modify(verbs.QPAttr{State: verbs.QPSQD}, verbs.MaskState))
	p.A.Write(2, 0, 9, p.B, 0, verbs.Signaled) // queued
	p.A.Nothing(20 * time.Millisecond)
	// The other direction goes on.
	p.B.Write(3, 0, 9, p.A, 0, verbs.Signaled)
	p.B.OK(3)
	Need(t, p.A.QP.Modify(verbs.QPAttr{State: verbs.QPRTS}, verbs.MaskState))
	p.A.OK(2)
}

func caseBadAttributes(t *testing.T, open Open) {
	p := unconnected(t, open)
	initMask := verbs.MaskState | verbs.MaskPort | verbs.MaskPKeyIndex | verbs.MaskAccess
	wantKind(t, p.A.QP.Modify(verbs.QPAttr{State: verbs.QPInitState, Port: 99}, initMask), verbs.ErrInvalid, "port 99")
	Need(t, p.A.QP.Modify(verbs.QPAttr{State: verbs.QPInitState, Port: 1}, initMask))
	lim := p.A.Ctx.Attr()
	for what, err := range map[string]error{
		"CQ of no depth":      second(p.A.Ctx.CreateCQ(0)),
		"CQ too deep":         second(p.A.Ctx.CreateCQ(lim.MaxCQE + 1)),
		"queue too long":      second(p.A.PD.CreateQP(verbs.QPInit{SendCQ: p.A.CQ, RecvCQ: p.A.CQ, Cap: verbs.QPCap{MaxSendWR: lim.MaxQPWR + 1}})),
		"too many elements":   second(p.A.PD.CreateQP(verbs.QPInit{SendCQ: p.A.CQ, RecvCQ: p.A.CQ, Cap: verbs.QPCap{MaxSendSGE: lim.MaxSGE + 1}})),
		"CQ of other device":  second(p.A.PD.CreateQP(verbs.QPInit{SendCQ: p.A.CQ, RecvCQ: p.B.CQ})),
		"no CQ":               second(p.A.PD.CreateQP(verbs.QPInit{})),
		"write needs local":   second(p.A.PD.Register(p.A.Region, verbs.RemoteWrite)),
		"atomics need local":  second(p.A.PD.Register(p.A.Region, verbs.RemoteAtomic)),
		"elements over limit": second(p.A.QP.PostRecv([]verbs.RecvWR{{NumSGE: 200}}, make([]verbs.SGE, 200))),
		"elements not given":  second(p.A.QP.PostRecv([]verbs.RecvWR{{NumSGE: 2}}, make([]verbs.SGE, 1))),
	} {
		wantKind(t, err, verbs.ErrInvalid, what)
	}
}

func second[T any](_ T, err error) error { return err }
