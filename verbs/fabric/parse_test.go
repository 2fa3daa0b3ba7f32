package fabric

import (
	"io/fs"
	"math"
	"path"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/railstore/railstore/cue/deploy"
	"github.com/railstore/railstore/verbs"
)

func TestParseRate(t *testing.T) {
	for in, want := range map[string]Rate{
		"100 Gb/sec (4X EDR)": {100, 4, "EDR"},
		"2.5 Gb/sec (1X)":     {2.5, 1, ""},
		"400 Gb/sec (4X NDR)": {400, 4, "NDR"},
		"40 Gb/sec":           {40, 0, ""},
		"10 Gb/sec (QX":       {10, 0, ""},
		"0 Gb/sec (4X SDR)":   {0, 4, "SDR"},
	} {
		if got, ok := parseRate(in); !ok || got != want {
			t.Errorf("%q: %+v, %v", in, got, ok)
		}
	}
	for _, in := range []string{"", "100", "100 Gb", "-1 Gb/sec", "NaN Gb/sec", "Inf Gb/sec", "1e99 Gb/sec", "x Gb/sec"} {
		if got, ok := parseRate(in); ok {
			t.Errorf("%q: %+v", in, got)
		}
	}
	if s := (Rate{2.5, 1, ""}).String(); s != "2.5 Gb/s" {
		t.Error(s)
	}
}

func TestParsePCI(t *testing.T) {
	for in, want := range map[string]PCI{"0000:3b:00.0": "0000:3b:00.0", "3B:00.7": "0000:3b:00.7", "10000:e1:00.0": "10000:e1:00.0"} {
		if got, ok := ParsePCI(in); !ok || got != want {
			t.Errorf("%q: %v, %v", in, got, ok)
		}
	}
	for _, in := range []string{"", "3b:00", "3b:00.8", "000:3b:00.0", "0000:3b:00.0 ", "g0:00.0", "mlx5_0", "0000:3b:00.00"} {
		if got, ok := ParsePCI(in); ok {
			t.Errorf("%q: %v", in, got)
		}
	}
}

func TestGUID(t *testing.T) {
	for in, want := range map[string]uint64{"0c42:a103:0012:3456": 0x0c42a10300123456, "0x0c42a10300123456": 0x0c42a10300123456, "0XFFFFFFFFFFFFFFFF": math.MaxUint64} {
		if got, ok := guid(in); !ok || got != want {
			t.Errorf("%q: %x, %v", in, got, ok)
		}
	}
	for _, in := range []string{"", "0c42:a103:0012", "0c42:a103:0012:345", "0c42:a103:0012:3456:1", "0x0c42", "0c42a10300123456", "0c42:a103:0012:-001", "+c42:a103:0012:3456"} {
		if got, ok := guid(in); ok {
			t.Errorf("%q: %x", in, got)
		}
	}
	if s := GUIDText(0x0c42a10300123456); s != "0c42:a103:0012:3456" {
		t.Error(s)
	}
}

func TestBus(t *testing.T) {
	for _, c := range []struct {
		b    Bus
		want float64
		text string
	}{
		{Bus{8, 16}, 126, "8 GT/s x16"}, {Bus{16, 16}, 252, "16 GT/s x16"}, {Bus{5, 8}, 32, "5 GT/s x8"}, {Bus{2.5, 1}, 2, "2.5 GT/s x1"}, {Bus{64, 16}, 968, "64 GT/s x16"}, {Bus{}, 0, ""},
	} {
		if got := c.b.Gbps(); math.Abs(got-c.want) > 0.5 || c.b.String() != c.text {
			t.Errorf("%+v: %v %q", c.b, got, c.b)
		}
	}
}

func TestOrderOfNames(t *testing.T) {
	names := []string{"mlx5_10", "mlx5_2", "mlx5_bond_0", "mlx5_02", "mlx5_", "a", "mlx5_2x", "mlx5_1"}
	slices.SortFunc(names, byNumber)
	if want := []string{"a", "mlx5_", "mlx5_1", "mlx5_2", "mlx5_2x", "mlx5_02", "mlx5_10", "mlx5_bond_0"}; !slices.Equal(names, want) {
		t.Errorf("%q", names)
	}
}

func TestPhysStateWords(t *testing.T) {
	for s, want := range map[PhysState]string{PhysLinkUp: "LINK_UP", PhysDisabled: "DISABLED", 9: "OPA_OFFLINE", 200: "physical state 200"} {
		if s.String() != want {
			t.Errorf("%d is %s", s, s)
		}
	}
}

