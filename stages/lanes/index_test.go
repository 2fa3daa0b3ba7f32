package lanes

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestRuleIndex: every rule in the table of docs/failures.md names tests that there
// are, and every section has its rules.
func TestRuleIndex(t *testing.T) {
	text, err := os.ReadFile("../../docs/failures.md")
	if err != nil {
		t.Fatal(err)
	}
	folders := map[string]string{"lanes": ".", "rail": "../rail", "lane": "../../verbs/lane", "ctrl": "../../ctrl", "tests": "../../tests"}
	have := map[string]bool{}
	fn := regexp.MustCompile(`(?m)^func (Test[A-Za-z0-9_]*)\(`)
	for name, dir := range folders {
		files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %d files, %v", dir, len(files), err)
		}
		for _, f := range files {
			b, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range fn.FindAllStringSubmatch(string(b), -1) {
				have[name+"."+m[1]] = true
			}
		}
	}
	rules := map[string]int{}
	for _, m := range regexp.MustCompile(`(?m)^\| (3\.[1-5]) \| (.+) \| (.*) \|$`).FindAllStringSubmatch(string(text), -1) {
		rules[m[1]]++
		tests := strings.Fields(m[3])
		if len(tests) == 0 {
			t.Errorf("%s %q names no test", m[1], m[2])
		}
		for _, name := range tests {
			if !have[name] {
				t.Errorf("%s %q names %s, which there is not", m[1], m[2], name)
			}
		}
	}
	for _, s := range []string{"3.1", "3.2", "3.3", "3.4"} {
		if rules[s] < 6 {
			t.Errorf("section %s has %d rules in the table", s, rules[s])
		}
	}
}
