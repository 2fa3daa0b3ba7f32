package udp

import (
	"encoding/binary"
	"errors"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Waiter is where the one goroutine that serves a socket sleeps: on the socket, on
// an eventfd that others wake it by, on a timer that others may set without waking
// it, and on one more descriptor. These are gathered in an epoll instance of its
// own, and that is what Go's network poller watches. So the goroutine parks as
// one that reads a connection does: a blocked system call would take a thread
// and a scheduler's slot with it, and whoever the goroutine has just woken would
// have to wait for another. And the socket can be left out for a while: then
// arriving packets wake nobody.
type Waiter struct {
	sock, event, timer, extra int

	ep      int
	file    *os.File // ep, as the poller knows it
	conn    syscall.RawConn
	look    func(uintptr) bool
	events  [4]unix.EpollEvent
	ready   Ready
	watched bool // the socket is being watched
}

// Ready says what ended a Wait.
type Ready struct {
	Socket, Kick, Timer, Extra bool
}

// NewWaiter makes a waiter for the socket; extra is one more descriptor to watch
// for input, or -1.
func (s *Socket) NewWaiter(extra int) (*Waiter, error) {
	w := &Waiter{sock: s.fd, event: -1, timer: -1, extra: extra, ep: -1}
	if err := w.open(); err != nil {
		return nil, errors.Join(err, w.Close())
	}
	return w, nil
}

func (w *Waiter) open() (err error) {
	if w.event, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return os.NewSyscallError("eventfd", err)
	}
	if w.timer, err = unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_CLOEXEC|unix.TFD_NONBLOCK); err != nil {
		return os.NewSyscallError("timerfd_create", err)
	}
	if w.ep, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return os.NewSyscallError("epoll_create1", err)
	}
	for _, fd := range []int{w.event, w.timer, w.extra} {
		if fd < 0 {
			continue
		}
		if err := unix.EpollCtl(w.ep, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)}); err != nil {
			return os.NewSyscallError("epoll_ctl", err)
		}
	}
	if err := unix.EpollCtl(w.ep, unix.EPOLL_CTL_ADD, w.sock, &unix.EpollEvent{Fd: int32(w.sock)}); err != nil {
		return os.NewSyscallError("epoll_ctl", err)
	}
	// NewFile leaves a descriptor to the poller only if it does not block, which
	// means nothing to an epoll instance.
	if err := unix.SetNonblock(w.ep, true); err != nil {
		return os.NewSyscallError("fcntl", err)
	}
	w.file = os.NewFile(uintptr(w.ep), "epoll")
	if w.conn, err = w.file.SyscallConn(); err != nil {
		return err
	}
	// Should the poller not have taken the file, Wait would not sleep.
	if err := w.file.SetReadDeadline(time.Time{}); err != nil {
		return err
	}
	w.look = w.lookOnce
	return nil
}

// Kick ends the Wait that runs, or else the next one. It may be called from any
// goroutine until Close.
func (w *Waiter) Kick() {
	var one [8]byte
	binary.NativeEndian.PutUint64(one[:], 1)
	_, _ = unix.Write(w.event, one[:])
}

// SetTimer makes Wait end when d has passed; it replaces the time set before. It
// may be called from any goroutine, one at a time, until Close.
func (w *Waiter) SetTimer(d time.Duration) {
	// A value of zero would turn the timer off.
	spec := unix.ItimerSpec{Value: unix.NsecToTimespec(int64(max(d, 1)))}
	_ = unix.TimerfdSettime(w.timer, 0, &spec, nil)
}

// Wait sleeps until there is input, a kick or the timer. With socket false it does
// not look at the socket.
func (w *Waiter) Wait(socket bool) Ready {
	if socket != w.watched {
		e := unix.EpollEvent{Fd: int32(w.sock)}
		if socket {
			e.Events = unix.EPOLLIN
		}
		_ = unix.EpollCtl(w.ep, unix.EPOLL_CTL_MOD, w.sock, &e)
		w.watched = socket
	}
	w.ready = Ready{}
	_ = w.conn.Read(w.look) // fails only once the file is closed
	return w.ready
}

// lookOnce takes what is there; it reports false to be called again when there is
// something.
func (w *Waiter) lookOnce(uintptr) bool {
	n := epollNow(w.ep, w.events[:])
	var b [8]byte
	for _, e := range w.events[:n] {
		switch int(e.Fd) {
		case w.sock:
			// A descriptor that is asked for nothing still tells of errors.
			w.ready.Socket = e.Events&unix.EPOLLIN != 0
		case w.event:
			_, _ = unix.Read(w.event, b[:])
			w.ready.Kick = true
		case w.timer:
			_, _ = unix.Read(w.timer, b[:])
			w.ready.Timer = true
		case w.extra:
			w.ready.Extra = true
		}
	}
	return n > 0
}

// Close closes what NewWaiter opened; nobody may be in another call then.
func (w *Waiter) Close() error {
	var err error
	if w.file != nil {
		err = w.file.Close()
	} else if w.ep >= 0 {
		err = os.NewSyscallError("close", unix.Close(w.ep))
	}
	for _, fd := range []int{w.event, w.timer} {
		if fd >= 0 {
			err = errors.Join(err, os.NewSyscallError("close", unix.Close(fd)))
		}
	}
	return err
}
