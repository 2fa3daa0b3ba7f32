package ctrl

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/railstore/railstore/ctrl/internal/pb"
	"github.com/railstore/railstore/pipeline"
)

// poll is how long one call waits at the control plane before the client asks
// again; it keeps what is known for the error fresh.
const poll = 2 * time.Second

// pollTime is shorter when ctx ends soon: the last answer must come before the
// end, else it cannot be told.
func pollTime(ctx context.Context) *durationpb.Duration {
	most := poll
	if d, ok := ctx.Deadline(); ok {
		most = min(most, max(time.Until(d)*3/4, 5*time.Millisecond))
	}
	return durationpb.New(most)
}

// WaitReady waits until the nodes, all shards when none is named, are serving.
// When ctx ends first the error is a *WaitError that names who is missing.
func (c *Client) WaitReady(ctx context.Context, ids ...NodeID) error {
	return c.waitNodes(ctx, "wait_ready", "nodes to serve", false, ids)
}

// WaitGone waits until the nodes, all shards when none is named, have left or are
// dead.
func (c *Client) WaitGone(ctx context.Context, ids ...NodeID) error {
	return c.waitNodes(ctx, "wait_gone", "nodes to leave", true, ids)
}

func (c *Client) waitNodes(ctx context.Context, op, what string, gone bool, ids []NodeID) error {
	w := pipeline.Nowhere
	if len(ids) == 1 {
		w = where(ids[0])
	}
	start := time.Now()
	e := &WaitError{For: what}
	r := newRetry()
	for {
		reply, err := c.ctl.Wait(ctx, &pb.WaitRequest{Identity: c.identity(), Ids: idsToPB(ids), Gone: gone, AtMost: pollTime(ctx)})
		switch err = fromStatus(err); {
		case err == nil:
			e.Missing, e.Last = e.Missing[:0], nil
			for _, m := range reply.GetMissing() {
				s, _ := stateFromPB(m.GetState())
				e.Missing = append(e.Missing, Missing{ID: NodeID(m.GetId()), State: s, Reason: m.GetReason()})
			}
			if len(e.Missing) == 0 {
				return nil
			}
			r.delay = backoffFirst
		case ended(ctx, err) != nil:
		case unreachable(err) && !c.opts.FailFast && !c.isClosed():
			e.Last = err
			if r.pause(ctx) {
				c.conn.ResetConnectBackoff()
			}
		default:
			return c.fail(op, w, err)
		}
		if cause := ended(ctx, err); cause != nil {
			e.Waited, e.Err = time.Since(start), cause
			return c.fail(op, w, e)
		}
	}
}

// Health gives the verdict on a node. It never fails: when the control plane does
// not answer in time (ClientOptions.Probe without a deadline) nothing is known.
func (c *Client) Health(ctx context.Context, id NodeID) Health {
	return c.Verdicts(ctx, id)[0]
}

// Verdicts is Health for several nodes with one question, in their order.
func (c *Client) Verdicts(ctx context.Context, ids ...NodeID) []Health {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.opts.Probe)
		defer cancel()
	}
	out := make([]Health, len(ids))
	for i, id := range ids {
		out[i] = Health{ID: id, Reason: "it has not joined"}
	}
	reply, err := c.ctl.Nodes(ctx, &pb.NodesRequest{Identity: c.identity(), Ids: idsToPB(ids)})
	for i := range out {
		if err != nil {
			out[i].Reason = fmt.Sprintf("control plane %s: %v", c.addr, fromStatus(err))
			continue
		}
		for _, p := range reply.GetNodes() {
			if p.GetInfo().GetId() == string(out[i].ID) {
				out[i] = healthOf(out[i].ID, p)
			}
		}
	}
	for i := range out {
		c.count.verdict(out[i])
	}
	return out
}

func healthOf(id NodeID, p *pb.Node) Health {
	n, err := nodeFromPB(p)
	switch {
	case err != nil:
		return Health{ID: id, Reason: err.Error()}
	case n.State == StateUnknown:
		return Health{ID: id, Reason: n.Reason}
	}
	return Health{ID: id, Known: true, State: n.State, Idle: n.Idle, Reason: n.Reason}
}

// Node gives what is known of one node: what it said when it joined, its state and
// its last report. A node that is not there is an *AbsentError.
func (c *Client) Node(ctx context.Context, id NodeID) (NodeStatus, error) {
	const op = "node"
	nodes, err := c.nodes(ctx, op, where(id), id)
	if err != nil {
		return NodeStatus{}, err
	}
	if len(nodes) == 0 {
		return NodeStatus{}, c.fail(op, where(id), &AbsentError{ID: id, Reason: "it has not joined"})
	}
	return nodes[0], nil
}

