package tests

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
)

const module = "github.com/railstore/railstore"

// layers is the package map: every package of the module, from the lowest level
// to the highest, with the packages of the module that it may import. A package
// that stands nowhere fails the test, and so does one that is gone.
var layers = map[string][]string{
	// Level 0: no package of the module.
	"schemas":    {},
	"cue/deploy": {},
	"pipeline":   {},
	"verbs":      {},

	// Level 1.
	"cue/load":                 {"cue/deploy", "schemas"},
	"verbs/fabric":             {"verbs", "cue/deploy"},
	"verbs/fabric/fabrictest":  {},
	"verbs/soft":               {"verbs", "verbs/soft/internal/wire", "verbs/soft/internal/rc", "verbs/soft/internal/udp"},
	"verbs/soft/internal/wire": {"verbs"},
	"verbs/soft/internal/rc":   {"verbs", "verbs/soft/internal/wire"},
	"verbs/soft/internal/udp":  {},
	"verbs/ibv":                {"verbs"},
	"verbs/lane":               {"verbs"},
	"verbs/perf":               {"verbs"},
	"verbs/verbstest":          {"verbs"},
	"ctrl":                     {"verbs", "pipeline", "ctrl/internal/pb"},
	"ctrl/internal/pb":         {},

	// Level 2.
	"stages/rail":    {"pipeline", "cue/deploy", "verbs", "verbs/fabric", "ctrl"},
	"stages/table":   {"pipeline", "verbs"},
	"stages/vectors": {"pipeline"},

	// Level 3.
	"stages/lanes":  {"pipeline", "cue/deploy", "verbs", "verbs/lane", "ctrl", "stages/rail"},
	"stages/object": {"pipeline", "cue/deploy", "verbs", "verbs/lane", "ctrl", "stages/rail", "stages/lanes"},
	"stages/ps": {"pipeline", "cue/deploy", "verbs", "verbs/lane", "ctrl", "stages/rail", "stages/lanes",
		"stages/table"},
	"stages/launch": {"pipeline", "cue/deploy", "verbs", "ctrl", "stages/rail"},

	// Level 4.
	"bin/provider": {"cue/deploy", "pipeline", "verbs", "verbs/soft", "verbs/ibv"},
	"bin/exit":     {"cue/load", "pipeline", "stages/launch", "stages/object"},
	"bin/rs/cmd": {"bin/provider", "bin/exit", "cue/deploy", "cue/load", "pipeline", "verbs", "verbs/soft", "verbs/fabric", "verbs/lane", "verbs/perf",
		"ctrl", "stages/rail", "stages/lanes", "stages/object", "stages/ps", "stages/table", "stages/vectors", "stages/launch"},
	"bin/rs": {"bin/rs/cmd"},
	"bin/librs": {"bin/provider", "bin/exit", "cue/deploy", "cue/load", "pipeline", "ctrl", "stages/lanes", "stages/object", "stages/ps",
		"stages/launch"},

	// Level 5.
	"tests":     {"bin/rs/cmd"},
	"tests/rxe": {},
}

// Packages that only tests may import.
var testOnly = []string{"verbs/verbstest", "verbs/fabric/fabrictest"}

// Direct imports from outside the module that only the named packages may have.
var fenced = map[string][]string{
	"cuelang.org/go":         {"cue/load", "schemas"},
	"C":                      {"verbs/ibv", "bin/librs"},
	"google.golang.org/grpc": {"ctrl", "ctrl/internal/pb"},
	"github.com/urfave/cli":  {"bin/rs/cmd"},
	"github.com/jedib0t":     {"bin/rs/cmd"},
	"github.com/vbauerster":  {"bin/rs/cmd"},
	"github.com/prometheus":  {"bin/rs/cmd"},
	"go.etcd.io/bbolt":       {"ctrl"},
	"github.com/vishvananda": {"verbs/fabric", "verbs/soft"},
	"github.com/Mellanox":    {"verbs/fabric"},
	"log":                    {},
	"log/slog":               {},
	"golang.org/x/term":      {"bin/rs/cmd"},
	"gonum.org":              {"bin/rs/cmd"},
	"go.uber.org/goleak":     {},
	"pgregory.net/rapid":     {"verbs/verbstest"},
	"testing":                {"verbs/verbstest"},
	"github.com/rogpeppe":    {},
}

// listed is what go list says of a package.
type listed struct {
	ImportPath   string
	Dir          string
	Doc          string
	GoFiles      []string
	CgoFiles     []string
	Imports      []string
	TestImports  []string
	XTestImports []string
}

var golist = sync.OnceValues(func() ([]listed, error) {
	cmd := exec.Command("go", "list", "-json=ImportPath,Dir,Doc,GoFiles,CgoFiles,Imports,TestImports,XTestImports", "./...")
	cmd.Dir = ".."
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, errors.Join(err, errors.New(stderr.String()))
	}
	var pkgs []listed
	dec := json.NewDecoder(bytes.NewReader(out))
	for {
		var p listed
		switch err := dec.Decode(&p); {
		case errors.Is(err, io.EOF):
			return pkgs, nil
		case err != nil:
			return nil, err
		}
		pkgs = append(pkgs, p)
	}
})

