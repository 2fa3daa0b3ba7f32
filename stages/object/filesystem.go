package object

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// fileSystem is what a directory needs below its root. Names are relative to it,
// with slashes. Tests put one in its place that fails and forgets what was not
// synced.
type fileSystem interface {
	open(name string, flags int) (storedFile, error) // flags of os.OpenFile
	mkdir(name string) error
	rename(from, to string) error
	remove(name string) error
	list(name string) ([]fs.DirEntry, error)
	syncFolder(name string) error
	space() (free, total uint64, err error)
	// in reports an error if path no longer leads to this root.
	in(path string) error
	close() error
}

// storedFile is an open file of a fileSystem.
type storedFile interface {
	io.ReaderAt
	io.WriterAt
	// allocate reserves space for n bytes, as far as the file system can.
	allocate(n int64) error
	truncate(n int64) error
	sync() error
	stat() (size int64, mode fs.FileMode, err error)
	// directAlign is what direct I/O asks of offsets and memory; 0: unknown.
	directAlign() int
	// lock keeps other processes out; errLocked when one has it.
	lock() error
	close() error
}

var errLocked = errors.New("locked by another process")

// rootFS is a folder of this machine that nothing escapes.
type rootFS struct{ root *os.Root }

// openRoot opens a folder; with create it is made if it is missing.
func openRoot(path string, create bool) (fileSystem, error) {
	if create {
		if err := makeFolder(path); err != nil {
			return nil, err
		}
	}
	r, err := os.OpenRoot(path)
	if err != nil {
		return nil, err
	}
	return &rootFS{r}, nil
}

// makeFolder makes a folder with its parents and their entries durable.
func makeFolder(path string) error {
	var made []string
	for p := path; ; p = filepath.Dir(p) {
		if _, err := os.Stat(p); !errors.Is(err, fs.ErrNotExist) {
			break
		}
		made = append(made, p)
	}
	if err := os.MkdirAll(path, 0o755); err != nil {
		return err
	}
	for _, p := range made {
		d, err := os.Open(filepath.Dir(p))
		if err != nil {
			return err
		}
		if err := both(d.Sync(), d.Close()); err != nil {
			return err
		}
	}
	return nil
}

func (r *rootFS) open(name string, flags int) (storedFile, error) {
	f, err := r.root.OpenFile(name, flags, 0o644)
	if err != nil {
		return nil, err
	}
	return rootFile{f}, nil
}

func (r *rootFS) mkdir(name string) error      { return r.root.Mkdir(name, 0o755) }
func (r *rootFS) rename(from, to string) error { return r.root.Rename(from, to) }
func (r *rootFS) remove(name string) error     { return r.root.Remove(name) }
func (r *rootFS) close() error                 { return r.root.Close() }

func (r *rootFS) list(name string) ([]fs.DirEntry, error) { return fs.ReadDir(r.root.FS(), name) }

func (r *rootFS) syncFolder(name string) error {
	f, err := r.root.Open(name)
	if err != nil {
		return err
	}
	return both(f.Sync(), f.Close())
}

// space is the free bytes for this process and the size of the file system.
func (r *rootFS) space() (free, total uint64, err error) {
	f, err := r.root.Open(".")
	if err != nil {
		return 0, 0, err
	}
	defer func() { _ = f.Close() }()
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &st); err != nil {
		return 0, 0, err
	}
	return st.Bavail * uint64(st.Bsize), st.Blocks * uint64(st.Bsize), nil
}

func (r *rootFS) in(path string) error {
	have, err := r.root.Stat(".")
	if err != nil {
		return err
	}
	now, err := os.Stat(path)
	if err != nil {
		return err
	}
	if !os.SameFile(have, now) {
		return errors.New("another file system or folder is there now: was something mounted over it or taken away?")
	}
	return nil
}

type rootFile struct{ f *os.File }

func (r rootFile) ReadAt(b []byte, off int64) (int, error)  { return r.f.ReadAt(b, off) }
func (r rootFile) WriteAt(b []byte, off int64) (int, error) { return r.f.WriteAt(b, off) }
func (r rootFile) truncate(n int64) error                   { return r.f.Truncate(n) }
func (r rootFile) sync() error                              { return r.f.Sync() }
func (r rootFile) close() error                             { return r.f.Close() }

func (r rootFile) allocate(n int64) error {
	err := unix.Fallocate(int(r.f.Fd()), 0, 0, n)
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS) || n == 0 {
		return nil
	}
	return err
}

func (r rootFile) stat() (int64, fs.FileMode, error) {
	fi, err := r.f.Stat()
	if err != nil {
		return 0, 0, err
	}
	return fi.Size(), fi.Mode(), nil
}

func (r rootFile) directAlign() int {
	var st unix.Statx_t
	err := unix.Statx(int(r.f.Fd()), "", unix.AT_EMPTY_PATH, unix.STATX_DIOALIGN, &st)
	if err != nil || st.Mask&unix.STATX_DIOALIGN == 0 {
		return 0
	}
	return int(max(st.Dio_mem_align, st.Dio_offset_align))
}

func (r rootFile) lock() error {
	err := unix.Flock(int(r.f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return errLocked
	}
	return err
}
