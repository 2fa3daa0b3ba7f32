package lanes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/railstore/railstore/ctrl"
	"github.com/railstore/railstore/pipeline"
	"github.com/railstore/railstore/stages/rail"
	"github.com/railstore/railstore/verbs"
	"github.com/railstore/railstore/verbs/lane"
)

// Names of the events of a keeper; those of lanes are in verbs/lane.
const (
	EventRebuildTimeout   = "lane_rebuild_timeout"   // no answer of the peer in time
	EventRebuildFailed    = "lane_rebuild_failed"    // error tells whether the control plane or a verb
	EventRebuildExhausted = "lane_rebuild_exhausted" // the lane is dead
	EventRebuildSkipped   = "lane_rebuild_skipped"   // reason: disabled, not_rebuildable, draining
	EventShardLost        = "shard_lost"
	EventShardRejoined    = "shard_rejoined"
	EventShardDraining    = "shard_draining"
)

// keeper looks after the lanes to one shard. Its goroutine alone rebuilds them,
// and connects anew when the shard was lost and is back. A rebuild is for what a
// new pair of QPs may cure; a shard in a new life gets new lanes, which have
// their whole budget.
type keeper struct {
	c     *Client
	shard int
	id    ctrl.NodeID
	pool  *lane.Pool
	pol   policy

	poke   chan struct{} // cap 1
	trying atomic.Bool   // lanes are being cured, or will be as soon as the goroutine gets to it
	due    atomic.Int64  // no attempt before, by clock

	mu       sync.Mutex
	mail     keeperMail
	wards    []*ward
	peer     *rail.Peer // nil: the shard is absent
	absent   string     // why
	draining bool
	verdict  string // of the control plane: serving, suspect, dead, unknown

	// The goroutine's.
	rejoinAt time.Duration
	failures int // of rejoining, in a row
}

// keeperMail is what happened since the goroutine last looked.
type keeperMail struct {
	gone     map[uint64]string // lives of the shard that are over, and why
	lost     string            // why this client's own life is over to the shards
	down     []*lane.Lane
	draining string
	serving  bool
}

// ward is a lane in a keeper's care.
type ward struct {
	lane   *lane.Lane
	link   *rail.Link
	ledger ledger
	begun  time.Duration
	// How often the rail had been down when the lane's QP was made.
	outages uint64
	sweep   time.Duration // when it is rebuilt without traffic; 0: not known to be dirty
}

// start of the clock of keepers.
var start = time.Now()

func clock() time.Duration { return time.Since(start) }

func newKeeper(c *Client, shard int, pol policy) *keeper {
	k := &keeper{c: c, shard: shard, id: ctrl.ShardID(shard), pool: lane.NewPool(), pol: pol, poke: make(chan struct{}, 1), verdict: "unknown"}
	k.pool.SetKeeper(k)
	return k
}

// Wanted makes the goroutine try at once what is due.
func (k *keeper) Wanted(string) bool {
	if k.trying.Load() {
		return true
	}
	if !k.pol.enabled || clock() < time.Duration(k.due.Load()) {
		return false
	}
	k.trying.Store(true)
	k.wake()
	return true
}

// Down takes note of a lane that failed.
func (k *keeper) Down(l *lane.Lane) {
	k.mu.Lock()
	k.mail.down = append(k.mail.down, l)
	k.mu.Unlock()
	k.due.Store(0) // perhaps: the goroutine knows
	k.wake()
}

func (k *keeper) wake() {
	select {
	case k.poke <- struct{}{}:
	default:
	}
}

func (k *keeper) tell(put func(*keeperMail)) {
	k.mu.Lock()
	put(&k.mail)
	k.mu.Unlock()
	k.wake()
}

func (k *keeper) run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			k.pool.SetKeeper(nil)
			k.pool.Settled()
			return
		case <-k.poke:
		case <-timer.C:
		}
		next := k.step(ctx)
		timer.Stop()
		if next != never {
			timer.Reset(max(next-clock(), 0))
		}
	}
}

