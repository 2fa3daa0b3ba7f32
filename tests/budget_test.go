package tests

import (
	"context"
	"fmt"
	"testing"

	"github.com/railstore/railstore/cue/load"
	"github.com/railstore/railstore/stages/lanes"
)

// TestBudgetIsDemand compares what `rs vet` adds up with what the lanes ask of the
// rails.
func TestBudgetIsDemand(t *testing.T) {
	for _, notify := range []string{"scan", "imm", "adaptive"} {
		for _, c := range []struct{ qps, slots, request, response, clients, rails, threads int }{
			{16, 1, 64 << 10, 64 << 10, 16, 2, 5}, {1, 7, 8192, 4096, 3, 3, 1}, {5, 16, 12800, 65536, 1, 1, 3},
		} {
			src := fmt.Sprintf(`import %q
schemas.#Deployment
name: "b"
lanes: {notify: %q, qpsPerClientPerShard: %d, slotsPerQP: %d, requestBytes: %d, responseBytes: %d, maxClients: %d}
_rails: {for h in [0, 1] {"\(h)": [for r in [0, 1, 2] if r < %d {"soft:127.\(r).0.\(h+1)"}]}}
hosts: [{name: "s0", rails: _rails["0"]}, {name: "c0", rails: _rails["1"]}]
shards: [{id: 0, host: "s0"}, {id: 1, host: "s0"}]
server: threads: %d
`, load.SchemaImport, notify, c.qps, c.slots, c.request, c.response, c.clients, c.rails, c.threads)
			d, _, err := load.Load("b.cue", load.Options{Source: []byte(src)})
			if err != nil {
				t.Fatalf("%v\n%s", err, src)
			}
			cfg, err := lanes.ConfigOf(context.Background(), d)
			if err != nil {
				t.Fatal(err)
			}
			b := d.Budget()
			for _, end := range []struct {
				what          string
				lane, qps, cq int
				bytes, need   int
				cqes, peers   int
				cqs, asked    int
				send, recv    int
				wr            [2]int
			}{
				{"shard", int(b[0].Processes[0].LaneBytes), b[0].Processes[0].QPs, b[0].Processes[0].RailCQEs,
					lanes.ServerDemand(d, cfg).Bytes, cfg.ServerBytes(), lanes.ServerDemand(d, cfg).CQEs, lanes.ServerDemand(d, cfg).MaxPeers, c.threads, lanes.ServerDemand(d, cfg).CQs,
					cfg.ServerCap().MaxSendWR, cfg.ServerCap().MaxRecvWR, [2]int{d.Lanes.SendWR(true), d.Lanes.RecvWR()}},
				{"client", int(b[1].Processes[0].LaneBytes), b[1].Processes[0].QPs, b[1].Processes[0].RailCQEs,
					lanes.ClientDemand(d, cfg).Bytes, cfg.ClientBytes(), lanes.ClientDemand(d, cfg).CQEs, lanes.ClientDemand(d, cfg).MaxPeers, 1, max(lanes.ClientDemand(d, cfg).CQs, 1),
					cfg.ClientCap().MaxSendWR, cfg.ClientCap().MaxRecvWR, [2]int{d.Lanes.SendWR(false), d.Lanes.RecvWR()}},
			} {
				qps := max(c.qps, c.rails) * end.peers
				cq := end.asked * ((qps+end.cqs-1)/end.cqs + 1) * end.cqes
				if end.qps != qps || end.lane != qps*end.bytes || end.cq != cq {
					t.Errorf("%s, %s, %+v: vet says %d QPs, %d bytes, %d completions a rail; the lanes ask for %d, %d, %d",
						end.what, notify, c, end.qps, end.lane, end.cq, qps, qps*end.bytes, cq)
				}
				if end.need > end.bytes {
					t.Errorf("%s, %s, %+v: a QP has %d bytes, its lane needs %d", end.what, notify, c, end.bytes, end.need)
				}
				if end.wr != [2]int{end.send, end.recv} {
					t.Errorf("%s, %s, %+v: vet says queues of %v, the lanes make %d and %d", end.what, notify, c, end.wr, end.send, end.recv)
				}
			}
		}
	}
}
