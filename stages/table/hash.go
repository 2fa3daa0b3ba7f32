package table

import (
	"crypto/rand"
	"encoding/binary"
)

// mixer turns keys into hashes, one to one. Its two secrets are those of a store, so
// that who chooses keys cannot choose where they fall.
type mixer struct{ before, times uint64 }

func newMixer(seed uint64) mixer {
	if seed == 0 {
		var b [8]byte
		_, _ = rand.Read(b[:]) // it never fails
		seed = binary.LittleEndian.Uint64(b[:])
	}
	m := mixer{before: 0x9e3779b97f4a7c15, times: 0xd1342543de82ef95}
	a, b := m.of(seed), m.of(^seed)
	return mixer{before: a, times: b | 1}
}

// of is the hash: xor, shifts and odd factors, each of which can be undone.
func (m mixer) of(key uint64) uint64 {
	h := key ^ m.before
	h ^= h >> 32
	h *= 0x9e3779b97f4a7c15
	h ^= h >> 29
	h *= m.times
	return h ^ h>>32
}
