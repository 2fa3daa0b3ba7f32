package object

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/zeebo/xxh3"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/railstore/railstore/ctrl"
	"github.com/railstore/railstore/cue/deploy"
	"github.com/railstore/railstore/pipeline"
	"github.com/railstore/railstore/stages/lanes"
	"github.com/railstore/railstore/stages/rail"
	"github.com/railstore/railstore/verbs"
	"github.com/railstore/railstore/verbs/lane"
	"github.com/railstore/railstore/verbs/verbstest"
)

// site is a whole deployment in one process: a control plane, two shards that
// serve stripes over lanes, two rails on a loop network.
type site struct {
	t      testing.TB
	dep    *deploy.Deployment
	driver verbs.Driver
	server *ctrl.Server
	shards [2]*siteShard
}

type siteShard struct {
	scope   *pipeline.Scope
	store   *Store
	service *Service
	slab    *Slab
	memory  *rail.Registration
	step    func(string) error                 // fails steps of the store
	hook    atomic.Pointer[func(string) error] // the same, for tests that change it while the shard works
}

func newSite(t testing.TB, change func(*deploy.Deployment)) *site {
	t.Helper()
	return newSiteOn(t, verbstest.NewLoop(verbstest.LoopOptions{Async: true}), change)
}

func newSiteOn(t testing.TB, driver verbs.Driver, change func(*deploy.Deployment)) *site {
	t.Helper()
	rails := func(host int) []deploy.Rail {
		r := func(name string, net, weight int) deploy.Rail {
			return deploy.Rail{Name: name, Fabric: "f" + name, Device: fmt.Sprintf("loop:10.%d.0.%d", net, host), Port: 1, Weight: weight,
				HopLimit: 64, Timeout: 14, RetryCount: 7, RNRRetry: 7}
		}
		return []deploy.Rail{r("a", 0, 1), r("b", 1, 1)}
	}
	dep := &deploy.Deployment{Name: "site", Epoch: 7,
		Hosts:  []deploy.Host{{Name: "s0", Rails: rails(1)}, {Name: "s1", Rails: rails(2)}, {Name: "c", Rails: rails(3)}},
		Shards: []deploy.Shard{{ID: 0, Host: "s0", Slab: 64 * Align}, {ID: 1, Host: "s1", Slab: 64 * Align}},
		Lanes: deploy.Lanes{QPs: 2, Slots: 4, RequestBytes: 2048, ResponseBytes: 2048, Notify: "adaptive", Spin: deploy.Duration(20 * time.Microsecond),
			WaitTimeout: deploy.Duration(10 * time.Second), MaxClients: 4},
		Health:  deploy.Health{ClientLease: deploy.Duration(5 * time.Second)},
		Objects: deploy.Objects{StripeBytes: Align, Policy: Policy},
		Reader:  deploy.Reader{MaxStaging: 64 * Align},
	}
	for i := range dep.Shards {
		dep.Shards[i].Dirs = []string{t.TempDir(), t.TempDir()}
	}
	if change != nil {
		change(dep)
	}
	x := &site{t: t, dep: dep, driver: driver}
	srv, err := ctrl.NewServer(ctrl.ServerConfig{Address: "127.0.0.1:0", Identity: x.identity(), Shards: []int{0, 1}})
	if err != nil {
		t.Fatal(err)
	}
	x.server = srv
	for i := range x.shards {
		x.shards[i] = x.serve(i)
	}
	return x
}

func (x *site) identity() ctrl.Identity {
	return ctrl.Identity{Namespace: x.dep.Name, Deployment: x.dep.Name, Epoch: x.dep.Epoch, Digest: x.dep.Digest()}
}

func (x *site) drivers(string, deploy.Rail) (verbs.Driver, error) { return x.driver, nil }

// quiet reports whether nobody uses the shard's memory; stripes that are kept there do not
// count.
func (s *siteShard) quiet() bool {
	return s.slab.Stats().Extents == s.service.Stats().MemoryStripes
}

// stripeFile is where a shard keeps a stripe of the test's object.
func (x *site) stripeFile(s *Session, stripe uint32) string {
	x.t.Helper()
	o, err := s.Lookup(context.Background(), testKey)
	if err != nil {
		x.t.Fatal(err)
	}
	st := o.Placement.Stripes[stripe]
	return filepath.Join(x.dep.Shards[st.Shard].Dirs[st.Dir], st.File)
}

