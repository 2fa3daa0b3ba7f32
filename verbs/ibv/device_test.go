//go:build cgo && linux

package ibv

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/railstore/railstore/verbs"
	"github.com/railstore/railstore/verbs/verbstest"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		if f := fakeLibrary.file; f != "" {
			_ = os.RemoveAll(filepath.Dir(f))
		}
		os.Exit(code)
	}))
}

// Two devices that reach each other, for the tests that need hardware or
// Soft-RoCE, as in RS_TEST_IBV=mlx5_0,mlx5_1.
const envDevices = "RS_TEST_IBV"

func devices(tb testing.TB) (a, b string) {
	tb.Helper()
	a, b, ok := strings.Cut(os.Getenv(envDevices), ",")
	if !ok {
		tb.Skipf("no RDMA devices: %s names two that reach each other, as in rxe0,rxe1; tests/rxe runs this on Soft-RoCE", envDevices)
	}
	return a, b
}

// kinds are the GIDs that a port may have, by what their packets are.
var kinds = []struct {
	name string
	is   func(g verbs.GIDEntry) bool
}{
	{"RoCEv2-IPv4", func(g verbs.GIDEntry) bool { return g.Type == verbs.GIDTypeRoCEv2 && g.GID.IsIPv4() }},
	{"RoCEv2-IPv6", func(g verbs.GIDEntry) bool {
		return g.Type == verbs.GIDTypeRoCEv2 && !g.GID.IsIPv4() && !g.GID.IsLinkLocal()
	}},
	{"RoCEv1", func(g verbs.GIDEntry) bool { return g.Type == verbs.GIDTypeRoCEv1 }},
	{"InfiniBand", func(g verbs.GIDEntry) bool { return g.Type == verbs.GIDTypeIB }},
}

// indexOf is the index of a kind of GID in a device's table.
func indexOf(t *testing.T, device string, is func(verbs.GIDEntry) bool) int {
	t.Helper()
	c, err := verbs.Open(New(Options{}), device)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	gids, err := c.GIDs(1)
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range gids {
		if is(g) {
			return g.Index
		}
	}
	t.Skipf("port 1 of %s has no such GID; its table is %+v", device, gids)
	return 0
}

// opener opens both devices with their GIDs of a kind.
func opener(t *testing.T, is func(verbs.GIDEntry) bool) verbstest.Open {
	t.Helper()
	a, b := devices(t)
	ia, ib := indexOf(t, a, is), indexOf(t, b, is)
	return func(tb testing.TB) (*verbs.Context, *verbs.Context) {
		tb.Helper()
		ca, err := verbs.Open(verbstest.AtGID(New(Options{}), ia), a)
		if err != nil {
			tb.Fatal(err)
		}
		cb, err := verbs.Open(verbstest.AtGID(New(Options{}), ib), b)
		if err != nil {
			_ = ca.Close()
			tb.Fatal(err)
		}
		return ca, cb
	}
}

// softRoCE tells whether the devices are the kernel's rdma_rxe.
func softRoCE(t *testing.T) bool {
	t.Helper()
	a, _ := devices(t)
	parent, err := os.Readlink("/sys/class/infiniband/" + a)
	return err == nil && strings.Contains(parent, "/virtual/")
}

func quirks(t *testing.T) []verbstest.Quirk {
	if softRoCE(t) {
		return verbstest.SoftRoCE
	}
	return nil
}

func TestConformance(t *testing.T) {
	devices(t)
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) { verbstest.Run(t, opener(t, k.is), quirks(t)...) })
	}
}

