package load

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"cuelang.org/go/cue"
)

var literal = regexp.MustCompile(`"[^"\n]*"|\b[0-9][0-9A-Za-z_.]*\b|\btrue\b|\bfalse\b|\b[a-zA-Z]+:`)

// TestMutants changes good recipes at random and demands that Load and CUE's own
// evaluation agree on each: nothing that Load says may come from its own way of
// looking, and nothing may be missed. RS_MUTANTS sets their number.
func TestMutants(t *testing.T) {
	rnd := seed(t)
	n := 40
	if UnderRace {
		n = 5
	}
	if s := os.Getenv("RS_MUTANTS"); s != "" {
		n, _ = strconv.Atoi(s)
	}
	files, err := filepath.Glob("testdata/corpus/*.cue")
	if err != nil || len(files) == 0 {
		t.Fatal(err)
	}
	var pool []string
	texts := map[string]string{}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		src, _, _ := strings.Cut(string(b), "\n// vet:\n")
		_, src, _ = strings.Cut(src, "schemas.#Deployment\n")
		pool = append(pool, literal.FindAllString(src, -1)...)
		texts[f] = src
	}
	files = slices.DeleteFunc(files, func(f string) bool { return strings.HasPrefix(filepath.Base(f), "bad-") })
	verdicts := map[bool]int{}
	for i := range n {
		f := files[rnd.IntN(len(files))]
		src := texts[f]
		for range 1 + rnd.IntN(2) {
			at := literal.FindAllStringIndex(src, -1)
			if len(at) == 0 {
				break
			}
			p := at[rnd.IntN(len(at))]
			old := src[p[0]:p[1]]
			with := old
			switch rnd.IntN(8) {
			case 0: // anything
				with = pool[rnd.IntN(len(pool))]
			case 1: // a letter less
				with = old[:len(old)/2] + old[min(len(old)/2+1, len(old)):]
			default: // another one of its kind
				for range 200 {
					with = pool[rnd.IntN(len(pool))]
					if with[0] == old[0] && strings.HasSuffix(with, ":") == strings.HasSuffix(old, ":") && len(with) <= len(old)+2 {
						break
					}
				}
			}
			src = src[:p[0]] + with + src[p[1]:]
		}
		src = "import (\n\t\"list\"\n\t\"" + SchemaImport + "\"\n)\n_l: list.Range(0, 1, 1)\nschemas.#Deployment\n" + src
		_, rep, err := Load("m.cue", Options{Source: []byte(src)})
		var invalid *InvalidError
		if err != nil && !errors.As(err, &invalid) {
			t.Errorf("mutant %d of %s: %v\n%s", i, f, err, src)
			continue
		}
		e := newEvaluator()
		v, _, cueErr := e.recipe("m.cue", []byte(src), schemaFiles())
		if cueErr == nil {
			cueErr = v.Validate(cue.Concrete(true), cue.Attributes(true), cue.Definitions(true), cue.Hidden(true))
		}
		verdicts[err == nil]++
		if (err == nil) != (cueErr == nil) {
			t.Errorf("mutant %d of %s: Load says %v, CUE says %v\n%s", i, f, err, cueErr, src)
		}
		if rep != nil {
			for _, is := range rep.Errors {
				if is.Rule == "cue" && err != nil && strings.Contains(is.Message, "schemas/") {
					t.Errorf("mutant %d of %s: %s\n%s", i, f, is.Text(), src)
				}
				if is.Line == 0 {
					t.Errorf("mutant %d of %s: no place: %s\n%s", i, f, is.Text(), src)
				}
			}
		}
	}
	t.Logf("%d good and %d bad mutants", verdicts[true], verdicts[false])
}
