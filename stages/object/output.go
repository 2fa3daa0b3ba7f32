package object

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Output is where a read puts an object. It is opened before anything is read, so
// that a path that cannot be written costs no transfer. A regular file gets its
// content all at once: it is written under another name in the same folder, made
// durable and renamed. Until Commit has returned, what was there stays as it was.
type Output struct {
	path    string   // as the user wrote it
	final   string   // where the rename goes
	tmp     *os.File // nil once committed or aborted, and for a stream
	name    string   // of tmp; empty while it has none
	stream  io.Writer
	closing io.Closer // of a stream that we opened
	step    func(string) error
}

// OpenOutput prepares "-" (stdout gets the content), a device or a FIFO (they are
// written through), or a file. It waits for somebody to read a FIFO until ctx ends.
func OpenOutput(ctx context.Context, path string, stdout io.Writer) (*Output, error) {
	if path == "-" {
		return &Output{path: path, stream: stdout}, nil
	}
	o, err := openOutput(ctx, path)
	if err != nil {
		return nil, fmt.Errorf("output %s: %w", path, bare(err))
	}
	return o, nil
}

// bare takes the call and the path out of an error of package os: the user knows
// the path, and a temporary name only by accident.
func bare(err error) error {
	var pe *fs.PathError
	var le *os.LinkError
	switch {
	case errors.As(err, &pe):
		return pe.Err
	case errors.As(err, &le):
		return le.Err
	}
	return err
}

func openOutput(ctx context.Context, path string) (*Output, error) {
	if path == "" {
		return nil, errors.New("the path is empty")
	}
	// A link stays a link: what it points to is replaced.
	final, err := filepath.EvalSymlinks(path)
	if errors.Is(err, fs.ErrNotExist) {
		if final, err = danglingTarget(path); err != nil {
			return nil, err
		}
	} else if err != nil {
		return nil, err
	}
	mode := fs.FileMode(0o666)
	switch fi, err := os.Stat(final); {
	case err == nil && fi.IsDir():
		return nil, errors.New("it is a directory; name a file in it")
	case err == nil && !fi.Mode().IsRegular():
		f, err := openStream(ctx, final)
		if err != nil {
			return nil, err
		}
		return &Output{path: path, stream: f, closing: f}, nil
	case err == nil:
		mode = fi.Mode().Perm()
		// Renaming over it would go past its own protection.
		f, err := os.OpenFile(final, os.O_WRONLY, 0)
		if err != nil {
			return nil, err
		}
		if err := f.Close(); err != nil {
			return nil, err
		}
	case !errors.Is(err, fs.ErrNotExist):
		return nil, err
	}
	o := &Output{path: path, final: final}
	if strings.HasSuffix(path, string(filepath.Separator)) {
		return nil, errors.New("it ends with a slash; name a file")
	}
	if o.tmp, o.name, err = createTemp(final, mode); err != nil {
		return nil, err
	}
	return o, nil
}

// openStream opens a device or a FIFO. The open itself never blocks, since an
// interrupt could not end that: a FIFO that nobody reads is asked again.
func openStream(ctx context.Context, path string) (*os.File, error) {
	for {
		f, err := os.OpenFile(path, os.O_WRONLY|syscall.O_NONBLOCK, 0)
		if !errors.Is(err, syscall.ENXIO) {
			return f, err
		}
		t := time.NewTimer(readerPoll)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return nil, fmt.Errorf("nobody reads it: %w", context.Cause(ctx))
		}
	}
}

// readerPoll is how often a FIFO is asked for its reader; the kernel tells nobody.
const readerPoll = 20 * time.Millisecond

// danglingTarget is where a path that does not exist would be created: through a
// link that points nowhere yet, in the folder that must exist.
func danglingTarget(path string) (string, error) {
	if to, err := os.Readlink(path); err == nil {
		if !filepath.IsAbs(to) {
			to = filepath.Join(filepath.Dir(path), to)
		}
		if _, err := os.Readlink(to); err == nil {
			return "", errors.New("it is a link to a link that points nowhere")
		}
		path = to
	}
	dir, err := filepath.EvalSymlinks(filepath.Dir(path))
	if err != nil {
		return "", err
	}
	return filepath.Join(dir, filepath.Base(path)), nil
}

