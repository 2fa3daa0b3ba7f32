package fabric

import (
	"fmt"
	"slices"
	"strings"

	"github.com/railstore/railstore/cue/deploy"
	"github.com/railstore/railstore/verbs"
)

// Finding is something that a person should know of a device or port, with what
// to do about it.
type Finding struct {
	Device  string // empty: of the host
	Port    int    // 0: of the device
	Code    string // a word for programs
	Message string
	Hint    string
}

// Subject is what the finding is about, spelt dev/port.
func (f Finding) Subject() string {
	if f.Port == 0 {
		return f.Device
	}
	return fmt.Sprintf("%s/%d", f.Device, f.Port)
}

// Unsupported says why a device cannot carry rails at all, or gives nil. Rails are
// reliable connections of InfiniBand or RoCE.
func (d *Device) Unsupported() *Finding {
	f := &Finding{Device: d.Name, Code: "unsupported"}
	switch d.NodeType {
	case "CA", "":
		return nil
	case "RNIC":
		f.Code = "iwarp"
		f.Message = "it is an iWARP device (RNIC), and rails speak InfiniBand or RoCE"
		f.Hint = "use a RoCE or InfiniBand device, or soft:ADDR on its net device"
		if d.Driver == "irdma" || d.Driver == "ice" || strings.HasPrefix(d.Name, "irdma") {
			f.Hint = fmt.Sprintf("this adapter can do RoCE v2: devlink dev param set pci/%s name enable_iwarp value false cmode runtime, then the same with enable_roce value true", orElse(string(d.PCI), "ADDRESS"))
		}
	case "switch", "router":
		f.Message = "it is a " + d.NodeType + ", not an adapter"
		f.Hint = "use a channel adapter"
	default:
		f.Message = fmt.Sprintf("it is of type %s, which has no reliable connections of InfiniBand or RoCE", d.NodeType)
		f.Hint = "use a RoCE or InfiniBand device, or soft:ADDR on its net device"
	}
	return f
}

// Down says why a port carries nothing now, with what to look at, or gives nil.
func (d *Device) Down(p *Port) *Finding {
	if p.State == verbs.PortActive {
		return nil
	}
	f := &Finding{Device: d.Name, Port: p.Number, Code: "port_down",
		Message: fmt.Sprintf("the port is %v, physical state %v", p.State, p.PhysState)}
	n := p.Nets.Get(p.NetDev)
	here, known := p.Nets.Here(p.NetDev)
	ib := p.Link == verbs.LinkInfiniBand
	switch {
	case p.State == verbs.PortInit && ib:
		f.Hint = "no subnet manager has configured it: start opensm on this fabric, or switch the switch's own on"
	case p.State == verbs.PortArmed && ib:
		f.Hint = "the subnet manager has not finished: look at its log"
	case p.State == verbs.PortActiveDefer:
		f.Hint = "the link is recovering: look at the cable and the error counters"
	case p.NetDev != "" && known && !here:
		f.Hint = fmt.Sprintf("its net device %s is not in this network namespace", p.NetDev)
	case p.NetDev != "" && here && !n.Up:
		f.Message += fmt.Sprintf(", net device %s is switched off", p.NetDev)
		f.Hint = fmt.Sprintf("ip link set %s up", p.NetDev)
	case p.PhysState == PhysDisabled && !ib:
		f.Hint = "no carrier: look at the cable, the transceiver and the switch's port"
	case p.PhysState == PhysDisabled:
		f.Hint = "the port is disabled: enable it with ibportstate, or at the switch"
	case p.PhysState == PhysPolling, p.PhysState == PhysSleep:
		f.Hint = "no signal from the other end: look at the cable, the transceiver and the switch's port"
	case p.PhysState == PhysTraining, p.PhysState == PhysRecovery:
		f.Hint = "the link does not come up: look at the cable, and that both ends have the same speed"
	default:
		f.Hint = "look at the cable and the other end; dmesg may say more"
	}
	return f
}

// Choose picks the port's GID.
func (p *Port) Choose(sel deploy.GIDSelector) (Choice, error) { return Choose(p.GIDs, sel, *p) }

// Usable says why a port cannot be a rail now, or gives nil.
func (d *Device) Usable(p *Port) *Finding {
	if f := d.Unsupported(); f != nil {
		return f
	}
	if f := d.Access; f != nil {
		out := *f
		out.Device = d.Name
		return &out
	}
	if f := d.Down(p); f != nil {
		return f
	}
	if _, err := p.Choose(deploy.GIDSelector{Select: SelectAuto}); err != nil {
		f := &Finding{Device: d.Name, Port: p.Number, Code: "no_gid", Message: err.Error()}
		f.Hint = "give its net device " + orElse(p.NetDev, "(which is not known)") + " an address"
		if len(p.GIDs) == 0 {
			f.Code = "gid_table_empty"
			f.Message = fmt.Sprintf("the GID table is empty in this network namespace (%d entries, all zero)", p.GIDSlots)
			f.Hint = "the port's net device is in another network namespace: move it here, share the host's (docker --network host), or take the RDMA device along (rdma dev set " + d.Name + " netns NAME)"
			if here, _ := p.Nets.Here(p.NetDev); here {
				f.Hint = fmt.Sprintf("net device %s is here and has no address: ip address add ADDRESS dev %s", p.NetDev, p.NetDev)
			}
		}
		return f
	}
	return nil
}

