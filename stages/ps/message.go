package ps

import (
	"encoding/binary"
	"fmt"
	"strings"

	"github.com/railstore/railstore/verbs"
)

// Family is the upper byte of the operations.
const Family = 0x02

// Operations of the slot protocol, on top of a lane's request and response.
const (
	OpGet     uint16 = 0x0201 // rows of keys
	OpPut     uint16 = 0x0202 // keys get rows
	OpUpdate  uint16 = 0x0203 // gradients, by the table's optimizer
	OpExists  uint16 = 0x0204
	OpDelete  uint16 = 0x0205
	OpClear   uint16 = 0x0206 // all rows of a table
	OpInit    uint16 = 0x0207 // a table, if there is none
	OpDrop    uint16 = 0x0208
	OpTables  uint16 = 0x0209 // lists tables
	OpStats   uint16 = 0x020a // JSON for tools
	OpSave    uint16 = 0x020b // a snapshot, into a file of the shard
	OpLoad    uint16 = 0x020c
	OpBarrier uint16 = 0x020d // answered when what was begun before has ended
	OpForget  uint16 = 0x020e // a client's tokens: it will send none any more
	OpScan    uint16 = 0x020f // keys of a table, piece by piece
)

var opNames = map[uint16]string{
	OpGet: "get", OpPut: "put", OpUpdate: "update", OpExists: "exists", OpDelete: "delete", OpClear: "clear", OpInit: "init",
	OpDrop: "drop", OpTables: "tables", OpStats: "stats", OpSave: "save", OpLoad: "load", OpBarrier: "barrier", OpForget: "forget", OpScan: "scan",
}

func opName(op uint16) string {
	if s, ok := opNames[op]; ok {
		return s
	}
	return fmt.Sprintf("operation %#04x", op)
}

// Every request begins with these bytes, little-endian. The version changes with their
// layout.
//
//	  0  u8   version 1
//	  1  u8   put protocol: 1 or 2 for PUT, else 0
//	  2  u16  flags
//	  4  u32  keys
//	  8  u32  floats of a row; 0 where no rows are concerned
//	 12  u32  zero
//	 16  u64  client of the token
//	 24  u64  sequence of the token; 0: none
//	 32  u64  address of the client's memory for rows
//	 40  u64  its length
//	 48  u32  its rkey
//	 52  u32  zero
//	 56       name of the table, padded with zeros; empty where none is concerned
//	120       keys, u64 each; then rows or gradients (push), or what the operation says
const (
	messageVersion = 1
	headerBytes    = 120
	nameBytes      = 64
	maxName        = 63
)

// Flags of a request.
const (
	// flagMemory: rows go through the client's memory: the shard READs them (PUT, UPDATE) or
	// WRITEs them (GET).
	flagMemory uint16 = 1
	// flagFallback: a GET with flagMemory may be answered in the slot instead.
	flagFallback uint16 = 2
	// flagExact: TABLES lists the named table only.
	flagExact uint16 = 4
)

// flagsOf are the flags that an operation knows.
func flagsOf(op uint16) uint16 {
	switch op {
	case OpGet:
		return flagMemory | flagFallback
	case OpPut, OpUpdate:
		return flagMemory
	case OpTables:
		return flagExact
	}
	return 0
}

// waits is the lane's flag of a request that the poller must not serve.
const waits uint16 = 1

// MaxPiece is the most that goes through a client's memory in one request: the longest
// row, or as many shorter ones as fit.
const MaxPiece = 256 << 10

// request is the part of a request that all have. It refers to no memory of the slot.
type request struct {
	protocol uint8
	flags    uint16
	keys     int
	dim      int
	client   uint64
	sequence uint64
	memory   verbs.RemoteRegion
	name     [nameBytes]byte
	nameLen  int
}

func (r *request) setName(s string) {
	r.nameLen = copy(r.name[:maxName], s)
}

