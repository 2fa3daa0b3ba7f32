package verbs

import (
	"errors"
	"fmt"
)

// Span is a Region, or the front part of one, made known to one device, in as many MRs
// as the device's max_mr_size asks for. All of them but the last have one length, the
// step, unless the span has grown.
type Span struct {
	mrs    []*MR
	step   uint64
	length uint64
	starts []uint64 // of the MRs, in a span that has grown
}

// RegisterSpan registers the whole region, cut at multiples of align where the
// device cannot take it at once: what does not cross a multiple of align lies in
// one MR. It is all or nothing: after an error nothing stays registered, or the
// error says that this is not sure.
func (p *PD) RegisterSpan(r *Region, align uint64, access Access) (*Span, error) {
	const op = "reg_mr"
	s := &Span{length: uint64(r.Len())}
	var err error
	if s.step, err = cutStep(s.length, max(align, 1), p.ctx.attr); err != nil {
		return nil, &Error{Op: op, Device: p.ctx.name, Kind: ErrNoMemory, Err: err}
	}
	for off := uint64(0); ; off += s.step {
		m, err := p.register(r, off, min(s.step, s.length-off), access)
		if err != nil {
			return nil, errors.Join(err, s.Close())
		}
		s.mrs = append(s.mrs, m)
		if s.length-off <= s.step {
			return s, nil
		}
	}
}

// GrowSpan is s with the next n bytes of the region registered, too, as RegisterSpan
// does it; a nil s is empty. Both have the MRs of s, which stays valid for those that
// use it; only the newest is to be closed. After an error s is as it was.
func (p *PD) GrowSpan(s *Span, r *Region, n, align uint64, access Access) (*Span, error) {
	const op = "reg_mr"
	out := &Span{}
	if s != nil {
		out.mrs, out.length, out.step = append(out.mrs, s.mrs...), s.length, s.step
	}
	if n == 0 || out.length+n < n || out.length+n > uint64(r.Len()) {
		return nil, Errorf(ErrInvalid, op, p.ctx.name, "%d bytes from %d on of a region of %d", n, out.length, r.Len())
	}
	step, err := cutStep(n, max(align, 1), p.ctx.attr)
	if err != nil {
		return nil, &Error{Op: op, Device: p.ctx.name, Kind: ErrNoMemory, Err: err}
	}
	old := len(out.mrs)
	for end := out.length + n; out.length < end; {
		m, err := p.register(r, out.length, min(step, end-out.length), access)
		if err != nil {
			errs := []error{err}
			for _, m := range out.mrs[old:] {
				errs = append(errs, m.Close())
			}
			return nil, errors.Join(errs...)
		}
		out.mrs = append(out.mrs, m)
		out.length += m.length
	}
	out.step = max(out.step, step)
	var at uint64
	for _, m := range out.mrs {
		out.starts = append(out.starts, at)
		at += m.length
	}
	return out, nil
}

// cutStep is the length of every MR but the last.
func cutStep(length, align uint64, attr DeviceAttr) (uint64, error) {
	limit := attr.MaxMRSize
	if limit == 0 || length <= limit {
		return length, nil
	}
	step := limit / align * align
	if step == 0 {
		return 0, fmt.Errorf("%d bytes in pieces of %d: the device registers at most %d at once (max_mr_size)", length, align, limit)
	}
	if n := (length-1)/step + 1; attr.MaxMR > 0 && n > uint64(attr.MaxMR) {
		return 0, fmt.Errorf("%d bytes are %d memory regions of %d: the device has room for %d (max_mr), and registers at most %d bytes at once (max_mr_size)",
			length, n, step, attr.MaxMR, limit)
	}
	return step, nil
}

// Len is the registered length in bytes.
func (s *Span) Len() uint64 { return s.length }

// MRs is how many memory regions it is made of.
func (s *Span) MRs() int { return len(s.mrs) }

// Step is the length of every MR but the last, and of the only one; in a span that has
// grown, the longest such length.
func (s *Span) Step() uint64 { return s.step }

// Contains reports whether n bytes from off on are inside.
func (s *Span) Contains(off, n uint64) bool { return off <= s.length && n <= s.length-off }

// At is the MR that holds the n bytes from off on, and where in it they begin. It
// reports false when they are not inside, or not in one MR.
func (s *Span) At(off, n uint64) (m *MR, at uint64, ok bool) {
	if !s.Contains(off, n) {
		return nil, 0, false
	}
	m, at = s.find(off)
	return m, at, m.Contains(at, n)
}

// find is the MR of a byte, or the last one for the end.
func (s *Span) find(off uint64) (*MR, uint64) {
	if s.starts != nil {
		i := len(s.starts) - 1
		for i > 0 && s.starts[i] > off {
			i--
		}
		return s.mrs[i], off - s.starts[i]
	}
	if s.step == 0 {
		return s.mrs[0], off
	}
	i := min(off/s.step, uint64(len(s.mrs)-1))
	return s.mrs[i], off - i*s.step
}

// maxSGE is the longest element: lengths have 32 bits.
const maxSGE = 1 << 31

// SGEs appends the n bytes from off on, an element for each MR that they lie in. It
// panics when they are not inside: offsets are the program's own.
func (s *Span) SGEs(dst []SGE, off, n uint64) []SGE {
	s.mustContain(off, n)
	for n > 0 {
		m, at := s.find(off)
		k := min(n, m.length-at, maxSGE)
		dst = append(dst, m.SGE(at, k))
		off, n = off+k, n-k
	}
	return dst
}

// Remotes appends what a peer must know to reach the n bytes from off on, a region
// for each MR that they lie in. It panics when they are not inside.
func (s *Span) Remotes(dst []RemoteRegion, off, n uint64) []RemoteRegion {
	s.mustContain(off, n)
	for n > 0 {
		m, at := s.find(off)
		k := min(n, m.length-at)
		dst = append(dst, RemoteRegion{Addr: m.addr + at, Length: k, RKey: m.RKey()})
		off, n = off+k, n-k
	}
	return dst
}

func (s *Span) mustContain(off, n uint64) {
	if !s.Contains(off, n) {
		panic(fmt.Sprintf("verbs: %d+%d outside a span of %d bytes", off, n, s.length))
	}
}

// Close deregisters every MR, also after one has failed. An error means as in
// MR.Close: leak the region then.
func (s *Span) Close() error {
	var errs []error
	for _, m := range s.mrs {
		errs = append(errs, m.Close())
	}
	return errors.Join(errs...)
}
