package lane

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/railstore/railstore/verbs"
	"github.com/railstore/railstore/verbs/verbstest"
	"go.uber.org/goleak"
)

// station is one process's side of a rail: device, memory, CQ and poller.
type station struct {
	ctx    *verbs.Context
	pd     *verbs.PD
	cq     *verbs.CQ
	region *verbs.Region
	mr     *verbs.MR
	poller *Poller
	used   int
	gid    int // index of the GID it connects from
}

func newStation(tb testing.TB, d verbs.Driver, name string, depth, bytes int, pc PollerConfig) *station {
	tb.Helper()
	s := &station{}
	var err error
	must := func(err error) {
		tb.Helper()
		if err != nil {
			tb.Fatal(err)
		}
	}
	s.ctx, err = verbs.Open(d, name)
	must(err)
	s.pd, err = s.ctx.AllocPD()
	must(err)
	s.cq, err = s.ctx.CreateCQ(depth)
	must(err)
	s.region, err = verbs.MapRegion(bytes)
	must(err)
	s.mr, err = s.pd.Register(s.region, verbstest.All)
	must(err)
	s.poller = StartPoller(s.cq, pc)
	tb.Cleanup(func() { s.close(tb) })
	return s
}

func (s *station) close(tb testing.TB) {
	s.poller.Close()
	for _, c := range []interface{ Close() error }{s.cq, s.mr, s.region, s.pd, s.ctx} {
		if err := c.Close(); err != nil {
			tb.Errorf("closing %T: %v", c, err)
		}
	}
}

// take gives the next n bytes of the station's memory.
func (s *station) take(n int, gen uint32) Memory {
	n = align64(n)
	m := Memory{MR: s.mr, Bytes: s.region.Bytes()[s.used : s.used+n : s.used+n], Off: uint64(s.used), Generation: gen}
	s.used += n
	return m
}

func (s *station) endpoint(tb testing.TB, qp *verbs.QP) verbs.Endpoint {
	tb.Helper()
	port, err := s.ctx.Port(1)
	if err != nil {
		tb.Fatal(err)
	}
	gids, err := s.ctx.GIDs(1)
	if err != nil {
		tb.Fatal(err)
	}
	g := gids[slices.IndexFunc(gids, func(g verbs.GIDEntry) bool { return g.Type == verbs.GIDTypeRoCEv2 && g.GID.IsIPv4() })]
	s.gid = g.Index
	return verbs.Endpoint{GID: g.GID, GIDType: g.Type, QPN: qp.QPN(), PSN: 0xfffff0, MTU: port.ActiveMTU, UDPPort: port.UDPPort}
}

// rig is a client's pool and a server's acceptor with lanes between them.
type rig struct {
	tb       testing.TB
	cfg      Config
	client   *station
	server   *station
	pool     *Pool
	lanes    []*Lane
	acceptor *Acceptor
	served   []*ServerLane

	mu     sync.Mutex
	events []Event
}

type rigOptions struct {
	cfg     Config
	lanes   int
	rails   int // lanes take turns over that many rail names
	workers int
	sort    func(op, flags uint16) int
	pools   []int
	driver  verbs.Driver
	names   [2]string
	poller  PollerConfig
	spare   int // bytes of memory at either side beyond the lanes
	path    verbs.PathOpts
	noLeak  bool
}

