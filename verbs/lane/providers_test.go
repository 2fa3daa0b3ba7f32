package lane

import (
	"testing"

	"github.com/railstore/railstore/verbs"
	"github.com/railstore/railstore/verbs/verbstest"
)

// benchDrivers are the providers that benchmarks run on.
func benchDrivers(testing.TB) map[string]func(testing.TB) verbs.Driver {
	return map[string]func(testing.TB) verbs.Driver{
		"loop": func(testing.TB) verbs.Driver { return verbstest.NewLoop(verbstest.LoopOptions{}) },
	}
}
