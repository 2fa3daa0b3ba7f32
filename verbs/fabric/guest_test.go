package fabric

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/railstore/railstore/cue/deploy"
	"github.com/railstore/railstore/verbs"
)

// TestGuestDevices reads the real sysfs of a host whose Soft-RoCE devices
// RS_TEST_IBV names, each on a net device with an IPv4 and an IPv6 address.
func TestGuestDevices(t *testing.T) {
	list := os.Getenv("RS_TEST_IBV")
	if list == "" {
		t.Skip("no RDMA device: RS_TEST_IBV names none")
	}
	h, err := Read(Options{})
	if err != nil {
		t.Fatal(err)
	}
	h.CheckAccess("")
	for name := range strings.SplitSeq(list, ",") {
		d, ok := h.Device(name)
		if !ok {
			t.Errorf("no device %s: %s", name, h.list())
			continue
		}
		t.Logf("%+v", d)
		if d.NodeType != "CA" || d.NodeGUID == 0 || d.Access != nil || d.Unsupported() != nil || len(d.Ports) != 1 || len(d.Notes) != 0 {
			t.Errorf("%s: %+v", name, d)
			continue
		}
		if !d.IsRXE() || !d.IsSoftware() || d.PCI != "" {
			t.Errorf("%s is not seen as Soft-RoCE: %+v", name, d)
		}
		for _, dev := range []string{d.Uverbs(), "/dev/infiniband/rdma_cm"} {
			if dev == "" || !slices.Contains(d.CharDevices, dev) {
				t.Errorf("%s: char devices %q", name, d.CharDevices)
			}
		}
		p := &d.Ports[0]
		n := h.Nets.Get(p.NetDev)
		if p.State != verbs.PortActive || p.PhysState != PhysLinkUp || p.Link != verbs.LinkEthernet || p.Rate.Gbps == 0 || p.NetDev == "" || n.MTU == 0 || !n.Up {
			t.Errorf("%s: %+v on %+v", name, p, n)
		}
		if want := map[bool]int{true: 4096, false: 1024}[n.MTU >= 4096+rxeHeaders]; p.ActiveMTU != want {
			t.Errorf("%s: active MTU %d on an MTU of %d, want %d", name, p.ActiveMTU, n.MTU, want)
		}
		c, err := p.Choose(deploy.GIDSelector{Select: SelectAuto})
		if err != nil || c.Entry.Type != verbs.GIDTypeRoCEv2 || !c.Entry.GID.IsIPv4() || c.Entry.NetDev != p.NetDev || c.Doubt != "" {
			t.Errorf("%s: GID %+v, %v", name, c, err)
		}
		for _, spec := range []string{name, p.NetDev, GUIDText(d.NodeGUID)} {
			if s, err := h.Select("ibv:" + spec); err != nil || s.Device.Name != name {
				t.Errorf("ibv:%s: %+v, %v", spec, s, err)
			}
		}
		// rdmamap and our own reading say the same.
		own := sysfsMap{tree{os.DirFS("/sys")}}.charDevices(name)
		for _, dev := range own {
			if strings.Contains(dev, "uverbs") && dev != d.Uverbs() {
				t.Errorf("%s: rdmamap says %s, sysfs %s", name, d.Uverbs(), dev)
			}
		}
		if got := (rdmaMap{}).deviceOf(n); got != name {
			t.Errorf("rdmamap says that %s is of %q, not %s", p.NetDev, got, name)
		}
	}
	for _, f := range h.Findings() {
		t.Logf("%s %s: %s", f.Subject(), f.Code, f.Message)
	}
}
