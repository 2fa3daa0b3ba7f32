package launch

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
)

// Every process of a deployment that has rails listens on a socket in run/:
// shard-N.sock, or client-PID-START-COUNT.sock. A socket outlives a process that
// is killed. It is one that nobody answers on when its owner is gone: the shard's
// lock is free, or no process has that id and start time. A refused connection
// alone is no proof, as a process binds a moment before it listens.

var socketRE = regexp.MustCompile(`^(?:shard-([0-9]{1,9})|client-([0-9]{1,10})-([0-9]{1,19})-[0-9]{1,19})\.sock$`)

// socketCount tells the sockets of one process apart.
var socketCount atomic.Uint64

func (f Folder) shardSocket(shard int) string {
	return filepath.Join(f.runDir(), fmt.Sprintf("shard-%d.sock", shard))
}

func (f Folder) clientSocket() (string, error) {
	me, err := self()
	if err != nil {
		return "", err
	}
	return filepath.Join(f.runDir(), fmt.Sprintf("client-%d-%d-%d.sock", me.pid, me.start, socketCount.Add(1))), nil
}

// socket is one that was found in run/.
type socket struct {
	path  string
	shard int // -1: a client's
	pid   int // of a client
}

// sockets are those whose owner is there. Those of owners that are gone are
// removed.
func (f Folder) sockets() ([]socket, error) {
	entries, err := os.ReadDir(f.runDir())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, stateError(f.runDir(), err)
	}
	var out []socket
	for _, e := range entries {
		m := socketRE.FindStringSubmatch(e.Name())
		if m == nil {
			continue
		}
		s := socket{path: filepath.Join(f.runDir(), e.Name()), shard: -1}
		alive := false
		if m[1] != "" {
			s.shard, _ = strconv.Atoi(m[1]) // digits, and few enough
			if alive, err = isLocked(f.claimPath(s.shard)); err != nil {
				return nil, stateError(f.claimPath(s.shard), err)
			}
		} else {
			p := process{}
			p.pid, _ = strconv.Atoi(m[2])
			p.start, _ = strconv.ParseUint(m[3], 10, 64)
			s.pid, alive = p.pid, p.running()
		}
		if alive {
			out = append(out, s)
			continue
		}
		// The owner may be in another PID namespace: then it still answers.
		c, err := dialSocket(context.Background(), s.path)
		switch {
		case err == nil:
			_ = c.Close()
			out = append(out, s)
		case errors.Is(err, syscall.ECONNREFUSED):
			_ = os.Remove(s.path)
		}
	}
	return out, nil
}

// socketPathMost is the longest path that fits into a socket address.
const socketPathMost = len(unix.RawSockaddrUnix{}.Path) - 1

// addressable gives the path in a form that fits into a socket address: itself, or
// by way of a descriptor of its folder, which stays valid until done is called.
func addressable(path string) (short string, done func(), err error) {
	if len(path) <= socketPathMost {
		return path, func() {}, nil
	}
	dir, err := os.OpenFile(filepath.Dir(path), unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return "", nil, err
	}
	return fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), filepath.Base(path)), func() { _ = dir.Close() }, nil
}

func dialSocket(ctx context.Context, path string) (net.Conn, error) {
	short, done, err := addressable(path)
	if err != nil {
		return nil, err
	}
	defer done()
	var d net.Dialer
	return d.DialContext(ctx, "unix", short)
}

// listenSocket makes the socket for its owner alone. One that is there already and
// on which nobody answers is replaced.
func listenSocket(ctx context.Context, path string) (net.Listener, error) {
	if c, err := dialSocket(ctx, path); err == nil {
		_ = c.Close()
		return nil, syscall.EADDRINUSE
	}
	if err := removeIfThere(path); err != nil {
		return nil, err
	}
	short, done, err := addressable(path)
	if err != nil {
		return nil, err
	}
	defer done()
	// A socket's file gets the mode that the socket has when it is bound, so that
	// it is never open to others, not even for a moment.
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var merr error
		err := c.Control(func(fd uintptr) { merr = unix.Fchmod(int(fd), 0o600) })
		return errors.Join(err, merr)
	}}
	l, err := lc.Listen(ctx, "unix", short)
	if err != nil {
		return nil, err
	}
	// The name that it was bound by may mean nothing any more when it is closed.
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	return l, nil
}
