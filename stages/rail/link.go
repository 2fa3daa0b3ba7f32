package rail

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"

	"github.com/railstore/railstore/ctrl"
	"github.com/railstore/railstore/cue/deploy"
	"github.com/railstore/railstore/pipeline"
	"github.com/railstore/railstore/verbs"
)

// Link is one connected QP to a peer with its block of registered memory.
type Link struct {
	Rail     *Rail
	PeerRail string
	Index    int // among the links to this peer
	CQ       int // of Rail.CQs: where the QP completes, as long as the link lives
	QP       *verbs.QP
	Off      uint64 // of the block in the process's lane memory; see Rail.Block
	Bytes    []byte // the block
	Local    verbs.Endpoint
	Remote   verbs.Endpoint
	Block    verbs.RemoteRegion // the peer's block
	// Generations of this end and of the peer's end of the link.
	Generation, PeerGeneration uint32

	at Address // that Local was made of
}

// Peer is a connected peer.
type Peer struct {
	Node  ctrl.NodeID
	Links []*Link

	// Gone is set before a Handler's Drop when the control plane says that the peer has
	// left or that its lease has ended.
	Gone bool

	set    *Set
	closed sync.Once
	err    error

	generation  uint64            // of the newest offer
	params      map[string]string // of a client's offers
	incarnation uint64            // of the shard that a client's offers go to
}

// newLink makes a QP in RESET on a rail, with a block of memory.
func (s *Set) newLink(r *Rail, index int) (*Link, error) {
	off, err := s.arena.take()
	if err != nil {
		return nil, fmt.Errorf("%w; the recipe has room for %d peers (lanes.maxClients)", err, s.Demand.MaxPeers)
	}
	l := &Link{Rail: r, Index: index, CQ: r.queues.take(), Off: off, Bytes: s.region.Bytes()[off : off+uint64(s.Demand.Bytes)]}
	if err := l.newQP(s); err != nil {
		l.giveBack(s)
		return nil, err
	}
	return l, nil
}

// newQP makes the link's QP, in RESET, with the rail's present address, and the
// next generation.
func (l *Link) newQP(s *Set) error {
	r := l.Rail
	limit := s.Demand.Cap
	if n := r.Ctx.Attr().MaxSGE; n > 0 {
		limit.MaxSendSGE = min(limit.MaxSendSGE, n) // who gathers makes do with less
	}
	cq := r.CQs[l.CQ]
	qp, err := r.PD.CreateQP(verbs.QPInit{SendCQ: cq, RecvCQ: cq, Cap: limit})
	if err != nil {
		return err
	}
	clear(l.Bytes) // words of the block's last user must not be taken for this one's
	l.QP, l.at = qp, r.Address()
	l.Generation++
	l.Local = verbs.Endpoint{GID: l.at.GID.Entry.GID, GIDType: l.at.GID.Entry.Type, LID: l.at.Port.LID, QPN: qp.QPN(),
		PSN: rand.Uint32N(1 << 24), MTU: l.at.ActiveMTU, UDPPort: l.at.Port.UDPPort}
	return nil
}

// renew gives the link a new QP on the same block, once the old one is sure to be
// destroyed.
func (l *Link) renew(s *Set) error {
	if err := l.QP.Close(); err != nil {
		return err
	}
	return l.newQP(s)
}

// meta is what the peer must know of the link.
func (l *Link) meta(s *Set) ctrl.LaneMeta {
	mr, at := l.Rail.Block(l.Off, uint64(s.Demand.Bytes))
	block, _ := mr.Remote().Slice(at, uint64(s.Demand.Bytes))
	return ctrl.LaneMeta{Rail: l.Rail.Name(), PeerRail: l.PeerRail, Fabric: l.Rail.Spec.Fabric, Index: l.Index,
		Endpoint: l.Local, Slots: block, Generation: l.Generation}
}

