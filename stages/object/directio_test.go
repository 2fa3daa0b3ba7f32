package object

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// Lengths around blocks, and memory that is aligned or is not, through direct I/O
// and the page cache, each read through both: the files are the same.
func TestDirectIO(t *testing.T) {
	dir := t.TempDir()
	open := func(mode string) *Store {
		t.Helper()
		s, err := OpenStore(StoreConfig{Deployment: "test", Dirs: []string{dir}, DirectIO: mode})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close() })
		return s
	}
	s := open(DirectAuto)
	if st := s.Directories()[0]; !st.Direct {
		t.Skipf("prerequisite: a file system below %s that takes O_DIRECT: %s", dir, st.Buffered)
	}
	_ = s.Close()
	mem := alignedBytes(80 * Align)
	for _, n := range []int{0, 1, 100, Align - trailerBytes, Align - 1, Align, Align + 1, 3*Align - trailerBytes, 3 * Align, bounceBytes + 5, 70 * Align} {
		for _, shift := range []int{0, 1, 512} {
			var names []string
			data := mem[shift : shift+n]
			copy(data, randomBytes(uint64(n), n))
			for _, mode := range []string{DirectOff, DirectOn} {
				s := open(mode)
				file, m := testStripe(fmt.Sprint(mode, n, shift), 1, 0, data)
				if err := s.Write(0, file, &m, data); err != nil {
					t.Fatalf("%s, %d bytes at %d: %v", mode, n, shift, err)
				}
				names = append(names, file)
				_ = s.Close()
			}
			var sizes []int64
			for _, f := range names {
				fi, err := os.Stat(filepath.Join(dir, f))
				if err != nil {
					t.Fatal(err)
				}
				sizes = append(sizes, fi.Size())
			}
			if sizes[0] != sizes[1] || sizes[0] != int64(n+trailerBytes) {
				t.Fatalf("%d bytes: files of %v", n, sizes)
			}
			for _, mode := range []string{DirectOff, DirectOn} {
				s := open(mode)
				for _, f := range names {
					m, err := s.Stat(0, f)
					if err != nil {
						t.Fatal(err)
					}
					for _, at := range []int{0, 3} {
						dst := alignedBytes(71 * Align)[at : at+n]
						if _, err := s.Read(0, f, m.Identity, dst); err != nil || !bytes.Equal(dst, data) {
							t.Fatalf("%s, %d bytes at %d: %v", mode, n, at, err)
						}
					}
					if _, _, err := s.Verify(0, f); err != nil {
						t.Fatal(err)
					}
				}
				_ = s.Close()
			}
		}
	}
}

// What a file system says to O_DIRECT decides: auto goes through the page cache and
// says why, on does not start.
func TestDirectIORefused(t *testing.T) {
	for _, at := range []string{"open", "write"} {
		t.Run(at, func(t *testing.T) {
			disk := newPowerFS(1 << 20)
			cfg := StoreConfig{Deployment: "test", Dirs: []string{"/0"}, open: func(string, bool) (fileSystem, error) { return refusing{disk, at}, nil }}
			cfg.DirectIO = DirectOn
			if _, err := OpenStore(cfg); !errors.Is(err, ErrWrongDir) || !strings.Contains(err.Error(), `objects.directIO is "on"`) {
				t.Fatal(err)
			}
			cfg.DirectIO = DirectAuto
			s, err := OpenStore(cfg)
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			if st := s.Directories()[0]; st.Direct || st.Buffered == "" {
				t.Fatalf("%+v", st)
			}
			data := randomBytes(1, 5000)
			file, m := testStripe("x", 1, 0, data)
			if err := s.Write(0, file, &m, data); err != nil {
				t.Fatal(err)
			}
			dst := make([]byte, len(data))
			if _, err := s.Read(0, file, m.Identity, dst); err != nil || !bytes.Equal(dst, data) {
				t.Fatal(err)
			}
			for n, f := range disk.names {
				if !f.folder && n != markerName && n != file {
					t.Errorf("%s was left behind", n)
				}
			}
		})
	}
	if _, err := OpenStore(StoreConfig{Deployment: "test", Dirs: []string{t.TempDir()}, DirectIO: "perhaps"}); !errors.Is(err, ErrBadRequest) {
		t.Error(err)
	}
}

// refusing is a file system that does not take direct I/O.
type refusing struct {
	*powerFS
	at string
}

type refusingFile struct {
	storedFile
	write bool
}

func (r refusing) open(name string, flags int) (storedFile, error) {
	if flags&oDirect != 0 && r.at == "open" {
		f, _ := r.powerFS.open(name, flags&^oDirect) // as some do, it makes the file first
		if f != nil {
			_ = f.close()
		}
		return nil, unix.EINVAL
	}
	f, err := r.powerFS.open(name, flags)
	return refusingFile{f, flags&oDirect != 0}, err
}

func (f refusingFile) WriteAt(b []byte, off int64) (int, error) {
	if f.write {
		return 0, unix.EINVAL
	}
	return f.storedFile.WriteAt(b, off)
}

