package load_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"cuelang.org/go/cue"
	"cuelang.org/go/cue/cuecontext"
	cueload "cuelang.org/go/cue/load"

	"github.com/railstore/railstore/cue/load"
)

const root = "../.."

// stockAccepts evaluates files as `cue vet FILE` does: in the module of the
// repository, one instance a file, concrete, with definitions and hidden fields.
func stockAccepts(t *testing.T, files []string) map[string]error {
	t.Helper()
	out := map[string]error{}
	for _, f := range files {
		insts := cueload.Instances([]string{inModule(t, f)}, &cueload.Config{Dir: root})
		err := error(nil)
		if insts[0].Err != nil {
			err = insts[0].Err
		}
		if err == nil {
			v := cuecontext.New().BuildInstance(insts[0])
			if err = v.Err(); err == nil {
				err = v.Validate(cue.Concrete(true), cue.Attributes(true), cue.Definitions(true), cue.Hidden(true))
			}
		}
		out[f] = err
	}
	return out
}

// TestStockAgrees demands of CUE's own evaluation the verdict of Load, for every
// file of the corpus and every recipe.
func TestStockAgrees(t *testing.T) {
	files := recipeFiles(t)
	for f, err := range stockAccepts(t, files) {
		good := !strings.HasPrefix(filepath.Base(f), "bad-")
		switch {
		case good && err != nil:
			t.Errorf("%s: CUE refuses it: %v", f, err)
		case !good && err == nil:
			t.Errorf("%s: CUE accepts it", f)
		}
	}
}

// TestStockTool asks the tool itself, once for all good files and once for each of
// a few bad ones, so that the test above is known to evaluate as it does.
func TestStockTool(t *testing.T) {
	if load.UnderRace {
		t.Skip("the tool is another process")
	}
	vet := func(files ...string) (string, error) {
		cmd := exec.Command("go", append([]string{"tool", "cue", "vet"}, files...)...)
		cmd.Dir = root
		b, err := cmd.CombinedOutput()
		return string(b), err
	}
	for _, f := range recipeFiles(t) {
		name := filepath.Base(f)
		want := ""
		switch name {
		case "bad-weight-zero.cue":
			want = "weight"
		case "bad-unknown-elsewhere.cue", "bad-unknown-top.cue":
			want = "unknown field"
		case "bad-missing-device.cue", "bad-missing-name.cue":
			want = "incomplete"
		case "bad-async-depth.cue":
			want = "is 9, and a client has 8 slots at a shard (4 QPs × 2); say 8 or less"
		case "good-minimal.cue", "good-computed.cue", "good-type.cue", "two-rail.cue", "weighted.cue":
		default:
			continue
		}
		text, err := vet(inModule(t, f))
		if want == "" && (err != nil || text != "") {
			t.Errorf("%s: %v\n%s", name, err, text)
		}
		if want != "" && (err == nil || !strings.Contains(text, want)) {
			t.Errorf("%s: %v, want an error with %q\n%s", name, err, want, text)
		}
	}
}

// inModule is a file's name as seen from the repository's root.
func inModule(t *testing.T, file string) string {
	t.Helper()
	top, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	abs, err := filepath.Abs(file)
	if err != nil {
		t.Fatal(err)
	}
	rel, err := filepath.Rel(top, abs)
	if err != nil {
		t.Fatal(err)
	}
	return "./" + filepath.ToSlash(rel)
}

// recipeFiles are the corpus and the recipes.
func recipeFiles(t *testing.T) []string {
	t.Helper()
	var out []string
	for _, glob := range []string{corpus + "/*.cue", root + "/recipes/*.cue"} {
		fs, err := filepath.Glob(glob)
		if err != nil || len(fs) == 0 {
			t.Fatal(glob, err)
		}
		for i, f := range fs {
			if !load.UnderRace || i%8 == 0 {
				out = append(out, f)
			}
		}
	}
	if _, err := os.Stat(root + "/cue.mod/module.cue"); err != nil {
		t.Fatal(err)
	}
	return out
}
