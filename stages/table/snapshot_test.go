package table

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/zeebo/xxh3"
	"golang.org/x/sys/unix"
)

// small is a store with a row or two of each kind of table.
func small(t testing.TB, seed uint64) *Store {
	t.Helper()
	s := openTest(t, Config{Seed: seed})
	for i, kind := range []string{SGD, AdaGrad, RowwiseAdaGrad, Adam, AdamW} {
		tb := mustInit(t, s, Spec{Name: kind, Dim: i + 1, Optimizer: Defaults(kind), NonFinite: ZeroNonFinite})
		keys := []uint64{0, 1<<64 - 1, 12345}[:1+i%3]
		if _, err := tb.Update(keys, rowsOf(keys, i+1, func(k uint64) float32 { return float32(k%7) + 0.5 }), Token{}); err != nil {
			t.Fatal(err)
		}
	}
	mustInit(t, s, Spec{Name: "empty", Dim: 3})
	return s
}

func saved(t testing.TB, s *Store, names ...string) []byte {
	t.Helper()
	var b bytes.Buffer
	if _, err := s.SaveTo(ctx(t), &b, SaveSpec{Tables: names}); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// contents is all that a store holds, for comparing.
func contents(t testing.TB, s *Store) map[string]any {
	t.Helper()
	out := make(map[string]any)
	for _, tb := range s.Tables() {
		c := content(t, tb)
		if tb.Len() != len(c) {
			t.Errorf("table %s: Len is %d, it has %d rows", tb.Spec().Name, tb.Len(), len(c))
		}
		out[fmt.Sprintf("%+v", tb.Spec())] = c
	}
	return out
}

func TestSnapshotRoundTrip(t *testing.T) {
	seed := testSeed(t)
	r := rand.New(rand.NewPCG(seed, 0))
	s := openTest(t, Config{PageBytes: 1 << 20, ChunkBytes: 1 << 20, Memory: NewRegions()})
	for i, o := range testOptimizers() {
		tb := mustInit(t, s, Spec{Name: fmt.Sprintf("t%d", i), Dim: 1 + r.IntN(300), Optimizer: o})
		keys := make([]uint64, r.IntN(3000))
		grads := make([]float32, len(keys)*tb.Spec().Dim)
		for j := range keys {
			keys[j] = r.Uint64()
		}
		for j := range grads {
			grads[j] = r.Float32()
		}
		if _, err := tb.Update(keys, grads, Token{}); err != nil {
			t.Fatal(err)
		}
	}
	mustInit(t, s, Spec{Name: "wide", Dim: MaxDim, Optimizer: Defaults(Adam)}) // a row is longer than a block
	wide := s.Table("wide")
	mustPut(t, wide, []uint64{1, 2}, make([]float32, 2*MaxDim))
	path := filepath.Join(t.TempDir(), "snap")
	if _, err := s.Save(ctx(t), path, SaveSpec{}); err != nil {
		t.Fatal(err)
	}
	// Into a store whose keys lie elsewhere.
	to := openTest(t, Config{PageBytes: 1 << 20, ChunkBytes: 1 << 20, Memory: NewRegions()})
	if err := to.Load(ctx(t), path); err != nil {
		t.Fatal(err)
	}
	want := contents(t, s)
	if got := contents(t, to); !reflect.DeepEqual(got, want) {
		t.Error("the loaded store differs")
	}
	// Over what is there: rows that are not in it go, tables that are not in it stay.
	mustPut(t, to.Table("wide"), []uint64{3}, make([]float32, MaxDim))
	extra := mustInit(t, to, Spec{Name: "extra", Dim: 1})
	mustPut(t, extra, []uint64{1}, []float32{1})
	if err := to.Load(ctx(t), path); err != nil {
		t.Fatal(err)
	}
	if extra.Len() != 1 {
		t.Error("a table that is not in the snapshot changed")
	}
	if _, err := to.Drop("extra"); err != nil {
		t.Fatal(err)
	}
	if got := contents(t, to); !reflect.DeepEqual(got, want) {
		t.Error("the store that was loaded again differs")
	}
	// The loaded state works on.
	for _, st := range []*Store{s, to} {
		tb := st.Table("t9")
		if _, err := tb.Update([]uint64{1}, make([]float32, tb.Spec().Dim), Token{}); err != nil {
			t.Fatal(err)
		}
	}
	if !reflect.DeepEqual(contents(t, s), contents(t, to)) {
		t.Error("an update after the load does something else")
	}
}

func TestSnapshotOfNamedTables(t *testing.T) {
	s := small(t, 1)
	to := openTest(t, Config{})
	if err := to.LoadFrom(ctx(t), bytes.NewReader(saved(t, s, "adam", "sgd", "adam"))); err != nil {
		t.Fatal(err)
	}
	if len(to.Tables()) != 2 || to.Table("adam").Len() != 1 {
		t.Errorf("%d tables", len(to.Tables()))
	}
	if _, err := s.SaveTo(ctx(t), io.Discard, SaveSpec{Tables: []string{"sgd", "nothere"}}); !errors.Is(err, ErrNoTable) || !strings.Contains(err.Error(), "nothere") {
		t.Error(err)
	}
}

// refuses loads b into a store with content and demands an error of type E, and that
// nothing changed.
func refuses[E error](t *testing.T, s *Store, b []byte, what string) (e E) {
	t.Helper()
	before := contents(t, s)
	err := s.LoadFrom(ctx(t), bytes.NewReader(b))
	if err == nil {
		t.Fatalf("%s: loaded", what)
	}
	if !errors.As(err, &e) {
		t.Fatalf("%s: %T: %v", what, err, err)
	}
	if !reflect.DeepEqual(contents(t, s), before) {
		t.Fatalf("%s: %v, and the store changed", what, err)
	}
	return e
}

func TestSnapshotIsRefused(t *testing.T) {
	b := saved(t, small(t, 1))
	s := openTest(t, Config{})
	mustPut(t, mustInit(t, s, Spec{Name: SGD, Dim: 1}), []uint64{0, 77}, []float32{1, 2})
	for n := range b {
		if e := refuses[*SnapshotError](t, s, b[:n], fmt.Sprintf("cut to %d", n)); e.Offset != int64(n) {
			t.Errorf("cut to %d: offset %d", n, e.Offset)
		}
	}
	refuses[*SnapshotError](t, s, append(bytes.Clone(b), 0), "a byte behind it")
	refuses[*SnapshotError](t, s, append(bytes.Clone(b), b...), "twice")
	for i := range b {
		for bit := range 8 {
			if raceEnabled && bit != i%8 {
				continue // one bit of each byte: all of them take too long
			}
			flipped := bytes.Clone(b)
			flipped[i] ^= 1 << bit
			if i >= 8 && i < 12 {
				refuses[*VersionError](t, s, flipped, "another version")
				continue
			}
			refuses[*SnapshotError](t, s, flipped, fmt.Sprintf("bit %d of byte %d", bit, i))
		}
	}
	// Memory of what was given up is used again.
	if st := s.Stats(); st.Chunks > 20 || st.IndexBytes > 8<<20 {
		t.Errorf("%+v", st)
	}
	if err := s.LoadFrom(ctx(t), bytes.NewReader(b)); err != nil {
		t.Fatal(err)
	}
}

// TestSnapshotOfAnotherShape: what the checksums say is right, and yet not fit.
func TestSnapshotOfAnotherShape(t *testing.T) {
	b := saved(t, small(t, 1))
	for _, spec := range []Spec{{Name: "adam", Dim: 7, Optimizer: Defaults(Adam)}, {Name: "adam", Dim: 4, Optimizer: Defaults(AdamW)}} {
		s := openTest(t, Config{})
		mustPut(t, mustInit(t, s, spec), []uint64{1}, make([]float32, spec.Dim))
		refuses[*ShapeError](t, s, b, "another shape")
	}
	// Another learning rate is not another shape; the table keeps its own.
	s := openTest(t, Config{})
	own := mustInit(t, s, Spec{Name: SGD, Dim: 1, Optimizer: Optimizer{LearningRate: 5}})
	if err := s.LoadFrom(ctx(t), bytes.NewReader(b)); err != nil {
		t.Fatal(err)
	}
	if s.Table(SGD) != own || own.Spec().Optimizer.LearningRate != 5 || own.Len() != 1 {
		t.Errorf("%+v", s.Table(SGD).Spec())
	}
	refuses[*LimitError](t, openTest(t, Config{Limit: 300 << 10}), b, "too large")
}

// TestSnapshotLies has good checksums over bad content.
func TestSnapshotLies(t *testing.T) {
	spec := Spec{Name: "t", Dim: 2}
	spec, err := spec.complete()
	if err != nil {
		t.Fatal(err)
	}
	record := func(key uint64) []byte { return append(binary.LittleEndian.AppendUint64(nil, key), make([]byte, 8)...) }
	rows := func(w *snapshotWriter, n int, keys ...uint64) {
		b := make([]byte, blockHeadBytes)
		for _, k := range keys {
			b = append(b, record(k)...)
		}
		_ = w.block(blockRows, n, b)
	}
	head := func(w *snapshotWriter, tables int) error {
		w.info.Tables = tables
		if tables <= maxTables {
			w.info.Shape = xxh3.Hash(bytes.Repeat(spec.encode(nil), tables))
		}
		return w.head()
	}
	gone := func(w *snapshotWriter, n int, keys ...uint64) {
		b := make([]byte, blockHeadBytes)
		for _, k := range keys {
			b = binary.LittleEndian.AppendUint64(b, k)
		}
		_ = w.block(blockDeleted, n, b)
	}
	for what, write := range map[string]func(w *snapshotWriter){
		"a key twice": func(w *snapshotWriter) {
			_ = head(w, 1)
			_ = w.spec(spec, tableWhole)
			rows(w, 2, 1, 1)
			_ = w.end(2, 0)
		},
		"a key in two blocks": func(w *snapshotWriter) {
			_ = head(w, 1)
			_ = w.spec(spec, tableWhole)
			rows(w, 1, 1)
			rows(w, 1, 1)
			_ = w.end(2, 0)
		},
		"more rows than it says": func(w *snapshotWriter) {
			_ = head(w, 1)
			_ = w.spec(spec, tableWhole)
			rows(w, 2, 1, 2)
			_ = w.end(1, 0)
		},
		"a table twice": func(w *snapshotWriter) {
			_ = head(w, 2)
			for range 2 {
				_ = w.spec(spec, tableWhole)
				_ = w.end(0, 0)
			}
		},
		"too many tables": func(w *snapshotWriter) { _ = head(w, maxTables+1) },
		"more tables than it says": func(w *snapshotWriter) {
			_ = head(w, 0)
			_ = w.spec(spec, tableWhole)
			_ = w.end(0, 0)
		},
		"a block without rows": func(w *snapshotWriter) {
			_ = head(w, 1)
			_ = w.spec(spec, tableWhole)
			rows(w, 0)
			_ = w.end(0, 0)
		},
		"a giant block": func(w *snapshotWriter) {
			_ = head(w, 1)
			_ = w.spec(spec, tableWhole)
			rows(w, 1<<32-1, 1)
			_ = w.end(1, 0)
		},
		"a block of another kind": func(w *snapshotWriter) {
			_ = head(w, 1)
			_ = w.spec(spec, tableWhole)
			_ = w.block(4, 1, make([]byte, blockHeadBytes+16))
		},
		"an end with rows": func(w *snapshotWriter) {
			_ = head(w, 1)
			_ = w.spec(spec, tableWhole)
			_ = w.block(blockEnd, 1, make([]byte, blockHeadBytes+8))
		},
		"a name of a path": func(w *snapshotWriter) {
			bad := spec
			bad.Name = "../t"
			_ = head(w, 1)
			_ = w.spec(bad, tableWhole)
		},
		"a giant dim": func(w *snapshotWriter) {
			bad := spec
			bad.Dim = 1<<32 - 1
			_ = head(w, 1)
			_ = w.spec(bad, tableWhole)
		},
		"no optimizer": func(w *snapshotWriter) {
			bad := spec
			bad.Optimizer = Optimizer{}
			_ = head(w, 1)
			_ = w.spec(bad, tableWhole)
		},
		"a long spec": func(w *snapshotWriter) {
			_ = head(w, 1)
			b := append(binary.LittleEndian.AppendUint32(nil, 1<<31), make([]byte, 2000)...)
			_ = w.write(binary.LittleEndian.AppendUint64(b, xxh3.Hash(b)))
		},
		"deleted keys of a whole table": func(w *snapshotWriter) {
			_ = head(w, 1)
			_ = w.spec(spec, tableWhole)
			gone(w, 1, 1)
			_ = w.end(0, 1)
		},
		"no deleted keys in a block": func(w *snapshotWriter) {
			_ = head(w, 1)
			_ = w.spec(spec, tableChanges)
			gone(w, 0)
			_ = w.end(0, 0)
		},
		"changes of nothing": func(w *snapshotWriter) {
			_ = head(w, 1)
			_ = w.spec(spec, tableChanges)
			_ = w.end(0, 0)
		},
		"a part of another kind": func(w *snapshotWriter) {
			_ = head(w, 1)
			_ = w.spec(spec, 2)
			_ = w.end(0, 0)
		},
		"a base": func(w *snapshotWriter) {
			w.info.Base = SaveID{1}
			_ = head(w, 1)
			_ = w.spec(spec, tableWhole)
			_ = w.end(0, 0)
		},
		"another shape": func(w *snapshotWriter) {
			_ = head(w, 1)
			bad := spec
			bad.Optimizer.LearningRate = 7
			_ = w.spec(bad, tableWhole)
			_ = w.end(0, 0)
		},
		"no ID": func(w *snapshotWriter) {
			w.info.ID = SaveID{}
			_ = head(w, 0)
		},
		"other rows in all": func(w *snapshotWriter) {
			_ = head(w, 1)
			_ = w.spec(spec, tableWhole)
			_ = w.end(0, 0)
			w.info.Rows = 7
		},
	} {
		var buf bytes.Buffer
		w := &snapshotWriter{w: &buf, all: xxh3.New(), info: Snapshot{ID: SaveID{9}}}
		write(w)
		_ = w.foot()
		s := openTest(t, Config{})
		mustPut(t, mustInit(t, s, Spec{Name: "t", Dim: 2}), []uint64{5}, []float32{1, 2})
		e := refuses[*SnapshotError](t, s, buf.Bytes(), what)
		if strings.Contains(e.What, "it ends in") || strings.Contains(e.What, "checksum") {
			t.Errorf("%s: refused for something else: %v", what, e)
		}
	}
}

// TestOldSnapshot reads what each version wrote. RS_UPDATE=1 writes that of the present
// one anew.
func TestOldSnapshot(t *testing.T) {
	s := small(t, 1)
	file := func(version int) string { return filepath.Join("testdata", fmt.Sprintf("v%d.snapshot", version)) }
	if os.Getenv("RS_UPDATE") != "" {
		if _, err := s.Save(ctx(t), file(snapshotVersion), SaveSpec{}); err != nil {
			t.Fatal(err)
		}
	}
	for v := 1; v <= snapshotVersion; v++ {
		to := openTest(t, Config{})
		if err := to.Load(ctx(t), file(v)); err != nil {
			t.Fatal(err)
		}
		if got, want := contents(t, to), contents(t, s); !reflect.DeepEqual(got, want) {
			t.Errorf("version %d has %v, want %v", v, got, want)
		}
	}
}

// brokenFiles fails, or stops as if the process were killed, at the step that is counted
// down to.
type brokenFiles struct {
	real   diskFiles
	left   int
	killed bool // nothing happens any more from that step on
	dead   bool
	dirty  bool // bytes were written that a power cut would take
}

var errBroken = errors.New("broken on purpose")

func (b *brokenFiles) step() error {
	if b.dead {
		return errBroken
	}
	if b.left--; b.left < 0 {
		b.dead = b.killed
		b.left = 1 << 30
		return errBroken
	}
	return nil
}

type brokenFile struct {
	tempFile
	b *brokenFiles
}

func (b *brokenFiles) create(path string) (tempFile, error) {
	if err := b.step(); err != nil {
		return nil, &ioError{err}
	}
	f, err := b.real.create(path)
	return brokenFile{f, b}, err
}

func (f brokenFile) Write(p []byte) (int, error) {
	n := 0
	// In pieces, so that it breaks in the middle too.
	for len(p) > 0 {
		if err := f.b.step(); err != nil {
			return n, err
		}
		f.b.dirty = true
		k, err := f.tempFile.Write(p[:min(len(p), 100)])
		n += k
		if err != nil {
			return n, err
		}
		p = p[k:]
	}
	return n, nil
}

func (f brokenFile) Sync() error {
	if err := f.b.step(); err != nil {
		return err
	}
	f.b.dirty = false
	return f.tempFile.Sync()
}

func (f brokenFile) Close() error {
	err := f.tempFile.Close() // as the kernel does for who is killed
	if e := f.b.step(); e != nil {
		return e
	}
	return err
}

func (b *brokenFiles) rename(from, to string) error {
	if err := b.step(); err != nil {
		return err
	}
	if b.dirty {
		return errors.New("it gets its name before it is durable")
	}
	return b.real.rename(from, to)
}

func (b *brokenFiles) remove(path string) error {
	if b.dead {
		return errBroken
	}
	return b.real.remove(path)
}

func (b *brokenFiles) syncDir(dir string) error {
	if err := b.step(); err != nil {
		return err
	}
	return b.real.syncDir(dir)
}

// TestSaveBreaks lets each step of a save fail, and then kills it at each: the path has
// the old snapshot or the new, whole, and the next save works.
func TestSaveBreaks(t *testing.T) {
	for _, killed := range []bool{false, true} {
		t.Run(fmt.Sprintf("killed=%v", killed), func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "snap")
			s := small(t, 1)
			// Its first content, and one that a save adds.
			tb := s.Table(SGD)
			old := contents(t, s)
			if _, err := s.Save(ctx(t), path, SaveSpec{}); err != nil {
				t.Fatal(err)
			}
			mustPut(t, tb, []uint64{4711}, []float32{8})
			for step := 0; ; step++ {
				broken := &brokenFiles{left: step, killed: killed}
				s.files = broken
				_, err := s.Save(ctx(t), path, SaveSpec{})
				if err == nil {
					if step < 8 {
						t.Fatalf("a save has %d steps only", step)
					}
					break
				}
				if !errors.Is(err, errBroken) || !strings.Contains(err.Error(), path) {
					t.Fatal(err)
				}
				to := openTest(t, Config{})
				if err := to.Load(ctx(t), path); err != nil {
					t.Fatalf("step %d: %v", step, err)
				}
				got := contents(t, to)
				switch {
				case reflect.DeepEqual(got, old):
				case reflect.DeepEqual(got, contents(t, s)):
					// From here on the old one is the new one.
					old = got
				default:
					t.Fatalf("step %d: neither the old nor the new", step)
				}
				if names, _ := filepath.Glob(filepath.Join(dir, "*")); !killed && len(names) != 1 {
					t.Errorf("step %d: left %v", step, names)
				}
			}
			s.files = diskFiles{}
			if _, err := s.Save(ctx(t), path, SaveSpec{}); err != nil {
				t.Fatal(err)
			}
			if names, _ := filepath.Glob(filepath.Join(dir, "*")); len(names) != 1 {
				t.Errorf("left %v", names)
			}
		})
	}
}

func TestTwoSavesAtOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "snap")
	s := small(t, 1)
	other, err := diskFiles{}.create(path + tempSuffix)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Save(ctx(t), path, SaveSpec{}); !errors.Is(err, ErrSaving) {
		t.Error(err)
	}
	if _, err := os.Stat(path + tempSuffix); err != nil {
		t.Errorf("the other's file is gone: %v", err)
	}
	// A lock that came too late: the file has its final name by now.
	f, err := os.OpenFile(path+tempSuffix, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := other.Write([]byte("complete")); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+tempSuffix, path); err != nil {
		t.Fatal(err)
	}
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
	if err := claim(f, path+tempSuffix); !errors.Is(err, ErrSaving) {
		t.Error(err)
	}
	// And the same when a third save has made a temporary file since.
	if err := os.WriteFile(path+tempSuffix, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := claim(f, path+tempSuffix); !errors.Is(err, ErrSaving) {
		t.Error(err)
	}
	if b, err := os.ReadFile(path); err != nil || string(b) != "complete" {
		t.Errorf("the complete file has %q, %v", b, err)
	}
	_ = f.Close()
	if _, err := s.Save(ctx(t), path, SaveSpec{}); err != nil {
		t.Error(err)
	}
}

func TestSaveAndLoadEnd(t *testing.T) {
	s := small(t, 1)
	b := saved(t, s)
	path := filepath.Join(t.TempDir(), "snap")
	over, cancel := context.WithCancel(ctx(t))
	cancel()
	if _, err := s.Save(over, path, SaveSpec{}); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if names, _ := filepath.Glob(path + "*"); len(names) != 0 {
		t.Errorf("left %v", names)
	}
	before := contents(t, s)
	if err := s.LoadFrom(over, bytes.NewReader(b)); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	// A disk that fails is not a broken snapshot.
	err := s.LoadFrom(ctx(t), iotest.TimeoutReader(iotest.OneByteReader(bytes.NewReader(b))))
	var se *SnapshotError
	if !errors.Is(err, iotest.ErrTimeout) || !errors.As(err, &se) || layerOf(err) != "storage" {
		t.Error(err)
	}
	if !reflect.DeepEqual(contents(t, s), before) {
		t.Error("the store changed")
	}
	if err := s.Load(ctx(t), path); !errors.Is(err, os.ErrNotExist) || layerOf(err) != "storage" {
		t.Error(err)
	}
	if _, err := s.Save(ctx(t), filepath.Join(path, "no", "folder"), SaveSpec{}); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
	if _, err := os.Stat("/dev/full"); err == nil {
		f, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if _, err := s.SaveTo(ctx(t), f, SaveSpec{}); err == nil || layerOf(err) != "storage" {
			t.Error(err)
		}
	}
}

