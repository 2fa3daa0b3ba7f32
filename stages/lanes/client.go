package lanes

import (
	"context"
	"errors"
	"fmt"

	"github.com/railstore/railstore/ctrl"
	"github.com/railstore/railstore/pipeline"
	"github.com/railstore/railstore/stages/rail"
	"github.com/railstore/railstore/verbs/lane"
)

// Client is a pool of lanes to every shard.
type Client struct {
	Set     *rail.Set
	Control *ctrl.Client

	pollers map[string]*lane.Poller
	pools   map[int]*lane.Pool
	reach   map[int][]string // rails to a shard
}

// ClientInput is what Dial is made of.
type ClientInput struct {
	Set     *rail.Set
	Control *ctrl.Client // joined
	Config  lane.Config
}

// Dial waits until every shard serves, publishes and connects links to each, and
// makes lanes of them. The scope closes it.
func Dial(ctx context.Context, scope *pipeline.Scope, in ClientInput) (*Client, error) {
	d := in.Set.Deployment
	if err := in.Control.WaitReady(ctx); err != nil {
		return nil, pipeline.Wrap(err, pipeline.LayerNode, "wait for shards", pipeline.Nowhere)
	}
	dial := rail.DialInput{Set: in.Set, Control: in.Control}
	for i := range d.Shards {
		id := d.Shards[i].ID
		n, err := in.Control.Node(ctx, ctrl.ShardID(id))
		if err != nil {
			return nil, pipeline.Wrap(err, pipeline.LayerNode, "wait for shards", pipeline.AtShard(id))
		}
		dial.Shards = append(dial.Shards, n.Info)
	}
	publish, connect := rail.Publish, rail.Connect
	publish.Deadline, connect.Deadline = d.Pipeline.Publish.Deadline.D(), d.Pipeline.Connect.Deadline.D()
	off, err := pipeline.Run(ctx, scope, publish, dial)
	if err != nil {
		return nil, err
	}
	peers, err := pipeline.Run(ctx, scope, connect, off)
	if err != nil {
		return nil, err
	}
	c := &Client{Set: in.Set, Control: in.Control, pollers: startPollers(in.Set, in.Config), pools: map[int]*lane.Pool{}, reach: map[int][]string{}}
	scope.DeferClose("pollers", func() error { stopPollers(c.pollers); return nil })
	for _, p := range peers {
		pool, err := c.pool(ctx, p, in.Config)
		if err != nil {
			return nil, err
		}
		scope.DeferClose("lanes to "+string(p.Node), pool.Close)
	}
	return c, nil
}

// pool makes the lanes to one shard.
func (c *Client) pool(ctx context.Context, p *rail.Peer, cfg lane.Config) (*lane.Pool, error) {
	shard, ok := p.Node.Shard()
	if !ok {
		return nil, fmt.Errorf("peer %s is no shard", p.Node)
	}
	if cfg.ProbeAfter > 0 {
		cfg.Probe = c.probe
	}
	pool := lane.NewPool()
	seen := map[string]bool{}
	for _, l := range p.Links {
		ln, err := lane.New(c.pollers[l.Rail.Name()], l.QP, memory(l), peerOf(l), cfg,
			lane.Label{Shard: shard, Index: l.Index, Rail: l.Rail.Name(), Local: "client", Remote: string(p.Node)})
		if err != nil {
			return nil, errors.Join(WrapError(err, pipeline.LayerConnect, "connect", pipeline.AtShard(shard)), pool.Close())
		}
		pool.Add(ln)
		if !seen[l.Rail.Name()] {
			seen[l.Rail.Name()] = true
			c.reach[shard] = append(c.reach[shard], l.Rail.Name())
		}
	}
	c.pools[shard] = pool
	return pool, nil
}

// probe asks the control plane whether a shard is dead. Not knowing is not dead.
func (c *Client) probe(ctx context.Context, l lane.Label) (bool, string) {
	h := c.Control.Health(ctx, ctrl.ShardID(l.Shard))
	return h.Dead(), h.Reason
}

// Pool is the lanes to a shard, nil when there is none.
func (c *Client) Pool(shard int) *lane.Pool { return c.pools[shard] }

// Reach are the rails over which a shard can be reached, in the host's order.
func (c *Client) Reach(shard int) []string { return c.reach[shard] }

// Lanes are the lanes of a rail, to all shards.
func (c *Client) Lanes(rail string) (out []*lane.Lane) {
	for _, p := range c.pools {
		for _, l := range p.Lanes() {
			if l.Label().Rail == rail {
				out = append(out, l)
			}
		}
	}
	return out
}

// Report is what heartbeats carry.
func (c *Client) Report() ctrl.Report {
	var n ctrl.LaneCounts
	for _, p := range c.pools {
		for _, l := range p.Lanes() {
			count(&n, l.State())
		}
	}
	return ctrl.Report{Lanes: n, Rails: c.Set.Info()}
}

func count(c *ctrl.LaneCounts, st lane.State) {
	switch st {
	case lane.Active:
		c.Active++
	case lane.Dirty:
		c.Dirty++
	case lane.Rebuilding:
		c.Rebuilding++
	case lane.Dead:
		c.Dead++
	}
}