// step does what there is to do now, and says when to look again.
func (k *keeper) step(ctx context.Context) (next time.Duration) {
	wanted := k.trying.Load()
	k.mu.Lock()
	m := k.mail
	k.mail = keeperMail{}
	k.mu.Unlock()
	k.heed(ctx, &m)
	if k.peer == nil {
		next = k.rejoin(ctx)
	} else {
		next = k.rebuild(ctx, wanted)
	}
	if wanted {
		k.trying.Store(false)
		k.pool.Settled()
	}
	return next
}

// heed takes the news in.
func (k *keeper) heed(ctx context.Context, m *keeperMail) {
	for _, l := range m.down {
		k.skipped(ctx, l)
	}
	if k.peer == nil {
		return
	}
	why, gone := m.gone[k.peer.Incarnation()]
	if gone || m.lost != "" {
		k.lose(ctx, cmp.Or(m.lost, why))
		return
	}
	switch {
	case m.draining != "":
		k.setDraining(true)
		k.pool.Refuse(k.refusal(lane.ErrDraining, m.draining))
		k.emit(ctx, EventShardDraining, m.draining, nil)
	case m.serving && k.draining:
		k.setDraining(false)
		k.pool.Refuse(nil)
	}
}

func (k *keeper) setDraining(v bool) {
	k.mu.Lock()
	k.draining = v
	k.mu.Unlock()
}

// refusal is the error of calls to a shard that takes none.
func (k *keeper) refusal(what error, why string) *lane.Error {
	return &lane.Error{Layer: lane.LayerNode, Op: "call", Label: lane.Label{Shard: k.shard, Index: -1, Local: k.c.name, Remote: string(k.id)},
		Local: lane.End{Name: k.c.name}, Remote: lane.End{Name: string(k.id)},
		Err: fmt.Errorf("%w: %s", what, why)}
}

// skipped tells of a lane that nothing will be done for.
func (k *keeper) skipped(ctx context.Context, l *lane.Lane) {
	f := l.Flags()
	switch {
	case l.State() != lane.Dirty:
	case !f.Rebuildable:
		k.emitLane(ctx, l, EventRebuildSkipped, "not_rebuildable", nil)
	case !k.pol.enabled:
		k.emitLane(ctx, l, EventRebuildSkipped, "disabled", nil)
	}
}

// lose ends what was connected to the shard: calls fail at once, and when this
// returns nothing reaches the lanes' memory.
func (k *keeper) lose(ctx context.Context, why string) {
	k.pool.Refuse(k.refusal(lane.ErrPeerDead, why))
	k.emit(ctx, EventShardLost, why, nil)
	k.release(fmt.Errorf("%w: %s", lane.ErrPeerDead, why))
	k.mu.Lock()
	k.absent, k.draining, k.mail.down = why, false, nil
	k.mu.Unlock()
	k.rejoinAt, k.failures = 0, 0
}

// release closes lanes and links, the lanes' calls failing with err.
func (k *keeper) release(cause error) {
	k.mu.Lock()
	wards, peer := k.wards, k.peer
	k.wards, k.peer = nil, nil
	k.mu.Unlock()
	var errs []error
	for _, w := range wards {
		if cause != nil {
			w.lane.FailFrom(lane.LayerNode, cause, false)
		}
		errs = append(errs, w.lane.Close())
		k.pool.Remove(w.lane)
	}
	if peer != nil {
		errs = append(errs, peer.Close())
	}
	if err := errors.Join(errs...); err != nil {
		// The memory stays out of use; the process can go on with what is left.
		k.emit(k.c.ctx, "lane_not_destroyed", "", err)
	}
}

// adopt takes connected links as the lanes of the shard.
func (k *keeper) adopt(p *rail.Peer) error {
	var wards []*ward
	for _, l := range p.Links {
		outages := l.Rail.Outages()
		ln, err := lane.New(k.c.pollers.of(l), l.QP, memory(l), peerOf(l), k.c.cfg,
			lane.Label{Shard: k.shard, Index: l.Index, Rail: l.Rail.Name(), Local: k.c.name, Remote: string(k.id)})
		if err != nil {
			for _, w := range wards {
				err = errors.Join(err, w.lane.Close())
			}
			return WrapError(err, pipeline.LayerConnect, "connect", pipeline.AtShard(k.shard))
		}
		wards = append(wards, &ward{lane: ln, link: l, outages: outages})
	}
	for _, w := range wards {
		k.pool.Add(w.lane)
	}
	k.pool.Refuse(nil)
	k.mu.Lock()
	k.wards, k.peer, k.absent = wards, p, ""
	k.mu.Unlock()
	return nil
}