// The GID table by one call is the one that sysfs shows.
func TestDeviceGIDs(t *testing.T) {
	a, b := devices(t)
	for _, name := range []string{a, b} {
		c, err := New(Options{}).Open(name)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		d := c.(*device)
		pa, err := d.queryPort(1)
		if err != nil {
			t.Fatal(err)
		}
		ethernet := pa.link_layer == linkEthernet
		call, err := d.gidsByCall(1, ethernet)
		if errors.Is(err, verbs.ErrNotSupported) {
			t.Skipf("this library has no query_gid_table: %v", err)
		}
		if err != nil {
			t.Fatal(err)
		}
		sysfs, err := d.gidsBySysfs(1, int(pa.gid_tbl_len), ethernet)
		if err != nil {
			t.Fatal(err)
		}
		if len(call) == 0 || !reflect.DeepEqual(call, sysfs) {
			t.Errorf("%s: by call %+v\nby sysfs %+v", name, call, sysfs)
		}
		full, err := d.GIDs(1)
		if err != nil {
			t.Fatal(err)
		}
		for _, g := range full {
			if ethernet && g.NetDev == "" {
				t.Errorf("%s: entry %d has no net device", name, g.Index)
			}
		}
		t.Logf("%s: %+v", name, full)
	}
}

func TestDeviceList(t *testing.T) {
	a, b := devices(t)
	got, err := New(Options{}).Devices()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{a, b} {
		i := slices.IndexFunc(got, func(d verbs.DeviceInfo) bool { return d.Name == name })
		if i < 0 || got[i].NodeGUID == 0 || got[i].Ports < 1 {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// connected is a pair over the first kind of GID that the devices have.
func connected(t *testing.T, f verbstest.Fixture) *verbstest.Pair {
	t.Helper()
	return f.New(t, opener(t, routable))
}

func TestDeviceAllocations(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	p := connected(t, verbstest.Fixture{})
	addr, rkey := p.B.At(0)
	wrs, sges := make([]verbs.SendWR, 8), make([]verbs.SGE, 8)
	for i := range wrs {
		wrs[i] = verbs.SendWR{Op: verbs.OpWrite, RemoteAddr: addr, RKey: rkey, NumSGE: 1, Flags: verbs.Signaled}
		sges[i] = p.A.SGE(0, 64)
	}
	wcs := make([]verbs.WC, 16)
	if n := testing.AllocsPerRun(50, func() {
		if _, err := p.A.QP.PostSend(wrs, sges); err != nil {
			t.Fatal(err)
		}
		for got := 0; got < len(wrs); {
			k, err := p.A.CQ.Poll(wcs)
			if err != nil {
				t.Fatal(err)
			}
			got += k
		}
	}); n != 0 {
		t.Errorf("%v allocations for posting and polling 8 WRITEs", n)
	}
	recv := make([]verbs.RecvWR, 1)
	if n := testing.AllocsPerRun(50, func() {
		if _, err := p.B.QP.PostRecv(recv, nil); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations for posting a receive", n)
	}
}

// What the library says of a QP is what it was given.
func TestDeviceQuery(t *testing.T) {
	a, b := devices(t)
	i, j := indexOf(t, a, routable), indexOf(t, b, routable)
	c, err := New(Options{}).Open(a)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	peer, err := New(Options{}).Open(b)
	if err != nil {
		t.Fatal(err)
	}
	gids, err := peer.GIDs(1)
	if err != nil {
		t.Fatal(err)
	}
	if err := peer.Close(); err != nil {
		t.Fatal(err)
	}
	var dgid verbs.GID
	for _, g := range gids {
		if g.Index == j {
			dgid = g.GID
		}
	}
	pd, err := c.AllocPD()
	if err != nil {
		t.Fatal(err)
	}
	defer pd.Close()
	cq, err := c.CreateCQ(10)
	if err != nil {
		t.Fatal(err)
	}
	defer cq.Close()
	q, err := pd.CreateQP(verbs.DriverQPInit{SendCQ: cq, RecvCQ: cq, Cap: verbs.QPCap{MaxSendWR: 4, MaxRecvWR: 4, MaxSendSGE: 1, MaxRecvSGE: 1}})
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	want := verbs.QPAttr{State: verbs.QPRTR, Port: 1, Access: verbs.RemoteWrite | verbs.RemoteRead, PathMTU: 1024, DestQPN: 0xabcdef, RQPSN: 0x123456, MaxDestRDAtomic: 4, MinRNRTimer: 7,
		AV: verbs.AV{DGID: dgid, SGIDIndex: i, TrafficClass: 96, HopLimit: 33, FlowLabel: 0x54321}}
	initial := want
	initial.State = verbs.QPInitState
	if err := q.Modify(&initial, verbs.MaskState|verbs.MaskPort|verbs.MaskPKeyIndex|verbs.MaskAccess); err != nil {
		t.Fatal(err)
	}
	if err := q.Modify(&want, verbs.MaskState|verbs.MaskAV|verbs.MaskPathMTU|verbs.MaskDestQPN|verbs.MaskRQPSN|verbs.MaskMaxDestRDAtomic|verbs.MaskMinRNRTimer); err != nil {
		t.Fatal(err)
	}
	rts := verbs.QPAttr{State: verbs.QPRTS, Timeout: 9, RetryCount: 3, RNRRetry: 2, SQPSN: 0x654321, MaxRDAtomic: 2}
	if err := q.Modify(&rts, verbs.MaskState|verbs.MaskTimeout|verbs.MaskRetryCount|verbs.MaskRNRRetry|verbs.MaskSQPSN|verbs.MaskMaxRDAtomic); err != nil {
		t.Fatal(err)
	}
	want.State, want.Timeout, want.RetryCount, want.RNRRetry, want.SQPSN, want.MaxRDAtomic = verbs.QPRTS, 9, 3, 2, 0x654321, 2
	got, err := q.Query()
	if err != nil {
		t.Fatal(err)
	}
	// The kernel takes the hop limit of a RoCE v2 peer from its own route.
	got.AV.HopLimit = want.AV.HopLimit
	if got != want {
		t.Errorf("the device has %+v\nit was given %+v", got, want)
	}
}

func routable(g verbs.GIDEntry) bool { return !g.GID.IsLinkLocal() }

// A peer that cannot be reached makes the change to RTR fail, or the first
// request: the error tells what was asked of the device.
func TestDeviceUnreachablePeer(t *testing.T) {
	a, _ := devices(t)
	i := indexOf(t, a, kinds[0].is)
	c, err := verbs.Open(New(Options{}), a)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	pd, err := c.AllocPD()
	if err != nil {
		t.Fatal(err)
	}
	defer pd.Close()
	cq, err := c.CreateCQ(10)
	if err != nil {
		t.Fatal(err)
	}
	defer cq.Close()
	q, err := pd.CreateQP(verbs.QPInit{SendCQ: cq, RecvCQ: cq, Cap: verbs.QPCap{MaxSendWR: 4, MaxRecvWR: 4, MaxSendSGE: 1, MaxRecvSGE: 1}})
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	gid, _ := verbs.ParseGID("203.0.113.9")
	ep := verbs.Endpoint{GID: gid, QPN: 5, MTU: 1024}
	err = q.Connect(ep, ep, verbs.PathOpts{SGIDIndex: i, RetryCount: 1, Timeout: 10}, nil)
	if err == nil {
		t.Skip("the device does not resolve addresses at RTR")
	}
	wants(t, err, nil, "to RTR", "dgid 203.0.113.9", "sgid_index", "path_mtu 1024")
	t.Log(err)
}

// Handles that come and go leave nothing behind, in the library or the kernel.
func TestDeviceManyLives(t *testing.T) {
	a, _ := devices(t)
	before := openFiles(t)
	for range 30 {
		c, err := New(Options{}).Open(a)
		if err != nil {
			t.Fatal(err)
		}
		pd, err := c.AllocPD()
		if err != nil {
			t.Fatal(err)
		}
		cq, err := c.CreateCQ(10)
		if err != nil {
			t.Fatal(err)
		}
		for range 5 {
			q, err := pd.CreateQP(verbs.DriverQPInit{SendCQ: cq, RecvCQ: cq, Cap: verbs.QPCap{MaxSendWR: 4, MaxRecvWR: 4, MaxSendSGE: 1, MaxRecvSGE: 1}})
			if err != nil {
				t.Fatal(err)
			}
			if err := q.Close(); err != nil {
				t.Fatal(err)
			}
		}
		if err := errors.Join(cq.Close(), pd.Close(), c.Close()); err != nil {
			t.Fatal(err)
		}
	}
	if after := openFiles(t); after > before {
		t.Errorf("%d files were open, now %d", before, after)
	}
}

func openFiles(t *testing.T) int {
	t.Helper()
	d, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(d)
}
