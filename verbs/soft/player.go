package soft

import (
	"bytes"
	"cmp"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/railstore/railstore/verbs"
	"github.com/railstore/railstore/verbs/soft/internal/rc"
	"github.com/railstore/railstore/verbs/soft/internal/udp"
	"github.com/railstore/railstore/verbs/soft/internal/wire"
)

// player plays a driver's fault script on one device.
type player struct {
	dev    *device
	script *script
	// Packets that are held back, by the time when they are due. Guarded by
	// script.mu.
	in, out []*heldPacket
	held    [2]int // bytes, by direction
	// Payload that is not in memory yet, on all QPs.
	late atomic.Int32
}

const (
	// reorderBy is how long a reordered packet waits for one that passes it.
	reorderBy = 2 * time.Millisecond
	// lateBy is by how much payload is late when the fault does not say.
	lateBy = time.Millisecond
	// burst is what a line of limited bandwidth may catch up with after it was
	// idle, or after its timer was late.
	burst = int64(time.Millisecond)
	// queueBytes wait in front of an incoming line of limited bandwidth, as at the
	// port of a switch; what does not fit is lost.
	queueBytes = 4 << 20
	// heldBytes are held back at most, each way; what comes on top is lost.
	heldBytes = 256 << 20
	// latePieces of payload are late at most on one QP; then it all lands.
	latePieces = 1 << 14
)

// verdict is what the faults do to one packet.
type verdict struct {
	lost    bool
	twice   bool
	corrupt bool // a bit of the payload, before the ICRC
	spoil   bool // a bit that the ICRC tells
	bit     uint64
	late    time.Duration // its payload becomes visible so much later
	hold    time.Duration // 0: not held
	swap    bool          // held until another has passed
	fault   int           // that holds it
	queued  bool          // others are held already, in the same direction
}

// judge asks the faults about a packet that passes.
func (p *player) judge(k passing) verdict {
	s := p.script
	s.mu.Lock()
	defer s.mu.Unlock()
	s.advance()
	s.packets++
	s.bytes += uint64(k.size)
	v := verdict{queued: len(*p.queue(k.dir)) > 0}
	for _, e := range s.entries {
		if e.state == FaultActive && !v.lost {
			p.judgeBy(e, &k, &v)
		}
	}
	return v
}

func (p *player) judgeBy(e *entry, k *passing, v *verdict) {
	s := p.script
	switch e.kind {
	case portDown, portUpNoEvent:
		s.hit(e)
		v.lost = true
		return
	case blackholeCompletions, rkeyBump, gidMove, failVerb, delayAnswer:
		return
	}
	if !e.matches(k.dir, k.peer) || e.kind != limitBandwidth && !k.is(e.f.Match.Opcode) {
		return
	}
	switch e.kind {
	case corruptPayload:
		if k.payload == 0 {
			return
		}
	case dropZeroLength:
		if !k.zeroLength() {
			return
		}
	case lateVisibility:
		if k.dir != inward || !isWrite(k.op) {
			return
		}
	case lateWrite:
		if !isWrite(k.op) {
			return
		}
	case limitBandwidth:
		p.charge(e, k, v)
		return
	}
	if !s.draw(e) {
		return
	}
	switch e.kind {
	case dropPackets, dropZeroLength:
		v.lost = true
	case duplicatePackets:
		v.twice = true
	case reorderPackets:
		by := e.f.By
		if by == 0 {
			by = reorderBy
		}
		v.swap = v.hold == 0
		v.holdFor(by, e)
	case delayPackets, lateWrite:
		v.swap = false
		v.holdFor(e.f.By, e)
	case corruptPayload:
		v.corrupt, v.bit = true, e.rng.Uint64()
	case corruptWire:
		v.spoil, v.bit = true, e.rng.Uint64()
	case lateVisibility:
		v.late = e.f.By
		if v.late == 0 {
			v.late = lateBy
		}
	}
}

func (v *verdict) holdFor(by time.Duration, e *entry) {
	if by > v.hold {
		v.hold, v.fault = by, e.id
	}
}

// charge has a packet take its time on a line of limited bandwidth. What goes out
// waits before it is made (see wait), what comes in waits here.
func (p *player) charge(e *entry, k *passing, v *verdict) {
	now := p.script.clock()
	free := max(e.free[k.dir], now-burst)
	if k.dir == inward && p.held[inward]+k.size > queueBytes {
		v.lost = true
		p.script.hit(e)
		return
	}
	e.free[k.dir] = free + int64(float64(k.size)*8e9/float64(e.f.BitsPerSecond))
	p.script.hit(e)
	// Nothing overtakes what waits already.
	if k.dir == inward && (free > now || len(p.in) > 0) {
		v.holdFor(time.Duration(max(free-now, 1)), e)
	}
}

