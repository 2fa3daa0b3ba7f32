package load_test

import (
	"errors"
	"os"
	"testing"

	"github.com/railstore/railstore/cue/load"
)

// FuzzLoad: no text makes Load panic or say nothing; a deployment that it gives has
// a digest and is read back.
func FuzzLoad(f *testing.F) {
	for _, file := range []string{"good-minimal", "good-computed", "good-faults", "bad-many", "bad-unknown-field"} {
		b, err := os.ReadFile(corpus + "/" + file + ".cue")
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	for _, s := range []string{"", "{", small, small + "epoch: 1 & 2\n", small + "lanes: {...}\n", small + "hosts: [...{memlock: 1}]\n",
		head + "name: name\n", head + "hosts: [hosts]\n", head + "\"\\u0000\": 1\n", head + "[string]: 1\n", head + "hosts: [for x in hosts {x}]\n", head + "if true {name: 1}\n"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > 4096 {
			t.Skip("the evaluator's time is not what is tested")
		}
		d, rep, err := load.Load("f.cue", load.Options{Source: b})
		var invalid *load.InvalidError
		switch {
		case err == nil && (d == nil || d.Digest() == "" || len(rep.Errors) > 0):
			t.Errorf("valid, with %v and %v", d, rep)
		case errors.As(err, &invalid) && len(rep.Errors) == 0:
			t.Error("invalid without a reason")
		}
		if rep != nil {
			for _, i := range rep.Errors {
				if i.Message == "" || i.File != "f.cue" {
					t.Errorf("issue %+v", i)
				}
			}
		}
	})
}
