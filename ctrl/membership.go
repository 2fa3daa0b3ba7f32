package ctrl

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/railstore/railstore/ctrl/internal/pb"
	"github.com/railstore/railstore/pipeline"
)

// membership is the part of a client in the deployment: from Join to Leave, over restarts of the
// control plane and lost leases.
type membership struct {
	c       *Client
	info    NodeInfo
	ctx     context.Context // ends with the membership
	cancel  context.CancelCauseFunc
	wg      sync.WaitGroup
	refused sync.Once     // says once that the report is not valid
	joinMu  chan struct{} // held while joining again; a channel, so that a wait for it can be given up

	mu        sync.Mutex
	inc       uint64
	joins     uint64 // how often it joined
	instance  uint64 // of the registry that it joined
	beat      time.Duration
	state     State
	reason    string
	report    func() Report
	published map[NodeID]Offer // pinned to the incarnation that took them
	pending   map[NodeID]bool  // of those, what a restarted control plane has not got yet
	view      *view
	changed   chan struct{} // closed and replaced when the view or fatal changes
	fatal     error         // why the membership cannot go on
}

// Join makes this process a member and keeps it one, with a goroutine of its own,
// until Leave or Close. A process of the same id that joined before is replaced.
func (c *Client) Join(ctx context.Context, info NodeInfo) error {
	if err := info.validate(); err != nil {
		return c.failAs(string(info.ID), "join", pipeline.Nowhere, err)
	}
	info.Rails = slices.Clone(info.Rails)
	s := &membership{c: c, info: info, joinMu: make(chan struct{}, 1), inc: rand.Uint64() | 1, state: StateStarting,
		published: map[NodeID]Offer{}, pending: map[NodeID]bool{}, view: newView(), changed: make(chan struct{}), report: func() Report { return Report{} }}
	reply, err := call(ctx, c, "join", where(info.ID), func(ctx context.Context) (*pb.JoinReply, error) {
		return c.ctl.Join(ctx, s.joinRequest(false, nil))
	})
	if err != nil {
		return err
	}
	s.joined(reply)
	s.ctx, s.cancel = context.WithCancelCause(context.Background())
	c.mu.Lock()
	switch {
	case c.closed:
		err = ErrClosed
	case c.membership != nil:
		err = fmt.Errorf("joined already as %s", c.membership.info.ID)
	default:
		c.membership, c.name = s, string(info.ID)
		s.wg.Add(2)
		go s.runHeartbeat()
		go s.runWatch()
	}
	c.mu.Unlock()
	if err != nil {
		s.cancel(err)
		return c.failAs(string(info.ID), "join", where(info.ID), err)
	}
	return nil
}

func (s *membership) joinRequest(rejoin bool, peers []Peer) *pb.JoinRequest {
	q := &pb.JoinRequest{Identity: s.c.identity(), Info: infoToPB(s.info), Incarnation: s.inc, State: pb.State(s.state),
		Reason: s.reason, Rejoin: rejoin}
	for _, p := range peers {
		q.Peers = append(q.Peers, &pb.Member{Id: string(p.ID), Incarnation: p.Incarnation})
	}
	return q
}

func (s *membership) joined(r *pb.JoinReply) {
	if s.joins++; s.joins > 1 {
		s.c.count.Rejoins.Add(1)
	}
	s.instance = r.GetInstance()
	s.beat = max(r.GetHeartbeat().AsDuration(), 10*time.Millisecond)
}

// stop ends the goroutines and whoever waits on the membership.
func (s *membership) stop(cause error) {
	s.cancel(cause)
	s.fail(cause)
	s.wg.Wait()
}

// fail makes the membership end for its users.
func (s *membership) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fatal == nil {
		s.fatal = err
		s.wake()
	}
}

// wake wakes whoever waits for the view. s.mu is held.
func (s *membership) wake() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// me is the caller of every call of a member.
func (s *membership) me() (member *pb.Member, joins uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return &pb.Member{Id: string(s.info.ID), Incarnation: s.inc}, s.joins
}

