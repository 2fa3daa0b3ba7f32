package deploy

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

func TestUnknownVariables(t *testing.T) {
	for _, c := range []struct {
		environ []string
		want    []string
	}{
		{nil, nil},
		{[]string{"PATH=/bin", "RSS_X=1", "XRS_A=1", "RS=1", "RS_STATE=", "RS_TEST_ANYTHING=1", "RS_MR_HEDGE=true", "RS_RDMA_RAILS=a"}, nil},
		{[]string{"RS_RDMA_RC_SLOTS_PER_QP=4", "RS_STAET=/x", "RS_FIRE=1", "RS_FIRE=2", "RS_=1"}, []string{
			"RS_: there is no such variable", "RS_FIRE: there is no such variable",
			"RS_RDMA_RC_SLOTS_PER_QP: there is no such variable; did you mean RS_RDMA_SLOTS_PER_QP?",
			"RS_STAET: there is no such variable; did you mean RS_STATE?"}},
	} {
		if got := UnknownVariables(c.environ); !slices.Equal(got, c.want) {
			t.Errorf("%q: %q, want %q", c.environ, got, c.want)
		}
	}
	if got := EnvNames("RS_MR_"); len(got) < 10 || !slices.Contains(got, "RS_MR_HEDGE") || slices.Contains(got, "RS_STATE") {
		t.Errorf("RS_MR_: %q", got)
	}
}

// Every variable that the repository's own code asks for is known.
func TestVariablesOfTheCodeAreKnown(t *testing.T) {
	asked := regexp.MustCompile(`(?:Getenv|LookupEnv|EnvVars)\("(RS_[A-Z0-9_]+)"`)
	n := 0
	err := filepath.WalkDir("../..", func(path string, e os.DirEntry, err error) error {
		if err != nil || e.IsDir() || !strings.HasSuffix(path, ".go") {
			return err
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, m := range asked.FindAllStringSubmatch(string(b), -1) {
			n++
			if len(UnknownVariables([]string{m[1] + "=1"})) > 0 {
				t.Errorf("%s asks for %s, which UnknownVariables refuses", path, m[1])
			}
		}
		return nil
	})
	if err != nil || n < 20 {
		t.Errorf("%d variables, %v", n, err)
	}
}
