package ctrl

import (
	"context"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/railstore/railstore/ctrl/internal/pb"
)

// controlService is the registry behind gRPC: it converts, and nothing else. The
// identity is checked before, errors become statuses after each call.
type controlService struct {
	pb.UnimplementedControlServer
	s *Server
}

func member(m *pb.Member) (NodeID, uint64) { return NodeID(m.GetId()), m.GetIncarnation() }

func (c *controlService) Hello(context.Context, *pb.HelloRequest) (*pb.HelloReply, error) {
	return &pb.HelloReply{Instance: c.s.reg.Instance()}, nil
}

func (c *controlService) Join(_ context.Context, q *pb.JoinRequest) (*pb.JoinReply, error) {
	info, err := infoFromPB(q.GetInfo())
	if err != nil {
		return nil, err
	}
	state, err := stateFromPB(q.GetState())
	if err != nil {
		return nil, err
	}
	req := JoinRequest{Info: info, Incarnation: q.GetIncarnation(), State: state, Reason: q.GetReason(), Rejoin: q.GetRejoin()}
	for _, p := range q.GetPeers() {
		req.Peers = append(req.Peers, Peer{ID: NodeID(p.GetId()), Incarnation: p.GetIncarnation()})
	}
	t := c.s.reg.Timing()
	reply := &pb.JoinReply{Instance: c.s.reg.Instance(), Heartbeat: durationpb.New(t.Heartbeat), Lease: durationpb.New(t.Dead)}
	if info.Role == RoleClient {
		lease := info.Lease
		if lease == 0 {
			lease = t.ClientLease
		}
		reply.Heartbeat, reply.Lease = durationpb.New(lease/4), durationpb.New(lease)
	}
	return reply, c.s.change(func(now time.Time) ([]Notice, error) { return c.s.reg.Join(now, req) })
}

func (c *controlService) Heartbeat(_ context.Context, q *pb.HeartbeatRequest) (*pb.HeartbeatReply, error) {
	rep := Report{Lanes: lanesFromPB(q.GetLanes())}
	if q.GetHasRails() {
		rails, err := railsFromPB(q.GetRails())
		if err != nil {
			return nil, err
		}
		rep.Rails = rails
	}
	id, inc := member(q.GetMember())
	return &pb.HeartbeatReply{}, c.s.change(func(now time.Time) ([]Notice, error) { return c.s.reg.Heartbeat(now, id, inc, rep) })
}

func (c *controlService) SetState(_ context.Context, q *pb.SetStateRequest) (*pb.SetStateReply, error) {
	state, err := stateFromPB(q.GetState())
	if err != nil {
		return nil, err
	}
	id, inc := member(q.GetMember())
	return &pb.SetStateReply{}, c.s.change(func(now time.Time) ([]Notice, error) {
		return c.s.reg.SetState(now, id, inc, state, q.GetReason())
	})
}

func (c *controlService) Fetch(_ context.Context, q *pb.FetchRequest) (*pb.FetchReply, error) {
	id, inc := member(q.GetMember())
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	if _, err := c.s.reg.get(id, inc); err != nil {
		return nil, err
	}
	o, ok := c.s.reg.Fetch(NodeID(q.GetFrom()), id)
	if !ok {
		return &pb.FetchReply{}, nil
	}
	return &pb.FetchReply{Offer: offerToPB(&o)}, nil
}

func (c *controlService) Leave(_ context.Context, q *pb.LeaveRequest) (*pb.LeaveReply, error) {
	id, inc := member(q.GetMember())
	return &pb.LeaveReply{}, c.s.change(func(now time.Time) ([]Notice, error) {
		return c.s.reg.Leave(now, id, inc, q.GetReason())
	})
}

func (c *controlService) Publish(_ context.Context, q *pb.PublishRequest) (*pb.PublishReply, error) {
	o, err := offerFromPB(q.GetOffer())
	if err != nil {
		return nil, err
	}
	id, inc := member(q.GetMember())
	if id != o.From {
		return nil, invalidf("offer.from", "%s published by %s", quote(string(o.From)), quote(string(id)))
	}
	reply := &pb.PublishReply{}
	return reply, c.s.change(func(now time.Time) ([]Notice, error) {
		o, notices, err := c.s.reg.Publish(now, inc, o)
		reply.FromIncarnation, reply.ToIncarnation = o.FromIncarnation, o.ToIncarnation
		reply.Instance, reply.Rev = c.s.reg.Instance(), c.s.reg.Rev()
		return notices, err
	})
}

