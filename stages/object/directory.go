package object

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

const (
	// markerName is the file that says whose directory this is. Its lock keeps a
	// second process out.
	markerName = "railstore-directory.json"
	// incomingName is the folder of files being written. It is below the root, so
	// a rename out of it never leaves the file system.
	incomingName = "incoming"
	tmpSuffix    = ".tmp"
)

// marker is the content of markerName.
type marker struct {
	Format     int    `json:"format"`
	Deployment string `json:"deployment"`
	Shard      int    `json:"shard"`
	Directory  int    `json:"directory"`
}

func (m marker) String() string {
	return fmt.Sprintf("directory %d of shard %d of deployment %q", m.Directory, m.Shard, m.Deployment)
}

// directory is one object directory of a shard: a root that nothing escapes, the
// lock on its marker, and the fan-out folders known to be durable.
type directory struct {
	index int
	path  string
	sync  bool
	root  *os.Root
	lock  *os.File
	seq   atomic.Uint64
	step  func(string) error // fails a step in tests; nil otherwise

	mu      sync.Mutex
	folders map[string]bool
}

func openDirectory(path string, want marker, syncData bool, step func(string) error) (_ *directory, err error) {
	if path == "" {
		return nil, fmt.Errorf("%w: the path of directory %d is empty", ErrWrongDir, want.Directory)
	}
	if path, err = filepath.Abs(path); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(path, 0o755); err != nil {
		return nil, fmt.Errorf("%w: create object directory %s: %w", ErrIO, path, err)
	}
	root, err := os.OpenRoot(path)
	if err != nil {
		return nil, fmt.Errorf("%w: open object directory %s: %w", ErrIO, path, err)
	}
	d := &directory{index: want.Directory, path: path, sync: syncData, root: root, step: step, folders: map[string]bool{}}
	defer func() {
		if err != nil {
			_ = d.close()
		}
	}()
	if err := d.claim(want); err != nil {
		return nil, err
	}
	if err := d.clean(); err != nil {
		return nil, err
	}
	return d, nil
}

// claim reads the marker, or writes it into an empty directory, and locks it.
func (d *directory) claim(want marker) error {
	raw, err := d.root.ReadFile(markerName)
	if errors.Is(err, fs.ErrNotExist) {
		if err = d.createMarker(want); err != nil {
			return err
		}
		raw, err = d.root.ReadFile(markerName)
	}
	if err != nil {
		return fmt.Errorf("%w: read %s: %w", ErrIO, filepath.Join(d.path, markerName), err)
	}
	var have marker
	if err := json.Unmarshal(raw, &have); err != nil || have.Format != want.Format {
		return fmt.Errorf("%w: %s: the marker %s is not readable (format %d, want %d): restore it or use an empty directory",
			ErrWrongDir, d.path, markerName, have.Format, want.Format)
	}
	if have != want {
		return fmt.Errorf("%w: %s is %s, the recipe wants it as %s: were directories swapped or mounted wrongly?", ErrWrongDir, d.path, have, want)
	}
	f, err := d.root.OpenFile(markerName, os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("%w: open %s: %w", ErrIO, filepath.Join(d.path, markerName), err)
	}
	d.lock = f
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		if errors.Is(err, unix.EWOULDBLOCK) {
			return fmt.Errorf("%w: %s is in use by another process (its marker is locked): is this shard running already?", ErrWrongDir, d.path)
		}
		return fmt.Errorf("%w: lock %s: %w", ErrIO, filepath.Join(d.path, markerName), err)
	}
	return nil
}

// createMarker refuses a directory with content: it is somebody else's, or a
// stripe directory whose marker is gone.
func (d *directory) createMarker(want marker) error {
	ents, err := fs.ReadDir(d.root.FS(), ".")
	if err != nil {
		return fmt.Errorf("%w: list %s: %w", ErrIO, d.path, err)
	}
	for _, e := range ents {
		if n := e.Name(); n != "lost+found" && !strings.HasSuffix(n, tmpSuffix) {
			return fmt.Errorf("%w: %s is not empty (%q is there) and has no %s: use an empty directory", ErrWrongDir, d.path, n, markerName)
		}
	}
	raw, err := json.Marshal(want)
	if err != nil {
		return err
	}
	tmp := markerName + tmpSuffix
	err = func() error {
		f, err := d.root.OpenFile(tmp, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o644)
		if err != nil {
			return err
		}
		_, err = f.Write(append(raw, '\n'))
		if err == nil {
			err = f.Sync()
		}
		if err = both(err, f.Close()); err != nil {
			return err
		}
		if err := d.root.Rename(tmp, markerName); err != nil {
			return err
		}
		return d.syncFolder(".")
	}()
	if err != nil {
		_ = d.root.Remove(tmp)
		return d.fail("write the marker of", err, uint64(len(raw)))
	}
	return nil
}

// clean removes what an earlier process left unfinished: nothing in the incoming
// folder was ever named by the catalog.
func (d *directory) clean() error {
	if err := d.root.Mkdir(incomingName, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return d.fail("create the incoming folder of", err, 0)
	}
	ents, err := fs.ReadDir(d.root.FS(), incomingName)
	if err != nil {
		return d.fail("list the incoming folder of", err, 0)
	}
	for _, e := range ents {
		if strings.HasSuffix(e.Name(), tmpSuffix) {
			if err := d.root.Remove(incomingName + "/" + e.Name()); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return d.fail("clean up", err, 0)
			}
		}
	}
	_ = d.root.Remove(markerName + tmpSuffix)
	return nil
}

// folder makes the fan-out folder and its entry durable. A folder that was found
// is synced too: whoever made it may not have got so far.
func (d *directory) folder(name string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.folders[name] {
		return nil
	}
	if err := d.at("mkdir"); err != nil {
		return err
	}
	if err := d.root.Mkdir(name, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if err := d.syncFolder("."); err != nil {
		return err
	}
	d.folders[name] = true
	return nil
}

func (d *directory) syncFolder(name string) error {
	if !d.sync {
		return nil
	}
	if err := d.at("syncdir"); err != nil {
		return err
	}
	f, err := d.root.Open(name)
	if err != nil {
		return err
	}
	return both(f.Sync(), f.Close())
}

// at lets a test fail the named step.
func (d *directory) at(step string) error {
	if d.step == nil {
		return nil
	}
	return d.step(step)
}

// space is the free bytes for this process and the size of the file system.
func (d *directory) space() (free, total uint64, err error) {
	f, err := d.root.Open(".")
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

// fail gives a failed file operation its kind. A full file system and an
// exhausted quota are the same thing to whoever has to make room.
func (d *directory) fail(what string, err error, need uint64) error {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		free := "unknown"
		if n, _, e := d.space(); e == nil {
			free = fmt.Sprint(n)
		}
		return fmt.Errorf("%w: %s: %s bytes free, %d needed: make room or add a directory: %w", ErrNoSpace, d.path, free, need, err)
	}
	return fmt.Errorf("%w: %s %s: %w", ErrIO, what, d.path, err)
}

func (d *directory) close() error {
	var err error
	if d.lock != nil {
		err = d.lock.Close() // drops the lock
		d.lock = nil
	}
	return both(err, d.root.Close())
}
