package fabric

import (
	"fmt"
	"path"
	"slices"
	"strings"
)

// Device is an RDMA device as sysfs tells it. What it does not tell is zero.
type Device struct {
	Name         string
	Driver       string // of the kernel, as in mlx5_core
	NodeType     string // CA, RNIC … as sysfs says
	NodeGUID     uint64
	SysImageGUID uint64
	Firmware     string
	HWVersion    string
	BoardID      string
	HCAType      string
	Vendor       string // PCI vendor and device, as in 0x15b3:0x1017
	PCI          PCI
	PhysFn       PCI // of a virtual function: the function it belongs to
	NUMANode     int // -1 where it is not known
	Bus, BusMax  Bus // its PCI Express link as it runs, and as it could
	CharDevices  []string
	NetDevs      []string // of all ports
	Ports        []Port
	Access       *Finding // why this process cannot use it; nil where it can, or where that was not checked
	Notes        []string // what the kernel says that could not be understood

	parent string // net device that a software device was made on
	device string // where its device is in the tree
}

// DevPort is the spelling of "rdma link" for a port, as in mlx5_0/1.
func (d *Device) DevPort(p *Port) string { return fmt.Sprintf("%s/%d", d.Name, p.Number) }

// Uverbs is the device's file for user verbs; empty when it has none.
func (d *Device) Uverbs() string {
	for _, c := range d.CharDevices {
		if strings.HasPrefix(path.Base(c), "uverbs") {
			return c
		}
	}
	return ""
}

// IsSoftware says that the device is made by the kernel on a net device (rxe, siw).
func (d *Device) IsSoftware() bool { return d.PCI == "" && d.device == "" }

// IsRXE says that it is Soft-RoCE. Only that driver tells the net device it is on.
func (d *Device) IsRXE() bool { return d.parent != "" }

// Transport is ibv_devinfo's word.
func (d *Device) Transport() string {
	switch d.NodeType {
	case "CA", "switch", "router":
		return "InfiniBand"
	case "RNIC":
		return "iWARP"
	}
	return d.NodeType
}

// function is the physical function behind a device.
func (d *Device) function() PCI {
	if d.PhysFn != "" {
		return d.PhysFn
	}
	return d.PCI
}

// Adapter names the card that the device is on, by its PCI slot: devices of one
// adapter share its PCI Express link. Empty for software devices.
func (d *Device) Adapter() string { return d.function().Slot() }

// note keeps what could not be understood.
func (d *Device) note(format string, args ...any) {
	const most = 16 // a garbled tree has one for every file
	if len(d.Notes) < most {
		d.Notes = append(d.Notes, fmt.Sprintf(format, args...))
	}
}

func (t tree) device(name string) Device {
	d := Device{Name: name, NUMANode: -1}
	dir := t.physical(path.Join(classInfiniBand, name))
	if dir == "" {
		dir = path.Join(classInfiniBand, name)
	}
	d.Firmware, d.HWVersion = t.get(path.Join(dir, "fw_ver")), t.get(path.Join(dir, "hw_rev"))
	d.BoardID, d.HCAType = t.get(path.Join(dir, "board_id")), t.get(path.Join(dir, "hca_type"))
	d.parent = t.get(path.Join(dir, "parent"))
	if s := t.get(path.Join(dir, "node_type")); s != "" {
		_, word, ok := strings.Cut(s, ": ")
		if _, isCode := coded(s); !ok || !isCode {
			d.note("node_type is %q", s)
		}
		d.NodeType = word
	}
	for file, to := range map[string]*uint64{"node_guid": &d.NodeGUID, "sys_image_guid": &d.SysImageGUID} {
		s := t.get(path.Join(dir, file))
		g, ok := guid(s)
		if !ok && s != "" {
			d.note("%s is %q", file, s)
		}
		*to = g
	}
	slices.Sort(d.Notes) // the order of a map is not one
	t.place(&d, dir)
	ports := t.indexes(path.Join(dir, "ports"))
	if len(ports) == 0 {
		d.note("it has no ports")
	}
	for _, n := range ports {
		if n < 1 || n > 255 {
			d.note("there is a port %d", n)
			continue
		}
		d.Ports = append(d.Ports, t.port(&d, path.Join(dir, "ports", fmt.Sprint(n)), n))
	}
	return d
}

