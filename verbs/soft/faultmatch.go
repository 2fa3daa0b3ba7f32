package soft

import (
	"net/netip"

	"github.com/railstore/railstore/verbs"
	"github.com/railstore/railstore/verbs/soft/internal/wire"
)

// Words of FaultMatch.Opcode.
const (
	wordSend           = "send"
	wordSendImm        = "send_imm"
	wordWrite          = "write"
	wordWriteImm       = "write_imm"
	wordRead           = "read"
	wordReadResponse   = "read_response"
	wordAtomic         = "atomic"
	wordAtomicResponse = "atomic_response"
	wordAck            = "ack"
	wordNak            = "nak"
	wordRNR            = "rnr"
	wordRecv           = "recv"
)

var (
	packetWords = []string{wordSend, wordSendImm, wordWrite, wordWriteImm, wordRead, wordReadResponse, wordAtomic, wordAtomicResponse,
		wordAck, wordNak, wordRNR}
	completionWords = []string{wordSend, wordWrite, wordRead, wordAtomic, wordRecv}
)

// direction of a packet or, for completions, of what has completed.
type direction uint8

const (
	inward direction = iota
	outward
)

func (d direction) String() string {
	if d == inward {
		return "in"
	}
	return "out"
}

// passing is what faults look at in a packet that comes or goes.
type passing struct {
	dir      direction
	op       wire.Opcode
	syndrome uint8 // of an acknowledgement
	peer     netip.AddrPort
	size     int // of the UDP payload
	payload  int
}

// lookAt describes a packet whose header begins b and that is size bytes long.
func lookAt(dir direction, b []byte, size int, peer netip.AddrPort) passing {
	h := wire.BTH(b)
	p := passing{dir: dir, op: h.Opcode(), peer: peer, size: size}
	if !p.op.Known() {
		return p
	}
	n := p.op.HeaderLen()
	p.payload = max(size-n-h.Pad()-wire.ICRCLen, 0)
	if p.op.Headers()&wire.HasAETH != 0 && len(b) >= wire.BTHLen+wire.AETHLen {
		p.syndrome = wire.AETH(b[wire.BTHLen:]).Syndrome()
	}
	return p
}

func isWrite(op wire.Opcode) bool { return op >= wire.WriteFirst && op <= wire.WriteOnlyImm }

// is reports whether an opcode's word fits.
func (p *passing) is(word string) bool {
	op := p.op
	switch word {
	case "":
		return true
	case wordSend:
		return op <= wire.SendOnlyImm || op == wire.SendLastInv || op == wire.SendOnlyInv
	case wordSendImm:
		return op == wire.SendLastImm || op == wire.SendOnlyImm
	case wordWrite:
		return isWrite(op)
	case wordWriteImm:
		return op == wire.WriteLastImm || op == wire.WriteOnlyImm
	case wordRead:
		return op == wire.ReadRequest
	case wordReadResponse:
		return op >= wire.ReadResponseFirst && op <= wire.ReadResponseOnly
	case wordAtomic:
		return op == wire.CompareSwap || op == wire.FetchAdd
	case wordAtomicResponse:
		return op == wire.AtomicAcknowledge
	case wordAck:
		return op == wire.Acknowledge && p.syndrome&wire.SynKind == wire.SynAck
	case wordNak:
		return op == wire.Acknowledge && p.syndrome&wire.SynKind == wire.SynNAK
	case wordRNR:
		return op == wire.Acknowledge && p.syndrome&wire.SynKind == wire.SynRNR
	}
	return false
}

// zeroLength reports a message without payload.
func (p *passing) zeroLength() bool {
	switch p.op {
	case wire.SendOnly, wire.SendOnlyImm, wire.WriteOnly, wire.WriteOnlyImm:
		return p.payload == 0
	}
	return false
}

// completes reports whether a completion's word fits.
func completes(word string, op verbs.WCOpcode, recv bool) bool {
	switch word {
	case "":
		return true
	case wordRecv:
		return recv
	case wordSend:
		return !recv && op == verbs.WCSend
	case wordWrite:
		return !recv && op == verbs.WCWrite
	case wordRead:
		return !recv && op == verbs.WCRead
	case wordAtomic:
		return !recv && (op == verbs.WCCAS || op == verbs.WCFAA)
	}
	return false
}
