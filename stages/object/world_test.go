package object

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/railstore/railstore/ctrl"
)

// memCatalog is the real catalog in memory, with calls that tests let fail before
// they happen or after (the answer is lost).
type memCatalog struct {
	c *ctrl.Catalog

	mu     sync.Mutex
	calls  []string
	before func(call string) error
	after  func(call string) error
}

func (m *memCatalog) hook(call string, after bool) error {
	m.mu.Lock()
	f := m.before
	if after {
		f = m.after
	} else {
		m.calls = append(m.calls, call)
	}
	m.mu.Unlock()
	if f == nil {
		return nil
	}
	return f(call)
}

func catalogCall[T any](m *memCatalog, ctx context.Context, call string, f func() (T, bool, error)) (v T, ok bool, err error) {
	if err := ctx.Err(); err != nil {
		return v, false, err
	}
	if err := m.hook(call, false); err != nil {
		return v, false, err
	}
	v, ok, err = f()
	if e := m.hook(call, true); e != nil {
		var none T
		return none, false, e
	}
	return v, ok, err
}

func (m *memCatalog) Lookup(ctx context.Context, k Key) (Object, bool, error) {
	return catalogCall(m, ctx, "lookup", func() (Object, bool, error) { return m.c.Lookup(k) })
}

func (m *memCatalog) Begin(ctx context.Context, k Key) (uint64, error) {
	g, _, err := catalogCall(m, ctx, "begin", func() (uint64, bool, error) { g, err := m.c.Begin(k); return g, true, err })
	return g, err
}

func (m *memCatalog) Commit(ctx context.Context, o Object, expect uint64) (Object, bool, error) {
	return catalogCall(m, ctx, "commit", func() (Object, bool, error) { return m.c.Commit(o, expect) })
}

func (m *memCatalog) Delete(ctx context.Context, k Key, gen uint64) (Object, bool, error) {
	return catalogCall(m, ctx, "delete", func() (Object, bool, error) { return m.c.Delete(k, gen) })
}

func (m *memCatalog) List(ctx context.Context, q ctrl.ListQuery) ([]Object, bool, error) {
	return catalogCall(m, ctx, "list", func() ([]Object, bool, error) { return m.c.List(q) })
}

func (m *memCatalog) LookupMany(ctx context.Context, keys []Key) ([]Object, error) {
	os, _, err := catalogCall(m, ctx, "lookupmany", func() ([]Object, bool, error) { os, err := m.c.LookupMany(keys); return os, true, err })
	return os, err
}

func (m *memCatalog) Expire(ctx context.Context, most int) (int, bool, error) {
	return catalogCall(m, ctx, "expire", func() (int, bool, error) { return m.c.Expire(most) })
}

func (m *memCatalog) ForgetShard(ctx context.Context, k Key, gen uint64, shard int) error {
	_, _, err := catalogCall(m, ctx, "forgetshard", func() (bool, bool, error) { return true, true, m.c.ForgetShard(k, gen, shard) })
	return err
}

func (m *memCatalog) Garbage(ctx context.Context, k Key, gen uint64) (Object, bool, error) {
	return catalogCall(m, ctx, "garbage", func() (Object, bool, error) { return m.c.Garbage(k, gen) })
}

func (m *memCatalog) Forget(ctx context.Context, k Key, gen uint64) error {
	_, _, err := catalogCall(m, ctx, "forget", func() (bool, bool, error) { return true, true, m.c.Forget(k, gen) })
	return err
}

// garbage counts what the catalog has taken out and not forgotten.
func (m *memCatalog) garbage(t *testing.T) (n int) {
	t.Helper()
	var k Key
	var gen uint64
	for {
		o, found, err := m.c.Garbage(k, gen)
		if err != nil {
			t.Fatal(err)
		}
		if !found {
			return n
		}
		n++
		k, gen = o.Key, o.Generation
	}
}

// wireOp is one transfer as a fault sees it.
type wireOp struct {
	op  string // store, fetch, delete
	at  Path
	ref StripeRef
	n   int // how many of this kind came before
}

// fault is what happens to a transfer.
type fault struct {
	err     error           // the call fails with it
	late    bool            // and the peer goes on touching the memory until it is quiesced
	flip    bool            // a bit of the data arrives wrong
	hang    bool            // nothing happens until the context ends
	wait    <-chan struct{} // the call waits for it
	lieLen  bool            // the shard reports another length
	forget  bool            // a store is acknowledged but not done
	tell    chan<- wireOp   // hears of the call
	doFirst func()          // runs before anything else
}

var errWire = errors.New("retry counter exceeded")

// fakeNet is a Transport over real stores. Its memory effects are those of RDMA:
// a failed transfer may still touch the memory later.
type fakeNet struct {
	stores map[int]*Store

	mu       sync.Mutex
	script   func(wireOp) *fault
	counts   map[string]int
	conns    map[Path]int
	inflight map[string]int64
	maxConns map[string]int   // per rail and "" for all: most transfers at once
	maxBytes map[string]int64 // likewise
	latent   map[Path][]func()
	quiesced map[Path]int
	noQuiet  error // Quiesce fails with it
	moved    map[string]uint64
}

