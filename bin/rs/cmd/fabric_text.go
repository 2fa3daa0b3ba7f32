package cmd

import (
	"fmt"
	"strings"

	"github.com/railstore/railstore/verbs/fabric"
)

// printFabric shows a host's ports and addresses as a table, with what stands in
// their way below it. picked says that only part of them was asked for.
func (a *app) printFabric(h *fabric.Host, r *fabricResult, verbose, picked bool) {
	if len(r.Devices) == 0 && !picked {
		a.printf("no RDMA device: %s\n", r.Absent)
		if len(r.Soft) > 0 {
			a.printf("The embedded provider needs none. These addresses can be rails:\n\n")
		} else {
			a.printf("The embedded provider needs none: device \"soft:ADDR\" with an address of the host.\n")
		}
	}
	t := newTable("DEV/PORT", "PROVIDER", "STATE", "PHYSICAL_STATE", "LINK_LAYER", "RATE", "MTU", "NETDEV", "NUMA", "PCI", "GID", "RAIL")
	rows, left := 0, 0
	for i := range r.Devices {
		d := &r.Devices[i]
		for j := range d.Ports {
			t.row(a.deviceRow(d, &d.Ports[j])...)
			rows++
		}
	}
	for i := range r.Soft {
		s := &r.Soft[i]
		if !s.usual() && !verbose && !picked {
			left++
			continue
		}
		t.row(s.Rail+"/1", "soft", a.paintPort(s.State), "-", "Ethernet", "-", mtuText(s.ActiveMTU), orDash(s.NetDev), "-", "-", s.GIDType+" "+s.Address, s.Rail+note(s.Note))
		rows++
	}
	if rows > 0 {
		a.printf("%s", t)
	} else if picked {
		a.printf("nothing of that kind: no port and no address\n")
	}
	if left > 0 {
		a.printf("%d more addresses (link-local, container networks): rs fabric -v\n", left)
	}
	if verbose {
		for i := range r.Devices {
			a.printDevice(h, &r.Devices[i])
		}
		for i := range r.Soft {
			s := &r.Soft[i]
			a.printf("\n%s\n", s.Rail)
			if s.Error != "" {
				a.printf("    %s\n", s.Error)
			}
			a.printf("    %-16s %s\n", "active_mtu:", mtuLong(s.ActiveMTU, s.MTUSource))
			a.printGIDs(s.GIDs, len(s.GIDs))
		}
	} else {
		for i := range r.Devices {
			if d := &r.Devices[i]; d.SelectedBy != "" {
				a.printf("%s: %s\n", d.Name, d.SelectedBy)
			}
		}
	}
	for i, w := range r.Warnings {
		if i == 0 {
			a.printf("\n")
		}
		subject := fabric.Finding{Device: w.Device, Port: w.Port}.Subject()
		if subject != "" {
			subject += ": "
		}
		a.printf("%s %s%s\n    hint: %s\n", a.paint(yellow, "warning:"), subject, w.Message, w.Hint)
	}
}

func (a *app) deviceRow(d *fabricDevice, p *fabricPort) []any {
	gid, rail := "-", a.paint(red, "-")
	if g := p.taken(); g != nil {
		gid = fmt.Sprintf("%d: %s %s", g.Index, g.Type, g.Address)
	}
	if p.Usable {
		rail = p.Rail
	}
	numa := "-"
	if d.NUMANode >= 0 {
		numa = fmt.Sprint(d.NUMANode)
	}
	link := p.LinkLayer
	if d.Transport == "iWARP" {
		link = "iWARP"
	}
	return []any{p.DevPort, d.Provider, a.paintPort(p.State), p.PhysState, link, rateText(p), mtuText(p.ActiveMTU), orDash(p.NetDev), numa, orDash(d.PCI), gid, rail}
}

func (a *app) paintPort(state string) string {
	if state == "ACTIVE" {
		return a.paint(green, state)
	}
	return a.paint(red, state)
}

func note(s string) string {
	if s == "" {
		return ""
	}
	return "  (" + s + ")"
}

func mtuText(n int) string {
	if n == 0 {
		return "-"
	}
	return fmt.Sprint(n)
}

func rateText(p *fabricPort) string {
	if p.RateBits == 0 {
		return "-"
	}
	return fmt.Sprintf("%g Gb/s", float64(p.RateBits)/1e9)
}

