package verbstest

import (
	"context"
	"hash/fnv"
	"net/netip"
	"sync"
	"time"

	"github.com/railstore/railstore/verbs"
)

// LoopOptions choose how a Loop behaves. The zero value is the plain one.
type LoopOptions struct {
	// Async executes requests on a goroutine of the sending device instead of
	// inside PostSend, one request at a time.
	Async bool
	// MTU is the active MTU of every port; 0 means 1024. It has no effect but to
	// be reported.
	MTU int
	// Attr may lower the limits of a device before it is opened.
	Attr func(*verbs.DeviceAttr)
	// Late plays a machine whose memory writes become visible out of order: the
	// bytes of a WRITE for which it returns more than 0 are placed that much
	// later than the completion and than the WRITEs that follow.
	Late func(*verbs.SendWR) time.Duration
}

// Loop is a provider whose devices live in this process and are joined by a
// perfect network. Everything happens under one lock, so that what it does can
// be read off the code. It is stricter than hardware where that finds bugs of
// its users: an entry of a send or receive queue is free again only when its
// completion (or a later one of the queue) was polled, and completions of a
// destroyed QP stay in the CQ.
type Loop struct {
	opts LoopOptions

	mu      sync.Mutex
	nextQPN uint32
	nextKey uint32
	qps     map[uint32]*loopQP
	lkeys   map[uint32]*loopMR
	rkeys   map[uint32]*loopMR
	held    bool
}

// NewLoop makes an empty network.
func NewLoop(o LoopOptions) *Loop {
	if o.MTU == 0 {
		o.MTU = 1024
	}
	return &Loop{opts: o, nextQPN: 0x10, nextKey: 1,
		qps: map[uint32]*loopQP{}, lkeys: map[uint32]*loopMR{}, rkeys: map[uint32]*loopMR{}}
}

// Hold stops the network (requests stay outstanding, as if no packet passed)
// until it is called with false.
func (l *Loop) Hold(on bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.held = on
	if !on {
		for _, q := range l.qps {
			q.kick()
		}
	}
}

// Name is "loop".
func (l *Loop) Name() string { return "loop" }

// Devices lists nothing: Open accepts every name.
func (l *Loop) Devices() ([]verbs.DeviceInfo, error) { return nil, nil }

// Open opens a device. An IP address is its own GID; any other name gets one in
// fd00::/8. The same name may be opened many times.
func (l *Loop) Open(name string) (verbs.DriverContext, error) {
	attr := verbs.DeviceAttr{Name: name, Firmware: "loop", Ports: 1, MaxQP: 1 << 16, MaxQPWR: 1 << 14, MaxSGE: 32, MaxCQ: 1 << 16,
		MaxCQE: 1 << 20, MaxMR: 1 << 16, MaxPD: 1 << 16, MaxRDAtomic: 16}
	if l.opts.Attr != nil {
		l.opts.Attr(&attr)
	}
	h := fnv.New64a()
	h.Write([]byte(name))
	attr.NodeGUID = h.Sum64()
	var gid verbs.GID
	if a, err := netip.ParseAddr(name); err == nil {
		gid = verbs.GIDFromAddr(a)
	} else {
		gid[0] = 0xfd
		for i := range 8 {
			gid[8+i] = byte(attr.NodeGUID >> (8 * i))
		}
	}
	c := &loopContext{loop: l, attr: attr, gid: gid, events: make(chan verbs.AsyncEvent, 64), work: make(chan struct{}, 1)}
	if l.opts.Async {
		c.wg.Add(1)
		go c.run()
	}
	return c, nil
}

type loopContext struct {
	loop   *Loop
	attr   verbs.DeviceAttr
	gid    verbs.GID
	events chan verbs.AsyncEvent
	work   chan struct{} // Async: there is something in ready
	wg     sync.WaitGroup

	// under loop.mu
	closed bool
	ready  []*loopQP
}

func (c *loopContext) Query() (verbs.DeviceAttr, error) { return c.attr, nil }

func (c *loopContext) QueryPort(uint8) (verbs.PortAttr, error) {
	return verbs.PortAttr{State: verbs.PortActive, MaxMTU: 4096, ActiveMTU: c.loop.opts.MTU, LinkLayer: verbs.LinkEthernet,
		GIDs: 1, PKeys: 1, UDPPort: verbs.RoCEPort}, nil
}

func (c *loopContext) GIDs(uint8) ([]verbs.GIDEntry, error) {
	return []verbs.GIDEntry{{Index: 0, GID: c.gid, Type: verbs.GIDTypeRoCEv2, NetDev: "loop"}}, nil
}

func (c *loopContext) PKeys(uint8) ([]uint16, error) { return []uint16{0xffff}, nil }

func (c *loopContext) AllocPD() (verbs.DriverPD, error) { return &loopPD{ctx: c}, nil }

func (c *loopContext) CreateCQ(depth int) (verbs.DriverCQ, error) {
	return &loopCQ{ctx: c, ring: make([]cqe, depth), event: make(chan struct{}, 1), gone: make(chan struct{})}, nil
}

func (c *loopContext) Events() <-chan verbs.AsyncEvent { return c.events }

func (c *loopContext) Progress() bool { return false }