// SetState says that the node is starting, serving or draining.
func (c *Client) SetState(ctx context.Context, state State, reason string) error {
	const op = "set_state"
	s, err := c.member()
	if err == nil && state != StateStarting && state != StateServing && state != StateDraining {
		err = invalidf("state", "a node does not say of itself that it is %s", state)
	}
	if err != nil {
		return c.fail(op, pipeline.Nowhere, err)
	}
	reason = clip(reason, MaxReasonBytes)
	s.mu.Lock()
	s.state, s.reason = state, reason // before the call: whoever joins again says this
	s.mu.Unlock()
	_, err = memberCall(ctx, s, op, where(s.info.ID), func(ctx context.Context, m *pb.Member) (*pb.SetStateReply, error) {
		return c.ctl.SetState(ctx, &pb.SetStateRequest{Identity: c.identity(), Member: m, State: pb.State(state), Reason: reason})
	})
	return err
}

// SetReport gives the function that each heartbeat asks for the node's lanes and
// rails. It must not block.
func (c *Client) SetReport(report func() Report) error {
	s, err := c.member()
	if err != nil {
		return c.fail("set_report", pipeline.Nowhere, err)
	}
	if report == nil {
		report = func() Report { return Report{} }
	}
	s.mu.Lock()
	s.report = report
	s.mu.Unlock()
	return nil
}

// leavePatience is how long Leave tries to reach a control plane that is not there.
// Whoever leaves has nothing to wait for, and the lease does the same a little later.
const leavePatience = time.Second

// Leave ends the membership: peers are told at once. When the control plane cannot
// be reached the lease runs out instead, and Leave soon says so.
func (c *Client) Leave(ctx context.Context, reason string) error {
	const op = "leave"
	c.mu.Lock()
	s := c.membership
	c.mu.Unlock()
	if s == nil {
		return nil
	}
	s.stop(ErrNotJoined)
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.membership == s {
			c.membership = nil
		}
	}()
	m, _ := s.me()
	_, err := patientCall(ctx, c, leavePatience, op, where(s.info.ID), func(ctx context.Context) (*pb.LeaveReply, error) {
		return c.ctl.Leave(ctx, &pb.LeaveRequest{Identity: c.identity(), Member: m, Reason: clip(reason, MaxReasonBytes)})
	})
	var replaced *ReplacedError
	if errors.Is(err, ErrLeaseLost) || errors.As(err, &replaced) {
		return nil // it is not a member, which was the aim
	}
	return err
}

// memberCall makes a call as a member. When the control plane has restarted it
// joins again first; when the lease was lost the call fails, since what it was
// about is gone.
func memberCall[R any](ctx context.Context, s *membership, op string, w pipeline.Where, f func(ctx context.Context, m *pb.Member) (R, error)) (R, error) {
	for {
		m, joins := s.me()
		reply, err := call(ctx, s.c, op, w, func(ctx context.Context) (R, error) { return f(ctx, m) })
		err = s.outlived(ctx, m, err)
		if err == nil || !errors.Is(err, ErrLeaseLost) {
			return reply, s.note(err)
		}
		if e := s.rejoin(ctx, joins); e != nil {
			return reply, s.c.fail(op, w, e)
		}
		if now, _ := s.me(); now.Incarnation != m.Incarnation {
			return reply, s.c.fail(op, w, err)
		}
	}
}

// outlived turns the error of a call of this node's own earlier life, which by now
// has been replaced by its next one, into a lost lease. That of a life which another
// process took is as it was.
func (s *membership) outlived(ctx context.Context, m *pb.Member, err error) error {
	var replaced *ReplacedError
	if !errors.As(err, &replaced) {
		return err
	}
	// The control plane may know the next life before this end does.
	if e := s.lockJoin(ctx); e != nil {
		return errors.Join(ErrLeaseLost, e)
	}
	s.unlockJoin()
	if now, _ := s.me(); now.Incarnation != m.Incarnation {
		return fmt.Errorf("%w: it was joined again meanwhile", ErrLeaseLost)
	}
	return err
}