// connect takes the QP to RTS towards what the peer published.
func (l *Link) connect(s *Set, m ctrl.LaneMeta) error {
	if m.Slots.Length != uint64(s.Demand.Bytes) && s.Demand.Bytes > 0 && m.Slots.Length == 0 {
		return fmt.Errorf("the peer published no memory for link %d", l.Index)
	}
	if !verbs.ValidMTU(m.Endpoint.MTU) {
		return fmt.Errorf("the peer published an MTU of %d for link %d", m.Endpoint.MTU, l.Index)
	}
	l.Remote, l.Block, l.PeerGeneration, l.PeerRail = m.Endpoint, m.Slots, m.Generation, m.Rail
	sp := l.Rail.Spec
	err := l.QP.Connect(l.Local, l.Remote, verbs.PathOpts{
		Port: uint8(sp.Port), SGIDIndex: l.at.GID.Entry.Index, PKeyIndex: l.at.PKeyIndex, MTU: sp.MTU, Access: s.Demand.Access &^ verbs.LocalWrite,
		SL: uint8(sp.SL), TrafficClass: uint8(sp.TrafficClass), HopLimit: uint8(sp.HopLimit), FlowLabel: uint32(sp.FlowLabel),
		Timeout: uint8(sp.Timeout), RetryCount: uint8(sp.RetryCount), RNRRetry: uint8(sp.RNRRetry),
	}, nil)
	if err != nil {
		return fmt.Errorf("%w (this end %s; peer %s)", err, endText(l.Local), endText(l.Remote))
	}
	return nil
}

func endText(e verbs.Endpoint) string {
	s := fmt.Sprintf("%v qp 0x%06x mtu %d", e.GID.Addr(), e.QPN, e.MTU)
	if e.UDPPort != 0 && e.UDPPort != verbs.RoCEPort {
		s += fmt.Sprintf(" udp port %d", e.UDPPort)
	}
	return s
}

// close destroys the QP and, only when that is sure, gives the block back.
func (l *Link) close(s *Set) error {
	if err := l.QP.Close(); err != nil {
		return pipeline.Wrap(err, pipeline.LayerResource, "disconnect", pipeline.Where{Shard: -1, Lane: l.Index, Rail: l.Rail.Name()})
	}
	l.giveBack(s)
	return nil
}

func (l *Link) giveBack(s *Set) {
	s.arena.give(l.Off)
	l.Rail.queues.give(l.CQ)
}

// Close destroys the QPs of the peer and frees their memory. Whoever used the
// links must have stopped. It is idempotent.
func (p *Peer) Close() error {
	p.closed.Do(func() {
		var errs []error
		for _, l := range p.Links {
			errs = append(errs, l.close(p.set))
		}
		p.err = errors.Join(errs...)
	})
	return p.err
}

// pathKey names a pair of rails among the parameters, the client's first.
func pathKey(client, shard string) string { return client + ">" + shard }

// pathText is what both ends of a path must have set alike: packets of one end
// with another class or partition than the other's are lost or late in ways that
// no error tells.
func pathText(r deploy.Rail) string {
	pkey := r.PKey
	if pkey == 0 {
		pkey = 0xffff
	}
	return fmt.Sprintf("traffic class %d, service level %d, hop limit %d, flow label %#x, partition %#04x", r.TrafficClass, r.SL, r.HopLimit, r.FlowLabel, pkey&0x7fff)
}

// compareParams says which parameter differs between both ends, or nil.
func compareParams(mine, theirs map[string]string, peer ctrl.NodeID) error {
	var diff []string
	keys := slices.Collect(maps.Keys(mine))
	for k := range theirs {
		if _, ok := mine[k]; !ok {
			keys = append(keys, k)
		}
	}
	slices.Sort(keys)
	for _, k := range keys {
		a, aok := mine[k]
		b, bok := theirs[k]
		if a != b || aok != bok {
			diff = append(diff, fmt.Sprintf("%s is %s here and %s at %s", k, orUnset(a, aok), orUnset(b, bok), peer))
		}
	}
	if len(diff) == 0 {
		return nil
	}
	return fmt.Errorf("parameters differ: %s", strings.Join(diff, "; "))
}

func orUnset(v string, ok bool) string {
	if !ok {
		return "unset"
	}
	return v
}
