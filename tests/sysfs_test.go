package tests

import (
	"path/filepath"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/rogpeppe/go-internal/txtar"

	"github.com/railstore/railstore/verbs/fabric/fabrictest"
)

// sysfs FIXTURE DIR: makes the sysfs tree of a fixture of verbs/fabric, or of the
// description in a file of the script.
func cmdSysfs(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: sysfs fixture dir")
	}
	a, err := txtar.ParseFile(filepath.Join("..", "verbs", "fabric", "testdata", args[0]+".txtar"))
	if err != nil {
		ts.Check(fabrictest.Write(ts.MkAbs(args[1]), ts.ReadFile(args[0])))
		return
	}
	for _, f := range a.Files {
		if f.Name == "sysfs" {
			ts.Check(fabrictest.Write(ts.MkAbs(args[1]), string(f.Data)))
			return
		}
	}
	ts.Fatalf("fixture %s has no section sysfs", args[0])
}
