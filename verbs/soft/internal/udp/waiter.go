package udp

import (
	"encoding/binary"
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Waiter is where the one goroutine that serves a socket sleeps: in the kernel,
// on the socket, on an eventfd that others wake it by, on a timer that others
// may set without waking it, and on one more descriptor. It does not go through
// Go's network poller, whose wake-ups take another thread's help.
type Waiter struct {
	sock, event, timer, extra int
	fds                       [4]unix.PollFd
}

// Ready says what ended a Wait; nothing at all means a signal or the time.
type Ready struct {
	Socket, Kick, Timer, Extra bool
}

// NewWaiter makes a waiter for the socket; extra is one more descriptor to watch
// for input, or -1.
func (s *Socket) NewWaiter(extra int) (*Waiter, error) {
	event, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, os.NewSyscallError("eventfd", err)
	}
	timer, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_CLOEXEC|unix.TFD_NONBLOCK)
	if err != nil {
		return nil, errors.Join(os.NewSyscallError("timerfd_create", err), unix.Close(event))
	}
	return &Waiter{sock: s.fd, event: event, timer: timer, extra: extra}, nil
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

// Wait sleeps until there is input, a kick, the timer, or the time is over
// (negative: never). With socket false it does not look at the socket, and
// arriving packets wake nobody.
func (w *Waiter) Wait(socket bool, timeout time.Duration) Ready {
	w.fds = [4]unix.PollFd{
		{Fd: int32(w.event), Events: unix.POLLIN}, {Fd: int32(w.timer), Events: unix.POLLIN},
		{Fd: int32(w.extra), Events: unix.POLLIN}, {Fd: -1, Events: unix.POLLIN}, // negative ones are passed over
	}
	if socket {
		w.fds[3].Fd = int32(w.sock)
	}
	var ts *unix.Timespec
	if timeout >= 0 {
		t := unix.NsecToTimespec(int64(timeout))
		ts = &t
	}
	n, err := unix.Ppoll(w.fds[:], ts, nil)
	if err != nil || n == 0 {
		return Ready{}
	}
	r := Ready{Kick: w.fds[0].Revents != 0, Timer: w.fds[1].Revents != 0, Extra: w.fds[2].Revents != 0, Socket: w.fds[3].Revents != 0}
	var b [8]byte
	if r.Kick {
		_, _ = unix.Read(w.event, b[:])
	}
	if r.Timer {
		_, _ = unix.Read(w.timer, b[:])
	}
	return r
}

// Close closes eventfd and timer; nobody may be in another call then.
func (w *Waiter) Close() error {
	return os.NewSyscallError("close", errors.Join(unix.Close(w.event), unix.Close(w.timer)))
}
