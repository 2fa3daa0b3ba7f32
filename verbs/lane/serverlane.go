package lane

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/railstore/railstore/verbs"
)

// ServerLane is the server's end of a lane.
type ServerLane struct {
	conn
	acc  *Acceptor
	cfg  Config
	gen  uint32 // this end's, expected in commit words
	peer Peer

	ctx    context.Context // ends with the lane
	cancel context.CancelFunc
	cause  atomic.Pointer[Error]
	inside gate // handlers

	scanner *scanner // that serves it where workers do not

	slots []serverSlot
	cells []bulkCell

	// under mu
	out      []uint16  // slots whose answer is to be posted, oldest first
	stuck    time.Time // since when answers find no room; zero: they do
	early    bool      // a slot has again set
	spare    []uint16  // free cells
	bulk     int       // bulk requests in the send queue
	batches  []int     // and how many each of their signaled ones stands for, oldest first
	closed   sync.Once
	closeErr error
}

type serverSlot struct {
	x       Exchange
	word    []byte // commit word, written by the peer
	req     window // request slot, written by the peer
	resp    window // staging of the response
	status  window // staging of the status word
	remote  uint64 // address of the response slot
	remoteW uint64 // address of the status word

	// under mu
	last    atomic.Uint64 // the word that was looked at last
	seq     uint32
	running bool // queued or being served
	queued  bool // the answer waits to be posted
	again   bool // a word was noticed meanwhile
	length  int  // of the response, header included; what is sent from staging
}

func newServerLane(a *Acceptor, p *Poller, qp *verbs.QP, mem Memory, peer Peer, cfg Config, label Label) (*ServerLane, error) {
	if n := qp.Cap().MaxSendSGE; n > 0 {
		cfg.MaxSGE = min(cfg.MaxSGE, n) // a device may gather less; it takes more requests then
	}
	sl := &ServerLane{acc: a, cfg: cfg, gen: mem.Generation, peer: peer, inside: newGate()}
	fail := func(err error) (*ServerLane, error) {
		return nil, &Error{Layer: LayerUsage, Op: "accept", Label: label, Err: err}
	}
	if err := errors.Join(cfg.Check(), mem.check(cfg.ServerBytes()), peer.check(cfg.clientPublished())); err != nil {
		return fail(err)
	}
	if err := sl.init(p, qp, label, &cfg, cfg.ServerCap()); err != nil {
		return fail(err)
	}
	w := window{b: mem.Bytes, off: mem.Off}
	words := w.cut(cfg.wordsBytes())
	requests := w.cut(cfg.requestsBytes())
	responses := w.cut(cfg.responsesBytes())
	statuses := w.cut(cfg.wordsBytes())
	sl.slots = make([]serverSlot, cfg.Slots)
	for i := range sl.slots {
		s := &sl.slots[i]
		s.word, s.req = words.part(i, 8).b, requests.part(i, cfg.requestStride())
		s.resp, s.status = responses.part(i, cfg.responseStride()), statuses.part(i, 8)
		s.resp.sge, s.status.sge = mem.MR.SGE(s.resp.off, uint64(len(s.resp.b))), mem.MR.SGE(s.status.off, 8)
		s.remoteW = peer.Slots.Addr + uint64(8*i)
		s.remote = peer.Slots.Addr + uint64(cfg.wordsBytes()+i*cfg.responseStride())
		s.x = Exchange{lane: sl, slot: s, index: uint16(i)}
		// The QP is connected and the client may have written already, so the
		// words are not cleared here: the owner hands out cleared memory.
	}
	sl.out = make([]uint16, 0, cfg.Slots)
	sl.cells = make([]bulkCell, cfg.Slots+cfg.BulkWRs)
	for i := range sl.cells {
		sl.cells[i].wake = make(chan struct{}, 1)
		sl.spare = append(sl.spare, uint16(i))
	}
	sl.ctx, sl.cancel = context.WithCancel(context.Background())
	return sl, nil
}

// join enters the poller and posts the receives.
func (sl *ServerLane) join() error {
	sl.scanner = sl.poller.enlist()
	sl.poller.attach(sl, &sl.conn, true)
	sl.mu.Lock()
	err := sl.fillReceives(sl.cfg.recvDepth())
	sl.mu.Unlock()
	if err != nil {
		// A request may have come already.
		sl.cause.CompareAndSwap(nil, sl.errorf(LayerPost, "accept", err))
		sl.cancel()
		sl.inside.shut()
		sl.leave()
	}
	return err
}

// leave undoes join.
func (sl *ServerLane) leave() {
	sl.poller.detach(sl, &sl.conn, true)
	sl.poller.dismiss(sl.scanner)
}

// Label are the words that Add got.
func (sl *ServerLane) Label() Label { return sl.label }

// Done is closed when the lane failed or was closed.
func (sl *ServerLane) Done() <-chan struct{} { return sl.ctx.Done() }

