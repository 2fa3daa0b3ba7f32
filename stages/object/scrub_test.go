package object

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/railstore/railstore/ctrl"
	"github.com/railstore/railstore/pipeline"
)

func (x *world) scrub(shard int, opt ScrubOptions) *ScrubReport {
	x.t.Helper()
	rep, err := x.stores[shard].Scrub(context.Background(), x.catalog, opt, nil)
	if err != nil {
		x.t.Fatal(err)
	}
	return rep
}

// pathOf is where a stripe's file is.
func (x *world) pathOf(s *Stripe) string { return filepath.Join(x.dirs[s.Shard][s.Dir], s.File) }

// A scrub with a rate reads no faster, and one that waits can be stopped.
func TestScrubRate(t *testing.T) {
	x := newWorld(t, nil)
	x.mustPut(testKey, randomBytes(1, 12*Align))
	start := time.Now()
	rep := x.scrub(0, ScrubOptions{Rate: 50 * Align})
	// The last of its stripes begins when the others have had their time.
	if least := time.Duration(rep.Stripes-1) * time.Second / 50; time.Since(start) < least || rep.Stripes != 6 || rep.Bytes != 6*Align || rep.Damaged != 0 {
		t.Errorf("%v, at least %v: %+v", time.Since(start), least, rep)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var n atomic.Uint64
	done := make(chan error, 1)
	go func() {
		_, err := x.stores[0].Scrub(ctx, x.catalog, ScrubOptions{Rate: 1}, &n) // a stripe takes more than an hour
		done <- err
	}()
	waitFor(t, func() bool { return n.Load() == 1 })
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	// What reads no data need not wait.
	if rep := x.scrub(0, ScrubOptions{Rate: 1, Quick: true}); rep.Stripes != 6 {
		t.Errorf("%+v", rep)
	}
}

// Each kind of damage is told with its place, once, at its shard, and nothing else.
func TestScrubFindsDamage(t *testing.T) {
	x := newWorld(t, nil)
	data := randomBytes(1, 12*Align)
	x.mustPut(testKey, data)
	other := Key{Namespace: "kv", Name: "well"}
	x.mustPut(other, data[:3*Align])
	o, _, err := x.catalog.c.Lookup(testKey)
	if err != nil {
		t.Fatal(err)
	}
	for shard := range 2 {
		rep := x.scrub(shard, ScrubOptions{})
		if rep.Damaged != 0 || rep.Orphans != 0 || len(rep.Skipped) != 0 || rep.Objects != 2 || rep.Bytes == 0 || rep.Files != rep.Stripes {
			t.Fatalf("%+v", rep)
		}
	}
	s := o.Placement.Stripes
	flip := func(path string, at int64) error {
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			return err
		}
		var b [1]byte
		_, err = f.ReadAt(b[:], at)
		b[0] ^= 1
		_, err2 := f.WriteAt(b[:], at)
		return errors.Join(err, err2, f.Close())
	}
	// A whole file of another generation under the name.
	stale := func(st *Stripe) error {
		var tr [trailerBytes]byte
		if err := encodeTrailer(&tr, &StripeMeta{Identity: Identity{Handle: o.Handle, Generation: 9, LayoutVersion: 1, Index: st.Index}, Length: 0, XXH3: 0x2d06800538d394c2}); err != nil {
			return err
		}
		return os.WriteFile(x.pathOf(st), tr[:], 0o644)
	}
	want := map[uint32]string{0: DamageCorrupt, 1: DamageCorrupt, 2: DamageMissing, 3: DamageCorrupt, 4: DamageDiffers}
	err = errors.Join(flip(x.pathOf(&s[0]), 77), flip(x.pathOf(&s[1]), Align+20), os.Remove(x.pathOf(&s[2])), os.Truncate(x.pathOf(&s[3]), 600), stale(&s[4]))
	if err != nil {
		t.Fatal(err)
	}
	// The disk fails under the sixth.
	bad := s[5]
	x.stores[bad.Shard].dirs[bad.Dir].open = nil
	x.stores[bad.Shard].dirs[bad.Dir].m.fileSystem = failingReads{x.stores[bad.Shard].dirs[bad.Dir].m.fileSystem, bad.File}
	want[5] = DamageUnreadable
	got := map[uint32]string{}
	for shard := range 2 {
		rep := x.scrub(shard, ScrubOptions{Fix: true, Grace: 1})
		for _, d := range rep.Damage {
			st := &s[d.Stripe]
			if d.Namespace != "kv" || d.Object != "layer0" || d.Generation != 1 || d.Shard != shard || st.Shard != shard || d.Directory != st.Dir || d.File != st.File ||
				filepath.Join(d.Path, d.File) != x.pathOf(st) || d.ObjectOffset != st.Offset || d.Length != st.Length || d.Reason == "" {
				t.Errorf("%+v", d)
			}
			if (d.FileOffset != nil) != (d.Kind == DamageUnreadable) || d.Kind == DamageUnreadable && (*d.FileOffset != 0 || !strings.HasSuffix(d.Reason, "(EIO(5))")) {
				t.Errorf("%+v", d)
			}
			got[d.Stripe] = d.Kind
		}
		if rep.Orphans != 0 || rep.Removed != 0 {
			t.Errorf("what is damaged was taken for an orphan: %+v", rep)
		}
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Fatalf("%v, want %v", got, want)
	}
	// Quick sees what is not in the data.
	n := 0
	for shard := range 2 {
		rep := x.scrub(shard, ScrubOptions{Quick: true})
		if n += rep.Damaged; rep.Bytes != 0 {
			t.Errorf("%+v", rep)
		}
	}
	if n != 4 {
		t.Errorf("quick found %d", n)
	}
	x.reads(other, data[:3*Align])
}

