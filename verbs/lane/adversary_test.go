package lane

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"go.uber.org/goleak"

	"github.com/railstore/railstore/verbs"
	"github.com/railstore/railstore/verbs/verbstest"
)

// TestAdversary plays stories in which everything goes wrong at once, each from a
// seed: callers that give up at any time, WRITEs that are seen late, completions
// that are swallowed, posts that fail, QPs that break at either end, rebuilds,
// lanes that close and come, handlers that answer when their lane has gone. What
// must hold in all of them:
//
//   - an answer that a caller gets is the one to its request, byte for byte;
//   - a handler sees whole requests only, each at most once, and nobody writes
//     into a request while it is served;
//   - no request goes into a slot before the answer to the one before it was
//     written or its QP was destroyed;
//   - afterwards every slot of every lane that is well is free once, and nothing
//     is left.
//
// RS_TEST_SEED plays one story many times.
func TestAdversary(t *testing.T) {
	ignore := goleak.IgnoreCurrent()
	budget, stories := 18*time.Second, 4000
	if raceEnabled {
		budget = 10 * time.Second
	}
	if testing.Short() {
		budget, stories = 2*time.Second, 300
	}
	one, fixed := uint64(0), false
	if s := os.Getenv("RS_TEST_SEED"); s != "" {
		v, err := strconv.ParseUint(s, 0, 64)
		if err != nil {
			t.Fatalf("RS_TEST_SEED=%q: %v", s, err)
		}
		one, fixed, stories = v, true, 200
	}
	first := uint64(time.Now().UnixNano())
	if fixed {
		first = one - 1
	}
	var next, played atomic.Uint64
	var sum storySum
	end := time.Now().Add(budget)
	var wg sync.WaitGroup
	for range 12 { // a story mostly waits
		wg.Go(func() {
			for n := next.Add(1); n <= uint64(stories) && time.Now().Before(end) && !t.Failed(); n = next.Add(1) {
				seed := first + n
				if fixed {
					seed = one
				}
				// A story's own goroutine may end it by Fatal.
				t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) { playStory(t, seed, &sum) })
				played.Add(1)
			}
		})
	}
	wg.Wait()
	t.Logf("%d stories from RS_TEST_SEED=%d: %d calls, %d answered, %d failed, %d given up; %d rebuilds, %d lanes changed, %d settled, %d late answers, %d dropped",
		played.Load(), first+1, sum.calls.Load(), sum.answered.Load(), sum.failed.Load(), sum.gaveUp.Load(), sum.rebuilds.Load(),
		sum.changed.Load(), sum.settled.Load(), sum.late.Load(), sum.dropped.Load())
	if !fixed && !t.Failed() {
		// Otherwise nothing was put to the test.
		for what, n := range map[string]uint64{"answers": sum.answered.Load(), "failures": sum.failed.Load(), "calls given up": sum.gaveUp.Load(),
			"rebuilds": sum.rebuilds.Load(), "lanes changed": sum.changed.Load(), "late WRITEs": sum.settled.Load(),
			"late answers": sum.late.Load(), "dropped answers": sum.dropped.Load()} {
			if n == 0 {
				t.Errorf("no %s in %d stories", what, played.Load())
			}
		}
	}
	goleak.VerifyNone(t, ignore)
}

type storySum struct {
	calls, answered, failed, gaveUp, rebuilds, changed, settled, late, dropped atomic.Uint64
}

// story is one seed's rig and what is known of its requests.
type story struct {
	*rig
	t     *testing.T
	sum   *storySum
	rnd   *rand.Rand // the story's goroutine's
	fault *verbstest.Fault
	obs   *observer
	ccfg  Config
	scfg  Config
	lossy bool
	late  bool
	ends  []*storyLane
	gens  uint32

	known  sync.Mutex
	served map[uint64]bool
	wrong  []string
	inSlot map[uintptr]uint16 // slot by the place of its request's payload
}

type storyLane struct {
	l      *Lane
	sl     *ServerLane
	cm, sm Memory
}

func (s *story) violation(format string, args ...any) {
	s.known.Lock()
	defer s.known.Unlock()
	s.wrong = append(s.wrong, fmt.Sprintf(format, args...))
}