// Registered memory is handed out so that stripes of any length begin aligned.
func TestExtentsAreAlignedForDirectIO(t *testing.T) {
	r := rand.New(rand.NewPCG(testSeed(t), 3))
	s := NewSlab(alignedBytes(64 * Align))
	for range 200 {
		x, err := s.Acquire(t.Context(), 1+r.IntN(5*Align))
		if err != nil {
			t.Fatal(err)
		}
		if !aligned(x.Bytes()) {
			t.Fatalf("an extent of %d bytes is not aligned", x.Len())
		}
		defer x.Release()
		if s.Stats().Largest < 6*Align {
			break
		}
	}
}

// A disk that is full is found before the data are asked for, and read-only file
// systems and remounts are found, on the kernel's own file systems.
func TestDirectoriesOnMounts(t *testing.T) {
	base := t.TempDir()
	dir := filepath.Join(base, "disk")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	mount := func(flags uintptr, data string) {
		t.Helper()
		if err := unix.Mount("none", dir, "tmpfs", flags, data); err != nil {
			t.Skipf("prerequisite: mounting a tmpfs needs root: %v", err)
		}
	}
	mount(0, "size=1m")
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	cfg := StoreConfig{Deployment: "test", Dirs: []string{dir, filepath.Join(base, "other")}, Known: filepath.Join(base, "known.json")}
	s, err := OpenStore(cfg)
	if err != nil {
		t.Fatal(err)
	}
	data := randomBytes(1, 100<<10)
	file, m := testStripe("x", 1, 0, data)
	if err := s.Write(0, file, &m, data); err != nil {
		t.Fatal(err)
	}
	if err := s.Ready(0, file, 0, 2<<20); !errors.Is(err, ErrNoSpace) || !errors.Is(err, unix.ENOSPC) || !strings.Contains(err.Error(), "2097408 needed") {
		t.Fatal(err)
	}
	if err := unix.Mount("none", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, "size=1m"); err != nil {
		t.Fatal(err)
	}
	if err := s.Write(0, file, &m, data); !errors.Is(err, ErrIO) || !errors.Is(err, unix.EROFS) {
		t.Fatal(err)
	}
	if st := s.Directories()[0]; st.State != DirOut {
		t.Fatalf("%+v", st)
	}
	// It is read all the same.
	dst := make([]byte, len(data))
	if _, err := s.Read(0, file, m.Identity, dst); err != nil || !bytes.Equal(dst, data) {
		t.Fatal(err)
	}
	now := *s.Directories()[0].Since
	s.Check(now.Add(2 * probeEvery))
	if st := s.Directories()[0]; st.State != DirOut || st.Probes != 1 {
		t.Fatalf("%+v", st)
	}
	if err := unix.Mount("none", dir, "", unix.MS_REMOUNT, "size=1m"); err != nil {
		t.Fatal(err)
	}
	s.Check(now.Add(4 * probeEvery))
	if st := s.Directories()[0]; st.State != DirInUse {
		t.Fatalf("%+v", st)
	}
	_ = s.Close()
	// A start without the mount: the folder beneath stays empty, the other serves.
	if err := unix.Unmount(dir, 0); err != nil {
		t.Fatal(err)
	}
	if s, err = OpenStore(cfg); err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	st := s.Directories()
	if st[0].State != DirOut || !strings.Contains(st[0].Reason, "is its file system mounted?") || st[1].State != DirInUse {
		t.Fatalf("%+v", st)
	}
	if l := files(t, dir); len(l) != 0 {
		t.Fatalf("%v was written beneath the mount", l)
	}
	if _, err := s.Read(0, file, m.Identity, dst); !errors.Is(err, ErrIO) || errors.Is(err, ErrStripeNotFound) {
		t.Fatal(err)
	}
	if err := s.Write(1, file, &m, data); err != nil {
		t.Fatal(err)
	}
	// Another file system there is refused while the first is remembered.
	mount(0, "size=1m")
	s.Check(now.Add(100 * probeEvery))
	if st := s.Directories()[0]; st.State != DirOut {
		t.Fatalf("%+v", st)
	}
	// With the memory taken away it is a new directory.
	_ = s.Close()
	if err := os.Remove(cfg.Known); err != nil {
		t.Fatal(err)
	}
	if s, err = OpenStore(cfg); err != nil {
		t.Fatal(err)
	}
	if st := s.Directories()[0]; st.State != DirInUse {
		t.Fatalf("%+v", st)
	}
}

