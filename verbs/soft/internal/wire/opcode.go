package wire

import "fmt"

// Opcode is the BTH opcode: the transport service in the upper three bits, the
// operation in the lower five. Only the reliable connection service (000) is
// known here.
type Opcode uint8

const (
	SendFirst          Opcode = 0x00
	SendMiddle         Opcode = 0x01
	SendLast           Opcode = 0x02
	SendLastImm        Opcode = 0x03
	SendOnly           Opcode = 0x04
	SendOnlyImm        Opcode = 0x05
	WriteFirst         Opcode = 0x06
	WriteMiddle        Opcode = 0x07
	WriteLast          Opcode = 0x08
	WriteLastImm       Opcode = 0x09
	WriteOnly          Opcode = 0x0a
	WriteOnlyImm       Opcode = 0x0b
	ReadRequest        Opcode = 0x0c
	ReadResponseFirst  Opcode = 0x0d
	ReadResponseMiddle Opcode = 0x0e
	ReadResponseLast   Opcode = 0x0f
	ReadResponseOnly   Opcode = 0x10
	Acknowledge        Opcode = 0x11
	AtomicAcknowledge  Opcode = 0x12
	CompareSwap        Opcode = 0x13
	FetchAdd           Opcode = 0x14
	SendLastInv        Opcode = 0x16 // with invalidate: decoded so that it can be refused
	SendOnlyInv        Opcode = 0x17
)

// Header is the set of extended headers that follow the BTH, in the order of
// these bits.
type Header uint8

const (
	HasRETH      Header = 1 << iota // 16 bytes
	HasAtomicETH                    // 28 bytes
	HasAETH                         // 4 bytes
	HasAtomicAck                    // 8 bytes
	HasImm                          // 4 bytes
	HasIETH                         // 4 bytes
	// HasPayload is set for opcodes that may carry payload.
	HasPayload
)

type opcodeInfo struct {
	name    string
	headers Header
	len     uint8 // BTH and extended headers
}

var opcodes = [32]opcodeInfo{
	SendFirst:          {"SEND_FIRST", HasPayload, 12},
	SendMiddle:         {"SEND_MIDDLE", HasPayload, 12},
	SendLast:           {"SEND_LAST", HasPayload, 12},
	SendLastImm:        {"SEND_LAST_IMM", HasImm | HasPayload, 16},
	SendOnly:           {"SEND_ONLY", HasPayload, 12},
	SendOnlyImm:        {"SEND_ONLY_IMM", HasImm | HasPayload, 16},
	WriteFirst:         {"WRITE_FIRST", HasRETH | HasPayload, 28},
	WriteMiddle:        {"WRITE_MIDDLE", HasPayload, 12},
	WriteLast:          {"WRITE_LAST", HasPayload, 12},
	WriteLastImm:       {"WRITE_LAST_IMM", HasImm | HasPayload, 16},
	WriteOnly:          {"WRITE_ONLY", HasRETH | HasPayload, 28},
	WriteOnlyImm:       {"WRITE_ONLY_IMM", HasRETH | HasImm | HasPayload, 32},
	ReadRequest:        {"READ_REQUEST", HasRETH, 28},
	ReadResponseFirst:  {"READ_RESP_FIRST", HasAETH | HasPayload, 16},
	ReadResponseMiddle: {"READ_RESP_MIDDLE", HasPayload, 12},
	ReadResponseLast:   {"READ_RESP_LAST", HasAETH | HasPayload, 16},
	ReadResponseOnly:   {"READ_RESP_ONLY", HasAETH | HasPayload, 16},
	Acknowledge:        {"ACK", HasAETH, 16},
	AtomicAcknowledge:  {"ATOMIC_ACK", HasAETH | HasAtomicAck, 24},
	CompareSwap:        {"CMP_SWAP", HasAtomicETH, 40},
	FetchAdd:           {"FETCH_ADD", HasAtomicETH, 40},
	SendLastInv:        {"SEND_LAST_INV", HasIETH | HasPayload, 16},
	SendOnlyInv:        {"SEND_ONLY_INV", HasIETH | HasPayload, 16},
}

// Known reports an opcode of the reliable connection service.
func (o Opcode) Known() bool { return o < 32 && opcodes[o].len != 0 }

// Headers are the extended headers of a known opcode.
func (o Opcode) Headers() Header { return opcodes[o&31].headers }

// HeaderLen is the length of BTH and extended headers of a known opcode.
func (o Opcode) HeaderLen() int { return int(opcodes[o&31].len) }

// Response reports an opcode that a responder sends.
func (o Opcode) Response() bool { return o >= ReadResponseFirst && o <= AtomicAcknowledge }

func (o Opcode) String() string {
	if o.Known() {
		return opcodes[o].name
	}
	return fmt.Sprintf("opcode 0x%02x", uint8(o))
}
