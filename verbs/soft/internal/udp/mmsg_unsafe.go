package udp

import (
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The kernel's struct mmsghdr: x/sys has neither it nor the two calls. The calls
// never block (the descriptor is O_NONBLOCK), so they are made without telling
// Go's scheduler: that would cost more than an empty receive does.
type mmsghdr struct {
	hdr unix.Msghdr
	n   uint32
	_   [unsafe.Sizeof(uintptr(0)) - 4]byte
}

// sendArrays are the arrays for sendmmsg.
type sendArrays struct {
	msgs []mmsghdr
	segs []int32
	ctl  [][maxControl]byte
	iov  []unix.Iovec
	from int // first element of the message being built
}

func newSendArrays(n int) sendArrays {
	a := sendArrays{}
	a.reset(n, n)
	return a
}

// reset empties the arrays and makes room. Elements must not move while
// messages point to them, hence the room before.
func (a *sendArrays) reset(packets, frags int) {
	if cap(a.msgs) < packets {
		a.msgs = make([]mmsghdr, 0, packets)
		a.segs = make([]int32, 0, packets)
		a.ctl = make([][maxControl]byte, packets)
	}
	if need := frags + 2*packets; cap(a.iov) < need {
		a.iov = make([]unix.Iovec, 0, need)
	}
	a.msgs, a.segs, a.iov = a.msgs[:0], a.segs[:0], a.iov[:0]
}

func (a *sendArrays) begin() { a.from = len(a.iov) }

// add appends bytes to the message; what lies right behind the last element
// lengthens that.
func (a *sendArrays) add(b []byte) {
	if len(b) == 0 {
		return
	}
	base := unsafe.SliceData(b)
	if last := len(a.iov) - 1; last >= a.from {
		e := &a.iov[last]
		if uintptr(unsafe.Pointer(e.Base))+uintptr(e.Len) == uintptr(unsafe.Pointer(base)) {
			e.SetLen(int(e.Len) + len(b))
			return
		}
	}
	a.iov = append(a.iov, unix.Iovec{Base: base})
	a.iov[len(a.iov)-1].SetLen(len(b))
}

// finish makes the message of what was added since begin: n packets, the first
// of seg bytes.
func (a *sendArrays) finish(d *Dest, n int, seg int32) {
	i := len(a.msgs)
	a.msgs = append(a.msgs, mmsghdr{})
	a.segs = append(a.segs, int32(n))
	h := &a.msgs[i].hdr
	h.Name, h.Namelen = &d.name[0], d.nameLen
	h.Iov = &a.iov[a.from]
	h.SetIovlen(len(a.iov) - a.from)
	ctl := &a.ctl[i]
	end := copy(ctl[:], d.control[:d.ctlLen])
	if n > 1 {
		end = putSegment(ctl[:], end, uint16(seg))
	}
	if end > 0 {
		h.Control = &ctl[0]
		h.SetControllen(end)
	}
}

func (a *sendArrays) messages() int      { return len(a.msgs) }
func (a *sendArrays) segments(i int) int { return int(a.segs[i]) }

// send gives the messages from the given one on to the kernel and returns how
// many it took. The error is about the one after those.
func (a *sendArrays) send(fd, from int) (int, unix.Errno) {
	n, _, errno := unix.RawSyscall6(unix.SYS_SENDMMSG, uintptr(fd), uintptr(unsafe.Pointer(&a.msgs[from])),
		uintptr(len(a.msgs)-from), unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, 0, 0)
	runtime.KeepAlive(a)
	if errno != 0 {
		return 0, errno
	}
	return int(n), 0
}

// recvArrays are the arrays for recvmmsg.
type recvArrays struct {
	msgs  []mmsghdr
	names [][sockaddrLen]byte
	ctl   [][recvControl]byte
	iov   []unix.Iovec
}

func newRecvArrays(bufs [][]byte) recvArrays {
	n := len(bufs)
	a := recvArrays{msgs: make([]mmsghdr, n), names: make([][sockaddrLen]byte, n),
		ctl: make([][recvControl]byte, n), iov: make([]unix.Iovec, n)}
	for i := range n {
		a.iov[i].Base = unsafe.SliceData(bufs[i])
		a.iov[i].SetLen(len(bufs[i]))
		h := &a.msgs[i].hdr
		h.Name = &a.names[i][0]
		h.Iov = &a.iov[i]
		h.SetIovlen(1)
		h.Control = &a.ctl[i][0]
	}
	return a
}

// recv takes up to n datagrams without blocking.
func (a *recvArrays) recv(fd, n int) (int, unix.Errno) {
	// The kernel overwrites these three with what it gave.
	for i := range a.msgs[:n] {
		h := &a.msgs[i].hdr
		h.Namelen = sockaddrLen
		h.SetControllen(recvControl)
		h.Flags = 0
	}
	k, _, errno := unix.RawSyscall6(unix.SYS_RECVMMSG, uintptr(fd), uintptr(unsafe.Pointer(&a.msgs[0])),
		uintptr(n), unix.MSG_DONTWAIT, 0, 0)
	runtime.KeepAlive(a)
	if errno != 0 {
		return 0, errno
	}
	return int(k), 0
}

// message is what the kernel said of datagram i.
func (a *recvArrays) message(i int) (size int, truncated bool, control []byte, name *[sockaddrLen]byte, nameLen uint32) {
	m := &a.msgs[i]
	return int(m.n), m.hdr.Flags&unix.MSG_TRUNC != 0, a.ctl[i][:min(int(m.hdr.Controllen), recvControl)], &a.names[i], m.hdr.Namelen
}

// epollNow is epoll_wait with no time to wait.
func epollNow(ep int, events []unix.EpollEvent) int {
	n, _, errno := unix.RawSyscall6(unix.SYS_EPOLL_PWAIT, uintptr(ep), uintptr(unsafe.Pointer(unsafe.SliceData(events))),
		uintptr(len(events)), 0, 0, 0)
	runtime.KeepAlive(events)
	if errno != 0 {
		return 0
	}
	return int(n)
}
