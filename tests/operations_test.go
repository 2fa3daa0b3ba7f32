package tests

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// The ways in which the code names an event.
var eventREs = []*regexp.Regexp{
	regexp.MustCompile(`\bEvent:\s+"([a-z_]+)"`),
	regexp.MustCompile(`\be\.Event, e\.Reason = "([a-z_]+)"`),
	regexp.MustCompile(`(?m)^\s+Event[A-Z][A-Za-z]*\s+= "([a-z_]+)"`),
	regexp.MustCompile(`\b(?:emit|emitLane|say)\((?:[a-zA-Z.]+, )*"([a-z_]+[a-z])"`),
	regexp.MustCompile(`"(rail_[a-z]+_changed)"`),
	regexp.MustCompile(`\be\.Event, e\.Fields\["[a-z_]+"\] = "([a-z_]+)"`),
	regexp.MustCompile(`(?m)^\s+event :?= "([a-z_]+)"`),
}

// TestEventsAreExplained: docs/operations.md tells of every event what it means.
func TestEventsAreExplained(t *testing.T) {
	doc, err := os.ReadFile("../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{"rail_down": true, "rail_active": true} // made of the state
	for _, s := range sources(t) {
		if s.test || !strings.HasPrefix(s.name, "bin/rs") && !strings.HasPrefix(s.name, "ctrl/") && !strings.HasPrefix(s.name, "pipeline/") &&
			!strings.HasPrefix(s.name, "stages/") && !strings.HasPrefix(s.name, "verbs/lane/") {
			continue
		}
		for _, re := range eventREs {
			for _, m := range re.FindAllSubmatch(s.text, -1) {
				seen[string(m[1])] = true
			}
		}
	}
	if len(seen) < 40 {
		t.Errorf("found %d events only", len(seen))
	}
	for name := range seen {
		if !strings.Contains(string(doc), "`"+name+"`") {
			t.Errorf("docs/operations.md does not explain the event %s", name)
		}
	}
}
