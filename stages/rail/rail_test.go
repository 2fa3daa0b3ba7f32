package rail

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/railstore/railstore/ctrl"
	"github.com/railstore/railstore/cue/deploy"
	"github.com/railstore/railstore/pipeline"
	"github.com/railstore/railstore/verbs"
	"github.com/railstore/railstore/verbs/verbstest"
)

// world is a deployment of two shards and a client host on one loop network.
type world struct {
	dep    *deploy.Deployment
	driver verbs.Driver
	server *ctrl.Server
}

func newWorld(t *testing.T, d verbs.Driver, recipe ...func(*deploy.Deployment)) *world {
	t.Helper()
	rails := func(net string) []deploy.Rail {
		return []deploy.Rail{
			{Name: "a", Fabric: "fa", Device: "loop:10.0." + net, Port: 1, Weight: 1, HopLimit: 64, Timeout: 14, RetryCount: 7, RNRRetry: 7},
			{Name: "b", Fabric: "fb", Device: "loop:10.1." + net, Port: 1, Weight: 2, HopLimit: 64, Timeout: 14, RetryCount: 7, RNRRetry: 7},
		}
	}
	dep := &deploy.Deployment{Name: "test", Epoch: 1,
		Hosts:  []deploy.Host{{Name: "s0", Rails: rails("0.1")}, {Name: "s1", Rails: rails("0.2")}, {Name: "c", Rails: rails("0.3")}},
		Shards: []deploy.Shard{{ID: 0, Host: "s0"}, {ID: 1, Host: "s1"}}}
	for _, change := range recipe {
		change(dep)
	}
	srv, err := ctrl.NewServer(ctrl.ServerConfig{Address: "127.0.0.1:0", Identity: identity(dep), Shards: []int{0, 1}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = srv.Close() })
	return &world{dep: dep, driver: d, server: srv}
}

func identity(d *deploy.Deployment) ctrl.Identity {
	return ctrl.Identity{Namespace: d.Name, Deployment: d.Name, Epoch: d.Epoch, Digest: d.Digest()}
}

func (w *world) drivers(string, deploy.Rail) (verbs.Driver, error) { return w.driver, nil }

var testDemand = Demand{QPs: 3, MaxPeers: 2, Cap: verbs.QPCap{MaxSendWR: 8, MaxRecvWR: 8, MaxSendSGE: 1, MaxRecvSGE: 1},
	CQEs: 16, Bytes: 4096, Access: verbs.LocalWrite | verbs.RemoteWrite | verbs.RemoteRead, Params: map[string]string{"slots": "1"}}

// set resolves and allocates for a host.
func (w *world) set(ctx context.Context, scope *pipeline.Scope, host string, d Demand) (*Set, error) {
	rails, err := pipeline.Run(ctx, scope, Resolve, ResolveInput{w.dep, host, nil, w.drivers})
	if err != nil {
		return nil, err
	}
	return pipeline.Run(ctx, scope, Allocate, AllocateInput{w.dep, host, rails, d})
}

func (w *world) join(ctx context.Context, scope *pipeline.Scope, id ctrl.NodeID, s *Set) (*ctrl.Client, error) {
	c, err := ctrl.Dial(ctx, w.server.Addr(), identity(w.dep), ctrl.ClientOptions{})
	if err != nil {
		return nil, err
	}
	scope.DeferClose("control", c.Close)
	role := ctrl.RoleClient
	if _, ok := id.Shard(); ok {
		role = ctrl.RoleShard
	}
	if err := c.Join(ctx, ctrl.NodeInfo{ID: id, Role: role, Host: s.Host, Rails: s.Info()}); err != nil {
		return nil, err
	}
	scope.Defer("leave", func(ctx context.Context) error { return c.Leave(ctx, "done") })
	return c, nil
}

// echo accepts everybody and remembers who came and went.
type echo struct {
	mu      sync.Mutex
	peers   []*Peer
	dropped chan ctrl.NodeID
	refuse  error
	retired []int
	listen  ListenConfig
	l       *Listener
}

func (h *echo) Retire(_ *Peer, l *Link) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.retired = append(h.retired, l.Index)
	return l.QP.Close()
}

func (h *echo) Adopt(*Peer, *Link) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.refuse
}

func (h *echo) Accept(p *Peer) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.refuse != nil {
		return h.refuse
	}
	h.peers = append(h.peers, p)
	return nil
}

func (h *echo) Drop(p *Peer, _ string) { h.dropped <- p.Node }

