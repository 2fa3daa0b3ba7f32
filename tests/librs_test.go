package tests

import (
	"bytes"
	"encoding/json"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// The C library, as those who use it see it: built by make librs, called by programs in C,
// C++ and Python, against shards that run as processes of their own.

// tool skips a test for want of a program.
func tool(t *testing.T, names ...string) {
	t.Helper()
	for _, n := range names {
		if _, err := exec.LookPath(n); err != nil {
			t.Skipf("prerequisite: %s, which a program that uses the library needs", n)
		}
	}
}

// TestLibrary builds the library once, brings up one deployment, and lets programs use it.
func TestLibrary(t *testing.T) {
	tool(t, "gcc", "make")
	out, err := exec.Command("go", "env", "CGO_ENABLED").Output()
	if err != nil {
		t.Fatal(err)
	}
	if strings.TrimSpace(string(out)) != "1" {
		t.Skip("prerequisite: CGO_ENABLED=1; without cgo there is no C interface")
	}
	dir := t.TempDir()
	if out, err := exec.Command("make", "-C", "..", "librs", "DIST="+dir).CombinedOutput(); err != nil {
		t.Fatalf("make librs: %v\n%s", err, out)
	}
	t.Run("symbols", func(t *testing.T) { librarySymbols(t, dir) })
	t.Run("cpp", func(t *testing.T) { libraryFromCpp(t, dir) })
	s, recipe := librsSite(t)
	t.Run("c", func(t *testing.T) { libraryFromC(t, dir, s, recipe) })
	t.Run("example", func(t *testing.T) { libraryExample(t, dir, s) })
	t.Run("signals", func(t *testing.T) { librarySignals(t, dir, s, recipe) })
	t.Run("python", func(t *testing.T) { libraryFromPython(t, dir, s, recipe) })
	// The clients have left.
	if out, err := s.run("rs status --format json"); err != nil || !strings.Contains(out, `"clients":[]`) {
		t.Errorf("%v\n%s", err, out)
	}
}

// compiled builds a program of testdata against the library and its header.
func compiled(t *testing.T, dir, compiler, source string, args ...string) string {
	t.Helper()
	bin := filepath.Join(t.TempDir(), "program")
	args = append(args, "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-g", "-I", dir, "-o", bin, source,
		"-L", dir, "-Wl,-rpath,"+dir, "-lrailstore", "-pthread", "-ldl")
	if out, err := exec.Command(compiler, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %s: %v\n%s", compiler, source, err, out)
	}
	return bin
}

// pattern is the content of an object as the programs of testdata know it.
func pattern(n, seed int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte((uint64(i)*2654435761 + uint64(seed)*97) >> 13)
	}
	return b
}

// librsSite brings up what the programs use: two shards, kv/big, kv/big2, kv/bad with a
// damaged stripe, the table vec. It gives the shell and the recipe's path.
func librsSite(t *testing.T) (*sandboxed, string) {
	t.Helper()
	s := newShell(t)
	s.must("rs up --quiet recipes/two-rail.cue")
	for name, seed := range map[string]int{"big": 1, "big2": 2, "bad": 3} {
		if err := os.WriteFile(filepath.Join(s.dir, name), pattern(8<<20, seed), 0o644); err != nil {
			t.Fatal(err)
		}
		s.must("rs put --quiet kv/" + name + " " + name)
	}
	s.must("rs table init --quiet vec --dim 4 --optimizer sgd --learning-rate 0.5")
	out, err := s.run("rs stat --format json kv/bad")
	if err != nil {
		t.Fatal(err, out)
	}
	var o struct {
		Placement struct{ Stripes []struct{ File string } }
	}
	if err := json.Unmarshal([]byte(out), &o); err != nil || len(o.Placement.Stripes) == 0 {
		t.Fatal(err, out)
	}
	damage(t, s.dir, o.Placement.Stripes[0].File)
	return s, filepath.Join(s.dir, "recipes", "two-rail.cue")
}

// damage turns a bit of a stripe's file.
func damage(t *testing.T, dir, file string) {
	t.Helper()
	found := 0
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(p, file) {
			return err
		}
		found++
		f, err := os.OpenFile(p, os.O_RDWR, 0)
		if err != nil {
			return err
		}
		var b [1]byte
		if _, err := f.ReadAt(b[:], 1000); err != nil {
			return err
		}
		b[0] ^= 4
		if _, err := f.WriteAt(b[:], 1000); err != nil {
			return err
		}
		return f.Close()
	})
	if err != nil || found != 1 {
		t.Fatalf("%s: %d files, %v", file, found, err)
	}
}

func (s *sandboxed) program(name string, env []string, args ...string) (string, error) {
	c := exec.Command(name, args...)
	c.Dir = s.dir
	c.Env = append(append(os.Environ(), s.env()...), env...)
	out, err := c.CombinedOutput()
	return string(out), err
}

var (
	headerFunctionRE = regexp.MustCompile(`(?m)^(?:int|void|uint32_t|const char \*)\s*(rs_[a-z_]+)\(`)
	mapSymbolRE      = regexp.MustCompile(`(?m)^\t\t(rs_[a-z_]+);$`)
	sizesRE          = regexp.MustCompile(`(?m)^sizes (.*)$`)
)

