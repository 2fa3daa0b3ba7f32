package verbstest

import (
	"testing"

	"github.com/railstore/railstore/verbs"
	"go.uber.org/goleak"
)

func openOn(d verbs.Driver) Open {
	return func(tb testing.TB) (a, b *verbs.Context) {
		tb.Helper()
		a, err := verbs.Open(d, "127.0.1.1")
		Need(tb, err)
		b, err = verbs.Open(d, "127.0.1.2")
		Need(tb, err)
		return a, b
	}
}

func TestLoopConforms(t *testing.T) {
	for name, o := range map[string]LoopOptions{"sync": {}, "async": {Async: true, MTU: 4096}} {
		t.Run(name, func(t *testing.T) {
			defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
			Run(t, openOn(NewLoop(o)))
		})
	}
}