// wait is how long nothing may leave towards the QP's peer, in nanoseconds, and
// whether the line is of limited bandwidth at all.
func (p *player) wait(q *qp) (ns int64, limited bool) {
	s := p.script
	s.mu.Lock()
	defer s.mu.Unlock()
	s.advance()
	now := s.clock()
	for _, e := range s.entries {
		if e.kind == limitBandwidth && e.state == FaultActive && e.matches(outward, q.peerAddr()) {
			limited = true
			ns = max(ns, e.free[outward]-now)
		}
	}
	return ns, limited
}

// swallows reports that a completion is not to reach its queue.
func (p *player) swallows(q *qp, c *rc.Completion) bool {
	s := p.script
	s.mu.Lock()
	defer s.mu.Unlock()
	s.advance()
	dir := outward
	if c.Recv {
		dir = inward
	}
	for _, e := range s.entries {
		if e.kind == blackholeCompletions && e.state == FaultActive && e.matches(dir, q.peerAddr()) &&
			completes(e.f.Match.Opcode, c.WC.Op, c.Recv) && s.draw(e) {
			return true
		}
	}
	return false
}

// heldPacket is a packet that is held back: a copy, so that neither the QP nor the
// memory that it came from need be there when it goes on.
type heldPacket struct {
	due   int64 // in the script's time
	fault int
	swap  bool
	v     verdict // what else happens to it

	// A packet that came in.
	raw   []byte
	from  udp.Datagram // without its data
	guess uint16

	// One that goes out.
	dest    *udp.Dest
	path    wire.Path
	header  []byte
	payload []byte
	pad     int
	xor     uint32 // spoils the ICRC
}

// ICRC is udp.Sealer.
func (h *heldPacket) ICRC(id uint16, header []byte, payload [][]byte, pad int) uint32 {
	return h.path.ICRC(id, header, payload, pad) ^ h.xor
}

func (h *heldPacket) size() int { return len(h.raw) + len(h.header) + len(h.payload) }

func (p *player) queue(dir direction) *[]*heldPacket {
	if dir == inward {
		return &p.in
	}
	return &p.out
}

// holdBack puts a packet into its queue and sees to it that it leaves in time.
func (p *player) holdBack(dir direction, h *heldPacket, v verdict) {
	s := p.script
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.held[dir]+h.size() > heldBytes {
		return
	}
	p.held[dir] += h.size()
	h.due, h.fault, h.swap = later(s.clock(), v.hold), v.fault, v.swap
	q := p.queue(dir)
	i, _ := slices.BinarySearchFunc(*q, later(h.due, 1), func(x *heldPacket, t int64) int { return cmp.Compare(x.due, t) })
	*q = slices.Insert(*q, i, h)
	if i == 0 {
		s.engage()
	}
}

// letGo makes everything due that a fault holds back.
func (p *player) letGo(fault int) {
	now := p.script.clock()
	for _, q := range []*[]*heldPacket{&p.in, &p.out} {
		for _, h := range *q {
			if h.fault == fault {
				h.due = min(h.due, now)
			}
		}
		slices.SortStableFunc(*q, func(a, b *heldPacket) int { return cmp.Compare(a.due, b.due) })
	}
}

// take removes the packets of a direction that are due or, with passed, that waited
// for another one to pass them.
func (p *player) take(dir direction, passed bool) (out []*heldPacket) {
	s := p.script
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.clock()
	q := p.queue(dir)
	if len(*q) == 0 {
		return nil
	}
	*q = slices.DeleteFunc(*q, func(h *heldPacket) bool {
		if h.due > now && !(passed && h.swap) {
			return false
		}
		out = append(out, h)
		p.held[dir] -= h.size()
		return true
	})
	return out
}

// tick does what is due; device.rx is held.
func (p *player) tick(now int64) {
	s := p.script
	s.mu.Lock()
	s.advance()
	s.mu.Unlock()
	p.release(now, false)
	s.mu.Lock()
	s.engage()
	s.mu.Unlock()
}

// release lets packets go on; device.rx is held.
func (p *player) release(now int64, passed bool) {
	for _, h := range p.take(outward, passed) {
		p.send(h)
	}
	p.deliver(now, p.take(inward, passed))
}

// deliver has packets arrive that were held back; device.rx is held.
func (p *player) deliver(now int64, held []*heldPacket) {
	for _, h := range held {
		if p.script.down.Load() == 0 {
			p.dev.arrive(now, h.raw, &h.from, h.guess, h.v)
		}
	}
}

// judgeIn asks the faults about a packet that comes; the zero verdict is that nothing
// is to happen.
func (p *player) judgeIn(b []byte, g *udp.Datagram) verdict {
	return p.judge(lookAt(inward, b, len(b), netip.AddrPortFrom(verbs.GID(g.From).Addr(), g.Port)))
}

// arriving takes a packet off the socket to which something happens; device.rx is
// held.
func (p *player) arriving(now int64, b []byte, g *udp.Datagram, guess uint16, v verdict) {
	if v.lost {
		return
	}
	from := udp.Datagram{From: g.From, Port: g.Port}
	if v.hold > 0 {
		p.holdBack(inward, &heldPacket{v: v, raw: bytes.Clone(b), from: from, guess: guess}, v)
		return
	}
	p.dev.arrive(now, b, &from, guess, v)
	if v.queued {
		p.deliver(now, p.take(inward, true))
	}
}

