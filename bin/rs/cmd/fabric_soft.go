package cmd

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/railstore/railstore/bin/provider"
	"github.com/railstore/railstore/cue/deploy"
	"github.com/railstore/railstore/pipeline"
	"github.com/railstore/railstore/verbs"
	"github.com/railstore/railstore/verbs/fabric"
)

// softAddress is an address of this host that the embedded provider can use.
type softAddress struct {
	Addr    netip.Addr
	NetDev  string
	LinkMTU int
	Running bool // the link has a carrier
}

// softAddresses are the devices of the embedded provider, with the net device of
// each.
func softAddresses() ([]softAddress, error) {
	drv, err := provider.Open("soft", deploy.Rail{})
	if err != nil {
		return nil, err
	}
	devices, err := drv.Devices()
	if err != nil {
		return nil, err
	}
	links, err := net.Interfaces()
	if err != nil {
		return nil, pipeline.Wrap(err, pipeline.LayerResource, "fabric", pipeline.Nowhere)
	}
	where := map[netip.Addr]net.Interface{}
	for _, l := range links {
		addrs, err := l.Addrs()
		if err != nil {
			continue // it went away between the two calls
		}
		for _, x := range addrs {
			if p, err := netip.ParsePrefix(x.String()); err == nil {
				where[zoned(p.Addr().Unmap(), l.Name)] = l
			}
		}
	}
	var out []softAddress
	for _, d := range devices {
		a, err := netip.ParseAddr(d.Name)
		if err != nil {
			continue // not a name that a recipe could have
		}
		l := where[a]
		out = append(out, softAddress{Addr: a, NetDev: l.Name, LinkMTU: l.MTU, Running: l.Flags&net.FlagRunning != 0})
	}
	return out, nil
}

// zoned gives a link-local IPv6 address its net device, without which it is not
// the address of anything.
func zoned(a netip.Addr, link string) netip.Addr {
	if a.Is6() && a.IsLinkLocalUnicast() {
		return a.WithZone(link)
	}
	return a
}

// fabricSoft is one address as a rail.
type fabricSoft struct {
	Rail      string      `json:"rail"` // what to write into a recipe
	Provider  string      `json:"provider"`
	Address   string      `json:"address"`
	NetDev    string      `json:"netdev"`
	State     string      `json:"state"`
	MaxMTU    int         `json:"max_mtu"`
	ActiveMTU int         `json:"active_mtu"`
	MTUSource string      `json:"mtu_source"`
	GIDType   string      `json:"gid_type"`
	Reach     string      `json:"reach"` // network, link, host
	Note      string      `json:"note,omitempty"`
	GIDs      []fabricGID `json:"gids,omitempty"` // with -v
	Error     string      `json:"error,omitempty"`
}

// The reach of an address: other hosts, those on the same segment, this host only.
const (
	reachNetwork = "network"
	reachLink    = "link"
	reachHost    = "host"
)

// softRows are the addresses as rails, those that reach furthest first.
func softRows(addrs []softAddress, nets *fabric.Nets) []fabricSoft {
	out := []fabricSoft{}
	for _, s := range addrs {
		text := s.Addr.String()
		if s.Addr.Is6() {
			text = "[" + text + "]"
		}
		r := fabricSoft{Rail: "soft:" + text, Provider: "soft", Address: s.Addr.String(), NetDev: s.NetDev, State: verbs.PortActive.String(), MaxMTU: 4096, ActiveMTU: verbs.MTUFor(s.LinkMTU),
			MTUSource: fmt.Sprintf("net device %s has MTU %d", s.NetDev, s.LinkMTU), GIDType: verbs.GIDTypeRoCEv2.String(), Reach: reachNetwork}
		if !s.Running {
			r.State = verbs.PortDown.String()
		}
		switch {
		case s.Addr.IsLoopback() || s.NetDev == "lo":
			r.Reach, r.Note = reachHost, "this host only"
			if s.Addr == netip.AddrFrom4([4]byte{127, 0, 0, 1}) {
				r.Note += "; every address in 127.0.0.0/8 does"
			}
		case nets.Overlay(s.NetDev):
			r.Reach, r.Note = reachHost, "container network: this host only"
		case s.Addr.IsLinkLocalUnicast():
			r.Reach, r.Note = reachLink, "link-local: same segment only"
		}
		out = append(out, r)
	}
	rank := map[string]int{reachNetwork: 0, reachLink: 1, reachHost: 2}
	slices.SortStableFunc(out, func(a, b fabricSoft) int {
		return cmp.Compare(rank[a.Reach], rank[b.Reach])
	})
	return out
}

// usual says whether an address is one that people make rails of; the others are
// told with -v.
func (s *fabricSoft) usual() bool {
	return s.Reach == reachNetwork || strings.HasPrefix(s.Address, "127.")
}

// open opens the address as a device and asks it for its port and GID table.
func (s *fabricSoft) open() {
	if err := s.query(); err != nil {
		s.Error = err.Error()
	}
}

func (s *fabricSoft) query() (err error) {
	drv, err := provider.Open("soft", deploy.Rail{})
	if err != nil {
		return err
	}
	ctx, err := verbs.Open(drv, strings.TrimPrefix(s.Rail, "soft:"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ctx.Close()) }()
	p, err := ctx.Port(1)
	if err != nil {
		return err
	}
	table, err := ctx.GIDs(1)
	if err != nil {
		return err
	}
	s.State, s.MaxMTU, s.ActiveMTU = p.State.String(), p.MaxMTU, p.ActiveMTU
	c, err := fabric.Choose(table, deploy.GIDSelector{Select: fabric.SelectAuto}, fabric.Port{Link: p.LinkLayer, NetDev: s.NetDev})
	s.GIDs = fabricGIDs(table, c)
	return err
}