// note ends the membership when an error says that it cannot go on.
func (s *membership) note(err error) error {
	var replaced *ReplacedError
	var identity *IdentityError
	if errors.Is(err, ErrStopping) {
		s.mu.Lock()
		s.view.stop = cmp.Or(s.view.stop, ErrStopping.Error())
		s.mu.Unlock()
	}
	if errors.As(err, &replaced) || errors.As(err, &identity) || errors.Is(err, ErrStopping) {
		s.fail(err)
	}
	return err
}

func (s *membership) ended() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.fatal
}

// rejoin joins again after the control plane said that it does not know the node.
// joins is the caller's count of joins: if it is no longer right, somebody else
// has done it.
func (s *membership) rejoin(ctx context.Context, joins uint64) error {
	if err := s.lockJoin(ctx); err != nil {
		return err
	}
	defer s.unlockJoin()
	s.mu.Lock()
	done, instance := s.joins != joins, s.instance
	s.mu.Unlock()
	if done {
		return nil
	}
	hello, err := call(ctx, s.c, "join", where(s.info.ID), func(ctx context.Context) (*pb.HelloReply, error) {
		return s.c.ctl.Hello(ctx, &pb.HelloRequest{Identity: s.c.identity()})
	})
	if err != nil {
		return s.note(err)
	}
	// A registry that is the one we joined has ended our lease and told our
	// peers. Another one has never heard of us.
	lost := hello.GetInstance() == instance
	if !lost {
		if err = s.joinAgain(ctx, false); errors.Is(err, ErrLeaseLost) {
			lost = true // peers waited for us and were told that we did not come
		}
	}
	if lost {
		err = s.joinAgain(ctx, true)
	}
	if err != nil {
		return s.note(err)
	}
	// What cannot be published now stays pending: it is tried again after the
	// next heartbeat, or by the next join if the control plane went once more.
	_ = s.note(s.publishPending(ctx))
	return nil
}

func (s *membership) lockJoin(ctx context.Context) error {
	select {
	case s.joinMu <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-s.ctx.Done():
		return context.Cause(s.ctx)
	}
}

func (s *membership) unlockJoin() { <-s.joinMu }

func (s *membership) joinAgain(ctx context.Context, lost bool) error {
	s.mu.Lock()
	r := Rejoined{Lost: lost, Reason: "the control plane had restarted"}
	peers := s.view.claims()
	inc := s.inc
	if lost {
		r.Reason = "the lease had ended"
		peers, inc = nil, rand.Uint64()|1
	}
	q := s.joinRequest(true, peers)
	q.Incarnation = inc
	s.mu.Unlock()
	reply, err := call(ctx, s.c, "join", where(s.info.ID), func(ctx context.Context) (*pb.JoinReply, error) {
		return s.c.ctl.Join(ctx, q)
	})
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.inc = inc
	s.joined(reply)
	s.view.rejoined(r)
	if lost {
		clear(s.published)
	}
	clear(s.pending)
	for id := range s.published {
		s.pending[id] = true
	}
	s.wake()
	s.mu.Unlock()
	event := "control_rejoined"
	if lost {
		event = "lease_lost"
	}
	s.emit(event, r.Reason)
	return nil
}

// publishPending gives a restarted control plane the offers that the one before
// had. It is called with the join lock; what fails stays pending.
func (s *membership) publishPending(ctx context.Context) error {
	for {
		s.mu.Lock()
		var o Offer
		for id := range s.pending {
			if have, ok := s.published[id]; ok {
				o = have
				break
			}
			delete(s.pending, id)
		}
		s.mu.Unlock()
		if o.To == "" {
			return nil
		}
		if err := s.publishAgain(ctx, o); err != nil {
			return err
		}
	}
}

