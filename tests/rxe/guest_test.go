package rxe

import (
	"os"
	"os/exec"
	"testing"
)

// TestGuestBoots is the smallest run.
func TestGuestBoots(t *testing.T) {
	need(t)
	dir := cacheDir(t)
	exclusive(t, dir)
	k := fetchKernel(t, dir)
	j := newJob(t)
	if out, err := exec.Command("go", "test", "-c", "-o", j.dir+"/ibv.test", "../../verbs/ibv").CombinedOutput(); err != nil {
		t.Fatal(string(out))
	}
	j.programs = []program{{"look", os.Getenv("RS_LOOK")}}
	s, err := j.run(t, k, os.Stderr)
	t.Log(err)
	for _, x := range s {
		t.Log(x.name, x.code, x.took)
	}
}