// put writes the header into dst, which has headerBytes.
func (r *request) put(dst []byte) {
	b := dst[:headerBytes]
	le := binary.LittleEndian
	clear(b)
	b[0], b[1] = messageVersion, r.protocol
	le.PutUint16(b[2:], r.flags)
	le.PutUint32(b[4:], uint32(r.keys))
	le.PutUint32(b[8:], uint32(r.dim))
	le.PutUint64(b[16:], r.client)
	le.PutUint64(b[24:], r.sequence)
	le.PutUint64(b[32:], r.memory.Addr)
	le.PutUint64(b[40:], r.memory.Length)
	le.PutUint32(b[48:], r.memory.RKey)
	copy(b[56:], r.name[:r.nameLen])
}

// parse reads and checks a header, and gives what follows it. Nothing is allocated unless
// the request is bad.
func (r *request) parse(op uint16, b []byte) (rest []byte, err error) {
	if len(b) < headerBytes {
		return nil, fmt.Errorf("%w: %d bytes, a request has at least %d", ErrBadRequest, len(b), headerBytes)
	}
	le := binary.LittleEndian
	if b[0] != messageVersion {
		return nil, fmt.Errorf("%w: version %d of the table protocol, this shard speaks %d", ErrBadRequest, b[0], messageVersion)
	}
	// Into r first: the peer may change what lies in the slot.
	r.protocol = b[1]
	r.flags = le.Uint16(b[2:])
	keys := le.Uint32(b[4:])
	dim := le.Uint32(b[8:])
	r.client, r.sequence = le.Uint64(b[16:]), le.Uint64(b[24:])
	r.memory = verbs.RemoteRegion{Addr: le.Uint64(b[32:]), Length: le.Uint64(b[40:]), RKey: le.Uint32(b[48:])}
	zeros := le.Uint32(b[12:]) | le.Uint32(b[52:])
	copy(r.name[:], b[56:headerBytes])
	rest = b[headerBytes:]
	switch {
	case zeros != 0:
		return nil, fmt.Errorf("%w: reserved bytes are not zero", ErrBadRequest)
	case r.flags&^flagsOf(op) != 0 || r.flags&flagFallback != 0 && r.flags&flagMemory == 0:
		return nil, fmt.Errorf("%w: flags %#x of %s", ErrBadRequest, r.flags, opName(op))
	case uint64(keys)*8 > uint64(len(rest)):
		return nil, fmt.Errorf("%w: %d keys in %d bytes", ErrBadRequest, keys, len(rest))
	case dim > 1<<16:
		return nil, fmt.Errorf("%w: rows of %d floats", ErrBadRequest, dim)
	case r.memory.Addr+r.memory.Length < r.memory.Addr:
		return nil, fmt.Errorf("%w: %d bytes of memory at %#x", ErrBadRequest, r.memory.Length, r.memory.Addr)
	case r.flags&flagMemory == 0 && r.memory != (verbs.RemoteRegion{}):
		return nil, fmt.Errorf("%w: memory without the flag that says what it is for", ErrBadRequest)
	case op == OpPut && r.protocol != 1 && r.protocol != 2:
		return nil, fmt.Errorf("%w: PUT protocol %d, this shard speaks 1 and 2", ErrBadRequest, r.protocol)
	case op == OpPut && r.protocol == 1 && r.flags != 0:
		return nil, fmt.Errorf("%w: PUT protocol 1 carries rows in the slot only", ErrBadRequest)
	case op != OpPut && r.protocol != 0:
		return nil, fmt.Errorf("%w: a PUT protocol in %s", ErrBadRequest, opName(op))
	case op != OpUpdate && r.sequence != 0 || op != OpUpdate && op != OpForget && r.client != 0:
		return nil, fmt.Errorf("%w: a token in %s", ErrBadRequest, opName(op))
	}
	r.keys, r.dim = int(keys), int(dim)
	r.nameLen = nameBytes
	for i, c := range r.name {
		switch {
		case c == 0 && r.nameLen == nameBytes:
			r.nameLen = i
		case c != 0 && r.nameLen != nameBytes:
			return nil, fmt.Errorf("%w: a table's name goes on after its end", ErrBadRequest)
		}
	}
	if r.nameLen > maxName {
		return nil, fmt.Errorf("%w: a table's name has at most %d bytes", ErrBadRequest, maxName)
	}
	return rest, nil
}

