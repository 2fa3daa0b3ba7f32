package lane

import (
	"encoding/binary"
	"hash/crc32"
	"math/bits"

	"github.com/railstore/railstore/verbs"
)

// Version of the layouts in doc.go. A peer with another one is refused.
const Version = 1

const (
	descMagic = 0x44_4c_53_52 // "RSLD"
	headMagic = 0x52_4c_53_52 // "RSLR"
	descBytes = 64
	headBytes = 64
)

// States in a word.
const (
	wordReady = 1 // a request is in the slot
	wordDone  = 2 // a response is in the slot
)

// word is a commit or status word: sequence, generation, state and check.
type word uint64

func makeWord(seq uint32, gen uint16, state uint8) word {
	w := uint64(seq) | uint64(gen)<<32 | uint64(state)<<48
	return word(w | uint64(wordCheck(w))<<56)
}

// wordCheck is never what an all-zero word would need.
func wordCheck(w uint64) byte {
	w &= 1<<56 - 1
	w ^= w >> 32
	w ^= w >> 16
	w ^= w >> 8
	return byte(w) ^ 0xa5
}

func (w word) seq() uint32  { return uint32(w) }
func (w word) gen() uint16  { return uint16(w >> 32) }
func (w word) state() uint8 { return uint8(w >> 48) }
func (w word) ok() bool     { return byte(w>>56) == wordCheck(uint64(w)) }

var bigEndian = binary.NativeEndian.Uint16([]byte{1, 0}) != 1

// loadWord reads a word that a peer may be writing.
func loadWord(b []byte) word {
	v := verbs.LoadWord(b)
	if bigEndian {
		v = bits.ReverseBytes64(v)
	}
	return word(v)
}

// putWord writes a word into this end's own staging memory.
func putWord(b []byte, w word) { binary.LittleEndian.PutUint64(b, uint64(w)) }

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// desc is the descriptor at the start of a request slot.
type desc []byte

func (d desc) magic() uint32      { return binary.LittleEndian.Uint32(d[0:]) }
func (d desc) version() uint16    { return binary.LittleEndian.Uint16(d[4:]) }
func (d desc) op() uint16         { return binary.LittleEndian.Uint16(d[6:]) }
func (d desc) seq() uint32        { return binary.LittleEndian.Uint32(d[8:]) }
func (d desc) generation() uint32 { return binary.LittleEndian.Uint32(d[12:]) }
func (d desc) slot() uint16       { return binary.LittleEndian.Uint16(d[16:]) }
func (d desc) flags() uint16      { return binary.LittleEndian.Uint16(d[18:]) }
func (d desc) label() uint32      { return binary.LittleEndian.Uint32(d[20:]) }
func (d desc) payload() uint32    { return binary.LittleEndian.Uint32(d[24:]) }
func (d desc) capacity() uint32   { return binary.LittleEndian.Uint32(d[28:]) }
func (d desc) token() uint64      { return binary.LittleEndian.Uint64(d[32:]) }
func (d desc) deadline() uint64   { return binary.LittleEndian.Uint64(d[40:]) } // µs from now, 0: none
func (d desc) checksum() uint32   { return binary.LittleEndian.Uint32(d[60:]) }

type descFields struct {
	op, flags, slot   uint16
	seq, generation   uint32
	label             uint32
	payload, capacity uint32
	token, deadline   uint64
}

func (d desc) put(f *descFields) {
	le := binary.LittleEndian
	le.PutUint32(d[0:], descMagic)
	le.PutUint16(d[4:], Version)
	le.PutUint16(d[6:], f.op)
	le.PutUint32(d[8:], f.seq)
	le.PutUint32(d[12:], f.generation)
	le.PutUint16(d[16:], f.slot)
	le.PutUint16(d[18:], f.flags)
	le.PutUint32(d[20:], f.label)
	le.PutUint32(d[24:], f.payload)
	le.PutUint32(d[28:], f.capacity)
	le.PutUint64(d[32:], f.token)
	le.PutUint64(d[40:], f.deadline)
	clear(d[48:60])
}

// sum covers the descriptor up to its checksum and, unless headerOnly, the
// payload behind it.
func sum(head []byte, payload []byte, headerOnly bool) uint32 {
	c := crc32.Update(0, castagnoli, head[:60])
	if !headerOnly {
		c = crc32.Update(c, castagnoli, payload)
	}
	return c
}

func putSum(head []byte, v uint32) { binary.LittleEndian.PutUint32(head[60:], v) }

// head is the header at the start of a response slot.
type head []byte

func (h head) magic() uint32      { return binary.LittleEndian.Uint32(h[0:]) }
func (h head) version() uint16    { return binary.LittleEndian.Uint16(h[4:]) }
func (h head) flags() uint16      { return binary.LittleEndian.Uint16(h[6:]) }
func (h head) seq() uint32        { return binary.LittleEndian.Uint32(h[8:]) }
func (h head) generation() uint32 { return binary.LittleEndian.Uint32(h[12:]) }
func (h head) slot() uint16       { return binary.LittleEndian.Uint16(h[16:]) }
func (h head) status() int32      { return int32(binary.LittleEndian.Uint32(h[20:])) }
func (h head) bytes() uint32      { return binary.LittleEndian.Uint32(h[24:]) }
func (h head) checksum() uint32   { return binary.LittleEndian.Uint32(h[60:]) }

// flagPlaced says that the payload was put there by other WRITEs of the same QP
// and is not in the checksum.
const flagPlaced = 1

func (h head) put(flags uint16, seq, generation uint32, slot uint16, status int32, n uint32) {
	le := binary.LittleEndian
	le.PutUint32(h[0:], headMagic)
	le.PutUint16(h[4:], Version)
	le.PutUint16(h[6:], flags)
	le.PutUint32(h[8:], seq)
	le.PutUint32(h[12:], generation)
	le.PutUint16(h[16:], slot)
	le.PutUint16(h[18:], 0)
	le.PutUint32(h[20:], uint32(status))
	le.PutUint32(h[24:], n)
	clear(h[28:60])
}

// An immediate names the slot and the low half of the sequence. The word in
// memory is what counts; the immediate only says where to look.
func makeImm(slot uint16, seq uint32) uint32 { return uint32(slot)<<16 | seq&0xffff }
func immSlot(imm uint32) int                 { return int(imm >> 16) }
