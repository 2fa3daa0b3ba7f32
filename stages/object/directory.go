package object

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// incomingName is the folder of files being written. It is below the root, so
	// a rename out of it never leaves the file system.
	incomingName = "incoming"
	tmpSuffix    = ".tmp"

	createFlags = os.O_CREATE | os.O_EXCL | os.O_RDWR
	// Nothing in a directory is followed or waited for.
	readFlags = os.O_RDONLY | unix.O_NOFOLLOW | unix.O_NONBLOCK
)

// directory is one object directory of a shard. While it is in use it has a mount;
// one that fails is out of use for new stripes until a probe finds it well
// (dirstate.go).
type directory struct {
	index  int
	path   string
	want   marker
	sync   bool
	direct string // DirectOff, DirectAuto, DirectOn
	open   func(path string, create bool) (fileSystem, error)
	step   func(string) error // fails a step in tests; nil otherwise
	report func(DirectoryStatus)
	seq    atomic.Uint64

	// mu is held shared over every operation on the mount's files, and alone while
	// the mount is exchanged.
	mu sync.RWMutex
	m  *mount

	// known is the id that the marker had when it was first seen; a mount with another
	// one is not this directory.
	known  string
	health dirHealth
}

// mount is a directory's root with its lock and what was found out about it.
type mount struct {
	fileSystem
	lock    storedFile
	id      string
	direct  atomic.Bool
	buffers string // why direct I/O is not used although it was asked for

	mu      sync.Mutex
	folders map[string]bool // fan-out folders known to be durable
}

// mountIt opens the directory's path, claims it and cleans it up. known is the id
// that the directory had when the shard ran last, or empty.
func (d *directory) mountIt(known string) (_ *mount, err error) {
	fsys, err := d.open(d.path, known == "")
	if errors.Is(err, fs.ErrNotExist) && known != "" {
		return nil, awayError{fmt.Errorf("%w: %s is gone, and it was %v (id %s) when the shard ran last: is its file system mounted?: %w", ErrIO, d.path, d.want, known, err)}
	}
	if err != nil {
		return nil, fmt.Errorf("%w: open object directory %s: %w", ErrIO, d.path, err)
	}
	m := &mount{fileSystem: fsys, folders: map[string]bool{}}
	defer func() {
		if err != nil {
			_ = m.shut()
		}
	}()
	if err := d.claim(m, known); err != nil {
		return nil, err
	}
	if err := d.clean(m); err != nil {
		return nil, err
	}
	return m, d.tryDirect(m)
}

func (d *directory) tryDirect(m *mount) error {
	switch d.direct {
	case DirectOff, "":
		return nil
	}
	why, err := tryDirect(m, d.tmpName())
	if err != nil {
		return d.fail(m, "try direct I/O in", err, Align)
	}
	m.buffers = why
	if m.direct.Store(why == ""); why != "" && d.direct == DirectOn {
		return fmt.Errorf("%w: %s: objects.directIO is \"on\", but %s: say \"auto\", or use another file system", ErrWrongDir, d.path, why)
	}
	return nil
}

func (m *mount) shut() error {
	var err error
	if m.lock != nil {
		err = m.lock.close() // drops the lock
		m.lock = nil
	}
	return both(err, m.close())
}

func (d *directory) tmpName() string {
	return fmt.Sprintf("%s/%d%s", incomingName, d.seq.Add(1), tmpSuffix)
}

// use gives the mount for an operation. The caller calls done when it is through
// with it.
func (d *directory) use() (m *mount, done func(), err error) {
	d.mu.RLock()
	if d.m == nil {
		d.mu.RUnlock()
		if err := d.health.err(d); err != nil {
			return nil, nil, err
		}
		return nil, nil, fmt.Errorf("%w: %s: %w", ErrIO, d.path, ErrClosed)
	}
	return d.m, d.mu.RUnlock, nil
}

