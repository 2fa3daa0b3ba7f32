package object

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"path"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/railstore/railstore/ctrl"
)

// powered is two shards on file systems that lose power, under a catalog that does
// not, and a model of what must be there.
type powered struct {
	t       *testing.T
	r       *rand.Rand
	direct  string
	disks   [2][2]*powerFS
	stores  map[int]*Store
	clock   time.Time
	store   ctrl.Store
	catalog *memCatalog
	w       *Worker

	// dies, when above 0, is after how many more steps nothing works any more, as
	// when the process is gone.
	dies atomic.Int64
	dead atomic.Bool

	model map[Key]modelObject
	log   []string
}

type modelObject struct {
	data []byte
	ends time.Time // zero: never
}

var errDead = errors.New("the process is gone")

func newPowered(t *testing.T, r *rand.Rand) *powered {
	x := &powered{t: t, r: r, clock: time.Unix(1_800_000_000, 0), store: ctrl.NewMemoryStore(), model: map[Key]modelObject{}}
	x.direct = []string{DirectOff, DirectAuto, DirectOn}[r.IntN(3)]
	for s := range x.disks {
		for d := range x.disks[s] {
			x.disks[s][d] = newPowerFS(1 << 20)
		}
	}
	x.open()
	return x
}

// step is every step of the process: of a file system and of the catalog.
func (x *powered) step() error {
	if x.dead.Load() {
		return errDead
	}
	if x.dies.Load() > 0 && x.dies.Add(-1) == 0 {
		x.dead.Store(true)
		return errDead
	}
	return nil
}

func (x *powered) open() {
	x.t.Helper()
	x.dead.Store(false)
	x.dies.Store(0)
	x.stores = map[int]*Store{}
	for s := range x.disks {
		cfg := StoreConfig{Deployment: "powered", Shard: s, Dirs: []string{"/0", "/1"}, DirectIO: x.direct,
			open: func(p string, _ bool) (fileSystem, error) { return x.disks[s][p[1]-'0'], nil }}
		for d := range x.disks[s] {
			x.disks[s][d].at = func(p string) *powerFS { return x.disks[s][p[1]-'0'] }
			x.disks[s][d].fault = func(string, string) error { return x.step() }
		}
		st, err := OpenStore(cfg)
		if err != nil {
			x.t.Fatal(err)
		}
		x.stores[s] = st
	}
	c := ctrl.NewCatalog(x.store, []int{0, 1})
	c.Clock = func() time.Time { return x.clock }
	x.catalog = &memCatalog{c: c, before: func(string) error { return x.step() }, after: func(string) error { return x.step() }}
	lim := DefaultLimits()
	lim.IOTimeout = 5 * time.Second
	var err error
	x.w, err = NewWorker(Config{Catalog: x.catalog, Transport: newFakeNet(x.stores), Slab: NewSlab(alignedBytes(128 * Align)), Epoch: 1, StripeBytes: Align, Limits: lim,
		Nodes: []Node{{0, 2}, {1, 2}}, Rails: []PlanRail{{Name: "a", Device: "fake:a", Provider: "fake", Weight: 1, Shards: []int{0, 1}}}})
	if err != nil {
		x.t.Fatal(err)
	}
}

// powerCut ends the process and lets the disks forget.
func (x *powered) powerCut() {
	x.dead.Store(true)
	for _, s := range x.stores {
		_ = s.Close()
	}
	for s := range x.disks {
		for d := range x.disks[s] {
			x.disks[s][d] = x.disks[s][d].cut(x.r)
		}
	}
	x.open()
}

func (x *powered) note(format string, args ...any) {
	x.log = append(x.log, fmt.Sprintf(format, args...))
}

func (x *powered) fatal(format string, args ...any) {
	x.t.Helper()
	x.t.Fatalf("%s\nafter: %s", fmt.Sprintf(format, args...), strings.Join(x.log, "\n       "))
}

func (x *powered) present(k Key) (modelObject, bool) {
	o, ok := x.model[k]
	return o, ok && (o.ends.IsZero() || x.clock.Before(o.ends))
}

