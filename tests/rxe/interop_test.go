package rxe

import (
	"testing"

	"github.com/railstore/railstore/verbs"
	"github.com/railstore/railstore/verbs/ibv"
	"github.com/railstore/railstore/verbs/soft"
	"github.com/railstore/railstore/verbs/verbstest"
)

// farLink is the link between the kernel's rxe4 and namespace far, where a soft
// device may have the RoCE port.
var farLink = []struct {
	name     string
	gid      int    // of rxe4
	kernel   string // its address
	soft     string // device
	softAddr string
}{
	{"IPv4", 1, "10.30.0.1", "10.30.0.2:4791", "10.30.0.2"},
	{"IPv6", 2, "fd30::1", "[fd30::2]:4791", "fd30::2"},
}

// far skips a test that is not in the guest's namespace far.
func far(t *testing.T) {
	t.Helper()
	inside(t)
	if !inFar() {
		t.Skip("runs in the namespace far")
	}
}

func newSoft() verbs.Driver { return soft.New(soft.Options{}) }

func openBoth(tb testing.TB, gid int, softDevice string) (kernel, user *verbs.Context) {
	tb.Helper()
	kernel, err := verbs.Open(verbstest.AtGID(ibv.New(ibv.Options{}), gid), "rxe4")
	if err != nil {
		tb.Fatal(err)
	}
	user, err = verbs.Open(verbstest.AtGID(newSoft(), 1), softDevice)
	if err != nil {
		_ = kernel.Close()
		tb.Fatal(err)
	}
	return kernel, user
}

// TestFarConformance is the conformance suite between the kernel's rxe and a soft
// device, either being the one that asks.
func TestFarConformance(t *testing.T) {
	far(t)
	for _, l := range farLink {
		t.Run(l.name+"/rxe-asks", func(t *testing.T) {
			verbstest.Run(t, func(tb testing.TB) (*verbs.Context, *verbs.Context) {
				return openBoth(tb, l.gid, l.soft)
			}, verbstest.SoftRoCEAsks...)
		})
		t.Run(l.name+"/soft-asks", func(t *testing.T) {
			verbstest.Run(t, func(tb testing.TB) (*verbs.Context, *verbs.Context) {
				k, u := openBoth(tb, l.gid, l.soft)
				return u, k
			}, verbstest.SoftRoCEAnswers...)
		})
	}
}