// Err is why the lane serves no more, or nil.
func (sl *ServerLane) Err() error {
	if e := sl.cause.Load(); e != nil {
		return e
	}
	return nil
}

// Fail retires the lane: its QP goes to ERR, handlers' contexts end, answers are
// dropped. Its owner still has to close it.
func (sl *ServerLane) Fail(cause *Error) {
	if !sl.cause.CompareAndSwap(nil, cause) {
		return
	}
	_ = sl.qp.Fail()
	sl.cancel()
	sl.wakeCells()
	sl.count.LanesDirty.Add(1)
	sl.cfg.emit(Event{Name: EventLaneDirty, Label: sl.label, Reason: string(cause.Layer), Err: cause})
}

// FailFrom retires the lane for a reason that its owner found.
func (sl *ServerLane) FailFrom(layer Layer, err error) { sl.Fail(sl.errorf(layer, "lane", err)) }

// QPN is the number of the lane's QP at this end.
func (sl *ServerLane) QPN() uint32 { return sl.qp.QPN() }

// Generation is the one that this end published.
func (sl *ServerLane) Generation() uint32 { return sl.gen }

// busy reports whether a request is being served or an answer is not yet sent and
// acknowledged.
func (sl *ServerLane) busy() bool {
	sl.mu.Lock()
	defer sl.mu.Unlock()
	if sl.cause.Load() != nil {
		return false // what it had is lost
	}
	for i := range sl.slots {
		if sl.slots[i].running || sl.slots[i].queued {
			return true
		}
	}
	return sl.sq.count > 0
}

// Close ends the lane: handlers' contexts end, the QP is destroyed, running
// handlers are waited for and what they answer is dropped. When it returns,
// nothing touches the lane's memory. A handler must not call it.
func (sl *ServerLane) Close() error {
	sl.closed.Do(func() {
		sl.cause.CompareAndSwap(nil, sl.closedError())
		sl.cancel()
		sl.wakeCells()
		sl.closeErr = sl.closeQP()
		sl.wakeCells()
		sl.inside.shut()
		sl.leave()
		sl.acc.drop(sl)
	})
	return sl.closeErr
}

// complete takes a completion; called under the poller's lock.
func (sl *ServerLane) complete(k kind, i uint16, wc *verbs.WC) (owes bool) {
	if wc.Status != verbs.WCSuccess {
		sl.count.bad(wc.Status)
		if sl.cause.Load() == nil {
			sl.Fail(sl.bad(wc))
		}
		sl.wakeCells()
		return false
	}
	switch k {
	case kindRecv:
		if n := immSlot(wc.Imm); wc.Flags&verbs.WCWithImm != 0 && n < len(sl.slots) {
			sl.notice(&sl.slots[n], true)
		} else {
			sl.count.BadImmediates.Add(1)
		}
		sl.owed++
		return sl.owed == 1
	case kindBulk:
		sl.mu.Lock()
		sl.sq.completed()
		sl.bulkDoneLocked(i)
		sl.flushLocked()
		sl.mu.Unlock()
		sl.wakeCells()
	default:
		sl.mu.Lock()
		sl.sq.completed()
		sl.flushLocked()
		sl.mu.Unlock()
		sl.wakeCells()
	}
	return false
}

func (sl *ServerLane) repost() {
	sl.mu.Lock()
	n := sl.owed
	sl.owed = 0
	err := sl.fillReceives(n)
	sl.mu.Unlock()
	if err != nil {
		sl.Fail(sl.errorf(LayerPost, "lane", err))
	}
}

// scan looks at every commit word.
func (sl *ServerLane) scan() bool {
	if sl.cause.Load() != nil {
		return false
	}
	did := false
	for i := range sl.slots {
		s := &sl.slots[i]
		// The lock is taken only when there is something new.
		if uint64(loadWord(s.word)) != s.last.Load() {
			did = sl.notice(s, false) || did
		}
	}
	return did
}

func (sl *ServerLane) broken(err error) { sl.Fail(sl.errorf(LayerDevice, "lane", err)) }

// notice looks at a slot's commit word and queues its request. told says that an
// immediate named the slot.
func (sl *ServerLane) notice(s *serverSlot, told bool) bool {
	sl.mu.Lock()
	x := sl.noticeLocked(s, told)
	sl.mu.Unlock()
	return x
}

