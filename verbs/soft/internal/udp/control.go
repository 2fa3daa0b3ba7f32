package udp

import (
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// destControl is the room for the control messages of a Dest: traffic class and
// hop limit, an int each.
const destControl = 48

// maxControl adds the one of UDP_SEGMENT, a uint16.
const maxControl = destControl + 24

// recvControl is the room for UDP_GRO (an int) and SO_RXQ_OVFL (a uint32).
const recvControl = 64

// putCmsg appends a control message at b[off:] and returns the end.
func putCmsg(b []byte, off int, level, kind int32, data ...byte) int {
	size := unix.CmsgLen(len(data))
	binary.NativeEndian.PutUint64(b[off:], uint64(size))
	binary.NativeEndian.PutUint32(b[off+8:], uint32(level))
	binary.NativeEndian.PutUint32(b[off+12:], uint32(kind))
	copy(b[off+16:], data)
	return off + unix.CmsgSpace(len(data))
}

func putDestControl(b []byte, v6 bool, o DestOptions) int {
	n := 0
	putInt := func(level, kind int32, v uint8) {
		var d [4]byte
		binary.NativeEndian.PutUint32(d[:], uint32(v))
		n = putCmsg(b, n, level, kind, d[:]...)
	}
	if o.TrafficClass != 0 {
		if v6 {
			putInt(unix.IPPROTO_IPV6, unix.IPV6_TCLASS, o.TrafficClass)
		} else {
			putInt(unix.IPPROTO_IP, unix.IP_TOS, o.TrafficClass)
		}
	}
	if o.HopLimit != 0 && o.HopLimit != defaultTTL {
		if v6 {
			putInt(unix.IPPROTO_IPV6, unix.IPV6_HOPLIMIT, o.HopLimit)
		} else {
			putInt(unix.IPPROTO_IP, unix.IP_TTL, o.HopLimit)
		}
	}
	return n
}

// putSegment appends UDP_SEGMENT at b[off:] and returns the end.
func putSegment(b []byte, off int, seg uint16) int {
	binary.NativeEndian.PutUint64(b[off:], uint64(unix.CmsgLen(2)))
	binary.NativeEndian.PutUint32(b[off+8:], unix.SOL_UDP)
	binary.NativeEndian.PutUint32(b[off+12:], unix.UDP_SEGMENT)
	binary.NativeEndian.PutUint16(b[off+16:], seg)
	return off + unix.CmsgSpace(2)
}

// parseControl reads the control messages of a received datagram: the segment
// size of a train (0: none) and the count of datagrams that the socket dropped
// so far (ok only when there is one). It never looks outside b.
func parseControl(b []byte) (seg int, drops uint32, dropsOK bool) {
	for len(b) >= unix.CmsgLen(0) {
		size := binary.NativeEndian.Uint64(b)
		if size < uint64(unix.CmsgLen(0)) || size > uint64(len(b)) {
			return seg, drops, dropsOK
		}
		level := int32(binary.NativeEndian.Uint32(b[8:]))
		kind := int32(binary.NativeEndian.Uint32(b[12:]))
		data := b[unix.CmsgLen(0):size]
		switch {
		case level == unix.SOL_UDP && kind == unix.UDP_GRO && len(data) >= 4:
			seg = int(binary.NativeEndian.Uint32(data))
		case level == unix.SOL_SOCKET && kind == unix.SO_RXQ_OVFL && len(data) >= 4:
			drops, dropsOK = binary.NativeEndian.Uint32(data), true
		}
		next := unix.CmsgSpace(int(size) - unix.CmsgLen(0))
		if next >= len(b) {
			return seg, drops, dropsOK
		}
		b = b[next:]
	}
	return seg, drops, dropsOK
}