// rejoinPatience is how long one question for a shard that is away may wait at
// the control plane.
const rejoinPatience = 2 * time.Second

// rejoin connects to the shard if it serves again.
func (k *keeper) rejoin(ctx context.Context) (next time.Duration) {
	if !k.c.rejoin {
		return never
	}
	if now := clock(); now < k.rejoinAt {
		return k.rejoinAt
	}
	begun := clock()
	wctx, cancel := context.WithTimeout(ctx, rejoinPatience)
	err := k.c.Control.WaitReady(wctx, k.id)
	cancel()
	if err == nil {
		cctx, cancel := context.WithTimeout(ctx, 2*k.pol.wait)
		err = k.redial(cctx)
		cancel()
		if err == nil {
			k.failures = 0
			for _, rail := range k.c.Reach(k.shard) {
				k.c.renewed(k.shard, rail)
			}
			k.emit(ctx, EventShardRejoined, "", nil)
			return never
		}
		if ctx.Err() == nil {
			k.emit(ctx, "shard_rejoin_failed", "", err)
		}
	}
	k.failures++
	k.rejoinAt = begun + max(k.pol.pause(k.failures), 50*time.Millisecond)
	return k.rejoinAt
}

func (k *keeper) redial(ctx context.Context) error {
	n, err := k.c.Control.Node(ctx, k.id)
	if err != nil {
		return err
	}
	p, err := rail.Redial(ctx, k.c.Set, k.c.Control, n.Info)
	if err != nil {
		return err
	}
	if err := k.adopt(p); err != nil {
		return errors.Join(err, p.Close())
	}
	return nil
}

// rebuild makes one attempt at all lanes that are due, when a call wants one or the
// sweep has come to them, and says when to look again.
func (k *keeper) rebuild(ctx context.Context, wanted bool) (next time.Duration) {
	next = never
	if !k.pol.enabled || k.draining {
		k.due.Store(int64(never))
		return never
	}
	now := clock()
	// A call that comes upon a lane which was well a moment ago asks for a look.
	var allowed time.Duration
	var due []*ward
	for _, w := range k.wards {
		if w.lane.State() == lane.Active {
			w.sweep = 0
			continue
		}
		if allowed == 0 {
			allowed = never
		}
		if w.lane.State() != lane.Dirty || !w.lane.Flags().Rebuildable && !w.forgiven() {
			continue
		}
		if w.sweep == 0 && k.pol.sweep > 0 {
			// Not at once: the lanes of all clients of a shard break together.
			w.sweep = now + time.Duration(k.pol.jitter()*float64(k.pol.sweep))
		}
		at, exhausted := w.ledger.ask(&k.pol, now)
		swept := k.pol.sweep > 0 && w.sweep <= now
		switch {
		case exhausted:
			k.exhaust(ctx, w)
			continue
		case at <= now && (wanted || swept):
			due = append(due, w)
			w.sweep = now + k.pol.sweep
			continue
		}
		allowed = min(allowed, at)
		if k.pol.sweep > 0 {
			next = min(next, max(at, w.sweep))
		}
	}
	k.due.Store(int64(allowed))
	if len(due) > 0 {
		k.trying.Store(true) // calls wait for the outcome
		k.attempt(ctx, due)
		k.trying.Store(false)
		k.pool.Settled()
		k.due.Store(0)
		return clock() // look again, for the next time
	}
	return next
}

// forgiven lets a lane be rebuilt that failed of an error of this end, which a new QP
// does not cure, when the rail's port was down meanwhile and is not now: a device whose
// link is gone may end its QPs with such an error.
func (w *ward) forgiven() bool {
	var e *lane.Error
	if !errors.As(w.lane.Err(), &e) || e.Class != lane.ClassLocal || w.link.Rail.Outages() == w.outages {
		return false
	}
	if st, _ := w.link.Rail.Health(); st != rail.Active {
		return false
	}
	w.lane.Forgive()
	return true
}