func TestKnownDirectories(t *testing.T) {
	base := t.TempDir()
	cfg := StoreConfig{Deployment: "test", Dirs: []string{filepath.Join(base, "a"), filepath.Join(base, "b")}, Known: filepath.Join(base, "sub", "known.json")}
	s, err := OpenStore(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ids := []string{s.Directories()[0].ID, s.Directories()[1].ID}
	if ids[0] == ids[1] || ids[0] == "" {
		t.Fatal(ids)
	}
	_ = s.Close()
	// All gone: the shard does not start, and says of each what it was.
	for _, d := range cfg.Dirs {
		if err := os.Rename(d, d+".away"); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := OpenStore(cfg); !errors.Is(err, ErrIO) || !strings.Contains(err.Error(), ids[0]) || !strings.Contains(err.Error(), ids[1]) {
		t.Fatal(err)
	}
	// An older copy with another id is refused.
	if err := os.Rename(cfg.Dirs[1]+".away", cfg.Dirs[1]); err != nil {
		t.Fatal(err)
	}
	forged := fmt.Sprintf(`{"format":1,"deployment":"test","shard":0,"directory":0,"id":%q}`, ids[1])
	if err := errors.Join(os.Mkdir(cfg.Dirs[0], 0o755), os.WriteFile(filepath.Join(cfg.Dirs[0], markerName), []byte(forged), 0o644)); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenStore(cfg); !errors.Is(err, ErrWrongDir) || !strings.Contains(err.Error(), "when the shard ran last that had the id") {
		t.Fatal(err)
	}
	for _, bad := range []string{"", "{", `{"format":2}`, `{"format":1,"deployment":"other","shard":0}`, `{"format":1,"deployment":"test","shard":3}`} {
		if err := os.WriteFile(cfg.Known, []byte(bad), 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := OpenStore(cfg); !errors.Is(err, ErrWrongDir) || !strings.Contains(err.Error(), cfg.Known) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func FuzzMarkerAndKnown(f *testing.F) {
	f.Add([]byte(`{"format":1,"deployment":"d","shard":0,"directory":0,"id":"00"}`))
	f.Add([]byte(`{"format":1,"deployment":"d","shard":0,"directories":[{"path":"/a","id":"00"}]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		d := &directory{want: marker{Format: markerFormat, Deployment: "d"}}
		if m, err := d.judge(b, ""); err == nil && (m.Deployment != "d" || m.Shard != 0 || m.Directory != 0) {
			t.Fatalf("%+v is taken for %v", m, d.want)
		} else if err != nil && !errors.Is(err, ErrWrongDir) {
			t.Fatal(err)
		}
		if k, err := decodeKnown(b, "d", 0); err == nil {
			_ = k.id(len(k.Directories))
		}
	})
}

func FuzzErrnoAtEnd(f *testing.F) {
	f.Add("directory full (ENOSPC(28))")
	f.Add("(EIO(5))")
	f.Add("x (ENONSENSE(5))")
	f.Fuzz(func(t *testing.T, s string) {
		text, errno := cutErrno(s)
		if errno == 0 {
			if text != s {
				t.Fatalf("%q was cut to %q", s, text)
			}
			return
		}
		if again, e := cutErrno(withErrno(text, errno)); again != text || e != errno {
			t.Fatalf("%q: %q %v, then %q %v", s, text, errno, again, e)
		}
	})
}

func TestErrnoTravels(t *testing.T) {
	long := strings.Repeat("x", 3*maxReasonBytes)
	for _, text := range []string{"short", long} {
		err := fmt.Errorf("%w: %s: %w", ErrNoSpace, text, unix.ENOSPC)
		var buf [maxReasonBytes]byte
		got := errorOf(statusOf(err), buf[:reason(buf[:], err)])
		if !errors.Is(got, ErrNoSpace) || !errors.Is(got, unix.ENOSPC) || strings.Contains(got.Error(), "ENOSPC") {
			t.Errorf("%v", got)
		}
	}
	got := errorOf(statusIO, []byte("an old shard's words"))
	if errors.Is(got, unix.EIO) || got.Error() != "an old shard's words" {
		t.Error(got)
	}
}

// BenchmarkStoreDirect writes and reads stripes of 4 MiB from and to aligned memory, with
// fsync, through the page cache and around it by turns.
func BenchmarkStoreDirect(b *testing.B) {
	const n = 4 << 20
	mem := alignedBytes(n)
	copy(mem, randomBytes(1, n))
	for _, op := range []string{"write", "read"} {
		for _, mode := range []string{DirectOff, DirectOn} {
			b.Run(op+"/directIO="+mode, func(b *testing.B) {
				s, err := OpenStore(StoreConfig{Deployment: "bench", Dirs: []string{b.TempDir()}, DirectIO: mode})
				if errors.Is(err, ErrWrongDir) {
					b.Skipf("prerequisite: a file system that takes O_DIRECT: %v", err)
				}
				if err != nil {
					b.Fatal(err)
				}
				defer func() { _ = s.Close() }()
				file, m := testStripe("x", 1, 0, mem)
				if err := s.Write(0, file, &m, mem); err != nil {
					b.Fatal(err)
				}
				b.SetBytes(n)
				for i := 0; b.Loop(); i++ {
					if op == "read" {
						_, err = s.Read(0, file, m.Identity, mem)
					} else {
						err = s.Write(0, file, &m, mem)
					}
					if err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
