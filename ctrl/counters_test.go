package ctrl

import (
	"testing"
	"time"
)

func TestCounters(t *testing.T) {
	s := startServer(t, ServerConfig{Timing: quick})
	c := dial(t, s.Addr())
	ctx := testContext(t)
	if !c.Counters().LastHeartbeat().IsZero() {
		t.Error("a heartbeat before Join")
	}
	if err := c.Join(ctx, NodeInfo{ID: ShardID(0), Role: RoleShard, Host: "h", PID: 1, Started: time.Now()}); err != nil {
		t.Fatal(err)
	}
	if err := c.SetState(ctx, StateServing, ""); err != nil {
		t.Fatal(err)
	}
	if h := c.Health(ctx, ShardID(0)); h.State != StateServing {
		t.Errorf("%+v", h)
	}
	c.Verdicts(ctx, ShardID(0), ShardID(1))
	n := c.Counters()
	if a, b := n.VerdictsServing.Load(), n.VerdictsUnknown.Load(); a != 2 || b != 1 {
		t.Errorf("%d serving and %d unknown, want 2 and 1", a, b)
	}
	tick := time.NewTicker(quick.Heartbeat)
	defer tick.Stop()
	for n.Heartbeats.Load() == 0 || n.LastHeartbeat().IsZero() {
		select {
		case <-ctx.Done():
			t.Fatal("no heartbeat")
		case <-tick.C:
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	for n.HeartbeatsFailed.Load() == 0 {
		select {
		case <-ctx.Done():
			t.Fatal("no failed heartbeat")
		case <-tick.C:
		}
	}
}