func playStory(t *testing.T, seed uint64, sum *storySum) {
	rnd := rand.New(rand.NewPCG(seed, seed>>1|1))
	s := &story{t: t, sum: sum, rnd: rnd, served: map[uint64]bool{}, inSlot: map[uintptr]uint16{}}
	var late, lose atomic.Bool
	chance := rand.New(rand.NewPCG(seed, 2)) // under the locks of the drivers below
	var chanceMu sync.Mutex
	hits := func(share float64) bool {
		chanceMu.Lock()
		defer chanceMu.Unlock()
		return chance.Float64() < share
	}
	cfg := Config{Notify: Notify(rnd.IntN(3)), Slots: 1 + rnd.IntN(3), RequestBytes: 256, ResponseBytes: 256, Settle: 500 * time.Millisecond,
		WaitTimeout: 100 * time.Millisecond, TrackedTimeout: 50 * time.Millisecond, Quiesce: 2 * time.Millisecond,
		TouchAfter: time.Millisecond, TouchEvery: time.Millisecond, TouchTimeout: 50 * time.Millisecond, HarvestEvery: 500 * time.Microsecond}
	if s.lossy = rnd.IntN(5) == 0; s.lossy {
		cfg.WaitTimeout, cfg.TrackedTimeout, cfg.TouchTimeout = 25*time.Millisecond, 15*time.Millisecond, 15*time.Millisecond
	}
	if rnd.IntN(3) == 0 {
		cfg.Spin = -1
	}
	tardy := 0.3 * rnd.Float64()
	loop := verbstest.NewLoop(verbstest.LoopOptions{Async: rnd.IntN(2) == 0, Late: func(wr *verbs.SendWR) time.Duration {
		// The word that is announced by an immediate is never late: nobody would
		// look again.
		if wr.Op == verbs.OpWrite && late.Load() && hits(tardy) {
			return time.Duration(20+hash64(wr.RemoteAddr)%200) * time.Microsecond
		}
		return 0
	}})
	s.obs = observe(loop)
	s.fault = verbstest.NewFault(s.obs)
	lanes := 1 + rnd.IntN(3)
	s.rig = newRig(t, rigOptions{driver: verbstest.Trace(t, s.fault), cfg: cfg, lanes: lanes, rails: 2, workers: rnd.IntN(4), noLeak: true,
		path: pathOfTwoMS}, HandlerFunc(s.serve))
	s.ccfg, s.scfg = s.lanes[0].cfg, s.served0().cfg
	for i, l := range s.lanes {
		c, v := i*align64(cfg.ClientBytes()), i*align64(cfg.ServerBytes())
		e := &storyLane{l: l, sl: s.rig.served[i],
			cm: Memory{MR: s.client.mr, Bytes: s.client.region.Bytes()[c : c+cfg.ClientBytes()], Off: uint64(c)},
			sm: Memory{MR: s.server.mr, Bytes: s.server.region.Bytes()[v : v+cfg.ServerBytes()], Off: uint64(v)}}
		s.ends = append(s.ends, e)
		s.obs.know(fmt.Sprintf("lane %d", i), cfg.Slots, verbs.AddrOf(e.sm.Bytes), verbs.AddrOf(e.cm.Bytes))
		for k := range l.slots {
			s.inSlot[uintptr(unsafe.Pointer(&l.slots[k].req.b[descBytes]))] = uint16(k)
		}
	}
	s.gens = 1000
	if rnd.IntN(3) > 0 {
		s.pool.SetKeeper(storyKeeper{}) // callers wait for lanes
	}
	s.late = rnd.IntN(2) == 0
	late.Store(s.late)
	if s.lossy {
		lose.Store(true)
		s.fault.DropCompletions(func(verbs.WC) bool { return lose.Load() && hits(0.03) })
	}
	var wg sync.WaitGroup
	for c := range 2 + rnd.IntN(4) {
		crnd := rand.New(rand.NewPCG(seed, uint64(c)+10))
		wg.Go(func() { s.caller(uint64(c), crnd) })
	}
	for range 3 + rnd.IntN(10) {
		<-time.After(time.Duration(rnd.IntN(300)) * time.Microsecond)
		s.harm()
		if rnd.IntN(2) == 0 {
			s.heal(false)
		}
	}
	ended := make(chan struct{})
	go func() { wg.Wait(); close(ended) }()
	// Callers wait for lanes: somebody has to go on healing.
	for open := true; open; {
		select {
		case <-ended:
			open = false
		case <-time.After(200 * time.Microsecond):
			s.heal(true)
		}
	}
	lose.Store(false)
	s.fault.Clear()
	late.Store(false)
	s.whole()
	for _, c := range []*Counters{s.pool.Counters(), s.acceptor.Counters()} {
		sum.settled.Add(c.Settled.Load())
		sum.late.Add(c.LateCompletions.Load())
		sum.dropped.Add(c.DroppedStale.Load())
	}
	if err := errors.Join(s.pool.Close(), s.acceptor.Close()); err != nil {
		t.Error(err)
	}
	if n := s.pool.Counters().PendingRPC.Load(); n != 0 {
		t.Errorf("%d requests are said to be under way after the end", n)
	}
	if a, b := s.client.poller.sleepers.Load(), s.client.poller.scanning.Load(); a != 0 || b != 0 {
		t.Errorf("%d sleepers and %d scans after the end", a, b)
	}
	s.known.Lock()
	defer s.known.Unlock()
	for _, w := range append(s.wrong, s.obs.report()...) {
		t.Error(w)
	}
	if t.Failed() {
		t.Logf("RS_TEST_SEED=%d, %v, %d slots, %d lanes, lossy %v", seed, cfg.Notify, cfg.Slots, lanes, s.lossy)
	}
}

