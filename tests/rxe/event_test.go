package rxe

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/railstore/railstore/cue/deploy"
	"github.com/railstore/railstore/pipeline"
	"github.com/railstore/railstore/stages/rail"
	"github.com/railstore/railstore/verbs"
	"github.com/railstore/railstore/verbs/ibv"
)

// do runs a command of the guest.
func do(t *testing.T, args ...string) {
	t.Helper()
	if out, err := command("", args[0], args[1:]...); err != nil {
		t.Fatal(err, out)
	}
}

// await waits for an event of a type; others may come before it.
func await(t *testing.T, c *verbs.Context, want verbs.EventType) verbs.AsyncEvent {
	t.Helper()
	var seen []string
	timeout := time.After(stockPatience)
	for {
		select {
		case e := <-c.Events():
			if e.Type == want {
				return e
			}
			seen = append(seen, e.Type.String())
		case <-timeout:
			t.Fatalf("no event %v; there were %v", want, seen)
		}
	}
}

// TestInsideEvents: what happens to a net device becomes events of the RDMA device
// on it, and shows in its port and its GID table.
func TestInsideEvents(t *testing.T) {
	inside(t)
	do(t, "ip", "link", "add", "ev0", "type", "veth", "peer", "name", "ev1")
	defer do(t, "ip", "link", "del", "ev0")
	do(t, "ip", "addr", "add", "10.40.0.1/24", "dev", "ev0")
	do(t, "ip", "link", "set", "ev1", "up")
	do(t, "ip", "link", "set", "ev0", "up")
	do(t, "rdma", "link", "add", "rxe40", "type", "rxe", "netdev", "ev0")
	defer do(t, "rdma", "link", "del", "rxe40")

	c, err := verbs.Open(ibv.New(ibv.Options{}), "rxe40")
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}()
	do(t, "ip", "link", "set", "ev0", "down")
	if e := await(t, c, verbs.EventPortError); e.Port != 1 {
		t.Errorf("%+v: want port 1", e)
	}
	if p, err := c.Port(1); err != nil || p.State == verbs.PortActive {
		t.Errorf("port of a net device that is down: %+v %v", p, err)
	}
	do(t, "ip", "link", "set", "ev0", "up")
	await(t, c, verbs.EventPortActive)
	if p, err := c.Port(1); err != nil || p.State != verbs.PortActive {
		t.Errorf("port of a net device that is up: %+v %v", p, err)
	}
	do(t, "ip", "addr", "add", "10.40.0.9/24", "dev", "ev0")
	await(t, c, verbs.EventGIDChange)
	gids, err := c.GIDs(1)
	if err != nil {
		t.Fatal(err)
	}
	found := false
	for _, g := range gids {
		found = found || g.GID.Addr().String() == "10.40.0.9" && g.Type == verbs.GIDTypeRoCEv2 && g.NetDev == "ev0"
	}
	if !found {
		t.Errorf("the new address has no GID: %+v", gids)
	}
}

