package udp

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"
)

// IP is an address in 16 bytes, IPv4 in its IPv6-mapped form: what a RoCE v2
// GID is, so that a sender is compared with a GID as it stands.
type IP [16]byte

// sockaddrLen is the room for the larger of the two address forms.
const sockaddrLen = unix.SizeofSockaddrInet6

// putSockaddr writes the kernel's form of an address and returns its length.
func putSockaddr(b *[sockaddrLen]byte, a netip.Addr, port uint16, scope uint32) uint32 {
	*b = [sockaddrLen]byte{}
	binary.BigEndian.PutUint16(b[2:], port)
	if a.Is4() || a.Is4In6() {
		binary.NativeEndian.PutUint16(b[0:], unix.AF_INET)
		ip := a.Unmap().As4()
		copy(b[4:8], ip[:])
		return unix.SizeofSockaddrInet4
	}
	binary.NativeEndian.PutUint16(b[0:], unix.AF_INET6)
	ip := a.As16()
	copy(b[8:24], ip[:])
	binary.NativeEndian.PutUint32(b[24:], scope)
	return unix.SizeofSockaddrInet6
}

// parseSockaddr reads the kernel's form; it reports false for another family.
func parseSockaddr(b *[sockaddrLen]byte, n uint32) (ip IP, port uint16, ok bool) {
	port = binary.BigEndian.Uint16(b[2:])
	switch family := binary.NativeEndian.Uint16(b[0:]); {
	case family == unix.AF_INET && n >= unix.SizeofSockaddrInet4:
		ip[10], ip[11] = 0xFF, 0xFF
		copy(ip[12:], b[4:8])
		return ip, port, true
	case family == unix.AF_INET6 && n >= unix.SizeofSockaddrInet6:
		copy(ip[:], b[8:24])
		return ip, port, true
	}
	return IP{}, 0, false
}

// A Dest is where packets go, in the form that the kernel takes: made once for a
// connection. Packets are of one train only when they share the Dest pointer.
type Dest struct {
	name    [sockaddrLen]byte
	nameLen uint32
	control [destControl]byte
	ctlLen  int
}

// DestOptions are the fields of the IP header that a connection may choose.
type DestOptions struct {
	TrafficClass uint8
	HopLimit     uint8 // 0: the socket's, which is 64
}

// NewDest makes a Dest for a peer of the socket.
func (s *Socket) NewDest(to netip.AddrPort, o DestOptions) *Dest {
	d := new(Dest)
	d.nameLen = putSockaddr(&d.name, to.Addr(), to.Port(), s.scope)
	d.ctlLen = putDestControl(d.control[:], s.v6, o)
	return d
}
