package lanes

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/railstore/railstore/ctrl"
	"github.com/railstore/railstore/cue/deploy"
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
	absent  map[int]string   // why a shard is not reached
}

// ClientInput is what Dial is made of.
type ClientInput struct {
	Set     *rail.Set
	Control *ctrl.Client // joined
	Config  lane.Config
}

// Dial publishes and connects links to every shard that serves, and makes lanes
// of them. It waits for shards that are still starting, as long as the recipe
// gives the connect stage. One that has died is left out: what needs it fails
// with the reason, what does not goes on. The scope closes the client.
func Dial(ctx context.Context, scope *pipeline.Scope, in ClientInput) (*Client, error) {
	d := in.Set.Deployment
	c := &Client{Set: in.Set, Control: in.Control, pools: map[int]*lane.Pool{}, reach: map[int][]string{}, absent: map[int]string{}}
	dial := rail.DialInput{Set: in.Set, Control: in.Control}
	var err error
	if dial.Shards, err = c.serving(ctx, d); err != nil {
		return nil, err
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
	c.pollers = startPollers(in.Set, in.Config)
	scope.DeferClose("pollers", func() error { stopPollers(c.pollers); return nil })
	for _, p := range peers {
		pool, err := c.pool(p, in.Config)
		if err != nil {
			return nil, err
		}
		scope.DeferClose("lanes to "+string(p.Node), pool.Close)
	}
	return c, nil
}

// serving waits for the shards and gives those that serve.
func (c *Client) serving(ctx context.Context, d *deploy.Deployment) ([]ctrl.NodeInfo, error) {
	wait := d.Pipeline.Connect.Deadline.D()
	if wait > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, wait)
		defer cancel()
	}
	found, err := pipeline.Each(ctx, d.Shards, func(ctx context.Context, sh deploy.Shard) (ctrl.NodeStatus, error) {
		n, err := c.await(ctx, ctrl.ShardID(sh.ID))
		return n, pipeline.Wrap(err, pipeline.LayerNode, "wait for shards", pipeline.AtShard(sh.ID))
	})
	if err != nil {
		return nil, err
	}
	var out []ctrl.NodeInfo
	var reasons []string
	for i, n := range found {
		if usable(n.State) {
			out = append(out, n.Info)
			continue
		}
		why := n.State.String()
		if n.Reason != "" {
			why += ": " + n.Reason
		}
		c.absent[d.Shards[i].ID] = why
		reasons = append(reasons, fmt.Sprintf("shard %d is %s", d.Shards[i].ID, why))
	}
	if len(out) == 0 {
		return nil, pipeline.Errorf(pipeline.LayerNode, "wait for shards", pipeline.Nowhere, "no shard serves: %s", strings.Join(reasons, "; ")).
			WithHint("rs status tells why; rs up starts shards that have died")
	}
	return out, nil
}

func usable(s ctrl.State) bool { return s == ctrl.StateServing || s == ctrl.StateSuspect }

// await waits until a shard serves or is known not to.
func (c *Client) await(ctx context.Context, id ctrl.NodeID) (ctrl.NodeStatus, error) {
	n, err := c.node(ctx, id)
	if err != nil || usable(n.State) || n.State.Ended() || n.State == ctrl.StateDraining {
		return n, err
	}
	if err := c.Control.WaitReady(ctx, id); err != nil {
		return n, err
	}
	return c.node(ctx, id)
}

// node is what the control plane knows of a node; nothing is no error.
func (c *Client) node(ctx context.Context, id ctrl.NodeID) (ctrl.NodeStatus, error) {
	n, err := c.Control.Node(ctx, id)
	var gone *ctrl.AbsentError
	if errors.As(err, &gone) {
		return ctrl.NodeStatus{Info: ctrl.NodeInfo{ID: id}, State: gone.State, Reason: gone.Reason}, nil
	}
	return n, err
}

// pool makes the lanes to one shard.
func (c *Client) pool(p *rail.Peer, cfg lane.Config) (*lane.Pool, error) {
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

// Absent is why a shard is not reached, or empty.
func (c *Client) Absent(shard int) string { return c.absent[shard] }

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
