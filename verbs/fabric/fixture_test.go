package fabric

import (
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"

	"github.com/railstore/railstore/cue/deploy"
	"github.com/railstore/railstore/verbs/fabric/fabrictest"
)

// fixture is one file of testdata: a host's sysfs in short form, and what is
// expected of it.
type fixture struct {
	name     string
	sections map[string]string
}

func fixtures(t testing.TB) []fixture {
	t.Helper()
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) < 8 {
		t.Fatalf("%d fixtures, %v", len(files), err)
	}
	var out []fixture
	for _, f := range files {
		a, err := txtar.ParseFile(f)
		if err != nil {
			t.Fatal(err)
		}
		x := fixture{strings.TrimSuffix(filepath.Base(f), ".txtar"), map[string]string{}}
		for _, s := range a.Files {
			x.sections[s.Name] = string(s.Data)
		}
		out = append(out, x)
	}
	return out
}

func load(t testing.TB, name string) *Host {
	t.Helper()
	for _, f := range fixtures(t) {
		if f.name == name {
			return f.read(t)
		}
	}
	t.Fatalf("no fixture %s", name)
	return nil
}

func (f fixture) read(t testing.TB) *Host {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "sys")
	if err := fabrictest.Write(dir, f.sections["sysfs"]); err != nil {
		t.Fatal(err)
	}
	h, err := Read(Options{Root: dir})
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// expectations are the lines of a section, each "what = result".
func (f fixture) expectations(t testing.TB, section string) (out [][2]string) {
	t.Helper()
	text, ok := f.sections[section]
	if !ok {
		t.Errorf("no section %s", section)
	}
	for line := range strings.Lines(text) {
		what, want, ok := strings.Cut(strings.TrimSpace(line), " = ")
		if !ok {
			t.Fatalf("%s: %q is not what = result", section, line)
		}
		out = append(out, [2]string{what, want})
	}
	return out
}

func TestFixtures(t *testing.T) {
	for _, f := range fixtures(t) {
		t.Run(f.name, func(t *testing.T) {
			h := f.read(t)
			for _, x := range f.expectations(t, "choice") {
				checkChoice(t, h, x[0], x[1])
			}
			for _, x := range f.expectations(t, "select") {
				s, err := h.Select(x[0])
				got := ""
				if err == nil {
					got = fmt.Sprintf("%s/%d", s.Device.Name, s.Port)
				}
				check(t, "select "+x[0], x[1], got, err)
				if err == nil && s.Reason == "" {
					t.Errorf("select %s: no reason", x[0])
				}
			}
			var got, want []string
			for _, g := range h.Findings() {
				got = append(got, g.Subject()+" "+g.Code)
				if g.Message == "" || g.Hint == "" {
					t.Errorf("%s has no text or no hint: %+v", g.Code, g)
				}
				t.Logf("%s: %s\n    hint: %s", g.Subject(), g.Message, g.Hint)
			}
			for line := range strings.Lines(f.sections["findings"]) {
				want = append(want, strings.TrimRight(line, "\n"))
			}
			if !slices.Equal(got, want) {
				t.Errorf("findings:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
			}
		})
	}
}

// checkChoice reads "DEV/PORT [SELECT WHAT]".
func checkChoice(t *testing.T, h *Host, what, want string) {
	t.Helper()
	w := strings.Fields(what)
	d, p := portOf(t, h, w[0])
	sel := deploy.GIDSelector{Select: SelectAuto}
	if len(w) == 3 {
		sel.Select = w[1]
		switch w[1] {
		case SelectIndex:
			sel.Index, _ = strconv.Atoi(w[2])
		case SelectAddress:
			sel.Address = w[2]
		case SelectType:
			sel.Type = w[2]
		}
	}
	c, err := p.Choose(sel)
	check(t, what, want, strconv.Itoa(c.Entry.Index), err)
	for _, v := range c.Verdicts {
		if v.Reason == "" {
			t.Errorf("%s: index %d of %s has no reason", what, v.Entry.Index, d.Name)
		}
		if v.Taken != (err == nil && v.Entry.Index == c.Entry.Index) {
			t.Errorf("%s: index %d: taken is %v", what, v.Entry.Index, v.Taken)
		}
		t.Logf("%s: %d %v %v %s: %v %s", what, v.Entry.Index, v.Entry.Type, v.Entry.GID.Addr(), v.Entry.NetDev, v.Taken, v.Reason)
	}
}

func check(t *testing.T, what, want, got string, err error) {
	t.Helper()
	if text, ok := strings.CutPrefix(want, "error: "); ok {
		if err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%s: %s, %v; want an error with %q", what, got, err, text)
		}
		return
	}
	if err != nil || got != want {
		t.Errorf("%s: %s, %v; want %s", what, got, err, want)
	}
}

func portOf(t testing.TB, h *Host, devPort string) (*Device, *Port) {
	t.Helper()
	for i := range h.Devices {
		d := &h.Devices[i]
		for j := range d.Ports {
			if d.DevPort(&d.Ports[j]) == devPort {
				return d, &d.Ports[j]
			}
		}
	}
	t.Fatalf("no port %s", devPort)
	return nil, nil
}
