package soft

import (
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/railstore/railstore/verbs"
	"github.com/railstore/railstore/verbs/soft/internal/rc"
	"github.com/railstore/railstore/verbs/soft/internal/udp"
	"github.com/railstore/railstore/verbs/soft/internal/wire"
)

// qp is a queue pair: the protocol's Conn and where its packets go.
type qp struct {
	dev    *device
	pd     *pd
	sendCQ *cq
	recvCQ *cq
	qpn    uint32
	cap    verbs.QPCap

	deadline atomic.Int64 // Conn.NextTick, for the scan of the timers
	held     bool         // in device.held; guarded by device.rx

	mu     sync.Mutex // guards what follows and every call on conn
	conn   *rc.Conn
	dead   bool
	dest   *udp.Dest // nil until the peer is known
	source udp.IP    // the only address packets are taken from
	sender wire.Path // of packets to the peer
	from   wire.Path // of packets from the peer's port fromPort
	// The source port of a peer that is no soft device is not known beforehand.
	fromPort uint16
	anyID    bool // see Identification
	to       *peer
	flying   int32 // of to.flying

	// Only faults set these: payload that is not in memory yet, and when the
	// device's goroutine is to come back for it or for packets; 0: not.
	late []latePayload
	wake int64
}

// minRTO is the least time after which packets that nobody answered are sent
// again early. It is above what a busy host's scheduler takes from a process: a
// peer that does not run has lost nothing.
const minRTO = int64(10 * time.Millisecond)

// A QP starts with initialWindow packets in flight, so that many which start at
// once do not fill a socket; maxWindow is a window of small packets.
const (
	initialWindow = 32
	maxWindow     = 4096
)

func newQP(p *pd, init verbs.DriverQPInit) (*qp, error) {
	d := p.dev
	qpn, err := d.qps.reserve()
	if err != nil {
		return nil, err
	}
	q := &qp{dev: d, pd: p, sendCQ: init.SendCQ.(*cq), recvCQ: init.RecvCQ.(*cq), qpn: qpn, cap: init.Cap}
	q.cap.MaxInline = 0
	q.conn = rc.New(rc.Config{QPN: qpn, Device: d.name, Cap: q.cap, SigAll: init.SigAll, Mem: p,
		InitialWindow: initialWindow, MaxWindow: maxWindow, WindowBytes: d.window(), MinRTO: minRTO})
	d.qps.put(q)
	return q, nil
}

// QPN is the number of the QP.
func (q *qp) QPN() uint32 { return q.qpn }

// Cap is what was granted: what was asked for.
func (q *qp) Cap() verbs.QPCap { return q.cap }

// Query is the attributes as the protocol has them.
func (q *qp) Query() (verbs.QPAttr, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.conn.Attr(), nil
}

// Stats are the protocol's counters.
func (q *qp) Stats() verbs.QPStats {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.conn.Stats()
}

// Modify applies attributes.
func (q *qp) Modify(attr *verbs.QPAttr, mask verbs.QPMask) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if f := q.dev.faults.Load(); f != nil && mask&verbs.MaskState != 0 && attr.State == verbs.QPRTR {
		if err := f.script.fails(opModifyRTR, "modify_qp", q.dev.name); err != nil {
			return err
		}
	}
	if mask&verbs.MaskPKeyIndex != 0 && attr.PKeyIndex != 0 {
		return q.refuse(verbs.ErrInvalid, "PKey index %d: the table has one entry", attr.PKeyIndex)
	}
	if mask&verbs.MaskPathMTU != 0 && attr.PathMTU > q.dev.activeMTU {
		return q.refuse(verbs.ErrInvalid, "path MTU %d: the port's active MTU is %d", attr.PathMTU, q.dev.activeMTU)
	}
	if mask&verbs.MaskAV != 0 {
		if err := q.route(&attr.AV); err != nil {
			return err
		}
	}
	q.conn.Modify(attr, mask)
	if mask&verbs.MaskState != 0 && attr.State == verbs.QPReset {
		q.dev.landAll(q)
		q.dest = nil
		q.toward(nil)
	}
	t := q.dev.spare.take()
	q.dev.pump(q, t, q.dev.now())
	q.dev.spare.give(t)
	return nil
}

func (q *qp) refuse(kind error, format string, args ...any) error {
	return &verbs.Error{Op: "modify_qp", Device: q.dev.name, QPN: q.qpn, Kind: kind, Err: fmt.Errorf(format, args...)}
}

