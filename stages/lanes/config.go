package lanes

import (
	"context"
	"strconv"
	"time"

	"github.com/railstore/railstore/cue/deploy"
	"github.com/railstore/railstore/pipeline"
	"github.com/railstore/railstore/stages/rail"
	"github.com/railstore/railstore/verbs"
	"github.com/railstore/railstore/verbs/lane"
)

// slotOverhead is the part of a recipe's slot size that is not payload: the
// descriptor or header, and the slot's two words with their padding. A QP's
// slots thus never take more than Lanes.LaneBytes, which vet adds up.
const slotOverhead = 128

// gather is how many pieces one work request of a shard takes: rows are gathered from
// where they lie. Devices that take fewer get fewer.
const gather = 16

var notifyWords = map[string]lane.Notify{"scan": lane.Scan, "imm": lane.Imm, "adaptive": lane.Adaptive}

// ConfigOf is the lane configuration that a deployment says. Events go to the
// sink of ctx.
func ConfigOf(ctx context.Context, d *deploy.Deployment) (lane.Config, error) {
	n, ok := notifyWords[d.Lanes.Notify]
	if !ok {
		return lane.Config{}, pipeline.Errorf(pipeline.LayerConfig, "lanes", pipeline.Nowhere, "lanes.notify %q: want scan, imm or adaptive", d.Lanes.Notify)
	}
	c := lane.Config{
		Slots: d.Lanes.Slots, RequestBytes: int(d.Lanes.RequestBytes) - slotOverhead, ResponseBytes: int(d.Lanes.ResponseBytes) - slotOverhead,
		Notify: n, Spin: d.Lanes.Spin.D(), WaitTimeout: d.Lanes.WaitTimeout.D(),
		TouchAfter: d.Health.TouchAfter.D(), TouchEvery: d.Health.TouchAfter.D(), TouchTimeout: d.Health.TouchTimeout.D(),
		HarvestEvery: d.Lanes.CQHarvestInterval.D(), ProbeAfter: d.Health.ProbeAfter.D(), ProbeEvery: d.Health.ProbeInterval.D(),
		MaxSGE: gather, Profile: d.Profile.Enabled, Counters: new(lane.Counters), Events: func(e lane.Event) { emit(ctx, e, "") },
	}
	// What is 0 in a recipe is off, which is negative here.
	for _, t := range []*time.Duration{&c.Spin, &c.TouchAfter, &c.TouchTimeout, &c.HarvestEvery, &c.ProbeAfter} {
		if *t == 0 {
			*t = -1
		}
	}
	if err := c.Check(); err != nil {
		return lane.Config{}, pipeline.Wrap(err, pipeline.LayerConfig, "lanes", pipeline.Nowhere)
	}
	return c, nil
}

func emit(ctx context.Context, e lane.Event, verdict string) {
	out := pipeline.Event{Event: e.Name, Rail: e.Label.Rail, Reason: e.Reason}
	if e.Label.Shard >= 0 {
		out.Shard = &e.Label.Shard
	}
	if e.Label.Index >= 0 {
		out.Lane = &e.Label.Index
	}
	out.Fields = map[string]any{}
	if e.Label.Remote != "" {
		out.Fields["peer"] = e.Label.Remote
	}
	if e.Err != nil {
		out.Fields["error"] = e.Err.Error()
	}
	if verdict != "" {
		out.Fields["verdict"] = verdict
	}
	pipeline.Emit(ctx, out)
}

// params are what both ends must agree on.
func params(d *deploy.Deployment, c lane.Config) map[string]string {
	p := c.Params()
	p["rebuild"] = strconv.FormatBool(d.Rebuild.Enabled)
	return p
}

const access = verbs.LocalWrite | verbs.RemoteWrite | verbs.RemoteRead

func demand(d *deploy.Deployment, c lane.Config, cap verbs.QPCap, peers int) rail.Demand {
	return rail.Demand{QPs: d.Lanes.QPs, MaxPeers: peers, Cap: cap, CQEs: cap.MaxSendWR + cap.MaxRecvWR,
		Bytes: int(d.Lanes.LaneBytes()+63) &^ 63, Access: access, Params: params(d, c)}
}

// ServerDemand is what a shard asks of its rails: a CQ for each of their polling threads.
func ServerDemand(d *deploy.Deployment, c lane.Config) rail.Demand {
	out := demand(d, c, c.ServerCap(), d.Lanes.MaxClients)
	out.CQs = d.Server.Threads
	return out
}

// ClientDemand is what a client asks of its rails.
func ClientDemand(d *deploy.Deployment, c lane.Config) rail.Demand {
	return demand(d, c, c.ClientCap(), max(1, len(d.Shards)))
}

// memory is a link's block as a lane wants it.
func memory(l *rail.Link) lane.Memory {
	mr, at := l.Rail.Block(l.Off, uint64(len(l.Bytes)))
	return lane.Memory{MR: mr, Bytes: l.Bytes, Off: at, Generation: l.Generation}
}

func peerOf(l *rail.Link) lane.Peer {
	return lane.Peer{Slots: l.Block, Generation: l.PeerGeneration}
}

// WrapError puts a lane's error into the layers of the pipeline: what the lane
// knows of the place goes to the place, so that it is told once. Other errors it
// wraps in layer.
func WrapError(err error, layer pipeline.Layer, op string, w pipeline.Where) error {
	le, ok := err.(*lane.Error)
	if !ok {
		return pipeline.Wrap(err, layer, op, w)
	}
	if w.Lane < 0 {
		w.Lane = le.Label.Index
	}
	if w.Rail == "" {
		w.Rail = le.Label.Rail
	}
	if w.Shard < 0 {
		w.Shard = le.Label.Shard
	}
	return &pipeline.Error{Layer: pipeline.Layer(le.Layer), Op: op, Where: w, Err: placed{le}}
}

// placed is a lane's error whose operation and place are told by what wraps it.
type placed struct{ e *lane.Error }

func (p placed) Error() string { return p.e.Detail() }
func (p placed) Unwrap() error { return p.e }
