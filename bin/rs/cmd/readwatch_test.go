package cmd

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/railstore/railstore/cue/deploy"
	"github.com/railstore/railstore/pipeline"
	"github.com/railstore/railstore/stages/object"
)

func TestWatchedRead(t *testing.T) {
	key := object.Key{Namespace: "kv", Name: "a"}
	now := []object.RailSnapshot{{Name: "r0", State: "active"}, {Name: "r1", State: "quarantined for corruption, for 1s more: x"}, {Name: "r2", State: "left alone to shard 0"},
		{Name: "r3", State: "probation (canary)"}, {Name: "r4", State: "down (PORT_ERR)"}}
	rep := &object.ReadReport{Generation: 7, Bytes: 30, Attempts: 2, Rereads: 1, Degraded: true,
		Rails:  []object.RailSnapshot{{Name: "r0", PlannedBytes: 10, Bytes: 30}, {Name: "r2", PlannedBytes: 20}},
		Faults: []object.PathFault{{Rail: "r2"}},
		Moves: []object.Move{{From: "r2", To: "r0", Why: object.MoveFailover, Stripes: 3}, {From: "r1", To: "r0", Why: object.MoveChecksum, Stripes: 1},
			{From: "r3", To: "r0", Why: object.MoveHedge, Stripes: 5}}}
	w := watched(time.Now(), 4, key, rep, now, nil)
	if w.Read != 4 || w.Generation != 7 || w.Bytes != 30 || w.Attempts != 2 || !w.Degraded || w.Error != nil {
		t.Errorf("line is %+v", w)
	}
	if w.Retries != 4 {
		t.Errorf("%d retries, want 1 stripe that came wrong and 3 of the rail that failed", w.Retries)
	}
	if !slices.Equal(w.FailedOver, []string{"r2"}) || !slices.Equal(w.Quarantine, []string{"r1", "r2", "r4"}) {
		t.Errorf("failed over %v, left alone %v", w.FailedOver, w.Quarantine)
	}
	if len(w.Rails) != 5 || w.Rails[0].Bytes != 30 || w.Rails[2].PlannedBytes != 20 || w.Rails[1].Bytes != 0 {
		t.Errorf("rails are %+v", w.Rails)
	}
	var b strings.Builder
	a := &app{out: &b, getenv: func(string) string { return "" }}
	if err := a.printWatched(&w); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"#4 kv/a generation 7: 30 B", "r0 30 B; r1 0 B (quarantined", "failed over: r2", "left alone: r1, r2, r4", "4 stripes asked for again, 2 attempts"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in %s", want, b.String())
		}
	}

	err := pipeline.Wrap(errors.New("gone"), pipeline.LayerStorage, "read", pipeline.Nowhere)
	if w := watched(time.Now(), 1, key, nil, now, err); w.Error == nil || w.Error.Message == "" || w.Bytes != 0 || len(w.Rails) != 5 {
		t.Errorf("a read that failed is %+v", w)
	}
}

func TestJobNamed(t *testing.T) {
	d := &deploy.Deployment{Name: "d", Jobs: []deploy.ReadJob{{Name: "nightly"}, {Name: "hourly", Object: "x"}}}
	if j, err := jobNamed(d, "hourly"); err != nil || j.Object != "x" {
		t.Errorf("hourly is %+v, %v", j, err)
	}
	for name, hint := range map[string]string{"nighty": "did you mean nightly?", "zzzzzz": "it has nightly, hourly", "": "it has nightly"} {
		_, err := jobNamed(d, name)
		var u *usageError
		if !errors.As(err, &u) || !strings.HasPrefix(u.hint, hint) {
			t.Errorf("%q: %v, want the hint %q", name, err, hint)
		}
	}
	if _, err := jobNamed(&deploy.Deployment{Name: "d"}, "x"); err == nil {
		t.Error("there is a job in a deployment without any")
	}
}

func TestSameButJobs(t *testing.T) {
	x := &deploy.Deployment{Name: "d", Epoch: 1, Jobs: []deploy.ReadJob{{Name: "a"}}}
	y := &deploy.Deployment{Name: "d", Epoch: 1}
	if !sameButJobs(x, y) {
		t.Error("other jobs make another deployment")
	}
	if len(x.Jobs) != 1 {
		t.Error("the jobs are gone")
	}
	y.Epoch = 2
	if sameButJobs(x, y) {
		t.Error("another epoch is the same deployment")
	}
}