func (s *membership) publishAgain(ctx context.Context, o Offer) error {
	m, _ := s.me()
	reply, err := call(ctx, s.c, "publish", where(o.To), func(ctx context.Context) (*pb.PublishReply, error) {
		return s.c.ctl.Publish(ctx, &pb.PublishRequest{Identity: s.c.identity(), Member: m, Offer: offerToPB(&o)})
	})
	var absent *AbsentError
	var stale *StaleOfferError
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case err == nil:
		if s.view.link(o.To, reply.GetToIncarnation(), reply.GetRev()) != nil {
			delete(s.published, o.To)
		}
	case errors.As(err, &absent):
		delete(s.published, o.To)
		s.view.drop(PeerGone{ID: o.To, Incarnation: o.ToIncarnation, State: StateStopped, Reason: absent.Error()})
	case errors.As(err, &stale):
		// A younger one was published meanwhile.
	default:
		return err
	}
	delete(s.pending, o.To)
	s.wake()
	return nil
}

func (s *membership) emit(event, reason string) {
	if s.c.opts.Sink == nil {
		return
	}
	e := pipeline.Event{Event: event, Time: time.Now(), Reason: reason, Fields: map[string]any{"node": s.info.ID, "control": s.c.addr}}
	if n, ok := s.info.ID.Shard(); ok {
		e.Shard = &n
	}
	s.c.opts.Sink(e)
}

// runHeartbeat keeps the lease.
func (s *membership) runHeartbeat() {
	defer s.wg.Done()
	lost := false // contact
	for {
		s.mu.Lock()
		wait := s.beat
		s.mu.Unlock()
		t := time.NewTimer(wait)
		select {
		case <-s.ctx.Done():
			t.Stop()
			return
		case <-t.C:
		}
		joins, err := s.heartbeat(max(wait, time.Second))
		s.c.count.heartbeat(err)
		if err == nil {
			s.catchUp()
		}
		switch {
		case err == nil && lost:
			lost = false
			s.emit("control_restored", "")
		case err == nil, s.ctx.Err() != nil:
		case errors.Is(err, ErrLeaseLost):
			ctx, cancel := context.WithTimeout(s.ctx, s.c.opts.Timeout)
			_ = s.rejoin(ctx, joins) // what cannot be helped by trying again is in s.fatal
			cancel()
		case !lost:
			lost = true
			s.emit("control_lost", err.Error())
			s.c.conn.ResetConnectBackoff()
		default:
			s.c.conn.ResetConnectBackoff()
		}
		if s.ended() != nil {
			return
		}
	}
}

// catchUp publishes what joining again could not.
func (s *membership) catchUp() {
	s.mu.Lock()
	n := len(s.pending)
	s.mu.Unlock()
	if n == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(s.ctx, s.c.opts.Timeout)
	defer cancel()
	if s.lockJoin(ctx) == nil {
		defer s.unlockJoin()
		_ = s.publishPending(ctx) // the next heartbeat tries again
	}
}

func (s *membership) heartbeat(timeout time.Duration) (joins uint64, err error) {
	ctx, cancel := context.WithTimeout(s.ctx, timeout)
	defer cancel()
	s.mu.Lock()
	report := s.report
	s.mu.Unlock()
	r := report()
	if err := r.validate(); err != nil {
		// The lease must not depend on a slip in the report.
		s.refused.Do(func() { s.emit("report_refused", err.Error()) })
		r = Report{}
	}
	m, joins := s.me()
	q := &pb.HeartbeatRequest{Identity: s.c.identity(), Member: m, Lanes: lanesToPB(r.Lanes), HasRails: r.Rails != nil}
	if r.Rails != nil {
		q.Rails = railsToPB(r.Rails)
	}
	_, err = s.c.ctl.Heartbeat(ctx, q)
	if err != nil {
		err = s.note(s.outlived(ctx, m, fromStatus(err)))
	}
	return joins, err
}
