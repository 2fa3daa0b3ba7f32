package verbs

import "fmt"

// WRID is the caller's name for a work request; it comes back in the WC. The
// package gives it no meaning. It is a number, never a Go pointer.
type WRID uint64

// Opcode of a send work request (IBTA 11.4.1.1). RC only.
type Opcode uint8

const (
	OpSend Opcode = iota
	OpSendImm
	OpWrite
	OpWriteImm
	OpRead
	OpCAS
	OpFAA
	opMax
)

var opcodeNames = [...]string{"SEND", "SEND_IMM", "WRITE", "WRITE_IMM", "READ", "CAS", "FAA"}

func (o Opcode) String() string {
	if o < opMax {
		return opcodeNames[o]
	}
	return fmt.Sprintf("opcode %d", uint8(o))
}

// SendFlags of a send work request.
type SendFlags uint8

const (
	Signaled  SendFlags = 1 << iota // ask for a WC; a failed WR always gets one
	Solicited                       // wake the peer's solicited-only waiter
	Fence                           // start only after earlier READs and atomics are done
)

// SGE is one piece of registered local memory.
type SGE struct {
	Addr   uint64 // virtual address inside the MR
	Length uint32 // bytes
	LKey   uint32
}

// SendWR is one send work request. It is flat and holds no pointers: its
// NumSGE scatter/gather elements are taken, in order, from the list that is
// passed beside the batch. RemoteAddr and RKey are used by WRITE, READ, CAS and
// FAA. CompareAdd and Swap are the operands of CAS (compare, swap) and FAA
// (add); an atomic returns the 8 old bytes into its single SGE.
type SendWR struct {
	ID         WRID
	RemoteAddr uint64
	CompareAdd uint64
	Swap       uint64
	RKey       uint32
	Imm        uint32 // host order; big-endian on the wire
	NumSGE     uint16
	Op         Opcode
	Flags      SendFlags
}

// RecvWR is one receive work request; its NumSGE elements come, in order, from
// the list that is passed beside the batch.
type RecvWR struct {
	ID     WRID
	NumSGE uint16
}
