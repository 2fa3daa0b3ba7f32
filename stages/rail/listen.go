package rail

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"

	"github.com/railstore/railstore/ctrl"
	"github.com/railstore/railstore/pipeline"
)

// Handler is what a shard does with its clients.
type Handler interface {
	// Accept takes a peer whose QPs are connected; the peer learns of them after
	// it returns. On an error the peer is refused.
	Accept(p *Peer) error
	// Drop stops using a peer and returns when nothing does; then its QPs are
	// destroyed.
	Drop(p *Peer, reason string)
}

// Listener connects every client that offers links to this shard.
type Listener struct {
	set     *Set
	control *ctrl.Client
	handler Handler
	ctx     context.Context

	mu    sync.Mutex
	peers map[ctrl.NodeID]*accepted
	wg    sync.WaitGroup // drops under way
	done  chan struct{}
	stop  chan struct{}
	err   error
	halt  context.CancelFunc
}

type accepted struct {
	peer        *Peer
	generation  uint64
	incarnation uint64 // of the client
}

// Listen starts to take offers. Close ends it, drops every peer and waits.
func Listen(ctx context.Context, set *Set, control *ctrl.Client, h Handler) *Listener {
	ctx, halt := context.WithCancel(context.WithoutCancel(ctx))
	l := &Listener{set: set, control: control, handler: h, ctx: ctx, halt: halt,
		peers: map[ctrl.NodeID]*accepted{}, done: make(chan struct{}), stop: make(chan struct{})}
	go l.run()
	return l
}

// Stopped is closed when the control plane tells this node to stop.
func (l *Listener) Stopped() <-chan struct{} { return l.stop }

// Done is closed when the listener has ended; Err says why.
func (l *Listener) Done() <-chan struct{} { return l.done }

// Err is the reason of the end, nil after Close.
func (l *Listener) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

func (l *Listener) run() {
	defer close(l.done)
	stopped := false
	for e, err := range l.control.Watch(l.ctx) {
		if err != nil {
			if l.ctx.Err() == nil {
				l.mu.Lock()
				l.err = err
				l.mu.Unlock()
			}
			return
		}
		switch e := e.(type) {
		case ctrl.OfferReceived:
			l.take(e.Offer)
		case ctrl.PeerGone:
			l.gone(e)
		case ctrl.Rejoined:
			pipeline.Emit(l.ctx, pipeline.Event{Event: "control_rejoined", Reason: e.Reason, Fields: map[string]any{"lost": e.Lost}})
		case ctrl.Stop:
			if !stopped {
				stopped = true
				close(l.stop)
			}
		}
	}
}

// take connects a client, or answers why not. A newer offer of a client that is
// connected replaces the older one.
func (l *Listener) take(o ctrl.Offer) {
	l.mu.Lock()
	old := l.peers[o.From]
	l.mu.Unlock()
	if old != nil {
		if old.generation == o.Generation && old.incarnation == o.FromIncarnation {
			return // seen again after a resync
		}
		l.drop(o.From, "replaced by a newer offer")
	}
	p, answer, err := l.set.accept(o)
	if err == nil {
		if err = l.handler.Accept(p); err != nil {
			err = errors.Join(err, p.Close())
		}
	}
	if err != nil {
		answer = o.Answer(refusal(o, err), answer.Params)
	} else {
		l.mu.Lock()
		l.peers[o.From] = &accepted{p, o.Generation, o.FromIncarnation}
		l.mu.Unlock()
	}
	emit := pipeline.Event{Event: "peer_connected", Fields: map[string]any{"peer": string(o.From), "links": len(o.Lanes)}}
	if err != nil {
		emit.Event, emit.Reason = "peer_refused", err.Error()
	}
	pipeline.Emit(l.ctx, emit)
	if perr := l.control.Publish(l.ctx, answer); perr != nil && l.ctx.Err() == nil {
		pipeline.Emit(l.ctx, pipeline.Event{Event: "answer_failed", Reason: perr.Error(), Fields: map[string]any{"peer": string(o.From)}})
		l.drop(o.From, "the answer could not be published")
	}
}

