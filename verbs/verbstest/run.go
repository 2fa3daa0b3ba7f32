package verbstest

import (
	"runtime"
	"testing"
)

// Run is the conformance suite of a provider. open is called afresh for each
// case.
func Run(t *testing.T, open Open) {
	for _, group := range []struct {
		name  string
		cases []namedCase
	}{
		{"data", dataCases},
		{"completion", completionCases},
		{"state", stateCases},
		{"limit", limitCases},
		{"protect", protectCases},
		{"flush", flushCases},
		{"life", lifeCases},
		{"traffic", trafficCases},
	} {
		t.Run(group.name, func(t *testing.T) {
			for _, c := range group.cases {
				t.Run(c.name, func(t *testing.T) { c.run(t, open) })
			}
		})
	}
}

type namedCase struct {
	name string
	run  func(t *testing.T, open Open)
}

// pause gives way to the goroutines that do the work.
func pause() { runtime.Gosched() }
