package load_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"

	"github.com/railstore/railstore/cue/deploy"
	"github.com/railstore/railstore/cue/load"
)

const head = "import \"github.com/railstore/railstore/schemas\"\nschemas.#Deployment\n"

const small = head + `name: "small"
hosts: [{name: "s0", rails: ["soft:127.0.0.1"]}]
shards: [{id: 0, host: "s0"}]
`

// TestFIFO: a pipe is read when somebody writes to it, as in rs vet <(program), and
// never waited for.
func TestFIFO(t *testing.T) {
	path := filepath.Join(t.TempDir(), "fifo")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := load.Load(path, load.Options{}); err == nil || err.Error() != path+": a pipe that nobody writes to" {
		t.Fatalf("%v", err)
	}
	w, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.WriteString(small); err != nil {
		t.Fatal(err)
	}
	// The reader sees the end when the last writer has gone; what was written stays
	// in the pipe as long as it is open anywhere.
	r, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if _, rep, err := load.Load(path, load.Options{}); err != nil {
		t.Fatalf("%v, %+v", err, rep)
	}
}

// TestNotARecipe: what is no recipe at all is a plain error of one line.
func TestNotARecipe(t *testing.T) {
	dir := t.TempDir()
	write := func(name string, b []byte) string {
		p := filepath.Join(dir, name)
		if err := os.WriteFile(p, b, 0o644); err != nil {
			t.Fatal(err)
		}
		return p
	}
	for _, c := range []struct {
		name, path, want string
		is               error
	}{
		{"missing", filepath.Join(dir, "nowhere.cue"), "nowhere.cue: no such file", fs.ErrNotExist},
		{"unnamed", "", "no recipe is named", nil},
		{"empty", write("empty.cue", nil), "empty.cue: the file is empty", nil},
		{"blank", write("blank.cue", []byte(" \n\t\n")), "blank.cue: the file is empty", nil},
		{"binary", write("binary.cue", []byte("\x7fELF\x02\x01\x01\x00\x00")), "binary.cue: not a text file (want CUE in UTF-8)", nil},
		{"latin1", write("latin1.cue", []byte("name: \"\xe9\"\n")), "latin1.cue: not a text file (want CUE in UTF-8)", nil},
		{"directory", dir, ": is a directory; name the recipe's file in it", nil},
		{"huge", write("huge.cue", bytes.Repeat([]byte("// long\n"), 1<<18)), "huge.cue: larger than 1 MiB; a recipe is a text that people write", nil},
		{"not a directory", filepath.Join(write("file.cue", []byte("a: 1")), "x.cue"), "not a directory", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			d, rep, err := load.Load(c.path, load.Options{})
			var invalid *load.InvalidError
			if err == nil || errors.As(err, &invalid) || d != nil || rep != nil {
				t.Fatalf("got %v, %v, %v; want a plain error", d, rep, err)
			}
			if !strings.HasSuffix(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("got %q, want one line that ends with %q", err, c.want)
			}
			if c.is != nil && !errors.Is(err, c.is) {
				t.Errorf("%v is not %v", err, c.is)
			}
		})
	}
	t.Run("unreadable", func(t *testing.T) {
		if os.Geteuid() == 0 {
			t.Skip("root reads every file")
		}
		p := write("secret.cue", []byte(small))
		if err := os.Chmod(p, 0); err != nil {
			t.Fatal(err)
		}
		if _, _, err := load.Load(p, load.Options{}); err == nil || !strings.HasSuffix(err.Error(), "secret.cue: permission denied") {
			t.Errorf("got %v", err)
		}
	})
}

