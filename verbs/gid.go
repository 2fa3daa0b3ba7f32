package verbs

import (
	"fmt"
	"net/netip"
	"strings"
)

// GID is a 128-bit global identifier (IBTA 4.1.1). For RoCE it holds an IPv6
// address, or an IPv4 address in its IPv6-mapped form (RoCE v2 annex A17.3.1).
type GID [16]byte

// GIDFromAddr gives the GID of an IP address; IPv4 becomes ::ffff:a.b.c.d.
func GIDFromAddr(a netip.Addr) GID { return GID(a.As16()) }

// Addr is the GID as an IP address; an IPv4-mapped GID becomes IPv4.
func (g GID) Addr() netip.Addr { return netip.AddrFrom16(g).Unmap() }

// IsZero reports an empty table entry.
func (g GID) IsZero() bool { return g == GID{} }

// IsIPv4 reports an IPv4-mapped GID.
func (g GID) IsIPv4() bool { return netip.AddrFrom16(g).Is4In6() }

// IsLinkLocal reports fe80::/10 or an IPv4-mapped 169.254.0.0/16.
func (g GID) IsLinkLocal() bool { return g.Addr().IsLinkLocalUnicast() }

// String is the form of sysfs and ibv_devinfo: eight groups of four hex digits.
func (g GID) String() string {
	var b strings.Builder
	for i := 0; i < 16; i += 2 {
		if i > 0 {
			b.WriteByte(':')
		}
		fmt.Fprintf(&b, "%02x%02x", g[i], g[i+1])
	}
	return b.String()
}

// ParseGID reads what String writes and every textual IP address.
func ParseGID(s string) (GID, error) {
	a, err := netip.ParseAddr(strings.TrimSpace(s))
	if err != nil {
		return GID{}, fmt.Errorf("gid %q: not an IP address or eight groups of hex digits", s)
	}
	return GID(a.As16()), nil
}

// MarshalText writes the form of String.
func (g GID) MarshalText() ([]byte, error) { return []byte(g.String()), nil }

// UnmarshalText reads the forms of ParseGID.
func (g *GID) UnmarshalText(b []byte) error {
	v, err := ParseGID(string(b))
	if err == nil {
		*g = v
	}
	return err
}

// GIDType says which packets a GID table entry sends.
type GIDType uint8

const (
	GIDTypeIB GIDType = iota // InfiniBand, or RoCE v1 on an Ethernet port (sysfs "IB/RoCE v1")
	GIDTypeRoCEv1
	GIDTypeRoCEv2
)

var gidTypeNames = [...]string{"IB", "RoCE v1", "RoCE v2"}

func (t GIDType) String() string {
	if int(t) < len(gidTypeNames) {
		return gidTypeNames[t]
	}
	return fmt.Sprintf("gid type %d", uint8(t))
}

// MarshalText writes the form of String.
func (t GIDType) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

// UnmarshalText reads the form of String.
func (t *GIDType) UnmarshalText(b []byte) error {
	for i, n := range gidTypeNames {
		if n == string(b) {
			*t = GIDType(i)
			return nil
		}
	}
	return fmt.Errorf("gid type %q: want one of %q", b, gidTypeNames)
}

// GIDEntry is one row of a port's GID table.
type GIDEntry struct {
	Index  int
	GID    GID
	Type   GIDType
	NetDev string // net device of the entry; empty on InfiniBand
}
