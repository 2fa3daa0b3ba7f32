package object

import (
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/railstore/railstore/cue/deploy"
)

// TestReadUnmet: a path that the recipe has and the session has not is told of, unless
// the shard is not there at all, the read has no part of it, or nobody expects the path.
func TestReadUnmet(t *testing.T) {
	gone := ""
	x := newWorld(t, func(c *Config) {
		c.Reach = func(shard int) []string {
			if shard == 1 {
				return []string{"a"}
			}
			return []string{"a", "b"}
		}
		c.Expect = func(_ string, shard int) bool { return shard < 2 }
		c.ShardState = func(shard int) string {
			if shard == 1 {
				return gone
			}
			return ""
		}
	})
	data := randomBytes(1, 16*Align)
	rep := x.mustPut(testKey, data)
	told := func(excluded []string) bool {
		return slices.ContainsFunc(excluded, func(s string) bool {
			return strings.Contains(s, "shard 1 over rail b is not connected")
		})
	}
	if !told(rep.Excluded) {
		t.Errorf("%+v", rep.Excluded)
	}
	if rep := readBytes(t, x.w, testKey, data); !rep.Degraded || !told(rep.Excluded) || len(rep.Excluded) != 1 {
		t.Errorf("%+v", rep)
	}
	gone = "stopped"
	if rep := readBytes(t, x.w, testKey, data); told(rep.Excluded) || !rep.Degraded {
		t.Errorf("%+v", rep)
	}
	x.idle()
}

// TestSessionExpects: what a session expects is what the recipe says.
func TestSessionExpects(t *testing.T) {
	defer goleak.VerifyNone(t)
	x := newSite(t, func(d *deploy.Deployment) { d.Shards[1].Rails = []string{"a"} })
	defer x.close()
	s := x.open(nil)
	defer x.shut(s)
	for rail, want := range map[string][2]bool{"a": {true, true}, "b": {true, false}, "c": {}} {
		for shard := range want {
			if got := s.cfg.Expect(rail, shard); got != want[shard] {
				t.Errorf("rail %s, shard %d: %v", rail, shard, got)
			}
		}
	}
	if s.cfg.Expect("a", 9) {
		t.Error("there is no shard 9")
	}
}
