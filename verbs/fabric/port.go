package fabric

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"syscall"

	"github.com/railstore/railstore/verbs"
)

// Port is a port of a device. For Choose, Link alone is enough: the better the
// rest is known the better it can tell addresses of the wire from others.
type Port struct {
	Number     int
	State      verbs.PortState
	PhysState  PhysState
	Link       verbs.LinkLayer
	Rate       Rate
	LID, SMLID uint16
	LMC        int
	PKeys      []uint16         // without the empty ones
	GIDs       []verbs.GIDEntry // without the empty ones
	GIDSlots   int              // entries of the table, empty ones too

	NetDev  string   // the port's own net device; empty where it is not known
	NetDevs []string // every net device of the GID table, and the port's own
	Nets    *Nets    // of the network namespace
	Only    string   // the one net device whose GIDs may be taken; empty: any

	MaxMTU    int    // bytes; 0 where only the open device knows
	ActiveMTU int    // bytes; 0 likewise
	MTUFrom   string // how ActiveMTU is known: "device", or what it follows from
}

// PhysState is the physical state of a port (IBTA 14.2.5.6, PortPhysicalState).
type PhysState uint8

// Physical states that something can be said about.
const (
	PhysUnknown  PhysState = 0
	PhysSleep    PhysState = 1
	PhysPolling  PhysState = 2
	PhysDisabled PhysState = 3
	PhysTraining PhysState = 4
	PhysLinkUp   PhysState = 5
	PhysRecovery PhysState = 6
	PhysTest     PhysState = 7
)

// The words of "rdma link". ARMED there is the training of the link.
var physNames = [...]string{"NOP", "SLEEP", "POLLING", "DISABLED", "ARMED", "LINK_UP", "LINK_ERROR_RECOVER", "PHY_TEST",
	"UNKNOWN", "OPA_OFFLINE", "UNKNOWN", "OPA_TEST"}

func (s PhysState) String() string {
	if int(s) < len(physNames) {
		return physNames[s]
	}
	return fmt.Sprintf("physical state %d", uint8(s))
}

func (t tree) port(d *Device, dir string, n int) Port {
	p := Port{Number: n, Rate: Rate{}}
	odd := func(file, s string) {
		if s != "" {
			d.note("port %d: %s is %q", n, file, s)
		}
	}
	if s := t.get(path.Join(dir, "state")); s != "" {
		c, ok := coded(s)
		if !ok || c > int(verbs.PortActiveDefer) {
			odd("state", s)
			c = 0
		}
		p.State = verbs.PortState(c)
	}
	if s := t.get(path.Join(dir, "phys_state")); s != "" {
		c, ok := coded(s)
		if !ok {
			odd("phys_state", s)
		}
		p.PhysState = PhysState(c)
	}
	switch s := t.get(path.Join(dir, "link_layer")); s {
	case "InfiniBand":
		p.Link = verbs.LinkInfiniBand
	case "Ethernet":
		p.Link = verbs.LinkEthernet
	case "Unspecified", "Unknown":
	default:
		odd("link_layer", s)
	}
	if s := t.get(path.Join(dir, "rate")); s != "" {
		r, ok := parseRate(s)
		if !ok {
			odd("rate", s)
		}
		p.Rate = r
	}
	for file, to := range map[string]*uint16{"lid": &p.LID, "sm_lid": &p.SMLID} {
		if v, ok := t.integer(path.Join(dir, file)); ok && v >= 0 && v <= 0xffff {
			*to = uint16(v)
		}
	}
	if v, ok := t.integer(path.Join(dir, "lid_mask_count")); ok && v >= 0 && v < 8 {
		p.LMC = int(v)
	}
	for _, i := range t.indexes(path.Join(dir, "pkeys")) {
		if v, ok := t.integer(path.Join(dir, "pkeys", strconv.Itoa(i))); ok && v > 0 && v <= 0xffff {
			p.PKeys = append(p.PKeys, uint16(v))
		}
	}
	t.gids(d, &p, dir)
	return p
}

// gids reads the GID table. Most of its entries are empty: all zero, and their
// attributes answer EINVAL.
func (t tree) gids(d *Device, p *Port, dir string) {
	idx := t.indexes(path.Join(dir, "gids"))
	p.GIDSlots = len(idx)
	attrs := path.Join(dir, "gid_attrs")
	typed := t.has(path.Join(attrs, "types")) // kernels before 4.5 know RoCE v1 only
	for _, i := range idx {
		s, err := t.word(path.Join(dir, "gids", strconv.Itoa(i)))
		if err != nil {
			if !errors.Is(err, syscall.EINVAL) && !isAbsent(err) {
				d.note("port %d: GID %d cannot be read: %v", p.Number, i, cause(err))
			}
			continue
		}
		g, err := verbs.ParseGID(s)
		if err != nil {
			d.note("port %d: GID %d is %q", p.Number, i, s)
			continue
		}
		if g.IsZero() {
			continue
		}
		e := verbs.GIDEntry{Index: i, GID: g, Type: verbs.GIDTypeIB}
		if p.Link == verbs.LinkEthernet {
			e.Type = verbs.GIDTypeRoCEv1
		}
		if typed {
			s, err := t.word(path.Join(attrs, "types", strconv.Itoa(i)))
			switch {
			case err != nil:
				// The entry went away between the two reads, or its address is
				// nobody's: nothing can be sent from it.
				d.note("port %d: GID %d (%v) has no type: %v", p.Number, i, g.Addr(), cause(err))
				continue
			case s == "RoCE v2":
				e.Type = verbs.GIDTypeRoCEv2
			case s != "IB/RoCE v1":
				d.note("port %d: the type of GID %d is %q", p.Number, i, s)
				continue
			}
		}
		e.NetDev = t.get(path.Join(attrs, "ndevs", strconv.Itoa(i)))
		if e.NetDev != "" && !slices.Contains(p.NetDevs, e.NetDev) {
			p.NetDevs = append(p.NetDevs, e.NetDev)
		}
		p.GIDs = append(p.GIDs, e)
	}
}

// Header bytes that the kernel keeps free below the MTU of a net device: for
// adapters (GRH, UDP, BTH, XRC, AtomicETH, ICRC), and for Soft-RoCE.
const (
	adapterHeaders = 40 + 8 + 12 + 4 + 28 + 4
	rxeHeaders     = 80
)

// deriveMTU fills the active MTU of an Ethernet port, which follows from its net
// device; of an InfiniBand port only the subnet manager and the device know it.
func (p *Port) deriveMTU(d *Device, nets *Nets) {
	n := nets.Get(p.NetDev)
	if p.Link != verbs.LinkEthernet || d.Transport() == "iWARP" {
		return
	}
	p.MaxMTU = 4096
	if n.MTU == 0 {
		return
	}
	room := n.MTU - adapterHeaders
	if d.IsRXE() {
		room = n.MTU - rxeHeaders
	}
	for _, m := range []int{4096, 2048, 1024, 512, 256} {
		if room >= m {
			p.ActiveMTU = m
			break
		}
	}
	p.MTUFrom = fmt.Sprintf("net device %s has MTU %d", n.Name, n.MTU)
}

// fits says whether a net device is of a port's link layer.
func (n Net) fits(p *Port) bool {
	switch p.Link {
	case verbs.LinkEthernet:
		return n.link == arpEther
	case verbs.LinkInfiniBand:
		return n.link == arpInfiniBand
	}
	return false
}
