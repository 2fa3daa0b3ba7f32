package soft

import (
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/railstore/railstore/verbs"
)

// script is the faults of a driver. All devices of a driver play one script: a
// rail that is opened again goes on where it was.
type script struct {
	start time.Time
	// down and moved count the faults that hold the port down and the GIDs
	// away; they are read without the lock.
	down, moved atomic.Int32

	mu      sync.Mutex // guards what follows; leaf but for timerMu and the MR tables' locks
	entries []*entry
	lastID  int
	refused error     // the first of Options.Faults that is wrong
	opened  bool      // a device was
	players []*player // of the open devices
	bytes   uint64    // that passed
	packets uint64
	turned  bool // an entry began or ended since the last engage
}

// entry is a fault of a script.
type entry struct {
	id    int
	f     Fault
	kind  faultKind
	peer  faultPeer
	errno unix.Errno
	rng   *rand.Rand

	state   string
	counted bool // since, bytes and packets are set
	since   int64
	bytes   uint64
	packets uint64
	ends    int64 // 0: never
	hits    uint64

	free [2]int64 // bandwidth: when the line is free again, by direction
}

func newScript(faults []Fault) *script {
	s := &script{start: time.Now().Add(-time.Second)}
	for i, f := range faults {
		if err := f.Validate(); err != nil {
			s.refused = fmt.Errorf("faults[%d].%w", i, err)
			return s
		}
		s.append(f)
	}
	return s
}

// clock is the time of the script, never 0.
func (s *script) clock() int64 { return int64(time.Since(s.start)) }

func (s *script) append(f Fault) *entry {
	s.lastID++
	kind, _ := kindOf(f.Do)
	e := &entry{id: s.lastID, f: f, kind: kind, state: FaultWaiting, rng: rand.New(rand.NewPCG(f.Seed, uint64(kind)))}
	e.peer, _ = parseFaultPeer(f.Match.Peer)
	e.errno = unix.EIO
	if f.Errno != "" {
		e.errno, _ = errnoNamed(f.Errno)
	}
	s.entries = append(s.entries, e)
	return e
}

// AddFault adds a fault to those of all the driver's devices, open or not. What it
// counts it counts from now on. The error says which field is wrong.
func (d *Driver) AddFault(f Fault) (id int, err error) {
	if err := f.Validate(); err != nil {
		return 0, &verbs.Error{Op: "add_fault", Device: "soft", Kind: verbs.ErrInvalid, Err: err}
	}
	s := d.script
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.append(f)
	if s.opened {
		s.countFrom(e)
	}
	s.advance()
	s.engage()
	return e.id, nil
}

// ClearFaults ends faults and forgets them, all when none is named. What they hold
// back is let go. It returns how many there were.
func (d *Driver) ClearFaults(ids ...int) int {
	s := d.script
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	s.entries = slices.DeleteFunc(s.entries, func(e *entry) bool {
		if len(ids) > 0 && !slices.Contains(ids, e.id) {
			return false
		}
		s.end(e)
		for _, p := range s.players {
			p.letGo(e.id)
		}
		n++
		return true
	})
	s.engage()
	return n
}

// Faults are the driver's faults in the order in which they came.
func (d *Driver) Faults() []FaultStatus {
	s := d.script
	s.mu.Lock()
	defer s.mu.Unlock()
	s.advance()
	out := make([]FaultStatus, 0, len(s.entries))
	for _, e := range s.entries {
		out = append(out, FaultStatus{ID: e.id, Fault: e.f, State: e.state, Hits: e.hits})
	}
	return out
}

// AnswerDelay is how long the answer to an offer of a connection is to be held
// back. It counts as a hit of the fault delay_answer.
func (d *Driver) AnswerDelay() time.Duration {
	s := d.script
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.entries) == 0 {
		return 0
	}
	s.advance()
	var by time.Duration
	for _, e := range s.entries {
		if e.kind == delayAnswer && e.state == FaultActive {
			by = max(by, e.f.By)
			s.hit(e)
		}
	}
	return by
}

// fails is the error that a verb is to fail with.
func (s *script) fails(op, verb, device string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.advance()
	for _, e := range s.entries {
		if e.kind == failVerb && e.state == FaultActive && e.f.Op == op && s.draw(e) {
			return &verbs.Error{Op: verb, Device: device, Kind: kindOfErrno(op, e.errno),
				Err: fmt.Errorf("fault %d of the rail's script: %w", e.id, e.errno)}
		}
	}
	return nil
}

// countFrom makes an entry count from now on.
func (s *script) countFrom(e *entry) {
	e.counted, e.since, e.bytes, e.packets = true, s.clock(), s.bytes, s.packets
}

