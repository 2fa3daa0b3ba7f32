package rail

import (
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/railstore/railstore/cue/deploy"
	"github.com/railstore/railstore/pipeline"
	"github.com/railstore/railstore/verbs"
	"github.com/railstore/railstore/verbs/verbstest"
)

// shifty is a driver whose one port changes as tests say.
type shifty struct {
	verbs.Driver
	events chan verbs.AsyncEvent

	mu    sync.Mutex
	port  verbs.PortAttr
	gids  []verbs.GIDEntry
	pkeys []uint16
}

type shiftyContext struct {
	verbs.DriverContext
	d *shifty
}

func (d *shifty) Open(name string) (verbs.DriverContext, error) {
	c, err := d.Driver.Open(name)
	return &shiftyContext{c, d}, err
}

func (c *shiftyContext) QueryPort(uint8) (verbs.PortAttr, error) {
	c.d.mu.Lock()
	defer c.d.mu.Unlock()
	return c.d.port, nil
}

func (c *shiftyContext) GIDs(uint8) ([]verbs.GIDEntry, error) {
	c.d.mu.Lock()
	defer c.d.mu.Unlock()
	return slices.Clone(c.d.gids), nil
}

func (c *shiftyContext) PKeys(uint8) ([]uint16, error) {
	c.d.mu.Lock()
	defer c.d.mu.Unlock()
	return slices.Clone(c.d.pkeys), nil
}

func (c *shiftyContext) Events() <-chan verbs.AsyncEvent { return c.d.events }

func entry(index int, addr string) verbs.GIDEntry {
	g, err := verbs.ParseGID(addr)
	if err != nil {
		panic(err)
	}
	return verbs.GIDEntry{Index: index, GID: g, Type: verbs.GIDTypeRoCEv2, NetDev: "e0"}
}

// trial is one rail on a port that changes.
type trial struct {
	t    *testing.T
	dev  *shifty
	set  *Set
	rail *Rail

	heard chan verbs.AsyncEvent // by the hook
	mu    sync.Mutex
	said  []pipeline.Event
}

func newTrial(t *testing.T, gid deploy.GIDSelector) *trial {
	t.Helper()
	t.Cleanup(func() { goleak.VerifyNone(t) })
	if lookAgain == time.Second { // what is said is said of events
		lookAgain = time.Hour
		t.Cleanup(func() { lookAgain = time.Second })
	}
	x := &trial{t: t, heard: make(chan verbs.AsyncEvent, 16), dev: &shifty{
		Driver: verbstest.NewLoop(verbstest.LoopOptions{}), events: make(chan verbs.AsyncEvent, 16),
		port:  verbs.PortAttr{State: verbs.PortActive, MaxMTU: 4096, ActiveMTU: 1024, LinkLayer: verbs.LinkEthernet, LID: 3},
		gids:  []verbs.GIDEntry{entry(0, "fe80::1"), entry(1, "10.0.0.9"), entry(2, "fd00::9")},
		pkeys: []uint16{0x8001, 0xffff},
	}}
	dep := &deploy.Deployment{Hosts: []deploy.Host{{Name: "h", Rails: []deploy.Rail{{Name: "a", Device: "loop:x", Port: 1, GID: gid}}}}}
	w := &world{dep: dep, driver: x.dev}
	scope := pipeline.NewScope()
	ctx := pipeline.WithSink(timeout(t), func(e pipeline.Event) {
		x.mu.Lock()
		x.said = append(x.said, e)
		x.mu.Unlock()
	})
	s, err := w.set(ctx, scope, "h", testDemand)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := scope.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	s.OnQPEvent(func(r *Rail, e verbs.AsyncEvent) {
		if r != s.Rails[0] {
			t.Error("another rail")
		}
		x.heard <- e
	})
	x.set, x.rail = s, s.Rails[0]
	x.settle()
	return x
}

const marker = 0xffffff

