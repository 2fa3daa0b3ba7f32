package lane

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/railstore/railstore/verbs"
)

// Lane is the client's end. Calls go through a Pool, which hands its slots out.
type Lane struct {
	conn
	cfg  Config
	gen  uint32 // this end's, expected in status words
	peer Peer

	state       atomic.Uint32
	rebuildable atomic.Bool
	epoch       atomic.Uint32
	cause       atomic.Pointer[Error] // why it is not Active; nil while it is
	past        atomic.Pointer[Error] // what ended the epoch before
	failing     sync.Mutex            // held while the lane is made Dirty

	slots  []slot
	seen   atomic.Uint32 // status words seen since the QP was new
	polled atomic.Uint32 // receive completions polled since then
	pool   atomic.Pointer[Pool]
	free   []uint16 // under pool.mu
	spin   hunch
	inside gate          // goroutines that may touch the slots' memory
	room   chan struct{} // cap 1: the send queue has more room

	touching bool          // under mu: an empty WRITE is under way
	touched  time.Duration // under mu: since when, by clock

	life     sync.Mutex // Close and the steps of a rebuild
	shut     bool       // nobody is inside, the QP is destroyed
	closed   bool
	closeErr error
}

type slotState uint8

const (
	slotIdle slotState = iota
	slotInFlight
	// slotQuarantined: its caller gave up, the peer may still write into it.
	slotQuarantined
)

type slot struct {
	index   uint16
	word    []byte // status word, written by the peer
	resp    window // response slot, written by the peer
	req     window // staging of the request
	commit  window // staging of the commit word
	remote  uint64 // address of the request slot
	remoteW uint64 // address of the commit word

	// Of the request in flight; written while the slot is the writer's alone.
	seq      atomic.Uint32
	epoch    uint32
	capacity uint32
	exposed  bool
	since    time.Duration // by clock

	claim   atomic.Uint64 // of the ticket that was not waited for yet; 0: none
	state   slotState     // under pool.mu
	late    atomic.Bool
	waiting atomic.Bool
	wake    chan struct{} // cap 1
	timer   *time.Timer

	// Of a quarantine, under pool.mu.
	expiry     *time.Timer
	touch, ask alarm
}

// New makes a lane of a connected QP and takes the QP over on success. mem and
// peer are as published at either end; the lane keeps using mem until Close.
func New(p *Poller, qp *verbs.QP, mem Memory, peer Peer, cfg Config, label Label) (*Lane, error) {
	cfg = cfg.withDefaults()
	l := &Lane{cfg: cfg, gen: mem.Generation, peer: peer, inside: newGate(), room: make(chan struct{}, 1)}
	fail := func(err error) (*Lane, error) {
		return nil, &Error{Layer: LayerUsage, Op: "lane", Label: label, Err: err}
	}
	if err := errors.Join(cfg.Check(), mem.check(cfg.ClientBytes()), peer.check(cfg.serverPublished())); err != nil {
		return fail(err)
	}
	if err := l.init(p, qp, label, &cfg, cfg.ClientCap()); err != nil {
		return fail(err)
	}
	w := window{b: mem.Bytes, off: mem.Off}
	words := w.cut(cfg.wordsBytes())
	responses := w.cut(cfg.responsesBytes())
	requests := w.cut(cfg.requestsBytes())
	commits := w.cut(cfg.wordsBytes())
	l.slots = make([]slot, cfg.Slots)
	for i := range l.slots {
		timer := time.NewTimer(time.Hour)
		timer.Stop()
		s := &l.slots[i]
		s.index, s.word, s.resp = uint16(i), words.part(i, 8).b, responses.part(i, cfg.responseStride())
		s.req, s.commit = requests.part(i, cfg.requestStride()), commits.part(i, 8)
		s.wake, s.timer = make(chan struct{}, 1), timer
	}
	l.epoch.Store(1)
	l.sgeKey(mem.MR)
	l.aim()
	if err := l.join(); err != nil {
		return fail(err)
	}
	return l, nil
}

// sgeKey prepares the elements that every request uses: only lengths change.
func (l *Lane) sgeKey(mr *verbs.MR) {
	for i := range l.slots {
		s := &l.slots[i]
		// A panic here would be a window outside the MR, which New has checked.
		s.req.sge = mr.SGE(s.req.off, uint64(len(s.req.b)))
		s.commit.sge = mr.SGE(s.commit.off, 8)
	}
}

