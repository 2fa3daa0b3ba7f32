package lane

import (
	"fmt"

	"github.com/railstore/railstore/verbs"
)

// Memory is the part of a rail's one MR that a lane uses. The lane needs it
// until its Close has returned.
type Memory struct {
	MR    *verbs.MR
	Bytes []byte // the part's bytes; its first is 64-byte aligned
	Off   uint64 // where they are in the MR
	// Generation is what this end published for the lane: it grows with every
	// rebuild, and words of the peer that carry another one are dropped.
	Generation uint32
}

// Peer is what the other end published for this lane.
type Peer struct {
	Slots      verbs.RemoteRegion
	Generation uint32
}

func (m Memory) published(n int) verbs.RemoteRegion {
	r, ok := m.MR.Remote().Slice(m.Off, uint64(n))
	if !ok {
		panic(fmt.Sprintf("lane: %d bytes at %d are not inside the memory region of %d", n, m.Off, m.MR.Len()))
	}
	return r
}

// check says what is wrong with the memory of a lane that needs want bytes.
func (m Memory) check(want int) error {
	switch {
	case m.MR == nil:
		return fmt.Errorf("no memory region")
	case len(m.Bytes) < want:
		return fmt.Errorf("%d bytes of memory: the lane needs %d", len(m.Bytes), want)
	case !m.MR.Contains(m.Off, uint64(want)):
		return fmt.Errorf("memory at %d+%d is not inside the memory region of %d bytes", m.Off, want, m.MR.Len())
	case verbs.AddrOf(m.Bytes)%64 != 0 || m.MR.Remote().Addr+m.Off != verbs.AddrOf(m.Bytes):
		return fmt.Errorf("memory at %#x: want a 64-byte aligned part of the memory region", verbs.AddrOf(m.Bytes))
	}
	return nil
}

func (p Peer) check(want int) error {
	switch {
	case p.Slots.Length < uint64(want):
		return fmt.Errorf("the peer published %d bytes of slots, this configuration has %d: the two ends differ", p.Slots.Length, want)
	case p.Slots.Addr%64 != 0:
		return fmt.Errorf("the peer's slots at %#x are not 64-byte aligned", p.Slots.Addr)
	}
	return nil
}

// window is a part of Memory with its place in the MR.
type window struct {
	b   []byte
	off uint64
	sge verbs.SGE // of the whole, where it is sent from
}

// cut takes the first n bytes off.
func (w *window) cut(n int) window {
	out := window{b: w.b[:n:n], off: w.off}
	w.b, w.off = w.b[n:], w.off+uint64(n)
	return out
}

// part is the ith piece of size stride.
func (w window) part(i, stride int) window {
	return window{b: w.b[i*stride : (i+1)*stride : (i+1)*stride], off: w.off + uint64(i*stride)}
}
