package object

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// markerName is the file that says whose directory this is. Its lock keeps a
// second process out.
const markerName = "railstore-directory.json"

const (
	markerFormat = 1
	markerMost   = 4096 // bytes of a marker file
)

// marker is the content of markerName.
type marker struct {
	Format     int    `json:"format"`
	Deployment string `json:"deployment"`
	Shard      int    `json:"shard"`
	Directory  int    `json:"directory"`
	ID         string `json:"id,omitempty"` // drawn when the directory was made
}

func (m marker) String() string {
	return fmt.Sprintf("directory %d of shard %d of deployment %q", m.Directory, m.Shard, m.Deployment)
}

func decodeMarker(raw []byte) (m marker, err error) {
	if err := json.Unmarshal(raw, &m); err != nil {
		return m, err
	}
	if m.Format != markerFormat {
		return m, fmt.Errorf("format %d, want %d", m.Format, markerFormat)
	}
	return m, nil
}

// claim reads the marker, or writes it into an empty directory, and locks it. known
// is the id that the directory had before, or empty.
func (d *directory) claim(m *mount, known string) error {
	raw, err := readSmall(m, markerName)
	if errors.Is(err, fs.ErrNotExist) {
		if err = d.createMarker(m, known); err != nil {
			return err
		}
		raw, err = readSmall(m, markerName)
	}
	if err != nil {
		return fmt.Errorf("%w: read %s: %w", ErrIO, filepath.Join(d.path, markerName), err)
	}
	have, err := d.judge(raw, known)
	if err != nil {
		return err
	}
	m.id = have.ID
	// Open for reading, so that the file system can still be made read-only; network
	// file systems lock what is open for writing alone.
	for _, flags := range []int{readFlags, os.O_RDWR} {
		if m.lock != nil {
			_ = m.lock.close()
		}
		f, oerr := m.open(markerName, flags)
		if oerr != nil {
			m.lock = nil
			return fmt.Errorf("%w: open %s: %w", ErrIO, filepath.Join(d.path, markerName), oerr)
		}
		m.lock = f
		if err = m.lock.lock(); !errors.Is(err, unix.EBADF) {
			break
		}
	}
	switch {
	case errors.Is(err, errLocked):
		return fmt.Errorf("%w: %s is in use by another process (its marker is locked): is this shard running already?", ErrWrongDir, d.path)
	case err != nil:
		return fmt.Errorf("%w: lock %s: %w", ErrIO, filepath.Join(d.path, markerName), err)
	}
	return nil
}

// judge compares a marker with what the directory must be.
func (d *directory) judge(raw []byte, known string) (marker, error) {
	have, err := decodeMarker(raw)
	if err != nil {
		return have, fmt.Errorf("%w: %s: the marker %s is not readable (%w): restore it or use an empty directory", ErrWrongDir, d.path, markerName, err)
	}
	who := have
	who.ID = ""
	if who != d.want {
		return have, fmt.Errorf("%w: %s is %s, the recipe wants it as %s: were directories swapped or mounted wrongly?", ErrWrongDir, d.path, have, d.want)
	}
	if known != "" && have.ID != known {
		return have, fmt.Errorf("%w: %s is %s with the id %q, but when the shard ran last that had the id %q: is another file system mounted there?", ErrWrongDir, d.path, have, have.ID, known)
	}
	return have, nil
}

// createMarker refuses a directory with content, which is somebody else's or a
// stripe directory whose marker is gone, and an empty one that was not empty when
// the shard ran last: then its file system is not mounted.
func (d *directory) createMarker(m *mount, known string) error {
	if known != "" {
		return awayError{fmt.Errorf("%w: %s has no %s, and it was %v (id %s) when the shard ran last: is its file system mounted?", ErrIO, d.path, markerName, d.want, known)}
	}
	ents, err := m.list(".")
	if err != nil {
		return fmt.Errorf("%w: list %s: %w", ErrIO, d.path, err)
	}
	for _, e := range ents {
		if n := e.Name(); n != "lost+found" && !strings.HasSuffix(n, tmpSuffix) {
			return fmt.Errorf("%w: %s is not empty (%q is there) and has no %s: use an empty directory", ErrWrongDir, d.path, n, markerName)
		}
	}
	who := d.want
	var id [8]byte
	_, _ = rand.Read(id[:]) // never fails
	who.ID = hex.EncodeToString(id[:])
	raw, err := json.Marshal(who)
	if err != nil {
		return err
	}
	tmp := markerName + tmpSuffix
	err = func() error {
		f, err := m.open(tmp, os.O_CREATE|os.O_TRUNC|os.O_WRONLY)
		if err != nil {
			return err
		}
		_, err = f.WriteAt(append(raw, '\n'), 0)
		if err == nil {
			err = f.sync()
		}
		if err = both(err, f.close()); err != nil {
			return err
		}
		if err := d.at("marker"); err != nil {
			return err
		}
		if err := m.rename(tmp, markerName); err != nil {
			return err
		}
		return d.syncFolder(m, ".")
	}()
	if err != nil {
		_ = m.remove(tmp)
		return d.fail(m, "write the marker of", err, uint64(len(raw)))
	}
	return nil
}

// readSmall reads a file of at most markerMost bytes.
func readSmall(fsys fileSystem, name string) ([]byte, error) {
	f, err := fsys.open(name, readFlags)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.close() }()
	b := make([]byte, markerMost)
	n, err := f.ReadAt(b, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	return b[:n], nil
}
