package object

import (
	"encoding/binary"
	"fmt"

	"github.com/zeebo/xxh3"
)

// Hex is how a 64-bit hash is written everywhere: 16 lower-case digits.
func Hex(h uint64) string {
	const digits = "0123456789abcdef"
	var b [16]byte
	for i := range b {
		b[i] = digits[h>>(60-4*i)&15]
	}
	return string(b[:])
}

// ParseHex reads exactly what Hex writes.
func ParseHex(s string) (uint64, bool) {
	if len(s) != 16 {
		return 0, false
	}
	var h uint64
	for i := range 16 {
		c := s[i]
		switch {
		case '0' <= c && c <= '9':
			h = h<<4 | uint64(c-'0')
		case 'a' <= c && c <= 'f':
			h = h<<4 | uint64(c-'a'+10)
		default:
			return 0, false
		}
	}
	return h, true
}

// Sum is the xxh3-64 of b.
func Sum(b []byte) string { return Hex(xxh3.Hash(b)) }

// fieldHash hashes fields so that no two different lists of fields give the same
// bytes: numbers have a fixed width, strings carry their length.
type fieldHash struct {
	h *xxh3.Hasher
	b [8]byte
}

func newFieldHash() *fieldHash { return &fieldHash{h: xxh3.New()} }

func (f *fieldHash) num(vs ...uint64) {
	for _, v := range vs {
		binary.LittleEndian.PutUint64(f.b[:], v)
		_, _ = f.h.Write(f.b[:])
	}
}

func (f *fieldHash) str(ss ...string) {
	for _, s := range ss {
		f.num(uint64(len(s)))
		_, _ = f.h.WriteString(s)
	}
}

func (f *fieldHash) sum() string { return Hex(f.h.Sum64()) }

// LayoutHash covers everything by which a reader finds and checks the bytes of an
// object: its identity and size, the policy and epoch, and of each stripe where
// it is, what part it is and what it must hash to.
func LayoutHash(o *Object) string {
	f := newFieldHash()
	f.str("railstore layout 1", o.Key.Namespace, o.Key.Name, o.Handle, o.XXH3, o.Placement.Policy)
	f.num(o.Generation, o.LayoutVersion, o.Size, o.StripeBytes, o.Placement.Epoch, uint64(len(o.Placement.Stripes)))
	for i := range o.Placement.Stripes {
		s := &o.Placement.Stripes[i]
		f.num(uint64(s.Index), uint64(int64(s.Shard)), uint64(int64(s.Dir)), s.Offset, s.Length)
		f.str(s.XXH3, s.File)
	}
	return f.sum()
}

// handlePrefix carries the version of the handle's form.
const handlePrefix = "rso1"

// MaxHandleBytes bounds a handle on the wire and in a stripe file.
const MaxHandleBytes = 128

// NewHandle makes the handle of one generation. It is unique for each put, also
// when a lost catalog starts its generations anew: created is nanoseconds.
func NewHandle(k Key, generation, layoutVersion, size, stripeBytes uint64, created int64) string {
	f := newFieldHash()
	f.str("railstore handle 1", k.Namespace, k.Name)
	f.num(generation, layoutVersion, size, stripeBytes, uint64(created))
	return fmt.Sprintf("%s-%s-g%d-l%d-%s", handlePrefix, keyDigest(k), generation, layoutVersion, f.sum())
}