// createTemp makes a new file in final's folder, without a name where the file
// system can: then it is gone with the process, however that ends. The mode of a
// new file goes through the umask, that of a replaced one does not.
func createTemp(final string, mode fs.FileMode) (f *os.File, name string, err error) {
	if f, err = os.OpenFile(filepath.Dir(final), os.O_WRONLY|unix.O_TMPFILE, mode); err == nil {
		if _, err := os.Stat(fdPath(f)); err != nil {
			_ = f.Close() // it could not get a name later
			f = nil
		}
	} else {
		f = nil
	}
	if f == nil {
		name, err = free(final, func(name string) (err error) {
			f, err = os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
			return err
		})
		if err != nil {
			return nil, "", err
		}
	}
	if mode != 0o666 {
		if err := f.Chmod(mode); err != nil {
			return nil, "", both(err, removeTemp(f, name))
		}
	}
	return f, name, nil
}

// free calls create with hidden names beside final until one is not taken.
func free(final string, create func(name string) error) (string, error) {
	dir, base := filepath.Split(final)
	if len(base) > 200 {
		base = base[:200] // the name must stay below the file system's limit
	}
	for n := 0; ; n++ {
		name := fmt.Sprintf("%s.%s.%d-%d%s", dir, base, os.Getpid(), n, tmpSuffix)
		if err := create(name); !errors.Is(err, fs.ErrExist) || n >= 1000 {
			return name, err
		}
	}
}

// fdPath is where a file is found that has no name.
func fdPath(f *os.File) string { return fmt.Sprintf("/proc/self/fd/%d", f.Fd()) }

// removeTemp closes and removes a temporary file.
func removeTemp(f *os.File, name string) error {
	err := f.Close()
	if name != "" {
		err = both(err, ignoreMissing(os.Remove(name)))
	}
	return err
}

// Path is what the output was opened with.
func (o *Output) Path() string { return o.path }

func (o *Output) at(step string) error {
	if o.step == nil {
		return nil
	}
	return o.step(step)
}

// Commit writes the content and makes it the file. On an error a file is as it was
// before; a stream may have got a part.
func (o *Output) Commit(content []byte) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("output %s: %w", o.path, both(bare(err), o.Abort()))
		}
	}()
	if o.stream != nil {
		_, err := o.stream.Write(content)
		if o.closing != nil {
			err = both(err, o.closing.Close())
			o.closing = nil
		}
		return err
	}
	if o.tmp == nil {
		return fs.ErrClosed
	}
	if err := o.at("write"); err != nil {
		return err
	}
	if _, err := o.tmp.Write(content); err != nil {
		return err
	}
	if err := both(o.at("sync"), o.tmp.Sync()); err != nil {
		return err
	}
	if err := o.at("rename"); err != nil {
		return err
	}
	if o.name == "" {
		var err error
		if o.name, err = free(o.final, func(name string) error {
			return unix.Linkat(unix.AT_FDCWD, fdPath(o.tmp), unix.AT_FDCWD, name, unix.AT_SYMLINK_FOLLOW)
		}); err != nil {
			o.name = "" // it is somebody else's, or not there
			return err
		}
	}
	if err := os.Rename(o.name, o.final); err != nil {
		return err
	}
	tmp := o.tmp
	o.tmp = nil // renamed: there is nothing to abort any more
	if err := tmp.Close(); err != nil {
		return err
	}
	d, err := os.Open(filepath.Dir(o.final))
	if err != nil {
		return err
	}
	return both(d.Sync(), d.Close())
}

// Abort removes what was prepared. After Commit, and a second time, it does
// nothing.
func (o *Output) Abort() error {
	if o.closing != nil {
		c := o.closing
		o.closing = nil
		return c.Close()
	}
	if o.tmp == nil {
		return nil
	}
	tmp := o.tmp
	o.tmp = nil
	return removeTemp(tmp, o.name)
}