// route prepares for the peer that the address vector names.
func (q *qp) route(av *verbs.AV) error {
	d := q.dev
	if err := d.checkSource(av.SGIDIndex); err != nil {
		return q.refuse(verbs.ErrInvalid, "%w", err)
	}
	to := av.DGID.Addr()
	if av.DGID.IsZero() || to.IsMulticast() || to.IsUnspecified() {
		return q.refuse(verbs.ErrInvalid, "destination GID %v is not an address of a peer", av.DGID)
	}
	if to.Is4() != d.addr.Addr().Is4() {
		return q.refuse(verbs.ErrInvalid, "destination %v and source %v are not of one IP version", to, d.addr.Addr())
	}
	port := av.UDPPort
	if port == 0 {
		port = verbs.RoCEPort
	}
	peer := netip.AddrPortFrom(to, port)
	q.toward(d.peers.get(peer))
	q.dest = d.sock.NewDest(peer, udp.DestOptions{TrafficClass: av.TrafficClass, HopLimit: av.HopLimit})
	q.source = udp.IP(av.DGID)
	q.sender = wire.NewPath(d.addr, peer)
	q.fromPort = port
	q.from = wire.NewPath(peer, d.addr)
	switch d.opt.Identification {
	case IDByPeer:
		q.anyID = port == verbs.RoCEPort
	case IDTrain:
		q.anyID = false
	case IDAny:
		q.anyID = true
	}
	return nil
}

// PostSend queues the requests and sends what may be sent.
func (q *qp) PostSend(wrs []verbs.SendWR, sges []verbs.SGE) (int, error) {
	d := q.dev
	if f := d.faults.Load(); f != nil {
		if err := f.script.fails(opPostSend, "post_send", d.name); err != nil {
			return 0, err
		}
	}
	q.mu.Lock()
	if q.dead {
		q.mu.Unlock()
		return 0, errQPClosed
	}
	n, err := q.conn.PostSend(wrs, sges)
	if n > 0 {
		t := d.spare.take()
		d.pump(q, t, d.now())
		d.spare.give(t)
	}
	q.mu.Unlock()
	return n, err
}

// PostRecv queues receives.
func (q *qp) PostRecv(wrs []verbs.RecvWR, sges []verbs.SGE) (int, error) {
	q.mu.Lock()
	if q.dead {
		q.mu.Unlock()
		return 0, errQPClosed
	}
	n, err := q.conn.PostRecv(wrs, sges)
	if n > 0 && q.conn.State() == verbs.QPErr {
		t := q.dev.spare.take()
		q.dev.pump(q, t, q.dev.now())
		q.dev.spare.give(t)
	}
	q.mu.Unlock()
	return n, err
}

// Close destroys the QP.
func (q *qp) Close() error {
	q.dev.qps.remove(q)
	q.mu.Lock()
	q.dev.landAll(q)
	q.dead = true
	q.deadline.Store(0)
	q.toward(nil)
	q.mu.Unlock()
	// Last: an MR that is closed meanwhile must pass through this QP's lock.
	q.pd.dropQP(q)
	return nil
}

// peerAddr is the peer's device; its lock is held.
func (q *qp) peerAddr() netip.AddrPort {
	if q.to == nil {
		return netip.AddrPort{}
	}
	return q.to.addr
}

var errQPClosed error = &verbs.Error{Kind: verbs.ErrClosed}

// accept checks one packet's sender and ICRC and decodes it; the QP's lock is
// held. guess is the identification it probably has; the one it really has comes
// back.
func (q *qp) accept(p *wire.Packet, b []byte, from *udp.Datagram, guess uint16) (id uint16, ok bool) {
	c := &q.dev.counters
	if q.dest == nil || from.From != q.source {
		c.wrongSource.Add(1)
		return guess, false
	}
	if from.Port != q.fromPort {
		q.fromPort = from.Port
		q.from = wire.NewPath(netip.AddrPortFrom(verbs.GID(q.source).Addr(), from.Port), q.dev.addr)
	}
	id, ok = q.from.Solve(guess, b)
	if !ok || id >= udp.MaxSegments && !q.anyID {
		c.badICRC.Add(1)
		return guess, false
	}
	if p.Parse(b) != nil {
		c.malformed.Add(1)
		return id, false
	}
	return id, true
}

// Local and Remote make a PD the protocol's way to registered memory; they are
// called under the lock of a QP of the PD.
func (p *pd) Local(lkey uint32, addr uint64, n uint32, write bool) ([]byte, verbs.WCStatus) {
	if n == 0 {
		return nil, verbs.WCSuccess
	}
	m := p.dev.mrs.find(lkey)
	if m == nil || m.lkey != lkey || m.pd != p || write && m.access&verbs.LocalWrite == 0 {
		return nil, verbs.WCLocProt
	}
	b, ok := m.slice(addr, uint64(n))
	if !ok {
		return nil, verbs.WCLocProt
	}
	return b, verbs.WCSuccess
}

// Remote is the memory that a peer names.
func (p *pd) Remote(rkey uint32, addr uint64, n uint64, need verbs.Access) ([]byte, bool) {
	if n == 0 {
		return nil, true // IBTA 9.7.4.1.3: no key is checked for nothing
	}
	m := p.dev.mrs.find(rkey)
	if m == nil || m.rkey.Load() != rkey || m.pd != p || m.access&need != need {
		return nil, false
	}
	return m.slice(addr, n)
}
