package ctrl

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"time"

	"github.com/railstore/railstore/ctrl/internal/pb"
	"github.com/railstore/railstore/pipeline"
)

// Publish makes an offer of this node known to its receiver. From may be left
// empty. The receiver must have joined: WaitReady first. Publishing again after
// PeerGone takes a new offer; a generation is never published twice with different
// content.
func (c *Client) Publish(ctx context.Context, o Offer) error {
	const op = "publish"
	s, err := c.member()
	if err != nil {
		return c.fail(op, where(o.To), err)
	}
	if o.From == "" {
		o.From = s.info.ID
	}
	o.Lanes, o.Params = slices.Clone(o.Lanes), maps.Clone(o.Params)
	for i := range o.Lanes {
		o.Lanes[i].Error = clip(o.Lanes[i].Error, MaxReasonBytes)
	}
	if err := o.validate(); err != nil {
		return c.fail(op, where(o.To), err)
	}
	for {
		reply, err := memberCall(ctx, s, op, where(o.To), func(ctx context.Context, m *pb.Member) (*pb.PublishReply, error) {
			return c.ctl.Publish(ctx, &pb.PublishRequest{Identity: c.identity(), Member: m, Offer: offerToPB(&o)})
		})
		if err != nil {
			return err
		}
		s.mu.Lock()
		if s.inc != reply.GetFromIncarnation() {
			s.mu.Unlock()
			return c.fail(op, where(o.To), ErrLeaseLost)
		}
		if s.instance != reply.GetInstance() {
			// The control plane restarted between the reply and now, and
			// this offer was not among those that were published again.
			s.mu.Unlock()
			o.ToIncarnation = reply.GetToIncarnation()
			continue
		}
		err = s.view.link(o.To, reply.GetToIncarnation(), reply.GetRev())
		if err == nil {
			o.FromIncarnation, o.ToIncarnation = reply.GetFromIncarnation(), reply.GetToIncarnation()
			s.published[o.To] = o
		}
		s.wake()
		s.mu.Unlock()
		return c.fail(op, where(o.To), err)
	}
}

// Fetch gives the newest offer of a peer to this node, once its generation is at
// least min. It blocks until then. It fails at once when the peer is gone that
// this node's own offer went to, since that one will not answer.
func (c *Client) Fetch(ctx context.Context, from NodeID, min uint64) (Offer, error) {
	const op = "fetch"
	s, err := c.member()
	if err != nil {
		return Offer{}, c.fail(op, where(from), err)
	}
	start := time.Now()
	var linked uint64 // the incarnation that the wait is for
	for {
		s.mu.Lock()
		e := s.view.peers[from]
		if linked == 0 && e != nil {
			linked = e.Incarnation
		}
		gone := linked != 0 && (e == nil || e.Incarnation != linked)
		end, known := s.view.ended(from, linked)
		if linked == 0 && e == nil {
			gone = known
		}
		var offer *Offer
		missing := Missing{ID: from, Reason: "no offer from it"}
		if e != nil {
			offer, missing.State = e.offer, e.State
			if offer != nil {
				missing.Reason = fmt.Sprintf("its offer has generation %d", offer.Generation)
			}
		}
		fatal, changed := s.fatal, s.changed
		s.mu.Unlock()
		switch {
		case offer != nil && offer.Generation >= min && !gone:
			return *offer, nil
		case fatal != nil:
			return Offer{}, c.fail(op, where(from), fatal)
		case gone:
			return Offer{}, c.fail(op, where(from), &AbsentError{ID: from, State: end.State, Reason: end.Reason})
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return Offer{}, c.fail(op, where(from), &WaitError{For: fmt.Sprintf("an offer of generation %d from %s", min, from),
				Waited: time.Since(start), Missing: []Missing{missing}, Err: ctx.Err()})
		}
	}
}

// Latest asks the control plane for the newest offer of a peer to this node, past
// the stream that Watch and Fetch live on. It reports false when there is none.
func (c *Client) Latest(ctx context.Context, from NodeID) (Offer, bool, error) {
	const op = "latest"
	s, err := c.member()
	if err != nil {
		return Offer{}, false, c.fail(op, where(from), err)
	}
	reply, err := memberCall(ctx, s, op, where(from), func(ctx context.Context, m *pb.Member) (*pb.FetchReply, error) {
		return c.ctl.Fetch(ctx, &pb.FetchRequest{Identity: c.identity(), Member: m, From: string(from)})
	})
	if err != nil || reply.GetOffer() == nil {
		return Offer{}, false, err
	}
	o, err := offerFromPB(reply.GetOffer())
	return o, err == nil, c.fail(op, where(from), err)
}