// serve brings one shard up.
func (x *site) serve(id int) *siteShard {
	t := x.t
	t.Helper()
	ctx := context.Background()
	s := &siteShard{scope: pipeline.NewScope()}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	spec := x.dep.Shards[id]
	lc, err := lanes.ConfigOf(ctx, x.dep)
	must(err)
	rs, err := pipeline.Run(ctx, s.scope, rail.Resolve, rail.ResolveInput{Deployment: x.dep, Host: spec.Host, Drivers: x.drivers})
	must(err)
	set, err := pipeline.Run(ctx, s.scope, rail.Allocate, rail.AllocateInput{Deployment: x.dep, Host: spec.Host, Rails: rs, Demand: lanes.ServerDemand(x.dep, lc)})
	must(err)
	s.store, err = OpenStore(StoreConfig{Deployment: x.dep.Name, Shard: id, Dirs: spec.Dirs, NoSync: true, step: func(n string) error {
		if h := s.hook.Load(); h != nil {
			return (*h)(n)
		}
		if s.step != nil {
			return s.step(n)
		}
		return nil
	}})
	must(err)
	s.scope.DeferClose("store", s.store.Close)
	region, err := verbs.MapRegion(int(spec.Slab))
	must(err)
	s.scope.DeferClose("region", region.Close)
	reg, err := set.Register(region, verbs.LocalWrite, nil, rail.Pieces{Align: Align})
	must(err)
	s.scope.DeferClose("registration", reg.Close)
	s.slab, s.memory = NewSlab(region.Bytes()), reg
	s.service = NewService(ServiceConfig{Store: s.store, Slab: s.slab, Memory: reg, MemoryWait: 200 * time.Millisecond, Piece: 2 * Align})
	s.scope.DeferClose("service", func() error { s.service.Close(); return nil })
	c, err := ctrl.Dial(ctx, x.server.Addr(), x.identity(), ctrl.ClientOptions{})
	must(err)
	s.scope.DeferClose("control", c.Close)
	must(c.Join(ctx, ctrl.NodeInfo{ID: ctrl.ShardID(id), Role: ctrl.RoleShard, Host: spec.Host, Rails: set.Info()}))
	s.scope.Defer("leave", func(ctx context.Context) error { return c.Leave(ctx, "test ends") })
	router := new(lanes.Router)
	router.Handle(uint8(OpStoreStripe>>8), s.service)
	lanes.Serve(ctx, s.scope, lanes.ServerInput{Set: set, Control: c, Shard: id, Config: lc, Handler: router, Workers: 4})
	must(c.SetState(ctx, ctrl.StateServing, ""))
	return s
}

func (x *site) close() {
	x.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	for _, s := range x.shards {
		if err := s.scope.Close(ctx); err != nil {
			x.t.Error(err)
		}
		if st := s.slab.Stats(); st.Extents != 0 {
			x.t.Errorf("a shard holds memory: %+v", st)
		}
	}
	if err := x.server.Close(); err != nil {
		x.t.Error(err)
	}
}