func (s *story) served0() *ServerLane { return s.rig.served[0] }

func hash64(x uint64) uint64 {
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	return x ^ x>>33
}

// A request's payload: who, which, where, and bytes that follow from these.
const storyHead = 18

func storyKey(caller, number uint64) uint64 { return caller<<32 | number }

// storyBytes writes the payload of a request, or its answer's, and gives its
// length.
func storyBytes(b []byte, key uint64, answer bool, slot uint16) int {
	h := hash64(key + 1)
	if answer {
		h = ^h
	}
	n := storyHead + int(h%uint64(len(b)-storyHead+1))
	binary.LittleEndian.PutUint64(b, key)
	binary.LittleEndian.PutUint64(b[8:], h)
	binary.LittleEndian.PutUint16(b[16:], slot)
	for i := storyHead; i < n; i++ {
		b[i] = byte(h>>(i%8*8)) + byte(i)
	}
	return n
}

func storyCheck(b []byte, answer bool) (key uint64, slot uint16, ok bool) {
	if len(b) < storyHead {
		return 0, 0, false
	}
	key, slot = binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint16(b[16:])
	var want [256]byte
	n := storyBytes(want[:], key, answer, slot)
	return key, slot, n == len(b) && string(want[:n]) == string(b)
}

// What a handler does, by the op.
const (
	opPlain = iota
	opSlow
	opHold // until the context ends, and then answers all the same
	opPanic
	opSilent
	ops
)

func (s *story) serve(x *Exchange) {
	key, slot, ok := storyCheck(x.Payload(), false)
	if !ok || slot != x.index {
		s.violation("slot %d: the handler saw a request that nobody made: % x", x.index, x.Payload())
		x.Reply(StatusInternal, 0)
		return
	}
	s.known.Lock()
	again := s.served[key]
	s.served[key] = true
	s.known.Unlock()
	if again {
		s.violation("request %#x was handed to the handler twice", key)
	}
	switch x.Op() {
	case opSlow:
		<-time.After(time.Duration(hash64(key)%200) * time.Microsecond)
	case opHold:
		limit := 3 * time.Millisecond
		if s.acceptor.cfg.Workers == 0 {
			limit = 300 * time.Microsecond // others are held up
		}
		select {
		case <-x.Context().Done():
		case <-time.After(limit):
		}
	case opPanic:
		panic("of the story")
	case opSilent:
		return
	}
	// While its lane is well, nobody but the client may have touched the request,
	// and the client waits.
	if k, _, ok := storyCheck(x.Payload(), false); (!ok || k != key) && x.lane.Err() == nil {
		s.violation("request %#x changed while it was served", key)
	}
	x.Reply(StatusOK, storyBytes(x.Response(), key, true, slot))
}

