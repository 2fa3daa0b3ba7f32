package launch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/railstore/railstore/pipeline"
)

// Open-file-description locks: they belong to the description and not to the
// process, so a child that inherits the descriptor holds the lock too, and they
// can be asked about without being taken, so a look never disturbs a lock taker.

// tryLock takes the whole-file write lock on f and says false when another
// description holds it.
func tryLock(f *os.File) (bool, error) {
	for {
		err := unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_WRLCK, Whence: io.SeekStart})
		switch {
		case err == nil:
			return true, nil
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EACCES):
			return false, nil
		}
		return false, fmt.Errorf("lock: %w", err)
	}
}

// isLocked asks whether some description holds the lock of the file. A missing
// file is not locked.
func isLocked(path string) (bool, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer f.Close()
	lk := unix.Flock_t{Type: unix.F_WRLCK, Whence: io.SeekStart}
	for {
		err := unix.FcntlFlock(f.Fd(), unix.F_OFD_GETLK, &lk)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return false, fmt.Errorf("lock: %w", err)
		}
		return lk.Type != unix.F_UNLCK, nil
	}
}

// lockPoll is how often a wait for a lock looks again.
const lockPoll = 20 * time.Millisecond

// until calls cond every lockPoll until it says true, fails, or ctx ends.
func until(ctx context.Context, cond func() (bool, error)) error {
	t := time.NewTicker(lockPoll)
	defer t.Stop()
	for {
		ok, err := cond()
		if ok || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-t.C:
		}
	}
}

// Lock is the right to change a deployment. One command holds it at a time.
type Lock struct{ f *os.File }

type lockHolder struct {
	PID int    `json:"pid"`
	Op  string `json:"op"`
}

// Lock waits for the deployment's lock for at most wait, after which the error
// names the command that has it.
func (f Folder) Lock(ctx context.Context, op string, wait time.Duration) (*Lock, error) {
	file, err := os.OpenFile(f.lockPath(), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, stateError(f.lockPath(), err)
	}
	wctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	err = until(wctx, func() (bool, error) { return tryLock(file) })
	if err != nil {
		defer file.Close()
		if ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded) {
			return nil, pipeline.Errorf(pipeline.LayerProcess, op, pipeline.Nowhere, "%s: %w%s", f.Name, ErrLocked, readHolder(file)).
				WithHint("wait for it to finish, then try again")
		}
		if ctx.Err() != nil {
			return nil, err
		}
		return nil, stateError(f.lockPath(), err)
	}
	// Only for the message above; the lock itself is the kernel's, and a full
	// disk must not keep anybody from taking a deployment down.
	if b, err := json.Marshal(lockHolder{PID: os.Getpid(), Op: op}); err == nil {
		_ = rewrite(file, b)
	}
	return &Lock{f: file}, nil
}

func readHolder(f *os.File) string {
	var h lockHolder
	b, err := io.ReadAll(io.NewSectionReader(f, 0, 4096))
	if err != nil || json.Unmarshal(b, &h) != nil || h.PID == 0 {
		return ""
	}
	return fmt.Sprintf(" (rs %s, pid %d)", h.Op, h.PID)
}

func rewrite(f *os.File, b []byte) error {
	if err := f.Truncate(0); err != nil {
		return err
	}
	_, err := f.WriteAt(b, 0)
	return err
}

// Unlock gives the right back.
func (l *Lock) Unlock() error { return l.f.Close() }

func isReadOnly(err error) bool { return errors.Is(err, unix.EROFS) }
func isNotDir(err error) bool   { return errors.Is(err, unix.ENOTDIR) }
func isNoSpace(err error) bool {
	return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT)
}