// exhaust gives a lane up for good.
func (k *keeper) exhaust(ctx context.Context, w *ward) {
	if ok, err := w.lane.BeginRebuild(); ok {
		w.lane.AbortRebuild(true)
		k.emitLane(ctx, w.lane, EventRebuildExhausted, fmt.Sprintf("%d attempts", w.ledger.attempts), nil)
	} else if err != nil {
		k.emitLane(ctx, w.lane, EventRebuildFailed, "", err)
	}
}

// attempt gives lanes new QPs, with one handshake for all of them.
func (k *keeper) attempt(ctx context.Context, due []*ward) {
	var links []*rail.Link
	var at []*ward
	for _, w := range due {
		ok, err := w.lane.BeginRebuild()
		if err != nil {
			k.emitLane(ctx, w.lane, EventRebuildFailed, "", err)
		}
		if !ok {
			continue
		}
		w.begun, w.outages = clock(), w.link.Rail.Outages()
		k.mu.Lock()
		w.ledger.begin(&k.pol, w.begun)
		k.mu.Unlock()
		at, links = append(at, w), append(links, w.link)
	}
	if len(at) == 0 {
		return
	}
	hctx, cancel := context.WithTimeout(ctx, 2*k.pol.wait)
	errs := k.peer.Renew(hctx, k.c.Control, links)
	cancel()
	for i, w := range at {
		err := errs[i]
		if err == nil {
			if err = w.lane.FinishRebuild(w.link.QP, w.link.Generation, peerOf(w.link)); err != nil {
				err = errors.Join(err, w.link.QP.Close())
			}
		}
		k.outcome(ctx, w, err)
	}
}

func (k *keeper) outcome(ctx context.Context, w *ward, err error) {
	k.mu.Lock()
	w.ledger.end(&k.pol, w.begun, err == nil)
	_, exhausted := w.ledger.ask(&k.pol, clock())
	attempts := w.ledger.attempts
	k.mu.Unlock()
	if err == nil {
		k.c.renewed(k.shard, w.lane.Label().Rail)
		k.emitLane(ctx, w.lane, lane.EventLaneRecovered, fmt.Sprintf("attempts=%d", attempts), nil)
		return
	}
	w.lane.AbortRebuild(exhausted)
	name := EventRebuildFailed
	if errors.Is(err, context.DeadlineExceeded) {
		name = EventRebuildTimeout
	}
	k.emitLane(ctx, w.lane, name, fmt.Sprintf("attempts=%d", attempts), err)
	if exhausted {
		k.emitLane(ctx, w.lane, EventRebuildExhausted, fmt.Sprintf("%d attempts", attempts), nil)
	}
}

// condemn fails the lanes on the control plane's word that the shard is dead.
func (k *keeper) condemn(why string) {
	k.mu.Lock()
	wards := append([]*ward(nil), k.wards...)
	k.mu.Unlock()
	for _, w := range wards {
		w.lane.FailFrom(lane.LayerNode, fmt.Errorf("%w: %s", lane.ErrPeerDead, why), true)
	}
}

// qpEvent fails the lane of a QP that the device reports broken.
func (k *keeper) qpEvent(e verbs.AsyncEvent) {
	k.mu.Lock()
	wards := append([]*ward(nil), k.wards...)
	k.mu.Unlock()
	for _, w := range wards {
		if w.lane.QPN() == e.QPN {
			w.lane.FailFrom(lane.LayerDevice, eventError(e), false)
		}
	}
}

func (k *keeper) setVerdict(v string) {
	k.mu.Lock()
	k.verdict = v
	k.mu.Unlock()
}

func (k *keeper) emit(ctx context.Context, name, reason string, err error) {
	e := pipeline.Event{Event: name, Shard: &k.shard, Reason: reason}
	if err != nil {
		e.Fields = map[string]any{"error": err.Error()}
	}
	pipeline.Emit(ctx, e)
}

func (k *keeper) emitLane(ctx context.Context, l *lane.Lane, name, reason string, err error) {
	emit(ctx, lane.Event{Name: name, Label: l.Label(), Reason: reason, Err: err}, "")
}