// open opens a session with quick limits.
func (x *site) open(change func(*Limits)) *Session {
	x.t.Helper()
	lim := DefaultLimits()
	lim.IOTimeout, lim.Cooldown = 5*time.Second, time.Hour
	if change != nil {
		change(&lim)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	s, err := OpenSession(ctx, SessionConfig{Deployment: x.dep, Host: "c", Drivers: x.drivers, Control: x.server.Addr(), Identity: x.identity(), Limits: lim})
	if err != nil {
		x.t.Fatal(err)
	}
	return s
}

func (x *site) shut(s *Session) {
	x.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := s.Close(ctx); err != nil {
		x.t.Error(err)
	}
}

func putBytes(t *testing.T, w *Worker, k Key, data []byte) *PutReport {
	t.Helper()
	rep, err := w.Put(context.Background(), k, NewSource(bytes.NewReader(data), uint64(len(data)), "test"), PutOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return rep
}

func readBytes(t *testing.T, w *Worker, k Key, want []byte) *ReadReport {
	t.Helper()
	buf, rep, err := w.Read(context.Background(), k, ReadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer buf.Release()
	if !bytes.Equal(buf.Bytes(), want) {
		t.Fatal("wrong bytes")
	}
	return rep
}

func TestSessionOverLanes(t *testing.T) {
	defer goleak.VerifyNone(t)
	for _, notify := range []string{"adaptive", "imm", "scan"} {
		x := newSite(t, func(d *deploy.Deployment) { d.Lanes.Notify = notify })
		s := x.open(nil)
		for _, n := range []int{0, 1, Align - 1, Align, Align + 1, 40*Align + 3} {
			k := Key{Namespace: "kv", Name: fmt.Sprint(n)}
			data := randomBytes(uint64(n), n)
			putBytes(t, s.Worker, k, data)
			rep := readBytes(t, s.Worker, k, data)
			var sum uint64
			for _, r := range rep.Rails {
				if r.Bytes != r.PlannedBytes || r.Provider != "loop" || n > 0 && r.RegisteredBytes < 64*Align || r.ConnectionsCreated != 2 || r.ConnectionsQuiesced != 0 {
					t.Errorf("%s, %d bytes: %+v", notify, n, r)
				}
				sum += r.Bytes
			}
			if sum != uint64(n) {
				t.Errorf("%d bytes over the rails, the object has %d", sum, n)
			}
		}
		// Another session reads what this one put, at the same time as this one.
		other := x.open(nil)
		data := randomBytes(40*Align+3, 40*Align+3)
		k := Key{Namespace: "kv", Name: fmt.Sprint(len(data))}
		var wg sync.WaitGroup
		for _, w := range []*Worker{s.Worker, other.Worker} {
			wg.Go(func() {
				for range 3 {
					readBytes(t, w, k, data)
				}
			})
		}
		wg.Wait()
		x.shut(other)
		if _, err := s.Remove(context.Background(), k); err != nil {
			t.Error(err)
		}
		x.shut(s)
		st := x.shards[0].service.Stats()
		if st.Failures != 0 || st.Stores == 0 || st.Fetches == 0 || st.Deletes == 0 || st.BytesOut < st.BytesIn {
			t.Errorf("%+v", st)
		}
		x.close()
	}
}

// TestStripeProtocol asks a shard for what it must refuse; every refusal is an
// error of its own and leaves the lane as it was.
func TestStripeProtocol(t *testing.T) {
	defer goleak.VerifyNone(t)
	x := newSite(t, func(d *deploy.Deployment) { d.Shards[0].Slab = 32 * Align })
	defer x.close()
	s := x.open(nil)
	defer x.shut(s)
	ctx := context.Background()
	tr := s.cfg.Transport
	at := Path{"a", 0}
	ext, err := s.cfg.Slab.Acquire(ctx, 2*Align)
	if err != nil {
		t.Fatal(err)
	}
	defer ext.Release()
	data := randomBytes(1, Align)
	copy(ext.Bytes(), data)
	file, m := testStripe("x", 1, 0, data)
	ref := StripeRef{Identity: m.Identity, Dir: 1, File: file, Length: Align, XXH3: m.XXH3}
	src, dst := ext.Piece(0, Align), ext.Piece(Align, Align)

	refused := func(what string, want error, text string, err error) {
		t.Helper()
		if !errors.Is(err, want) || !strings.Contains(err.Error(), text) {
			t.Errorf("%s: %v, want %v with %q", what, err, want, text)
		}
		for _, e := range statusTable {
			if e.kind != want && errors.Is(err, e.kind) {
				t.Errorf("%s: %v is also %v", what, err, e.kind)
			}
		}
		if errors.Is(err, ErrNotQuiet) {
			t.Errorf("%s: memory in doubt after an answer", what)
		}
	}
	fetch := func(change func(*StripeRef), mem Piece, verify bool) error {
		r := ref
		if change != nil {
			change(&r)
		}
		_, err := tr.FetchStripe(ctx, at, r, mem, verify)
		return err
	}
	refused("before it is stored", ErrStripeNotFound, file, fetch(nil, dst, false))
	bad := ref
	bad.XXH3++
	refused("wrong checksum", ErrChecksum, "arrived at shard 0", tr.StoreStripe(ctx, at, bad, src))
	if _, err := x.shards[0].store.Stat(1, file); !errors.Is(err, ErrStripeNotFound) {
		t.Errorf("what arrived wrong was stored: %v", err)
	}
	bad = ref
	bad.Dir = 9
	refused("unknown directory", ErrBadRequest, "directory 9", tr.StoreStripe(ctx, at, bad, src))
	bad = ref
	bad.File = "../../etc/passwd"
	refused("path", ErrBadRequest, "not the name of a stripe file", tr.StoreStripe(ctx, at, bad, src))
	refused("memory smaller than the stripe", ErrTooSmall, "", tr.StoreStripe(ctx, at, ref, ext.Piece(0, 100)))
	big := ref
	big.Length = 1 << 40
	refused("absurd length", ErrBadRequest, "", tr.StoreStripe(ctx, at, big, src))
	x.shards[0].step = func(step string) error {
		if step == "write" {
			return unix.ENOSPC
		}
		return nil
	}
	refused("directory full", ErrNoSpace, x.dep.Shards[0].Dirs[1]+": ", tr.StoreStripe(ctx, at, ref, src))
	x.shards[0].step = nil

	if err := tr.StoreStripe(ctx, at, ref, src); err != nil {
		t.Fatal(err)
	}
	got, err := tr.FetchStripe(ctx, Path{"b", 0}, ref, dst, true)
	if err != nil || got.Length != Align || got.XXH3 != m.XXH3 || !bytes.Equal(dst.Bytes, data) {
		t.Fatalf("%+v, %v", got, err)
	}
	clear(dst.Bytes)
	refused("other generation", ErrStale, "generation 1", fetch(func(r *StripeRef) { r.Generation = 2 }, dst, false))
	refused("other handle", ErrStale, "", fetch(func(r *StripeRef) { r.Handle += "x" }, dst, false))
	refused("shorter than stored", ErrTooSmall, "4096 bytes", fetch(func(r *StripeRef) { r.Length = 100 }, ext.Piece(Align, 100), false))
	refused("longer than stored", ErrWrongLength, "4096 bytes", fetch(func(r *StripeRef) { r.Length = 2 * Align }, ext.Piece(0, 2*Align), false))
	refused("other directory", ErrStripeNotFound, "", fetch(func(r *StripeRef) { r.Dir = 0 }, dst, false))
	refused("other stripe's file", ErrBadRequest, "stripe 4", fetch(func(r *StripeRef) { r.Index = 4 }, dst, false))
	flipByte(t, filepath.Join(x.dep.Shards[0].Dirs[1], file), 5)
	refused("damaged, checked by the shard", ErrCorrupt, file, fetch(nil, dst, true))
	if bytes.Contains(dst.Bytes, data[:16]) {
		t.Error("a refusal wrote into the client's memory")
	}
	if err := fetch(nil, dst, false); err != nil || xxh3.Hash(dst.Bytes) == m.XXH3 {
		t.Errorf("damaged, not checked by the shard: %v", err)
	}
	// The whole slab is taken: busy, not stuck.
	hold, err := x.shards[0].slab.Acquire(ctx, 32*Align)
	if err != nil {
		t.Fatal(err)
	}
	refused("no memory at the shard", ErrBusy, "", fetch(nil, dst, false))
	hold.Release()
	refused("more than the shard has", ErrNoMemory, "", fetch(func(r *StripeRef) { r.Length = 40 * Align }, Piece{Off: 0, Bytes: s.cfg.Slab.mem[:64*Align]}, true))
	if ok, err := tr.DeleteStripe(ctx, at, ref); !ok || err != nil {
		t.Errorf("%v, %v", ok, err)
	}
	if ok, err := tr.DeleteStripe(ctx, at, ref); ok || err != nil {
		t.Errorf("%v, %v", ok, err)
	}
	bad = ref
	bad.Handle = NewHandle(testKey, 1, 1, 1, Align, 0)
	_, err = tr.DeleteStripe(ctx, at, bad)
	refused("delete under another handle", ErrStale, "", err)

	// Raw requests: a message for another shard, garbage, an unknown operation.
	pool := s.client.Pool(0)
	raw := func(op uint16, b []byte) error {
		out := make([]byte, MaxResponseBytes)
		r, err := pool.Call(ctx, lane.Request{Op: op, Payload: b}, out)
		if err != nil {
			t.Fatal(err)
		}
		return errorOf(int32(r.Status), out[:r.N])
	}
	q := stripeRequest{StripeRef: ref, shard: 1}
	b := make([]byte, q.size())
	if _, err := q.encode(b); err != nil {
		t.Fatal(err)
	}
	refused("other shard", ErrWrongShard, "for shard 1, this is shard 0", raw(OpFetchStripe, b))
	q.shard = 0
	if _, err := q.encode(b); err != nil {
		t.Fatal(err)
	}
	refused("unknown operation", ErrBadRequest, "0x104", raw(0x104, b))
	refused("empty", ErrBadRequest, "0 bytes", raw(OpFetchStripe, nil))
	q.memory[1] = verbs.RemoteRegion{Addr: math.MaxUint64, Length: 2, RKey: 1}
	if _, err := q.encode(b); err != nil {
		t.Fatal(err)
	}
	refused("memory past the end of all", ErrBadRequest, "2 at 0xffffffffffffffff", raw(OpFetchStripe, b))
	b[0] = 9
	refused("newer version", ErrBadRequest, "version 9", raw(OpDeleteStripe, b))
	refused("garbage", ErrBadRequest, "", raw(OpStoreStripe, randomBytes(3, 300)))
	// No room for the answer.
	if r, err := pool.Call(ctx, lane.Request{Op: OpDeleteStripe, Payload: b, MaxResponse: 4}, make([]byte, 4)); err != nil || r.Status == 0 {
		t.Errorf("%+v, %v", r, err)
	}
	for _, l := range pool.Lanes() {
		if l.State() != lane.Active {
			t.Errorf("%v is %v: %v", l.Label(), l.State(), l.Err())
		}
	}
	x.shards[0].service.Close()
	refused("stopping", ErrBusy, "stopping", fetch(nil, dst, false))
}

func TestSessionLosesLanes(t *testing.T) {
	defer goleak.VerifyNone(t)
	x := newSite(t, nil)
	defer x.close()
	s := x.open(nil)
	defer x.shut(s)
	data := randomBytes(1, 32*Align)
	putBytes(t, s.Worker, testKey, data)
	for _, l := range s.client.Lanes("b") {
		l.Fail(&lane.Error{Layer: lane.LayerNode, Op: "lane", Label: l.Label(), Err: errWire}, false)
	}
	rep := readBytes(t, s.Worker, testKey, data)
	if !rep.Degraded || rep.Rails[0].Bytes != 32*Align || rep.Rails[1].Errors == 0 || rep.Rails[1].ConnectionsQuiesced != 2 {
		t.Errorf("%+v", rep)
	}
	// A put does the same.
	putBytes(t, s.Worker, testKey, data[:5*Align])
	readBytes(t, s.Worker, testKey, data[:5*Align])
	// Without the other rail nothing is left.
	for _, l := range s.client.Lanes("a") {
		l.Fail(&lane.Error{Layer: lane.LayerNode, Op: "lane", Label: l.Label(), Err: errWire}, false)
	}
	_, _, err := s.Read(context.Background(), testKey, ReadOptions{})
	if txt := fmt.Sprint(err); !errors.Is(err, ErrNoRails) || !strings.Contains(txt, "shard 0 rail a: ") || !strings.Contains(txt, "shard 1 rail a: ") || strings.Contains(txt, "lane 0") {
		t.Errorf("%v", err)
	}
}

// TestSessionShardDies stops a shard while reads and puts run.
func TestSessionShardDies(t *testing.T) {
	defer goleak.VerifyNone(t)
	x := newSite(t, nil)
	defer x.close()
	s := x.open(func(l *Limits) { l.IOTimeout = 2 * time.Second })
	defer x.shut(s)
	data := randomBytes(1, 32*Align)
	putBytes(t, s.Worker, testKey, data)
	dying := make(chan struct{})
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for n := 0; ; n++ {
				buf, _, err := s.Read(context.Background(), testKey, ReadOptions{})
				if err != nil {
					select {
					case <-dying:
					default:
						t.Errorf("read %d: %v", n, err)
					}
					return
				}
				if !bytes.Equal(buf.Bytes(), data) {
					t.Error("wrong bytes handed over")
				}
				buf.Release()
			}
		})
	}
	readBytes(t, s.Worker, testKey, data)
	close(dying)
	if err := x.shards[1].scope.Close(context.Background()); err != nil {
		t.Error(err)
	}
	wg.Wait()
	_, err := s.Put(context.Background(), testKey, NewSource(bytes.NewReader(data), uint64(len(data)), "test"), PutOptions{})
	if err == nil || strings.Contains(err.Error(), "\n") {
		t.Errorf("%v", err)
	}
	if o, err := s.Lookup(context.Background(), testKey); err != nil || o.Generation != 1 {
		t.Errorf("generation %d, %v: the failed put changed the object", o.Generation, err)
	}
	if st := s.cfg.Slab.Stats(); st.Extents != 0 || st.Condemned != 0 {
		t.Errorf("%+v", st)
	}
}