// Watch gives the events of this node until ctx ends, the client leaves, or the
// membership cannot go on, which the last pair says. It begins with what is known
// already: every offer that is there is reported. Events that are overtaken while
// the caller is busy are left out: of two offers of a peer the newer is reported,
// of a peer that came and went nothing is.
func (c *Client) Watch(ctx context.Context) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		s, err := c.member()
		if err != nil {
			yield(nil, c.fail("watch", pipeline.Nowhere, err))
			return
		}
		s.mu.Lock()
		cur := newCursor(s.view)
		s.mu.Unlock()
		for {
			s.mu.Lock()
			events := cur.next(s.view)
			fatal, changed := s.fatal, s.changed
			s.mu.Unlock()
			for _, e := range events {
				if ctx.Err() != nil || !yield(e, nil) {
					return
				}
			}
			if fatal != nil {
				if !errors.Is(fatal, ErrClosed) && !errors.Is(fatal, ErrNotJoined) {
					yield(nil, c.failAs(string(s.info.ID), "watch", pipeline.Nowhere, fatal))
				}
				return
			}
			select {
			case <-changed:
			case <-ctx.Done():
				return
			}
		}
	}
}

// runWatch keeps the view up to date.
func (s *membership) runWatch() {
	defer s.wg.Done()
	r := newRetry()
	for s.ctx.Err() == nil && s.ended() == nil {
		m, joins := s.me()
		synced, err := s.stream(m, joins)
		if s.ctx.Err() != nil {
			return
		}
		if synced {
			r.delay = backoffFirst
		}
		if err = s.outlived(s.ctx, m, err); errors.Is(s.note(err), ErrLeaseLost) {
			ctx, cancel := context.WithTimeout(s.ctx, s.c.opts.Timeout)
			err = s.rejoin(ctx, joins)
			cancel()
			if err == nil {
				continue
			}
		}
		if !r.pause(s.ctx) {
			return
		}
		s.c.conn.ResetConnectBackoff()
	}
}

// stream follows one Watch stream until it breaks.
func (s *membership) stream(m *pb.Member, joins uint64) (synced bool, err error) {
	ctx, cancel := context.WithCancel(s.ctx)
	defer cancel() // ends the stream
	st, err := s.c.ctl.Watch(ctx, &pb.WatchRequest{Identity: s.c.identity(), Member: m})
	if err != nil {
		return false, fromStatus(err)
	}
	var snap Snapshot
	for {
		msg, err := st.Recv()
		if err != nil {
			return synced, fromStatus(err)
		}
		apply, last, err := changeOf(msg, &snap)
		if err != nil {
			return synced, err
		}
		if apply == nil {
			continue
		}
		s.mu.Lock()
		if s.joins != joins {
			s.mu.Unlock() // joined again meanwhile: this stream tells of another registry or life
			return synced, nil
		}
		apply(s.view)
		for id, o := range s.published {
			if e := s.view.peers[id]; e == nil || e.Incarnation != o.ToIncarnation {
				delete(s.published, id)
			}
		}
		s.wake()
		s.mu.Unlock()
		synced = synced || last
	}
}

// changeOf turns a message into a change of the view. Parts of a sync are put
// together in snap; only the last gives a change.
func changeOf(msg *pb.WatchReply, snap *Snapshot) (apply func(*view), last bool, err error) {
	switch m := msg.GetOf().(type) {
	case *pb.WatchReply_Sync_:
		for _, p := range m.Sync.GetPeers() {
			v, err := viewFromPB(p)
			if err != nil {
				return nil, false, err
			}
			snap.Peers = append(snap.Peers, v)
		}
		for _, p := range m.Sync.GetOffers() {
			o, err := offerFromPB(p)
			if err != nil {
				return nil, false, err
			}
			snap.Offers = append(snap.Offers, &o)
		}
		if m.Sync.GetStop() != "" {
			snap.Stop = m.Sync.GetStop()
		}
		if !m.Sync.GetLast() {
			return nil, false, nil
		}
		whole := *snap
		whole.Rev = m.Sync.GetRev()
		*snap = Snapshot{}
		return func(v *view) { v.sync(whole) }, true, nil
	case *pb.WatchReply_Offer:
		o, err := offerFromPB(m.Offer)
		if err != nil {
			return nil, false, err
		}
		return func(v *view) { v.offered(o) }, false, nil
	case *pb.WatchReply_Peer:
		p, err := viewFromPB(m.Peer)
		if err != nil {
			return nil, false, err
		}
		return func(v *view) { v.setState(p) }, false, nil
	case *pb.WatchReply_Gone:
		p, err := viewFromPB(m.Gone)
		if err != nil {
			return nil, false, err
		}
		g := PeerGone(p)
		return func(v *view) { v.drop(g) }, false, nil
	case *pb.WatchReply_Stop:
		return func(v *view) { v.stop = m.Stop }, false, nil
	}
	return nil, false, nil // of a newer control plane
}