// failingReads is a file system on which the data of one file cannot be read.
type failingReads struct {
	fileSystem
	name string
}

type failingFile struct{ storedFile }

func (f failingReads) open(name string, flags int) (storedFile, error) {
	s, err := f.fileSystem.open(name, flags)
	if name == f.name && err == nil {
		return failingFile{s}, nil
	}
	return s, err
}

func (f failingFile) ReadAt(b []byte, off int64) (int, error) {
	if off == 0 {
		return 0, &os.PathError{Op: "read", Path: "disk", Err: syscall.EIO}
	}
	return f.storedFile.ReadAt(b, off)
}

// Orphans are judged by age, by what was committed later, and by what the catalog
// knows; a second copy of a stripe in another directory is one, too.
func TestScrubJudgesOrphans(t *testing.T) {
	x := newWorld(t, nil)
	data := randomBytes(1, 4*Align)
	put := func(name string, gen uint64, shard, dir int, age time.Duration) string {
		file, m := testStripe(name, gen, 0, data[:10])
		if err := x.stores[shard].Write(dir, file, &m, data[:10]); err != nil {
			t.Fatal(err)
		}
		at := time.Now().Add(-age)
		if err := os.Chtimes(filepath.Join(x.dirs[shard][dir], file), at, at); err != nil {
			t.Fatal(err)
		}
		return file
	}
	old := put("dead", 1, 0, 0, 48*time.Hour)
	states := func(opt ScrubOptions) (out []string) {
		for _, o := range x.scrub(0, opt).OrphanFiles {
			out = append(out, o.State)
		}
		slices.Sort(out)
		return out
	}
	if s := states(ScrubOptions{Fix: true}); !slices.Equal(s, []string{OrphanDoubted}) {
		t.Fatal("under an empty catalog: ", s)
	}
	x.mustPut(testKey, data)
	put("young", 1, 0, 1, time.Minute)
	if s := states(ScrubOptions{}); !slices.Equal(s, []string{OrphanFound, OrphanYoung}) {
		t.Fatal(s)
	}
	o, _, err := x.catalog.c.Lookup(testKey)
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(o.Placement.Stripes, func(s Stripe) bool { return s.Shard == 0 })
	st := o.Placement.Stripes[i]
	b, err := os.ReadFile(x.pathOf(&st))
	stray := filepath.Join(x.dirs[0][1-st.Dir], st.File)
	if err = errors.Join(err, os.MkdirAll(filepath.Dir(stray), 0o755), os.WriteFile(stray, b, 0o644), os.Chtimes(stray, time.Time{}, time.Now().Add(-48*time.Hour))); err != nil {
		t.Fatal(err)
	}
	// What a write left that could not clean up after itself, and one under way.
	left, under := filepath.Join(x.dirs[0][1], incomingName, "900.tmp"), filepath.Join(x.dirs[0][1], incomingName, "901.tmp")
	if err := errors.Join(os.WriteFile(left, b, 0o644), os.WriteFile(under, b, 0o644), os.Chtimes(left, time.Time{}, time.Now().Add(-2*incomingGrace))); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if _, err := os.Stat(under); err != nil {
			t.Error(err)
		}
	}()
	if s := states(ScrubOptions{Fix: true}); !slices.Equal(s, []string{OrphanRemoved, OrphanRemoved, OrphanYoung}) {
		t.Fatal(s)
	}
	for _, p := range []string{left, stray, filepath.Join(x.dirs[0][0], old)} {
		if _, err := os.Stat(p); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: %v", p, err)
		}
	}
	x.reads(testKey, data)
}