// shard brings up a listening shard.
func (w *world) shard(t *testing.T, ctx context.Context, scope *pipeline.Scope, id int, h *echo, d Demand) *Set {
	t.Helper()
	s, err := w.set(ctx, scope, fmt.Sprintf("s%d", id), d)
	if err != nil {
		t.Fatal(err)
	}
	c, err := w.join(ctx, scope, ctrl.ShardID(id), s)
	if err != nil {
		t.Fatal(err)
	}
	l := Listen(ctx, s, c, h, h.listen)
	h.l = l
	scope.DeferClose("listener", l.Close)
	if err := c.SetState(ctx, ctrl.StateServing, ""); err != nil {
		t.Fatal(err)
	}
	return s
}

// dial brings up a client that is connected to both shards.
func (w *world) dial(ctx context.Context, scope *pipeline.Scope, name string, d Demand) ([]*Peer, error) {
	s, err := w.set(ctx, scope, "c", d)
	if err != nil {
		return nil, err
	}
	c, err := w.join(ctx, scope, ctrl.ClientID(name), s)
	if err != nil {
		return nil, err
	}
	if err := c.WaitReady(ctx); err != nil {
		return nil, err
	}
	in := DialInput{Set: s, Control: c}
	for i := range w.dep.Shards {
		n, err := c.Node(ctx, ctrl.ShardID(i))
		if err != nil {
			return nil, err
		}
		in.Shards = append(in.Shards, n.Info)
	}
	off, err := pipeline.Run(ctx, scope, Publish, in)
	if err != nil {
		return nil, err
	}
	return pipeline.Run(ctx, scope, Connect, off)
}

