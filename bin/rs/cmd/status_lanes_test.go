package cmd

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/railstore/railstore/ctrl"
	"github.com/railstore/railstore/stages/lanes"
	"github.com/railstore/railstore/stages/launch"
)

func TestReasonsOfLanes(t *testing.T) {
	var list []lanes.LaneStatus
	for i, s := range []string{"active", "dirty", "dirty", "dead", "dirty", "rebuilding", "active"} {
		why := ""
		if s != "active" {
			why = s + " because"
		}
		if i == 4 {
			why = "another reason"
		}
		list = append(list, lanes.LaneStatus{Index: i, State: s, Reason: why})
	}
	got := fmt.Sprint(reasonsOf("shard/0", list))
	if want := "[{shard/0 dirty 3 dirty because 1} {shard/0 rebuilding 1 rebuilding because 0} {shard/0 dead 1 dead because 0}]"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	r := &statusResult{Status: &ctrl.Status{Shards: []ctrl.ShardStatus{{ID: 0}, {ID: 1}}}}
	r.tell(launch.AdminPeer{Process: launch.Process{ID: "shard/1", Shard: 1}}, list, false)
	client := launch.AdminPeer{Process: launch.Process{ID: "client/c", Shard: -1, PID: 7}}
	r.tell(client, list, false)
	if want := (ctrl.LaneCounts{Active: 2, Dirty: 3, Rebuilding: 1, Dead: 1}); r.Shards[1].Lanes != want || r.Shards[0].Lanes != (ctrl.LaneCounts{}) || len(r.Clients) != 0 {
		t.Errorf("%+v %+v", r.Shards, r.Clients)
	}
	r.tell(client, list, true)
	r.tell(client, list[:1], true)
	if len(r.Clients) != 1 || r.Clients[0].PID != 7 || r.Clients[0].Lanes.Active != 1 {
		t.Errorf("%+v", r.Clients)
	}
	r.Reasons = append(reasonsOf("shard/1", list), laneReason{Process: "shard/0", State: stateUnknown, Reason: "the process does not answer"})
	var out bytes.Buffer
	a := &app{out: &out, getenv: func(string) string { return "" }}
	a.printLanes(r)
	for _, want := range []string{"shard/1  3      dirty       dirty because (1 for other reasons)\n", "shard/0  -      unknown     the process does not answer\n"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in\n%s", want, out.String())
		}
	}
}
