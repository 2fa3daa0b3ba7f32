package provider

import (
	"net/netip"
	"strings"
	"time"

	"github.com/railstore/railstore/cue/deploy"
	"github.com/railstore/railstore/pipeline"
	"github.com/railstore/railstore/verbs"
	"github.com/railstore/railstore/verbs/ibv"
	"github.com/railstore/railstore/verbs/soft"
)

// Open gives the driver of the provider that a rail names. There is no fallback: a rail
// that asks for what is not there fails.
func Open(provider string, r deploy.Rail) (verbs.Driver, error) {
	switch provider {
	case "soft":
		o := soft.Options{ActiveMTU: r.ActiveMTU, Caps: softCaps(r.Caps)}
		for i, g := range r.GIDs {
			e, err := softGID(i, g)
			if err != nil {
				return nil, err
			}
			o.GIDs = append(o.GIDs, e)
		}
		for _, f := range r.Faults {
			o.Faults = append(o.Faults, SoftFault(f))
		}
		return soft.New(o), nil
	case "ibv":
		return ibv.New(ibv.Options{}), nil
	}
	return nil, pipeline.Errorf(pipeline.LayerConfig, "open_device", pipeline.AtRail(r.Name), "%s: there is no provider %q", r.Device, provider).
		WithHint("device is soft:ADDR[:PORT] or ibv:DEV")
}

// SoftFault is a fault of a recipe as the provider soft plays it.
func SoftFault(f deploy.Fault) soft.Fault {
	return soft.Fault{
		Do:  f.Do,
		At:  soft.FaultAt{Bytes: uint64(f.At.Bytes), Packets: uint64(f.At.Packets), Time: time.Duration(f.At.Time)},
		For: time.Duration(f.For), Rate: f.Rate, Seed: uint64(f.Seed),
		Match: soft.FaultMatch{Opcode: f.Match.Opcode, Peer: f.Match.Peer, Direction: f.Match.Direction},
		By:    time.Duration(f.By), BitsPerSecond: f.BitsPerSecond, Op: f.Op, Errno: f.Errno, Times: f.Times,
	}
}

func softCaps(c map[string]int) verbs.DeviceAttr {
	return verbs.DeviceAttr{MaxQP: c["max_qp"], MaxCQ: c["max_cq"], MaxCQE: c["max_cqe"], MaxMR: c["max_mr"],
		MaxMRSize: uint64(c["max_mr_size"]), MaxQPWR: c["max_qp_wr"], MaxSGE: c["max_sge"], MaxRDAtomic: c["max_rd_atomic"]}
}

func softGID(i int, g deploy.SoftGID) (verbs.GIDEntry, error) {
	a, err := netip.ParseAddr(g.Address)
	if err != nil {
		return verbs.GIDEntry{}, pipeline.Errorf(pipeline.LayerConfig, "open_device", pipeline.Nowhere, "gids[%d]: %q is not an address", i, g.Address)
	}
	t := verbs.GIDTypeRoCEv2
	if strings.EqualFold(g.Type, "rocev1") {
		t = verbs.GIDTypeRoCEv1
	}
	return verbs.GIDEntry{Index: i, GID: verbs.GIDFromAddr(a), Type: t, NetDev: g.NetDev}, nil
}
