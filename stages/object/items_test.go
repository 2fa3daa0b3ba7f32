package object

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// testFolders are where the tests of a package are, by the name that the table uses.
var testFolders = map[string]string{
	"object": ".", "lanes": "../lanes", "rail": "../rail", "lane": "../../verbs/lane", "ctrl": "../../ctrl", "deploy": "../../cue/deploy", "load": "../../cue/load", "tests": "../../tests",
}

// TestItems holds docs/reading.md to its word: every requirement has its row, once, with
// a state; what is done names tests, and every test that is named is there.
func TestItems(t *testing.T) {
	f, err := os.Open("../../docs/reading.md")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	row := regexp.MustCompile(`^\| ([0-9]+) \| (.+) \| (.*) \| (.*?) ?\|$`)
	have := map[string]map[string]bool{}
	for name, dir := range testFolders {
		have[name] = testsIn(t, dir)
	}
	next := 1
	for lines := bufio.NewScanner(f); lines.Scan(); {
		m := row.FindStringSubmatch(lines.Text())
		if m == nil {
			continue
		}
		item, state := m[1], m[3]
		if item != fmt.Sprint(next) {
			t.Fatalf("the row after item %d is of item %s", next-1, item)
		}
		next++
		tests := strings.Fields(m[4])
		switch word, _, _ := strings.Cut(strings.ReplaceAll(state, ":", " "), " "); strings.Trim(word, ";,") {
		case "done", "decided", "on":
			if len(tests) == 0 {
				t.Errorf("item %s is %q and names no test", item, state)
			}
		case "here", "open":
		default:
			t.Errorf("item %s: state %q begins with none of done, decided, here, open, on", item, state)
		}
		for _, name := range tests {
			pkg, fn, _ := strings.Cut(name, ".")
			if !have[pkg][fn] {
				t.Errorf("item %s names %s, which there is not", item, name)
			}
		}
	}
	if next != 56 {
		t.Errorf("the last row is of item %d, want 55", next-1)
	}
}

func testsIn(t *testing.T, dir string) map[string]bool {
	t.Helper()
	out := map[string]bool{}
	fn := regexp.MustCompile(`(?m)^func (Test[A-Za-z0-9_]*)\(`)
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
			out[m[1]] = true
		}
	}
	return out
}