// Findings are what a person should know of the host's devices, in the order of
// the devices, those of the whole host last.
func (h *Host) Findings() []Finding {
	var out []Finding
	for i := range h.Devices {
		d := &h.Devices[i]
		if f := d.Unsupported(); f != nil {
			out = append(out, *f)
			continue
		}
		if d.Access != nil {
			f := *d.Access
			f.Device = d.Name
			out = append(out, f)
		}
		for j := range d.Ports {
			out = append(out, d.portFindings(&d.Ports[j])...)
		}
	}
	for i := range h.Devices {
		for _, n := range h.Devices[i].Notes {
			out = append(out, Finding{Device: h.Devices[i].Name, Code: "garbled", Message: "sysfs: " + n, Hint: "the kernel or the copied tree is not as expected; what it said there was left out"})
		}
	}
	return append(out, h.shared()...)
}

func (d *Device) portFindings(p *Port) []Finding {
	var out []Finding
	add := func(code, hint, format string, args ...any) {
		out = append(out, Finding{Device: d.Name, Port: p.Number, Code: code, Message: fmt.Sprintf(format, args...), Hint: hint})
	}
	if f := d.Down(p); f != nil {
		return append(out, *f) // what else there is to say follows from it
	}
	c, err := p.Choose(deploy.GIDSelector{Select: SelectAuto})
	if err != nil {
		acc := *d
		acc.Access = nil
		out = append(out, *acc.Usable(p))
	} else if c.Doubt != "" {
		add("gid_doubt", "give net device "+orElse(p.NetDev, "of the port")+" an address that the peers can reach, or name an entry in the recipe (gid: {address: …})",
			"the best GID is index %d: %s", c.Entry.Index, c.Doubt)
	}
	if p.Link == verbs.LinkEthernet && p.ActiveMTU > 0 && p.ActiveMTU < 4096 {
		why, hint := "", "look at the MTU of its net device and of the switch"
		if n := p.Nets.Get(p.NetDev); n.MTU > 0 {
			room := 4096 + adapterHeaders
			if d.IsRXE() {
				room = 4096 + rxeHeaders
			}
			why = fmt.Sprintf(": net device %s has MTU %d, and RDMA packets with their headers must fit into it", p.NetDev, n.MTU)
			hint = fmt.Sprintf("ip link set %s mtu 9000 (at least %d gives 4096), and the same at every peer and switch", p.NetDev, room)
		}
		add("mtu", hint, "the active MTU is %d of 4096%s", p.ActiveMTU, why)
	}
	if n := p.Nets.Get(p.NetDev); n.Kind == "bond" {
		for _, s := range n.Slaves {
			if l := p.Nets.Get(s); l.OperState == "down" || l.OperState == "lowerlayerdown" {
				add("bond_degraded", "look at the cable and the switch's port of "+s, "link %s of bond %s is down: the port has less than its capacity", s, n.Name)
			}
		}
	}
	if g := d.Bus.Gbps(); g > 0 && p.Rate.Gbps > g {
		hint := "a slot with more lanes or a newer PCI Express generation would not limit it"
		if d.BusMax.Gbps() > g {
			hint = fmt.Sprintf("the adapter can %v: put it into another slot, or look at the BIOS and the riser", d.BusMax)
		}
		add("pcie", hint, "the port has %v and its PCI Express link (%v) carries %.0f Gb/s", p.Rate, d.Bus, g)
	}
	if p.Link == verbs.LinkInfiniBand && len(p.PKeys) > 0 && !slices.Contains(p.PKeys, 0xffff) {
		add("pkey", "the recipe's rail needs pkey: one of the table's", "the port is no full member of the default partition; its table holds %s", pkeyText(p.PKeys))
	}
	return out
}

func pkeyText(keys []uint16) string {
	var out []string
	for _, k := range keys {
		out = append(out, fmt.Sprintf("%#04x", k))
	}
	return strings.Join(out, ", ")
}

// shared names usable ports that are rails of one adapter: two of them carry
// no more than the adapter's one PCI Express link, and fail together.
func (h *Host) shared() []Finding {
	type member struct {
		d *Device
		p *Port
	}
	byCard := map[string][]member{}
	var cards []string
	for i := range h.Devices {
		d := &h.Devices[i]
		card := d.Adapter()
		if card == "" {
			continue
		}
		for j := range d.Ports {
			if p := &d.Ports[j]; d.Usable(p) == nil {
				if byCard[card] == nil {
					cards = append(cards, card)
				}
				byCard[card] = append(byCard[card], member{d, p})
			}
		}
	}
	var out []Finding
	for _, card := range cards {
		ms := byCard[card]
		if len(ms) < 2 {
			continue
		}
		var names []string
		sum, bus, oneFunction, devices := 0.0, ms[0].d.Bus, true, 1
		for i, m := range ms {
			names = append(names, m.d.DevPort(m.p))
			sum += m.p.Rate.Gbps
			oneFunction = oneFunction && m.d.function() == ms[0].d.function()
			if i > 0 && m.d != ms[i-1].d {
				devices++
			}
			if m.d.Bus.Gbps() > bus.Gbps() {
				bus = m.d.Bus
			}
		}
		f := Finding{Code: "shared_adapter", Hint: "for more bandwidth and for safety take rails of different adapters"}
		what := "adapter " + card
		if oneFunction {
			what = "PCI function " + string(ms[0].d.function())
		}
		f.Message = fmt.Sprintf("%s are on one %s", strings.Join(names, ", "), what)
		if oneFunction && devices == len(ms) {
			f.Message += " (itself, virtual or sub-functions of it): as rails they share its port"
		} else if g := bus.Gbps(); g > 0 && sum > g {
			f.Message += fmt.Sprintf(": its PCI Express link (%v) carries %.0f of their %g Gb/s", bus, g, sum)
		} else {
			f.Message += ": as two rails they share its PCI Express link and fail together"
		}
		out = append(out, f)
	}
	return out
}
