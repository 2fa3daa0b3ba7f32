package wire

import (
	"encoding/binary"
	"hash/crc32"
	"net/netip"
)

// The invariant CRC covers 8 bytes of 0xff, the IP and UDP headers with the
// fields that routers change set to ones (IPv4: type of service, time to live and
// header checksum; IPv6: traffic class, flow label and hop limit; UDP checksum),
// the BTH with its byte 4 set to ones, and all that follows up to the ICRC.
// IPv4's identification is not masked: sender and receiver must agree on it.

// Contributions of the fields that differ between packets of one Path, at the
// first byte of the BTH. The counts are the header bytes that follow each field.
var (
	v4Total = newField16(16 + 8) // IPv4 total length
	v4Ident = newField16(identAfter)
	v6Len   = newField16(34 + 8) // IPv6 payload length
	udpLen  = newField16(2)
)

const identAfter = 14 + 8 // bytes from IPv4's identification to the BTH

// Path computes the ICRCs of packets that go from one UDP address to another. It is
// a small value; the zero Path is of no use.
type Path struct {
	base uint32 // register before the BTH, for lengths and identification 0
	v6   bool
}

// NewPath prepares for packets from src to dst; both are IPv4 (or IPv4-mapped)
// or both IPv6. IPv4 packets are taken to have DF set and no options, as RoCE
// endpoints send them.
func NewPath(src, dst netip.AddrPort) Path {
	var b [8 + 40 + 8]byte
	for i := range 8 {
		b[i] = 0xff
	}
	s, d := src.Addr().Unmap(), dst.Addr().Unmap()
	ip, n, v6 := b[8:], 20, !s.Is4()
	if v6 {
		n = 40
		binary.BigEndian.PutUint32(ip, 0x6fffffff)
		ip[6], ip[7] = 17, 0xff
		s16, d16 := s.As16(), d.As16()
		copy(ip[8:], s16[:])
		copy(ip[24:], d16[:])
	} else {
		ip[0], ip[1] = 0x45, 0xff
		ip[6] = 0x40
		ip[8], ip[9], ip[10], ip[11] = 0xff, 17, 0xff, 0xff
		s4, d4 := s.As4(), d.As16()
		copy(ip[12:], s4[:])
		copy(ip[16:], d4[12:])
	}
	udp := ip[n:]
	binary.BigEndian.PutUint16(udp[0:], src.Port())
	binary.BigEndian.PutUint16(udp[2:], dst.Port())
	udp[6], udp[7] = 0xff, 0xff
	return Path{base: ^crc32.ChecksumIEEE(b[:8+n+8]), v6: v6}
}

// IPv6 reports whether the path is one of IPv6, which has no identification.
func (p *Path) IPv6() bool { return p.v6 }

// start is the register before the BTH of a UDP payload of n bytes.
func (p *Path) start(n int, id uint16) uint32 {
	u := uint16(n + 8)
	if p.v6 {
		return p.base ^ v6Len.at(u) ^ udpLen.at(u)
	}
	return p.base ^ v4Total.at(u+20) ^ udpLen.at(u) ^ v4Ident.at(id)
}

// ICRC of a packet given in pieces: headers from the BTH on (a multiple of 4
// bytes), payload, and the count of zero pad bytes. id is the IPv4 identification
// it is sent with. The value is stored little-endian.
func (p *Path) ICRC(id uint16, hdr []byte, payload [][]byte, pad int) uint32 {
	n := len(hdr) + pad + ICRCLen
	for _, f := range payload {
		n += len(f)
	}
	c := ^headerCRC(p.start(n, id), hdr)
	for _, f := range payload {
		c = crc32.Update(c, crc32.IEEETable, f)
	}
	return ^zeros(^c, pad)
}

// Sum is the ICRC of a whole UDP payload b, whose last four bytes are the place
// of the ICRC and do not count. b has at least BTHLen+ICRCLen bytes.
func (p *Path) Sum(id uint16, b []byte) uint32 {
	c := ^headerCRC(p.start(len(b), id), b[:BTHLen])
	return crc32.Update(c, crc32.IEEETable, b[BTHLen:len(b)-ICRCLen])
}

// Put computes the ICRC of a whole UDP payload and stores it in its last four
// bytes.
func (p *Path) Put(id uint16, b []byte) {
	binary.LittleEndian.PutUint32(b[len(b)-ICRCLen:], p.Sum(id, b))
}

// Check reports whether a whole UDP payload has the right ICRC for this
// identification.
func (p *Path) Check(id uint16, b []byte) bool {
	return len(b) >= BTHLen+ICRCLen && p.Sum(id, b) == binary.LittleEndian.Uint32(b[len(b)-ICRCLen:])
}

// Solve finds the identification with which a whole UDP payload has the right
// ICRC, for senders whose identification the receiver cannot know. guess is tried
// first at no cost. There is at most one; that leaves 16 of the 32 bits as a check.
func (p *Path) Solve(guess uint16, b []byte) (id uint16, ok bool) {
	if len(b) < BTHLen+ICRCLen {
		return 0, false
	}
	diff := p.Sum(guess, b) ^ binary.LittleEndian.Uint32(b[len(b)-ICRCLen:])
	if diff == 0 {
		return guess, true
	}
	if p.v6 {
		return 0, false
	}
	// The difference is what guess^id adds, moved on by everything after it.
	v := undoZeros(diff, len(b)-ICRCLen+identAfter+2)
	if v > 0xffff {
		return 0, false
	}
	return guess ^ uint16(v<<8|v>>8), true
}
