package rxe

import (
	"strings"
	"testing"
	"time"

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
