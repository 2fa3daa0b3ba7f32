package lane

import (
	"context"
	"fmt"
	"runtime"
	"runtime/debug"
	"time"

	"github.com/railstore/railstore/verbs"
)

// Exchange is one request being served and its answer. It belongs to the
// goroutine that Serve runs on.
type Exchange struct {
	lane   *ServerLane
	slot   *serverSlot
	index  uint16
	next   *Exchange // in a queue
	inline bool      // runs on the goroutine of its lane's scanner
	passed bool      // the poller has checked it and handed it on

	seq       uint32
	malformed bool
	replied   bool
	desc      [descBytes]byte
	payload   []byte
	room      int
	deadline  time.Time
	ctx       *requestContext // kept for the next request if it can be
	asked     bool            // for ctx, which is this request's then
	open      []uint16        // cells of reads and writes that were not waited for
}

func (x *Exchange) begin(seq uint32, malformed bool) {
	x.seq, x.malformed, x.replied, x.passed = seq, malformed, false, false
	x.payload, x.room, x.deadline = nil, 0, time.Time{}
}

// end is called after Serve.
func (x *Exchange) end() {
	for len(x.open) > 0 {
		_ = Bulk{x: x, cell: x.open[len(x.open)-1]}.Wait(x.Context())
	}
	if x.asked && !x.ctx.over() {
		x.ctx = nil
	}
	x.asked = false
}

// Op is the request's operation.
func (x *Exchange) Op() uint16 { return desc(x.desc[:]).op() }

// Flags are the request's flags; the lane gives them no meaning.
func (x *Exchange) Flags() uint16 { return desc(x.desc[:]).flags() }

// Token is the request's idempotency token; 0 is none.
func (x *Exchange) Token() uint64 { return desc(x.desc[:]).token() }

// Lane is the lane that it came over.
func (x *Exchange) Lane() *ServerLane { return x.lane }

// Label are the words of the lane's owner.
func (x *Exchange) Label() Label { return x.lane.label }

// Payload is the request's payload, in the slot: it is valid until the answer.
// A peer that breaks the rules may change it meanwhile, so what is checked must
// be what is used.
func (x *Exchange) Payload() []byte { return x.payload }

// Deadline is when the caller will have given up; zero: it said nothing.
func (x *Exchange) Deadline() time.Time { return x.deadline }

// Context ends with the request's deadline, with the lane, and with Serve.
func (x *Exchange) Context() context.Context {
	if x.deadline.IsZero() {
		return x.lane.ctx
	}
	if !x.asked {
		if x.ctx == nil {
			x.ctx = &requestContext{lane: x.lane.ctx}
		}
		x.ctx.deadline, x.asked = x.deadline, true
	}
	return x.ctx
}

// Response is the room for the answer, in registered memory: as much as the
// caller has room for. It is valid until the answer.
func (x *Exchange) Response() []byte {
	return x.slot.resp.b[headBytes : headBytes+x.room : headBytes+x.room]
}

// ResponseRegion is the same room at the client, for an answer that is written
// from elsewhere (see ReplyPlaced).
func (x *Exchange) ResponseRegion() verbs.RemoteRegion {
	return verbs.RemoteRegion{Addr: x.slot.remote + headBytes, Length: uint64(x.room), RKey: x.lane.peer.Slots.RKey}
}

// Reply answers with a status and the first n bytes of Response. Only the first
// answer counts. More bytes than there is room for are answered with
// StatusTooLarge. After it, Payload and Response must not be used.
func (x *Exchange) Reply(st Status, n int) {
	if n < 0 || n > x.room {
		st, n = StatusTooLarge, 0
	}
	x.reply(st, n, n, 0)
}

// ReplyPlaced answers with a status and n bytes that writes to ResponseRegion,
// started before, put there. They are not in the answer's checksum.
func (x *Exchange) ReplyPlaced(st Status, n int) {
	if n < 0 || n > x.room {
		st, n = StatusTooLarge, 0
	}
	x.reply(st, n, 0, flagPlaced)
}

func (x *Exchange) reply(st Status, n, staged int, flags uint16) {
	if x.replied {
		return
	}
	x.replied = true
	sl, s := x.lane, x.slot
	h := head(s.resp.b[:headBytes])
	h.put(flags, x.seq, sl.peer.Generation, x.index, int32(st), uint32(n))
	putSum(h, sum(h, s.resp.b[headBytes:headBytes+staged], sl.cfg.HeaderChecksum))
	putWord(s.status.b, makeWord(x.seq, uint16(sl.peer.Generation), wordDone))
	sl.mu.Lock()
	defer sl.mu.Unlock()
	if sl.cause.Load() != nil {
		sl.dropStale(1)
		return
	}
	s.length, s.queued = headBytes+staged, true
	sl.out = append(sl.out, x.index)
	if x.inline {
		sl.scanner.deferFlush(sl)
		return
	}
	sl.flushLocked()
}

