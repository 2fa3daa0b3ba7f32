package object

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/railstore/railstore/ctrl"
)

// plant is two shards with two directories each and a catalog in a file, all in one
// folder: what a process leaves there another one finds.
type plant struct {
	dir     string
	store   ctrl.Store
	catalog *memCatalog
	stores  map[int]*Store
	w       *Worker
	slab    *Slab
	clock   time.Time
}

// stepStore is a catalog's store with a step before and after each change.
type stepStore struct {
	ctrl.Store
	step func(string) error
}

func (s *stepStore) Apply(conds []ctrl.Cond, changes []ctrl.Change) error {
	if err := s.step("apply:begin"); err != nil {
		return err
	}
	err := s.Store.Apply(conds, changes)
	if err == nil {
		err = s.step("apply:end")
	}
	return err
}

// openPlant opens what is in a folder, or begins it. step is called at every step
// of a store, the catalog and the catalog's file.
func openPlant(dir string, step func(string) error) (_ *plant, err error) {
	p := &plant{dir: dir, stores: map[int]*Store{}, clock: time.Unix(1_800_000_000, 0)}
	defer func() {
		if err != nil {
			p.close()
		}
	}()
	if step == nil {
		step = func(string) error { return nil }
	}
	for shard := range 2 {
		cfg := StoreConfig{Deployment: "plant", Shard: shard, step: step, DirectIO: DirectAuto, Known: filepath.Join(dir, fmt.Sprintf("known-%d.json", shard))}
		for d := range 2 {
			cfg.Dirs = append(cfg.Dirs, filepath.Join(dir, fmt.Sprintf("shard%d", shard), fmt.Sprint(d)))
		}
		if p.stores[shard], err = OpenStore(cfg); err != nil {
			return p, err
		}
	}
	if p.store, err = ctrl.OpenBoltStore(filepath.Join(dir, "control.db")); err != nil {
		return p, err
	}
	c := ctrl.NewCatalog(&stepStore{p.store, step}, []int{0, 1})
	c.Clock = func() time.Time { return p.clock }
	p.catalog = &memCatalog{c: c, before: func(call string) error { return step(call + ":begin") }, after: func(call string) error { return step(call + ":end") }}
	p.slab = NewSlab(alignedBytes(64 * Align))
	lim := DefaultLimits()
	lim.IOTimeout, lim.MaxConns = 5*time.Second, 1 // one after the other: the same steps each time
	p.w, err = NewWorker(Config{Catalog: p.catalog, Transport: newFakeNet(p.stores), Slab: p.slab, Epoch: 1, StripeBytes: Align, Limits: lim,
		Nodes: []Node{{0, 2}, {1, 2}}, Rails: []PlanRail{{Name: "a", Device: "fake:a", Provider: "fake", Weight: 1, Shards: []int{0, 1}}}})
	return p, err
}

func alignedBytes(n int) []byte {
	b := make([]byte, n+Align)
	for !aligned(b) {
		b = b[1:]
	}
	return b[:n:n]
}

func (p *plant) close() {
	for _, s := range p.stores {
		if s != nil {
			_ = s.Close()
		}
	}
	if p.store != nil {
		_ = p.store.Close()
	}
}

func (p *plant) put(k Key, data []byte, opt PutOptions) error {
	_, err := p.w.Put(context.Background(), k, NewSource(bytes.NewReader(data), uint64(len(data)), "data"), opt)
	return err
}

// get is the content of an object, nil and ErrNotFound when there is none.
func (p *plant) get(k Key) ([]byte, error) {
	buf, _, err := p.w.Read(context.Background(), k, ReadOptions{})
	if err != nil {
		return nil, err
	}
	defer buf.Release()
	return bytes.Clone(buf.Bytes()), nil
}