// place reads where the device is: its PCI function, NUMA node and bus.
func (t tree) place(d *Device, dir string) {
	link := path.Join(dir, "device")
	if !t.has(link) {
		return
	}
	if d.device = t.physical(link); d.device == "" {
		d.device = link // the link leads out of the tree, its files may still be read
	}
	fn, fnDir := pciOf(d.device)
	if fn == "" {
		fn, fnDir = pciOf(dir)
	}
	if fn == "" {
		// A tree that was copied without its links still has the function's name.
		for line := range strings.Lines(t.lines(path.Join(d.device, "uevent"))) {
			if v, ok := strings.CutPrefix(strings.TrimSpace(line), "PCI_SLOT_NAME="); ok {
				fn, _ = ParsePCI(v)
				fnDir = d.device
			}
		}
	}
	if fnDir == "" {
		fnDir = d.device
	}
	d.PCI = fn
	d.Driver = t.linkBase(path.Join(fnDir, "driver"))
	if pf, ok := ParsePCI(t.linkBase(path.Join(fnDir, "physfn"))); ok {
		d.PhysFn = pf
	}
	if n, ok := t.integer(path.Join(fnDir, "numa_node")); ok && n >= 0 && n < 1<<16 {
		d.NUMANode = int(n)
	}
	if v, n := t.get(path.Join(fnDir, "vendor")), t.get(path.Join(fnDir, "device")); v != "" && n != "" {
		d.Vendor = v + ":" + n
	}
	// A virtual function does not know its link: it is that of its function.
	for _, at := range []string{fnDir, t.physical(path.Join(fnDir, "physfn"))} {
		if d.Bus.Lanes == 0 && at != "" {
			d.Bus, d.BusMax = t.bus(at, "current"), t.bus(at, "max")
		}
	}
}

// settle works out what needs the namespace's net devices: each port's own one,
// and from it the MTU.
func (d *Device) settle(nets *Nets) {
	all := map[string]bool{}
	for i := range d.Ports {
		p := &d.Ports[i]
		p.Nets = nets
		p.NetDev = d.ownNet(p, nets)
		if p.NetDev != "" && !slices.Contains(p.NetDevs, p.NetDev) {
			p.NetDevs = append([]string{p.NetDev}, p.NetDevs...)
		}
		p.deriveMTU(d, nets)
		for _, n := range p.NetDevs {
			all[n] = true
		}
	}
	for n := range all {
		d.NetDevs = append(d.NetDevs, n)
	}
	slices.SortFunc(d.NetDevs, byNumber)
}

// ownNet is the net device of a port: the one that a software device was made on,
// the one of the same function and port, or else the one that the first GID
// belongs to (the kernel puts the port's own there).
func (d *Device) ownNet(p *Port, nets *Nets) string {
	if d.parent != "" {
		return d.parent
	}
	var here []Net
	if nets != nil && d.device != "" {
		for _, n := range nets.here {
			if n.device == d.device && !n.guest && n.fits(p) && (len(d.Ports) == 1 || n.port == p.Number-1) {
				here = append(here, n)
			}
		}
	}
	slices.SortFunc(here, func(a, b Net) int { return byNumber(a.Name, b.Name) })
	for _, n := range here {
		// In a bond the addresses are the bond's.
		if n.Master != "" && nets.Get(n.Master).Kind == "bond" && slices.Contains(p.NetDevs, n.Master) {
			return n.Master
		}
	}
	for _, n := range here {
		if slices.Contains(p.NetDevs, n.Name) {
			return n.Name
		}
	}
	if len(here) > 0 {
		return here[0].Name
	}
	if len(p.GIDs) > 0 {
		return p.GIDs[0].NetDev
	}
	return ""
}