// change runs a put or a removal whose outcome o is, and takes over what the
// catalog says when the process did not live to tell.
func (x *powered) change(k Key, want *modelObject, refused bool, f func() error) {
	x.t.Helper()
	before, had := x.present(k)
	err := f()
	died := x.dead.Load()
	if died {
		x.note("  it died: %v", err)
		x.powerCut()
	}
	switch {
	case err == nil && refused:
		x.fatal("%s: it was done against its condition", k)
	case err != nil && !died && !refused && !errors.Is(err, ErrNoSpace) && !errors.Is(err, ErrIO):
		x.fatal("%s: %v", k, err)
	}
	o, found, lerr := x.catalog.c.Lookup(k)
	if lerr != nil {
		x.fatal("%v", lerr)
	}
	isNew := want != nil && found && o.XXH3 == Sum(want.data) && o.Size == uint64(len(want.data))
	isOld := had == found && (!had || o.XXH3 == Sum(before.data))
	gone := want == nil && !found
	switch {
	case err == nil && want != nil && !isNew, err == nil && want == nil && !gone:
		x.fatal("%s: it was done, and the catalog does not say so", k)
	case err != nil && !died && !isOld:
		x.fatal("%s failed (%v), and the catalog changed", k, err)
	case !isOld && !isNew && !gone:
		x.fatal("%s is neither what it was nor what it was to be", k)
	}
	switch {
	case isNew && (err == nil || !isOld):
		x.model[k] = modelObject{want.data, o.Expires}
	case gone && !isOld:
		delete(x.model, k)
	}
}

func (x *powered) put(k Key) {
	data := randomBytes(x.r.Uint64(), x.r.IntN(5*Align))
	opt := PutOptions{}
	_, had := x.present(k)
	refused := false
	switch x.r.IntN(4) {
	case 0:
		opt.IfAbsent, refused = true, had
	case 1:
		o, found, err := x.catalog.c.Lookup(k)
		if err != nil || found != had {
			x.fatal("%s: %v %v", k, found, err)
		}
		opt.IfGeneration = o.Generation + uint64(x.r.IntN(2))
		refused = opt.IfGeneration != 0 && (!had || opt.IfGeneration != o.Generation)
	}
	if x.r.IntN(3) == 0 {
		opt.TTL = time.Duration(1+x.r.IntN(5)) * time.Minute
	}
	x.note("put %s, %d bytes, %+v", k, len(data), opt)
	want := &modelObject{data: data}
	x.change(k, want, refused, func() error {
		_, err := x.w.Put(context.Background(), k, NewSource(bytes.NewReader(data), uint64(len(data)), "data"), opt)
		return err
	})
}

func (x *powered) remove(k Key) {
	x.note("remove %s", k)
	_, had := x.present(k)
	x.change(k, nil, !had, func() error { _, err := x.w.Remove(context.Background(), k); return err })
}

// check reads everything.
func (x *powered) check(keys []Key) {
	x.t.Helper()
	for _, k := range keys {
		want, there := x.present(k)
		buf, _, err := x.w.Read(context.Background(), k, ReadOptions{})
		if !there {
			if !errors.Is(err, ErrNotFound) {
				x.fatal("%s is not there: %v", k, err)
			}
			continue
		}
		if err != nil {
			x.fatal("%s: %v", k, err)
		}
		same := bytes.Equal(buf.Bytes(), want.data)
		buf.Release()
		if !same {
			x.fatal("%s has other bytes than were put", k)
		}
	}
}

// scrub cleans up, and then no file and no garbage is left beside the objects.
func (x *powered) scrub() {
	x.t.Helper()
	x.note("scrub")
	for range 2 {
		for _, s := range []int{0, 1} {
			rep, err := x.stores[s].Scrub(context.Background(), x.catalog, ScrubOptions{Fix: true, Grace: 1, Doubted: true}, nil)
			if x.dead.Load() {
				x.powerCut()
				return
			}
			if err != nil || rep.Damaged > 0 || len(rep.Skipped) > 0 {
				x.fatal("shard %d: %v %+v", s, err, rep)
			}
		}
	}
	want := map[string]bool{}
	for k := range x.model {
		o, found, err := x.catalog.c.Lookup(k)
		if err != nil {
			x.fatal("%v", err)
		}
		for _, s := range o.Placement.Stripes {
			want[fmt.Sprint(s.Shard, s.Dir, s.File)] = found
		}
	}
	n := 0
	for s := range x.disks {
		for d := range x.disks[s] {
			for name, f := range x.disks[s][d].names {
				if f.folder || name == markerName {
					continue
				}
				if time.Since(f.mtime) > incomingGrace && path.Dir(name) == incomingName {
					x.fatal("%s is still there", name)
				}
				if n++; !want[fmt.Sprint(s, d, name)] && path.Dir(name) != incomingName {
					x.fatal("shard %d, directory %d: %s belongs to nothing", s, d, name)
				}
			}
		}
	}
	if n < len(want) {
		x.fatal("%d files for %d stripes", n, len(want))
	}
	if o, found, err := x.catalog.c.Garbage(Key{}, 0); found || err != nil {
		x.fatal("garbage: %+v %v", o, err)
	}
}