// aim computes where requests go.
func (l *Lane) aim() {
	for i := range l.slots {
		s := &l.slots[i]
		s.remoteW = l.peer.Slots.Addr + uint64(8*i)
		s.remote = l.peer.Slots.Addr + uint64(l.cfg.wordsBytes()+i*l.cfg.requestStride())
	}
}

// join clears the words, enters the poller and posts the receives.
func (l *Lane) join() error {
	for i := range l.slots {
		verbs.StoreWord(l.slots[i].word, 0)
	}
	l.poller.attach(l, &l.conn, false)
	l.mu.Lock()
	err := l.fillReceives(l.cfg.recvDepth())
	l.mu.Unlock()
	if err != nil {
		l.poller.detach(l, &l.conn, false)
	}
	return err
}

// Label are the words that New got.
func (l *Lane) Label() Label { return l.label }

// State is the lane's state.
func (l *Lane) State() State { return State(l.state.Load()) }

// Flags are the lane's flags.
func (l *Lane) Flags() Flags {
	s := l.State()
	return Flags{Dirty: s == Dirty || s == Rebuilding, Rebuildable: l.rebuildable.Load(), Dead: s == Dead, Epoch: l.epoch.Load()}
}

// Err is why the lane is not Active, or nil.
func (l *Lane) Err() error {
	if e := l.cause.Load(); e != nil {
		return e
	}
	return nil
}

// Fail makes an Active lane Dirty: every call on it fails at once with this
// cause, and no slot of it is used again before a rebuild. Later causes are not
// kept.
func (l *Lane) Fail(cause *Error, rebuildable bool) { l.failEpoch(cause, rebuildable, l.epoch.Load()) }

// failEpoch is Fail for what happened in an epoch: the QPs of a later one have
// nothing to do with it.
func (l *Lane) failEpoch(cause *Error, rebuildable bool, epoch uint32) {
	// A rebuild waits for it, so that none of this befalls the new QP. Whoever
	// comes second waits, too: it may rely on what the first does.
	l.failing.Lock()
	defer l.failing.Unlock()
	// Who sees the state sees the cause.
	if l.State() != Active || l.epoch.Load() != epoch || !l.cause.CompareAndSwap(nil, cause) {
		return
	}
	l.rebuildable.Store(rebuildable)
	if !l.state.CompareAndSwap(uint32(Active), uint32(Dirty)) {
		return
	}
	// In ERR the QP takes no more from the peer.
	_ = l.qp.Fail()
	l.count.LanesDirty.Add(1)
	// The keeper first: whoever wakes and calls again finds it at work.
	if p := l.pool.Load(); p != nil {
		p.laneDown(l)
	}
	l.cfg.emit(Event{Name: EventLaneDirty, Label: l.label, Reason: string(cause.Layer), Err: cause})
	l.wakeAll()
}

// Forgive lets a Dirty lane be rebuilt that may not be: its owner knows what it failed
// of, and that a new QP cures it now.
func (l *Lane) Forgive() {
	l.failing.Lock()
	defer l.failing.Unlock()
	if l.State() == Dirty {
		l.rebuildable.Store(true)
	}
}

// FailFrom retires the lane for a reason that its owner found.
func (l *Lane) FailFrom(layer Layer, err error, rebuildable bool) {
	l.Fail(l.errorf(layer, "lane", err), rebuildable)
}

// Generation is the one that this end published.
func (l *Lane) Generation() uint32 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.gen
}

// QPN is the number of the lane's QP at this end.
func (l *Lane) QPN() uint32 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.qp.QPN()
}

func (l *Lane) wakeAll() {
	for i := range l.slots {
		l.slots[i].wakeUp()
	}
	l.signalRoom()
}

func (s *slot) wakeUp() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (l *Lane) signalRoom() {
	select {
	case l.room <- struct{}{}:
	default:
	}
}

