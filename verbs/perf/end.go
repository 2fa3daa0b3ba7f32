package perf

import (
	"errors"
	"fmt"
	"math/rand/v2"

	"github.com/railstore/railstore/verbs"
)

// Hello is what one end must know of the other.
type Hello struct {
	Test      Test               `json:"test"`
	Endpoints []verbs.Endpoint   `json:"endpoints"`
	Region    verbs.RemoteRegion `json:"region"`
}

// Path says which port and GID of a context an end uses.
type Path struct {
	Port uint8
	GID  verbs.GIDEntry
	Opts verbs.PathOpts // Port, SGIDIndex, MTU and Access are filled in here
}

// End is one end of a measurement: QPs, a CQ and a registered buffer.
type End struct {
	test   Test
	path   Path
	ctx    *verbs.Context
	cq     *verbs.CQ
	pd     *verbs.PD
	mr     *verbs.MR
	region *verbs.Region
	qps    []*verbs.QP
	hello  Hello
	peer   Hello

	sent, got int // completions of a ping-pong

	wcs     [64]verbs.WC
	recv    [1]verbs.RecvWR
	recvSGE [1]verbs.SGE
	wrs     []verbs.SendWR
	sges    []verbs.SGE
}

const access = verbs.LocalWrite | verbs.RemoteWrite | verbs.RemoteRead

// NewEnd makes the resources for a test on a context. Buffers are laid out as
// one message for each QP and direction: [send | receive] a QP.
func NewEnd(ctx *verbs.Context, path Path, t Test) (_ *End, err error) {
	if err := t.Check(); err != nil {
		return nil, err
	}
	if path.Port == 0 {
		path.Port = 1
	}
	pa, err := ctx.Port(path.Port)
	if err != nil {
		return nil, err
	}
	e := &End{test: t, path: path, ctx: ctx, wrs: make([]verbs.SendWR, 0, 64), sges: make([]verbs.SGE, 0, 64)}
	defer func() {
		if err != nil {
			err = errors.Join(err, e.Close())
		}
	}()
	if e.region, err = verbs.MapRegion(2 * t.slot() * t.QPs); err != nil {
		return nil, err
	}
	if e.pd, err = ctx.AllocPD(); err != nil {
		return nil, err
	}
	if e.cq, err = ctx.CreateCQ(2*t.Depth*t.QPs + t.QPs); err != nil {
		return nil, err
	}
	if e.mr, err = e.pd.Register(e.region, access); err != nil {
		return nil, err
	}
	e.hello = Hello{Test: t, Region: e.mr.Remote()}
	for range t.QPs {
		qp, err := e.createQP()
		if err != nil {
			return nil, err
		}
		e.qps = append(e.qps, qp)
		e.hello.Endpoints = append(e.hello.Endpoints, verbs.Endpoint{GID: path.GID.GID, GIDType: path.GID.Type, LID: pa.LID,
			QPN: qp.QPN(), PSN: rand.Uint32N(1 << 24), MTU: pa.ActiveMTU, UDPPort: pa.UDPPort})
	}
	return e, nil
}

// inlineMost is the longest message of a latency test that goes inline where the
// device takes that; ib_write_lat's choice too.
const inlineMost = 220

func (e *End) createQP() (*verbs.QP, error) {
	t := e.test
	init := verbs.QPInit{SendCQ: e.cq, RecvCQ: e.cq, Cap: verbs.QPCap{MaxSendWR: t.Depth + 1, MaxRecvWR: t.Depth + 1, MaxSendSGE: 1, MaxRecvSGE: 1}}
	if t.Kind == Latency && t.Op != verbs.OpRead && t.Size <= inlineMost && !t.NoInline {
		init.Cap.MaxInline = t.Size
		if qp, err := e.pd.CreateQP(init); err == nil {
			return qp, nil
		}
		init.Cap.MaxInline = 0
	}
	return e.pd.CreateQP(init)
}

// slot is the room of one message, cache-line aligned so that two directions do
// not share a line.
func (t Test) slot() int { return (t.Size + 63) / 64 * 64 }

func (e *End) sendOff(qp int) uint64 { return uint64(2 * e.test.slot() * qp) }
func (e *End) recvOff(qp int) uint64 { return e.sendOff(qp) + uint64(e.test.slot()) }

// Hello is this end's part of the exchange.
func (e *End) Hello() Hello { return e.hello }

// Connect takes every QP to RTS towards the peer and posts receives for SEND.
func (e *End) Connect(peer Hello) error {
	if len(peer.Endpoints) != len(e.qps) {
		return fmt.Errorf("the peer has %d QPs, this end %d", len(peer.Endpoints), len(e.qps))
	}
	if need := uint64(2 * e.test.slot() * e.test.QPs); peer.Region.Length < need {
		return fmt.Errorf("the peer's buffer has %d bytes, the test needs %d", peer.Region.Length, need)
	}
	e.peer = peer
	o := e.path.Opts
	o.Port, o.SGIDIndex, o.MTU, o.Access = e.path.Port, e.path.GID.Index, e.test.MTU, verbs.RemoteWrite|verbs.RemoteRead
	if o.RetryCount == 0 {
		o.RetryCount = 7
	}
	if o.RNRRetry == 0 {
		o.RNRRetry = 7
	}
	for i, qp := range e.qps {
		err := qp.Connect(e.hello.Endpoints[i], peer.Endpoints[i], o, func() error {
			if e.test.Op != verbs.OpSend {
				return nil
			}
			for range e.test.Depth {
				if err := e.postRecv(i); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (e *End) postRecv(qp int) error {
	e.recv[0] = verbs.RecvWR{ID: verbs.WRID(qp)<<1 | 1, NumSGE: 1}
	e.recvSGE[0] = e.mr.SGE(e.recvOff(qp), uint64(e.test.Size))
	_, err := e.qps[qp].PostRecv(e.recv[:], e.recvSGE[:])
	return err
}

// MTU is the path MTU that the connection uses.
func (e *End) MTU() int { return e.qps[0].Attr().PathMTU }

// Stats sums the counters of the QPs.
func (e *End) Stats() verbs.QPStats {
	var s verbs.QPStats
	for _, q := range e.qps {
		a := q.Stats()
		s.PacketsSent += a.PacketsSent
		s.PacketsReceived += a.PacketsReceived
		s.Retransmits += a.Retransmits
		s.Timeouts += a.Timeouts
	}
	return s
}

// Close destroys what NewEnd made. It may be called on a half-made End and twice.
func (e *End) Close() error {
	var errs []error
	for _, q := range e.qps {
		errs = append(errs, q.Close())
	}
	if e.mr != nil {
		errs = append(errs, e.mr.Close())
	}
	if e.cq != nil {
		errs = append(errs, e.cq.Close())
	}
	if e.pd != nil {
		errs = append(errs, e.pd.Close())
	}
	if e.region != nil {
		errs = append(errs, e.region.Close())
	}
	return errors.Join(errs...)
}

// bad turns a bad completion into the QP's first cause.
func (e *End) bad(wc *verbs.WC) error {
	for _, q := range e.qps {
		if q.QPN() == wc.QPN && q.Err() != nil {
			return q.Err()
		}
	}
	return wc.Status
}