func (c *controlService) Watch(q *pb.WatchRequest, stream grpc.ServerStreamingServer[pb.WatchReply]) error {
	if err := c.s.checkIdentity(q); err != nil {
		return toStatus(err)
	}
	id, inc := member(q.GetMember())
	return toStatus(c.s.watch(id, inc, stream))
}

func (c *controlService) Wait(ctx context.Context, q *pb.WaitRequest) (*pb.WaitReply, error) {
	ids, err := idsFromPB(q.GetIds())
	if err != nil {
		return nil, err
	}
	most, err := durationFromPB("at_most", q.GetAtMost())
	if err != nil {
		return nil, err
	}
	var missing []Missing
	err = c.s.wait(ctx, most, func() (bool, error) {
		if q.GetGone() {
			missing = c.s.reg.StillThere(ids)
		} else {
			missing = c.s.reg.NotReady(ids)
		}
		return len(missing) == 0, nil
	})
	reply := &pb.WaitReply{}
	for _, m := range missing {
		reply.Missing = append(reply.Missing, &pb.Missing{Id: string(m.ID), State: pb.State(m.State), Reason: m.Reason})
	}
	return reply, err
}

func (c *controlService) Nodes(_ context.Context, q *pb.NodesRequest) (*pb.NodesReply, error) {
	ids, err := idsFromPB(q.GetIds())
	if err != nil {
		return nil, err
	}
	reply := &pb.NodesReply{}
	now := time.Now()
	var nodes []NodeStatus
	c.s.mu.Lock()
	if len(ids) == 0 {
		nodes = c.s.reg.Nodes(now)
	}
	for _, id := range ids {
		if n, ok := c.s.reg.Node(now, id); ok {
			nodes = append(nodes, n)
		} else {
			reply.Absent = append(reply.Absent, string(id))
		}
	}
	c.s.mu.Unlock()
	for _, n := range nodes {
		reply.Nodes = append(reply.Nodes, nodeToPB(n))
	}
	return reply, nil
}

func (c *controlService) Arrive(ctx context.Context, q *pb.ArriveRequest) (*pb.ArriveReply, error) {
	most, err := durationFromPB("at_most", q.GetAtMost())
	if err != nil {
		return nil, err
	}
	id, inc := member(q.GetMember())
	reply := &pb.ArriveReply{}
	// The arrival that completes the round is a change that wakes the others.
	arrive := func() error {
		return c.s.change(func(now time.Time) (_ []Notice, err error) {
			reply.Passed, err = c.s.reg.Arrive(now, id, inc, q.GetName(), int(q.GetParties()), q.GetTicket())
			reply.Waiting = i32(c.s.reg.Waiting(q.GetName()))
			return nil, err
		})
	}
	if err := arrive(); err != nil || reply.Passed {
		return reply, err
	}
	return reply, c.s.wait(ctx, most, func() (_ bool, err error) {
		reply.Passed, err = c.s.reg.Outcome(id, q.GetName(), q.GetTicket())
		reply.Waiting = i32(c.s.reg.Waiting(q.GetName()))
		return reply.Passed, err
	})
}

func (c *controlService) Withdraw(_ context.Context, q *pb.WithdrawRequest) (*pb.WithdrawReply, error) {
	id, inc := member(q.GetMember())
	reply := &pb.WithdrawReply{}
	return reply, c.s.change(func(now time.Time) ([]Notice, error) {
		_, err := c.s.reg.get(id, inc)
		if err == nil {
			reply.Withdrawn = c.s.reg.Withdraw(now, id, q.GetName(), q.GetTicket())
		}
		return nil, err
	})
}

func (c *controlService) Stop(_ context.Context, q *pb.StopRequest) (*pb.StopReply, error) {
	ids, err := idsFromPB(q.GetIds())
	if err != nil {
		return nil, err
	}
	return &pb.StopReply{}, c.s.change(func(now time.Time) ([]Notice, error) { return c.s.reg.Stop(now, ids, q.GetReason()) })
}

