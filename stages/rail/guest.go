package rail

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/railstore/railstore/ctrl"
	"github.com/railstore/railstore/pipeline"
)

// mail is what a guest has to take note of; newer offers replace older ones.
type mail struct {
	offer *ctrl.Offer
	gone  *ctrl.PeerGone
	look  bool
}

// guest is one client of a Listener. Its goroutine alone connects it, gives its
// links new QPs and drops it, so that a slow one keeps nobody else.
type guest struct {
	l    *Listener
	id   ctrl.NodeID
	wake chan struct{} // cap 1

	mail      mail // under Listener.mu
	connected bool // likewise

	// The goroutine's.
	peer        *Peer
	incarnation uint64
	poll        time.Duration // pause before the next question; 0: none
}

func (g *guest) run() {
	timer := time.NewTimer(time.Hour)
	timer.Stop()
	defer timer.Stop()
	for {
		select {
		case <-g.wake:
		case <-timer.C:
			g.ask()
		case <-g.l.ctx.Done():
			g.drop("the shard stops")
			return
		}
		m, end := g.take()
		if end {
			return
		}
		if m.gone != nil && g.peer != nil && m.gone.Incarnation == g.incarnation {
			g.peer.Gone = true
			g.drop(m.gone.Reason)
		}
		if m.offer != nil {
			g.connect(*m.offer)
		}
		if m.look && g.poll == 0 {
			g.poll = g.l.cfg.Poll
		}
		timer.Stop()
		if g.peer == nil || g.poll > 0 && !g.l.cfg.Broken(g.peer) {
			g.poll = 0
		}
		if g.poll > 0 {
			timer.Reset(g.poll)
			g.poll = min(2*g.poll, g.l.cfg.PollMax)
		}
	}
}

// take empties the mail. The guest ends when there is none and nobody to serve.
func (g *guest) take() (m mail, end bool) {
	g.l.mu.Lock()
	defer g.l.mu.Unlock()
	m, g.mail = g.mail, mail{}
	if m == (mail{}) && g.peer == nil {
		delete(g.l.guests, g.id)
		return m, true
	}
	if m.gone != nil || m.offer != nil {
		// Something may be left to do after it: the loop comes back for the end.
		select {
		case g.wake <- struct{}{}:
		default:
		}
	}
	return m, false
}

func (g *guest) setPeer(p *Peer) {
	g.peer = p
	g.l.mu.Lock()
	g.connected = p != nil
	g.l.mu.Unlock()
}

// ask looks for an offer that the stream has not brought.
func (g *guest) ask() {
	ctx, cancel := context.WithTimeout(g.l.ctx, g.l.cfg.PollTimeout)
	defer cancel()
	o, ok, err := g.l.control.Latest(ctx, g.id)
	if err != nil || !ok || g.peer != nil && o.FromIncarnation == g.incarnation && o.Generation <= g.peer.generation {
		return // not knowing is no news
	}
	g.l.tell(g.id, false, func(m *mail) {
		if m.offer == nil || m.offer.FromIncarnation == o.FromIncarnation && m.offer.Generation < o.Generation {
			m.offer = &o
		}
	})
}

// connect answers an offer. A newer one of a client that is connected gives new
// QPs to those links whose generation has grown; one of another life of it, or
// without such links, replaces all.
func (g *guest) connect(o ctrl.Offer) {
	var answer ctrl.Offer
	var err error
	e := pipeline.Event{Event: "peer_connected", Fields: map[string]any{"peer": string(g.id), "links": len(o.Lanes)}}
	switch {
	case g.peer != nil && o.FromIncarnation == g.incarnation && o.Generation <= g.peer.generation:
		return // seen again after a resync
	case g.peer != nil && o.FromIncarnation == g.incarnation && g.renews(o):
		var n int
		answer, n, err = g.renew(o)
		e.Event, e.Fields["links"] = "peer_renewed", n
	default:
		if g.peer != nil {
			reason := "replaced by another process"
			if o.FromIncarnation == g.incarnation {
				reason = "it connects anew"
			}
			g.drop(reason)
		}
		var p *Peer
		if p, answer, err = g.l.set.accept(o); err == nil {
			if err = g.l.handler.Accept(p); err != nil {
				err = errors.Join(err, p.Close())
			} else {
				g.incarnation = o.FromIncarnation
				g.setPeer(p)
			}
		}
	}
	if err != nil {
		answer = o.Answer(refusal(o, err), answer.Params)
		e.Event, e.Reason = "peer_refused", err.Error()
	}
	pipeline.Emit(g.l.ctx, e)
	g.l.set.delayAnswer(g.l.ctx)
	if perr := g.l.control.Publish(g.l.ctx, answer); perr != nil && g.l.ctx.Err() == nil {
		pipeline.Emit(g.l.ctx, pipeline.Event{Event: "answer_failed", Reason: perr.Error(), Fields: map[string]any{"peer": string(g.id)}})
		g.drop("the answer could not be published")
	}
}

