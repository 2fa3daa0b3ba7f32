package tests

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// source is one hand-written Go file.
type source struct {
	name string // from the repository's root
	text []byte
	test bool
}

var generatedRE = regexp.MustCompile(`(?m)^// Code generated .* DO NOT EDIT\.$`)

// sources are the Go files that people write. testdata and hidden folders are
// not among them.
func sources(t *testing.T) []source {
	t.Helper()
	var out []source
	err := filepath.WalkDir("..", func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if n := d.Name(); p != ".." && (strings.HasPrefix(n, ".") || n == "testdata") {
				return fs.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(p, ".go") {
			return nil
		}
		b, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		if generatedRE.Match(b) {
			return nil
		}
		name, err := filepath.Rel("..", p)
		if err != nil {
			return err
		}
		out = append(out, source{name: name, text: b, test: strings.HasSuffix(p, "_test.go")})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(out) < 50 {
		t.Fatalf("found %d files only", len(out))
	}
	return out
}

func TestFileSizes(t *testing.T) {
	const most, medianMost = 700, 200
	var sizes []int
	for _, s := range sources(t) {
		n := bytes.Count(s.text, []byte("\n"))
		if !s.test {
			sizes = append(sizes, n)
		}
		if n > most {
			t.Errorf("%s has %d lines, more than %d: one noun per file", s.name, n, most)
		}
	}
	slices.Sort(sizes)
	if m := sizes[len(sizes)/2]; m > medianMost {
		t.Errorf("the median file has %d lines, more than %d", m, medianMost)
	}
}

// The files that may use unsafe or name it, besides those whose name says so.
var unsafeFiles = regexp.MustCompile(`(_unsafe|_linux|_linux_[a-z0-9]+)\.go$|^verbs/ibv/`)

// Words for work that is not done.
var unfinished = regexp.MustCompile(`\b(TODO|FIXME|XXX|HACK|unimplemented|not implemented)\b`)

func TestCodeRules(t *testing.T) {
	for _, s := range sources(t) {
		if s.name == "tests/code_test.go" {
			continue // names what it forbids
		}
		for i, l := range bytes.Split(s.text, []byte("\n")) {
			if unfinished.Match(l) {
				t.Errorf("%s:%d: %s", s.name, i+1, bytes.TrimSpace(l))
			}
		}
		checkCalls(t, s)
	}
}

// checkCalls looks at what a file uses: who may print, sleep, exit or go around
// the type system.
func checkCalls(t *testing.T, s source) {
	t.Helper()
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, s.name, s.text, 0)
	if err != nil {
		t.Error(err)
		return
	}
	names := make(map[string]string) // local name → import path
	for _, imp := range f.Imports {
		p := strings.Trim(imp.Path.Value, `"`)
		n := p[strings.LastIndexByte(p, '/')+1:]
		if imp.Name != nil {
			n = imp.Name.Name
		}
		names[n] = p
		if p == "unsafe" && !s.test && !unsafeFiles.MatchString(s.name) {
			t.Errorf("%s imports unsafe, which belongs into files named *_unsafe.go or *_linux.go", s.name)
		}
	}
	printer := strings.HasPrefix(s.name, "bin/rs/cmd/")
	ast.Inspect(f, func(n ast.Node) bool {
		if c, ok := n.(*ast.CallExpr); ok {
			if id, ok := c.Fun.(*ast.Ident); ok && (id.Name == "println" || id.Name == "print") {
				t.Errorf("%s: the built-in %s", fset.Position(c.Pos()), id.Name)
			}
		}
		sel, ok := n.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		id, ok := sel.X.(*ast.Ident)
		if !ok {
			return true
		}
		what := names[id.Name] + "." + sel.Sel.Name
		pos := fset.Position(sel.Pos())
		switch what {
		case "fmt.Print", "fmt.Printf", "fmt.Println", "os.Stdout", "os.Stderr":
			if !printer && !s.test {
				t.Errorf("%s: %s outside bin/rs/cmd", pos, what)
			}
		case "os.Exit":
			if !printer && !s.test && s.name != "bin/rs/main.go" {
				t.Errorf("%s: %s outside bin/rs", pos, what)
			}
		case "time.Sleep":
			if !s.test {
				t.Errorf("%s: %s: wait for what is awaited", pos, what)
			}
		case "runtime.SetFinalizer":
			t.Errorf("%s: %s: a handle has an owner that closes it", pos, what)
		}
		return true
	})
}

func TestFormatted(t *testing.T) {
	gofmt, err := exec.LookPath("gofmt")
	if err != nil {
		out, err := exec.Command("go", "env", "GOROOT").Output()
		if err != nil {
			t.Fatal(err)
		}
		gofmt = filepath.Join(strings.TrimSpace(string(out)), "bin", "gofmt")
	}
	args := []string{"-l"}
	for _, s := range sources(t) {
		args = append(args, filepath.Join("..", s.name))
	}
	out, err := exec.Command(gofmt, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if len(out) > 0 {
		t.Errorf("not formatted:\n%s", out)
	}
}
