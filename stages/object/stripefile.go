package object

import (
	"encoding/binary"
	"fmt"

	"github.com/zeebo/xxh3"
)

// Identity names one stripe of one generation of one object. A stripe file
// carries it, so that a shard, which has no catalog, can tell a stale descriptor
// from a current one.
type Identity struct {
	Handle        string
	Generation    uint64
	LayoutVersion uint64
	Index         uint32
}

// StripeMeta is what a stripe file says of itself.
type StripeMeta struct {
	Identity
	Length uint64
	XXH3   uint64 // of the stripe's bytes
}

// A stripe file is the stripe's bytes, then a trailer. The data comes first so
// that it is aligned for direct I/O. The trailer, little-endian:
//
//	  0  magic "RSSTRIPE"
//	  8  u32 version 1
//	 12  u32 stripe index
//	 16  u64 generation
//	 24  u64 layout version
//	 32  u64 length
//	 40  u64 xxh3-64 of the data
//	 48  u16 length of the handle, then the handle; zeros up to 248
//	248  u64 xxh3-64 of bytes 0..247
//
// The version changes with the layout of these bytes.
const (
	trailerBytes   = 256
	trailerVersion = 1
	trailerMagic   = "RSSTRIPE"
	trailerSumAt   = trailerBytes - 8
	trailerNameAt  = 50
)

func encodeTrailer(dst *[trailerBytes]byte, m *StripeMeta) error {
	if len(m.Handle) > MaxHandleBytes {
		return fmt.Errorf("%w: a handle of %d bytes", ErrBadRequest, len(m.Handle))
	}
	*dst = [trailerBytes]byte{}
	le := binary.LittleEndian
	copy(dst[:], trailerMagic)
	le.PutUint32(dst[8:], trailerVersion)
	le.PutUint32(dst[12:], m.Index)
	le.PutUint64(dst[16:], m.Generation)
	le.PutUint64(dst[24:], m.LayoutVersion)
	le.PutUint64(dst[32:], m.Length)
	le.PutUint64(dst[40:], m.XXH3)
	le.PutUint16(dst[48:], uint16(len(m.Handle)))
	copy(dst[trailerNameAt:], m.Handle)
	le.PutUint64(dst[trailerSumAt:], xxh3.Hash(dst[:trailerSumAt]))
	return nil
}

func decodeTrailer(b []byte) (StripeMeta, error) {
	le := binary.LittleEndian
	switch {
	case len(b) != trailerBytes:
		return StripeMeta{}, fmt.Errorf("%w: a trailer of %d bytes", ErrCorrupt, len(b))
	case string(b[:8]) != trailerMagic:
		return StripeMeta{}, fmt.Errorf("%w: no trailer at its end; it was cut or is not a stripe file", ErrCorrupt)
	case le.Uint64(b[trailerSumAt:]) != xxh3.Hash(b[:trailerSumAt]):
		return StripeMeta{}, fmt.Errorf("%w: the trailer does not match its own checksum", ErrCorrupt)
	case le.Uint32(b[8:]) != trailerVersion:
		return StripeMeta{}, fmt.Errorf("%w: trailer version %d, this program knows %d", ErrCorrupt, le.Uint32(b[8:]), trailerVersion)
	}
	n := int(le.Uint16(b[48:]))
	if n > MaxHandleBytes {
		return StripeMeta{}, fmt.Errorf("%w: a handle of %d bytes", ErrCorrupt, n)
	}
	return StripeMeta{
		Identity: Identity{
			Handle: string(b[trailerNameAt : trailerNameAt+n]), Generation: le.Uint64(b[16:]),
			LayoutVersion: le.Uint64(b[24:]), Index: le.Uint32(b[12:]),
		},
		Length: le.Uint64(b[32:]), XXH3: le.Uint64(b[40:]),
	}, nil
}
