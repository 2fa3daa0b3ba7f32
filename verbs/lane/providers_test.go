package lane

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/railstore/railstore/verbs"
	"github.com/railstore/railstore/verbs/ibv"
	"github.com/railstore/railstore/verbs/soft"
	"github.com/railstore/railstore/verbs/verbstest"
)

type provider struct {
	name string
	open func() verbs.Driver
}

// providers are what the tests and benchmarks run on.
var providers = []provider{
	{"loop", func() verbs.Driver { return verbstest.NewLoop(verbstest.LoopOptions{}) }},
	{"soft", func() verbs.Driver { return soft.New(soft.Options{}) }},
}

// deviceNames are the names of RDMA devices to test on, two ports that reach each
// other: client and server. With it the other providers rest.
func deviceNames(t *testing.T) (names [2]string, ok bool) {
	list := os.Getenv("RS_TEST_IBV")
	if list == "" {
		return names, false
	}
	a, b, two := strings.Cut(list, ",")
	if !two {
		t.Fatalf("RS_TEST_IBV=%s: want two devices", list)
	}
	return [2]string{a, b}, true
}

// modes are the providers and the ways of noticing, each with and without
// workers, and with scanners.
func modes(t *testing.T, f func(t *testing.T, o rigOptions)) {
	run := providers
	names, real := deviceNames(t)
	if real {
		run = []provider{{"ibv", func() verbs.Driver { return ibv.New(ibv.Options{}) }}}
	}
	for _, p := range run {
		for _, n := range []Notify{Adaptive, Imm, Scan} {
			for _, workers := range []int{0, 3} {
				t.Run(fmt.Sprintf("%s/%v/workers=%d", p.name, n, workers), func(t *testing.T) {
					f(t, rigOptions{driver: verbstest.Trace(t, p.open()), cfg: Config{Notify: n}, workers: workers, names: names})
				})
			}
			t.Run(fmt.Sprintf("%s/%v/scanners=2", p.name, n), func(t *testing.T) {
				f(t, rigOptions{driver: verbstest.Trace(t, p.open()), cfg: Config{Notify: n}, poller: PollerConfig{Scanners: 2}, names: names})
			})
		}
	}
}