func newRig(tb testing.TB, o rigOptions, h Handler) *rig {
	tb.Helper()
	if t, ok := tb.(*testing.T); ok && !o.noLeak {
		ignore := goleak.IgnoreCurrent()
		tb.Cleanup(func() { goleak.VerifyNone(t, ignore) })
	}
	if o.driver == nil {
		o.driver = verbstest.Trace(tb, verbstest.NewLoop(verbstest.LoopOptions{}))
	}
	if o.names[0] == "" {
		o.names = [2]string{"127.0.1.1", "127.0.1.2"}
	}
	if o.lanes == 0 {
		o.lanes = 1
	}
	if o.rails == 0 {
		o.rails = 1
	}
	if o.path.RetryCount == 0 {
		o.path.RetryCount, o.path.RNRRetry = 6, 7
	}
	o.path.Access = verbs.RemoteWrite | verbs.RemoteRead
	r := &rig{tb: tb, cfg: o.cfg}
	r.cfg.Events = func(e Event) {
		r.mu.Lock()
		r.events = append(r.events, e)
		r.mu.Unlock()
	}
	ccfg, scfg := r.cfg, r.cfg
	ccfg.Counters, scfg.Counters = new(Counters), new(Counters)
	depth := CQDepth(r.cfg, o.lanes, o.lanes)
	r.client = newStation(tb, o.driver, o.names[0], depth, o.lanes*align64(r.cfg.ClientBytes())+o.spare, o.poller)
	r.server = newStation(tb, o.driver, o.names[1], depth, o.lanes*align64(r.cfg.ServerBytes())+o.spare, o.poller)
	r.acceptor = NewAcceptor(h, AcceptorConfig{Workers: o.workers, Sort: o.sort, Pools: o.pools, Counters: scfg.Counters})
	r.pool = NewPool()
	tb.Cleanup(func() {
		if err := r.pool.Close(); err != nil {
			tb.Errorf("closing the pool: %v", err)
		}
		if err := r.acceptor.Close(); err != nil {
			tb.Errorf("closing the acceptor: %v", err)
		}
	})
	for i := range o.lanes {
		rail := fmt.Sprintf("r%d", i%o.rails)
		l, sl := r.connect(ccfg, scfg, o.path, uint32(100+i), uint32(200+i),
			Label{Shard: 3, Index: i, Rail: rail, Local: "client/7", Remote: "shard/3"},
			r.client.take(r.cfg.ClientBytes(), uint32(100+i)), r.server.take(r.cfg.ServerBytes(), uint32(200+i)))
		r.lanes, r.served = append(r.lanes, l), append(r.served, sl)
		r.pool.Add(l)
	}
	return r
}

// qps makes a connected pair of QPs.
func (r *rig) qps(ccfg, scfg Config, path verbs.PathOpts) (c, s *verbs.QP) {
	r.tb.Helper()
	var err error
	c, err = r.client.pd.CreateQP(verbs.QPInit{SendCQ: r.client.cq, RecvCQ: r.client.cq, Cap: ccfg.ClientCap()})
	if err != nil {
		r.tb.Fatal(err)
	}
	s, err = r.server.pd.CreateQP(verbs.QPInit{SendCQ: r.server.cq, RecvCQ: r.server.cq, Cap: scfg.ServerCap()})
	if err != nil {
		r.tb.Fatal(err)
	}
	ce, se := r.client.endpoint(r.tb, c), r.server.endpoint(r.tb, s)
	path.SGIDIndex = r.server.gid
	if err := s.Connect(se, ce, path, nil); err != nil {
		r.tb.Fatal(err)
	}
	path.SGIDIndex = r.client.gid
	if err := c.Connect(ce, se, path, nil); err != nil {
		r.tb.Fatal(err)
	}
	return c, s
}

func (r *rig) connect(ccfg, scfg Config, path verbs.PathOpts, cgen, sgen uint32, label Label, cm, sm Memory) (*Lane, *ServerLane) {
	r.tb.Helper()
	c, s := r.qps(ccfg, scfg, path)
	scfg.Clear(sm)
	sl, err := r.acceptor.Add(r.server.poller, s, sm, Peer{Slots: ccfg.ClientSlots(cm), Generation: cgen}, scfg, label)
	if err != nil {
		r.tb.Fatal(err)
	}
	l, err := New(r.client.poller, c, cm, Peer{Slots: scfg.ServerSlots(sm), Generation: sgen}, ccfg, label)
	if err != nil {
		r.tb.Fatal(err)
	}
	return l, sl
}

func (r *rig) eventNames() (out []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range r.events {
		out = append(out, e.Name)
	}
	return out
}

func (r *rig) until(what string, ok func() bool) {
	r.tb.Helper()
	for deadline := time.Now().Add(20 * time.Second); !ok(); {
		if time.Now().After(deadline) {
			r.tb.Fatalf("waited 20 s for %s", what)
		}
		r.client.ctx.Progress()
		r.server.ctx.Progress()
		pause()
	}
}
