package object

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/zeebo/xxh3"
)

// DefaultNamespace is where names without a namespace live.
const DefaultNamespace = "default"

// ParseKey reads "namespace/name"; the name may contain further slashes. Without
// a slash the namespace is DefaultNamespace.
func ParseKey(s string) (Key, error) {
	k := Key{Namespace: DefaultNamespace, Name: s}
	if ns, name, ok := strings.Cut(s, "/"); ok {
		k = Key{Namespace: ns, Name: name}
	}
	return k, CheckKey(k)
}

// CheckKey refuses what the catalog would refuse, before any work is done.
func CheckKey(k Key) error {
	if err := k.Validate(); err != nil {
		return fmt.Errorf("%w: %w; write namespace/name", ErrName, err)
	}
	return nil
}

// quote shortens what came from outside, so that an error stays one line.
func quote(s string) string {
	if len(s) > 160 {
		return fmt.Sprintf("%q...", s[:157])
	}
	return fmt.Sprintf("%q", s)
}

// canonical is the injective byte form of a key: the namespace's length keeps
// ("a","b/c") and ("a/b","c") apart.
func canonical(k Key) []byte {
	b := make([]byte, 0, 8+len(k.Namespace)+len(k.Name))
	b = binary.AppendUvarint(b, uint64(len(k.Namespace)))
	b = append(b, k.Namespace...)
	return append(b, k.Name...)
}

// homeHash decides where an object's first stripe lives.
func homeHash(k Key) uint64 { return xxh3.Hash(canonical(k)) }

// keyDigest is the part of handles and file names that stands for the key: 128
// bits of SHA-256, because a chosen collision would let one name take another's
// place.
func keyDigest(k Key) string {
	s := sha256.Sum256(canonical(k))
	return hex.EncodeToString(s[:keyDigestBytes])
}

const keyDigestBytes = 16
