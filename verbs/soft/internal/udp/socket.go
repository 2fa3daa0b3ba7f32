package udp

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

const (
	defaultTTL    = 64
	defaultBuffer = 16 << 20
)

// Config says how a socket is to be opened.
type Config struct {
	// Addr is the local address; port 0 takes any free one. The address must be
	// one of this host's, not the unspecified one: it is the source of packets.
	Addr netip.AddrPort
	// NoGSO and NoGRO refuse the offloads, NoEqualTail trains without a smaller
	// last packet (with full-sized packets that is nearly no train at all).
	NoGSO, NoGRO, NoEqualTail bool
	// RecvBuffer and SendBuffer are asked for in bytes; 0 means 16 MiB. The
	// kernel may give less (see Features).
	RecvBuffer, SendBuffer int
}

// Features are what a socket really has.
type Features struct {
	GSO, GRO, EqualTail    bool
	RecvBuffer, SendBuffer int // bytes as the kernel counts them, overhead included
}

// Stats are a socket's counters.
type Stats struct {
	SendCalls, RecvCalls         uint64
	DatagramsSent, DatagramsRecv uint64 // a train is one
	SendDrops                    uint64 // datagrams that the kernel refused
	SendWaits                    uint64 // times the send buffer was full
	RecvDrops                    uint64 // datagrams lost because the receive buffer was full
	GSODisabled                  uint64 // 1 after segmentation was turned off while running
	LastSendErrno                unix.Errno
}

// Socket is one UDP socket, as a raw non-blocking descriptor that Go's network
// poller does not know.
type Socket struct {
	fd    int
	addr  netip.AddrPort
	v6    bool
	scope uint32
	feat  Features
	gso   atomic.Bool // features.GSO until it proves unsupported

	sendCalls, recvCalls         atomic.Uint64
	datagramsSent, datagramsRecv atomic.Uint64
	sendDrops, sendWaits         atomic.Uint64
	recvDrops                    atomic.Uint64
	lastErrno                    atomic.Uint32
}

// Open opens and binds a socket. The error wraps the errno of the call that
// failed; EADDRINUSE and EADDRNOTAVAIL come from the bind.
func Open(c Config) (*Socket, error) {
	ip := c.Addr.Addr()
	if !ip.IsValid() || ip.IsUnspecified() || ip.IsMulticast() {
		return nil, fmt.Errorf("address %v: want one definite address of this host: %w", ip, unix.EINVAL)
	}
	s := &Socket{v6: ip.Is6() && !ip.Is4In6()}
	family := unix.AF_INET
	if s.v6 {
		family = unix.AF_INET6
		if zone := ip.Zone(); zone != "" {
			ifi, err := net.InterfaceByName(zone)
			if err != nil {
				return nil, fmt.Errorf("address %v: zone %q: %w", ip, zone, err)
			}
			s.scope = uint32(ifi.Index)
		}
	}
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_UDP)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	s.fd = fd
	if err := s.setUp(c); err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	return s, nil
}

func (s *Socket) setUp(c Config) error {
	set := func(level, opt, v int) error {
		return os.NewSyscallError("setsockopt", unix.SetsockoptInt(s.fd, level, opt, v))
	}
	// The identification is in the ICRC: "do not fragment" makes it 0, or the
	// index in a train.
	var err error
	if s.v6 {
		if err = set(unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1); err == nil {
			err = set(unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_DO)
		}
		if err == nil {
			err = set(unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS, defaultTTL)
		}
		// RoCE over IPv6 may come with a zero UDP checksum (rxe does); the ICRC
		// covers what that would.
		if err == nil {
			err = set(unix.SOL_UDP, unix.UDP_NO_CHECK6_RX, 1)
		}
	} else {
		if err = set(unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO); err == nil {
			err = set(unix.IPPROTO_IP, unix.IP_TTL, defaultTTL)
		}
	}
	if err != nil {
		return err
	}
	if err := set(unix.SOL_SOCKET, unix.SO_RXQ_OVFL, 1); err != nil {
		return err
	}
	s.feat.RecvBuffer = setBuffer(s.fd, unix.SO_RCVBUF, unix.SO_RCVBUFFORCE, c.RecvBuffer)
	s.feat.SendBuffer = setBuffer(s.fd, unix.SO_SNDBUF, unix.SO_SNDBUFFORCE, c.SendBuffer)
	s.feat.EqualTail = !c.NoEqualTail
	if !c.NoGSO {
		_, err := unix.GetsockoptInt(s.fd, unix.SOL_UDP, unix.UDP_SEGMENT)
		s.feat.GSO = err == nil
	}
	if !c.NoGRO {
		s.feat.GRO = set(unix.SOL_UDP, unix.UDP_GRO, 1) == nil
	}
	s.gso.Store(s.feat.GSO)
	if err := s.bind(c.Addr); err != nil {
		return err
	}
	return nil
}

func (s *Socket) bind(a netip.AddrPort) error {
	var sa unix.Sockaddr
	if s.v6 {
		sa = &unix.SockaddrInet6{Addr: a.Addr().As16(), Port: int(a.Port()), ZoneId: s.scope}
	} else {
		sa = &unix.SockaddrInet4{Addr: a.Addr().Unmap().As4(), Port: int(a.Port())}
	}
	if err := unix.Bind(s.fd, sa); err != nil {
		return os.NewSyscallError("bind", err)
	}
	got, err := unix.Getsockname(s.fd)
	if err != nil {
		return os.NewSyscallError("getsockname", err)
	}
	port := 0
	switch v := got.(type) {
	case *unix.SockaddrInet4:
		port = v.Port
	case *unix.SockaddrInet6:
		port = v.Port
	}
	s.addr = netip.AddrPortFrom(a.Addr().Unmap(), uint16(port))
	return nil
}

// setBuffer asks for a buffer size, over the system's limit where the process
// may, and returns what the kernel gave.
func setBuffer(fd, opt, force, size int) int {
	if size <= 0 {
		size = defaultBuffer
	}
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, force, size) != nil {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, opt, size)
	}
	got, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, opt)
	if err != nil {
		return 0
	}
	return got
}

// Addr is the local address with the port that was given.
func (s *Socket) Addr() netip.AddrPort { return s.addr }

// Features are what the socket has now.
func (s *Socket) Features() Features {
	f := s.feat
	f.GSO = s.gso.Load()
	return f
}

// Stats are the counters so far.
func (s *Socket) Stats() Stats {
	st := Stats{
		SendCalls: s.sendCalls.Load(), RecvCalls: s.recvCalls.Load(),
		DatagramsSent: s.datagramsSent.Load(), DatagramsRecv: s.datagramsRecv.Load(),
		SendDrops: s.sendDrops.Load(), SendWaits: s.sendWaits.Load(), RecvDrops: s.recvDrops.Load(),
		LastSendErrno: unix.Errno(s.lastErrno.Load()),
	}
	if s.feat.GSO && !s.gso.Load() {
		st.GSODisabled = 1
	}
	return st
}

// Close closes the descriptor. Nobody may be in a call of the socket's then.
func (s *Socket) Close() error { return os.NewSyscallError("close", unix.Close(s.fd)) }