// clean removes what an earlier process left unfinished: nothing in the incoming
// folder was ever named by the catalog.
func (d *directory) clean(m *mount) error {
	if err := m.mkdir(incomingName); err != nil && !errors.Is(err, fs.ErrExist) {
		return d.fail(m, "create the incoming folder of", err, 0)
	}
	ents, err := m.list(incomingName)
	if err != nil {
		return d.fail(m, "list the incoming folder of", err, 0)
	}
	for _, e := range ents {
		if strings.HasSuffix(e.Name(), tmpSuffix) {
			if err := ignoreMissing(m.remove(incomingName + "/" + e.Name())); err != nil {
				return d.fail(m, "clean up", err, 0)
			}
		}
	}
	_ = m.remove(markerName + tmpSuffix)
	return nil
}

// incomingGrace is the age at which a file in the incoming folder is of no write that
// is under way: a stripe is written in seconds.
const incomingGrace = time.Hour

// sweepIncoming removes files of writes that failed and could not clean up after
// themselves. Those of an earlier process went when the directory was opened.
func (d *directory) sweepIncoming(now time.Time) error {
	ents, err := d.list(incomingName)
	if err != nil {
		return err
	}
	m, done, err := d.use()
	if err != nil {
		return err
	}
	defer done()
	for _, e := range ents {
		fi, err := e.Info()
		if err != nil || !strings.HasSuffix(e.Name(), tmpSuffix) || now.Sub(fi.ModTime()) < incomingGrace {
			continue // what is gone meanwhile needs nothing
		}
		if err := ignoreMissing(m.remove(incomingName + "/" + e.Name())); err != nil {
			return d.fail(m, "clean up", err, 0)
		}
	}
	return nil
}

// folder makes the fan-out folder and its entry durable. A folder that was found
// is synced too: whoever made it may not have got so far.
func (d *directory) folder(m *mount, name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.folders[name] {
		return nil
	}
	if err := d.at("mkdir"); err != nil {
		return err
	}
	if err := m.mkdir(name); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if err := d.syncFolder(m, "."); err != nil {
		return err
	}
	m.folders[name] = true
	return nil
}

func (d *directory) syncFolder(m *mount, name string) error {
	if !d.sync {
		return nil
	}
	if err := d.at("syncdir"); err != nil {
		return err
	}
	return m.syncFolder(name)
}

// at lets a test fail the named step, or end the process there.
func (d *directory) at(step string) error {
	if d.step == nil {
		return nil
	}
	return d.step(step)
}

// space is the free bytes for this process and the size of the file system.
func (d *directory) space() (free, total uint64, err error) {
	m, done, err := d.use()
	if err != nil {
		return 0, 0, err
	}
	defer done()
	return m.space()
}

// fail gives a failed file operation its kind, and takes a directory that is broken
// out of use. A full file system and an exhausted quota are the same thing to
// whoever has to make room.
func (d *directory) fail(m *mount, what string, err error, need uint64) error {
	if isFull(err) {
		free := "unknown"
		if n, _, e := m.space(); e == nil {
			free = fmt.Sprint(n)
		}
		return fmt.Errorf("%w: %s: %s bytes free, %d needed: make room or add a directory: %w", ErrNoSpace, d.path, free, need, err)
	}
	err = fmt.Errorf("%w: %s %s: %w", ErrIO, what, d.path, err)
	if isBroken(err) {
		d.health.takeOut(d, err, time.Now())
	}
	return err
}

func isFull(err error) bool { return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) }

// noRoom is fail for a directory that is found to be full before anything is tried.
func (d *directory) noRoom(free, need uint64) error {
	return fmt.Errorf("%w: %s: %d bytes free, %d needed: make room or add a directory: %w", ErrNoSpace, d.path, free, need, unix.ENOSPC)
}

func (d *directory) close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.m == nil {
		return nil
	}
	err := d.m.shut()
	d.m = nil
	return err
}

func absolute(path string, index int) (string, error) {
	if path == "" {
		return "", fmt.Errorf("%w: the path of directory %d is empty", ErrWrongDir, index)
	}
	return filepath.Abs(path)
}
