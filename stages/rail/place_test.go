package rail

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"

	"github.com/railstore/railstore/cue/deploy"
	"github.com/railstore/railstore/pipeline"
	"github.com/railstore/railstore/verbs"
	"github.com/railstore/railstore/verbs/fabric"
	"github.com/railstore/railstore/verbs/fabric/fabrictest"
)

// hostOf is a host that verbs/fabric has a description of.
func hostOf(t *testing.T, name string) hostFunc {
	t.Helper()
	a, err := txtar.ParseFile(filepath.Join("..", "..", "verbs", "fabric", "testdata", name+".txtar"))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for _, f := range a.Files {
		if f.Name == "sysfs" {
			if err := fabrictest.Write(dir, string(f.Data)); err != nil {
				t.Fatal(err)
			}
		}
	}
	return func(name string) (*fabric.Host, error) { return fabric.Read(fabric.Options{Root: dir, Device: name}) }
}

func TestLocate(t *testing.T) {
	for _, c := range []struct {
		host, device string
		port         int
		want         string // name of the device
		err          string
	}{
		{"mlx5-roce-vlan", "ibv:mlx5_1", 1, "mlx5_1", ""},
		{"mlx5-roce-vlan", "ibv:ens1f1np1", 1, "mlx5_1", ""},
		{"mlx5-roce-vlan", "ibv:0000:3b:00.1", 1, "mlx5_1", ""},
		{"mlx5-roce-vlan", "ibv:0x0c42a10300123457", 1, "mlx5_1", ""},
		{"mlx5-roce-vlan", "ibv:0c42:a103:0012:3457", 1, "mlx5_1", ""},
		{"mlx5-roce-vlan", "soft:127.0.0.1", 1, "127.0.0.1", ""},
		{"mlx5-roce-vlan", "ibv:other", 1, "other", ""}, // the provider has the last word
		{"mlx4", "ibv:eth3", 2, "mlx4_0", ""},
		{"mlx4", "ibv:eth3", 1, "", "eth3 is of port 2 of ibv:mlx4_0, and the rail is of port 1"},
		{"subfunction", "ibv:0000:3b:00.0", 1, "", "more than one device"},
		{"cxgb4", "ibv:cxgb4_0", 1, "", "iWARP"},
		{"irdma", "ibv:ens801f1", 1, "", "iWARP"},
	} {
		d, err := deploy.ParseDevice(c.device)
		if err != nil {
			t.Fatal(err)
		}
		at, err := locate(deploy.Rail{Name: "r", Device: c.device, Port: c.port}, d.Provider, d.Name, hostOf(t, c.host))
		if c.err != "" {
			if err == nil || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%s on %s: %v, want %q", c.device, c.host, err, c.err)
			}
			continue
		}
		if err != nil || at.name != c.want {
			t.Errorf("%s on %s is %q, %v; want %q", c.device, c.host, at.name, err, c.want)
		}
		if (at.reason != "") != (d.Provider == "ibv" && d.Name != c.want) {
			t.Errorf("%s on %s: reason %q", c.device, c.host, at.reason)
		}
	}
}

// The choice of a GID knows the port's net device and a VLAN that was named.
func TestLocatedPort(t *testing.T) {
	for device, want := range map[string]int{"mlx5_0": 7, "ens1f0np0": 7, "ens1f0np0.100": 3} {
		host := hostOf(t, "mlx5-roce-vlan")
		at, err := locate(deploy.Rail{Name: "r", Port: 1}, "ibv", device, host)
		if err != nil {
			t.Fatal(err)
		}
		c, err := fabric.Choose(at.port.GIDs, deploy.GIDSelector{Select: "auto"}, at.portOf(verbs.LinkEthernet))
		if err != nil || c.Entry.Index != want {
			t.Errorf("%s: GID %d, %v; want %d", device, c.Entry.Index, err, want)
		}
	}
}

// A device that neither this host nor the provider knows is told with what there is.
func TestLocateUnknown(t *testing.T) {
	at, err := locate(deploy.Rail{Name: "r", Port: 1}, "ibv", "eth7", hostOf(t, "mlx5-ib"))
	if err != nil {
		t.Fatal(err)
	}
	gone := verbs.Errorf(verbs.ErrNotFound, "open_device", "ibv:eth7", "no such device")
	if err := at.explain(gone); !strings.Contains(err.Error(), "there are ibv:mlx5_0") {
		t.Errorf("unknown to both: %v", err)
	}
	busy := verbs.Errorf(verbs.ErrPermission, "open_device", "ibv:eth7", "no")
	if err := at.explain(busy); !errors.Is(err, verbs.ErrPermission) {
		t.Errorf("the provider's own reason: %v", err)
	}
	at, err = locate(deploy.Rail{Name: "r", Port: 1}, "ibv", "x", func(string) (*fabric.Host, error) { return nil, errors.New("no sysfs") })
	if err != nil || at.name != "x" || !errors.Is(at.explain(gone), verbs.ErrNotFound) {
		t.Errorf("without sysfs: %+v, %v", at, err)
	}
	var pe *pipeline.Error
	if _, err := locate(deploy.Rail{Name: "r", Port: 1}, "ibv", "cxgb4_0", hostOf(t, "cxgb4")); !errors.As(err, &pe) || pe.Hint == "" || pe.Where.Rail != "r" {
		t.Errorf("iWARP: %v", err)
	}
}
