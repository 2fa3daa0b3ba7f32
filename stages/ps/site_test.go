package ps

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/railstore/railstore/ctrl"
	"github.com/railstore/railstore/cue/deploy"
	"github.com/railstore/railstore/pipeline"
	"github.com/railstore/railstore/stages/lanes"
	"github.com/railstore/railstore/stages/rail"
	"github.com/railstore/railstore/stages/table"
	"github.com/railstore/railstore/verbs"
	"github.com/railstore/railstore/verbs/ibv"
	"github.com/railstore/railstore/verbs/soft"
	"github.com/railstore/railstore/verbs/verbstest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// site is a whole deployment in one process: a control plane, shards that serve tables
// over lanes, and clients.
type site struct {
	tb     testing.TB
	dep    *deploy.Deployment
	open   func() verbs.Driver
	driver verbs.Driver
	server *ctrl.Server

	mu     sync.Mutex
	shards map[int]*siteShard
	events []pipeline.Event
}

type siteShard struct {
	scope   *pipeline.Scope
	service *Service
	folder  string
}

// where is what tests run on: loop and soft, or two RDMA devices that reach each other,
// client and server, where RS_TEST_IBV names them.
type where struct {
	name   string
	open   func() verbs.Driver
	device func(rail, host int) string // host 0, 1: shards; 2: client
	rails  int
	beat   time.Duration // of the control plane; 0: 20 ms
}

func wheres(tb testing.TB) []where {
	if list := os.Getenv("RS_TEST_IBV"); list != "" {
		a, b, two := strings.Cut(list, ",")
		if !two {
			tb.Fatalf("RS_TEST_IBV=%s: want two devices", list)
		}
		return []where{{"ibv", func() verbs.Driver { return ibv.New(ibv.Options{}) }, func(_, host int) string {
			if host == 2 {
				return "ibv:" + a
			}
			return "ibv:" + b
		}, 1, 0}}
	}
	return []where{
		{"loop", func() verbs.Driver { return verbstest.NewLoop(verbstest.LoopOptions{Async: true}) },
			func(r, host int) string { return fmt.Sprintf("loop:10.%d.0.%d", r, host+1) }, 2, 0},
		{"soft", func() verbs.Driver { return soft.New(soft.Options{}) },
			func(r, host int) string { return fmt.Sprintf("soft:127.0.%d.%d", 50+r, host+1) }, 2, 0},
	}
}

// each runs a test everywhere.
func each(t *testing.T, f func(t *testing.T, w where)) {
	for _, w := range wheres(t) {
		t.Run(w.name, func(t *testing.T) { f(t, w) })
	}
}

func newSite(tb testing.TB, w where, change func(*deploy.Deployment)) *site {
	tb.Helper()
	names := []string{"a", "b"}
	host := func(name string, n int) deploy.Host {
		h := deploy.Host{Name: name}
		for r := range w.rails {
			h.Rails = append(h.Rails, deploy.Rail{Name: names[r], Fabric: "f" + names[r], Device: w.device(r, n), Port: 1, Weight: 1,
				HopLimit: 64, Timeout: 16, RetryCount: 7, RNRRetry: 7})
		}
		return h
	}
	ms := func(n int) deploy.Duration { return deploy.Duration(time.Duration(n) * time.Millisecond) }
	dep := &deploy.Deployment{Name: "tables", Epoch: 3,
		Hosts:  []deploy.Host{host("s0", 0), host("s1", 1), host("c", 2)},
		Shards: []deploy.Shard{{ID: 0, Host: "s0"}, {ID: 1, Host: "s1"}},
		Lanes: deploy.Lanes{QPs: 2, Slots: 4, RequestBytes: 4096, ResponseBytes: 4096, Notify: "adaptive", Spin: deploy.Duration(20 * time.Microsecond),
			WaitTimeout: ms(10000), MaxClients: 4, GetResponseMode: "auto", PutProtocol: 2, PutTransferMode: "push"},
		Health: deploy.Health{ClientLease: ms(5000), TouchAfter: ms(20), TouchTimeout: ms(500), ProbeAfter: ms(30), ProbeInterval: ms(30), ProbeTimeout: ms(500)},
		Rebuild: deploy.Rebuild{Enabled: true, MaxAttempts: 30, Wait: ms(2000), Poll: ms(5), PollMax: ms(50), PollTimeout: ms(100),
			Cooldown: ms(1), Rejoin: true},
		Retry:  deploy.Retry{GetAttempts: 1, Backoff: ms(20)},
		Reader: deploy.Reader{MaxStaging: 16 * MaxPiece},
		Server: deploy.Server{StorageWorkers: 2},
	}
	dep.Pipeline.Connect.Deadline = ms(10000)
	for i := range dep.Shards {
		dep.Shards[i].Store.Memory = 64 << 20
	}
	if change != nil {
		change(dep)
	}
	s := &site{tb: tb, dep: dep, open: w.open, driver: w.open(), shards: map[int]*siteShard{}}
	var ids []int
	for i := range dep.Shards {
		ids = append(ids, dep.Shards[i].ID)
	}
	srv, err := ctrl.NewServer(ctrl.ServerConfig{Address: "127.0.0.1:0", Identity: s.identity(), Shards: ids,
		Timing: ctrl.Timing{Heartbeat: max(w.beat, 20*time.Millisecond), Stale: max(3*w.beat, 500*time.Millisecond), Dead: max(9*w.beat, 2*time.Second),
			ClientLease: max(10*w.beat, 5*time.Second)}})
	if err != nil {
		tb.Fatal(err)
	}
	s.server = srv
	tb.Cleanup(s.close)
	for _, id := range ids {
		s.serve(id, tb.TempDir())
	}
	return s
}

