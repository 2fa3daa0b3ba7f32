package rail

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"

	"github.com/railstore/railstore/ctrl"
	"github.com/railstore/railstore/pipeline"
)

// Info is what the control plane is told of the rails.
func (s *Set) Info() []ctrl.RailInfo {
	out := make([]ctrl.RailInfo, 0, len(s.Rails))
	for _, r := range s.Rails {
		st, why := r.Health()
		a := r.Address()
		out = append(out, ctrl.RailInfo{Name: r.Name(), Fabric: r.Spec.Fabric, Device: r.Ctx.Name(), Provider: r.Provider(),
			GID: a.GID.Entry.GID, GIDType: a.GID.Entry.Type.String(), MTU: a.ActiveMTU, Weight: r.Spec.Weight,
			UDPPort: a.Port.UDPPort, State: string(st), Reason: why})
	}
	return out
}

// DialInput is the input of publish.
type DialInput struct {
	Set     *Set
	Control *ctrl.Client // joined
	Shards  []ctrl.NodeInfo
}

// Offered is a client whose offers are out.
type Offered struct {
	in    DialInput
	peers []*offeredPeer
}

type offeredPeer struct {
	peer    *Peer
	shard   ctrl.NodeInfo
	offer   ctrl.Offer
	skipped []string
}

// Publish makes QPs towards every shard and publishes them as offers.
var Publish = pipeline.Stage[DialInput, *Offered]{
	Name: "publish", Layer: pipeline.LayerControl, Run: publish,
}

// Connect waits for the shards' answers and takes the QPs to RTS. It returns the
// peers in the order of the shards.
var Connect = pipeline.Stage[*Offered, []*Peer]{
	Name: "connect", Layer: pipeline.LayerConnect, Run: connect,
}

func publish(ctx context.Context, scope *pipeline.Scope, in DialInput) (_ *Offered, err error) {
	out := &Offered{in: in}
	defer out.closeOn(&err)
	for _, sh := range in.Shards {
		op, err := in.Set.offer(sh)
		if err != nil {
			return nil, pipeline.Wrap(err, pipeline.LayerConnect, "publish", atNode(sh.ID))
		}
		scope.DeferClose("disconnect from "+string(sh.ID), op.peer.Close)
		out.peers = append(out.peers, op)
	}
	_, err = pipeline.Each(ctx, out.peers, func(ctx context.Context, op *offeredPeer) (struct{}, error) {
		err := in.Control.Publish(ctx, op.offer)
		return struct{}{}, pipeline.Wrap(err, pipeline.LayerControl, "publish", atNode(op.shard.ID))
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// closeOn gives the QPs back after a failure, so that the stage can be run again
// before its scope ends.
func (o *Offered) closeOn(err *error) {
	if *err == nil {
		return
	}
	for _, op := range o.peers {
		*err = errors.Join(*err, op.peer.Close())
	}
}

// offer makes the links to one shard.
func (s *Set) offer(sh ctrl.NodeInfo) (*offeredPeer, error) {
	pairs, skipped := pairRails(s.Rails, sh.Rails)
	if len(pairs) == 0 {
		return nil, fmt.Errorf("no rail of host %s reaches %s: %s", s.Host, sh.ID, strings.Join(skipped, "; "))
	}
	op := &offeredPeer{peer: &Peer{Node: sh.ID, set: s, generation: s.offers.Add(1)}, shard: sh, skipped: skipped}
	op.offer = ctrl.Offer{To: sh.ID, Generation: op.peer.generation, Params: maps.Clone(s.Demand.Params)}
	if op.offer.Params == nil {
		op.offer.Params = map[string]string{}
	}
	for _, pr := range pairs {
		op.offer.Params[pathKey(pr.local.Name(), pr.peer.Name)] = pathText(pr.local.Spec)
	}
	op.peer.params = op.offer.Params
	for i := range max(s.Demand.QPs, len(pairs)) {
		pr := pairs[i%len(pairs)]
		l, err := s.newLink(pr.local, i)
		if err != nil {
			return nil, errors.Join(pipeline.Wrap(err, pipeline.LayerResource, "publish", pipeline.AtRail(pr.local.Name())), op.peer.Close())
		}
		l.PeerRail = pr.peer.Name
		op.peer.Links = append(op.peer.Links, l)
		op.offer.Lanes = append(op.offer.Lanes, l.meta(s))
	}
	return op, nil
}

func connect(ctx context.Context, _ *pipeline.Scope, off *Offered) (_ []*Peer, err error) {
	defer off.closeOn(&err)
	return pipeline.Each(ctx, off.peers, func(ctx context.Context, op *offeredPeer) (*Peer, error) {
		err := op.connect(ctx, off.in)
		return op.peer, pipeline.Wrap(err, pipeline.LayerConnect, "connect", atNode(op.shard.ID))
	})
}

func (op *offeredPeer) connect(ctx context.Context, in DialInput) error {
	ans, err := in.Control.Fetch(ctx, op.shard.ID, op.offer.Generation)
	if err != nil {
		return err
	}
	op.peer.incarnation = ans.FromIncarnation
	if err := compareParams(op.offer.Params, ans.Params, op.shard.ID); err != nil {
		return err
	}
	byIndex := make(map[int]ctrl.LaneMeta, len(ans.Lanes))
	for _, m := range ans.Lanes {
		byIndex[m.Index] = m
	}
	for _, l := range op.peer.Links {
		m, ok := byIndex[l.Index]
		where := pipeline.Where{Shard: -1, Lane: l.Index, Rail: l.Rail.Name()}
		switch {
		case !ok:
			return pipeline.Errorf(pipeline.LayerConnect, "connect", where, "the answer of %s lacks this link", op.shard.ID)
		case m.Error != "":
			return pipeline.Errorf(pipeline.LayerConnect, "connect", where, "%s refused: %s", op.shard.ID, m.Error)
		case m.Rail != l.PeerRail || m.Fabric != l.Rail.Spec.Fabric:
			return pipeline.Errorf(pipeline.LayerConnect, "connect", where, "%s answered on rail %s (fabric %s), not on %s (fabric %s)", op.shard.ID, m.Rail, m.Fabric, l.PeerRail, l.Rail.Spec.Fabric)
		}
		if err := l.connect(in.Set, m); err != nil {
			return pipeline.Wrap(err, pipeline.LayerConnect, "connect", where)
		}
	}
	return nil
}

// Redial connects to one shard as Publish and Connect do, with nobody to undo it
// but the caller: on success he closes the peer.
func Redial(ctx context.Context, set *Set, control *ctrl.Client, shard ctrl.NodeInfo) (*Peer, error) {
	op, err := set.offer(shard)
	if err != nil {
		return nil, pipeline.Wrap(err, pipeline.LayerConnect, "publish", atNode(shard.ID))
	}
	if err := control.Publish(ctx, op.offer); err != nil {
		return nil, errors.Join(err, op.peer.Close())
	}
	if err := op.connect(ctx, DialInput{Set: set, Control: control}); err != nil {
		return nil, errors.Join(pipeline.Wrap(err, pipeline.LayerConnect, "connect", atNode(shard.ID)), op.peer.Close())
	}
	return op.peer, nil
}

func atNode(id ctrl.NodeID) pipeline.Where {
	if n, ok := id.Shard(); ok {
		return pipeline.AtShard(n)
	}
	return pipeline.Nowhere
}
