package lanes

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/railstore/railstore/ctrl"
	"github.com/railstore/railstore/cue/deploy"
	"github.com/railstore/railstore/pipeline"
	"github.com/railstore/railstore/stages/rail"
	"github.com/railstore/railstore/verbs"
	"github.com/railstore/railstore/verbs/lane"
)

// Client is a pool of lanes to every shard of the deployment, each in the care of
// a keeper.
type Client struct {
	Set     *rail.Set
	Control *ctrl.Client

	ctx     context.Context // of the goroutines; ends with Close
	halt    context.CancelFunc
	wg      sync.WaitGroup
	name    string // this end in errors
	cfg     lane.Config
	rejoin  bool
	pollers pollers
	keepers map[int]*keeper
	prober  prober
	closed  sync.Once
	err     error

	onRenewed atomic.Pointer[func(shard int, rail string)]
}

// ClientInput is what Dial is made of.
type ClientInput struct {
	Set     *rail.Set
	Control *ctrl.Client // joined
	Config  lane.Config
	Name    string // of this client in errors; empty: "client"
}

// Dial publishes and connects links to every shard that serves, and makes lanes
// of them. It waits for shards that are still starting, as long as the recipe
// gives the connect stage. One that has died is left out: what needs it fails
// with the reason, what does not goes on, and when it is back it is joined again.
// The scope closes the client.
func Dial(ctx context.Context, scope *pipeline.Scope, in ClientInput) (*Client, error) {
	d := in.Set.Deployment
	c := &Client{Set: in.Set, Control: in.Control, name: in.Name, cfg: in.Config, rejoin: d.Rebuild.Rejoin, keepers: map[int]*keeper{}}
	if c.name == "" {
		c.name = "client"
	}
	c.ctx, c.halt = context.WithCancel(context.WithoutCancel(ctx))
	for i := range d.Shards {
		c.keepers[d.Shards[i].ID] = newKeeper(c, d.Shards[i].ID, policyOf(&d.Rebuild))
	}
	c.prober.init(c, d)
	c.cfg.Waiting = c.prober.want
	sink := in.Config.Events
	c.cfg.Events = func(e lane.Event) {
		if e.Name == lane.EventLaneDirty {
			emit(c.ctx, e, c.keepers[e.Label.Shard].lastVerdict())
		} else if e.Name != lane.EventLaneRecovered && sink != nil { // the keeper tells that, with its attempts
			sink(e)
		}
	}
	c.pollers = startPollers(in.Set, in.Config, 1)
	scope.DeferClose("pollers", func() error { c.pollers.stop(); return nil })
	scope.DeferClose("lanes", c.close) // should a stage fail
	peers, err := c.connect(ctx, scope, d)
	if err != nil {
		return nil, err
	}
	for _, p := range peers {
		shard, ok := p.Node.Shard()
		if !ok {
			return nil, fmt.Errorf("peer %s is no shard", p.Node)
		}
		if err := c.keepers[shard].adopt(p); err != nil {
			return nil, err
		}
	}
	in.Set.OnQPEvent(c.qpEvent)
	in.Set.OnState(c.railState)
	for _, k := range c.keepers {
		c.wg.Go(func() { k.run(c.ctx) })
	}
	c.wg.Go(c.watch)
	c.wg.Go(func() { c.prober.run(c.ctx) })
	// Before the links, which the stages' undo would destroy under the lanes.
	scope.DeferClose("lanes", c.close)
	return c, nil
}

// connect makes links to every shard that serves. A shard that is replaced by its
// next process meanwhile is met as that one.
func (c *Client) connect(ctx context.Context, scope *pipeline.Scope, d *deploy.Deployment) ([]*rail.Peer, error) {
	publish, connect := rail.Publish, rail.Connect
	publish.Deadline, connect.Deadline = d.Pipeline.Publish.Deadline.D(), d.Pipeline.Connect.Deadline.D()
	began := time.Now()
	for {
		shards, err := c.serving(ctx, d)
		if err != nil {
			return nil, err
		}
		var peers []*rail.Peer
		off, err := pipeline.Run(ctx, scope, publish, rail.DialInput{Set: c.Set, Control: c.Control, Shards: shards})
		if err == nil {
			peers, err = pipeline.Run(ctx, scope, connect, off)
		}
		var gone *ctrl.AbsentError
		if err == nil || !errors.As(err, &gone) || ctx.Err() != nil || time.Since(began) >= connect.Deadline {
			return peers, err
		}
	}
}