// TestObjectsAgainstModel does whatever can be done to objects, in any order, on
// disks that fill up and fail, by processes that die at any step, under power cuts
// that lose all that was not synced, against a model of a few lines.
func TestObjectsAgainstModel(t *testing.T) {
	r := rand.New(rand.NewPCG(testSeed(t), 7))
	keys := []Key{{Namespace: "kv", Name: "a"}, {Namespace: "kv", Name: "b"}, {Namespace: "other", Name: "a"}}
	var deaths, cuts, puts int
	for range 40 {
		x := newPowered(t, r)
		for range 40 {
			k := keys[r.IntN(len(keys))]
			if r.IntN(3) == 0 {
				x.dies.Store(int64(1 + r.IntN(80)))
			}
			switch r.IntN(11) {
			case 0, 1, 2, 3, 4:
				puts++
				x.put(k)
			case 5:
				x.remove(k)
			case 6:
				x.dies.Store(0)
				x.note("a minute later")
				x.clock = x.clock.Add(time.Minute)
			case 7:
				cuts++
				x.note("the power is cut")
				x.powerCut()
			case 8:
				x.scrub()
			case 10:
				// A disk that fails now and then during a put, and is looked at afterwards.
				x.dies.Store(0)
				s, d := r.IntN(2), r.IntN(2)
				x.note("directory %d of shard %d fails now and then during a put", d, s)
				fs := x.disks[s][d]
				works := fs.fault
				fs.fault = func(string, string) error {
					if r.IntN(3) == 0 {
						return syscall.EIO
					}
					return nil
				}
				x.put(k)
				fs.fault = works
				x.stores[s].Check(time.Now().Add(time.Hour))
				if st := x.stores[s].Directories()[d]; st.State != DirInUse {
					x.fatal("the disk works again: %+v", st)
				}
			case 9:
				// A disk that is full, then has room again.
				x.dies.Store(0)
				s, d := r.IntN(2), r.IntN(2)
				x.note("directory %d of shard %d is full for a put", d, s)
				fs := x.disks[s][d]
				free := fs.free
				fs.free = 0
				x.put(k)
				fs.mu.Lock()
				fs.free += free
				fs.mu.Unlock()
			}
			if x.dead.Load() {
				deaths++
				x.powerCut()
			}
			x.dies.Store(0)
			x.check(keys)
		}
		x.scrub()
		x.check(keys)
		for _, s := range x.stores {
			_ = s.Close()
		}
	}
	t.Logf("%d puts, %d power cuts between calls", puts, cuts)
}

