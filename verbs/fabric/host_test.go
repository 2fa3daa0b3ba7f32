package fabric

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"

	"github.com/railstore/railstore/cue/deploy"
	"github.com/railstore/railstore/verbs"
	"github.com/railstore/railstore/verbs/fabric/fabrictest"
)

func TestReadNothing(t *testing.T) {
	if _, err := Read(Options{Root: filepath.Join(t.TempDir(), "none")}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a root that is not there: %v", err)
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(Options{Root: file}); err == nil {
		t.Error("a file was read as a tree")
	}
	h, err := Read(Options{Root: t.TempDir()})
	if err != nil || len(h.Devices) != 0 || !strings.Contains(h.Absent, "no RDMA driver is loaded") {
		t.Errorf("empty tree: %+v, %v", h, err)
	}
	if _, err := h.Select("mlx5_0"); !errors.Is(err, verbs.ErrNotFound) || !strings.Contains(err.Error(), "this host has none: no RDMA driver") {
		t.Errorf("select in an empty tree: %v", err)
	}
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "class/infiniband"), 0o755); err != nil {
		t.Fatal(err)
	}
	if h, err = Read(Options{Root: dir}); err != nil || !strings.Contains(h.Absent, "another network namespace") {
		t.Errorf("class without devices: %+v, %v", h, err)
	}
}

// TestReadThisHost reads whatever this machine has.
func TestReadThisHost(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("no sysfs: not Linux")
	}
	h, err := Read(Options{})
	if err != nil {
		t.Fatal(err)
	}
	if (len(h.Devices) == 0) != (h.Absent != "") {
		t.Errorf("%d devices, absent %q", len(h.Devices), h.Absent)
	}
	if here, known := h.Nets.Here("lo"); known && !here {
		t.Error("no loopback device")
	}
	h.CheckAccess("")
	h.Findings()
}

func TestDevice(t *testing.T) {
	h := load(t, "mlx5-roce-vlan")
	d, p := portOf(t, h, "mlx5_1/1")
	want := Device{Name: "mlx5_1", Driver: "mlx5_core", NodeType: "CA", NodeGUID: 0x0c42a10300123457, SysImageGUID: 0x0c42a10300123456,
		Firmware: "16.35.2000", BoardID: "MT_0000000012", HCAType: "MT4119", PCI: "0000:3b:00.1", NUMANode: 1, Bus: Bus{8, 8}, BusMax: Bus{8, 16},
		CharDevices: []string{"/dev/infiniband/umad1", "/dev/infiniband/uverbs1"}, NetDevs: []string{"ens1f1np1", "ens1f1np1.200"}}
	got := *d
	got.Ports, got.device = nil, ""
	if g, w := fmt.Sprintf("%+v", got), fmt.Sprintf("%+v", want); g != w {
		t.Errorf("got  %s\nwant %s", g, w)
	}
	if d.Transport() != "InfiniBand" || d.Uverbs() != "/dev/infiniband/uverbs1" || d.IsSoftware() || d.Adapter() != "0000:3b:00" {
		t.Errorf("transport %s, uverbs %s, software %v, adapter %s", d.Transport(), d.Uverbs(), d.IsSoftware(), d.Adapter())
	}
	if p.State != verbs.PortActive || p.PhysState != PhysLinkUp || p.Link != verbs.LinkEthernet || p.Rate != (Rate{100, 4, "EDR"}) ||
		p.NetDev != "ens1f1np1" || p.ActiveMTU != 4096 || p.MaxMTU != 4096 || p.MTUFrom != "net device ens1f1np1 has MTU 9000" ||
		p.GIDSlots != 16 || len(p.GIDs) != 4 || len(p.PKeys) != 1 {
		t.Errorf("%+v", p)
	}
	d, p = portOf(t, load(t, "mlx5-ib"), "mlx5_0/1")
	if p.LID != 0x11 || p.SMLID != 1 || p.Link != verbs.LinkInfiniBand || p.ActiveMTU != 0 || p.NetDev != "ib0" || !slices.Equal(p.PKeys, []uint16{0xffff, 0x8001}) || d.Vendor != "0x15b3:0x1011" {
		t.Errorf("%+v of %+v", p, d)
	}
	d, p = portOf(t, load(t, "rxe"), "rxe0/1")
	if !d.IsSoftware() || !d.IsRXE() || d.PCI != "" || d.NUMANode != -1 || p.NetDev != "eth0" || p.ActiveMTU != 1024 || d.Adapter() != "" {
		t.Errorf("%+v of %+v", p, d)
	}
	d, _ = portOf(t, load(t, "sriov-vf"), "mlx5_2/1")
	if d.PhysFn != "0000:c1:00.0" || d.Bus != (Bus{16, 16}) || d.NUMANode != 3 || d.Adapter() != "0000:c1:00" {
		t.Errorf("virtual function: %+v", d)
	}
	if d, p = portOf(t, load(t, "subfunction"), "mlx5_4/1"); d.PCI != "0000:3b:00.0" || d.Bus != (Bus{16, 16}) || p.NetDev != "enp59s0f0s44" {
		t.Errorf("sub-function: %+v of %+v", p, d)
	}
}