func timeout(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func TestClientReachesEveryShardOverEveryRail(t *testing.T) {
	defer goleak.VerifyNone(t)
	ctx, w := timeout(t), newWorld(t, verbstest.NewLoop(verbstest.LoopOptions{}))
	defer w.server.Close()
	servers := pipeline.NewScope()
	h := &echo{dropped: make(chan ctrl.NodeID, 4)}
	s0 := w.shard(t, ctx, servers, 0, h, testDemand)
	w.shard(t, ctx, servers, 1, h, testDemand)
	client := pipeline.NewScope()
	peers, err := w.dial(ctx, client, "x", testDemand)
	if err != nil {
		t.Fatal(err)
	}
	for i, p := range peers {
		if p.Node != ctrl.ShardID(i) || len(p.Links) != 3 {
			t.Fatalf("peer %d is %s with %d links", i, p.Node, len(p.Links))
		}
		for j, l := range p.Links {
			if want := []string{"a", "b", "a"}[j]; l.Rail.Name() != want || l.PeerRail != want {
				t.Errorf("link %d is on rail %s to %s, want %s", j, l.Rail.Name(), l.PeerRail, want)
			}
			writeOver(t, l, byte(1+10*i+j))
		}
	}
	h.mu.Lock()
	for _, p := range h.peers {
		for _, l := range p.Links {
			shard := 0
			if l.Local.GID.Addr().As4()[3] == 2 {
				shard = 1
			}
			if want := byte(1 + 10*shard + l.Index); !bytes.Equal(l.Bytes[:64], bytes.Repeat([]byte{want}, 64)) {
				t.Errorf("shard %d link %d holds %v, want %d", shard, l.Index, l.Bytes[:8], want)
			}
		}
	}
	h.mu.Unlock()
	if s0.QPsInUse() != 3 {
		t.Errorf("%d QPs in use at shard 0, want 3", s0.QPsInUse())
	}
	if err := client.Close(ctx); err != nil {
		t.Error(err)
	}
	for range 2 {
		if id := <-h.dropped; id != ctrl.ClientID("x") {
			t.Errorf("dropped %s", id)
		}
	}
	if err := servers.Close(ctx); err != nil {
		t.Error(err)
	}
	if s0.QPsInUse() != 0 {
		t.Errorf("%d QPs in use after the client left", s0.QPsInUse())
	}
}

func writeOver(t *testing.T, l *Link, v byte) {
	t.Helper()
	copy(l.Bytes, bytes.Repeat([]byte{v}, 64))
	mr, at := l.Rail.Block(l.Off, 64)
	_, err := l.QP.PostSend([]verbs.SendWR{{ID: 1, Op: verbs.OpWrite, Flags: verbs.Signaled, NumSGE: 1, RemoteAddr: l.Block.Addr, RKey: l.Block.RKey}},
		[]verbs.SGE{mr.SGE(at, 64)})
	if err != nil {
		t.Fatal(err)
	}
	var wc [1]verbs.WC
	if _, err := l.Rail.CQs[l.CQ].PollWait(timeout(t), wc[:], 10); err != nil || wc[0].Status != verbs.WCSuccess {
		t.Fatalf("%v %v", err, wc[0])
	}
}

func TestConnectRefusals(t *testing.T) {
	for _, c := range []struct {
		name   string
		server func(*Demand, *echo)
		client func(*Demand)
		recipe func(*deploy.Deployment)
		want   []string // all in the error
	}{
		{"parameters differ", nil, func(d *Demand) { d.Params = map[string]string{"slots": "2"} }, nil,
			[]string{"connect: shard ", "slots is 2 here and 1 at shard/"}}, // whichever answers first
		{"no common fabric", nil, nil, func(d *deploy.Deployment) {
			h, _ := d.Host("c")
			h.Rails = []deploy.Rail{h.Rails[0]}
			h.Rails[0].Fabric = "other"
		}, []string{"no rail of host c reaches shard/0", "rail a (fabric other", "no rail on this fabric"}},
		{"traffic classes differ", nil, nil, func(d *deploy.Deployment) {
			h, _ := d.Host("c")
			h.Rails[1].TrafficClass = 106
		}, []string{"b>b is traffic class 106,", "and traffic class 0,", "at shard/"}},
		{"the shard's user refuses", func(_ *Demand, h *echo) { h.refuse = errors.New("too busy") }, nil, nil, []string{"refused: too busy", "rail a"}},
		{"no room for another client", func(d *Demand, _ *echo) { d.MaxPeers, d.QPs = 1, 1 }, nil, nil, []string{"a client may have 1 to 2"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			defer goleak.VerifyNone(t)
			if c.recipe == nil {
				c.recipe = func(*deploy.Deployment) {}
			}
			ctx, w := timeout(t), newWorld(t, verbstest.NewLoop(verbstest.LoopOptions{}), c.recipe)
			defer w.server.Close()
			scope := pipeline.NewScope()
			h := &echo{dropped: make(chan ctrl.NodeID, 8)}
			sd, cd := testDemand, testDemand
			if c.server != nil {
				c.server(&sd, h)
			}
			s0 := w.shard(t, ctx, scope, 0, h, sd)
			w.shard(t, ctx, scope, 1, h, sd)
			if c.client != nil {
				c.client(&cd)
			}
			client := pipeline.NewScope()
			_, err := w.dial(ctx, client, "x", cd)
			var pe *pipeline.Error
			if !errors.As(err, &pe) {
				t.Fatalf("err = %v, want *pipeline.Error", err)
			}
			for _, s := range c.want {
				if !strings.Contains(err.Error(), s) {
					t.Errorf("error %q lacks %q", err, s)
				}
			}
			if err := errors.Join(client.Close(ctx), scope.Close(ctx)); err != nil {
				t.Error(err)
			}
			if s0.QPsInUse() != 0 {
				t.Errorf("a refused client holds %d QPs", s0.QPsInUse())
			}
		})
	}
}

// Every verb that bring-up uses fails once; nothing may stay open.
func TestBringUpUndoesEverything(t *testing.T) {
	verbstest.FailEach(t, func() verbs.Driver { return verbstest.NewLoop(verbstest.LoopOptions{}) }, func(d verbs.Driver) error {
		ctx := timeout(t)
		w := &world{driver: d, dep: &deploy.Deployment{Hosts: []deploy.Host{{Name: "c", Rails: []deploy.Rail{
			{Name: "a", Device: "loop:10.0.0.1", Port: 1}, {Name: "b", Device: "loop:10.1.0.1", Port: 1}}}}}}
		scope := pipeline.NewScope()
		s, err := w.set(ctx, scope, "c", testDemand)
		if err == nil {
			var op *offeredPeer
			if op, err = s.offer(ctrl.NodeInfo{ID: ctrl.ShardID(0), Rails: s.Info()}); err == nil {
				scope.DeferClose("disconnect", op.peer.Close)
				err = op.peer.Links[0].connect(s, op.offer.Lanes[0]) // to itself
			}
		}
		return errors.Join(err, scope.Close(ctx))
	})
}

func TestArena(t *testing.T) {
	a := newArena(64, 2)
	x, _ := a.take()
	y, _ := a.take()
	if x == y || x%64 != 0 || y%64 != 0 {
		t.Fatalf("%d %d", x, y)
	}
	if _, err := a.take(); !errors.Is(err, ErrNoRoom) {
		t.Fatalf("third block of two: %v", err)
	}
	a.give(x)
	if z, err := a.take(); err != nil || z != x {
		t.Fatalf("%d %v", z, err)
	}
}