// printDevice is a device in ibv_devinfo's words, with the verdict on every GID.
func (a *app) printDevice(h *fabric.Host, d *fabricDevice) {
	a.printf("\nhca_id: %s\n", d.Name)
	line := func(depth int, key, format string, args ...any) {
		if v := fmt.Sprintf(format, args...); v != "" {
			a.printf("%s%-16s %s\n", strings.Repeat("    ", depth), key+":", v)
		}
	}
	line(1, "selected_by", "%s", d.SelectedBy)
	line(1, "transport", "%s", d.Transport)
	line(1, "fw_ver", "%s", d.Firmware)
	line(1, "node_guid", "%s", d.NodeGUID)
	line(1, "sys_image_guid", "%s", d.SysImageGUID)
	line(1, "hw_ver", "%s", d.HWVersion)
	line(1, "board_id", "%s", d.BoardID)
	line(1, "hca_type", "%s", d.HCAType)
	line(1, "vendor", "%s", d.Vendor)
	line(1, "driver", "%s", d.Driver)
	pci := d.PCI
	if d.PhysFn != "" {
		pci += ", virtual function of " + d.PhysFn
	}
	if hd, ok := h.Device(d.Name); ok && hd.Bus.String() != "" {
		pci += fmt.Sprintf(", %v (%.0f Gb/s)", hd.Bus, hd.Bus.Gbps())
	}
	line(1, "pci", "%s", orDash(pci))
	if d.NUMANode >= 0 {
		line(1, "numa_node", "%d", d.NUMANode)
	}
	line(1, "char_devices", "%s", orDash(strings.Join(d.CharDevices, " ")))
	line(1, "netdevs", "%s", orDash(strings.Join(d.NetDevs, " ")))
	line(1, "phys_port_cnt", "%d", len(d.Ports))
	for i := range d.Ports {
		p := &d.Ports[i]
		a.printf("    port: %d\n", p.Port)
		line(2, "state", "PORT_%s (%d)", p.State, max(0, stateCode(p.State)))
		line(2, "physical_state", "%s", p.PhysState)
		line(2, "link_layer", "%s", p.LinkLayer)
		if p.RateBits > 0 {
			line(2, "rate", "%s (%dX %s)", rateText(p), p.Width, orDash(p.Speed))
		}
		line(2, "max_mtu", "%s", mtuLong(p.MaxMTU, ""))
		line(2, "active_mtu", "%s", mtuLong(p.ActiveMTU, p.MTUSource))
		line(2, "netdev", "%s", orDash(p.NetDev))
		if p.LinkLayer == "InfiniBand" {
			line(2, "sm_lid", "%d", p.SMLID)
			line(2, "port_lid", "%d", p.LID)
			line(2, "port_lmc", "%#02x", p.LMC)
		}
		line(2, "pkeys", "%s", orDash(strings.Join(p.PKeys, " ")))
		if p.Usable {
			line(2, "rail", "%s", p.Rail)
		} else {
			line(2, "rail", "none: %s", p.Reason)
		}
		a.printGIDs(p.GIDs, p.GIDEntries)
	}
}

func mtuLong(n int, source string) string {
	if n == 0 {
		return "- (only the open device knows it)"
	}
	s := fmt.Sprintf("%d (%d)", n, mtuCode(n))
	if source != "" && source != "device" {
		s += ", as " + source
	}
	return s
}

// printGIDs lists a table that has total entries, empty ones too.
func (a *app) printGIDs(gids []fabricGID, total int) {
	if len(gids) == 0 {
		if total > 0 {
			a.printf("        no GID: %d entries, all zero\n", total)
		}
		return
	}
	t := newTable("        INDEX", "GID", "ADDRESS", "TYPE", "NETDEV", "VERDICT")
	for _, g := range gids {
		verdict := "not taken because " + g.Reason
		if g.Taken {
			verdict = a.paint(green, "taken because it is "+g.Reason)
		}
		t.row(fmt.Sprintf("        %5d", g.Index), g.GID, g.Address, g.Type, orDash(g.NetDev), verdict)
	}
	a.printf("%s", t)
	if n := total - len(gids); n > 0 {
		a.printf("        %d more entries are empty\n", n)
	}
}