// Close destroys the QP and fails what is under way. When it returns, neither
// the peer nor a goroutine in a call touches the lane's memory.
func (l *Lane) Close() error {
	l.life.Lock()
	defer l.life.Unlock()
	if l.closed {
		return l.closeErr
	}
	l.closed = true
	l.failing.Lock() // one that is at it ends first
	l.cause.CompareAndSwap(nil, l.closedError())
	l.state.Store(uint32(Dead))
	l.failing.Unlock()
	l.closeErr = l.quiet()
	if p := l.pool.Load(); p != nil {
		p.laneDown(l)
	}
	for i := range l.slots {
		l.slots[i].timer.Stop()
	}
	return l.closeErr
}

// quiet destroys the QP and waits until nothing uses the slots any more;
// l.life is held and the state is not Active.
func (l *Lane) quiet() error {
	if l.shut {
		return nil
	}
	l.shut = true
	l.wakeAll()
	err := l.closeQP()
	l.inside.shut()
	l.poller.detach(l, &l.conn, false)
	if p := l.pool.Load(); p != nil {
		p.mu.Lock()
		for i := range l.slots {
			p.endQuarantine(l, &l.slots[i])
		}
		p.mu.Unlock()
	}
	return err
}

// complete takes a completion; called under the poller's lock.
func (l *Lane) complete(k kind, i uint16, wc *verbs.WC) (owes bool) {
	if wc.Status != verbs.WCSuccess {
		l.count.bad(wc.Status)
		if l.State() != Active {
			return false
		}
		e := l.bad(wc)
		l.Fail(e, e.Class.Rebuildable())
		return false
	}
	if k == kindSend || k == kindTouch {
		l.mu.Lock()
		l.sq.completed()
		if k == kindTouch {
			l.touching = false
		}
		l.mu.Unlock()
		l.signalRoom()
		return false
	}
	l.polled.Add(1)
	if n := immSlot(wc.Imm); wc.Flags&verbs.WCWithImm != 0 && n < len(l.slots) {
		l.notice(&l.slots[n])
	} else {
		l.count.BadImmediates.Add(1)
	}
	l.owed++
	return l.owed == 1
}

// notice wakes who waits for a slot, or takes its late answer.
func (l *Lane) notice(s *slot) {
	if s.waiting.Load() {
		s.wakeUp()
	}
	if s.late.Load() {
		l.pool.Load().reap(l, s)
	}
}

func (l *Lane) repost() {
	l.mu.Lock()
	n := l.owed
	l.owed = 0
	err := l.fillReceives(n)
	l.mu.Unlock()
	if err != nil {
		l.Fail(l.errorf(LayerPost, "lane", err), false)
	}
}

// scan looks for answers that sleeping callers and quarantined slots wait for.
func (l *Lane) scan() bool {
	did := false
	for i := range l.slots {
		s := &l.slots[i]
		if (s.waiting.Load() || s.late.Load()) && l.answered(s) {
			l.notice(s)
			did = true
		}
	}
	return did
}

func (l *Lane) broken(err error) { l.Fail(l.errorf(LayerDevice, "lane", err), false) }

// answered reports whether the status word of the request in flight is there.
func (l *Lane) answered(s *slot) bool {
	return loadWord(s.word) == makeWord(s.seq.Load(), uint16(l.gen), wordDone)
}

// check compares a response with its request and its checksum.
func (l *Lane) check(s *slot) error {
	h := head(s.resp.b[:headBytes])
	n := h.bytes()
	switch {
	case h.magic() != headMagic || h.version() != Version:
		return fmt.Errorf("%w: no response of version %d in the slot", ErrBadResponse, Version)
	case h.seq() != s.seq.Load() || h.generation() != l.gen || h.slot() != s.index:
		return fmt.Errorf("%w: sequence %d generation %d slot %d, asked was %d, %d, %d", ErrBadResponse,
			h.seq(), h.generation(), h.slot(), s.seq.Load(), l.gen, s.index)
	case n > s.capacity:
		return fmt.Errorf("%w: %d bytes, the request had room for %d", ErrBadResponse, n, s.capacity)
	case h.checksum() != sum(h, s.resp.b[headBytes:headBytes+int(n)], l.cfg.HeaderChecksum || h.flags()&flagPlaced != 0):
		return fmt.Errorf("%w: %d bytes", ErrBadResponse, n)
	}
	return nil
}