func (s *site) identity() ctrl.Identity {
	return ctrl.Identity{Namespace: s.dep.Name, Deployment: s.dep.Name, Epoch: s.dep.Epoch, Digest: s.dep.Digest()}
}

func (s *site) drivers(string, deploy.Rail) (verbs.Driver, error) { return s.driver, nil }

func (s *site) ctx() context.Context {
	return pipeline.WithSink(context.Background(), func(e pipeline.Event) {
		s.mu.Lock()
		s.events = append(s.events, e)
		s.mu.Unlock()
	})
}

// serve brings one shard up.
func (s *site) serve(id int, folder string) *siteShard {
	tb := s.tb
	tb.Helper()
	ctx := s.ctx()
	sh := &siteShard{scope: pipeline.NewScope(), folder: folder}
	must := func(err error) {
		tb.Helper()
		if err != nil {
			tb.Fatal(err)
		}
	}
	spec, _ := s.dep.Shard(id)
	lc, err := lanes.ConfigOf(ctx, s.dep)
	must(err)
	rs, err := pipeline.Run(ctx, sh.scope, rail.Resolve, rail.ResolveInput{Deployment: s.dep, Host: spec.Host, Drivers: s.drivers})
	must(err)
	set, err := pipeline.Run(ctx, sh.scope, rail.Allocate, rail.AllocateInput{Deployment: s.dep, Host: spec.Host, Rails: rs, Demand: lanes.ServerDemand(s.dep, lc)})
	must(err)
	sh.service, err = Serve(sh.scope, ServeConfig{Deployment: s.dep, Shard: spec, Rails: set, Workers: s.dep.Server.StorageWorkers, Snapshots: folder, Measure: true})
	must(err)
	c, err := ctrl.Dial(ctx, s.server.Addr(), s.identity(), ctrl.ClientOptions{})
	must(err)
	sh.scope.DeferClose("control", c.Close)
	must(c.Join(ctx, ctrl.NodeInfo{ID: ctrl.ShardID(id), Role: ctrl.RoleShard, Host: spec.Host, Rails: set.Info()}))
	sh.scope.Defer("leave", func(ctx context.Context) error { return c.Leave(ctx, "test ends") })
	router := new(lanes.Router)
	router.Handle(Family, sh.service)
	sort, pools := Sort(s.dep.Server.GetWorkers)
	lanes.Serve(ctx, sh.scope, lanes.ServerInput{Set: set, Control: c, Shard: id, Config: lc, Handler: router, Workers: s.dep.Server.StorageWorkers,
		Sort: sort, Pools: pools, Gone: sh.service.ClientGone})
	must(c.SetState(ctx, ctrl.StateServing, ""))
	s.mu.Lock()
	s.shards[id] = sh
	s.mu.Unlock()
	return sh
}

func (s *site) shard(id int) *siteShard {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.shards[id]
}

// stop ends a shard as one that is told to.
func (s *site) stop(id int) {
	s.tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if err := s.shard(id).scope.Close(ctx); err != nil {
		s.tb.Errorf("shard %d: %v", id, err)
	}
}

func (s *site) close() {
	for id := range s.shards {
		s.stop(id)
	}
	if err := s.server.Close(); err != nil {
		s.tb.Error(err)
	}
}

// session opens a client's session, which the test's end closes.
func (s *site) session(change func(*SessionConfig)) *Session {
	s.tb.Helper()
	cfg := SessionConfig{Deployment: s.dep, Host: "c", Drivers: s.drivers, Control: s.server.Addr(), Identity: s.identity()}
	if change != nil {
		change(&cfg)
	}
	ctx, cancel := context.WithTimeout(s.ctx(), 20*time.Second)
	defer cancel()
	ss, err := OpenSession(ctx, cfg)
	if err != nil {
		s.tb.Fatal(err)
	}
	s.tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if err := ss.Close(ctx); err != nil {
			s.tb.Error(err)
		}
		if n := ss.InFlight(); n != 0 {
			s.tb.Errorf("%d requests of handles are in flight at the end", n)
		}
	})
	return ss
}

// table makes a table and gives its handle.
func (s *site) table(ss *Session, spec table.Spec) *Table {
	s.tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if err := ss.Init(ctx, spec); err != nil {
		s.tb.Fatal(err)
	}
	t, err := ss.Table(ctx, spec.Name)
	if err != nil {
		s.tb.Fatal(err)
	}
	return t
}

// modes are the ways of rows.
var modes = []Modes{
	{Get: StagingCopy, Put: Push, PutProtocol: 2},
	{Get: StagingCopy, Put: Push, PutProtocol: 1},
	{Get: DirectSG, Put: Read, PutProtocol: 2},
	{Get: Auto, Put: Read, PutProtocol: 2},
}

func seed(tb testing.TB) *rand.Rand {
	n := uint64(time.Now().UnixNano())
	if v := os.Getenv("RS_TEST_SEED"); v != "" {
		var err error
		if n, err = strconv.ParseUint(v, 10, 64); err != nil {
			tb.Fatal(err)
		}
	}
	tb.Logf("RS_TEST_SEED=%d", n)
	return rand.New(rand.NewPCG(n, 7))
}

func within(tb testing.TB, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	tb.Cleanup(cancel)
	return ctx
}

func shardErrors(err error) (out []*ShardError) {
	var be *BatchError
	if errors.As(err, &be) {
		return be.Shards
	}
	return nil
}