func packages(t *testing.T) []listed {
	t.Helper()
	pkgs, err := golist()
	if err != nil {
		t.Fatal(err)
	}
	if len(pkgs) < 10 {
		t.Fatalf("go list knows %d packages only", len(pkgs))
	}
	return pkgs
}

// rel is the package's path in the module; ok is false for foreign packages.
func rel(importPath string) (string, bool) {
	return strings.CutPrefix(importPath, module+"/")
}

func TestPackageMap(t *testing.T) {
	seen := make(map[string]bool)
	for _, p := range packages(t) {
		name, ok := rel(p.ImportPath)
		if !ok {
			t.Errorf("%s: a package outside every folder", p.ImportPath)
			continue
		}
		seen[name] = true
		may, ok := layers[name]
		if !ok {
			t.Errorf("%s: not in the package map of this test: add it with what it may import", name)
			continue
		}
		for _, imp := range p.Imports {
			to, ours := rel(imp)
			switch {
			case ours && !slices.Contains(may, to):
				t.Errorf("%s imports %s, which the package map does not allow", name, to)
			case !ours:
				checkFence(t, name, imp)
			}
		}
		if slices.Contains(testOnly, name) {
			continue
		}
		for _, imp := range p.Imports {
			if to, ok := rel(imp); ok && slices.Contains(testOnly, to) {
				t.Errorf("%s imports %s outside its tests", name, to)
			}
		}
	}
	for name := range layers {
		if !seen[name] {
			t.Errorf("%s: in the package map, but there is no such package", name)
		}
	}
}

func checkFence(t *testing.T, name, imp string) {
	t.Helper()
	for prefix, allowed := range fenced {
		if (imp == prefix || strings.HasPrefix(imp, prefix+"/") && prefix != "log") && !slices.Contains(allowed, name) {
			t.Errorf("%s imports %s, which is for %v only", name, imp, allowed)
		}
	}
}

// TestPackageMapHasNoCycle checks the table itself: what it allows goes to lower
// levels only.
func TestPackageMapHasNoCycle(t *testing.T) {
	state := make(map[string]int) // 1: being visited, 2: done
	var visit func(name string, trail []string)
	visit = func(name string, trail []string) {
		switch state[name] {
		case 1:
			t.Errorf("cycle: %s", strings.Join(append(trail, name), " -> "))
			return
		case 2:
			return
		}
		state[name] = 1
		for _, to := range layers[name] {
			if _, ok := layers[to]; !ok {
				t.Errorf("%s may import %s, which is not in the table", name, to)
			}
			visit(to, append(trail, name))
		}
		state[name] = 2
	}
	for name := range layers {
		visit(name, nil)
	}
}

// The evaluator is large: nothing below the command may pull it in, not even
// through somebody else.
func TestEvaluatorStaysOut(t *testing.T) {
	cmd := exec.Command("go", "list", "-deps", "./verbs/...", "./stages/...", "./ctrl/...", "./pipeline/...", "./cue/deploy/...")
	cmd.Dir = ".."
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	for l := range strings.Lines(string(out)) {
		if strings.HasPrefix(l, "cuelang.org/") {
			t.Errorf("the data path depends on %s", strings.TrimSpace(l))
		}
	}
}

func TestDeployIsPure(t *testing.T) {
	for _, p := range packages(t) {
		var banned []string
		switch name, _ := rel(p.ImportPath); name {
		case "cue/deploy", "pipeline":
			banned = []string{"os", "syscall", "net", "golang.org/x/sys/unix"}
		case "verbs/soft/internal/rc":
			banned = []string{"os", "syscall", "net", "sync", "golang.org/x/sys/unix"}
		case "verbs/soft/internal/wire":
			banned = []string{"os", "syscall", "net", "time", "sync"}
		}
		for _, imp := range p.Imports {
			if slices.Contains(banned, imp) {
				t.Errorf("%s imports %s: it must not do I/O", p.ImportPath, imp)
			}
		}
	}
}

func TestPackageNamesAndDocs(t *testing.T) {
	for _, p := range packages(t) {
		name, _ := rel(p.ImportPath)
		switch path.Base(name) {
		case "util", "utils", "common", "helpers", "helper", "types", "misc", "base", "lib":
			t.Errorf("%s: a name that says nothing", name)
		}
		if strings.HasSuffix(name, "internal/pb") || len(p.GoFiles)+len(p.CgoFiles) == 0 {
			continue // generated, or tests only
		}
		doc := "doc.go"
		if name == "bin/rs" {
			doc = "main.go" // a main has no other file
		}
		b, err := os.ReadFile(filepath.Join(p.Dir, doc))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		for _, word := range []string{"Owns", "Imports", "Goroutines", "Locks"} {
			if !regexp.MustCompile(`\b` + word + `[:,]`).Match(b) {
				t.Errorf("%s: its %s does not say what it has under %q", name, doc, word+":")
			}
		}
	}
}
