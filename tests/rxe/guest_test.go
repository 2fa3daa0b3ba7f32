package rxe

import (
	"os"
	"testing"
)

// TestGuestBoots is the smallest run.
func TestGuestBoots(t *testing.T) {
	need(t)
	dir := cacheDir(t)
	exclusive(t, dir)
	k := fetchKernel(t, dir)
	j := newJob(t)
	j.programs = []program{{"look", os.Getenv("RS_LOOK")}}
	s, err := j.run(t, k, os.Stderr)
	t.Log(err)
	for _, x := range s {
		t.Log(x.name, x.code, x.took)
	}
}
