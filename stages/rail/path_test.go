package rail

import (
	"strings"
	"testing"

	"github.com/railstore/railstore/cue/deploy"
	"github.com/railstore/railstore/pipeline"
	"github.com/railstore/railstore/verbs"
	"github.com/railstore/railstore/verbs/verbstest"
)

// Each parameter of a path that both ends must have alike changes what is compared.
func TestEveryPathParameterIsCompared(t *testing.T) {
	path := func(r deploy.Rail) map[string]string { return map[string]string{pathKey("a", "a"): pathText(r)} }
	base := deploy.Rail{HopLimit: 64}
	for name, change := range map[string]func(*deploy.Rail){
		"traffic class": func(r *deploy.Rail) { r.TrafficClass = 8 },
		"service level": func(r *deploy.Rail) { r.SL = 3 },
		"hop limit":     func(r *deploy.Rail) { r.HopLimit = 63 },
		"flow label":    func(r *deploy.Rail) { r.FlowLabel = 1 },
		"partition":     func(r *deploy.Rail) { r.PKey = 0x8001 },
	} {
		other := base
		change(&other)
		if err := compareParams(path(base), path(other), "shard/0"); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("another %s: %v", name, err)
		}
	}
	// The default partition has a number, and membership is each port's own.
	for _, key := range []int{0xffff, 0x7fff} {
		same := base
		same.PKey = key
		if err := compareParams(path(base), path(same), "shard/0"); err != nil {
			t.Errorf("partition %#x is the default one: %v", key, err)
		}
	}
}

// The CQs of a rail hold what all QPs of all peers can have outstanding, and one QP's
// more each: a device that has not that room is refused.
func TestCQHoldsEveryQPOfEveryPeer(t *testing.T) {
	d := testDemand
	for _, d.CQs = range []int{0, 1, 4, 100} { // 6 QPs at most
		need := d.CQEs * (map[int]int{0: 6, 1: 6, 4: 2, 100: 1}[d.CQs] + 1)
		for room, ok := range map[int]bool{need: true, need - 1: false} {
			driver := verbstest.NewLoop(verbstest.LoopOptions{Attr: func(a *verbs.DeviceAttr) { a.MaxCQE = room }})
			ctx, scope := timeout(t), pipeline.NewScope()
			_, err := twoRails(driver).set(ctx, scope, "c", d)
			if (err == nil) != ok || err != nil && !strings.Contains(err.Error(), "lower lanes.maxClients") {
				t.Errorf("%d CQs of %d where %d are needed: %v", d.CQs, room, need, err)
			}
			if err := scope.Close(ctx); err != nil {
				t.Error(err)
			}
		}
	}
}
