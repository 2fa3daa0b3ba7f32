package cmd

import (
	"fmt"
	"math"

	"github.com/railstore/railstore/cue/deploy"
	"github.com/railstore/railstore/verbs"
	"github.com/railstore/railstore/verbs/fabric"
)

// fabricResult is the JSON form of what a host has. Names are those of ibv_devinfo
// and "rdma link" where they have one.
type fabricResult struct {
	Sysfs    string          `json:"sysfs"`
	Devices  []fabricDevice  `json:"devices"`
	Soft     []fabricSoft    `json:"soft"`
	Absent   string          `json:"absent,omitempty"` // why there are no devices
	Warnings []fabricWarning `json:"warnings"`
}

type fabricDevice struct {
	Name         string       `json:"name"`
	Provider     string       `json:"provider"`
	Driver       string       `json:"driver,omitempty"`
	Transport    string       `json:"transport"`
	NodeType     string       `json:"node_type"`
	NodeGUID     string       `json:"node_guid"`
	SysImageGUID string       `json:"sys_image_guid"`
	Firmware     string       `json:"fw_ver"`
	HWVersion    string       `json:"hw_ver,omitempty"`
	BoardID      string       `json:"board_id,omitempty"`
	HCAType      string       `json:"hca_type,omitempty"`
	Vendor       string       `json:"vendor,omitempty"`
	PCI          string       `json:"pci,omitempty"`
	PhysFn       string       `json:"physical_function,omitempty"`
	PCIBits      int64        `json:"pci_bits_per_second,omitempty"`
	NUMANode     int          `json:"numa_node"` // -1: not known
	CharDevices  []string     `json:"char_devices"`
	NetDevs      []string     `json:"netdevs"`
	SelectedBy   string       `json:"selected_by,omitempty"`
	Ports        []fabricPort `json:"ports"`
}

type fabricPort struct {
	Port       int         `json:"port"`
	DevPort    string      `json:"dev_port"`
	Rail       string      `json:"rail"` // what to write into a recipe
	State      string      `json:"state"`
	PhysState  string      `json:"physical_state"`
	LinkLayer  string      `json:"link_layer"`
	RateBits   int64       `json:"rate_bits_per_second"` // 0: not known
	Width      int         `json:"width"`
	Speed      string      `json:"speed,omitempty"`
	LID        uint16      `json:"lid"`
	SMLID      uint16      `json:"sm_lid"`
	LMC        int         `json:"lmc"`
	MaxMTU     int         `json:"max_mtu"`    // 0: not known
	ActiveMTU  int         `json:"active_mtu"` // 0: not known
	MTUSource  string      `json:"mtu_source,omitempty"`
	NetDev     string      `json:"netdev"`
	NetDevs    []string    `json:"netdevs"`
	PKeys      []string    `json:"pkeys"`
	GIDEntries int         `json:"gid_entries"` // empty ones too
	GIDs       []fabricGID `json:"gids"`
	GIDIndex   *int        `json:"gid_index"` // of the one that is taken; null: none
	Usable     bool        `json:"usable"`
	Reason     string      `json:"reason,omitempty"` // why it is not usable
	Hint       string      `json:"hint,omitempty"`
}

type fabricGID struct {
	Index   int    `json:"index"`
	GID     string `json:"gid"`
	Address string `json:"address"`
	Type    string `json:"type"`
	NetDev  string `json:"netdev"`
	Taken   bool   `json:"taken"`
	Reason  string `json:"reason"`
}

type fabricWarning struct {
	Device  string `json:"device"` // empty: of several
	Port    int    `json:"port"`   // 0: of the device
	Code    string `json:"code"`
	Message string `json:"message"`
	Hint    string `json:"hint"`
}

func fabricOf(h *fabric.Host, addrs []softAddress) *fabricResult {
	r := &fabricResult{Sysfs: h.Root, Devices: []fabricDevice{}, Soft: softRows(addrs, h.Nets), Absent: h.Absent, Warnings: []fabricWarning{}}
	for i := range h.Devices {
		r.Devices = append(r.Devices, fabricDeviceOf(&h.Devices[i]))
	}
	for _, f := range h.Findings() {
		r.Warnings = append(r.Warnings, fabricWarning{f.Device, f.Port, f.Code, f.Message, f.Hint})
	}
	return r
}

