package fabric

import (
	"path"
	"slices"

	"github.com/Mellanox/rdmamap"
)

// mapper tells which char and net devices belong to an RDMA device.
type mapper interface {
	charDevices(rdma string) []string
	// deviceOf is the RDMA device of a net device, or "".
	deviceOf(net Net) string
}

// rdmaMap asks rdmamap, which knows /sys and netlink of this host only.
type rdmaMap struct{}

func (rdmaMap) charDevices(rdma string) []string {
	out := rdmamap.GetRdmaCharDevices(rdma)
	slices.SortFunc(out, byNumber)
	return out
}

func (rdmaMap) deviceOf(n Net) string {
	if n.link != arpEther && n.link != arpInfiniBand {
		return ""
	}
	d, err := rdmamap.GetRdmaDeviceForNetdevice(n.Name)
	if err != nil {
		return "" // most net devices have none
	}
	return d
}

// sysfsMap reads the same from a tree that is not this host's.
type sysfsMap struct{ t tree }

func (m sysfsMap) charDevices(rdma string) []string {
	var out []string
	for _, class := range []string{"class/infiniband_verbs", "class/infiniband_mad"} {
		names, _ := m.t.names(class) // a class that is not there has no devices
		for _, n := range names {
			if m.t.get(path.Join(class, n, "ibdev")) == rdma {
				out = append(out, "/dev/infiniband/"+n)
			}
		}
	}
	slices.SortFunc(out, byNumber)
	return out
}

// deviceOf leaves it at what GID tables and PCI functions say.
func (sysfsMap) deviceOf(Net) string { return "" }

// mapNets adds the net devices that belong to a device by the mapper's knowledge
// and not by its GID tables: IPoIB devices, and ports whose tables are empty.
func (h *Host) mapNets(ask mapper) {
	if h.Nets == nil || len(h.Devices) == 0 {
		return
	}
	for name, n := range h.Nets.here {
		if n.device == "" {
			continue
		}
		if d, ok := h.Device(ask.deviceOf(n)); ok && !slices.Contains(d.NetDevs, name) {
			d.NetDevs = append(d.NetDevs, name)
			slices.SortFunc(d.NetDevs, byNumber)
		}
	}
}