// TestInvalidCUE: faults of the language itself are reported at their place.
func TestInvalidCUE(t *testing.T) {
	for _, c := range []struct{ name, src, want string }{
		{"syntax", head + "name: \"x\"\nhosts: [\n", `r.cue:4:10: expected ']', found 'EOF'`},
		{"unknown reference", head + "name: nme\n", `r.cue:3:7: name: reference "nme" not found`},
		{"import", "import (\n\t\"example.com/x\"\n\t\"github.com/railstore/railstore/schemas\"\n)\nschemas.#Deployment\nname: x.y\n",
			`r.cue:2:2: import "example.com/x": a recipe can import github.com/railstore/railstore/schemas and CUE's standard library`},
		{"definition", head + "name: \"x\"\nhosts: [schemas.#Hots]\nshards: []\n", "r.cue:4:17: hosts[0]: undefined field: #Hots\nr.cue:5:9: shards: is empty, a deployment needs a shard"},
		{"no schema", "name: \"x\"\n", "r.cue:1:1: not a deployment: the file does not embed schemas.#Deployment"},
		{"one level too deep", "import \"github.com/railstore/railstore/schemas\"\nd: schemas.#Deployment\n", "r.cue:1:1: not a deployment: the file does not embed schemas.#Deployment"},
		{"a number", "3\n", "r.cue:1:1: not a deployment: the file does not embed schemas.#Deployment"},
		{"cycle", head + "name: \"x\"\nepoch: epoch + 1\n", ""},
		{"nested", head + "x: " + strings.Repeat("[", 300) + strings.Repeat("]", 300) + "\n", "r.cue:3:204: nested more than 200 deep"},
		{"nested in a text", head + "x: \"\\(1) ((\\(" + strings.Repeat("(", 300) + "1" + strings.Repeat(")", 300) + ")\"\n", "r.cue:3:213: nested more than 200 deep"},
		{"brackets in texts and comments", head + "// " + strings.Repeat("(", 300) + "\n_x: \"" + strings.Repeat("[", 300) + "\\(1)" + strings.Repeat("{", 300) + "\"\n" + strings.Repeat("_a: 1\n", 5001), "r.cue:2:1: hosts: is missing, want a list\nr.cue:2:1: name: is missing, want 1 to 63 of a-z, 0-9 and -, the first one no -\nr.cue:2:1: shards: is missing, want a list"},
		{"long chain", head + "x: " + strings.Repeat("-", 20000) + "1\n", "r.cue:3:10003: nested more than 200 deep"},
		{"hidden conflict", small + "_x: 1 & 2\n", "r.cue:6:9: _x: conflicting values 2 and 1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, rep, err := load.Load("r.cue", load.Options{Source: []byte(c.src)})
			var invalid *load.InvalidError
			if !errors.As(err, &invalid) {
				t.Fatalf("got %v, want an InvalidError", err)
			}
			var lines []string
			for _, i := range rep.Errors {
				lines = append(lines, i.Text())
			}
			got := strings.Join(lines, "\n")
			if c.want != "" && got != c.want {
				t.Errorf("got\n%s\nwant\n%s", got, c.want)
			}
			if got == "" || strings.Contains(lines[0], "  ") {
				t.Errorf("got %q", got)
			}
		})
	}
}

func TestErrorText(t *testing.T) {
	for _, c := range []struct {
		n    int
		want string
	}{{0, "invalid deployment"}, {1, "a.cue:1:2: p: m"}, {3, "a.cue:1:2: p: m (and 2 more)"}} {
		e := &load.InvalidError{Report: &load.Report{}}
		for range c.n {
			e.Report.Errors = append(e.Report.Errors, load.Issue{Path: "p", Message: "m", File: "a.cue", Line: 1, Column: 2})
		}
		if e.Error() != c.want {
			t.Errorf("got %q, want %q", e, c.want)
		}
	}
	b, err := json.Marshal(load.Issue{Path: "p", Message: "m", File: "a.cue", Line: 1, Column: 2, Hint: "h", Rule: "r"})
	if want := `{"path":"p","message":"m","file":"a.cue","line":1,"column":2,"hint":"h","rule":"r"}`; err != nil || string(b) != want {
		t.Errorf("got %s, want %s", b, want)
	}
}

