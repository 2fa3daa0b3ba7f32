package wire

import (
	"encoding/binary"
	"errors"
)

const (
	// BTHLen is the length of the base transport header.
	BTHLen = 12
	// MaxHeader is the longest BTH with extended headers (atomics).
	MaxHeader = 40
	// ICRCLen ends every packet.
	ICRCLen = 4
)

// Errors of Parse. Such datagrams are dropped.
var (
	ErrShort   = errors.New("wire: datagram shorter than its headers")
	ErrOpcode  = errors.New("wire: opcode is not of the reliable connection service")
	ErrVersion = errors.New("wire: transport header version is not 0")
	ErrPad     = errors.New("wire: length is not a multiple of 4 or padding does not fit")
)

// Packet is a decoded packet. Which fields after PSN are meaningful is
// Opcode.Headers' say; the others are left as they were.
type Packet struct {
	Opcode    Opcode
	Solicited bool
	MigReq    bool
	AckReq    bool
	Pad       uint8 // 0 to 3
	Congest   uint8 // BTH byte 4: FECN, BECN, reserved
	Reserved  uint8 // BTH byte 8 without AckReq
	Syndrome  uint8 // AETH
	PKey      uint16
	DestQPN   uint32
	PSN       PSN

	RKey   uint32 // RETH, AtomicETH; IETH
	VA     uint64 // RETH, AtomicETH
	Length uint32 // RETH
	Imm    uint32 // ImmDt
	MSN    uint32 // AETH

	SwapAdd uint64 // AtomicETH: the value to swap in, or to add
	Compare uint64 // AtomicETH
	Orig    uint64 // AtomicAckETH

	Payload []byte // a part of the datagram, without pad
	ICRC    uint32 // as received; Append computes none
}

// Parse decodes a UDP payload, ICRC included. Nothing is copied: Payload is a part of
// b. The ICRC is not checked.
func (p *Packet) Parse(b []byte) error {
	if len(b) < BTHLen+ICRCLen {
		return ErrShort
	}
	op := Opcode(b[0])
	if !op.Known() {
		return ErrOpcode
	}
	if b[1]&0x0f != 0 {
		return ErrVersion
	}
	n := op.HeaderLen()
	body := len(b) - ICRCLen - n
	if body < 0 {
		return ErrShort
	}
	pad := b[1] >> 4 & 3
	if len(b)&3 != 0 || int(pad) > body {
		return ErrPad
	}
	p.Opcode = op
	p.Solicited = b[1]&0x80 != 0
	p.MigReq = b[1]&0x40 != 0
	p.Pad = pad
	p.PKey = binary.BigEndian.Uint16(b[2:])
	w := binary.BigEndian.Uint32(b[4:])
	p.Congest = uint8(w >> 24)
	p.DestQPN = w & PSNMask
	w = binary.BigEndian.Uint32(b[8:])
	p.AckReq = w>>31 != 0
	p.Reserved = uint8(w >> 24 & 0x7f)
	p.PSN = PSN(w & PSNMask)
	if h := op.Headers() &^ HasPayload; h != 0 {
		p.parseExtended(h, b[BTHLen:n])
	}
	p.Payload = b[n : n+body-int(pad) : n+body-int(pad)]
	p.ICRC = binary.LittleEndian.Uint32(b[len(b)-ICRCLen:])
	return nil
}

func (p *Packet) parseExtended(h Header, b []byte) {
	if h&HasRETH != 0 {
		r := RETH(b[:RETHLen])
		p.VA, p.RKey, p.Length = r.VA(), r.RKey(), r.Length()
		b = b[RETHLen:]
	}
	if h&HasAtomicETH != 0 {
		a := AtomicETH(b[:AtomicETHLen])
		p.VA, p.RKey, p.SwapAdd, p.Compare = a.VA(), a.RKey(), a.SwapAdd(), a.Compare()
		b = b[AtomicETHLen:]
	}
	if h&HasAETH != 0 {
		a := AETH(b[:AETHLen])
		p.Syndrome, p.MSN = a.Syndrome(), a.MSN()
		b = b[AETHLen:]
	}
	if h&HasAtomicAck != 0 {
		p.Orig = binary.BigEndian.Uint64(b)
		b = b[8:]
	}
	if h&HasImm != 0 {
		p.Imm = binary.BigEndian.Uint32(b)
		b = b[4:]
	}
	if h&HasIETH != 0 {
		p.RKey = binary.BigEndian.Uint32(b)
	}
}

// PutHeader writes BTH and extended headers to b, which has room for MaxHeader
// bytes, and returns their length.
func (p *Packet) PutHeader(b []byte) int {
	b = b[:MaxHeader:MaxHeader]
	h := BTH(b)
	h.Put(p.Opcode, p.flags(), p.PKey, p.DestQPN, p.AckReq, p.PSN)
	b[4] = p.Congest
	b[8] |= p.Reserved & 0x7f
	n := BTHLen
	has := p.Opcode.Headers()
	if has&HasRETH != 0 {
		RETH(b[n:]).Put(p.VA, p.RKey, p.Length)
		n += RETHLen
	}
	if has&HasAtomicETH != 0 {
		AtomicETH(b[n:]).Put(p.VA, p.RKey, p.SwapAdd, p.Compare)
		n += AtomicETHLen
	}
	if has&HasAETH != 0 {
		AETH(b[n:]).Put(p.Syndrome, p.MSN)
		n += AETHLen
	}
	if has&HasAtomicAck != 0 {
		binary.BigEndian.PutUint64(b[n:], p.Orig)
		n += 8
	}
	if has&HasImm != 0 {
		binary.BigEndian.PutUint32(b[n:], p.Imm)
		n += 4
	}
	if has&HasIETH != 0 {
		binary.BigEndian.PutUint32(b[n:], p.RKey)
		n += 4
	}
	return n
}

func (p *Packet) flags() uint8 {
	f := p.Pad & 3 << 4
	if p.Solicited {
		f |= 0x80
	}
	if p.MigReq {
		f |= 0x40
	}
	return f
}

// Append appends the packet without its ICRC: headers, payload, zero padding.
func (p *Packet) Append(b []byte) []byte {
	var h [MaxHeader]byte
	n := p.PutHeader(h[:])
	b = append(b, h[:n]...)
	b = append(b, p.Payload...)
	var zero [3]byte
	return append(b, zero[:p.Pad&3]...)
}
