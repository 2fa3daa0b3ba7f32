package lane

import (
	"fmt"
	"testing"

	"github.com/railstore/railstore/verbs"
	"github.com/railstore/railstore/verbs/soft"
	"github.com/railstore/railstore/verbs/verbstest"
)

// providers are what the tests and benchmarks run on.
var providers = []struct {
	name string
	open func() verbs.Driver
}{
	{"loop", func() verbs.Driver { return verbstest.NewLoop(verbstest.LoopOptions{}) }},
	{"soft", func() verbs.Driver { return soft.New(soft.Options{}) }},
}

// modes are the providers and the ways of noticing, each with and without
// workers.
func modes(t *testing.T, f func(t *testing.T, o rigOptions)) {
	for _, p := range providers {
		for _, n := range []Notify{Adaptive, Imm, Scan} {
			for _, workers := range []int{0, 3} {
				t.Run(fmt.Sprintf("%s/%v/workers=%d", p.name, n, workers), func(t *testing.T) {
					f(t, rigOptions{driver: verbstest.Trace(t, p.open()), cfg: Config{Notify: n}, workers: workers})
				})
			}
		}
	}
}