// noticeLocked is the rule for every word that can be in a slot:
//
//   - the word that was looked at last: nothing new;
//   - a slot whose request is not answered yet: looked at again afterwards;
//   - another generation, or a sequence that was served: a leftover, ignored;
//   - a wrong check, state, or a sequence that leaves some out: answered with
//     StatusInvalid;
//   - the next sequence: served.
func (sl *ServerLane) noticeLocked(s *serverSlot, told bool) bool {
	if s.running || s.queued {
		s.again, sl.early = true, true
		return false
	}
	if sl.cause.Load() != nil {
		return false
	}
	w := loadWord(s.word)
	if uint64(w) == s.last.Load() {
		if told {
			sl.count.Duplicates.Add(1)
		}
		return false
	}
	s.last.Store(uint64(w))
	malformed := false
	switch {
	case !w.ok():
		malformed = true
	case w.gen() != uint16(sl.gen):
		sl.count.StaleWords.Add(1)
		return true
	case int32(w.seq()-s.seq) <= 0:
		sl.count.Replays.Add(1)
		return true
	default:
		malformed = w.state() != wordReady || w.seq() != s.seq+1
		s.seq = w.seq()
	}
	s.running = true
	sl.count.ReadySlots.Add(1)
	x := &s.x
	x.begin(w.seq(), malformed)
	if sl.acc.cfg.Workers > 0 && sl.acc.cfg.Sort == nil {
		sl.acc.work.push(x)
	} else {
		x.inline = true
		sl.scanner.push(x)
	}
	return true
}

// serve runs the checks and the handler of a request.
func (sl *ServerLane) serve(x *Exchange) {
	if !sl.inside.enter() {
		return
	}
	defer sl.inside.leave()
	watch := stopwatch(sl.cfg.Profile)
	if st := sl.check(x); st != StatusOK {
		x.Reply(st, 0)
	} else if sl.pass(x) {
		return // somebody else's from here on
	} else {
		sl.call(x)
	}
	x.end()
	lap(&sl.count.HandleNS, watch)
	sl.mu.Lock()
	x.slot.running = false
	sl.idleLocked(x.slot)
	sl.mu.Unlock()
}

// idleLocked looks at the slot again if a word came while it was busy.
func (sl *ServerLane) idleLocked(s *serverSlot) {
	if s.running || s.queued || !s.again {
		return
	}
	s.again = false
	sl.noticeLocked(s, false)
}

// check is examine, once for each request.
func (sl *ServerLane) check(x *Exchange) Status {
	if x.passed {
		return StatusOK
	}
	return sl.examine(x)
}

// pass hands a checked request from the poller to workers, if they are to serve it.
func (sl *ServerLane) pass(x *Exchange) bool {
	if sl.acc.cfg.Sort == nil || x.passed {
		return false
	}
	q := sl.acc.queueOf(x)
	if q == nil {
		return false
	}
	x.passed, x.inline = true, false
	q.push(x)
	return true
}

// examine checks a descriptor before anything else is touched. One that does not
// match may not be there yet, and is waited for.
func (sl *ServerLane) examine(x *Exchange) Status {
	if x.malformed {
		sl.count.InvalidDescriptor.Add(1)
		return StatusInvalid
	}
	st, matches := sl.examineOnce(x)
	for start := time.Now(); !matches && time.Since(start) < sl.cfg.Settle && sl.cause.Load() == nil; {
		sl.wait(x)
		if st, matches = sl.examineOnce(x); matches {
			sl.count.Settled.Add(1)
		}
	}
	switch st {
	case StatusInvalid, StatusTooLarge:
		sl.count.InvalidDescriptor.Add(1)
	case StatusWrongShard:
		sl.count.WrongShard.Add(1)
	}
	return st
}

// wait passes a little time usefully.
func (sl *ServerLane) wait(x *Exchange) {
	if !sl.poller.help() {
		pause()
	}
}

// examineOnce copies the descriptor, so that a peer that goes on writing cannot
// change what was checked. matches is false when what is there is not all of this
// request; a descriptor that matches its word and its checksum is final.
func (sl *ServerLane) examineOnce(x *Exchange) (st Status, matches bool) {
	copy(x.desc[:], x.slot.req.b[:descBytes])
	d := desc(x.desc[:])
	n := int(d.payload())
	if n < 0 || n > sl.cfg.RequestBytes {
		// The checksum of what is not in the slot cannot be computed.
		return StatusTooLarge, false
	}
	x.payload = x.slot.req.b[descBytes : descBytes+n : descBytes+n]
	if d.checksum() != sum(d, x.payload, sl.cfg.HeaderChecksum) {
		return StatusInvalid, false
	}
	if d.seq() != x.seq || d.generation() != sl.gen {
		// Still the request before; after a rebuild it may have the same sequence.
		return StatusInvalid, false
	}
	switch {
	case d.magic() != descMagic, d.version() != Version, d.slot() != x.index:
		return StatusInvalid, true
	case d.label() != uint32(sl.label.Shard):
		return StatusWrongShard, true
	case int64(d.capacity()) > int64(sl.cfg.ResponseBytes):
		return StatusTooLarge, true
	}
	x.room = int(d.capacity())
	if us := d.deadline(); us != 0 {
		x.deadline = time.Now().Add(time.Duration(min(us, maxDeadline)) * time.Microsecond)
	}
	return StatusOK, true
}

// maxDeadline keeps a peer's number of microseconds inside a time.Duration.
const maxDeadline = 1 << 52