// cleanUp is what the shards do for themselves, without waiting a day.
func (p *plant) cleanUp() error {
	ctx := context.Background()
	for range 2 {
		for shard := range 2 {
			rep, err := p.stores[shard].Scrub(ctx, p.catalog, ScrubOptions{Fix: true, Grace: 1, Doubted: true}, nil)
			if err == nil && (rep.Damaged > 0 || len(rep.Skipped) > 0) {
				err = fmt.Errorf("shard %d is damaged: %+v", shard, rep)
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// leak tells what is on the disks or in the catalog beside the current objects.
func (p *plant) leak() error {
	ctx := context.Background()
	want := map[string]bool{}
	l, more, err := p.catalog.List(ctx, ctrl.ListQuery{Over: true})
	if err != nil || more {
		return fmt.Errorf("list: %v %w", more, err)
	}
	for i := range l {
		o, found, err := p.catalog.c.Lookup(l[i].Key)
		if err != nil || !found {
			return fmt.Errorf("%s is kept and cannot be seen: %w", l[i].Key, err)
		}
		for _, s := range o.Placement.Stripes {
			want[fmt.Sprintf("shard%d/%d/%s", s.Shard, s.Dir, s.File)] = true
		}
	}
	if g, found, err := p.catalog.Garbage(ctx, Key{}, 0); err != nil || found {
		return fmt.Errorf("garbage: %v %w", g, err)
	}
	var have []string
	err = filepath.WalkDir(p.dir, func(path string, e fs.DirEntry, err error) error {
		rel, _ := filepath.Rel(p.dir, path)
		if err == nil && !e.IsDir() && strings.HasPrefix(rel, "shard") && e.Name() != markerName {
			have = append(have, rel)
		}
		return err
	})
	if err != nil {
		return err
	}
	for _, f := range have {
		if !want[f] {
			return fmt.Errorf("%s belongs to nothing", f)
		}
	}
	if len(have) != len(want) {
		return fmt.Errorf("%d files, the catalog names %d", len(have), len(want))
	}
	return nil
}

var (
	crashOld, crashNew = randomBytes(41, Align+100), randomBytes(42, 2*Align+7)
	crashOther         = Key{Namespace: "kv", Name: "other"}
)

// crashScenario is work during which a process is killed.
type crashScenario struct {
	name    string
	prepare func(p *plant) error
	work    func(p *plant) error
	// The content of testKey before and after; nil: it is not there. commit is the
	// step that changes one into the other.
	old, new []byte
	commit   string
}

func crashScenarios() []crashScenario {
	nothing := func(*plant) error { return nil }
	putOld := func(p *plant) error { return p.put(testKey, crashOld, PutOptions{}) }
	return []crashScenario{
		{"start", nil, nothing, nil, nil, ""},
		{"put", nothing, func(p *plant) error { return p.put(testKey, crashNew, PutOptions{}) }, nil, crashNew, "commit"},
		{"put if absent", nothing, func(p *plant) error { return p.put(testKey, crashNew, PutOptions{IfAbsent: true}) }, nil, crashNew, "commit"},
		{"overwrite", putOld, func(p *plant) error { return p.put(testKey, crashNew, PutOptions{}) }, crashOld, crashNew, "commit"},
		{"overwrite a generation", putOld, func(p *plant) error { return p.put(testKey, crashNew, PutOptions{IfGeneration: 1, TTL: time.Hour}) },
			crashOld, crashNew, "commit"},
		{"remove", putOld, func(p *plant) error { _, err := p.w.Remove(context.Background(), testKey); return err }, crashOld, nil, "delete"},
		{"janitor", func(p *plant) error { return p.put(testKey, crashOld, PutOptions{TTL: time.Second}) },
			func(p *plant) error {
				p.clock = p.clock.Add(time.Minute)
				if _, err := expireAll(context.Background(), p.catalog); err != nil {
					return err
				}
				for shard := range 2 {
					if _, err := p.stores[shard].Clean(context.Background(), p.catalog); err != nil {
						return err
					}
					if _, err := p.stores[shard].Sweep(context.Background(), SweepGrace, func(ctx context.Context) (*Live, error) { return LiveOf(ctx, p.catalog) }); err != nil {
						return err
					}
				}
				return nil
			}, nil, nil, ""},
		{"scrub", func(p *plant) error {
			// Something of everything: a current object, garbage, a put that died.
			if err := errors.Join(putOld(p), p.put(crashOther, crashNew, PutOptions{})); err != nil {
				return err
			}
			if _, _, err := p.catalog.Delete(context.Background(), crashOther, AnyOlder); err != nil {
				return err
			}
			for i := range uint32(3) {
				file, m := testStripe("dead", 1, i, crashNew[:100])
				if err := p.stores[int(i)%2].Write(0, file, &m, crashNew[:100]); err != nil {
					return err
				}
			}
			return nil
		}, func(p *plant) error { return p.cleanUp() }, crashOld, crashOld, ""},
	}
}

// Environment of the process that is killed.
const (
	crashDirEnv, crashNameEnv, crashAtEnv = "RS_TEST_CRASH_DIR", "RS_TEST_CRASH_SCENARIO", "RS_TEST_CRASH_AT"
	crashLog                              = "steps.log"
)

// TestCrashChild is the process that TestCrashWindows kills: it works in a folder
// and ends itself with SIGKILL at a step, by its number.
func TestCrashChild(t *testing.T) {
	dir := os.Getenv(crashDirEnv)
	if dir == "" {
		t.Skip("prerequisite: TestCrashWindows starts it as a process of its own")
	}
	at, err := strconv.Atoi(os.Getenv(crashAtEnv))
	if err != nil {
		t.Fatal(err)
	}
	log, err := os.OpenFile(filepath.Join(dir, crashLog), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	n := 0
	p, err := openPlant(dir, func(step string) error {
		mu.Lock()
		defer mu.Unlock()
		if _, err := fmt.Fprintln(log, step); err != nil {
			return err
		}
		if n++; n == at {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {} // it is on its way
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(crashScenarios(), func(s crashScenario) bool { return s.name == os.Getenv(crashNameEnv) })
	if err := crashScenarios()[i].work(p); err != nil {
		t.Fatal(err)
	}
	p.close()
}

// crashAt runs a scenario in a process that is killed at a step (0: at none), and
// gives the steps that it reached.
func crashAt(t *testing.T, dir, scenario string, at int) (steps []string, killed bool) {
	t.Helper()
	c := exec.Command(os.Args[0], "-test.run=^TestCrashChild$", "-test.timeout=60s")
	c.Env = append(os.Environ(), crashDirEnv+"="+dir, crashNameEnv+"="+scenario, crashAtEnv+"="+strconv.Itoa(at))
	out, err := c.CombinedOutput()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		st, _ := exit.Sys().(syscall.WaitStatus)
		killed = st.Signaled() && st.Signal() == syscall.SIGKILL
	}
	if err != nil && !killed {
		t.Fatalf("%s, step %d: %v\n%s", scenario, at, err, out)
	}
	b, err := os.ReadFile(filepath.Join(dir, crashLog))
	if err != nil {
		t.Fatal(err)
	}
	return strings.Fields(string(b)), killed
}

// TestCrashWindows kills a process at every single step of everything that changes
// objects, and looks at what the next one finds: the old generation or the new one,
// whole, never anything else; which of them the steps say; and after the clean-up
// nothing that belongs to no object. Then the object can be put again.
func TestCrashWindows(t *testing.T) {
	if testing.Short() {
		t.Skip("prerequisite: time; -short leaves out some hundred processes")
	}
	for _, sc := range crashScenarios() {
		t.Run(sc.name, func(t *testing.T) {
			t.Parallel()
			seed := t.TempDir()
			if sc.prepare != nil {
				p, err := openPlant(seed, nil)
				if err != nil {
					t.Fatal(err)
				}
				err = sc.prepare(p)
				p.close()
				if err != nil {
					t.Fatal(err)
				}
			}
			all, killed := crashAt(t, copyOf(t, seed), sc.name, 0)
			if killed {
				t.Fatal("killed without being asked to")
			}
			kinds := slices.Compact(slices.Sorted(slices.Values(all)))
			t.Logf("%d steps of these kinds: %s", len(all), strings.Join(kinds, " "))
			if len(all) < 4 {
				t.Fatal("the steps are not there")
			}
			stride, first := 1, 1
			if raceEnabled { // the detector has nothing to find in processes that are killed
				stride, first = 5, 1+int(testSeed(t)%5)
			}
			for at := first; at <= len(all); at += stride {
				dir := copyOf(t, seed)
				steps, killed := crashAt(t, dir, sc.name, at)
				if !killed || len(steps) != at {
					t.Fatalf("step %d: it reached %d steps and lived", at, len(steps))
				}
				if err := sc.survives(dir, steps); err != nil {
					t.Errorf("killed at step %d, %s: %v\nsteps: %v", at, steps[at-1], err, steps)
				}
				if err := os.RemoveAll(dir); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// survives looks at what a process left that was killed.
func (sc *crashScenario) survives(dir string, steps []string) error {
	p, err := openPlant(dir, nil)
	if err != nil {
		return fmt.Errorf("the next start: %w", err)
	}
	defer p.close()
	p.clock = p.clock.Add(2 * time.Minute)
	have, err := p.get(testKey)
	if err != nil && !errors.Is(err, ErrNotFound) {
		return fmt.Errorf("read: %w", err)
	}
	isOld, isNew := bytes.Equal(have, sc.old) && (have == nil) == (sc.old == nil), bytes.Equal(have, sc.new) && (have == nil) == (sc.new == nil)
	begun, done := slices.Contains(steps, sc.commit+":begin"), slices.Contains(steps, sc.commit+":end")
	switch {
	case !isOld && !isNew:
		return fmt.Errorf("%d bytes that nobody put", len(have))
	case sc.commit == "":
	case done && !isNew:
		return errors.New("it was committed, and the old generation is there")
	case !begun && !isOld:
		return errors.New("it was not committed, and the new generation is there")
	}
	if err := p.cleanUp(); err != nil {
		return fmt.Errorf("clean up: %w", err)
	}
	if err := p.leak(); err != nil {
		return fmt.Errorf("after the clean-up: %w", err)
	}
	if again, err := p.get(testKey); err != nil && !errors.Is(err, ErrNotFound) || !bytes.Equal(again, have) {
		return fmt.Errorf("the clean-up changed the object: %w", err)
	}
	if err := p.put(testKey, crashNew, PutOptions{}); err != nil {
		return fmt.Errorf("put it again: %w", err)
	}
	if again, err := p.get(testKey); err != nil || !bytes.Equal(again, crashNew) {
		return fmt.Errorf("read what was put again: %w", err)
	}
	return p.leak()
}

// copyOf is a copy of a folder that nobody has open.
func copyOf(t *testing.T, from string) string {
	t.Helper()
	to, err := os.MkdirTemp(t.TempDir(), "copy")
	if err == nil {
		err = os.CopyFS(to, os.DirFS(from))
	}
	if err != nil {
		t.Fatal(err)
	}
	return to
}
