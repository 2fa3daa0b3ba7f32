package udp

import "golang.org/x/sys/unix"

// verdict is what a failed send means for the packets in it.
type verdict uint8

const (
	sendAgain   verdict = iota // interrupted
	sendWait                   // no room now
	sendNoGSO                  // the device under the socket cannot segment
	sendDropped                // lost as if on the wire; the protocol repeats it
	sendClosed                 // the socket is gone
)

// judge is the one place where a send's errno gets a meaning. EIO is what the
// kernel's UDP says to UDP_SEGMENT when the device does not offload checksums
// (udp_send_skb); nothing else on a datagram socket gives it.
func judge(errno unix.Errno, train bool) verdict {
	switch errno {
	case unix.EINTR:
		return sendAgain
	case unix.EAGAIN:
		return sendWait
	case unix.EIO:
		if train {
			return sendNoGSO
		}
	case unix.EBADF, unix.ENOTSOCK:
		return sendClosed
	}
	return sendDropped
}
