package wire

import "encoding/binary"

// BTH is the base transport header (IBTA 9.2).
type BTH []byte

// BTH byte 1 flags, beside the pad count in bits 4 and 5.
const (
	FlagSolicited = 0x80
	FlagMigReq    = 0x40
)

// Put writes all of the header; FECN, BECN and reserved bits are 0. flags is
// byte 1: FlagSolicited, FlagMigReq and pad<<4.
func (h BTH) Put(op Opcode, flags uint8, pkey uint16, qpn uint32, ackReq bool, psn PSN) {
	_ = h[11]
	binary.BigEndian.PutUint32(h[0:], uint32(op)<<24|uint32(flags)<<16|uint32(pkey))
	binary.BigEndian.PutUint32(h[4:], qpn&PSNMask)
	w := uint32(psn) & PSNMask
	if ackReq {
		w |= 1 << 31
	}
	binary.BigEndian.PutUint32(h[8:], w)
}

func (h BTH) Opcode() Opcode  { return Opcode(h[0]) }
func (h BTH) Solicited() bool { return h[1]&FlagSolicited != 0 }
func (h BTH) MigReq() bool    { return h[1]&FlagMigReq != 0 }
func (h BTH) Pad() int        { return int(h[1] >> 4 & 3) }
func (h BTH) Version() uint8  { return h[1] & 0x0f }
func (h BTH) PKey() uint16    { return binary.BigEndian.Uint16(h[2:]) }
func (h BTH) DestQPN() uint32 { return binary.BigEndian.Uint32(h[4:]) & PSNMask }
func (h BTH) AckReq() bool    { return h[8]&0x80 != 0 }
func (h BTH) PSN() PSN        { return PSN(binary.BigEndian.Uint32(h[8:]) & PSNMask) }

// RETH is the RDMA extended transport header (IBTA 9.3.3).
type RETH []byte

const RETHLen = 16

// Put writes all of the header.
func (h RETH) Put(va uint64, rkey, length uint32) {
	_ = h[15]
	binary.BigEndian.PutUint64(h[0:], va)
	binary.BigEndian.PutUint32(h[8:], rkey)
	binary.BigEndian.PutUint32(h[12:], length)
}

func (h RETH) VA() uint64     { return binary.BigEndian.Uint64(h[0:]) }
func (h RETH) RKey() uint32   { return binary.BigEndian.Uint32(h[8:]) }
func (h RETH) Length() uint32 { return binary.BigEndian.Uint32(h[12:]) }

// AtomicETH is the atomic extended transport header (IBTA 9.3.4).
type AtomicETH []byte

const AtomicETHLen = 28

// Put writes all of the header.
func (h AtomicETH) Put(va uint64, rkey uint32, swapAdd, compare uint64) {
	_ = h[27]
	binary.BigEndian.PutUint64(h[0:], va)
	binary.BigEndian.PutUint32(h[8:], rkey)
	binary.BigEndian.PutUint64(h[12:], swapAdd)
	binary.BigEndian.PutUint64(h[20:], compare)
}

func (h AtomicETH) VA() uint64      { return binary.BigEndian.Uint64(h[0:]) }
func (h AtomicETH) RKey() uint32    { return binary.BigEndian.Uint32(h[8:]) }
func (h AtomicETH) SwapAdd() uint64 { return binary.BigEndian.Uint64(h[12:]) }
func (h AtomicETH) Compare() uint64 { return binary.BigEndian.Uint64(h[20:]) }

// AETH is the acknowledge extended transport header (IBTA 9.3.5).
type AETH []byte

const AETHLen = 4

// Syndromes of an AETH. Bits 5 and 6 tell the kind, the lower five are credits,
// RNR timer code or NAK code.
const (
	SynAck     = 0x00
	SynRNR     = 0x20
	SynNAK     = 0x60
	SynKind    = 0x60
	SynValue   = 0x1f
	SynCredits = 0x1f // an ACK with no end-to-end credits

	NAKSequence   = 0x60
	NAKInvalid    = 0x61
	NAKAccess     = 0x62
	NAKOperation  = 0x63
	NAKInvalidRDD = 0x64
)

// Put writes all of the header.
func (h AETH) Put(syndrome uint8, msn uint32) {
	binary.BigEndian.PutUint32(h, uint32(syndrome)<<24|msn&PSNMask)
}

func (h AETH) Syndrome() uint8 { return h[0] }
func (h AETH) MSN() uint32     { return binary.BigEndian.Uint32(h) & PSNMask }