func TestPrintable(t *testing.T) {
	for in, want := range map[string]string{"16.35.2000": "16.35.2000", "a\x1b[31mb": "a?[31mb", "x\x00y": "x?y", "\xff\xfe": "??", "é": "é"} {
		if got := printable(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}

// Net devices that are stacked on each other in a circle end the search.
func TestStackedInACircle(t *testing.T) {
	n := &Nets{here: map[string]Net{"a": {Lower: []string{"b"}}, "b": {Lower: []string{"c", "a"}}, "c": {Lower: []string{"a"}}}}
	if n.above("a", "z") || !n.above("a", "c") {
		t.Error("wrong answer")
	}
}

// The names of container networks are known where the kernel's words are not.
func TestOverlayByName(t *testing.T) {
	table := []verbs.GIDEntry{
		entry(0, "fe80::1", verbs.GIDTypeRoCEv1, ""), entry(1, "fe80::1", verbs.GIDTypeRoCEv2, ""),
		entry(2, "172.17.0.1", verbs.GIDTypeRoCEv2, "docker0"), entry(3, "10.0.0.3", verbs.GIDTypeRoCEv2, ""),
	}
	c, err := Choose(table, deploy.GIDSelector{Select: SelectAuto}, Port{Link: verbs.LinkEthernet})
	if err != nil || c.Entry.Index != 3 || c.Doubt != "" {
		t.Errorf("%+v, %v", c, err)
	}
	if c, err = Choose(table[:3], deploy.GIDSelector{Select: SelectAuto}, Port{Link: verbs.LinkEthernet}); err != nil || c.Entry.Index != 1 || c.Doubt == "" {
		t.Errorf("without a global address: %+v, %v", c, err)
	}
	if _, err = Choose(table[2:3], deploy.GIDSelector{Select: SelectAuto}, Port{Link: verbs.LinkEthernet, NetDev: "eth0"}); err == nil || !strings.Contains(err.Error(), "do not leave this host") {
		t.Errorf("a container network's address alone: %v", err)
	}
	// A device whose whole table is of one net device is on it, whatever its name.
	if c, err = Choose(table[2:3], deploy.GIDSelector{Select: SelectAuto}, Port{Link: verbs.LinkEthernet}); err != nil || c.Entry.Index != 2 {
		t.Errorf("a device on docker0: %+v, %v", c, err)
	}
	for name, want := range map[string]standing{"docker0": overlay, "br-0123456789ab": overlay, "cali0123456789a": overlay, "flannel.1": overlay,
		"vxlan.calico": overlay, "cni0": overlay, "eth1": other, "br0": other, "bond0": other, "eth0": ownDevice, "": ownDevice} {
		if got := (standings{own: "eth0"}).of(name); got != want {
			t.Errorf("%s: %d, want %d", name, got, want)
		}
	}
}

// FuzzRead reads trees of any shape, a line "NAME CONTENT" or "NAME -> TARGET" for
// each file: nothing may panic, and what is chosen is never an empty entry.
func FuzzRead(f *testing.F) {
	const port = "class/infiniband/mlx5_0/ports/1/"
	f.Add("class/infiniband/mlx5_0/node_type 1: CA\n" + port + "state 4: ACTIVE\n" + port + "link_layer Ethernet\n" +
		port + "gids/0 fe80:0000:0000:0000:0000:0000:0000:0001\n" + port + "gid_attrs/types/0 RoCE v2\n" + port + "gid_attrs/ndevs/0 eth0\n" +
		"class/net/eth0/mtu 1500\nclass/net/eth0/type 1\nclass/net/eth0/lower_eth0 x\n")
	f.Add("class/infiniband/x/ports/1/rate 1e400 Gb/sec (4X\nclass/infiniband/x/node_guid :::\nclass/infiniband/x/device/uevent PCI_SLOT_NAME=\n")
	f.Add("class/infiniband/a -> ../../devices/b/infiniband/a\ndevices/b/infiniband/a/device -> ../../../..\nclass/infiniband/c -> c\nclass/infiniband/d -> /d\n")
	f.Fuzz(func(t *testing.T, lines string) {
		files := fstest.MapFS{}
		for line := range strings.Lines(lines) {
			name, content, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
			m := &fstest.MapFile{Data: []byte(content)}
			if target, ok := strings.CutPrefix(content, "-> "); ok {
				m = &fstest.MapFile{Data: []byte(target), Mode: fs.ModeSymlink}
			}
			files[name] = m
		}
		noChains(files)
		h, err := read(files, sysfsOf(files), Options{})
		if err != nil {
			return
		}
		h.Findings()
		for i := range h.Devices {
			d := &h.Devices[i]
			if _, err := h.Select(d.Name); err != nil {
				t.Errorf("%q cannot be selected: %v", d.Name, err)
			}
			for j := range d.Ports {
				p := &d.Ports[j]
				if c, err := p.Choose(deploy.GIDSelector{Select: SelectAuto}); err == nil && c.Entry.GID.IsZero() {
					t.Error("an empty GID was chosen")
				}
				for _, s := range []string{p.NetDev, d.Firmware, p.Rate.String()} {
					if s != printable(s) {
						t.Errorf("%q is not printable", s)
					}
				}
			}
		}
	})
}

// FuzzAttributes puts any text into the attributes of one port.
func FuzzAttributes(f *testing.F) {
	f.Add("1: CA", "4: ACTIVE", "5: LinkUp", "Ethernet", "100 Gb/sec (4X EDR)", "0000:0000:0000:0000:0000:ffff:0a00:0001", "RoCE v2", "eth0", "0c42:a103:0012:3456", "16.0 GT/s PCIe")
	f.Add("4: RNIC", "1: DOWN", "3: Disabled", "InfiniBand", "2.5 Gb/sec (1X)", "fe80::1", "IB/RoCE v1", "", "", "Unknown")
	f.Fuzz(func(t *testing.T, node, state, phys, link, rate, gid, kind, ndev, guid, speed string) {
		const dev, fn = "devices/pci0000:3a/0000:3b:00.0/infiniband/mlx5_0/", "devices/pci0000:3a/0000:3b:00.0/"
		files := fstest.MapFS{
			"class/infiniband/mlx5_0": {Data: []byte("../../" + strings.TrimSuffix(dev, "/")), Mode: fs.ModeSymlink},
			"class/net/eth0/mtu":      {Data: []byte(rate)}, "class/net/eth0/type": {Data: []byte("1")},
			dev + "device": {Data: []byte("../.."), Mode: fs.ModeSymlink}, fn + "current_link_speed": {Data: []byte(speed)}, fn + "current_link_width": {Data: []byte(state)},
			dev + "node_type": {Data: []byte(node)}, dev + "node_guid": {Data: []byte(guid)}, dev + "fw_ver": {Data: []byte(kind)},
			dev + "ports/1/state": {Data: []byte(state)}, dev + "ports/1/phys_state": {Data: []byte(phys)}, dev + "ports/1/link_layer": {Data: []byte(link)},
			dev + "ports/1/rate": {Data: []byte(rate)}, dev + "ports/1/gids/0": {Data: []byte(gid)}, dev + "ports/1/gid_attrs/types/0": {Data: []byte(kind)},
			dev + "ports/1/gid_attrs/ndevs/0": {Data: []byte(ndev)}, dev + "ports/1/pkeys/0": {Data: []byte(node)}, dev + "ports/1/lid": {Data: []byte(guid)},
		}
		h, err := read(files, sysfsOf(files), Options{})
		if err != nil || len(h.Devices) != 1 || h.Devices[0].PCI != "0000:3b:00.0" {
			t.Fatalf("%+v, %v", h, err)
		}
		for _, g := range h.Findings() {
			if g.Message == "" || g.Hint == "" || g.Code == "" {
				t.Errorf("%+v", g)
			}
		}
		p := &h.Devices[0].Ports[0]
		if c, err := p.Choose(deploy.GIDSelector{Select: SelectAuto}); err == nil && c.Entry.GID.IsZero() {
			t.Error("an empty GID was chosen")
		}
		if r := p.Rate.Gbps; !(r >= 0 && r < 1e6) {
			t.Errorf("rate %v", r)
		}
	})
}

// FuzzSelect hands any selector to a host with one of everything.
func FuzzSelect(f *testing.F) {
	for _, s := range []string{"", "ibv:", "mlx5_0", "ibv:ens1f0np0", "0000:3b:00.0", "0x0c42a10300123456", "0c42:a103:0012:3456", "\x00", "ibv:ibv:x"} {
		f.Add(s)
	}
	h := load(f, "mlx5-roce-vlan")
	f.Fuzz(func(t *testing.T, spec string) {
		s, err := h.Select(spec)
		if (err == nil) != (s.Device != nil) {
			t.Errorf("%q: %+v, %v", spec, s, err)
		}
	})
}

// noChains removes links that lead through links: fstest.MapFS follows circles of
// them for ever, which the kernel does not (TestCircle).
func noChains(files fstest.MapFS) {
	for name, m := range files {
		if m.Mode&fs.ModeSymlink == 0 {
			continue
		}
		to := path.Join(path.Dir(name), string(m.Data))
		for other, o := range files {
			if o.Mode&fs.ModeSymlink != 0 && (to == other || strings.HasPrefix(to, other+"/")) {
				delete(files, name)
			}
		}
	}
}

func sysfsOf(f fs.FS) mapper { return sysfsMap{tree{f}} }
