package verbs

import "fmt"

// Access rights of a memory region or QP (IBTA 11.2.8.2). Local read is implied.
type Access uint32

const (
	LocalWrite Access = 1 << iota
	RemoteWrite
	RemoteRead
	RemoteAtomic
)

func (a Access) String() string {
	s := "local-read"
	for _, f := range []struct {
		bit Access
		n   string
	}{{LocalWrite, "local-write"}, {RemoteWrite, "remote-write"}, {RemoteRead, "remote-read"}, {RemoteAtomic, "remote-atomic"}} {
		if a&f.bit != 0 {
			s += "|" + f.n
		}
	}
	return s
}

// RemoteRegion is what a peer must know to reach an MR. It is a value: it goes
// into metadata and descriptors.
type RemoteRegion struct {
	Addr   uint64 `json:"addr"`
	Length uint64 `json:"length"`
	RKey   uint32 `json:"rkey"`
}

// Slice is the part of n bytes from off on; it reports false when that is not
// inside the region.
func (r RemoteRegion) Slice(off, n uint64) (RemoteRegion, bool) {
	if off > r.Length || n > r.Length-off {
		return RemoteRegion{}, false
	}
	return RemoteRegion{Addr: r.Addr + off, Length: n, RKey: r.RKey}, true
}

// MR is a registered memory region: a Region, or a part of it, made known to one
// device.
type MR struct {
	closer
	pd     *PD
	region *Region
	drv    DriverMR
	addr   uint64
	length uint64
	access Access
}

// Register registers the whole region. Remote write and remote atomic need
// local write (IBTA 10.6.3.1). The region stays the caller's and must outlive
// the MR. One that is longer than the device's max_mr_size is refused: an MR has
// one pair of keys. RegisterSpan cuts it.
func (p *PD) Register(r *Region, access Access) (*MR, error) {
	return p.register(r, 0, uint64(r.Len()), access)
}

// register registers a part of the region.
func (p *PD) register(r *Region, off, n uint64, access Access) (*MR, error) {
	const op = "reg_mr"
	dev := p.ctx.name
	if access&(RemoteWrite|RemoteAtomic) != 0 && access&LocalWrite == 0 {
		return nil, Errorf(ErrInvalid, op, dev, "access %v: remote write and remote atomic need local write", access)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mem == nil {
		return nil, Errorf(ErrClosed, op, dev, "the memory was unmapped")
	}
	if p.ctx.attr.MaxMRSize > 0 && n > p.ctx.attr.MaxMRSize {
		return nil, Errorf(ErrNoMemory, op, dev, "%d bytes: the device registers at most %d at once", n, p.ctx.attr.MaxMRSize)
	}
	if err := p.addChild(op, &p.mrs); err != nil {
		return nil, err
	}
	d, err := p.drv.Register(r.mem[off:off+n:off+n], access)
	if err != nil {
		p.dropChild(&p.mrs)
		return nil, wrapDriver(err, op, dev)
	}
	r.mrs.Add(1)
	return &MR{pd: p, region: r, drv: d, addr: r.Addr() + off, length: n, access: access}, nil
}

// LKey and RKey are the local and remote keys; they differ and are not
// interchangeable.
func (m *MR) LKey() uint32 { return m.drv.LKey() }

// RKey is the key that peers use.
func (m *MR) RKey() uint32 { return m.drv.RKey() }

// Len is the registered length in bytes.
func (m *MR) Len() uint64 { return m.length }

// Access are the rights it was registered with.
func (m *MR) Access() Access { return m.access }

// SGE is the part of n bytes from off on. It panics when that is not inside the
// MR: offsets are the program's own, what a peer says goes through Contains.
func (m *MR) SGE(off, n uint64) SGE {
	if !m.Contains(off, n) || n > 1<<32-1 {
		panic(fmt.Sprintf("verbs: sge %d+%d outside a memory region of %d bytes", off, n, m.length))
	}
	return SGE{Addr: m.addr + off, Length: uint32(n), LKey: m.drv.LKey()}
}

// Contains reports whether n bytes from off on are inside the MR.
func (m *MR) Contains(off, n uint64) bool { return off <= m.length && n <= m.length-off }

// Remote is what a peer must know to reach the whole MR.
func (m *MR) Remote() RemoteRegion {
	return RemoteRegion{Addr: m.addr, Length: m.length, RKey: m.drv.RKey()}
}

// Close deregisters. When it returns, no packet reaches the memory through this
// MR any more. An error means that this is not sure: leak the region then.
func (m *MR) Close() error {
	return m.close("dereg_mr", m.pd.ctx.name, "children", func() error {
		if err := m.drv.Close(); err != nil {
			return err
		}
		m.region.mrs.Add(-1)
		m.pd.dropChild(&m.pd.mrs)
		return nil
	})
}