// A scrub beside writers finds nothing and removes nothing that is in use.
func TestScrubBesideWriters(t *testing.T) {
	x := newWorld(t, nil)
	deadline := time.Now().Add(time.Second)
	var wg sync.WaitGroup
	var puts atomic.Int64
	for g := range 3 {
		wg.Go(func() {
			k := Key{Namespace: "kv", Name: fmt.Sprint(g)}
			for i := uint64(0); time.Now().Before(deadline); i++ {
				data := randomBytes(i, 1+int(i%5)*Align)
				if _, err := x.put(k, data, PutOptions{}); err != nil {
					t.Error(err)
					return
				}
				puts.Add(1)
				if i%7 == 6 {
					if _, err := x.w.Remove(context.Background(), k); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	scrubs := 0
	for time.Now().Before(deadline) {
		for shard := range 2 {
			// Fix with the usual grace, and without a fix with none.
			for _, opt := range []ScrubOptions{{Fix: true}, {Grace: 1}} {
				if rep := x.scrub(shard, opt); rep.Damaged != 0 || len(rep.Skipped) != 0 {
					t.Errorf("%+v", rep)
				}
				scrubs++
			}
		}
	}
	wg.Wait()
	t.Logf("%d scrubs beside %d puts", scrubs, puts.Load())
	for shard := range 2 {
		if rep := x.scrub(shard, ScrubOptions{Fix: true, Grace: 1}); rep.Damaged != 0 {
			t.Errorf("%+v", rep)
		}
	}
	x.idle()
}

func TestScrubber(t *testing.T) {
	defer goleak.VerifyNone(t)
	x := newWorld(t, nil)
	x.mustPut(testKey, randomBytes(1, 4*Align))
	entered, leave := make(chan struct{}), make(chan struct{})
	var once sync.Once
	x.catalog.before = func(c string) error {
		if c == "list" {
			once.Do(func() { close(entered); <-leave })
		}
		return nil
	}
	s := NewScrubber(context.Background(), x.stores[0], x.catalog)
	if st := s.Status(0); st.ID != 0 || st.Running {
		t.Fatalf("%+v", st)
	}
	id, err := s.Start(ScrubOptions{})
	if err != nil {
		t.Fatal(err)
	}
	<-entered
	if _, err := s.Start(ScrubOptions{}); !errors.Is(err, ErrBusy) {
		t.Fatal(err)
	}
	if st := s.Status(0); !st.Running || st.ID != id {
		t.Fatalf("%+v", st)
	}
	s.Cancel(id + 1) // another one
	s.Cancel(id)
	close(leave)
	st := s.Status(time.Minute)
	if st.Running || st.Error != "it was stopped" {
		t.Fatalf("%+v", st)
	}
	if id, err = s.Start(ScrubOptions{}); err != nil {
		t.Fatal(err)
	}
	if st := s.Status(time.Minute); st.ID != id || st.Report == nil || st.Error != "" || st.Stripes == 0 {
		t.Fatalf("%+v", st)
	}
	if err := errors.Join(s.Close(), s.Close()); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Start(ScrubOptions{}); !errors.Is(err, ErrBusy) {
		t.Fatal(err)
	}
}

// The janitor takes out what is over, each shard removes its own part, and the
// catalog forgets it when both have.
func TestJanitorExpires(t *testing.T) {
	defer goleak.VerifyNone(t)
	x := newWorld(t, nil)
	var now atomic.Int64
	now.Store(1_800_000_000)
	x.catalog.c.Clock = func() time.Time { return time.Unix(now.Load(), 0) }
	if _, err := x.put(testKey, randomBytes(1, 6*Align), PutOptions{TTL: time.Minute}); err != nil {
		t.Fatal(err)
	}
	keep := Key{Namespace: "kv", Name: "keep"}
	x.mustPut(keep, []byte("for ever"))
	now.Add(61)
	if _, err := x.w.Lookup(context.Background(), testKey); !errors.Is(err, ErrNotFound) {
		t.Fatal(err)
	}
	events := make(chan string, 64)
	ctx := pipeline.WithSink(context.Background(), func(e pipeline.Event) { events <- e.Event })
	a := StartJanitor(ctx, JanitorConfig{Store: x.stores[0], Catalog: x.catalog, Clean: time.Millisecond})
	for _, want := range []string{"objects_expired", "garbage_removed"} {
		if got := <-events; got != want {
			t.Fatalf("%s, want %s", got, want)
		}
	}
	if o, found, _ := x.catalog.c.Garbage(Key{}, 0); !found || slices.ContainsFunc(o.Placement.Stripes, func(s Stripe) bool { return s.Shard == 0 }) {
		// The first answer may come before the shard has said so; it has when it is done.
		if err := a.Close(); err != nil {
			t.Fatal(err)
		}
		if o, found, _ = x.catalog.c.Garbage(Key{}, 0); !found || slices.ContainsFunc(o.Placement.Stripes, func(s Stripe) bool { return s.Shard == 0 }) {
			t.Fatalf("%v %+v", found, o)
		}
	}
	b := StartJanitor(ctx, JanitorConfig{Store: x.stores[1], Catalog: x.catalog, Clean: time.Millisecond})
	if got := <-events; got != "garbage_removed" {
		t.Fatal(got)
	}
	if err := errors.Join(a.Close(), b.Close()); err != nil {
		t.Fatal(err)
	}
	if _, found, err := x.catalog.c.Garbage(Key{}, 0); found || err != nil {
		t.Fatal(found, err)
	}
	if n := x.stripeFiles(); n != 1 {
		t.Errorf("%d files", n)
	}
	x.reads(keep, []byte("for ever"))
}

// Puts and removals with conditions: what is refused changes nothing and leaves
// nothing, also when the object changes between the look and the commit.
func TestConditions(t *testing.T) {
	x := newWorld(t, nil)
	one, two := []byte("one"), []byte("two")
	ctx := context.Background()
	refused := func(err error, kind error) {
		t.Helper()
		var pe *pipeline.Error
		if !errors.Is(err, kind) || !errors.As(err, &pe) {
			t.Errorf("%v, want %v", err, kind)
		}
	}
	_, err := x.put(testKey, one, PutOptions{IfGeneration: 1})
	refused(err, ErrConflict)
	x.mustPut(testKey, one)
	_, err = x.put(testKey, two, PutOptions{IfAbsent: true})
	refused(err, ErrExists)
	_, err = x.put(testKey, two, PutOptions{IfGeneration: 7})
	refused(err, ErrConflict)
	_, err = x.put(testKey, two, PutOptions{IfGeneration: 1, IfAbsent: true})
	refused(err, ErrBadRequest)
	for _, ttl := range []time.Duration{-1, 1, ctrl.MaxTTL + 1} {
		_, err = x.put(testKey, two, PutOptions{TTL: ttl})
		refused(err, ErrBadRequest)
	}
	_, err = x.w.RemoveIf(ctx, testKey, 7)
	refused(err, ErrConflict)
	x.reads(testKey, one)
	// Another writer comes between the look and the commit.
	var once sync.Once
	x.catalog.before = func(c string) error {
		if c == "commit" {
			once.Do(func() {
				x.catalog.mu.Lock()
				x.catalog.before = nil
				x.catalog.mu.Unlock()
				x.mustPut(testKey, two)
			})
		}
		return nil
	}
	_, err = x.put(testKey, randomBytes(1, 3*Align), PutOptions{IfGeneration: 1})
	refused(err, ErrConflict)
	rep := x.reads(testKey, two)
	if n := x.stripeFiles(); n != 1 {
		t.Errorf("%d files", n)
	}
	if _, err := x.put(testKey, one, PutOptions{IfGeneration: rep.Generation}); err != nil {
		t.Fatal(err)
	}
	rep = x.reads(testKey, one)
	if _, err := x.w.RemoveIf(ctx, testKey, rep.Generation); err != nil {
		t.Fatal(err)
	}
	if _, err := x.put(testKey, one, PutOptions{IfAbsent: true}); err != nil {
		t.Fatal(err)
	}
	x.idle()
}

// Readers beside a writer get one generation whole, never a mixture, or are told
// that what they read is stale.
func TestOverwriteUnderReaders(t *testing.T) {
	x := newWorld(t, func(c *Config) { c.Limits.StaleRetries = 0 })
	content := func(gen uint64) []byte { return randomBytes(gen, int(1+gen%4)*Align+int(gen)) }
	x.mustPut(testKey, content(1))
	var wg sync.WaitGroup
	done := make(chan struct{})
	var whole, stale atomic.Int64
	for range 3 {
		wg.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				buf, rep, err := x.w.Read(context.Background(), testKey, ReadOptions{})
				if err != nil {
					if !errors.Is(err, ErrStale) && !errors.Is(err, ErrStripeNotFound) {
						t.Errorf("not a typed answer: %v", err)
						return
					}
					stale.Add(1)
					continue
				}
				if !bytes.Equal(buf.Bytes(), content(rep.Generation)) {
					t.Errorf("generation %d has other bytes", rep.Generation)
				}
				buf.Release()
				whole.Add(1)
			}
		})
	}
	for gen := uint64(2); gen < 300; gen++ {
		x.mustPut(testKey, content(gen))
	}
	close(done)
	wg.Wait()
	t.Logf("%d reads were whole, %d stale", whole.Load(), stale.Load())
	if whole.Load() == 0 {
		t.Error("nothing was read")
	}
	x.idle()
}
