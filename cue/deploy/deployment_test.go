package deploy_test

import (
	"bytes"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/railstore/railstore/cue/deploy"
)

// pair is a deployment with two storage hosts, the second one on one rail, and a
// client.
func pair() *deploy.Deployment {
	rail := func(name, device string) deploy.Rail {
		return deploy.Rail{Name: name, Fabric: name, Device: device, Port: 1, Weight: 1, Listeners: []string{}}
	}
	return &deploy.Deployment{
		Name: "pair", Epoch: 1,
		Hosts: []deploy.Host{
			{Name: "s0", Rails: []deploy.Rail{rail("a", "ibv:mlx5_0"), rail("b", "ibv:mlx5_1")}},
			{Name: "s1", Rails: []deploy.Rail{rail("a", "soft:10.0.0.2"), rail("b", "ibv:mlx5_1")}},
			{Name: "c0", Rails: []deploy.Rail{rail("a", "soft:10.0.0.3"), rail("b", "soft:10.0.1.3"), rail("c", "soft:10.0.2.3")}},
		},
		Shards: []deploy.Shard{
			{ID: 0, Host: "s0", Slab: 1 << 20, Store: deploy.Store{Memory: 2 << 20}},
			{ID: 1, Host: "s1", Rails: []string{"b"}, Slab: 4 << 20, Store: deploy.Store{Memory: 8 << 20}},
		},
		Tables: []deploy.Table{{Name: "t", Dim: 8}},
		Lanes:  deploy.Lanes{QPs: 2, Slots: 3, RequestBytes: 1 << 10, ResponseBytes: 3 << 10, MaxClients: 5},
		Reader: deploy.Reader{MaxStaging: 64 << 20},
	}
}

func TestLookups(t *testing.T) {
	d := pair()
	if h, ok := d.Host("s1"); !ok || h != &d.Hosts[1] {
		t.Errorf("host s1: %v, %v", h, ok)
	}
	if _, ok := d.Host("s2"); ok {
		t.Error("there is no host s2")
	}
	if s, ok := d.Shard(1); !ok || s != &d.Shards[1] {
		t.Errorf("shard 1: %v, %v", s, ok)
	}
	if _, ok := d.Shard(2); ok {
		t.Error("there is no shard 2")
	}
	if r, ok := d.Hosts[2].Rail("c"); !ok || r != &d.Hosts[2].Rails[2] {
		t.Errorf("rail c: %v, %v", r, ok)
	}
	if _, ok := d.Hosts[0].Rail("c"); ok {
		t.Error("s0 has no rail c")
	}
	names := func(rs []deploy.Rail) string {
		var out []string
		for _, r := range rs {
			out = append(out, r.Name)
		}
		return strings.Join(out, " ")
	}
	if got := names(d.ShardRails(&d.Shards[0])); got != "a b" {
		t.Errorf("shard 0 serves on %q", got)
	}
	if got := names(d.ShardRails(&d.Shards[1])); got != "b" {
		t.Errorf("shard 1 serves on %q", got)
	}
	if got := d.ShardRails(&deploy.Shard{Host: "nowhere"}); got != nil {
		t.Errorf("a shard on no host serves on %v", got)
	}
	if h := d.ClientHost(); h.Name != "c0" {
		t.Errorf("clients run on %s", h.Name)
	}
	d.Hosts = d.Hosts[:2]
	if h := d.ClientHost(); h.Name != "s0" {
		t.Errorf("without a free host clients run on %s", h.Name)
	}
	if h := (&deploy.Deployment{}).ClientHost(); h != nil {
		t.Errorf("without hosts clients run on %v", h)
	}
}

