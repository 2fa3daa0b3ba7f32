//go:build cgo && linux

package ibv

import (
	"os"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/railstore/railstore/verbs"
	"github.com/railstore/railstore/verbs/verbstest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

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