// Nodes gives every node.
func (c *Client) Nodes(ctx context.Context) ([]NodeStatus, error) {
	return c.nodes(ctx, "nodes", pipeline.Nowhere)
}

func (c *Client) nodes(ctx context.Context, op string, w pipeline.Where, ids ...NodeID) ([]NodeStatus, error) {
	reply, err := call(ctx, c, op, w, func(ctx context.Context) (*pb.NodesReply, error) {
		return c.ctl.Nodes(ctx, &pb.NodesRequest{Identity: c.identity(), Ids: idsToPB(ids)})
	})
	if err != nil {
		return nil, err
	}
	nodes, err := nodesFromPB(reply.GetNodes())
	return nodes, c.fail(op, w, err)
}

func nodesFromPB(nodes []*pb.Node) ([]NodeStatus, error) {
	out := make([]NodeStatus, len(nodes))
	for i, n := range nodes {
		var err error
		if out[i], err = nodeFromPB(n); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// Status is the state of the deployment as rs status prints it.
func (c *Client) Status(ctx context.Context) (Status, error) {
	const op = "status"
	reply, err := call(ctx, c, op, pipeline.Nowhere, func(ctx context.Context) (*pb.StatusReply, error) {
		return c.ctl.Status(ctx, &pb.StatusRequest{Identity: c.identity()})
	})
	if err != nil {
		return Status{}, err
	}
	nodes, err := nodesFromPB(reply.GetNodes())
	if err != nil {
		return Status{}, c.fail(op, pipeline.Nowhere, err)
	}
	shards := make([]int, len(reply.GetShards()))
	for i, n := range reply.GetShards() {
		shards[i] = int(n)
	}
	// The control plane's clock, since the times of joining are on it.
	st := statusOf(reply.GetNow().AsTime(), shards, nodes, reply.GetUptime().AsDuration(), reply.GetStopping())
	st.Deployment, st.Digest, st.Control.Address = c.id.Deployment, c.id.Digest, c.addr
	return st, nil
}

// Stop asks the nodes, all of them when none is named, to drain and leave. It does
// not wait; see WaitGone.
func (c *Client) Stop(ctx context.Context, reason string, ids ...NodeID) error {
	_, err := call(ctx, c, "stop", pipeline.Nowhere, func(ctx context.Context) (*pb.StopReply, error) {
		return c.ctl.Stop(ctx, &pb.StopRequest{Identity: c.identity(), Ids: idsToPB(ids), Reason: clip(reason, MaxReasonBytes)})
	})
	return err
}

// Barrier waits until n members have arrived at the barrier of that name. It fails
// for all that wait when one of them leaves or dies.
func (c *Client) Barrier(ctx context.Context, name string, n int) error {
	const op = "barrier"
	s, err := c.member()
	if err != nil {
		return c.fail(op, pipeline.Nowhere, err)
	}
	start := time.Now()
	ticket := rand.Uint64() | 1
	waiting := int32(0)
	for {
		reply, err := memberCall(ctx, s, op, pipeline.Nowhere, func(ctx context.Context, m *pb.Member) (*pb.ArriveReply, error) {
			return c.ctl.Arrive(ctx, &pb.ArriveRequest{Identity: c.identity(), Member: m, Name: name, Parties: i32(n), Ticket: ticket,
				AtMost: pollTime(ctx)})
		})
		switch {
		case err == nil && reply.GetPassed():
			return nil
		case err == nil:
			waiting = reply.GetWaiting()
		case ended(ctx, err) == nil:
			return err
		}
		cause := ended(ctx, err)
		if cause == nil {
			continue
		}
		if c.withdraw(s, name, ticket) {
			return c.fail(op, pipeline.Nowhere, &WaitError{For: fmt.Sprintf("barrier %q: %d of %d have arrived", name, waiting, n),
				Waited: time.Since(start), Err: cause})
		}
		return nil // it was passed at the last moment
	}
}

// withdraw takes an arrival back after the caller has given up. It reports false
// when the barrier was passed already.
func (c *Client) withdraw(s *membership, name string, ticket uint64) bool {
	ctx, cancel := context.WithTimeout(s.ctx, c.opts.Probe)
	defer cancel()
	m, _ := s.me()
	reply, err := c.ctl.Withdraw(ctx, &pb.WithdrawRequest{Identity: c.identity(), Member: m, Name: name, Ticket: ticket})
	return err != nil || reply.GetWithdrawn()
}
