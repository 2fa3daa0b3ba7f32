package rail

import (
	"context"
	"sync"
	"time"

	"github.com/railstore/railstore/ctrl"
)

// Handler is what a shard does with its clients. Calls for one peer come one after
// the other, those for several peers side by side.
type Handler interface {
	// Accept takes a peer whose QPs are connected; the peer learns of them after
	// it returns. On an error the peer is refused.
	Accept(p *Peer) error
	// Retire stops using one link of a peer, whose client gives it a new QP, and
	// destroys its QP. When it returns nil nothing touches the link's memory.
	Retire(p *Peer, l *Link) error
	// Adopt uses the link again, with its new QP.
	Adopt(p *Peer, l *Link) error
	// Drop stops using a peer and returns when nothing does; then its QPs are
	// destroyed.
	Drop(p *Peer, reason string)
}

// ListenConfig of a Listener. Offers come by the control plane's stream; that of a
// client of which Look was told is also asked for, every Poll and then less and
// less often up to PollMax, while Broken says that links of it are.
type ListenConfig struct {
	Poll, PollMax time.Duration // 0: never asked for
	PollTimeout   time.Duration // of one question
	Broken        func(p *Peer) bool
	// Renew says whether links may get new QPs while their peer stays.
	Renew bool
}

// Listener connects every client that offers links to this shard.
type Listener struct {
	set     *Set
	control *ctrl.Client
	handler Handler
	cfg     ListenConfig
	ctx     context.Context

	mu      sync.Mutex
	guests  map[ctrl.NodeID]*guest
	closing bool
	err     error
	wg      sync.WaitGroup // guests
	done    chan struct{}
	stop    chan struct{}
	halt    context.CancelFunc
}

// Listen starts to take offers. Close ends it, drops every peer and waits.
func Listen(ctx context.Context, set *Set, control *ctrl.Client, h Handler, cfg ListenConfig) *Listener {
	ctx, halt := context.WithCancel(context.WithoutCancel(ctx))
	l := &Listener{set: set, control: control, handler: h, cfg: cfg, ctx: ctx, halt: halt,
		guests: map[ctrl.NodeID]*guest{}, done: make(chan struct{}), stop: make(chan struct{})}
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
			l.tell(e.Offer.From, true, func(m *mail) { m.offer = &e.Offer })
		case ctrl.PeerGone:
			l.tell(e.ID, false, func(m *mail) { m.gone = &e })
		case ctrl.Stop:
			if !stopped {
				stopped = true
				close(l.stop)
			}
		}
	}
}

// Look says that links of a client broke: its next offer matters.
func (l *Listener) Look(id ctrl.NodeID) {
	if l.cfg.Poll > 0 && l.cfg.Renew {
		l.tell(id, false, func(m *mail) { m.look = true })
	}
}

// tell puts something into the mail of a client, whose goroutine is started for
// an offer.
func (l *Listener) tell(id ctrl.NodeID, start bool, put func(*mail)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	g := l.guests[id]
	if g == nil {
		if !start || l.closing {
			return
		}
		g = &guest{l: l, id: id, wake: make(chan struct{}, 1)}
		l.guests[id] = g
		l.wg.Go(g.run)
	}
	put(&g.mail)
	select {
	case g.wake <- struct{}{}:
	default:
	}
}

// Peers is the number of connected clients.
func (l *Listener) Peers() (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, g := range l.guests {
		if g.connected {
			n++
		}
	}
	return n
}

// Close ends the listener, drops every peer and waits until their QPs are
// destroyed. It is idempotent.
func (l *Listener) Close() error {
	l.mu.Lock()
	l.closing = true
	l.mu.Unlock()
	l.halt()
	<-l.done
	l.wg.Wait()
	return nil
}
