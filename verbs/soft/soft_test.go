package soft

import (
	"net/netip"
	"testing"

	"go.uber.org/goleak"

	"github.com/railstore/railstore/verbs"
	"github.com/railstore/railstore/verbs/verbstest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// v2First is a GID table whose index 0 can be sent from, for tests that take the
// first index there is.
func v2First(addr string) []verbs.GIDEntry {
	return []verbs.GIDEntry{{Index: 0, GID: verbs.GIDFromAddr(netip.MustParseAddr(addr)), Type: verbs.GIDTypeRoCEv2, NetDev: "lo"}}
}

func openPair(o Options, a, b string) verbstest.Open {
	return func(tb testing.TB) (*verbs.Context, *verbs.Context) {
		tb.Helper()
		oa, ob := o, o
		oa.GIDs, ob.GIDs = v2First(a), v2First(b)
		ca, err := verbs.Open(New(oa), a)
		if err != nil {
			tb.Fatal(err)
		}
		cb, err := verbs.Open(New(ob), b)
		if err != nil {
			_ = ca.Close()
			tb.Fatal(err)
		}
		return ca, cb
	}
}

func TestConformance(t *testing.T) { verbstest.Run(t, openPair(Options{}, "127.0.0.1", "127.0.0.2")) }