func newFakeNet(stores map[int]*Store) *fakeNet {
	return &fakeNet{
		stores: stores, counts: map[string]int{}, conns: map[Path]int{}, inflight: map[string]int64{}, maxConns: map[string]int{},
		maxBytes: map[string]int64{}, latent: map[Path][]func(){}, quiesced: map[Path]int{}, moved: map[string]uint64{},
	}
}

// count is how many calls of an operation began, for who asks while some run.
func (f *fakeNet) count(op string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.counts[op]
}

func (f *fakeNet) begin(op string, at Path, ref StripeRef) (*fault, func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := f.counts[op]
	f.counts[op]++
	f.conns[at]++
	rail, all := 0, 0
	for p, c := range f.conns {
		all += c
		if p.Rail == at.Rail {
			rail += c
		}
	}
	f.maxConns[at.Rail], f.maxConns[""] = max(f.maxConns[at.Rail], rail), max(f.maxConns[""], all)
	for _, k := range []string{at.Rail, ""} {
		f.inflight[k] += int64(ref.Length)
		f.maxBytes[k] = max(f.maxBytes[k], f.inflight[k])
	}
	var ft *fault
	if f.script != nil {
		ft = f.script(wireOp{op, at, ref, n})
	}
	if ft == nil {
		ft = &fault{}
	}
	return ft, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.conns[at]--
		f.inflight[at.Rail] -= int64(ref.Length)
		f.inflight[""] -= int64(ref.Length)
	}
}

// apply carries out what a fault does before the transfer; done says that the call
// is over.
func (f *fakeNet) apply(ctx context.Context, ft *fault, op wireOp, late func()) (done bool, err error) {
	if ft.doFirst != nil {
		ft.doFirst()
	}
	if ft.tell != nil {
		ft.tell <- op
	}
	if ft.wait != nil {
		select {
		case <-ft.wait:
		case <-ctx.Done():
			ft = &fault{err: context.Cause(ctx), late: true}
		}
	}
	if ft.hang {
		<-ctx.Done()
		ft = &fault{err: context.Cause(ctx), late: ft.late}
	}
	if ft.err == nil {
		return false, nil
	}
	if !ft.late {
		return true, ft.err
	}
	f.mu.Lock()
	f.latent[op.at] = append(f.latent[op.at], late)
	f.mu.Unlock()
	return true, fmt.Errorf("%w: %w", ErrNotQuiet, ft.err)
}

func (f *fakeNet) StoreStripe(ctx context.Context, at Path, ref StripeRef, src Piece) error {
	ft, end := f.begin("store", at, ref)
	defer end()
	if done, err := f.apply(ctx, ft, wireOp{"store", at, ref, 0}, func() { _ = bytes.Count(src.Bytes, []byte{0}) }); done {
		return err
	}
	data := bytes.Clone(src.Bytes)
	if ft.flip {
		data[0] ^= 1
	}
	if xxh3.Hash(data) != ref.XXH3 {
		return fmt.Errorf("%w: stripe as received", ErrChecksum)
	}
	if ft.forget {
		return nil
	}
	return f.stores[at.Shard].Write(ref.Dir, ref.File, &StripeMeta{Identity: ref.Identity, Length: ref.Length, XXH3: ref.XXH3}, data)
}

func (f *fakeNet) FetchStripe(ctx context.Context, at Path, ref StripeRef, dst Piece, verify bool) (Fetched, error) {
	ft, end := f.begin("fetch", at, ref)
	defer end()
	smear := func() {
		for i := range dst.Bytes {
			dst.Bytes[i] = 0xEE
		}
	}
	if done, err := f.apply(ctx, ft, wireOp{"fetch", at, ref, 0}, smear); done {
		return Fetched{}, err
	}
	m, err := f.stores[at.Shard].Read(ref.Dir, ref.File, ref.Identity, dst.Bytes)
	if err != nil {
		return Fetched{}, err
	}
	if verify && xxh3.Hash(dst.Bytes) != m.XXH3 {
		return Fetched{}, fmt.Errorf("%w: %s", ErrCorrupt, ref.File)
	}
	if ft.flip {
		dst.Bytes[len(dst.Bytes)/2] ^= 0x10
	}
	if ft.lieLen {
		m.Length++
	}
	f.mu.Lock()
	f.moved[at.Rail] += ref.Length
	f.mu.Unlock()
	return Fetched{Length: m.Length, XXH3: m.XXH3}, nil
}

func (f *fakeNet) DeleteStripe(ctx context.Context, at Path, ref StripeRef) (bool, error) {
	ref.Length = 0 // no data moves
	ft, end := f.begin("delete", at, ref)
	defer end()
	if done, err := f.apply(ctx, ft, wireOp{"delete", at, ref, 0}, func() {}); done {
		return false, err
	}
	return f.stores[at.Shard].Delete(ref.Dir, ref.File, ref.Identity)
}

func (f *fakeNet) Quiesce(_ context.Context, at Path) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.noQuiet != nil {
		return f.noQuiet
	}
	delete(f.latent, at)
	f.quiesced[at]++
	return nil
}

