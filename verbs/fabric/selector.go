package fabric

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/railstore/railstore/verbs"
)

// On is a port of the device as the selector means it: with a net device that has
// addresses of its own in the GID table (a VLAN), only these count.
func (s Selection) On(p Port) Port {
	if s.NetDev != p.NetDev && slices.ContainsFunc(p.GIDs, func(e verbs.GIDEntry) bool { return e.NetDev == s.NetDev }) {
		p.Only = s.NetDev
	}
	return p
}

// Port is a port of the device.
func (d *Device) Port(n int) (*Port, bool) {
	for i := range d.Ports {
		if d.Ports[i].Number == n {
			return &d.Ports[i], true
		}
	}
	return nil, false
}

// ErrAmbiguous says that a selector means more than one device.
var ErrAmbiguous = errors.New("more than one device")

// Selection is the device that a selector means.
type Selection struct {
	Device *Device
	Port   int    // the port that a net device belongs to; 0 when the selector tells none
	NetDev string // the net device that was asked for; empty when none was
	Reason string
}

// Select finds the device of a recipe's "ibv:DEV", with or without the provider.
// DEV is the name of an RDMA device, its PCI address, its node GUID, or a net
// device; a name of an RDMA device goes before the others.
//
// The error's kind is verbs.ErrNotFound, and lists what there is, or wraps
// ErrAmbiguous, and lists which devices are meant.
func (h *Host) Select(spec string) (Selection, error) {
	name := strings.TrimPrefix(spec, "ibv:")
	full := "ibv:" + name
	if d, ok := h.Device(name); ok {
		return Selection{Device: d, Reason: "it is the device's name"}, nil
	}
	if pci, ok := ParsePCI(name); ok {
		return h.one(full, "PCI address "+string(pci), h.where(func(d *Device) bool { return d.PCI == pci }))
	}
	if g, ok := guid(name); ok {
		if g == 0 {
			return Selection{}, verbs.Errorf(verbs.ErrInvalid, "select_device", full, "node GUID 0 is no device's own")
		}
		return h.one(full, "node GUID "+GUIDText(g), h.where(func(d *Device) bool { return d.NodeGUID == g }))
	}
	return h.byNet(full, name)
}

// GUIDText is a GUID as ibv_devinfo prints it.
func GUIDText(g uint64) string {
	return fmt.Sprintf("%04x:%04x:%04x:%04x", g>>48, g>>32&0xffff, g>>16&0xffff, g&0xffff)
}

func (h *Host) where(ok func(*Device) bool) []Selection {
	var out []Selection
	for i := range h.Devices {
		if d := &h.Devices[i]; ok(d) {
			out = append(out, Selection{Device: d})
		}
	}
	return out
}

// one wants exactly one of the devices that were found.
func (h *Host) one(full, what string, found []Selection) (Selection, error) {
	switch len(found) {
	case 1:
		s := found[0]
		s.Reason = orElse(s.Reason, "its "+what)
		return s, nil
	case 0:
		return Selection{}, verbs.Errorf(verbs.ErrNotFound, "select_device", full, "no RDMA device has the %s; %s", what, h.list())
	}
	var names []string
	for _, s := range found {
		n := "ibv:" + s.Device.Name
		if s.Port > 0 && len(s.Device.Ports) > 1 {
			n += fmt.Sprintf(" port %d", s.Port)
		}
		names = append(names, n+" ("+s.Device.describe()+")")
	}
	return Selection{}, verbs.Errorf(verbs.ErrInvalid, "select_device", full, "the %s means %w; name one of %s", what, ErrAmbiguous, strings.Join(names, ", "))
}

// byNet finds the ports that a net device belongs to: as their own, as a link of
// their bond, or by an address in their GID table.
func (h *Host) byNet(full, name string) (Selection, error) {
	tests := []struct {
		reason string
		ok     func(*Device, *Port) bool
	}{
		{"%s is the net device of %s", func(_ *Device, p *Port) bool { return p.NetDev == name }},
		{"%s is a link of the bond of %s", func(_ *Device, p *Port) bool {
			return p.NetDev != "" && slices.Contains(p.Nets.Get(p.NetDev).Slaves, name)
		}},
		{"%s has addresses in the GID table of %s", func(_ *Device, p *Port) bool { return slices.Contains(p.NetDevs, name) }},
	}
	for _, t := range tests {
		var found []Selection
		for i := range h.Devices {
			d := &h.Devices[i]
			for j := range d.Ports {
				if p := &d.Ports[j]; t.ok(d, p) {
					found = append(found, Selection{Device: d, Port: p.Number, NetDev: name, Reason: fmt.Sprintf(t.reason, name, d.DevPort(p))})
				}
			}
		}
		if len(found) > 0 {
			return h.one(full, "net device "+name, found)
		}
	}
	// What is known of the device as a whole tells no port.
	if found := h.where(func(d *Device) bool { return slices.Contains(d.NetDevs, name) }); len(found) > 0 {
		for i := range found {
			found[i].NetDev, found[i].Reason = name, fmt.Sprintf("%s is a net device of %s", name, found[i].Device.Name)
		}
		return h.one(full, "net device "+name, found)
	}
	if here, _ := h.Nets.Here(name); !here {
		return Selection{}, verbs.Errorf(verbs.ErrNotFound, "select_device", full, "%q is no RDMA device, net device, PCI address or node GUID of this host; %s", name, h.list())
	}
	return Selection{}, verbs.Errorf(verbs.ErrNotFound, "select_device", full,
		"net device %s has no RDMA device; %s (soft:ADDR works on it, and so does Soft-RoCE: rdma link add rxe0 type rxe netdev %s)", name, h.list(), name)
}

// list names what there is to be selected.
func (h *Host) list() string {
	if len(h.Devices) == 0 {
		return "this host has none: " + h.Absent
	}
	var out []string
	for i := range h.Devices {
		out = append(out, fmt.Sprintf("ibv:%s (%s)", h.Devices[i].Name, h.Devices[i].describe()))
	}
	return "there are " + strings.Join(out, ", ")
}

// describe is what else a device can be selected by.
func (d *Device) describe() string {
	var out []string
	if d.PCI != "" {
		out = append(out, string(d.PCI))
	}
	if len(d.NetDevs) > 0 {
		out = append(out, strings.Join(d.NetDevs, " "))
	}
	if d.NodeGUID != 0 {
		out = append(out, GUIDText(d.NodeGUID))
	}
	if len(out) == 0 {
		return "no net device, no PCI address"
	}
	return strings.Join(out, ", ")
}