// settle waits until every event so far was taken, and gives what was said of them.
func (x *trial) settle() []pipeline.Event {
	x.t.Helper()
	x.dev.events <- verbs.AsyncEvent{Type: verbs.EventQPFatal, QPN: marker}
	for e := range x.heard {
		if e.QPN == marker {
			break
		}
		x.t.Errorf("the hook heard %+v", e)
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	said := x.said[:max(0, len(x.said)-1)] // without the marker's
	x.said = nil
	return said
}

// sends changes the port, sends the event and checks what is said: a name for each
// event, with words that its reason has.
func (x *trial) sends(e verbs.AsyncEvent, change func(*shifty), want ...[]string) {
	x.t.Helper()
	x.dev.mu.Lock()
	if change != nil {
		change(x.dev)
	}
	x.dev.mu.Unlock()
	if e.Type.OfPort() && e.Port == 0 {
		e.Port = 1
	}
	x.dev.events <- e
	said := x.settle()
	var names, asked []string
	for _, s := range said {
		names = append(names, s.Event)
	}
	for _, w := range want {
		asked = append(asked, w[0])
	}
	if !slices.Equal(names, asked) {
		x.t.Fatalf("%v: said %+v, want %v", e.Type, said, asked)
	}
	for i, w := range want {
		for _, words := range w[1:] {
			if !strings.Contains(said[i].Reason, words) || said[i].Rail != "a" {
				x.t.Errorf("%v: %+v lacks %q", e.Type, said[i], words)
			}
		}
	}
}

func (x *trial) is(state State, index int, addr string, why ...string) {
	x.t.Helper()
	st, reason := x.rail.Health()
	g := x.rail.Address().GID.Entry
	if st != state || g.Index != index || g.GID.Addr().String() != addr || (reason == "") != (state == Active) {
		x.t.Fatalf("the rail is %s (%s) at %v, index %d; want %s at %s, index %d", st, reason, g.GID.Addr(), g.Index, state, addr, index)
	}
	for _, w := range why {
		if !strings.Contains(reason, w) {
			x.t.Errorf("reason %q lacks %q", reason, w)
		}
	}
}

func event(t verbs.EventType) verbs.AsyncEvent { return verbs.AsyncEvent{Type: t} }

func gids(e ...verbs.GIDEntry) func(*shifty) { return func(d *shifty) { d.gids = e } }

func TestGIDChange(t *testing.T) {
	x := newTrial(t, deploy.GIDSelector{Select: "auto"})
	x.is(Active, 1, "10.0.0.9")
	// A better one is no reason to move, and neither is it that others go.
	x.sends(event(verbs.EventGIDChange), gids(entry(0, "10.0.0.1"), entry(1, "10.0.0.9"), entry(2, "fd00::9")), []string{"rail_event", "GID_CHANGE"})
	x.is(Active, 1, "10.0.0.9")
	x.sends(event(verbs.EventGIDChange), gids(entry(2, "fd00::9"), entry(5, "10.0.0.9")), []string{"rail_gid_changed", "GID_CHANGE: 10.0.0.9 moved from index 1 (e0) to index 5 (e0)"})
	x.is(Active, 5, "10.0.0.9")
	x.sends(event(verbs.EventGIDChange), gids(entry(2, "fd00::9"), entry(6, "10.0.0.7")),
		[]string{"rail_gid_changed", "10.0.0.9 (RoCE v2, index 5) is gone, 10.0.0.7 (RoCE v2, index 6) is taken"})
	x.is(Active, 6, "10.0.0.7")
	l, err := x.set.newLink(x.rail, 0)
	if err != nil {
		t.Fatal(err)
	}
	if l.Local.GID != entry(0, "10.0.0.7").GID {
		t.Errorf("a new link is at %v", l.Local.GID.Addr())
	}
	if err := l.close(x.set); err != nil {
		t.Error(err)
	}
	// The table is read again, but nothing is left of it.
	x.sends(event(verbs.EventGIDChange), gids(), []string{"rail_down", "GID_CHANGE", "the rail was 10.0.0.7 (RoCE v2, index 6)", "the GID table is empty"})
	x.is(Down, 6, "10.0.0.7", "empty")
	x.sends(event(verbs.EventGIDChange), gids(entry(0, "fe80::1")), []string{"rail_gid_changed", "fe80::1"}, []string{"rail_active"})
	x.is(Active, 0, "fe80::1")
}

func TestGIDThatTheRecipeNamesGoes(t *testing.T) {
	x := newTrial(t, deploy.GIDSelector{Select: "address", Address: "10.0.0.9"})
	x.sends(event(verbs.EventGIDChange), gids(entry(1, "10.0.0.8")), []string{"rail_down", "the rail was 10.0.0.9", "index 1 is RoCE v2 10.0.0.8 (not 10.0.0.9)"})
	x.is(Down, 1, "10.0.0.9")
	x.sends(event(verbs.EventGIDChange), gids(entry(1, "10.0.0.8"), entry(2, "10.0.0.9")), []string{"rail_gid_changed", "to index 2"}, []string{"rail_active"})
	x.is(Active, 2, "10.0.0.9")
}

// A port that returns is looked at like a new one.
func TestPortGoesAndReturns(t *testing.T) {
	x := newTrial(t, deploy.GIDSelector{})
	state := func(s verbs.PortState) func(*shifty) { return func(d *shifty) { d.port.State = s } }
	x.sends(verbs.AsyncEvent{Type: verbs.EventPortError, Port: 2}, nil) // the device's other port
	x.is(Active, 1, "10.0.0.9")
	x.sends(event(verbs.EventPortError), state(verbs.PortDown), []string{"rail_down", "PORT_ERR"})
	x.sends(event(verbs.EventGIDChange), nil, []string{"rail_event", "GID_CHANGE"})
	x.is(Down, 1, "10.0.0.9", "port is DOWN, not ACTIVE")
	x.sends(event(verbs.EventPortActive), nil, []string{"rail_event", "PORT_ACTIVE"}) // an old one: the port is down
	x.is(Down, 1, "10.0.0.9")
	x.sends(event(verbs.EventPortActive), func(d *shifty) {
		d.port.State, d.port.ActiveMTU = verbs.PortActive, 512
		d.gids = []verbs.GIDEntry{entry(3, "10.0.0.4")}
	}, []string{"rail_gid_changed", "PORT_ACTIVE", "10.0.0.9", "10.0.0.4"}, []string{"rail_mtu_changed", "was 1024, is 512"}, []string{"rail_active"})
	x.is(Active, 3, "10.0.0.4")
	if a := x.rail.Address(); a.ActiveMTU != 512 {
		t.Errorf("%+v", a)
	}
}

// Nobody tells that a port is well again: the rail finds out, once, and goes where the
// port has gone. A rail that is lost for good stays so.
func TestPortReturnsInSilence(t *testing.T) {
	lookAgain = time.Millisecond
	t.Cleanup(func() { lookAgain = time.Second })
	x := newTrial(t, deploy.GIDSelector{})
	changed := make(chan State, 4)
	x.set.OnState(func(r *Rail) { st, _ := r.Health(); changed <- st })
	x.sends(event(verbs.EventPortError), func(d *shifty) { d.port.State = verbs.PortDown }, []string{"rail_down", "PORT_ERR"})
	x.dev.mu.Lock()
	x.dev.port.State = verbs.PortActive
	x.dev.gids = []verbs.GIDEntry{entry(3, "10.0.0.4")}
	x.dev.mu.Unlock()
	if a, b := <-changed, <-changed; a != Down || b != Active {
		t.Errorf("the rail was %s, then %s", a, b)
	}
	x.is(Active, 3, "10.0.0.4")
	said := x.settle()
	if len(said) != 2 || said[0].Event != "rail_gid_changed" || said[1].Event != "rail_active" || !strings.Contains(said[1].Reason, "no event") {
		t.Errorf("said %+v", said)
	}
	x.sends(event(verbs.EventDeviceFatal), nil, []string{"rail_down", "DEVICE_FATAL"})
	if got := x.rail.recheck(); got != nil {
		t.Errorf("said %+v", got)
	}
	x.is(Down, 3, "10.0.0.4")
}

func TestPKeyAndLIDChange(t *testing.T) {
	x := newTrial(t, deploy.GIDSelector{})
	x.sends(event(verbs.EventPKeyChange), func(d *shifty) { d.pkeys = []uint16{0xffff} }, []string{"rail_pkey_changed", "PKEY_CHANGE", "was 1, is 0"})
	if a := x.rail.Address(); a.PKeyIndex != 0 {
		t.Errorf("%+v", a)
	}
	x.sends(event(verbs.EventPKeyChange), func(d *shifty) { d.pkeys = []uint16{0x8001} }, []string{"rail_down", "not a member of partition 0xffff"})
	x.sends(event(verbs.EventPKeyChange), func(d *shifty) { d.pkeys = []uint16{0xffff} }, []string{"rail_active"})
	x.sends(event(verbs.EventLIDChange), func(d *shifty) { d.port.LID = 9 }, []string{"rail_lid_changed", "LID_CHANGE", "LID was 3, is 9"})
	if a := x.rail.Address(); a.Port.LID != 9 {
		t.Errorf("%+v", a)
	}
	x.sends(event(verbs.EventSMChange), nil, []string{"rail_event", "SM_CHANGE"})
	x.sends(event(verbs.EventClientReregister), nil, []string{"rail_event", "CLIENT_REREGISTER"})
	x.is(Active, 1, "10.0.0.9")
}

// A device or a CQ that broke does not come back with its port.
func TestLostForGood(t *testing.T) {
	for _, e := range []verbs.AsyncEvent{{Type: verbs.EventDeviceFatal}, {Type: verbs.EventCQError, Err: verbs.ErrCQOverrun}} {
		t.Run(e.Type.String(), func(t *testing.T) {
			x := newTrial(t, deploy.GIDSelector{})
			want := [][]string{{"rail_down", e.Type.String()}}
			if e.Type == verbs.EventCQError {
				want = append([][]string{{"cq_event", "CQ_ERR: completion queue"}}, want...)
				x.dev.events <- e
				if got := <-x.heard; got != e {
					t.Errorf("the hook heard %+v", got)
				}
				said := x.settle()
				if len(said) != 2 || said[0].Event != want[0][0] || said[1].Event != want[1][0] {
					t.Errorf("%+v", said)
				}
			} else {
				x.sends(e, nil, want...)
			}
			x.is(Down, 1, "10.0.0.9", e.Type.String())
			x.sends(event(verbs.EventPortActive), nil, []string{"rail_event", "PORT_ACTIVE"})
			x.is(Down, 1, "10.0.0.9", e.Type.String())
		})
	}
}

// Events about a QP are the hook's; the rail stays as it is.
func TestQPEvents(t *testing.T) {
	x := newTrial(t, deploy.GIDSelector{})
	for _, e := range []verbs.EventType{verbs.EventQPFatal, verbs.EventQPRequestError, verbs.EventQPAccessError, verbs.EventCommEstablished} {
		x.dev.events <- verbs.AsyncEvent{Type: e, QPN: 77}
		if got := <-x.heard; got.Type != e || got.QPN != 77 {
			t.Errorf("the hook heard %+v", got)
		}
		said := x.settle()
		if e == verbs.EventCommEstablished {
			if len(said) != 0 {
				t.Errorf("%v: said %+v", e, said)
			}
		} else if len(said) != 1 || said[0].Event != "qp_event" || said[0].Reason != e.String() || said[0].Fields["qpn"] != uint32(77) {
			t.Errorf("%v: said %+v", e, said)
		}
	}
	x.is(Active, 1, "10.0.0.9")
}

// An event of a real queue of the rail names it.
func TestOverrunNamesTheRailsCQ(t *testing.T) {
	w := &world{driver: verbstest.NewLoop(verbstest.LoopOptions{}), dep: &deploy.Deployment{Hosts: []deploy.Host{{Name: "h",
		Rails: []deploy.Rail{{Name: "a", Device: "loop:10.0.0.1", Port: 1, Timeout: 14, RetryCount: 7, RNRRetry: 7}}}}}}
	defer goleak.VerifyNone(t)
	ctx, scope := timeout(t), pipeline.NewScope()
	d := testDemand
	d.QPs, d.MaxPeers, d.CQEs = 2, 1, 1
	s, err := w.set(ctx, scope, "h", d)
	if err != nil {
		t.Fatal(err)
	}
	heard := make(chan verbs.AsyncEvent, 16)
	s.OnQPEvent(func(_ *Rail, e verbs.AsyncEvent) { heard <- e })
	r := s.Rails[0]
	var l [2]*Link
	for i := range l {
		if l[i], err = s.newLink(r, i); err != nil {
			t.Fatal(err)
		}
	}
	for i := range l {
		if err := l[i].connect(s, l[1-i].meta(s)); err != nil {
			t.Fatal(err)
		}
	}
	mr, at := r.Block(l[0].Off, 64)
	for range 8 {
		if _, err := l[0].QP.PostSend([]verbs.SendWR{{Op: verbs.OpWrite, Flags: verbs.Signaled, NumSGE: 1, RemoteAddr: l[0].Block.Addr, RKey: l[0].Block.RKey}},
			[]verbs.SGE{mr.SGE(at, 64)}); err != nil {
			t.Fatal(err)
		}
	}
	for e := range heard {
		if e.Type == verbs.EventCQError {
			if !e.IsOf(r.CQs[0]) {
				t.Errorf("%+v does not name the rail's CQ", e)
			}
			break
		}
	}
	for _, l := range l {
		if err := l.close(s); err != nil {
			t.Error(err)
		}
	}
	if err := scope.Close(ctx); err != nil {
		t.Error(err)
	}
}
