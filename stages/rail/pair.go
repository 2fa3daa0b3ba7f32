package rail

import (
	"fmt"
	"slices"
	"strings"

	"github.com/railstore/railstore/ctrl"
	"github.com/railstore/railstore/verbs"
)

// pairing is a local rail and the peer's rail that it talks to.
type pairing struct {
	local *Rail
	peer  ctrl.RailInfo
}

// pairRails gives every local rail its counterpart at a peer: on the same
// fabric, the rail that the recipe's listeners name, else the rail of the same
// name, else the i-th local rail of a fabric takes the i-th of the peer, round.
// Rails that cannot talk are left out with the reason.
func pairRails(local []*Rail, peer []ctrl.RailInfo) (pairs []pairing, reasons []string) {
	nth := map[string]int{} // local rails seen so far, by fabric
	for _, l := range local {
		i := nth[l.Spec.Fabric]
		nth[l.Spec.Fabric]++
		var cands []ctrl.RailInfo
		for _, p := range peer {
			if p.Fabric == l.Spec.Fabric {
				cands = append(cands, p)
			}
		}
		p, why := counterpart(l, cands, i)
		if why == "" {
			why = mismatch(l, p)
		}
		if why != "" {
			reasons = append(reasons, fmt.Sprintf("rail %s (fabric %s, %s): %s", l.Name(), l.Spec.Fabric, l.Ctx.Name(), why))
			continue
		}
		pairs = append(pairs, pairing{l, p})
	}
	return pairs, reasons
}

func counterpart(l *Rail, cands []ctrl.RailInfo, i int) (ctrl.RailInfo, string) {
	if len(cands) == 0 {
		return ctrl.RailInfo{}, "the peer has no rail on this fabric"
	}
	for _, ep := range l.Spec.Listeners {
		for _, p := range cands {
			if ep == p.Name || ep == p.GID.Addr().String() || ep == fmt.Sprintf("%s:%d", hostText(p.GID), p.UDPPort) {
				return p, ""
			}
		}
	}
	if len(l.Spec.Listeners) > 0 {
		return ctrl.RailInfo{}, fmt.Sprintf("none of its listeners %s is a rail of the peer", strings.Join(l.Spec.Listeners, ", "))
	}
	if j := slices.IndexFunc(cands, func(p ctrl.RailInfo) bool { return p.Name == l.Name() }); j >= 0 {
		return cands[j], ""
	}
	return cands[i%len(cands)], ""
}

func hostText(g verbs.GID) string {
	a := g.Addr()
	if a.Is6() {
		return "[" + a.String() + "]"
	}
	return a.String()
}

// mismatch says why two rails on one fabric cannot talk, or "".
func mismatch(l *Rail, p ctrl.RailInfo) string {
	gid := l.Address().GID.Entry
	mine, theirs := gid.Type.String(), p.GIDType
	if mine != theirs {
		return fmt.Sprintf("this end sends %s, rail %s of the peer %s", mine, p.Name, theirs)
	}
	if a, b := gid.GID.IsIPv4(), p.GID.IsIPv4(); a != b && gid.Type == verbs.GIDTypeRoCEv2 {
		return fmt.Sprintf("this end has %v, rail %s of the peer %v: one is IPv4, the other IPv6", gid.GID.Addr(), p.Name, p.GID.Addr())
	}
	return ""
}