// TestSaveOfAReplacedTable: a table that is cleared or loaded while it is saved makes the
// save fail, rather than mixing what it had with what it has.
func TestSaveOfAReplacedTable(t *testing.T) {
	s := openTest(t, Config{})
	tb := mustInit(t, s, Spec{Name: "t", Dim: 2})
	keys := sequence(1, 5000)
	mustPut(t, tb, keys, make([]float32, 2*len(keys)))
	b := saved(t, s)
	for what, do := range map[string]func() error{
		"cleared": tb.Clear,
		"loaded":  func() error { return s.LoadFrom(ctx(t), bytes.NewReader(b)) },
	} {
		mustPut(t, tb, keys, make([]float32, 2*len(keys)))
		var failed error
		w := &hookWriter{do: func() { failed = do() }}
		if _, err := s.SaveTo(ctx(t), w, SaveSpec{}); !errors.Is(err, ErrReplaced) || failed != nil {
			t.Errorf("%s: %v, %v", what, err, failed)
		}
	}
	saved(t, s) // and the next one is whole again
}

// TestSnapshotThatIsNoFile: nobody waits for the other end of a pipe that lies there.
func TestSnapshotThatIsNoFile(t *testing.T) {
	s := small(t, 1)
	f := &Folder{Store: s, Dir: t.TempDir(), Shards: 1}
	if err := unix.Mkfifo(f.path("snap"), 0o600); err != nil {
		t.Fatal(err)
	}
	before := contents(t, s)
	if _, err := f.State("snap"); err == nil || !strings.Contains(err.Error(), "not a regular file") || layerOf(err) != "storage" {
		t.Error(err)
	}
	for _, path := range []string{f.path("snap"), f.Dir} {
		if err := s.Load(ctx(t), path); err == nil || !strings.Contains(err.Error(), "not a regular file") || layerOf(err) != "storage" {
			t.Error(err)
		}
	}
	if !reflect.DeepEqual(contents(t, s), before) {
		t.Error("the store changed")
	}
}