func (c *loopContext) Close() error {
	c.loop.mu.Lock()
	c.closed = true
	close(c.events)
	c.loop.mu.Unlock()
	close(c.work)
	c.wg.Wait()
	return nil
}

// emitLocked never blocks: a full channel loses the event, as a device does.
func (c *loopContext) emitLocked(e verbs.AsyncEvent) {
	if c.closed {
		return
	}
	select {
	case c.events <- e:
	default:
	}
}

// run is the delivery goroutine of an Async device.
func (c *loopContext) run() {
	defer c.wg.Done()
	for range c.work {
		for c.deliverOne() {
		}
	}
}

func (c *loopContext) deliverOne() bool {
	c.loop.mu.Lock()
	defer c.loop.mu.Unlock()
	if len(c.ready) == 0 || c.closed {
		return false
	}
	q := c.ready[0]
	c.ready = append(c.ready[:0], c.ready[1:]...)
	q.queued = false
	if q.stepOnce() {
		q.kick()
	}
	return true
}

type loopPD struct{ ctx *loopContext }

func (p *loopPD) Close() error { return nil }

func (p *loopPD) Register(mem []byte, access verbs.Access) (verbs.DriverMR, error) {
	l := p.ctx.loop
	l.mu.Lock()
	defer l.mu.Unlock()
	m := &loopMR{pd: p, mem: mem, addr: verbs.AddrOf(mem), access: access, lkey: l.nextKey<<8 | 0x11, rkey: l.nextKey<<8 | 0x22}
	l.nextKey++
	l.lkeys[m.lkey], l.rkeys[m.rkey] = m, m
	return m, nil
}

type loopMR struct {
	pd         *loopPD
	mem        []byte
	addr       uint64
	access     verbs.Access
	lkey, rkey uint32
}

func (m *loopMR) LKey() uint32 { return m.lkey }
func (m *loopMR) RKey() uint32 { return m.rkey }

// Close is a fence because every access happens under the lock.
func (m *loopMR) Close() error {
	l := m.pd.ctx.loop
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.lkeys, m.lkey)
	delete(l.rkeys, m.rkey)
	return nil
}

// bytes gives n bytes at addr when they are inside and the MR has the rights.
func (m *loopMR) bytes(addr, n uint64, need verbs.Access) []byte {
	if m.access&need != need || addr < m.addr || addr-m.addr > uint64(len(m.mem)) || n > uint64(len(m.mem))-(addr-m.addr) {
		return nil
	}
	off := addr - m.addr
	return m.mem[off : off+n : off+n]
}

type cqe struct {
	wc    verbs.WC
	qp    *loopQP
	sends int // send queue entries that polling it frees
	recvs int
}

type loopCQ struct {
	ctx   *loopContext
	event chan struct{}
	gone  chan struct{}

	// under loop.mu
	ring   []cqe
	head   int
	count  int
	armed  bool
	solic  bool // only for solicited completions and errors
	broken bool
	closed bool
}

func (q *loopCQ) pushLocked(e cqe, solicited bool) {
	if q.closed || q.broken {
		return
	}
	if q.count == len(q.ring) {
		q.broken = true
		q.ctx.emitLocked(verbs.AsyncEvent{Type: verbs.EventCQError, CQ: q})
		q.signalLocked()
		return
	}
	q.ring[(q.head+q.count)%len(q.ring)] = e
	q.count++
	if q.armed && (!q.solic || solicited || e.wc.Status != verbs.WCSuccess) {
		q.signalLocked()
	}
}

func (q *loopCQ) signalLocked() {
	q.armed = false
	select {
	case q.event <- struct{}{}:
	default:
	}
}

func (q *loopCQ) Poll(wcs []verbs.WC) (int, error) {
	l := q.ctx.loop
	l.mu.Lock()
	defer l.mu.Unlock()
	if q.closed {
		return 0, &verbs.Error{Kind: verbs.ErrClosed}
	}
	if q.broken {
		return 0, &verbs.Error{Kind: verbs.ErrCQOverrun}
	}
	n := min(len(wcs), q.count)
	for i := range n {
		e := &q.ring[q.head]
		wcs[i] = e.wc
		e.qp.sqUsed -= e.sends
		e.qp.rqUsed -= e.recvs
		e.qp = nil
		q.head = (q.head + 1) % len(q.ring)
	}
	q.count -= n
	return n, nil
}

func (q *loopCQ) Arm(solicited bool) error {
	l := q.ctx.loop
	l.mu.Lock()
	defer l.mu.Unlock()
	if q.closed {
		return &verbs.Error{Kind: verbs.ErrClosed}
	}
	// The wider request wins, as on hardware.
	q.solic = solicited && (!q.armed || q.solic)
	q.armed = true
	if q.broken {
		q.signalLocked()
	}
	return nil
}

func (q *loopCQ) Wait(ctx context.Context) error {
	select {
	case <-q.event:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-q.gone:
		return &verbs.Error{Kind: verbs.ErrClosed}
	}
}

func (q *loopCQ) Wake() {
	select {
	case q.event <- struct{}{}:
	default:
	}
}

func (q *loopCQ) Close() error {
	l := q.ctx.loop
	l.mu.Lock()
	defer l.mu.Unlock()
	q.closed = true
	close(q.gone)
	return nil
}