func (c *controlService) Status(context.Context, *pb.StatusRequest) (*pb.StatusReply, error) {
	now := time.Now()
	reply := &pb.StatusReply{Address: c.s.Addr(), Now: timeToPB(now)}
	c.s.mu.Lock()
	nodes := c.s.reg.Nodes(now)
	reply.Stopping, reply.Uptime = c.s.reg.stopping, durationpb.New(now.Sub(c.s.reg.started))
	c.s.mu.Unlock()
	for _, id := range c.s.reg.shards {
		reply.Shards = append(reply.Shards, i32(id))
	}
	for _, n := range nodes {
		reply.Nodes = append(reply.Nodes, nodeToPB(n))
	}
	return reply, nil
}

// catalogService is the catalog behind gRPC.
type catalogService struct {
	pb.UnimplementedCatalogServer
	s *Server
}

// placed is nil for no object, so that "none" and "empty" stay apart.
func placed(o Object, found bool) *pb.Placed {
	if !found {
		return nil
	}
	return placedToPB(o)
}

func (c *catalogService) Lookup(_ context.Context, q *pb.LookupRequest) (*pb.LookupReply, error) {
	o, found, err := c.s.catalog.Lookup(keyFromPB(q.GetKey()))
	return &pb.LookupReply{Found: placed(o, found), Shards: c.s.shardRails(&o)}, err
}

func (c *catalogService) Begin(_ context.Context, q *pb.BeginRequest) (*pb.BeginReply, error) {
	g, err := c.s.catalog.Begin(keyFromPB(q.GetKey()))
	return &pb.BeginReply{Generation: g}, err
}

func (c *catalogService) Commit(_ context.Context, q *pb.CommitRequest) (*pb.CommitReply, error) {
	o, err := placedFromPB(q.GetObject())
	if err != nil {
		return nil, err
	}
	old, replaced, err := c.s.catalog.Commit(o, q.GetExpect())
	return &pb.CommitReply{Old: placed(old, replaced)}, err
}

func (c *catalogService) Delete(_ context.Context, q *pb.DeleteRequest) (*pb.DeleteReply, error) {
	old, found, err := c.s.catalog.Delete(keyFromPB(q.GetKey()), q.GetGeneration())
	return &pb.DeleteReply{Old: placed(old, found)}, err
}

func (c *catalogService) List(_ context.Context, q *pb.ListRequest) (*pb.ListReply, error) {
	objects, more, err := c.s.catalog.List(ListQuery{Namespace: q.GetNamespace(), Prefix: q.GetPrefix(), After: keyFromPB(q.GetAfter()), Limit: int(q.GetLimit()), Over: q.GetOver()})
	reply := &pb.ListReply{More: more}
	for _, o := range objects {
		reply.Objects = append(reply.Objects, objectToPB(o))
	}
	return reply, err
}

func (c *catalogService) Garbage(_ context.Context, q *pb.GarbageRequest) (*pb.GarbageReply, error) {
	o, found, err := c.s.catalog.Garbage(keyFromPB(q.GetAfter()), q.GetAfterGeneration())
	return &pb.GarbageReply{Object: placed(o, found)}, err
}

func (c *catalogService) Forget(_ context.Context, q *pb.ForgetRequest) (*pb.ForgetReply, error) {
	return &pb.ForgetReply{}, c.s.catalog.Forget(keyFromPB(q.GetKey()), q.GetGeneration())
}

func (c *catalogService) ForgetShard(_ context.Context, q *pb.ForgetShardRequest) (*pb.ForgetShardReply, error) {
	return &pb.ForgetShardReply{}, c.s.catalog.ForgetShard(keyFromPB(q.GetKey()), q.GetGeneration(), int(q.GetShard()))
}

func (c *catalogService) Expire(_ context.Context, q *pb.ExpireRequest) (*pb.ExpireReply, error) {
	n, more, err := c.s.catalog.Expire(int(q.GetMost()))
	return &pb.ExpireReply{Expired: i32(n), More: more}, err
}

func (c *catalogService) LookupMany(_ context.Context, q *pb.LookupManyRequest) (*pb.LookupManyReply, error) {
	if n := len(q.GetKeys()); n > MaxLookups {
		return nil, invalidf("keys", "%d, want 1 to %d", n, MaxLookups)
	}
	keys := make([]ObjectKey, len(q.GetKeys()))
	for i, k := range q.GetKeys() {
		keys[i] = keyFromPB(k)
	}
	found, err := c.s.catalog.LookupMany(keys)
	reply := &pb.LookupManyReply{}
	for i := range found {
		r := foundToPB(found[i])
		if r.Found != nil {
			r.Shards = c.s.shardRails(&found[i])
		}
		reply.Replies = append(reply.Replies, r)
	}
	return reply, err
}