// TestAnywhere loads a recipe from a folder without a module, and from one with
// another module.
func TestAnywhere(t *testing.T) {
	dir := t.TempDir()
	p := filepath.Join(dir, "my.cue")
	if err := os.WriteFile(p, []byte(small), 0o644); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		d, _, err := load.Load(p, load.Options{})
		if err != nil || d.Name != "small" {
			t.Fatalf("got %v, %v", d, err)
		}
		if err := os.MkdirAll(filepath.Join(dir, "cue.mod"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "cue.mod", "module.cue"), []byte("module: \"example.com@v0\"\nlanguage: version: \"v0.17.0\"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// TestExport: the exported folder is a module in which stock cue checks a recipe.
func TestExport(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new", "module")
	if err := load.Export(dir); err != nil {
		t.Fatal(err)
	}
	if err := load.Export(dir); err != nil {
		t.Errorf("again: %v", err)
	}
	for name, src := range map[string]string{"good.cue": small, "bad.cue": small + "epoch: 0\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("package recipes\n"+src), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		file string
		ok   bool
	}{{"./good.cue", true}, {"./bad.cue", false}} {
		top, err := filepath.Abs(root)
		if err != nil {
			t.Fatal(err)
		}
		tool, err := exec.Command("go", "tool", "-n", "cue").Output()
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(strings.TrimSpace(string(tool)), "vet", c.file)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "PWD="+dir)
		if b, err := cmd.CombinedOutput(); (err == nil) != c.ok {
			t.Errorf("cue vet %s (module of %s): %v\n%s", c.file, top, err, b)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "schemas", "rail.cue"), []byte("package mine\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(dir, "schemas", "host.cue")); err != nil {
		t.Fatal(err)
	}
	err := load.Export(dir)
	if err == nil || !strings.Contains(err.Error(), "would overwrite schemas/rail.cue, which differ") {
		t.Errorf("over another file: %v", err)
	}
	if _, err := os.Stat(filepath.Join(dir, "schemas", "host.cue")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a refused export wrote a file: %v", err)
	}
	if b, _ := os.ReadFile(filepath.Join(dir, "schemas", "rail.cue")); string(b) != "package mine\n" {
		t.Errorf("a refused export changed a file: %s", b)
	}
	if err := load.Export(filepath.Join(dir, "good.cue")); err == nil {
		t.Error("export into a file succeeded")
	}
	// The module file of the repository is the one that is exported.
	a, _ := os.ReadFile(filepath.Join(dir, "cue.mod", "module.cue"))
	b, err := os.ReadFile(root + "/cue.mod/module.cue")
	if err != nil || !bytes.Equal(a, b) {
		t.Errorf("cue.mod/module.cue of the repository and of the export differ (%v)", err)
	}
}

func mustLoad(t *testing.T, src string) *deploy.Deployment {
	t.Helper()
	d, _, err := load.Load("r.cue", load.Options{Source: []byte(src)})
	if err != nil {
		t.Fatalf("%v\n%s", err, src)
	}
	return d
}

// TestDigest: what means the same has one digest, whatever it looks like; what
// differs in any value has another.
func TestDigest(t *testing.T) {
	base := mustLoad(t, small)
	for name, src := range map[string]string{
		"comments and layout": "// hello\npackage x\n" + strings.ReplaceAll(small, "name: \"s0\", ", "\n\tname:\t\"s0\" // a host\n\n"),
		"field order":         head + "shards: [{host: \"s0\", id: 0}]\nhosts: [{rails: [\"soft:127.0.0.1\"], name: \"s0\"}]\nname: \"small\"\n",
		"rail as a struct":    strings.Replace(small, `"soft:127.0.0.1"`, `{device: "soft:127.0.0.1", name: "rail0", fabric: "rail0"}`, 1),
		"rail string in full": strings.Replace(small, `"soft:127.0.0.1"`, `"soft:127.0.0.1:1:auto:1:0"`, 1),
		"defaults stated":     small + "lanes: {slotsPerQP: 1, waitTimeout: \"60s\"}\ncontrol: namespace: \"small\"\nshards: [{dirs: [\"objects/0\"]}]\n",
		"equal durations":     small + "lanes: waitTimeout: \"1m\"\nhealth: stale: \"3000ms\"\n",
		"equal sizes":         small + "objects: stripeBytes: \"4MiB\"\nshards: [{slab: 0x400_0000}]\n",
		"equal numbers":       small + "lanes: requestBytes: 65536\n",
		"computed":            head + "_n: \"sm\" + \"all\"\nname: _n\nhosts: [for i in [0] {name: \"s\\(i)\", rails: [\"soft:127.0.0.1\"]}]\nshards: [{id: 0, host: hosts[0].name}]\n",
	} {
		if d := mustLoad(t, src); d.Digest() != base.Digest() {
			t.Errorf("%s: another digest:\n%s\n%s", name, base.Canonical(), d.Canonical())
		}
	}
	seen := map[string]string{base.Digest(): "base"}
	for name, src := range map[string]string{
		"name":       strings.Replace(small, `"small"`, `"smaller"`, 1),
		"epoch":      small + "epoch: 2\n",
		"rail name":  strings.Replace(small, `"soft:127.0.0.1"`, `{device: "soft:127.0.0.1", name: "a"}`, 1),
		"rail order": strings.Replace(small, `"soft:127.0.0.1"`, `"soft:127.0.0.2", "soft:127.0.0.1"`, 1),
		"rails":      strings.Replace(small, `"soft:127.0.0.1"`, `"soft:127.0.0.1", "soft:127.0.0.2"`, 1),
		"weight":     strings.Replace(small, `"soft:127.0.0.1"`, `"soft:127.0.0.1:::2"`, 1),
		"listener":   strings.Replace(small, `"soft:127.0.0.1"`, `"soft:127.0.0.1@10.0.0.1"`, 1),
		"timeout":    small + "lanes: waitTimeout: \"61s\"\n",
		"bool":       small + "objects: sync: false\n",
		"table":      small + "tables: [{name: \"t\", dim: 8}]\n",
		"rate":       small + "tables: [{name: \"t\", dim: 8, optimizer: learningRate: 0.02}]\n",
		"fault":      strings.Replace(small, `"soft:127.0.0.1"`, `{device: "soft:127.0.0.1", faults: [{do: "drop", rate: 0.5}]}`, 1),
		"fault rate": strings.Replace(small, `"soft:127.0.0.1"`, `{device: "soft:127.0.0.1", faults: [{do: "drop", rate: 0.25}]}`, 1),
		"fault at":   strings.Replace(small, `"soft:127.0.0.1"`, `{device: "soft:127.0.0.1", faults: [{do: "drop", rate: 0.5, at: bytes: "1MiB"}]}`, 1),
		"caps":       strings.Replace(small, `"soft:127.0.0.1"`, `{device: "soft:127.0.0.1", caps: max_qp: 8}`, 1),
		"job":        small + "jobs: [{name: \"j\", object: \"a\"}]\n",
		"job limit":  small + "jobs: [{name: \"j\", object: \"a\", limits: ioTimeout: \"1s\"}]\n",
		"fabric":     small + "fabrics: [{name: \"rail0\"}]\n",
		"fabric mtu": small + "fabrics: [{name: \"rail0\", mtu: 1024}]\n",
	} {
		d := mustLoad(t, src)
		if other, ok := seen[d.Digest()]; ok {
			t.Errorf("%s and %s have one digest", name, other)
		}
		seen[d.Digest()] = name
	}
}

// TestEveryValueCounts changes each value of a full deployment and expects another
// digest each time.
func TestEveryValueCounts(t *testing.T) {
	src, err := os.ReadFile(corpus + "/good-every-field.cue")
	if err != nil {
		t.Fatal(err)
	}
	d := mustLoad(t, string(src))
	d.Control.TLS = &deploy.TLS{Cert: "c", Key: "k", CA: "a"}
	r := &d.Hosts[0].Rails[0]
	r.Faults = []deploy.Fault{{Do: "drop"}}
	r.Caps = map[string]int{"max_qp": 1}
	r.GIDs = []deploy.SoftGID{{Address: "::1"}}
	base := d.Digest()
	n := 0
	var visit func(path string, v reflect.Value)
	visit = func(path string, v reflect.Value) {
		check := func(change, undo func()) {
			n++
			change()
			if d.Digest() == base {
				t.Errorf("%s does not count", path)
			}
			undo()
		}
		switch v.Kind() {
		case reflect.Pointer:
			visit(path, v.Elem())
		case reflect.Struct:
			for i := range v.NumField() {
				visit(path+"."+v.Type().Field(i).Name, v.Field(i))
			}
		case reflect.Slice:
			for i := range v.Len() {
				visit(fmt.Sprintf("%s[%d]", path, i), v.Index(i))
			}
			old := v.Interface()
			check(func() { v.Set(reflect.Append(v, reflect.Zero(v.Type().Elem()))) }, func() { v.Set(reflect.ValueOf(old)) })
		case reflect.Map:
			old := v.Interface()
			check(func() { v.Set(reflect.ValueOf(map[string]int{"x": 1})) }, func() { v.Set(reflect.ValueOf(old)) })
		case reflect.String:
			old := v.String()
			check(func() { v.SetString(old + "x") }, func() { v.SetString(old) })
		case reflect.Bool:
			check(func() { v.SetBool(!v.Bool()) }, func() { v.SetBool(!v.Bool()) })
		case reflect.Float64:
			old := v.Float()
			check(func() { v.SetFloat(old + 1) }, func() { v.SetFloat(old) })
		case reflect.Int, reflect.Int64:
			old := v.Int()
			check(func() { v.SetInt(old + 1) }, func() { v.SetInt(old) })
		case reflect.Uint64:
			old := v.Uint()
			check(func() { v.SetUint(old + 1) }, func() { v.SetUint(old) })
		default:
			t.Fatalf("%s: %v", path, v.Kind())
		}
	}
	visit("", reflect.ValueOf(d))
	if d.Digest() != base || n < 120 {
		t.Errorf("%d values were changed; the deployment is as before: %v", n, d.Digest() == base)
	}
}

// TestDecode: the canonical form is read back to the same deployment.
func TestDecode(t *testing.T) {
	for _, f := range recipeFiles(t) {
		if strings.HasPrefix(filepath.Base(f), "bad-") {
			continue
		}
		d, _, err := load.Load(f, load.Options{})
		if err != nil {
			t.Errorf("%s: %v", f, err)
			continue
		}
		back, err := deploy.Decode(d.Canonical())
		if err != nil {
			t.Errorf("%s: %v", f, err)
		} else if !reflect.DeepEqual(d, back) || !bytes.Equal(d.Canonical(), back.Canonical()) {
			t.Errorf("%s: not the same:\n%s\n%s", f, d.Canonical(), back.Canonical())
		}
	}
}

func TestResolved(t *testing.T) {
	d := mustLoad(t, head+`name: "r"
fabrics: [{name: "rail0", mtu: 1024}, {name: "b"}]
hosts: [
	{name: "s0", rails: ["soft:127.0.0.1:1:rocev2:3@rail0;10.0.0.1:4791", {name: "b", device: "soft:[fd00::1]:4791", gid: index: 2, mtu: 512}]},
	{name: "c0", memlock: "1GiB", rails: ["soft:127.0.0.2", {name: "b", device: "soft:[fd00::2]", mtu: 512}]},
]
shards: [{id: 0, host: "s0", slab: "32MiB"}]
jobs: [{name: "j", object: "a/b", limits: {ioTimeout: "1s", maxStagingBytes: "64MB"}}]
reader: minRails: 2
`)
	r0, r1 := d.Hosts[0].Rails[0], d.Hosts[0].Rails[1]
	for _, c := range []struct {
		what      string
		got, want any
	}{
		{"name", r0.Name, "rail0"}, {"fabric", r0.Fabric, "rail0"}, {"weight", r0.Weight, 3}, {"gid", r0.GID, deploy.GIDSelector{Select: "type", Type: "rocev2"}},
		{"listeners", r0.Listeners, []string{"rail0", "10.0.0.1:4791"}}, {"mtu of the fabric", r0.MTU, 1024},
		{"fabric of the name", r1.Fabric, "b"}, {"gid", r1.GID, deploy.GIDSelector{Select: "index", Index: 2}}, {"own mtu", r1.MTU, 512},
		{"memlock", d.Hosts[1].Memlock, int64(1 << 30)}, {"slab", d.Shards[0].Slab, int64(32 << 20)}, {"dirs", d.Shards[0].Dirs, []string{"objects/0"}},
		{"namespace", d.Control.Namespace, "r"}, {"job host", d.Jobs[0].Host, "c0"}, {"job rails", d.Jobs[0].Rails, []string{}},
		{"job limit", d.Jobs[0].Limits.IOTimeout.String(), "1s"}, {"job limit", d.Jobs[0].Limits.MaxStaging, int64(64e6)}, {"inherited limit", d.Jobs[0].Limits.MinRails, 2},
		{"client host", d.ClientHost().Name, "c0"}, {"async depth", d.Lanes.AsyncDepth, 16},
	} {
		if !reflect.DeepEqual(c.got, c.want) {
			t.Errorf("%s: got %v, want %v", c.what, c.got, c.want)
		}
	}
}

// TestDigestStays holds the digests of two recipes to recorded values. Processes of two
// releases meet when one is rolled out, and refuse each other by the digest: a field that
// comes later has the zero value of Go as its default and `json:",omitzero"`, so that
// recipes which do not use it keep their digest. Another value here means that a
// deployment must be taken down for the upgrade; then CHANGELOG says so.
func TestDigestStays(t *testing.T) {
	for name, c := range map[string]struct{ src, want string }{
		"small": {small, "c40b218e96a51c570b1d749ece2567bd532103d85d8f7aca943fa26590db5da3"},
		"lists": {strings.Replace(small, `"soft:127.0.0.1"`, `{device: "soft:127.0.0.1", faults: [{do: "drop", rate: 0.5}], caps: max_qp: 8}`, 1) +
			"fabrics: [{name: \"rail0\"}]\ntables: [{name: \"t\", dim: 8}]\njobs: [{name: \"j\", object: \"a\"}]\n", "63d415dbdd42f5a3efc58f4f8163e5903aed0ff6825cca88bfb97f3c9654f195"},
	} {
		if got := mustLoad(t, c.src).Digest(); got != c.want {
			t.Errorf("%s: the digest is %s, was %s", name, got, c.want)
		}
	}
}
