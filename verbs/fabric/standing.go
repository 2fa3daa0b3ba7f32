package fabric

import (
	"fmt"
	"slices"

	"github.com/railstore/railstore/verbs"
)

// standing is what a GID's net device is to the port that has the GID.
type standing uint8

const (
	ownDevice standing = iota // the port's own, or nothing is known of it
	stacked                   // on top of the port's own: a VLAN, a bond, a bridge it is in
	other                     // another one of this host
	elsewhere                 // not in this network namespace
	overlay                   // of a container network or a tunnel: nothing of it is on the wire
)

// standings answers what the choice asks about net devices.
type standings struct {
	own  string
	nets *Nets
}

// newStandings takes the port's own net device, or else the one that every entry
// of the table names.
func newStandings(p Port, table []verbs.GIDEntry) standings {
	s := standings{p.NetDev, p.Nets}
	if s.own == "" && len(table) > 0 {
		s.own = table[0].NetDev
		for _, e := range table {
			if e.NetDev != s.own {
				s.own = ""
				break
			}
		}
	}
	return s
}

func (s standings) of(dev string) standing {
	if dev == "" {
		return ownDevice
	}
	if here, known := s.nets.Here(dev); known && !here {
		return elsewhere
	}
	if dev == s.own {
		return ownDevice
	}
	n := s.nets.Get(dev)
	switch {
	case slices.Contains(tunnels, n.Kind):
		return overlay
	case s.own != "" && s.nets.above(dev, s.own):
		return stacked
	case n.Kind == "bridge", overlayRE.MatchString(dev):
		return overlay
	case slices.Contains([]string{"vlan", "macvlan", "bond", "team"}, n.Kind):
		// In a container what it is stacked on is not to be seen.
		return stacked
	}
	return other
}

// text says where a GID's net device stands, for the reasons.
func (s standings) text(dev string) string {
	n := s.nets.Get(dev)
	kind := n.Kind
	switch s.of(dev) {
	case stacked:
		if s.own != "" && s.nets.above(dev, s.own) {
			return fmt.Sprintf("%s, a %s on %s", dev, orElse(kind, "net device"), s.own)
		}
		return fmt.Sprintf("%s, a %s", dev, orElse(kind, "net device"))
	case overlay:
		return fmt.Sprintf("%s, a %s", dev, orElse(kind, "container network's device"))
	case elsewhere:
		return dev + ", which is not in this network namespace"
	case other:
		return dev + ", which is not the port's own net device"
	}
	return dev
}

// Overlay says whether a net device is of a container network or a tunnel, whose
// addresses other hosts cannot reach.
func (n *Nets) Overlay(name string) bool { return standings{nets: n}.of(name) == overlay }