func (s *story) caller(id uint64, rnd *rand.Rand) {
	buf := make([]byte, 256)
	for n := range uint64(4 + rnd.IntN(8)) {
		key := storyKey(id+1, n)
		patience := 10 * time.Second
		if rnd.IntN(4) == 0 {
			patience = time.Duration(rnd.IntN(400)) * time.Microsecond
		}
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		var slot uint16
		op := uint16(opPlain)
		if rnd.IntN(3) == 0 {
			op = uint16(rnd.IntN(ops))
		}
		r := Request{Op: op, Exposed: rnd.IntN(10) == 0, Fill: func(dst []byte) int {
			var ok bool
			if slot, ok = s.inSlot[uintptr(unsafe.Pointer(&dst[0]))]; !ok {
				s.violation("request %#x was put nowhere known", key)
			}
			return storyBytes(dst, key, false, slot)
		}}
		if rnd.IntN(4) == 0 {
			r.Rail = []string{"r0", "r1"}[rnd.IntN(2)]
		}
		s.sum.calls.Add(1)
		var got Response
		var err error
		body := buf
		switch how := rnd.IntN(4); how {
		case 0:
			got, err = s.pool.Call(ctx, r, buf)
		default:
			var tk Ticket
			if tk, err = s.pool.Start(ctx, r); err != nil {
				break
			}
			if rnd.IntN(2) == 0 {
				<-time.After(time.Duration(rnd.IntN(300)) * time.Microsecond)
			}
			switch how {
			case 1:
				got, err = tk.Wait(ctx, buf)
			case 2:
				got, err = tk.View(ctx, func(r Response, b []byte) error {
					body = slices.Clone(b)
					<-time.After(50 * time.Microsecond)
					if string(body) != string(b) {
						s.violation("the answer to %#x changed while it was looked at", key)
					}
					return nil
				})
			default:
				tk.Cancel()
				err = context.Canceled
			}
		}
		early := ctx.Err() != nil
		cancel()
		switch {
		case err != nil:
			if early && patience >= 10*time.Second {
				s.violation("request %#x hung: %v", key, err)
			}
			if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
				s.sum.gaveUp.Add(1)
			} else {
				s.sum.failed.Add(1)
			}
			var le *Error
			if err != context.Canceled && (!errors.As(err, &le) || le.Layer == LayerIntegrity || errors.Is(err, ErrTicketUsed)) {
				s.violation("request %#x failed by %v", key, err)
			}
		case got.Status != StatusOK:
			if want := map[uint16]Status{opPanic: StatusInternal, opSilent: StatusInvalid}[op]; got.Status != want || want == 0 {
				s.violation("request %#x of op %d was answered with %v", key, op, got.Status)
			}
		default:
			s.sum.answered.Add(1)
			k, at, ok := storyCheck(body[:got.N], true)
			if !ok || k != key || at != slot {
				s.violation("request %#x in slot %d got the answer to %#x in slot %d: % x", key, slot, k, at, body[:got.N])
			}
		}
	}
}

// harm does one bad thing.
func (s *story) harm() {
	e := s.ends[s.rnd.IntN(len(s.ends))]
	switch s.rnd.IntN(8) {
	case 0:
		e.l.FailFrom(LayerNode, ErrPeerDead, true)
	case 1: // behind the lane's back
		e.l.mu.Lock()
		qp := e.l.qp
		e.l.mu.Unlock()
		_ = qp.Fail()
	case 2:
		e.sl.FailFrom(LayerDevice, syscall.EIO)
	case 3:
		_ = e.sl.qp.Fail()
	case 4:
		if !s.late { // what it took with it would be waited for
			_ = e.sl.closeQP()
		}
	case 5:
		s.fault.Fail("post_send", 1+s.rnd.IntN(3), 1, syscall.ENOMEM)
	case 6:
		s.fault.Fail("post_recv", 1+s.rnd.IntN(3), 1, syscall.ENOMEM)
	case 7:
		if err := e.l.Close(); err != nil {
			s.violation("closing a lane: %v", err)
		}
	}
}

