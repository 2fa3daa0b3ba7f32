package object

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// probeEvery is how long a directory that is out of use is left alone before it is
// looked at again.
const probeEvery = 10 * time.Second

// States of a directory.
const (
	DirInUse = "in_use"
	DirOut   = "out" // takes no stripes; those that it has are read as far as it can
)

// DirectoryStatus is the state of one directory of a shard.
type DirectoryStatus struct {
	Shard     int        `json:"shard"`
	Directory int        `json:"directory"`
	Path      string     `json:"path"`
	ID        string     `json:"id"` // of its marker; empty when it is not there
	State     string     `json:"state"`
	Reason    string     `json:"reason,omitempty"`
	Since     *time.Time `json:"since,omitempty"` // when it went out
	Probes    int        `json:"probes,omitempty"`
	Free      uint64     `json:"free_bytes"`
	Total     uint64     `json:"total_bytes"`
	Direct    bool       `json:"direct_io"`
	Buffered  string     `json:"buffered,omitempty"` // why direct I/O, which was asked for, is not used
}

// dirHealth is whether a directory is in use.
type dirHealth struct {
	mu     sync.Mutex
	cause  error // nil: in use
	since  time.Time
	next   time.Time // probe
	probes int
}

// isBroken tells failures of a disk or its file system from those of one request.
func isBroken(err error) bool {
	for _, e := range []error{unix.EIO, unix.EROFS, unix.ENXIO, unix.ENODEV, unix.EUCLEAN, unix.EBADMSG, unix.ESTALE,
		unix.ENOTCONN, unix.ESHUTDOWN, unix.ENOMEDIUM, unix.EREMOTEIO, unix.ETIMEDOUT, errAway} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// errAway is a directory that is not where it was.
var errAway = errors.New("it is not there any more")

// awayError is errAway in the words of another error.
type awayError struct{ error }

func (e awayError) Is(target error) bool { return target == errAway }
func (e awayError) Unwrap() error        { return e.error }

// err is why the directory takes no stripes, or nil.
func (h *dirHealth) err(d *directory) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.cause == nil {
		return nil
	}
	return fmt.Errorf("directory %d of shard %d is out of use since %s and is looked at every %v: %w",
		d.index, d.want.Shard, h.since.UTC().Format(time.RFC3339), probeEvery, h.cause)
}

func (h *dirHealth) takeOut(d *directory, cause error, now time.Time) {
	h.mu.Lock()
	first := h.cause == nil
	if first {
		h.cause, h.since, h.next, h.probes = cause, now, now.Add(probeEvery), 0
	}
	h.mu.Unlock()
	if first && d.report != nil {
		d.report(d.brief())
	}
}

func (h *dirHealth) putBack(d *directory) {
	h.mu.Lock()
	was := h.cause != nil
	h.cause = nil
	h.mu.Unlock()
	if was && d.report != nil {
		d.report(d.brief())
	}
}

// due reports whether the directory is out and it is time to look, and if so not
// again before probeEvery is over.
func (h *dirHealth) due(now time.Time) (out, due bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.cause == nil {
		return false, false
	}
	if now.Before(h.next) {
		return true, false
	}
	h.next = now.Add(probeEvery)
	h.probes++
	return true, true
}

// brief is the status without what only the mount knows, so that it can be taken
// while the mount is held.
func (d *directory) brief() DirectoryStatus {
	st := DirectoryStatus{Shard: d.want.Shard, Directory: d.index, Path: d.path, State: DirInUse}
	d.health.mu.Lock()
	defer d.health.mu.Unlock()
	if d.health.cause != nil {
		since := d.health.since.UTC()
		st.State, st.Reason, st.Since, st.Probes = DirOut, d.health.cause.Error(), &since, d.health.probes
	}
	return st
}

func (d *directory) status() DirectoryStatus {
	st := d.brief()
	m, done, err := d.use()
	if err != nil {
		return st
	}
	defer done()
	st.ID, st.Direct, st.Buffered = m.id, m.direct.Load(), m.buffers
	st.Free, st.Total, _ = m.space() // 0 says that it is not known
	return st
}

// look checks that the path still leads to what is in use. What is open goes on
// working when it does not, but the next start would not find it.
func (d *directory) look() {
	m, done, err := d.use()
	if err != nil {
		return
	}
	defer done()
	_ = d.away(m)
}

// away is nil while the directory is where it was; else it takes it out of use.
func (d *directory) away(m *mount) error {
	err := m.in(d.path)
	if err == nil {
		_, err = readSmall(m, markerName)
	}
	if err == nil {
		return nil
	}
	err = fmt.Errorf("%w: %s: %w: %w", ErrIO, d.path, errAway, err)
	d.health.takeOut(d, err, time.Now())
	return err
}

// probe looks whether a directory that is out of use works, and puts it back.
// Probes of a directory do not run side by side.
func (d *directory) probe() error {
	d.mu.RLock()
	m := d.m
	d.mu.RUnlock()
	if m != nil && m.in(d.path) == nil {
		if err := d.test(m); err != nil {
			return err
		}
		d.health.putBack(d)
		return nil
	}
	fresh, err := d.mountIt(d.known)
	if err == nil {
		if err = d.test(fresh); err != nil {
			_ = fresh.shut()
		}
	}
	if err != nil {
		return err
	}
	d.mu.Lock()
	d.m = fresh
	d.mu.Unlock()
	d.health.putBack(d)
	if m != nil {
		_ = m.shut() // nobody uses it any more
	}
	return nil
}

// test writes a file as a stripe would be written, and reads it.
func (d *directory) test(m *mount) (err error) {
	if err := d.at("probe"); err != nil {
		return err
	}
	if err := m.mkdir(incomingName); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if raw, err := readSmall(m, markerName); err != nil {
		return err
	} else if _, err := d.judge(raw, d.known); err != nil {
		return err
	}
	flags := createFlags
	if m.direct.Load() {
		flags |= oDirect
	}
	name := d.tmpName()
	f, err := m.open(name, flags)
	if err != nil {
		return err
	}
	defer func() { err = both(err, both(f.close(), ignoreMissing(m.remove(name)))) }()
	want := []byte(d.want.String())
	if err := writeTail(f, 0, want); err != nil {
		return err
	}
	if err := f.sync(); err != nil {
		return err
	}
	err = readTail(f, 0, int64(len(want)), func(have []byte) error {
		if !bytes.Equal(have, want) {
			return fmt.Errorf("%w: what was written a moment ago", ErrChecksum)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return d.syncFolder(m, incomingName)
}