// librarySymbols: the library shows what the header declares, and nothing else.
func librarySymbols(t *testing.T, dir string) {
	tool(t, "nm")
	names := func(re *regexp.Regexp, file string) (out []string) {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range re.FindAllSubmatch(b, -1) {
			out = append(out, string(m[1]))
		}
		slices.Sort(out)
		return out
	}
	declared := names(headerFunctionRE, "../bin/librs/railstore.h")
	if len(declared) < 20 {
		t.Fatalf("the header declares %v only", declared)
	}
	if listed := names(mapSymbolRE, "../bin/librs/railstore.map"); !slices.Equal(declared, listed) {
		t.Errorf("railstore.h declares\n%v, railstore.map lists\n%v", declared, listed)
	}
	out, err := exec.Command("nm", "-D", "--defined-only", filepath.Join(dir, "librailstore.so")).Output()
	if err != nil {
		t.Fatal(err)
	}
	var shown []string
	for l := range strings.Lines(string(out)) {
		f := strings.Fields(l)
		if len(f) == 3 && f[1] != "A" { // the node of versions is a symbol, too
			shown = append(shown, strings.Split(f[2], "@")[0])
		}
	}
	slices.Sort(shown)
	if !slices.Equal(declared, shown) {
		t.Errorf("railstore.h declares\n%v, the library shows\n%v", declared, shown)
	}
	if _, err := os.Stat(filepath.Join(dir, "librailstore.h")); err == nil {
		t.Error("cgo's header is beside the library")
	}
}

func libraryFromC(t *testing.T, dir string, s *sandboxed, recipe string) {
	bin := compiled(t, dir, "gcc", "testdata/librs/check.c", "-std=c11", "-D_GNU_SOURCE")
	out, err := s.program(bin, nil, recipe)
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, name := range []string{"open", "arguments", "put", "read_into", "too_small", "absent", "range", "corrupt", "lease", "batch", "catalog",
		"json", "threads", "tables", "cancel", "deadline", "fork", "close"} {
		if !strings.Contains(out, "ok "+name+"\n") {
			t.Errorf("no %s in\n%s", name, out)
		}
	}
	// They are written down in shim.c, too, which is compiled with them, and in the tests of
	// the Python package.
	if m := sizesRE.FindStringSubmatch(out); m == nil || !strings.Contains(m[1], "rs_error=80 rs_session_options=56 rs_call_options=24 rs_read_options=56 rs_put_options=64 rs_leased=40 rs_read_item=32") {
		t.Errorf("sizes: %v", m)
	}
}

// libraryExample runs the program in C of docs/c-abi.md.
func libraryExample(t *testing.T, dir string, s *sandboxed) {
	doc, err := os.ReadFile("../docs/c-abi.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(doc), "```c\n")
	code, _, end := strings.Cut(rest, "\n```")
	if !ok || !end {
		t.Fatal("docs/c-abi.md has no program in C")
	}
	source := filepath.Join(t.TempDir(), "app.c")
	if err := os.WriteFile(source, []byte(code+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	out, err := s.program(compiled(t, dir, "gcc", source, "-std=c11"), nil)
	if err != nil || out != "8388608 bytes, all of them verified\n" {
		t.Errorf("%v\n%s", err, out)
	}
}

func librarySignals(t *testing.T, dir string, s *sandboxed, recipe string) {
	// Without the library: it is loaded when the program has its handlers.
	bin := filepath.Join(t.TempDir(), "signals")
	if out, err := exec.Command("gcc", "-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-I", dir, "-o", bin, "testdata/librs/signals.c", "-ldl").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if out, err := s.program(bin, nil, filepath.Join(dir, "librailstore.so"), recipe); err != nil || !strings.Contains(out, "ok signals\n") {
		t.Errorf("%v\n%s", err, out)
	}
}

func libraryFromCpp(t *testing.T, dir string) {
	tool(t, "g++")
	if out, err := exec.Command(compiled(t, dir, "g++", "testdata/librs/header.cc", "-std=c++11")).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

func libraryFromPython(t *testing.T, dir string, s *sandboxed, recipe string) {
	tool(t, "python3")
	py := filepath.Join(dir, "python")
	env := []string{"PYTHONPATH=" + py, "PYTHONDONTWRITEBYTECODE=1", "RAILSTORE_TEST_RECIPE=" + recipe}
	tests, err := filepath.Abs("../bin/librs/python/tests")
	if err != nil {
		t.Fatal(err)
	}
	out, err := s.program("python3", env, "-W", "error", "-m", "unittest", "discover", "-v", "-s", tests)
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if m := regexp.MustCompile(`(?m)^Ran (\d+) tests`).FindStringSubmatch(out); m == nil || m[1] == "0" {
		t.Errorf("no tests ran:\n%s", out)
	}
	t.Logf("%s", out)

	// The blocks of README and docs are programs, which run one after the other.
	for _, file := range []string{"../README.md", "../docs/c-abi.md"} {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		blocks := 0
		for _, part := range strings.Split(string(b), "```python\n")[1:] {
			code, _, _ := strings.Cut(part, "\n```")
			blocks++
			if out, err := s.program("python3", env, "-W", "error", "-c", code); err != nil {
				t.Errorf("%s: %v\n%s\n%s", file, err, code, out)
			}
		}
		if blocks == 0 {
			t.Errorf("%s has no example in Python", file)
		}
	}
}

// TestLibraryDocs: docs/c-abi.md has every function.
func TestLibraryDocs(t *testing.T) {
	doc, err := os.ReadFile("../docs/c-abi.md")
	if err != nil {
		t.Fatal(err)
	}
	header, err := os.ReadFile("../bin/librs/railstore.h")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range headerFunctionRE.FindAllSubmatch(header, -1) {
		if !bytes.Contains(doc, []byte("`"+string(m[1])+"`")) {
			t.Errorf("docs/c-abi.md does not have `%s`", m[1])
		}
	}
}
