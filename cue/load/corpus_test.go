package load_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/railstore/railstore/cue/load"
)

// The corpus is a folder of recipes, good ones and bad ones. What is said about
// each stands at its end:
//
//	// vet:
//	// 12:9: lanes.asyncDepth: is 64, and …
//	//   hint: …
//
// RS_UPDATE=1 writes it anew.
const (
	corpus  = "testdata/corpus"
	wantTag = "\n// vet:\n"
)

func TestCorpus(t *testing.T) {
	files, err := filepath.Glob(corpus + "/*.cue")
	if err != nil {
		t.Fatal(err)
	}
	good, bad := 0, 0
	broken := map[string]bool{}
	for i, file := range files {
		if load.UnderRace && i%8 != 0 {
			continue
		}
		t.Run(strings.TrimSuffix(filepath.Base(file), ".cue"), func(t *testing.T) {
			src, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			d, rep, err := load.Load(file, load.Options{})
			var invalid *load.InvalidError
			if err != nil && !errors.As(err, &invalid) {
				t.Fatal(err)
			}
			if (d == nil) != (len(rep.Errors) > 0) {
				t.Errorf("deployment %v with errors %v", d, rep.Errors)
			}
			if d != nil {
				good++
			} else {
				bad++
			}
			for _, is := range append(rep.Errors, rep.Warnings...) {
				broken[is.Rule] = true
			}
			if name := filepath.Base(file); len(rep.Errors) > 1 != strings.HasPrefix(name, "bad-many") {
				t.Errorf("%d faults, and the file's name says otherwise", len(rep.Errors))
			}
			body, want, ok := strings.Cut(string(src), wantTag)
			got := said(rep)
			if os.Getenv("RS_UPDATE") != "" {
				if err := os.WriteFile(file, []byte(strings.TrimRight(body, "\n")+"\n"+wantTag+got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if !ok || got != want {
				t.Errorf("got:\n%swant:\n%s(RS_UPDATE=1 writes it anew)", got, want)
			}
			if strings.HasPrefix(filepath.Base(file), "good-") != (d != nil) {
				t.Errorf("valid: %v, and the file's name says otherwise", d != nil)
			}
		})
	}
	if load.UnderRace {
		return
	}
	for _, rule := range load.RuleNames() {
		if !broken[rule] {
			t.Errorf("no file of the corpus breaks the rule %s", rule)
		}
	}
	if good < 15 || good+bad < 60 {
		t.Errorf("the corpus has %d good and %d bad recipes; it ought to have 60", good, bad)
	}
}

func said(rep *load.Report) string {
	var b strings.Builder
	for _, list := range []struct {
		word string
		is   []load.Issue
	}{{"", rep.Errors}, {"warning: ", rep.Warnings}} {
		for _, i := range list.is {
			at := i.Path
			if at != "" {
				at += ": "
			}
			fmt.Fprintf(&b, "// %s%d:%d: %s%s\n", list.word, i.Line, i.Column, at, i.Message)
			if i.Hint != "" {
				fmt.Fprintf(&b, "//   hint: %s\n", i.Hint)
			}
		}
	}
	if b.Len() == 0 {
		return "// nothing\n"
	}
	return b.String()
}
