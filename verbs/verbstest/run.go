package verbstest

import (
	"runtime"
	"testing"
)

var groups = []struct {
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
}

// Run is the conformance suite of a provider. open is called afresh for each
// case. quirks are the cases in which a device is known to differ.
func Run(t *testing.T, open Open, quirks ...Quirk) {
	differs := make(map[string]Quirk)
	for _, q := range quirks {
		differs[q.Case] = q
	}
	known := make(map[string]bool)
	for _, group := range groups {
		for _, c := range group.cases {
			known[group.name+"/"+c.name] = true
		}
	}
	for name := range differs {
		if !known[name] {
			t.Errorf("a quirk of a case that is not there: %s", name)
		}
	}
	for _, group := range groups {
		t.Run(group.name, func(t *testing.T) {
			for _, c := range group.cases {
				t.Run(c.name, func(t *testing.T) {
					q, ok := differs[group.name+"/"+c.name]
					switch {
					case !ok:
						c.run(t, open)
					case q.Run == nil:
						t.Skip(q.Reason)
					default:
						t.Log(q.Reason)
						q.Run(t, open)
					}
				})
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
