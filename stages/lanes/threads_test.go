package lanes

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/railstore/railstore/ctrl"
	"github.com/railstore/railstore/cue/deploy"
	"github.com/railstore/railstore/pipeline"
	"github.com/railstore/railstore/verbs/lane"
)

// Four lanes are divided among threads × coroutines: while a handler of one blocks, the
// lanes of the others are served and those that share its scanner wait.
func TestLanesAreDividedAmongThreadsAndScanners(t *testing.T) {
	const total = 4
	for _, c := range []struct{ threads, coroutines int }{{1, 1}, {2, 1}, {1, 2}, {2, 2}, {4, 1}, {1, 4}} {
		t.Run(fmt.Sprintf("threads=%d/coroutines=%d", c.threads, c.coroutines), func(t *testing.T) {
			defer goleak.VerifyNone(t)
			w := newWorld(t, func(d *deploy.Deployment) {
				d.Shards = d.Shards[:1]
				for i := range d.Hosts {
					d.Hosts[i].Rails = d.Hosts[i].Rails[:1]
				}
				d.Lanes.QPs, d.Lanes.Slots = total, 1
				d.Server.Threads, d.Server.CoroutinesPerThread = c.threads, c.coroutines
			})
			defer w.server.Close()
			servers := pipeline.NewScope()
			set, control, cfg := w.member(t, servers, "s0", ctrl.ShardID(0), ServerDemand)
			if n := len(set.Rails[0].CQs); n != c.threads {
				t.Fatalf("%d CQs", n)
			}
			entered, release := make(chan struct{}), make(chan struct{})
			var mu sync.Mutex
			var begun []string
			r := new(Router)
			r.Handle(7, lane.HandlerFunc(func(x *lane.Exchange) {
				what := string(x.Payload())
				mu.Lock()
				begun = append(begun, what)
				mu.Unlock()
				if what == "block" {
					close(entered)
					<-release
					mu.Lock()
					begun = append(begun, "released")
					mu.Unlock()
				}
				x.Reply(lane.StatusOK, 0)
			}))
			Serve(w.ctx, servers, ServerInput{Set: set, Control: control, Shard: 0, Config: cfg, Handler: r,
				Sort: func(uint16, uint16) int { return lane.ToPoller }})
			if err := control.SetState(w.ctx, ctrl.StateServing, ""); err != nil {
				t.Fatal(err)
			}
			scope := pipeline.NewScope()
			cset, cc, ccfg := w.member(t, scope, "c", ctrl.ClientID("x"), ClientDemand)
			cl, err := Dial(w.ctx, scope, ClientInput{Set: cset, Control: cc, Config: ccfg})
			if err != nil {
				t.Fatal(err)
			}
			answers := make(chan string, total)
			call := func(what string) {
				_, err := cl.Pool(0).Call(w.ctx, lane.Request{Op: 0x0701, Payload: []byte(what)}, nil)
				if err != nil {
					what = err.Error()
				}
				answers <- what
			}
			var calls sync.WaitGroup
			calls.Go(func() { call("block") })
			<-entered
			for i := range total - 1 { // each lane has one slot: they take the other lanes
				calls.Go(func() { call(fmt.Sprint(i)) })
			}
			free := total - total/(c.threads*c.coroutines)
			for range free {
				if what := <-answers; what == "block" || len(what) > 1 {
					t.Errorf("answered: %s", what)
				}
			}
			for range 100 {
				runtime.Gosched() // a chance for what must not happen
			}
			close(release)
			calls.Wait()
			for i, what := range begun {
				if late := i > free+1; late && what != "released" {
					continue
				} else if (what == "released") != (i == free+1) {
					t.Errorf("begun: %v, want %d requests served while one blocked", begun, free)
					break
				}
			}
			// What came and went leaves the queues as they were.
			if err := errors.Join(scope.Close(w.ctx), servers.Close(w.ctx)); err != nil {
				t.Error(err)
			}
			if n := set.QPsInUse(); n != 0 {
				t.Errorf("%d QPs are left", n)
			}
		})
	}
}