// renews reports whether an offer gives new QPs to links that there are. None has
// grown in that of a client that gave up connecting, for another shard's sake or for
// want of this one's answer, and begins again with QPs that are all new.
func (g *guest) renews(o ctrl.Offer) bool {
	return slices.ContainsFunc(o.Lanes, func(m ctrl.LaneMeta) bool {
		return slices.ContainsFunc(g.peer.Links, func(l *Link) bool { return l.Index == m.Index && m.Generation > l.PeerGeneration })
	})
}

// renew gives new QPs to the links of an offer whose generation has grown. What
// fails is answered in the link's place; the others go on.
func (g *guest) renew(o ctrl.Offer) (answer ctrl.Offer, n int, err error) {
	s := g.l.set
	mine := s.params(o)
	answer = o.Answer(nil, mine)
	if err := compareParams(mine, o.Params, o.From); err != nil {
		return answer, 0, err
	}
	if !g.l.cfg.Renew {
		return answer, 0, errors.New("this shard rebuilds no lanes: rebuild.enabled is false here")
	}
	g.peer.generation = o.Generation
	for _, m := range o.Lanes {
		i := slices.IndexFunc(g.peer.Links, func(l *Link) bool { return l.Index == m.Index })
		if i < 0 {
			err := fmt.Errorf("there is no link %d to give a new QP to", m.Index)
			answer.Lanes = append(answer.Lanes, ctrl.LaneMeta{Rail: m.PeerRail, PeerRail: m.Rail, Fabric: m.Fabric, Index: m.Index, Error: err.Error()})
			continue
		}
		l := g.peer.Links[i]
		meta := l.meta(s)
		if m.Generation > l.PeerGeneration {
			n++
			if err := g.renewLink(l, m); err != nil {
				meta = ctrl.LaneMeta{Rail: l.Rail.Name(), PeerRail: m.Rail, Fabric: m.Fabric, Index: m.Index, Error: err.Error()}
			} else {
				meta = l.meta(s)
			}
		}
		answer.Lanes = append(answer.Lanes, meta)
	}
	return answer, n, nil
}

func (g *guest) renewLink(l *Link, m ctrl.LaneMeta) error {
	if m.PeerRail != l.Rail.Name() || m.Fabric != l.Rail.Spec.Fabric {
		return fmt.Errorf("link %d is on rail %s (fabric %s), not on %s (fabric %s)", l.Index, l.Rail.Name(), l.Rail.Spec.Fabric, m.PeerRail, m.Fabric)
	}
	if err := g.l.handler.Retire(g.peer, l); err != nil {
		return err
	}
	// Also after a failure: an offer of this generation is never taken again.
	l.PeerGeneration = m.Generation
	if err := l.renew(g.l.set); err != nil {
		return err
	}
	if err := l.connect(g.l.set, m); err != nil {
		return err
	}
	return g.l.handler.Adopt(g.peer, l)
}

// drop ends the connection and waits for those who use it.
func (g *guest) drop(reason string) {
	p := g.peer
	if p == nil {
		return
	}
	g.setPeer(nil)
	g.l.handler.Drop(p, reason)
	e := pipeline.Event{Event: "peer_gone", Reason: reason, Fields: map[string]any{"peer": string(g.id)}}
	if err := p.Close(); err != nil {
		e.Fields["error"] = err.Error()
	}
	pipeline.Emit(g.l.ctx, e)
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
	p := &Peer{Node: o.From, set: s, generation: o.Generation}
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

// delayAnswer plays the fault delay_answer of a provider that has it.
func (s *Set) delayAnswer(ctx context.Context) {
	var by time.Duration
	for _, r := range s.Rails {
		if f, ok := r.driver.(interface{ AnswerDelay() time.Duration }); ok {
			by = max(by, f.AnswerDelay())
		}
	}
	if by <= 0 {
		return
	}
	timer := time.NewTimer(by)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