// A response with status 0, little-endian:
//
//	 0  u8   version 1
//	 1  u8   flags: 1 the rows lie in the client's memory; 2 the token was applied before;
//	         4 there are more tables; 8 it still runs
//	 2  u16  zero
//	 4  u32  keys (TABLES, SAVE, LOAD: entries)
//	 8  u32  GET and EXISTS: keys with a row; PUT and UPDATE: keys applied; DELETE: rows removed;
//	         INIT, DROP, FORGET: 1 there was something to do; SAVE, LOAD: tables
//	12  u32  floats of a row
//	16       GET and EXISTS: a bit for each key, lowest first, in u64s; GET: then the rows,
//	         unless they lie in the client's memory; TABLES, SAVE, LOAD: entries; STATS: JSON
const responseHeader = 16

const (
	respPlaced  = 1
	respApplied = 2
	respMore    = 4
)

type response struct {
	flags uint8
	keys  int
	count int
	dim   int
}

func (r *response) put(dst []byte) int {
	b := dst[:responseHeader]
	b[0], b[1] = messageVersion, r.flags
	binary.LittleEndian.PutUint16(b[2:], 0)
	binary.LittleEndian.PutUint32(b[4:], uint32(r.keys))
	binary.LittleEndian.PutUint32(b[8:], uint32(r.count))
	binary.LittleEndian.PutUint32(b[12:], uint32(r.dim))
	return responseHeader
}

// parse reads the header of an answer of status 0 and gives what follows it.
func (r *response) parse(b []byte) (rest []byte, err error) {
	if len(b) < responseHeader || b[0] != messageVersion || b[1]&^(respPlaced|respApplied|respMore|respRunning) != 0 || b[2]|b[3] != 0 {
		return nil, fmt.Errorf("%w: %d bytes that are no answer of the table protocol", ErrBadResponse, len(b))
	}
	le := binary.LittleEndian
	r.flags = b[1]
	r.keys, r.count, r.dim = int(le.Uint32(b[4:])), int(le.Uint32(b[8:])), int(le.Uint32(b[12:]))
	return b[responseHeader:], nil
}

// found is the bytes of a bit for each of n keys.
func foundBytes(n int) int { return (n + 63) / 64 * 8 }

// A response with another status, little-endian. One of a lane itself has no bytes.
//
//	0  u8   version 1
//	1  u8   code, see Code
//	2  u16  zero
//	4  u32  keys of the batch that were applied, the first ones
//	8       text for people
const (
	errorHeader = 8
	maxText     = 1024
)

func putError(dst []byte, code Code, applied int, text string) int {
	if len(dst) < errorHeader {
		return 0
	}
	dst[0], dst[1], dst[2], dst[3] = messageVersion, byte(code), 0, 0
	binary.LittleEndian.PutUint32(dst[4:], uint32(applied))
	return errorHeader + copy(dst[errorHeader:min(len(dst), errorHeader+maxText)], text)
}

func parseError(b []byte) (code Code, applied int, text string) {
	if len(b) < errorHeader || b[0] != messageVersion {
		return CodeNone, 0, ""
	}
	// What a peer says is shown to people: no line breaks, no escapes.
	clean := func(r rune) rune {
		if r < ' ' || r == 0x7f || r == 0xfffd {
			return '?'
		}
		return r
	}
	return Code(b[1]), int(binary.LittleEndian.Uint32(b[4:])), strings.Map(clean, string(b[errorHeader:]))
}
