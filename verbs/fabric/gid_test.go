package fabric

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/railstore/railstore/cue/deploy"
	"github.com/railstore/railstore/verbs"
)

func entry(i int, addr string, t verbs.GIDType, dev string) verbs.GIDEntry {
	return verbs.GIDEntry{Index: i, GID: verbs.GIDFromAddr(netip.MustParseAddr(addr)), Type: t, NetDev: dev}
}

func TestChoose(t *testing.T) {
	eth := Port{Link: verbs.LinkEthernet, NetDev: "eth0"}
	mlx := []verbs.GIDEntry{
		entry(0, "fe80::1", verbs.GIDTypeIB, "eth0"),
		entry(1, "fe80::1", verbs.GIDTypeRoCEv2, "eth0"),
		entry(2, "172.17.0.1", verbs.GIDTypeRoCEv2, "docker0"),
		entry(3, "10.0.0.1", verbs.GIDTypeRoCEv2, "eth0"),
		entry(4, "10.0.0.1", verbs.GIDTypeIB, "eth0"),
		entry(5, "fd00::2", verbs.GIDTypeRoCEv2, "eth0"),
	}
	for _, c := range []struct {
		name  string
		table []verbs.GIDEntry
		sel   deploy.GIDSelector
		want  int // index; -1 is ErrNoGID
		says  string
	}{
		{"auto takes routable IPv4 RoCE v2 of the port", mlx, deploy.GIDSelector{Select: "auto"}, 3, "10.0.0.1"},
		{"index", mlx, deploy.GIDSelector{Select: "index", Index: 5}, 5, "chosen by index 5"},
		{"index that is not there", mlx, deploy.GIDSelector{Select: "index", Index: 9}, -1, "index 3 is RoCE v2 10.0.0.1"},
		{"address", mlx, deploy.GIDSelector{Select: "address", Address: "fd00::2"}, 5, ""},
		{"prefix", mlx, deploy.GIDSelector{Select: "address", Address: "10.0.0.0/8"}, 3, ""},
		{"type v1", mlx, deploy.GIDSelector{Select: "type", Type: "rocev1"}, 4, ""},
		{"type ib on Ethernet is refused", mlx, deploy.GIDSelector{Select: "type", Type: "ib"}, -1, "asks for ib"},
		{"link-local when nothing else", mlx[:2], deploy.GIDSelector{Select: "auto"}, 1, "link-local"},
		{"own net device beats an overlay even over IPv6", []verbs.GIDEntry{mlx[2], mlx[5]}, deploy.GIDSelector{Select: "auto"}, 5, ""},
		{"empty table", nil, deploy.GIDSelector{Select: "auto"}, -1, "network namespace"},
		{"empty entry is never taken", []verbs.GIDEntry{{Index: 0, Type: verbs.GIDTypeRoCEv2}}, deploy.GIDSelector{Select: "index"}, -1, "the GID table is empty"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := Choose(c.table, c.sel, eth)
			if c.want < 0 {
				if !errors.Is(err, ErrNoGID) || !strings.Contains(err.Error(), c.says) {
					t.Fatalf("err = %v, want ErrNoGID saying %q", err, c.says)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got.Entry.Index != c.want || !strings.Contains(got.Reason(), c.says) {
				t.Fatalf("took %d (%s), want %d saying %q", got.Entry.Index, got.Reason(), c.want, c.says)
			}
			for _, v := range got.Verdicts {
				if v.Reason == "" {
					t.Errorf("index %d has no reason", v.Entry.Index)
				}
			}
		})
	}
}

func TestChooseIB(t *testing.T) {
	table := []verbs.GIDEntry{entry(0, "fe80::2:c903:0:1", verbs.GIDTypeIB, "")}
	got, err := Choose(table, deploy.GIDSelector{Select: "type", Type: "ib"}, Port{Link: verbs.LinkInfiniBand})
	if err != nil || got.Entry.Index != 0 {
		t.Fatalf("%v %v", got, err)
	}
}
