package object

import (
	"sync"

	"github.com/zeebo/xxh3"
)

// inOrder hashes a buffer whose pieces become ready in any order. Whoever makes
// the next piece ready hashes as far as it can; meanwhile the others only leave
// word, so nobody waits for a hash.
type inOrder struct {
	buf   []byte
	piece uint64

	mu    sync.Mutex
	ready []bool
	next  int // first piece that is not hashed
	busy  bool
	hash  *xxh3.Hasher // of the busy goroutine; nil: pieces are only counted
	bytes uint64
}

func newInOrder(buf []byte, piece uint64, n int) *inOrder {
	return &inOrder{buf: buf, piece: piece, ready: make([]bool, n), hash: xxh3.New()}
}

// add says that piece i is ready and does not change any more.
func (x *inOrder) add(i uint32) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.ready[i] = true
	if x.busy {
		return
	}
	x.busy = true
	for x.next < len(x.ready) && x.ready[x.next] {
		lo := uint64(x.next) * x.piece
		hi := min(lo+x.piece, uint64(len(x.buf)))
		x.mu.Unlock()
		if x.hash != nil {
			_, _ = x.hash.Write(x.buf[lo:hi])
		}
		x.mu.Lock()
		x.bytes += hi - lo
		x.next++
	}
	x.busy = false
}

// done reports whether every piece is hashed. Like result it is for after the
// goroutines that add have ended.
func (x *inOrder) done() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.next == len(x.ready)
}

// result is the number of pieces and bytes hashed and their hash.
func (x *inOrder) result() (pieces int, bytes, sum uint64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.hash != nil {
		sum = x.hash.Sum64()
	}
	return x.next, x.bytes, sum
}