// close ends the goroutines, the lanes and the links. It is idempotent.
func (c *Client) close() error {
	c.closed.Do(func() {
		c.Set.OnQPEvent(nil)
		c.Set.OnState(nil)
		c.halt()
		c.wg.Wait()
		var errs []error
		for _, k := range c.keepers {
			errs = append(errs, k.pool.Close())
			if k.peer != nil {
				errs = append(errs, k.peer.Close())
			}
		}
		c.err = errors.Join(errs...)
	})
	return c.err
}

func (c *Client) qpEvent(_ *rail.Rail, e verbs.AsyncEvent) {
	if !broken(e) {
		return
	}
	for _, k := range c.keepers {
		k.qpEvent(e)
	}
}

// railState has the keepers look at lanes that failed of their rail's port.
func (c *Client) railState(*rail.Rail) {
	for _, k := range c.keepers {
		k.wake()
	}
}

// broken reports whether an event is the end of a QP. A CQ that broke is found by
// its poller.
func broken(e verbs.AsyncEvent) bool { return e.Type.OfQP() && e.Type != verbs.EventCommEstablished }

func eventError(e verbs.AsyncEvent) error {
	if e.Err != nil {
		return fmt.Errorf("the device reports %v: %w", e.Type, e.Err)
	}
	return fmt.Errorf("the device reports %v", e.Type)
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
		k := c.keepers[d.Shards[i].ID]
		k.absent = why
		k.pool.Refuse(k.refusal(lane.ErrPeerDead, why))
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

// watch hands what the control plane tells to the keepers.
func (c *Client) watch() {
	for e, err := range c.Control.Watch(c.ctx) {
		if err != nil {
			if c.ctx.Err() == nil {
				// Lanes work without a control plane; what fails is not healed.
				pipeline.Emit(c.ctx, pipeline.Event{Event: "control_watch_ended", Reason: err.Error()})
			}
			return
		}
		switch e := e.(type) {
		case ctrl.PeerGone:
			if k := c.keeperOf(e.ID); k != nil {
				k.setVerdict(e.State.String())
				k.tell(func(m *keeperMail) {
					if m.gone == nil {
						m.gone = map[uint64]string{}
					}
					m.gone[e.Incarnation] = orSaid(e.Reason)
				})
			}
		case ctrl.Draining:
			if k := c.keeperOf(e.ID); k != nil {
				k.setVerdict("draining")
				k.tell(func(m *keeperMail) { m.draining, m.serving = orSaid(e.Reason), false })
			}
		case ctrl.PeerState:
			if k := c.keeperOf(e.ID); k != nil {
				k.setVerdict(e.State.String())
				if e.State == ctrl.StateServing {
					k.tell(func(m *keeperMail) { m.serving, m.draining = true, "" })
				}
			}
		case ctrl.Rejoined:
			if e.Lost {
				for _, k := range c.keepers {
					k.tell(func(m *keeperMail) { m.lost = "this client had to join again: " + e.Reason })
				}
			}
		}
	}
}

func orSaid(reason string) string {
	if reason == "" {
		return "it did not say why"
	}
	return reason
}

func (c *Client) keeperOf(id ctrl.NodeID) *keeper {
	shard, ok := id.Shard()
	if !ok {
		return nil
	}
	return c.keepers[shard]
}

func (k *keeper) lastVerdict() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.verdict
}

// Pool is the lanes to a shard, nil when the deployment has no such shard.
func (c *Client) Pool(shard int) *lane.Pool {
	if k := c.keepers[shard]; k != nil {
		return k.pool
	}
	return nil
}

// Absent is why a shard is not reached, or empty.
func (c *Client) Absent(shard int) string {
	k := c.keepers[shard]
	if k == nil {
		return "the deployment has no such shard"
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.absent
}

// OnRenewed makes f hear of every rail to a shard whose lanes are new: rebuilt, or
// those to a shard that was lost and is back. It must not block; there is one f, the
// newest.
func (c *Client) OnRenewed(f func(shard int, rail string)) { c.onRenewed.Store(&f) }

func (c *Client) renewed(shard int, rail string) {
	if f := c.onRenewed.Load(); f != nil {
		(*f)(shard, rail)
	}
}

// Reach are the rails over which a shard can be reached, in the host's order.
func (c *Client) Reach(shard int) (out []string) {
	k := c.keepers[shard]
	if k == nil {
		return nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, w := range k.wards {
		if r := w.lane.Label().Rail; !slices.Contains(out, r) {
			out = append(out, r)
		}
	}
	return out
}

// Lanes are the lanes of a rail, to all shards.
func (c *Client) Lanes(rail string) (out []*lane.Lane) {
	for _, shard := range slices.Sorted(maps.Keys(c.keepers)) {
		for _, l := range c.keepers[shard].pool.Lanes() {
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
	for _, k := range c.keepers {
		for _, l := range k.pool.Lanes() {
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