// TestSessionCancel cancels reads at random points: memory is free at once and the
// session goes on.
func TestSessionCancel(t *testing.T) {
	defer goleak.VerifyNone(t)
	x := newSite(t, nil)
	defer x.close()
	s := x.open(nil)
	defer x.shut(s)
	data := randomBytes(1, 48*Align)
	putBytes(t, s.Worker, testKey, data)
	for n := range 12 {
		ctx, cancel := context.WithCancel(context.Background())
		got := 0
		var mu sync.Mutex
		buf, _, err := s.Read(ctx, testKey, ReadOptions{Progress: func(uint64) {
			mu.Lock()
			defer mu.Unlock()
			if got++; got == 1+4*n {
				cancel()
			}
		}})
		if err == nil {
			buf.Release()
		} else if !errors.Is(err, context.Canceled) {
			t.Errorf("%v", err)
		}
		cancel()
		if st := s.cfg.Slab.Stats(); st.Extents != 0 || st.Condemned != 0 {
			t.Errorf("%+v", st)
		}
	}
	rep := readBytes(t, s.Worker, testKey, data)
	for _, r := range rep.Rails {
		if r.ConnectionsQuiesced != 0 {
			t.Errorf("a cancel cost a connection: %+v", r)
		}
	}
}

// TestSessionLateWrite: a shard that writes a stripe after the reader has given up
// finds no way into its memory any more.
func TestSessionLateWrite(t *testing.T) {
	defer goleak.VerifyNone(t)
	x := newSite(t, nil)
	defer x.close()
	s := x.open(nil)
	defer x.shut(s)
	data := randomBytes(1, 8*Align)
	putBytes(t, s.Worker, testKey, data)
	reading := make(chan struct{}, 16)
	goOn := make(chan struct{})
	for _, sh := range x.shards {
		sh.step = func(step string) error {
			if step == "read" {
				reading <- struct{}{}
				<-goOn
			}
			return nil
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		<-reading
		cancel()
	}()
	if _, _, err := s.Read(ctx, testKey, ReadOptions{}); !errors.Is(err, context.Canceled) {
		t.Fatalf("%v", err)
	}
	// The memory is free again. Take all of it, as the next reader would.
	all, err := s.cfg.Slab.Acquire(context.Background(), int(s.cfg.Slab.cap))
	if err != nil {
		t.Fatal(err)
	}
	mark := bytes.Repeat([]byte{0x5C}, all.Len())
	copy(all.Bytes(), mark)
	close(goOn)
	for _, sh := range x.shards {
		waitFor(t, func() bool { return sh.quiet() }) // it has written, or tried to
	}
	if !bytes.Equal(all.Bytes(), mark) {
		t.Error("a late write hit memory that is in use again")
	}
	all.Release()
}

func TestSessionRefusesSmallSlots(t *testing.T) {
	defer goleak.VerifyNone(t)
	for _, c := range [][2]int64{{512, 4096}, {4096, 512}} {
		x := newSite(t, func(d *deploy.Deployment) { d.Lanes.RequestBytes, d.Lanes.ResponseBytes = c[0], c[1] })
		_, err := OpenSession(context.Background(), SessionConfig{Deployment: x.dep, Host: "c", Drivers: x.drivers, Control: x.server.Addr(), Identity: x.identity(), Limits: DefaultLimits()})
		if err == nil || !strings.Contains(err.Error(), "lanes.requestBytes") {
			t.Errorf("%v: %v", c, err)
		}
		x.close()
	}
}

// brokenDriver is the site's drivers without those of one rail.
func brokenDriver(x *site, name string, err error) rail.Drivers {
	return func(host string, r deploy.Rail) (verbs.Driver, error) {
		if r.Name == name {
			return nil, err
		}
		return x.drivers(host, r)
	}
}

func readRails(s *Session, rails ...string) (*ReadReport, error) {
	buf, rep, err := s.Read(context.Background(), testKey, ReadOptions{Rails: rails})
	if err == nil {
		buf.Release()
	}
	return rep, err
}

func lines(s string) *bufio.Scanner { return bufio.NewScanner(strings.NewReader(s)) }

// on has f run at each step of the shard's store; nil ends it.
func (s *siteShard) on(f func(string) error) {
	if f == nil {
		s.hook.Store(nil)
		return
	}
	s.hook.Store(&f)
}