// params are this shard's parameters towards a client: those of the demand, and
// of the rails that the client's links would take.
func (s *Set) params(o ctrl.Offer) map[string]string {
	out := maps.Clone(s.Demand.Params)
	if out == nil {
		out = map[string]string{}
	}
	for _, m := range o.Lanes {
		if r, ok := s.Rail(m.PeerRail); ok {
			out[pathKey(m.Rail, m.PeerRail)] = pathText(r.Spec)
		}
	}
	return out
}

// accept makes and connects the links of an offer.
func (s *Set) accept(o ctrl.Offer) (*Peer, ctrl.Offer, error) {
	mine := s.params(o)
	answer := o.Answer(nil, mine)
	if err := compareParams(mine, o.Params, o.From); err != nil {
		return nil, answer, err
	}
	if n := max(s.Demand.QPs, len(s.Rails)); len(o.Lanes) == 0 || len(o.Lanes) > n {
		return nil, answer, fmt.Errorf("an offer of %d links; a client may have 1 to %d", len(o.Lanes), n)
	}
	p := &Peer{Node: o.From, set: s}
	seen := map[int]bool{}
	for _, m := range o.Lanes {
		err := func() error {
			r, ok := s.Rail(m.PeerRail)
			switch {
			case seen[m.Index] || m.Index < 0:
				return fmt.Errorf("link index %d is negative or stands twice", m.Index)
			case !ok:
				return fmt.Errorf("this shard has no rail %q", m.PeerRail)
			case r.Spec.Fabric != m.Fabric:
				return fmt.Errorf("rail %s is on fabric %s, not on %s", r.Name(), r.Spec.Fabric, m.Fabric)
			}
			seen[m.Index] = true
			l, err := s.newLink(r, m.Index)
			if err != nil {
				return err
			}
			p.Links = append(p.Links, l)
			if err := l.connect(s, m); err != nil {
				return err
			}
			answer.Lanes = append(answer.Lanes, l.meta(s))
			return nil
		}()
		if err != nil {
			return nil, answer, errors.Join(fmt.Errorf("link %d on rail %s: %w", m.Index, m.PeerRail, err), p.Close())
		}
	}
	return p, answer, nil
}

// refusal answers every link of an offer with the reason.
func refusal(o ctrl.Offer, err error) (out []ctrl.LaneMeta) {
	for _, m := range o.Lanes {
		out = append(out, ctrl.LaneMeta{Rail: m.PeerRail, PeerRail: m.Rail, Fabric: m.Fabric, Index: m.Index, Error: err.Error()})
	}
	return out
}

// gone drops the incarnation of a client that the control plane reports gone,
// not a later one that has offered meanwhile.
func (l *Listener) gone(e ctrl.PeerGone) {
	l.mu.Lock()
	a := l.peers[e.ID]
	l.mu.Unlock()
	if a != nil && a.incarnation == e.Incarnation {
		l.drop(e.ID, e.Reason)
	}
}

// drop forgets a peer and waits for its users in the background, so that one
// slow handler does not keep other clients from connecting.
func (l *Listener) drop(id ctrl.NodeID, reason string) {
	l.mu.Lock()
	a := l.peers[id]
	delete(l.peers, id)
	l.mu.Unlock()
	if a == nil {
		return
	}
	l.wg.Go(func() {
		l.handler.Drop(a.peer, reason)
		e := pipeline.Event{Event: "peer_gone", Reason: reason, Fields: map[string]any{"peer": string(id)}}
		if err := a.peer.Close(); err != nil {
			e.Fields["error"] = err.Error()
		}
		pipeline.Emit(l.ctx, e)
	})
}

// Peers is the number of connected clients.
func (l *Listener) Peers() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.peers)
}

// Close ends the listener, drops every peer and waits until their QPs are
// destroyed. It is idempotent.
func (l *Listener) Close() error {
	l.halt()
	<-l.done
	l.mu.Lock()
	ids := make([]ctrl.NodeID, 0, len(l.peers))
	for id := range l.peers {
		ids = append(ids, id)
	}
	l.mu.Unlock()
	for _, id := range ids {
		l.drop(id, "the shard stops")
	}
	l.wg.Wait()
	return nil
}