func fabricDeviceOf(d *fabric.Device) fabricDevice {
	out := fabricDevice{Name: d.Name, Provider: "ibv", Driver: d.Driver, Transport: d.Transport(), NodeType: d.NodeType, NodeGUID: fabric.GUIDText(d.NodeGUID),
		SysImageGUID: fabric.GUIDText(d.SysImageGUID), Firmware: d.Firmware, HWVersion: d.HWVersion, BoardID: d.BoardID, HCAType: d.HCAType, Vendor: d.Vendor,
		PCI: string(d.PCI), PhysFn: string(d.PhysFn), PCIBits: bits(d.Bus.Gbps()), NUMANode: d.NUMANode, CharDevices: notNil(d.CharDevices), NetDevs: notNil(d.NetDevs),
		Ports: []fabricPort{}}
	for i := range d.Ports {
		out.Ports = append(out.Ports, fabricPortOf(d, &d.Ports[i]))
	}
	return out
}

func fabricPortOf(d *fabric.Device, p *fabric.Port) fabricPort {
	out := fabricPort{Port: p.Number, DevPort: d.DevPort(p), Rail: railName(d.Name, p.Number), State: p.State.String(), PhysState: p.PhysState.String(),
		LinkLayer: p.Link.String(), RateBits: bits(p.Rate.Gbps), Width: p.Rate.Lanes, Speed: p.Rate.Speed, LID: p.LID, SMLID: p.SMLID, LMC: p.LMC,
		MaxMTU: p.MaxMTU, ActiveMTU: p.ActiveMTU, MTUSource: p.MTUFrom, NetDev: p.NetDev, NetDevs: notNil(p.NetDevs), PKeys: []string{},
		GIDEntries: p.GIDSlots, GIDs: []fabricGID{}, Usable: true}
	for _, k := range p.PKeys {
		out.PKeys = append(out.PKeys, fmt.Sprintf("%#04x", k))
	}
	unfit := d.Unsupported()
	c, err := p.Choose(deploy.GIDSelector{Select: fabric.SelectAuto})
	out.GIDs = fabricGIDs(p.GIDs, c)
	for i := range out.GIDs {
		if unfit != nil {
			out.GIDs[i].Taken, out.GIDs[i].Reason = false, unfit.Message
		}
	}
	if err == nil && unfit == nil {
		out.GIDIndex = &c.Entry.Index
	}
	if f := d.Usable(p); f != nil {
		out.Usable, out.Reason, out.Hint = false, f.Message, f.Hint
	}
	return out
}

// railName is a port in the short form of a recipe's rail.
func railName(device string, port int) string {
	if port == 1 {
		return "ibv:" + device
	}
	return fmt.Sprintf("ibv:%s:%d", device, port)
}

func fabricGIDs(table []verbs.GIDEntry, c fabric.Choice) []fabricGID {
	out := []fabricGID{}
	for i, e := range table {
		g := fabricGID{Index: e.Index, GID: e.GID.String(), Address: e.GID.Addr().String(), Type: e.Type.String(), NetDev: e.NetDev}
		if i < len(c.Verdicts) {
			g.Taken, g.Reason = c.Verdicts[i].Taken, c.Verdicts[i].Reason
		}
		out = append(out, g)
	}
	return out
}

func bits(gbps float64) int64 { return int64(math.Round(gbps * 1e9)) }

// opened adds why the devices cannot be used from here, which is nobody's fault
// but the build's or the installation's.
func (r *fabricResult) opened(err error) {
	if err == nil {
		return
	}
	f := failureOf(err)
	hint := f.Hint
	if hint == "" {
		hint = "the embedded provider works without: take a rail that begins with soft:"
	}
	for i := range r.Devices {
		d := &r.Devices[i]
		told := false
		for j := range d.Ports {
			p := &d.Ports[j]
			if !p.Usable {
				continue // for a better reason
			}
			p.Usable, p.Reason, p.Hint = false, f.Message, hint
			if !told {
				told = true
				r.Warnings = append(r.Warnings, fabricWarning{Device: d.Name, Code: "provider", Message: f.Message, Hint: hint})
			}
		}
	}
}

// taken is the GID that a rail gets, nil when there is none.
func (p *fabricPort) taken() *fabricGID {
	for i := range p.GIDs {
		if p.GIDs[i].Taken {
			return &p.GIDs[i]
		}
	}
	return nil
}

// mtuCode is the number that ibv_devinfo prints in parentheses.
func mtuCode(n int) int {
	for i, m := range []int{256, 512, 1024, 2048, 4096} {
		if n == m {
			return i + 1
		}
	}
	return 0
}

// stateCode is the number of a port state's word, -1 for none.
func stateCode(word string) int {
	for s := verbs.PortNop; s <= verbs.PortActiveDefer; s++ {
		if s.String() == word {
			return int(s)
		}
	}
	return -1
}