// arrive steps the QP that a packet is for; device.rx is held.
func (d *device) arrive(now int64, b []byte, from *udp.Datagram, guess uint16, v verdict) {
	q := d.enter(wire.BTH(b).DestQPN())
	if q == nil {
		d.counters.unknownQP.Add(1)
		return
	}
	if v.spoil {
		spoil(&q.from, b, guess, v.bit)
	}
	if _, ok := q.accept(&d.packet, b, from, guess); ok {
		if v.corrupt && len(d.packet.Payload) > 0 {
			flip(d.packet.Payload, v.bit)
		}
		for range times(v.twice) {
			d.stepLate(q, now, v.late)
		}
	}
	d.settle(q, now, false)
}

func times(twice bool) int {
	if twice {
		return 2
	}
	return 1
}

func flip(b []byte, bit uint64) {
	bit %= uint64(len(b)) * 8
	b[bit/8] ^= 1 << (bit % 8)
}

// spoil flips a bit after the BTH, one that no other identification explains away.
func spoil(path *wire.Path, b []byte, guess uint16, bit uint64) {
	for range 64 {
		flip(b[wire.BTHLen:], bit)
		if _, ok := path.Solve(guess, b); !ok {
			return
		}
		flip(b[wire.BTHLen:], bit)
		bit++
	}
}

// depart puts an output's packets on the wire as the faults want it; the QP's lock
// is held. first is the packet that goes first.
func (p *player) depart(q *qp, t *transmit, first int) {
	d := p.dev
	n := len(t.out.Packets)
	flush := func() {
		if t.batch.Len() == 0 {
			return
		}
		if err := d.sock.Send(t.batch, t); err != nil {
			d.counters.sendErrors.Add(1)
		}
		t.batch.Reset()
	}
	peer := q.peerAddr()
	for i := range n {
		k := &t.out.Packets[(i+first)%n]
		if d.opt.loseSent != nil && d.opt.loseSent(k) {
			continue
		}
		v := p.judge(lookAt(outward, k.Header(), k.Size(), peer))
		if v.lost {
			continue
		}
		if v.hold == 0 && !v.corrupt && !v.spoil {
			for range times(v.twice) {
				t.batch.Add(q.dest, k.Header(), k.Frags, int(k.Len), int(k.Pad))
			}
		} else {
			for range times(v.twice) {
				h := newHeld(q, k, &v)
				if v.hold > 0 {
					p.holdBack(outward, h, v)
					continue
				}
				flush()
				p.send(h)
			}
			if v.hold > 0 {
				continue
			}
		}
		if !v.queued {
			continue
		}
		if late := p.take(outward, true); len(late) > 0 {
			flush()
			for _, h := range late {
				p.send(h)
			}
		}
	}
	flush()
}

// newHeld copies a packet that goes out.
func newHeld(q *qp, k *rc.Packet, v *verdict) *heldPacket {
	h := &heldPacket{dest: q.dest, path: q.sender, header: bytes.Clone(k.Header()), pad: int(k.Pad), payload: make([]byte, 0, k.Len)}
	for _, f := range k.Frags {
		h.payload = append(h.payload, f...)
	}
	if v.corrupt && len(h.payload) > 0 {
		flip(h.payload, v.bit)
	}
	if v.spoil {
		h.xor = h.spoiler(v.bit)
	}
	return h
}

// spoiler is a change of the ICRC that no identification explains away.
func (h *heldPacket) spoiler(bit uint64) uint32 {
	b := slices.Concat(h.header, h.payload, make([]byte, h.pad+wire.ICRCLen))
	h.path.Put(0, b)
	tail := b[len(b)-wire.ICRCLen:]
	for i := range uint64(32) {
		x := (bit + i) % 32
		flip(tail, x)
		if _, ok := h.path.Solve(0, b); !ok {
			return 1 << x
		}
		flip(tail, x)
	}
	return ^uint32(0)
}

// send puts one copied packet on the wire.
func (p *player) send(h *heldPacket) {
	t := p.dev.spare.take()
	t.batch.Reset()
	t.batch.Add(h.dest, h.header, [][]byte{h.payload}, len(h.payload), h.pad)
	if err := p.dev.sock.Send(t.batch, h); err != nil {
		p.dev.counters.sendErrors.Add(1)
	}
	t.batch.Reset()
	p.dev.spare.give(t)
}

// pumpSlowly sends on a line of limited bandwidth: packet by packet, and only as
// many as the line takes now. It reports false when the line is not limited.
func (p *player) pumpSlowly(q *qp, t *transmit, now int64) bool {
	ns, limited := p.wait(q)
	if !limited {
		return false
	}
	t.out.Limit(1)
	defer t.out.Limit(0)
	for {
		if ns > 0 {
			q.wakeAt(now + ns)
			return true
		}
		more := q.conn.Pump(now, t.out)
		if !p.dev.deliver(q, t) && !more {
			return true
		}
		ns, _ = p.wait(q)
	}
}