// TestDirectoryFailsAndComesBack lets a disk fail under one directory: puts go to
// the other one, reads say why, the state and its change are told, and when the disk
// works again the directory is in use after a look, and not before one is due.
func TestDirectoryFailsAndComesBack(t *testing.T) {
	for _, errno := range []syscall.Errno{syscall.EIO, syscall.EROFS, syscall.ENODEV, syscall.EUCLEAN} {
		t.Run(errno.Error(), func(t *testing.T) {
			x := newPowered(t, rand.New(rand.NewPCG(1, 1)))
			k := Key{Namespace: "kv", Name: "a"}
			x.put(k)
			var told []DirectoryStatus
			for _, d := range x.stores[0].dirs {
				d.report = func(st DirectoryStatus) { told = append(told, st) }
			}
			bad := x.disks[0][1]
			bad.fault = func(op, _ string) error {
				if op == "space" {
					return nil
				}
				return errno
			}
			data := randomBytes(3, 8*Align)
			rep, err := x.w.Put(context.Background(), k, NewSource(bytes.NewReader(data), uint64(len(data)), "data"), PutOptions{})
			if err != nil || rep.MovedStripes == 0 {
				t.Fatalf("%+v %v", rep, err)
			}
			o, _, err := x.catalog.c.Lookup(k)
			if err != nil {
				t.Fatal(err)
			}
			for _, s := range o.Placement.Stripes {
				if s.Shard == 0 && s.Dir == 1 {
					t.Errorf("stripe %d is said to be in the directory that failed", s.Index)
				}
			}
			if h := LayoutHash(&o); h != o.Placement.LayoutHash {
				t.Error("the layout hash is not of where the stripes are")
			}
			x.model[k] = modelObject{data: data}
			x.check([]Key{k})
			st := x.stores[0].Directories()[1]
			if st.State != DirOut || !strings.Contains(st.Reason, errno.Error()) || st.Since == nil || len(told) != 1 || told[0].State != DirOut || told[0].Directory != 1 {
				t.Fatalf("%+v, told %+v", st, told)
			}
			// Refused beforehand, with the reason.
			file, m := testStripe("x", 1, 0, data[:10])
			if err := x.stores[0].Ready(1, file, 0, 10); !errors.Is(err, ErrIO) || !errors.Is(err, errno) || !strings.Contains(err.Error(), "directory 1 of shard 0 is out of use since") {
				t.Fatal(err)
			}
			if _, err := x.stores[0].Read(1, file, m.Identity, make([]byte, 10)); !errors.Is(err, ErrIO) || !errors.Is(err, errno) {
				t.Fatal(err)
			}
			now := *st.Since
			x.stores[0].Check(now.Add(probeEvery)) // still broken
			bad.fault = nil
			x.stores[0].Check(now.Add(probeEvery + 1)) // not due
			if st := x.stores[0].Directories()[1]; st.State != DirOut || st.Probes != 1 {
				t.Fatalf("%+v", st)
			}
			x.stores[0].Check(now.Add(3 * probeEvery))
			if st := x.stores[0].Directories()[1]; st.State != DirInUse || st.Reason != "" || len(told) != 2 || told[1].State != DirInUse {
				t.Fatalf("%+v, told %+v", st, told)
			}
			if err := x.stores[0].Write(1, file, &m, data[:10]); err != nil {
				t.Fatal(err)
			}
			for name, f := range bad.names {
				if !f.folder && path.Dir(name) == incomingName {
					t.Errorf("%s was left behind", name)
				}
			}
		})
	}
}

// A directory that is taken away is not one without the stripe, and goes on when it
// is there again.
func TestDirectoryGoesAway(t *testing.T) {
	x := newPowered(t, rand.New(rand.NewPCG(2, 1)))
	data := randomBytes(1, 100)
	file, m := testStripe("x", 1, 0, data)
	s := x.stores[0]
	if err := s.Write(0, file, &m, data); err != nil {
		t.Fatal(err)
	}
	none, m2 := testStripe("y", 1, 0, data)
	if _, err := s.Read(0, none, m2.Identity, make([]byte, 100)); !errors.Is(err, ErrStripeNotFound) {
		t.Fatal(err)
	}
	disk := x.disks[0][0]
	disk.mu.Lock()
	disk.gone = true
	disk.mu.Unlock()
	if _, err := s.Read(0, none, m2.Identity, make([]byte, 100)); !errors.Is(err, ErrIO) || errors.Is(err, ErrStripeNotFound) || !errors.Is(err, errAway) {
		t.Fatal(err)
	}
	if _, err := s.Delete(0, none, m2.Identity); !errors.Is(err, ErrIO) {
		t.Fatal(err)
	}
	// What is still open still reads.
	if _, err := s.Read(0, file, m.Identity, make([]byte, 100)); err != nil {
		t.Fatal(err)
	}
	st := s.Directories()
	if st[0].State != DirOut || st[1].State != DirInUse {
		t.Fatalf("%+v", st)
	}
	// An empty file system in its place is not it.
	x.disks[0][0] = newPowerFS(1 << 20)
	s.Check(time.Now().Add(2 * probeEvery))
	if st := s.Directories()[0]; st.State != DirOut || len(x.disks[0][0].names) != 0 {
		t.Fatalf("%+v %v", st, slices.Collect(maps.Keys(x.disks[0][0].names)))
	}
	// The same one mounted anew is.
	again := newPowerFS(1 << 20)
	again.names, again.safe = maps.Clone(disk.names), maps.Clone(disk.safe)
	x.disks[0][0] = again
	s.Check(time.Now().Add(4 * probeEvery))
	if st := s.Directories()[0]; st.State != DirInUse {
		t.Fatalf("%+v", st)
	}
	if err := s.Write(0, none, &m2, data); err != nil || again.names[none] == nil {
		t.Fatal(err)
	}
}