// storyKeeper promises that somebody is at work on every lane, which is true.
type storyKeeper struct{}

func (storyKeeper) Wanted(string) bool { return true }
func (storyKeeper) Down(*Lane)         {}

// heal rebuilds what can be rebuilt and puts new lanes in place of the rest. The
// server's lane that ended by itself is noticed only with the word of its client,
// as in a deployment.
func (s *story) heal(all bool) {
	defer s.pool.Settled()
	for _, e := range s.ends {
		if !all && s.rnd.IntN(2) == 0 {
			continue
		}
		switch f := e.l.Flags(); {
		case e.l.State() == Active:
		case f.Rebuildable && !f.Dead && s.rnd.IntN(8) > 0:
			s.renew(e)
		default:
			s.replace(e)
		}
	}
}

func (s *story) pair(e *storyLane) (c *verbs.QP, sl *ServerLane) {
	if err := e.sl.Close(); err != nil {
		s.violation("closing a lane at the server: %v", err)
	}
	s.gens++
	e.cm.Generation, e.sm.Generation = s.gens, s.gens+5000
	c, q := s.qps(s.ccfg, s.scfg, verbs.PathOpts{RetryCount: 1, RNRRetry: 7, Timeout: 8, Access: verbs.RemoteWrite | verbs.RemoteRead})
	s.scfg.Clear(e.sm)
	sl, err := s.acceptor.Add(s.server.poller, q, e.sm, Peer{Slots: s.ccfg.ClientSlots(e.cm), Generation: e.cm.Generation}, s.scfg, e.l.Label())
	if err != nil {
		s.close(q, c)
		return nil, nil
	}
	e.sl = sl
	return c, sl
}

func (s *story) close(qps ...*verbs.QP) {
	for _, q := range qps {
		if err := q.Close(); err != nil {
			s.violation("closing a QP: %v", err)
		}
	}
}

func (s *story) renew(e *storyLane) {
	ok, err := e.l.BeginRebuild()
	if err != nil {
		s.violation("beginning a rebuild: %v", err)
	}
	if !ok {
		return
	}
	c, _ := s.pair(e)
	if c == nil {
		e.l.AbortRebuild(false)
		return
	}
	if err := e.l.FinishRebuild(c, e.cm.Generation, Peer{Slots: s.scfg.ServerSlots(e.sm), Generation: e.sm.Generation}); err != nil {
		s.close(c)
		e.l.AbortRebuild(false)
		return
	}
	s.sum.rebuilds.Add(1)
}

func (s *story) replace(e *storyLane) {
	if err := e.l.Close(); err != nil {
		s.violation("closing a lane: %v", err)
	}
	c, _ := s.pair(e)
	if c == nil {
		return
	}
	l, err := New(s.client.poller, c, e.cm, Peer{Slots: s.scfg.ServerSlots(e.sm), Generation: e.sm.Generation}, s.ccfg, e.l.Label())
	if err != nil {
		s.close(c)
		return
	}
	s.pool.Remove(e.l)
	s.pool.Add(l)
	e.l = l
	s.sum.changed.Add(1)
}

// whole waits until every lane is Dirty, or has all of its slots back.
func (s *story) whole() {
	deadline := time.Now().Add(5 * time.Second)
	for _, e := range s.ends {
		for {
			s.pool.mu.Lock()
			free := slices.Clone(e.l.free)
			s.pool.mu.Unlock()
			slices.Sort(free)
			if n := len(slices.Compact(slices.Clone(free))); n != len(free) {
				s.violation("lane %d: a slot is free twice: %v", e.l.label.Index, free)
				break
			}
			if e.l.State() != Active || len(free) == len(e.l.slots) {
				break
			}
			if time.Now().After(deadline) {
				s.violation("lane %d: of %d slots only %v came back", e.l.label.Index, len(e.l.slots), free)
				break
			}
			<-time.After(100 * time.Microsecond)
		}
	}
}