// dropStale counts answers that have no lane to go over any more.
func (sl *ServerLane) dropStale(n int) {
	sl.count.DroppedStale.Add(uint64(n))
	sl.cfg.emit(Event{Name: EventDroppedStale, Label: sl.label, Reason: fmt.Sprintf("%d answers", n), Err: sl.Err()})
}

func (sl *ServerLane) flush() {
	sl.mu.Lock()
	sl.flushLocked()
	sl.mu.Unlock()
}

// flushLocked posts the answers that wait, as many as the send queue takes, in
// one batch; completions call it again for the rest.
func (sl *ServerLane) flushLocked() {
	if len(sl.out) == 0 {
		return
	}
	if sl.destroyed || sl.cause.Load() != nil {
		for _, i := range sl.out {
			sl.slots[i].queued = false
		}
		sl.dropStale(len(sl.out))
		sl.out = sl.out[:0]
		return
	}
	n := min(len(sl.out), sl.sq.free/2)
	if n < len(sl.out) {
		sl.count.DrainResponse.Add(1)
	}
	if n == 0 {
		if sl.stuck.IsZero() {
			sl.stuck = time.Now()
		} else if time.Since(sl.stuck) > sl.cfg.TrackedTimeout {
			sl.Fail(sl.errorf(LayerTracked, "reply", fmt.Errorf("%w: %v", ErrTracked, sl.cfg.TrackedTimeout)))
		}
		return
	}
	if !sl.stuck.IsZero() {
		lap(&sl.count.DrainResponseNS, sl.stuck)
		sl.stuck = time.Time{}
	}
	watch := stopwatch(sl.cfg.Profile)
	wrs, sges := sl.wrs[:0], sl.sges[:0]
	rkey := sl.peer.Slots.RKey
	for _, i := range sl.out[:n] {
		s := &sl.slots[i]
		id := wrid(kindSend, i, sl.id, sl.idGen)
		body := s.resp.sge
		body.Length = uint32(s.length)
		word := verbs.SendWR{ID: id, Op: verbs.OpWrite, RemoteAddr: s.remoteW, RKey: rkey, NumSGE: 1}
		if sl.notify != Scan {
			word.Op, word.Imm, word.Flags = verbs.OpWriteImm, makeImm(i, s.x.seq), verbs.Solicited
		}
		wrs = append(wrs, verbs.SendWR{ID: id, Op: verbs.OpWrite, RemoteAddr: s.remote, RKey: rkey, NumSGE: 1}, word)
		sges = append(sges, body, s.status.sge)
	}
	signal := sl.sq.wants(len(wrs))
	if signal {
		wrs[len(wrs)-1].Flags |= verbs.Signaled
	}
	sl.sq.reserve(len(wrs))
	_, err := sl.qp.PostSend(wrs, sges)
	if err != nil {
		sl.Fail(sl.errorf(LayerPost, "reply", err))
	} else {
		sl.sq.posted(len(wrs), signal)
		sl.count.CompleteResponse.Add(uint64(n))
		sl.count.ResponseBatches.Add(1)
	}
	lap(&sl.count.CompleteResponseNS, watch)
	for _, i := range sl.out[:n] {
		sl.slots[i].queued = false
	}
	rest := copy(sl.out, sl.out[n:])
	sl.out = sl.out[:rest]
	// A word that came before its slot was idle: of a peer that did not wait for
	// the answer, or that was quicker with the next request than this goroutine.
	if sl.early {
		sl.early = false
		for i := range sl.slots {
			sl.idleLocked(&sl.slots[i])
		}
	}
}

// call runs the handler; whatever it does, the request is answered.
func (sl *ServerLane) call(x *Exchange) {
	defer func() {
		if r := recover(); r != nil {
			sl.count.HandlerExceptions.Add(1)
			sl.cfg.emit(Event{Name: EventHandlerException, Label: sl.label, Reason: fmt.Sprintf("op %d: %v", x.Op(), r),
				Err: fmt.Errorf("panic: %v\n%s", r, debug.Stack())})
			x.Reply(StatusInternal, 0)
		}
	}()
	sl.acc.h.Serve(x)
	x.Reply(StatusInvalid, 0)
}

func pause() { runtime.Gosched() }
