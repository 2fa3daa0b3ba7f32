package soft

import (
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/railstore/railstore/verbs"
	"github.com/railstore/railstore/verbs/soft/internal/rc"
	"github.com/railstore/railstore/verbs/soft/internal/wire"
	"github.com/railstore/railstore/verbs/verbstest"
)

func TestMain(m *testing.M) {
	if addr := os.Getenv(childEnv); addr != "" {
		if err := childMain(addr); err != nil {
			fmt.Fprintln(os.Stderr, "child:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if os.Getenv(portEnv) != "" {
		if err := portMain(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// opened finds the device behind a context that a test has opened.
var opened sync.Map // *verbs.Context to *device

// spy is a driver that remembers its devices for deviceOf.
type spy struct {
	*Driver
	last *device
}

func (s *spy) Open(name string) (verbs.DriverContext, error) {
	c, err := s.Driver.Open(name)
	if err == nil {
		s.last = c.(*device)
	}
	return c, err
}

func openContext(o Options, name string) (*verbs.Context, error) {
	s := &spy{Driver: New(o)}
	c, err := verbs.Open(s, name)
	if err == nil {
		opened.Store(c, s.last)
	}
	return c, err
}

func deviceOf(c *verbs.Context) *device {
	d, _ := opened.Load(c)
	return d.(*device)
}

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
		ca, err := openContext(oa, a)
		if err != nil {
			tb.Fatal(err)
		}
		cb, err := openContext(ob, b)
		if err != nil {
			_ = ca.Close()
			tb.Fatal(err)
		}
		return ca, cb
	}
}

func needIPv6(t testing.TB) {
	c, err := net.ListenPacket("udp6", "[::1]:0")
	if err != nil {
		t.Skipf("no IPv6 on this host: %v", err)
	}
	_ = c.Close()
}

// TestConformance runs the suite that every provider passes over the ways in which
// packets can travel.
func TestConformance(t *testing.T) {
	t.Run("plain", func(t *testing.T) { verbstest.Run(t, openPair(Options{}, "127.0.0.1", "127.0.0.2")) })
	t.Run("ipv6", func(t *testing.T) {
		needIPv6(t)
		verbstest.Run(t, openPair(Options{}, "::1", "::1"))
	})
	t.Run("no_gso", func(t *testing.T) { verbstest.Run(t, openPair(Options{NoGSO: true}, "127.0.0.1", "127.0.0.2")) })
	t.Run("no_gro", func(t *testing.T) { verbstest.Run(t, openPair(Options{NoGRO: true}, "127.0.0.1", "127.0.0.2")) })
	t.Run("no_gso_no_gro", func(t *testing.T) {
		verbstest.Run(t, openPair(Options{NoGSO: true, NoGRO: true, NoSpin: true}, "127.0.0.1", "127.0.0.2"))
	})
	t.Run("no_equal_tail", func(t *testing.T) {
		verbstest.Run(t, openPair(Options{NoEqualTail: true, ActiveMTU: 1024}, "127.0.0.1", "127.0.0.2"))
	})
	t.Run("faults", func(t *testing.T) {
		if testing.Short() {
			t.Skip("prerequisite: time; -short leaves it out")
		}
		seed := verbstest.Seed(t).Uint64() >> 1
		verbstest.Run(t, openPair(Options{Faults: []Fault{
			{Do: "duplicate", Rate: 0.05, Seed: seed},
			{Do: "reorder", Rate: 0.02, Seed: seed},
			{Do: "corrupt_wire", Rate: 0.01, Seed: seed, Match: FaultMatch{Opcode: "write"}},
			{Do: "late_write", Rate: 0.01, Seed: seed, By: time.Millisecond},
			{Do: "bandwidth", BitsPerSecond: 20e9},
		}}, "127.0.0.1", "127.0.0.2"))
	})
	t.Run("loss", func(t *testing.T) {
		if testing.Short() {
			t.Skip("prerequisite: time; -short leaves it out")
		}
		verbstest.Run(t, openPair(Options{loseSent: lossy(verbstest.Seed(t), 0.01)}, "127.0.0.1", "127.0.0.2"))
	})
}

// lossy loses a share of the packets, but no NAK that ends a connection: the
// responder says such a thing once, and the requester would have to guess.
func lossy(r *rand.Rand, rate float64) func(*rc.Packet) bool {
	var mu sync.Mutex
	return func(p *rc.Packet) bool {
		h := p.Header()
		if wire.Opcode(h[0]) == wire.Acknowledge {
			if s := wire.AETH(h[wire.BTHLen:]).Syndrome(); s&wire.SynKind == wire.SynNAK && s != wire.NAKSequence {
				return false
			}
		}
		mu.Lock()
		defer mu.Unlock()
		return r.Float64() < rate
	}
}