// join makes a device play the script, which begins with the first of them.
func (s *script) join(p *player) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.players = append(s.players, p)
	if !s.opened {
		s.opened = true
		for _, e := range s.entries {
			s.countFrom(e)
		}
	}
	s.advance()
	s.engage()
}

// leave ends that; nothing of the device is touched any more.
func (s *script) leave(p *player) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.players = slices.DeleteFunc(s.players, func(x *player) bool { return x == p })
	p.in, p.out = nil, nil
	p.dev.faults.Store(nil)
}

// engage has every device look at the script where there is something in it to
// look at, and wakes those whose goroutines have something to do.
func (s *script) engage() {
	busy := false
	for _, e := range s.entries {
		busy = busy || e.state != FaultOver
	}
	for _, p := range s.players {
		if !busy && len(p.in)+len(p.out) == 0 && p.late.Load() == 0 {
			p.dev.faults.Store(nil)
			continue
		}
		p.dev.faults.Store(p)
		if t := s.nextFor(p); t != math.MaxInt64 {
			now := p.dev.now()
			p.dev.scanAt(max(later(now, time.Duration(t-s.clock())), 1), now)
		}
	}
}

// later is t+d, or the end of time.
func later(t int64, d time.Duration) int64 {
	if int64(d) > math.MaxInt64-t {
		return math.MaxInt64
	}
	return t + int64(d)
}

// nextFor is when the device has something to do by itself, in the script's time.
func (s *script) nextFor(p *player) int64 {
	t := int64(math.MaxInt64)
	for _, e := range s.entries {
		switch {
		case e.state == FaultWaiting && e.counted && e.f.At.Time > 0:
			t = min(t, later(e.since, e.f.At.Time))
		case e.state == FaultActive && e.ends != 0:
			t = min(t, e.ends)
		}
	}
	if len(p.in) > 0 {
		t = min(t, p.in[0].due)
	}
	if len(p.out) > 0 {
		t = min(t, p.out[0].due)
	}
	return t
}

// advance begins and ends what is due.
func (s *script) advance() {
	now := s.clock()
	for _, e := range s.entries {
		if e.state == FaultWaiting && s.due(e, now) {
			s.begin(e, now)
		}
		if e.state == FaultActive && e.ends != 0 && now >= e.ends {
			s.end(e)
		}
	}
	if s.turned {
		s.turned = false
		s.engage()
	}
}

func (s *script) due(e *entry, now int64) bool {
	at := &e.f.At
	if !e.counted {
		// Before there is a device: only what does not need one.
		return *at == FaultAt{} && (e.kind == failVerb || e.kind == delayAnswer)
	}
	return s.bytes-e.bytes >= at.Bytes && s.packets-e.packets >= at.Packets && now-e.since >= int64(at.Time)
}

func (s *script) begin(e *entry, now int64) {
	e.state, s.turned = FaultActive, true
	if e.f.For > 0 {
		e.ends = later(now, e.f.For)
	}
	switch e.kind {
	case portDown, portUpNoEvent:
		if s.down.Add(1) == 1 {
			s.emit(verbs.EventPortError)
		}
	case gidMove:
		e.hits++
		if s.moved.Add(1) == 1 {
			s.emit(verbs.EventGIDChange)
		}
	case rkeyBump:
		for _, p := range s.players {
			e.hits += uint64(p.dev.mrs.bump())
		}
		e.state = FaultOver
	}
}

func (s *script) end(e *entry) {
	was := e.state
	e.state, s.turned = FaultOver, true
	if was != FaultActive {
		return
	}
	switch e.kind {
	case portDown, portUpNoEvent:
		if s.down.Add(-1) == 0 && e.kind == portDown {
			s.emit(verbs.EventPortActive)
		}
	case gidMove:
		if s.moved.Add(-1) == 0 {
			s.emit(verbs.EventGIDChange)
		}
	}
}

func (s *script) emit(t verbs.EventType) {
	for _, p := range s.players {
		p.dev.emit(verbs.AsyncEvent{Type: t, Port: 1})
	}
}

// draw decides whether an active entry hits what it matches, and counts it.
func (s *script) draw(e *entry) bool {
	if e.f.Rate > 0 && e.f.Rate < 1 && e.rng.Float64() >= e.f.Rate {
		return false
	}
	s.hit(e)
	return true
}

func (s *script) hit(e *entry) {
	e.hits++
	if e.f.Times > 0 && e.hits >= uint64(e.f.Times) {
		s.end(e)
	}
}

func (e *entry) matches(dir direction, peer netip.AddrPort) bool {
	return (e.f.Match.Direction == "" || e.f.Match.Direction == dir.String()) && e.peer.is(peer)
}
