package table

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// tempSuffix is what the name of a snapshot that is being written ends with. It is the
// same each time, so one that a killed process left is written over by the next.
const tempSuffix = ".partial"

// files is what Save does to a file system.
type files interface {
	// create opens the file of that name empty, and keeps it from others that create it.
	create(path string) (tempFile, error)
	rename(from, to string) error
	remove(path string) error
	syncDir(dir string) error
}

type tempFile interface {
	io.Writer
	Sync() error
	Close() error
}

// Save writes what SaveTo writes to the file path: into path.partial first, which takes
// the name only when it is complete and durable. Whatever happens on the way, path has
// the old content or the new. Two saves to one path at a time are ErrSaving for one.
func (s *Store) Save(ctx context.Context, path string, spec SaveSpec) (Snapshot, error) {
	info, err := s.save(ctx, path, spec)
	if err != nil {
		return info, fail("table_save", fmt.Errorf("%s: %w", path, err))
	}
	return info, nil
}

func (s *Store) save(ctx context.Context, path string, spec SaveSpec) (info Snapshot, err error) {
	temp := path + tempSuffix
	f, err := s.files.create(temp)
	if err != nil {
		return info, err
	}
	done := false
	defer func() {
		// The name goes while the file is still locked, so it is not another's.
		if !done {
			_ = s.files.remove(temp) // what failed before is told
		}
		if e := f.Close(); e != nil && err == nil {
			err = &ioError{e}
		}
	}()
	w := bufio.NewWriterSize(f, 1<<20)
	if info, err = s.saveTo(ctx, w, spec); err != nil {
		return info, err
	}
	if err := w.Flush(); err != nil {
		return info, &ioError{err}
	}
	if err := f.Sync(); err != nil {
		return info, &ioError{fmt.Errorf("sync: %w", err)}
	}
	if err := s.files.rename(temp, path); err != nil {
		return info, &ioError{err}
	}
	done = true
	return info, durable(s.files, path)
}

// durable makes the name of a file outlive a power cut.
func durable(f files, path string) error {
	if err := f.syncDir(filepath.Dir(path)); err != nil {
		return &ioError{fmt.Errorf("written, but whether its name outlives a power cut is not known: %w", err)}
	}
	return nil
}

// diskFiles is files on disks.
type diskFiles struct{}

func (diskFiles) create(path string) (tempFile, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, &ioError{err}
	}
	if err := claim(f, path); err != nil {
		_ = f.Close() // nothing was written
		return nil, err
	}
	return f, nil
}

// claim locks the file and empties it. A lock that was free only because its holder has
// just given the file its final name is not the lock of a temporary file.
func claim(f *os.File, path string) error {
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		if err == unix.EWOULDBLOCK {
			return ErrSaving
		}
		return &ioError{fmt.Errorf("lock %s: %w", path, err)}
	}
	mine, err := f.Stat()
	if err != nil {
		return &ioError{err}
	}
	named, err := os.Stat(path)
	if err != nil || !os.SameFile(mine, named) {
		return ErrSaving
	}
	if err := f.Truncate(0); err != nil {
		return &ioError{err}
	}
	return nil
}

func (diskFiles) rename(from, to string) error { return os.Rename(from, to) }
func (diskFiles) remove(path string) error     { return os.Remove(path) }

func (diskFiles) syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close() // it was only read
	return d.Sync()
}
