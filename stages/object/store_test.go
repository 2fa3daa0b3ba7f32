package object

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/zeebo/xxh3"
	"golang.org/x/sys/unix"
)

func openTestStore(t *testing.T, dirs ...string) *Store {
	t.Helper()
	s, err := OpenStore(StoreConfig{Deployment: "test", Shard: 0, Dirs: dirs})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func testStripe(name string, gen uint64, index uint32, data []byte) (string, StripeMeta) {
	h := NewHandle(Key{Namespace: "ns", Name: name}, gen, LayoutVersion, uint64(len(data)), Align, int64(gen))
	f, err := FileName(h, index)
	if err != nil {
		panic(err)
	}
	return f, StripeMeta{
		Identity: Identity{Handle: h, Generation: gen, LayoutVersion: LayoutVersion, Index: index},
		Length:   uint64(len(data)), XXH3: xxh3.Hash(data),
	}
}

// files lists every regular file below a directory but the marker.
func files(t *testing.T, dir string) []string {
	t.Helper()
	var out []string
	err := filepath.WalkDir(dir, func(p string, e fs.DirEntry, err error) error {
		if err == nil && !e.IsDir() && e.Name() != markerName {
			rel, _ := filepath.Rel(dir, p)
			out = append(out, rel)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestStoreRoundTrip(t *testing.T) {
	a, b := filepath.Join(t.TempDir(), "deep", "a"), t.TempDir()
	s := openTestStore(t, a, b)
	for _, n := range []int{0, 1, Align - 1, Align, Align + 1, 3*Align + 7} {
		data := randomBytes(uint64(n), n)
		file, m := testStripe("x", uint64(n+1), 7, data)
		dir := n % 2
		if err := s.Write(dir, file, &m, data); err != nil {
			t.Fatal(err)
		}
		dst := make([]byte, n)
		got, err := s.Read(dir, file, m.Identity, dst)
		if err != nil || got != m || !bytes.Equal(dst, data) {
			t.Fatalf("%d bytes: %+v, %v", n, got, err)
		}
		if got, err := s.Stat(dir, file); err != nil || got != m {
			t.Fatalf("stat: %+v, %v", got, err)
		}
		if _, err := s.Read(1-dir, file, m.Identity, dst); !errors.Is(err, ErrStripeNotFound) {
			t.Fatalf("found in the other directory: %v", err)
		}
		var listed []string
		if err := s.List(context.Background(), dir, func(e Entry) error { listed = append(listed, e.File); return nil }); err != nil || len(listed) != 1 || listed[0] != file {
			t.Fatalf("list: %v, %v", listed, err)
		}
		if ok, err := s.Delete(dir, file, m.Identity); !ok || err != nil {
			t.Fatalf("delete: %v, %v", ok, err)
		}
		if ok, err := s.Delete(dir, file, m.Identity); ok || err != nil {
			t.Fatalf("second delete: %v, %v", ok, err)
		}
	}
	if l := append(files(t, a), files(t, b)...); len(l) != 0 {
		t.Fatalf("left behind: %v", l)
	}
}

func TestStoreIdentityAndLength(t *testing.T) {
	s := openTestStore(t, t.TempDir())
	data := randomBytes(1, 100)
	file, m := testStripe("x", 5, 0, data)
	if err := s.Write(0, file, &m, data); err != nil {
		t.Fatal(err)
	}
	other := m.Identity
	other.Generation++
	for _, c := range []struct {
		name string
		id   Identity
		n    int
		want error
	}{
		{"generation", other, 100, ErrStale},
		{"buffer too small", m.Identity, 99, ErrTooSmall},
		{"buffer too large", m.Identity, 101, ErrWrongLength},
	} {
		if _, err := s.Read(0, file, c.id, make([]byte, c.n)); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
	}
	if _, err := s.Read(0, file, Identity{Index: 1}, nil); !errors.Is(err, ErrBadRequest) {
		t.Errorf("file of another stripe: %v", err)
	}
	if err := s.Write(0, file, &m, data[:99]); !errors.Is(err, ErrBadRequest) {
		t.Errorf("write of the wrong length: %v", err)
	}
	stranger, _ := testStripe("y", 5, 0, data)
	if _, err := s.Delete(0, stranger, m.Identity); !errors.Is(err, ErrStale) {
		t.Errorf("delete with another object's identity: %v", err)
	}
	for _, dir := range []int{-1, 1} {
		if _, err := s.Read(dir, file, m.Identity, data); !errors.Is(err, ErrBadRequest) {
			t.Errorf("directory %d: %v", dir, err)
		}
	}
}

func TestStoreRefusesForeignNames(t *testing.T) {
	dir := t.TempDir()
	s := openTestStore(t, dir)
	if err := os.WriteFile(filepath.Join(filepath.Dir(dir), "secret"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, f := range []string{"", ".", "..", "../secret", "/etc/passwd", markerName, "ab/../../secret", "ab/" + strings.Repeat("c", 30),
		"ab/" + strings.Repeat("c", 30) + ".g1.l1." + strings.Repeat("d", 16) + ".s01", "AB/" + strings.Repeat("c", 30) + ".g1.l1." + strings.Repeat("d", 16) + ".s0"} {
		if _, err := s.Read(0, f, Identity{}, nil); !errors.Is(err, ErrBadRequest) {
			t.Errorf("read %q: %v", f, err)
		}
		if _, err := s.Delete(0, f, Identity{}); !errors.Is(err, ErrBadRequest) {
			t.Errorf("delete %q: %v", f, err)
		}
		if err := s.Write(0, f, &StripeMeta{}, nil); !errors.Is(err, ErrBadRequest) {
			t.Errorf("write %q: %v", f, err)
		}
	}
}

func TestStoreFindsDamage(t *testing.T) {
	dir := t.TempDir()
	s := openTestStore(t, dir)
	data := randomBytes(2, 1000)
	file, m := testStripe("x", 1, 0, data)
	path := filepath.Join(dir, file)
	full := func() []byte {
		if err := s.Write(0, file, &m, data); err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}()
	for name, b := range map[string][]byte{
		"empty":           {},
		"cut in the data": full[:500],
		"trailer cut":     full[:len(full)-1],
		"data missing":    full[1:],
		"data grown":      append([]byte{0}, full...),
		"trailer bit":     append(append([]byte{}, full[:len(full)-200]...), append([]byte{full[len(full)-200] ^ 1}, full[len(full)-199:]...)...),
	} {
		if err := os.WriteFile(path, b, 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Read(0, file, m.Identity, make([]byte, 1000)); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	for name, mk := range map[string]func() error{
		"a folder":           func() error { return os.Mkdir(path, 0o755) },
		"a dangling symlink": func() error { return os.Symlink("target", path) },
		"a fifo":             func() error { return syscall.Mkfifo(path, 0o644) },
	} {
		if err := mk(); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Read(0, file, m.Identity, make([]byte, 1000)); !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrIO) && !errors.Is(err, ErrStripeNotFound) {
			t.Errorf("%s: %v", name, err)
		}
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
}

func TestStoreRefusesWrongDirectories(t *testing.T) {
	a, b := t.TempDir(), t.TempDir()
	openTestStore(t, a, b).Close()
	cfg := func(dep string, shard int, dirs ...string) StoreConfig {
		return StoreConfig{Deployment: dep, Shard: shard, Dirs: dirs}
	}
	full := t.TempDir()
	if err := os.WriteFile(filepath.Join(full, "thesis.txt"), []byte("do not touch"), 0o644); err != nil {
		t.Fatal(err)
	}
	garbled := t.TempDir()
	if err := os.WriteFile(filepath.Join(garbled, markerName), []byte("{"), 0o644); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(a, link); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, text string
		cfg        StoreConfig
	}{
		{"swapped", "directory 1 of shard 0", cfg("test", 0, b, a)},
		{"other shard", "directory 0 of shard 0", cfg("test", 1, a, b)},
		{"other deployment", `deployment "test"`, cfg("prod", 0, a, b)},
		{"somebody's files", "thesis.txt", cfg("test", 0, full)},
		{"garbled marker", "not readable", cfg("test", 0, garbled)},
		{"the same twice", "directory", cfg("test", 0, a, link)},
		{"no path", "empty", cfg("test", 0, "")},
	} {
		s, err := OpenStore(c.cfg)
		if !errors.Is(err, ErrWrongDir) || !strings.Contains(err.Error(), c.text) || s != nil {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	// A refusal holds no lock: the rightful owner can open.
	openTestStore(t, a, b)
	if _, err := OpenStore(cfg("test", 0, a, b)); !errors.Is(err, ErrWrongDir) || !strings.Contains(err.Error(), "in use by another process") {
		t.Errorf("second owner: %v", err)
	}
}

func TestStoreAcceptsFreshMount(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "lost+found"), 0o700); err != nil {
		t.Fatal(err)
	}
	// A marker that was being written when the machine stopped.
	if err := os.WriteFile(filepath.Join(dir, markerName+tmpSuffix), []byte("{"), 0o644); err != nil {
		t.Fatal(err)
	}
	openTestStore(t, dir)
	if l := files(t, dir); len(l) != 0 {
		t.Fatalf("left behind: %v", l)
	}
}

var errInjected = errors.New("injected")

// failAt fails the n-th step that is reached, and every discard if crash is set:
// a process that died does not clean up.
func failAt(n int, crash bool, reached *[]string) func(string) error {
	var mu sync.Mutex
	return func(step string) error {
		mu.Lock()
		defer mu.Unlock()
		*reached = append(*reached, step)
		if len(*reached) == n+1 || (crash && len(*reached) > n+1) {
			return fmt.Errorf("%w at %s", errInjected, step)
		}
		return nil
	}
}

// TestStoreWriteFailsAtEachStep fails every step of a write in turn, both as an
// error, after which nothing may be left, and as a crash, after which the next
// start must leave nothing.
func TestStoreWriteFailsAtEachStep(t *testing.T) {
	data := randomBytes(3, 5000)
	file, m := testStripe("x", 1, 0, data)
	for _, crash := range []bool{false, true} {
		steps := 0
		for n := 0; ; n++ {
			dir := t.TempDir()
			openTestStore(t, dir).Close()
			var reached []string
			s, err := OpenStore(StoreConfig{Deployment: "test", Dirs: []string{dir}, step: failAt(n, crash, &reached)})
			if err != nil {
				t.Fatal(err)
			}
			err = s.Write(0, file, &m, data)
			if len(reached) <= n {
				if err != nil {
					t.Fatal(err)
				}
				_ = s.Close()
				steps = n
				break
			}
			at := reached[n]
			if at == "stored" { // passed, not done: nothing is left to fail
				if err != nil {
					t.Fatal(err)
				}
				_ = s.Close()
				continue
			}
			if !errors.Is(err, errInjected) || !errors.Is(err, ErrIO) {
				t.Fatalf("%s: %v", at, err)
			}
			if l := files(t, dir); !crash && len(l) != 0 {
				t.Errorf("failed at %s: left behind %v", at, l)
			}
			_ = s.Close()
			s2 := openTestStore(t, dir)
			if l := files(t, dir); len(l) != 0 {
				t.Errorf("crashed at %s: left behind after reopening: %v", at, l)
			}
			if _, err := s2.Read(0, file, m.Identity, make([]byte, len(data))); !errors.Is(err, ErrStripeNotFound) {
				t.Errorf("failed at %s: the stripe is there: %v", at, err)
			}
			_ = s2.Close()
		}
		if steps < 8 {
			t.Errorf("only %d steps were reached", steps)
		}
	}
}

func TestStoreInjectedNoSpace(t *testing.T) {
	for _, step := range []string{"create", "reserve", "write", "sync", "mkdir", "rename"} {
		for _, errno := range []error{unix.ENOSPC, unix.EDQUOT} {
			dir := t.TempDir()
			openTestStore(t, dir).Close()
			s, err := OpenStore(StoreConfig{Deployment: "test", Dirs: []string{dir}, step: func(s string) error {
				if s == step {
					return &fs.PathError{Op: s, Path: "f", Err: errno}
				}
				return nil
			}})
			if err != nil {
				t.Fatal(err)
			}
			data := randomBytes(4, 300)
			file, m := testStripe("x", 1, 0, data)
			err = s.Write(0, file, &m, data)
			if !errors.Is(err, ErrNoSpace) || !errors.Is(err, errno) || errors.Is(err, ErrIO) {
				t.Errorf("%s: %v", step, err)
			} else if txt := err.Error(); !strings.Contains(txt, dir) || !strings.Contains(txt, "bytes free, 556 needed") {
				t.Errorf("%s: %v", step, err)
			}
			if l := files(t, dir); len(l) != 0 {
				t.Errorf("%s: left behind %v", step, l)
			}
			_ = s.Close()
		}
	}
}

func TestStoreRealNoSpace(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=256k"); err != nil {
		t.Skipf("prerequisite: mounting a tmpfs needs root: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, 0) })
	s := openTestStore(t, dir, t.TempDir())
	t.Cleanup(func() { _ = s.Close() }) // before the unmount
	data := randomBytes(5, 100<<10)
	var stored []string
	for i := range 4 {
		file, m := testStripe("x", 1, uint32(i), data)
		err := s.Write(0, file, &m, data)
		if err == nil {
			stored = append(stored, file)
			continue
		}
		if !errors.Is(err, ErrNoSpace) || !errors.Is(err, unix.ENOSPC) || !strings.Contains(err.Error(), dir) || !strings.Contains(err.Error(), "102656 needed") {
			t.Fatal(err)
		}
		t.Log(err)
		if got := files(t, dir); len(got) != len(stored) {
			t.Fatalf("files %v, stored %v", got, stored)
		}
		// The other directory still works, and the full one works again with room.
		if err := s.Write(1, file, &m, data); err != nil {
			t.Fatal(err)
		}
		old, om := testStripe("x", 1, 0, data)
		if _, err := s.Delete(0, old, om.Identity); err != nil {
			t.Fatal(err)
		}
		if err := s.Write(0, file, &m, data); err != nil {
			t.Fatal(err)
		}
		return
	}
	t.Fatal("256 KiB held 400 KiB")
}

func TestStoreConcurrent(t *testing.T) {
	s := openTestStore(t, t.TempDir(), t.TempDir())
	var wg sync.WaitGroup
	for g := range 6 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for i := range 10 {
				data := randomBytes(uint64(g*100+i), 1+g*997)
				file, m := testStripe(fmt.Sprint(g), uint64(i+1), uint32(i), data)
				if err := s.Write(i%2, file, &m, data); err != nil {
					t.Error(err)
				}
				dst := make([]byte, len(data))
				if _, err := s.Read(i%2, file, m.Identity, dst); err != nil || !bytes.Equal(dst, data) {
					t.Error(err)
				}
				if i%3 == 0 {
					if ok, err := s.Delete(i%2, file, m.Identity); !ok || err != nil {
						t.Error(ok, err)
					}
				}
			}
		}()
	}
	wg.Wait()
	if free, total, err := s.Space(0); err != nil || free == 0 || total < free {
		t.Error(free, total, err)
	}
}

func FuzzTrailer(f *testing.F) {
	_, m := testStripe("x", 3, 9, []byte("abc"))
	var b [trailerBytes]byte
	if err := encodeTrailer(&b, &m); err != nil {
		f.Fatal(err)
	}
	f.Add(b[:])
	f.Add(b[:100])
	f.Fuzz(func(t *testing.T, in []byte) {
		// Give the fuzzer a chance to get past the checksum.
		if len(in) == trailerBytes {
			in = bytes.Clone(in)
			h := xxh3.Hash(in[:trailerSumAt])
			for i := range 8 {
				in[trailerSumAt+i] = byte(h >> (8 * i))
			}
		}
		m, err := decodeTrailer(in)
		if err != nil {
			if !errors.Is(err, ErrCorrupt) {
				t.Fatal(err)
			}
			return
		}
		var out [trailerBytes]byte
		if err := encodeTrailer(&out, &m); err != nil {
			t.Fatal(err)
		}
		if again, err := decodeTrailer(out[:]); err != nil || again != m {
			t.Fatalf("%+v, %v", again, err)
		}
	})
}