func TestCanonical(t *testing.T) {
	d := pair()
	d.Lanes.WaitTimeout = deploy.Duration(time.Minute)
	back, err := deploy.Decode(d.Canonical())
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(back.Canonical(), d.Canonical()) || back.Digest() != d.Digest() || len(d.Digest()) != 64 {
		t.Errorf("read back as\n%s\nwant\n%s", back.Canonical(), d.Canonical())
	}
	for name, bad := range map[string]string{
		"unknown field": `{"name":"x","colour":"red"}`,
		"duration":      `{"lanes":{"waitTimeout":"5"}}`,
		"no JSON":       `{"name":`,
		"nothing":       ``,
		"a list":        `[]`,
		"two":           `{} {}`,
	} {
		if d, err := deploy.Decode([]byte(bad)); err == nil {
			t.Errorf("%s: got %+v", name, d)
		} else if !strings.HasPrefix(err.Error(), "resolved deployment: ") {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

// FuzzDecode: no bytes panic; what is read is written and read back alike.
func FuzzDecode(f *testing.F) {
	f.Add(pair().Canonical())
	f.Add([]byte(`{"jobs":[{"limits":{"ioTimeout":"1s"}}],"tables":[{"optimizer":{"learningRate":1e-300}}]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		d, err := deploy.Decode(b)
		if err != nil {
			return
		}
		again, err := deploy.Decode(d.Canonical())
		if err != nil || !bytes.Equal(d.Canonical(), again.Canonical()) {
			t.Errorf("%s became %s (%v)", b, d.Canonical(), err)
		}
	})
}

func TestBudget(t *testing.T) {
	d := pair()
	lane := int64(3 * 4 << 10) // 3 slots of 1 KiB + 3 KiB
	got := d.Budget()
	const shardQP, clientQP = 4*3 + 24 + 2*3 + 2, 4*3 + 8 + 2*3 + 2
	// Shard 0: 5 clients × 2 QPs on two devices. Shard 1: the same on one device.
	// The client: 2 shards × 3 QPs, one a rail, on no device that pins memory.
	want := []struct {
		host                string
		registered, memlock int64
		qps, cqes           int
		processes           []string
		railQPs             []int
	}{
		{"s0", 10*lane + 3<<20, 2 * (10*lane + 3<<20), 10, 2 * 11 * shardQP, []string{"shard/0"}, []int{5, 5}},
		{"s1", 10*lane + 12<<20, 10*lane + 12<<20, 10, 11 * shardQP, []string{"shard/1"}, []int{0, 10}},
		{"c0", 6*lane + 64<<20, 0, 6, 3 * 7 * clientQP, []string{"client"}, []int{2, 2, 2}},
	}
	if len(got) != len(want) {
		t.Fatalf("got %d hosts", len(got))
	}
	for i, w := range want {
		g := got[i]
		var names []string
		for _, p := range g.Processes {
			names = append(names, p.Name)
		}
		var qps []int
		for _, r := range g.Rails {
			qps = append(qps, r.QPs)
		}
		if g.Host != w.host || g.RegisteredBytes != w.registered || g.MemlockBytes != w.memlock || g.QPs != w.qps || g.CQEs != w.cqes ||
			!reflect.DeepEqual(names, w.processes) || !reflect.DeepEqual(qps, w.railQPs) {
			t.Errorf("%s: got %+v, want %+v", w.host, g, w)
		}
	}
	if lanes, slots := d.Totals(); lanes != 4 || slots != 12 {
		t.Errorf("a client has %d lanes and %d slots", lanes, slots)
	}
	// Without tables there are no rows.
	d.Tables = nil
	if b := d.Budget()[0]; b.RegisteredBytes != 10*lane+1<<20 || b.Processes[0].StoreBytes != 0 {
		t.Errorf("without tables: %+v", b)
	}
	d.Tables = pair().Tables
	// With scan no word comes with an immediate.
	d.Lanes.Notify = "scan"
	if b := d.Budget()[0]; b.CQEs != 2*11*(4*3+24) {
		t.Errorf("scan: %+v", b)
	}
	d.Lanes.Notify = ""
	// A second shard on the host adds to its sums, but `ulimit -l` is a process's.
	d.Shards[1].Host, d.Shards[1].Rails = "s0", nil
	b := d.Budget()
	if b[0].RegisteredBytes != 20*lane+15<<20 || b[0].MemlockBytes != 2*(10*lane+12<<20) || b[0].QPs != 20 {
		t.Errorf("two shards on s0: %+v", b[0])
	}
	// Then s1 has no shard and is a client's host.
	if len(b[1].Processes) != 1 || b[1].Processes[0].Name != "client" || b[1].MemlockBytes == 0 {
		t.Errorf("s1: %+v", b[1])
	}
}