// fireLate lets every write happen that nobody has fenced off.
func (f *fakeNet) fireLate() (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, fs := range f.latent {
		for _, g := range fs {
			g()
			n++
		}
	}
	return n
}

func (f *fakeNet) Counters(string) RailCounters {
	return RailCounters{RegisteredBytes: 1, ConnectionsCreated: 2}
}

// world is a deployment in one process: shards with real directories, a catalog, a
// transport and a worker.
type world struct {
	t       *testing.T
	dirs    map[int][]string
	stores  map[int]*Store
	catalog *memCatalog
	net     *fakeNet
	slab    *Slab
	cfg     Config
	w       *Worker
}

func newWorld(t *testing.T, change func(*Config)) *world {
	t.Helper()
	x := &world{t: t, dirs: map[int][]string{}, stores: map[int]*Store{}}
	for shard := range 2 {
		x.dirs[shard] = []string{t.TempDir(), t.TempDir()}
		s, err := OpenStore(StoreConfig{Deployment: "test", Shard: shard, Dirs: x.dirs[shard], NoSync: true})
		if err != nil {
			t.Fatal(err)
		}
		x.stores[shard] = s
	}
	t.Cleanup(func() {
		for _, s := range x.stores {
			_ = s.Close()
		}
	})
	x.catalog = &memCatalog{c: ctrl.NewCatalog(ctrl.NewMemoryStore(), []int{0, 1})}
	x.net = newFakeNet(x.stores)
	x.slab = NewSlab(make([]byte, 64*Align))
	lim := DefaultLimits()
	lim.IOTimeout = 5 * time.Second
	lim.Cooldown = time.Hour
	x.cfg = Config{
		Catalog: x.catalog, Transport: x.net, Slab: x.slab, Epoch: 1, StripeBytes: Align, Limits: lim,
		Nodes: []Node{{0, 2}, {1, 2}},
		Rails: []PlanRail{
			{Name: "a", Device: "fake:a", Provider: "fake", Weight: 1, Shards: []int{0, 1}},
			{Name: "b", Device: "fake:b", Provider: "fake", Weight: 1, Shards: []int{0, 1}},
		},
	}
	if change != nil {
		change(&x.cfg)
	}
	var err error
	if x.w, err = NewWorker(x.cfg); err != nil {
		t.Fatal(err)
	}
	return x
}

// script sets what happens on the wire from now on.
func (x *world) script(f func(wireOp) *fault) {
	x.net.mu.Lock()
	x.net.script = f
	x.net.mu.Unlock()
}

func (x *world) put(k Key, data []byte, opt PutOptions) (*PutReport, error) {
	return x.w.Put(context.Background(), k, NewSource(bytes.NewReader(data), uint64(len(data)), "test data"), opt)
}

func (x *world) mustPut(k Key, data []byte) *PutReport {
	x.t.Helper()
	rep, err := x.put(k, data, PutOptions{})
	if err != nil {
		x.t.Fatal(err)
	}
	return rep
}

// stripeFiles counts the files in all directories.
func (x *world) stripeFiles() (n int) {
	x.t.Helper()
	for _, ds := range x.dirs {
		for _, d := range ds {
			n += len(files(x.t, d))
		}
	}
	return n
}

// reads checks that the object reads as data.
func (x *world) reads(k Key, data []byte) *ReadReport {
	x.t.Helper()
	buf, rep, err := x.w.Read(context.Background(), k, ReadOptions{})
	if err != nil {
		x.t.Fatal(err)
	}
	defer buf.Release()
	if !bytes.Equal(buf.Bytes(), data) {
		x.t.Fatalf("read %d bytes that differ from the %d that were put", len(buf.Bytes()), len(data))
	}
	return rep
}

// idle checks that no memory, budget or connection is held.
func (x *world) idle() {
	x.t.Helper()
	if st := x.slab.Stats(); st.Extents != 0 || st.Used != st.Condemned || st.Waiting != 0 {
		x.t.Errorf("memory is held: %+v", st)
	}
	lim := x.cfg.Limits
	ok := x.w.conns.TryAcquire(int64(lim.MaxConns)) && x.w.bytes.TryAcquire(lim.MaxInflight)
	for _, r := range x.w.rails {
		ok = ok && r.conns.TryAcquire(int64(lim.MaxConnsPerRail)) && r.bytes.TryAcquire(lim.MaxInflightPerRail)
	}
	if !ok {
		x.t.Error("a budget is held")
		return
	}
	x.w.conns.Release(int64(lim.MaxConns))
	x.w.bytes.Release(lim.MaxInflight)
	for _, r := range x.w.rails {
		r.conns.Release(int64(lim.MaxConnsPerRail))
		r.bytes.Release(lim.MaxInflightPerRail)
	}
	for _, s := range x.w.Snapshot() {
		if s.InflightBytes != 0 || s.InflightRequests != 0 {
			x.t.Errorf("in flight: %+v", s)
		}
	}
}

var testKey = Key{Namespace: "kv", Name: "layer0"}