// A tree that was copied without symbolic links still has the PCI function.
func TestCopiedWithoutLinks(t *testing.T) {
	h, err := read(fstest.MapFS{
		"class/infiniband/mlx5_0/device/uevent":       {Data: []byte("DRIVER=mlx5_core\nPCI_SLOT_NAME=0000:3b:00.0\n")},
		"class/infiniband/mlx5_0/device/numa_node":    {Data: []byte("1\n")},
		"class/infiniband/mlx5_0/node_type":           {Data: []byte("1: CA\n")},
		"class/infiniband/mlx5_0/ports/1/state":       {Data: []byte("4: ACTIVE\n")},
		"class/infiniband/mlx5_0/ports/1/link_layer":  {Data: []byte("Ethernet\n")},
		"class/infiniband/mlx5_0/ports/1/gids/0":      {Data: []byte("0000:0000:0000:0000:0000:ffff:0a00:0001\n")},
		"class/infiniband/mlx5_0/ports/1/gids/1":      {Data: []byte("0000:0000:0000:0000:0000:0000:0000:0000\n")},
		"class/infiniband/mlx5_0/ports/1/phys_state":  {Data: []byte("5: LinkUp\n")},
		"class/infiniband_verbs/uverbs7/ibdev":        {Data: []byte("mlx5_0\n")},
		"class/infiniband_verbs/abi_version":          {Data: []byte("6\n")},
		"class/infiniband/mlx5_0/ports/1/rate":        {Data: []byte("25 Gb/sec (1X EDR)\n")},
		"class/infiniband/mlx5_0/ports/not-a-port/x":  {Data: []byte("1\n")},
		"class/infiniband/mlx5_0/ports/1/gids/leader": {Data: []byte("fe80::1\n")},
	}, noMap{}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	d, p := portOf(t, h, "mlx5_0/1")
	if d.PCI != "0000:3b:00.0" || d.NUMANode != 1 || len(d.Notes) != 0 {
		t.Errorf("%+v", d)
	}
	// A kernel without gid_attrs knows RoCE v1 only.
	if c, err := p.Choose(deploy.GIDSelector{Select: SelectAuto}); err != nil || c.Entry.Type != verbs.GIDTypeRoCEv1 || p.GIDSlots != 2 {
		t.Errorf("%+v, %v", c, err)
	}
	if h.Nets != nil {
		t.Error("net devices are known where there is no class/net")
	}
}

// Links in a circle, out of the tree and to nothing are devices without content.
func TestCircle(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "class/infiniband"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, to := range map[string]string{"a": "b", "b": "a", "c": "../../../..", "d": "/proc", "e": "nothing"} {
		if err := os.Symlink(to, filepath.Join(dir, "class/infiniband", name)); err != nil {
			t.Fatal(err)
		}
	}
	h, err := Read(Options{Root: dir})
	if err != nil || len(h.Devices) != 5 {
		t.Fatalf("%+v, %v", h, err)
	}
	for _, d := range h.Devices {
		if len(d.Ports) != 0 || d.PCI != "" || len(d.Notes) != 1 {
			t.Errorf("%+v", d)
		}
	}
	if f := h.Findings(); len(f) != 5 {
		t.Errorf("%+v", f)
	}
}

type noMap struct{ dev map[string]string }

func (noMap) charDevices(string) []string { return nil }
func (m noMap) deviceOf(n Net) string     { return m.dev[n.Name] }

// invalid answers EINVAL where the kernel does.
type invalid struct {
	fs.FS
	names []string
}

func (i invalid) Open(name string) (fs.File, error) {
	if slices.Contains(i.names, name) {
		return nil, &fs.PathError{Op: "read", Path: name, Err: syscall.EINVAL}
	}
	return i.FS.Open(name)
}

func TestEmptyEntriesAnswerEINVAL(t *testing.T) {
	const port = "class/infiniband/mlx5_0/ports/1/"
	tree := fstest.MapFS{port + "link_layer": {Data: []byte("Ethernet\n")}, port + "gid_attrs/types/9": {Data: []byte("RoCE v2\n")}}
	var gone []string
	for i := range 4 {
		for _, f := range []string{"gids/", "gid_attrs/types/", "gid_attrs/ndevs/"} {
			name := fmt.Sprintf("%s%s%d", port, f, i)
			tree[name] = &fstest.MapFile{Data: []byte("RoCE v2\n")}
			if f != "gids/" || i == 3 {
				gone = append(gone, name)
			}
		}
		tree[fmt.Sprintf("%sgids/%d", port, i)].Data = []byte("0000:0000:0000:0000:0000:0000:0000:0000\n")
	}
	h, err := read(invalid{tree, gone}, noMap{}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	d, p := portOf(t, h, "mlx5_0/1")
	if p.GIDSlots != 4 || len(p.GIDs) != 0 || len(d.Notes) != 0 {
		t.Errorf("%d slots, GIDs %v, notes %v", p.GIDSlots, p.GIDs, d.Notes)
	}
}

// What the mapper knows beyond GID tables and PCI functions is a selector too.
func TestMapperAddsNetDevices(t *testing.T) {
	tree := fstest.MapFS{
		"class/infiniband/mlx5_0/ports/1/link_layer": {Data: []byte("InfiniBand\n")},
		"class/net/ib0.8001/device/x":                {Data: []byte("1\n")},
		"class/net/ib0.8001/type":                    {Data: []byte("32\n")},
	}
	// MapFS has no link for the net device's device; the test gives it one.
	tree["class/net/ib0.8001/device"] = &fstest.MapFile{Data: []byte("../../../devices/x"), Mode: fs.ModeSymlink}
	delete(tree, "class/net/ib0.8001/device/x")
	tree["devices/x/y"] = &fstest.MapFile{}
	h, err := read(tree, noMap{map[string]string{"ib0.8001": "mlx5_0"}}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	s, err := h.Select("ibv:ib0.8001")
	if err != nil || s.Device.Name != "mlx5_0" || s.Port != 0 || s.NetDev != "ib0.8001" {
		t.Errorf("%+v, %v", s, err)
	}
}

func TestAccess(t *testing.T) {
	d := &Device{Name: "mlx5_0", CharDevices: []string{"/dev/infiniband/rdma_cm", "/dev/infiniband/uverbs3"}}
	for _, c := range []struct {
		err  error
		says []string
	}{
		{nil, nil},
		{syscall.ENOENT, []string{"uverbs3 cannot be opened", "no such file", "--device=/dev/infiniband/uverbs3"}},
		{syscall.EACCES, []string{"permission denied", fmt.Sprintf("uid %d", os.Getuid()), "chmod"}},
		{syscall.EPERM, []string{"operation not permitted", "device rules"}},
		{syscall.EIO, []string{"input/output error"}},
	} {
		var opened string
		f := access(d, "/else", func(name string) error {
			opened = name
			if c.err == nil {
				return nil
			}
			return &fs.PathError{Op: "open", Path: name, Err: c.err}
		})
		if opened != "/else/infiniband/uverbs3" {
			t.Errorf("opened %s", opened)
		}
		if (f == nil) != (c.err == nil) {
			t.Errorf("%v: %+v", c.err, f)
			continue
		}
		for _, s := range c.says {
			if !strings.Contains(f.Message+" "+f.Hint, s) {
				t.Errorf("%v: %q, hint %q; want %q", c.err, f.Message, f.Hint, s)
			}
		}
	}
	if f := access(&Device{Name: "x"}, "/dev", openFile); f == nil || f.Code != "no_uverbs" {
		t.Errorf("no uverbs device: %+v", f)
	}
}

// A device that cannot be opened is no rail, and its port's other faults are told
// all the same.
func TestAccessOfATree(t *testing.T) {
	var desc string
	for _, f := range fixtures(t) {
		if f.name == "mlx5-roce-vlan" {
			desc = f.sections["sysfs"]
		}
	}
	dir, dev := t.TempDir(), t.TempDir()
	if err := fabrictest.Write(dir, desc); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(dev, "infiniband"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dev, "infiniband/uverbs1"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	h, err := Read(Options{Root: dir})
	if err != nil {
		t.Fatal(err)
	}
	h.CheckAccess(dev)
	d, p := portOf(t, h, "mlx5_0/1")
	if f := d.Usable(p); f == nil || f.Code != "uverbs" || f.Subject() != "mlx5_0" {
		t.Errorf("without its file: %+v", f)
	}
	if d, p = portOf(t, h, "mlx5_1/1"); d.Usable(p) != nil {
		t.Errorf("with its file: %+v", d.Usable(p))
	}
	var codes []string
	for _, f := range h.Findings() {
		codes = append(codes, f.Subject()+" "+f.Code)
	}
	if want := []string{"mlx5_0 uverbs", "mlx5_0/1 pcie", "mlx5_1/1 pcie"}; !slices.Equal(codes, want) {
		t.Errorf("%q, want %q", codes, want)
	}
}

// Naming a VLAN means its addresses; naming the port's own net device means the
// port.
func TestSelectionOfVLAN(t *testing.T) {
	h := load(t, "mlx5-roce-vlan")
	for spec, want := range map[string]int{"ens1f0np0": 7, "ens1f0np0.100": 3, "mlx5_0": 7, "ens1f1np1": 3, "ens1f1np1.200": 3} {
		s, err := h.Select("ibv:" + spec)
		if err != nil {
			t.Fatal(err)
		}
		p, ok := s.Device.Port(1)
		if !ok {
			t.Fatal("no port 1")
		}
		on := s.On(*p)
		c, err := on.Choose(deploy.GIDSelector{Select: SelectAuto})
		if err != nil || c.Entry.Index != want {
			t.Errorf("%s takes GID %d, %v; want %d", spec, c.Entry.Index, err, want)
		}
	}
	s, _ := h.Select("ens1f0np0.100")
	p, _ := s.Device.Port(1)
	on := s.On(*p)
	if _, err := on.Choose(deploy.GIDSelector{Select: SelectAddress, Address: "10.0.0.1"}); !errors.Is(err, ErrNoGID) || !strings.Contains(err.Error(), "asks for net device ens1f0np0.100") {
		t.Errorf("an address of the other net device: %v", err)
	}
	for only, want := range map[string]int{"mlx5_1": 1, "ens1f1np1": 2, "": 2} {
		if h, err := Read(Options{Root: h.Root, Device: only}); err != nil || len(h.Devices) != want || h.Devices[want-1].Name != "mlx5_1" {
			t.Errorf("only %q: %+v, %v", only, h, err)
		}
	}
	if _, ok := s.Device.Port(2); ok {
		t.Error("a port 2 where there is none")
	}
}