// TestInsideRailFollowsItsAddress: a rail whose address goes takes another one of its
// port, and is down while there is none.
func TestInsideRailFollowsItsAddress(t *testing.T) {
	inside(t)
	do(t, "ip", "link", "add", "ev2", "type", "veth", "peer", "name", "ev3")
	defer do(t, "ip", "link", "del", "ev2")
	do(t, "ip", "link", "set", "ev2", "addrgenmode", "none") // no link-local address: what is added here is all there is
	do(t, "ip", "addr", "add", "10.41.0.1/24", "dev", "ev2")
	do(t, "ip", "link", "set", "ev3", "up")
	do(t, "ip", "link", "set", "ev2", "up")
	do(t, "rdma", "link", "add", "rxe41", "type", "rxe", "netdev", "ev2")
	defer do(t, "rdma", "link", "del", "rxe41")

	said := make(chan pipeline.Event, 100)
	ctx := pipeline.WithSink(context.Background(), func(e pipeline.Event) { said <- e })
	scope := pipeline.NewScope()
	defer func() {
		if err := scope.Close(context.Background()); err != nil {
			t.Error(err)
		}
	}()
	// The address is asked for, so that the GID which rxe makes of the MAC is none.
	d := &deploy.Deployment{Hosts: []deploy.Host{{Name: "h", Rails: []deploy.Rail{
		{Name: "a", Device: "ibv:rxe41", Port: 1, GID: deploy.GIDSelector{Select: "address", Address: "10.41.0.0/16"}}}}}}
	rails, err := pipeline.Run(ctx, scope, rail.Resolve, rail.ResolveInput{Deployment: d, Host: "h",
		Drivers: func(string, deploy.Rail) (verbs.Driver, error) { return ibv.New(ibv.Options{}), nil }})
	if err != nil {
		t.Fatal(err)
	}
	set, err := pipeline.Run(ctx, scope, rail.Allocate, rail.AllocateInput{Deployment: d, Host: "h", Rails: rails,
		Demand: rail.Demand{QPs: 1, MaxPeers: 1, Cap: verbs.QPCap{MaxSendWR: 4, MaxRecvWR: 4, MaxSendSGE: 1, MaxRecvSGE: 1}, CQEs: 8, Bytes: 4096, Access: verbs.LocalWrite}})
	if err != nil {
		t.Fatal(err)
	}
	is := func(state rail.State, addr string) {
		t.Helper()
		st, why := set.Rails[0].Health()
		if got := set.Rails[0].Address().GID.Entry.GID.Addr().String(); st != state || got != addr {
			t.Fatalf("the rail is %s (%s) at %s, want %s at %s", st, why, got, state, addr)
		}
		t.Logf("%s at %s: %s", st, addr, why)
	}
	saying := func(event, words string) {
		t.Helper()
		var seen []pipeline.Event
		timeout := time.After(stockPatience)
		for {
			select {
			case e := <-said:
				if e.Event == event && strings.Contains(e.Reason, words) {
					return
				}
				seen = append(seen, e)
			case <-timeout:
				t.Fatalf("no event %s with %q; there were %+v", event, words, seen)
			}
		}
	}
	is(rail.Active, "10.41.0.1")
	do(t, "ip", "addr", "del", "10.41.0.1/24", "dev", "ev2")
	saying("rail_down", "the rail was 10.41.0.1 (RoCE v2, index ")
	is(rail.Down, "10.41.0.1")
	do(t, "ip", "addr", "add", "10.41.0.2/24", "dev", "ev2")
	saying("rail_gid_changed", "10.41.0.1 (RoCE v2, index ")
	saying("rail_active", "")
	is(rail.Active, "10.41.0.2")
	do(t, "ip", "link", "set", "ev2", "down")
	saying("rail_down", "PORT_ERR")
	do(t, "ip", "link", "set", "ev2", "up")
	saying("rail_active", "")
	is(rail.Active, "10.41.0.2")
}

// TestInsideNothingIsLeft: what a process had is gone from the kernel when it has
// closed it, not only when it ends.
func TestInsideNothingIsLeft(t *testing.T) {
	inside(t)
	before := resources(t)
	ctx, err := verbs.Open(ibv.New(ibv.Options{}), "rxe0")
	if err != nil {
		t.Fatal(err)
	}
	pd, err := ctx.AllocPD()
	if err != nil {
		t.Fatal(err)
	}
	cq, err := ctx.CreateCQ(16)
	if err != nil {
		t.Fatal(err)
	}
	region, err := verbs.MapRegion(4096)
	if err != nil {
		t.Fatal(err)
	}
	mr, err := pd.Register(region, verbs.LocalWrite)
	if err != nil {
		t.Fatal(err)
	}
	qp, err := pd.CreateQP(verbs.QPInit{SendCQ: cq, RecvCQ: cq, Cap: verbs.QPCap{MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1}})
	if err != nil {
		t.Fatal(err)
	}
	if during := resources(t); during == before {
		t.Errorf("the kernel does not show what is open: %s", during)
	}
	for _, c := range []func() error{qp.Close, mr.Close, region.Close, cq.Close, pd.Close, ctx.Close} {
		if err := c(); err != nil {
			t.Error(err)
		}
	}
	if after := resources(t); after != before {
		t.Errorf("before: %s\nafter: %s", before, after)
	}
}

// resources is what the kernel counts for rxe0.
func resources(t *testing.T) string {
	t.Helper()
	out, err := command("", "rdma", "resource", "show", "rxe0")
	if err != nil {
		t.Fatal(err, out)
	}
	return strings.TrimSpace(out)
}
