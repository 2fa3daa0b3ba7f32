package object

import (
	"encoding/binary"
	"fmt"

	"github.com/railstore/railstore/verbs"
)

// Operations of the stripe protocol, on top of a lane's request and response.
const (
	OpStoreStripe  uint16 = 0x0101 // the shard READs the stripe from the named memory and stores it
	OpFetchStripe  uint16 = 0x0102 // the shard WRITEs the stripe into the named memory
	OpDeleteStripe uint16 = 0x0103
)

// A request, little-endian. The version changes with the layout of these bytes.
//
//	 0  u8  version 2
//	 1  u8  flags: 1 the shard checks the stripe's checksum before it answers
//	 2  u16 directory
//	 4  u32 stripe index
//	 8  u64 generation
//	16  u64 layout version
//	24  u64 length of the stripe
//	32  u64 xxh3-64 of the stripe
//	40  u32 shard that is meant
//	44  u16 length of the handle
//	46  u16 length of the file name
//	48  u64 address of the client's memory
//	56  u64 its length
//	64  u32 its rkey
//	68  u32 rkey of its second part, where the memory lies in two MRs; else 0
//	72  u64 address of the second part; else 0
//	80  u64 its length; 0: there is none
//	88  handle, file name, nothing more
const (
	messageVersion = 2
	requestHeader  = 88
	maxFileBytes   = 255
	// MaxRequestBytes is what a lane's slots must carry for this protocol.
	MaxRequestBytes = requestHeader + MaxHandleBytes + maxFileBytes
	flagVerify      = 1
)

// stripeRequest is any of the three requests; a removal names no memory.
type stripeRequest struct {
	StripeRef
	shard  uint32
	verify bool
	// memory is the stripe's place at the client: in one MR, or in two that follow
	// each other. What is not used is zero.
	memory [maxParts]verbs.RemoteRegion
}

// maxParts is in how many MRs one stripe may lie.
const maxParts = 2

// room is the length of the memory at the client. It reports false for parts that no
// memory can have.
func (r *stripeRequest) room() (n uint64, ok bool) {
	for _, m := range r.memory {
		if m.Addr+m.Length < m.Addr || n+m.Length < n {
			return 0, false
		}
		n += m.Length
	}
	return n, true
}

func (r *stripeRequest) size() int { return requestHeader + len(r.Handle) + len(r.File) }

// encode writes the request into dst, which has at least size bytes.
func (r *stripeRequest) encode(dst []byte) (int, error) {
	if len(r.Handle) > MaxHandleBytes || len(r.File) > maxFileBytes || r.Dir < 0 || r.Dir > 1<<16-1 || len(dst) < r.size() {
		return 0, fmt.Errorf("%w: a handle of %d bytes, a file name of %d, directory %d, room for %d", ErrBadRequest, len(r.Handle), len(r.File), r.Dir, len(dst))
	}
	le := binary.LittleEndian
	dst[0], dst[1] = messageVersion, 0
	if r.verify {
		dst[1] = flagVerify
	}
	le.PutUint16(dst[2:], uint16(r.Dir))
	le.PutUint32(dst[4:], r.Index)
	le.PutUint64(dst[8:], r.Generation)
	le.PutUint64(dst[16:], r.LayoutVersion)
	le.PutUint64(dst[24:], r.Length)
	le.PutUint64(dst[32:], r.XXH3)
	le.PutUint32(dst[40:], r.shard)
	le.PutUint16(dst[44:], uint16(len(r.Handle)))
	le.PutUint16(dst[46:], uint16(len(r.File)))
	le.PutUint64(dst[48:], r.memory[0].Addr)
	le.PutUint64(dst[56:], r.memory[0].Length)
	le.PutUint32(dst[64:], r.memory[0].RKey)
	le.PutUint32(dst[68:], r.memory[1].RKey)
	le.PutUint64(dst[72:], r.memory[1].Addr)
	le.PutUint64(dst[80:], r.memory[1].Length)
	n := requestHeader
	n += copy(dst[n:], r.Handle)
	n += copy(dst[n:], r.File)
	return n, nil
}

// decodeRequest reads a request. Nothing of it refers to b afterwards.
func decodeRequest(b []byte) (stripeRequest, error) {
	le := binary.LittleEndian
	if len(b) < requestHeader {
		return stripeRequest{}, fmt.Errorf("%w: %d bytes, a request has at least %d", ErrBadRequest, len(b), requestHeader)
	}
	if b[0] != messageVersion {
		return stripeRequest{}, fmt.Errorf("%w: version %d of the stripe protocol, this shard speaks %d", ErrBadRequest, b[0], messageVersion)
	}
	h, f := int(le.Uint16(b[44:])), int(le.Uint16(b[46:]))
	switch {
	case b[1]&^flagVerify != 0:
		return stripeRequest{}, fmt.Errorf("%w: unknown flags %#x", ErrBadRequest, b[1])
	case h > MaxHandleBytes || f > maxFileBytes || len(b) != requestHeader+h+f:
		return stripeRequest{}, fmt.Errorf("%w: %d bytes with a handle of %d and a file name of %d", ErrBadRequest, len(b), h, f)
	}
	return stripeRequest{
		StripeRef: StripeRef{
			Identity: Identity{
				Handle: string(b[requestHeader : requestHeader+h]), Generation: le.Uint64(b[8:]),
				LayoutVersion: le.Uint64(b[16:]), Index: le.Uint32(b[4:]),
			},
			Dir: int(le.Uint16(b[2:])), File: string(b[requestHeader+h:]), Length: le.Uint64(b[24:]), XXH3: le.Uint64(b[32:]),
		},
		shard: le.Uint32(b[40:]), verify: b[1]&flagVerify != 0,
		memory: [maxParts]verbs.RemoteRegion{
			{Addr: le.Uint64(b[48:]), Length: le.Uint64(b[56:]), RKey: le.Uint32(b[64:])},
			{Addr: le.Uint64(b[72:]), Length: le.Uint64(b[80:]), RKey: le.Uint32(b[68:])},
		},
	}, nil
}

// A response with status 0, little-endian. With any other status the response is
// text for people.
//
//	 0  u8  version 2
//	 1  u8  1: the stripe to be removed was there
//	 2  zeros
//	 8  u64 length of the stripe
//	16  u64 xxh3-64 of the stripe, as stored with it
const (
	responseBytes = 24
	// maxReasonBytes bounds the text of an error.
	maxReasonBytes = 1024
	// MaxResponseBytes is what a lane's slots must carry for this protocol.
	MaxResponseBytes = maxReasonBytes
)

type stripeResponse struct {
	existed bool
	length  uint64
	xxh3    uint64
}

func (r *stripeResponse) encode(dst []byte) int {
	b := dst[:responseBytes]
	clear(b)
	b[0] = messageVersion
	if r.existed {
		b[1] = 1
	}
	binary.LittleEndian.PutUint64(b[8:], r.length)
	binary.LittleEndian.PutUint64(b[16:], r.xxh3)
	return responseBytes
}

func decodeResponse(b []byte) (stripeResponse, error) {
	if len(b) != responseBytes || b[0] != messageVersion || b[1] > 1 {
		return stripeResponse{}, fmt.Errorf("%w: the shard's answer of %d bytes is not one of the stripe protocol", ErrInternal, len(b))
	}
	return stripeResponse{existed: b[1] == 1, length: binary.LittleEndian.Uint64(b[8:]), xxh3: binary.LittleEndian.Uint64(b[16:])}, nil
}
