package cmd

import (
	"testing"
	"time"

	"github.com/railstore/railstore/pipeline"
)

func TestEventFilter(t *testing.T) {
	now := time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)
	zero, one := 0, 1
	e := pipeline.Event{Event: "lane_dirty", Time: now, Shard: &one, Rail: "a"}
	for _, tc := range []struct {
		f    eventFilter
		want bool
	}{
		{eventFilter{}, true},
		{eventFilter{events: []string{"lane_dirty", "x"}}, true},
		{eventFilter{events: []string{"x"}}, false},
		{eventFilter{shards: []int{zero, one}}, true},
		{eventFilter{shards: []int{zero}}, false},
		{eventFilter{rails: []string{"a"}}, true},
		{eventFilter{rails: []string{"b"}}, false},
		{eventFilter{since: now}, true},
		{eventFilter{since: now.Add(1)}, false},
		{eventFilter{events: []string{"lane_dirty"}, shards: []int{one}, rails: []string{"b"}}, false},
	} {
		if got := tc.f.passes(e); got != tc.want {
			t.Errorf("%+v: %v", tc.f, got)
		}
		if (tc.f.line() == nil) != (len(tc.f.events)+len(tc.f.shards)+len(tc.f.rails) == 0 && tc.f.since.IsZero()) {
			t.Errorf("%+v: a filter of lines: %v", tc.f, tc.f.line() != nil)
		}
	}
	if (eventFilter{shards: []int{0}}).passes(pipeline.Event{Event: "x"}) {
		t.Error("an event of no shard is of shard 0")
	}
}
