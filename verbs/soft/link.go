package soft

import (
	"fmt"
	"hash/fnv"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/railstore/railstore/verbs"
)

// link is a net device of this host.
type link struct {
	index    int
	name     string
	mtu      int
	flags    net.Flags
	prefixes []netip.Prefix // each with the host's own address
}

func hostLinks() ([]link, error) {
	ifs, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("net devices of this host: %w", err)
	}
	var out []link
	for _, i := range ifs {
		l := link{index: i.Index, name: i.Name, mtu: i.MTU, flags: i.Flags}
		addrs, err := i.Addrs()
		if err != nil {
			continue // it went away between the two calls
		}
		for _, a := range addrs {
			p, err := netip.ParsePrefix(a.String())
			if err == nil {
				l.prefixes = append(l.prefixes, netip.PrefixFrom(p.Addr().Unmap(), p.Bits()))
			}
		}
		out = append(out, l)
	}
	return out, nil
}

// linkOf is the net device that has the address: as its own or, on loopback,
// inside its prefix, all of which is local.
func linkOf(a netip.Addr) (link, bool) {
	links, err := hostLinks()
	if err != nil {
		return link{}, false
	}
	for _, loopback := range []bool{false, true} {
		for _, l := range links {
			for _, p := range l.prefixes {
				own := p.Addr() == a.WithZone("") && (a.Zone() == "" || a.Zone() == l.name)
				if own || loopback && l.flags&net.FlagLoopback != 0 && p.Contains(a) {
					return l, true
				}
			}
		}
	}
	return link{}, false
}

// state is the port's state: a link that has no carrier is down too.
func (l *link) state() verbs.PortState {
	if l.flags&net.FlagUp != 0 && l.flags&net.FlagRunning != 0 {
		return verbs.PortActive
	}
	return verbs.PortDown
}

// gbps is the link's speed as the kernel tells it; 0 where it does not know.
func (l *link) gbps() float64 {
	b, err := os.ReadFile(filepath.Join("/sys/class/net", l.name, "speed"))
	if err != nil {
		return 0
	}
	mbps, err := strconv.ParseFloat(strings.TrimSpace(string(b)), 64)
	if err != nil || mbps <= 0 {
		return 0
	}
	return mbps / 1000
}

// nodeGUID is a stable, locally administered number for an address.
func nodeGUID(a netip.AddrPort) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(a.String()))
	return h.Sum64()&^(1<<56) | 1<<57
}
