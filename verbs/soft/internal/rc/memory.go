package rc

import (
	"encoding/binary"

	"github.com/railstore/railstore/verbs"
)

// Memory is how a connection reaches registered memory. A slice is used only
// during the call that got it; slices in Packet.Frags until the Output is reset.
// It is asked packet by packet, so memory that goes away in the middle of a
// message is noticed; it is never asked for 0 bytes.
type Memory interface {
	// Local is the memory of a local key; write asks for the right to write. A
	// status other than WCSuccess (WCLocProt) fails the work request.
	Local(lkey uint32, addr uint64, n uint32, write bool) ([]byte, verbs.WCStatus)
	// Remote is the memory that a peer names, when the key exists, the range is
	// inside it and it grants need.
	Remote(rkey uint32, addr uint64, n uint64, need verbs.Access) ([]byte, bool)
}

// place copies payload into memory. When its last eight bytes are an aligned word,
// that word becomes visible at once and after all bytes before it (StoreWord is a
// release store), so that a reader may poll it as a commit word.
func place(dst, src []byte) {
	n := len(src) - 8
	if n >= 0 && (verbs.AddrOf(dst)+uint64(n))&7 == 0 {
		word := binary.NativeEndian.Uint64(src[n:])
		if n > 0 {
			copy(dst[:n], src[:n])
		}
		verbs.StoreWord(dst[n:n+8], word)
		return
	}
	copy(dst, src)
}

// position remembers where in a list of elements a message was, so that going on
// costs nothing: element index starts at byte base of the message.
type position struct {
	index int
	base  uint32
}

// seek moves to the element that holds byte off, which exists unless off is the
// length of the message.
func (p *position) seek(sges []verbs.SGE, off uint32) {
	if off < p.base || p.index > len(sges) {
		*p = position{}
	}
	for p.index < len(sges) && off-p.base >= sges[p.index].Length {
		p.base += sges[p.index].Length
		p.index++
	}
}

// gather appends the memory of n bytes from off on to out's fragments.
func (c *Conn) gather(sges []verbs.SGE, at *position, off, n uint32, out *Output) verbs.WCStatus {
	at.seek(sges, off)
	for n > 0 {
		s := &sges[at.index]
		skip := off - at.base
		k := min(n, s.Length-skip)
		if k > 0 {
			b, st := c.cfg.Mem.Local(s.LKey, s.Addr+uint64(skip), k, false)
			if st != verbs.WCSuccess {
				return st
			}
			out.frags = append(out.frags, b)
			n -= k
			off += k
		}
		if n > 0 {
			at.base += s.Length
			at.index++
		}
	}
	return verbs.WCSuccess
}

// scatter copies src to the memory of a message from byte off on. The message is
// long enough for it.
func (c *Conn) scatter(sges []verbs.SGE, at *position, off uint32, src []byte) verbs.WCStatus {
	at.seek(sges, off)
	for len(src) > 0 {
		s := &sges[at.index]
		skip := off - at.base
		k := min(uint32(len(src)), s.Length-skip)
		if k > 0 {
			b, st := c.cfg.Mem.Local(s.LKey, s.Addr+uint64(skip), k, true)
			if st != verbs.WCSuccess {
				return st
			}
			place(b, src[:k])
			src = src[k:]
			off += k
		}
		if len(src) > 0 {
			at.base += s.Length
			at.index++
		}
	}
	return verbs.WCSuccess
}

// putOld stores the old value that an atomic returned, in host order.
func (c *Conn) putOld(w *sendWQE, v uint64) verbs.WCStatus {
	s := &c.sq.elements(c.sq.head, w)[0]
	b, st := c.cfg.Mem.Local(s.LKey, s.Addr, 8, true)
	if st != verbs.WCSuccess {
		return st
	}
	var src [8]byte
	binary.NativeEndian.PutUint64(src[:], v)
	place(b, src[:])
	return verbs.WCSuccess
}
