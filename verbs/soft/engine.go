package soft

import (
	"math"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/klauspost/cpuid/v2"
	"golang.org/x/sys/unix"

	"github.com/railstore/railstore/verbs/soft/internal/udp"
	"github.com/railstore/railstore/verbs/soft/internal/wire"
)

const (
	// recvBatch datagrams are taken at a time: few enough that what they hold is
	// in the cache when it is copied out.
	recvBatch = 8
	// maxHeld answers may be held back at a time.
	maxHeld = 16

	// A poller is dense when it has come denseRun times with no pause longer than
	// densePause; it counts as gone after goneAfter. While one is there the
	// device's goroutine looks again every lease.
	denseRun   = 32
	densePause = int64(50 * time.Microsecond)
	goneAfter  = int64(100 * time.Microsecond)
	lease      = int64(time.Millisecond)

	// maxLate is how long a full socket may put timers off.
	maxLate = int64(5 * time.Millisecond)

	// yieldAfter polls in a row that find nothing the poller gives way: some
	// five microseconds.
	yieldAfter = 16
)

// spinTime is how long the device's goroutine polls the socket after traffic
// before it sleeps: about what waking it costs. Where there is no second
// processor the one who would send the next packet could not run meanwhile.
var spinTime = func() int64 {
	if runtime.NumCPU() < 2 {
		return 0
	}
	if cpuid.CPU.Has(cpuid.HYPERVISOR) {
		return int64(50 * time.Microsecond) // waking a halted virtual processor is dear
	}
	return int64(20 * time.Microsecond)
}()

// pollers keeps track of goroutines that do the device's work.
type pollers struct {
	last  atomic.Int64 // when one came; 0 after one said that it leaves
	run   int          // how often one came without a pause; guarded by device.rx
	empty int          // how often there was nothing to do since; guarded by device.rx
	busy  atomic.Bool  // one is dense
	away  atomic.Bool  // the device's goroutine sleeps without the socket
}

// note that a poller came; device.rx is held.
func (p *pollers) note(now int64) {
	if now-p.last.Load() > densePause {
		p.run = 0
		p.busy.Store(false)
	}
	if p.run++; p.run == denseRun {
		p.busy.Store(true)
	}
	p.last.Store(now)
}

func (p *pollers) there(now int64) bool { return p.busy.Load() && now-p.last.Load() < goneAfter }

// pollerLeaves is called by one who stops polling to sleep.
func (d *device) pollerLeaves() {
	d.poll.last.Store(0)
	d.poll.busy.Store(false)
	if d.poll.away.Load() {
		d.waiter.Kick()
	}
	if d.rx.TryLock() {
		if !d.closed {
			d.flushHeld(d.now())
		}
		d.rx.Unlock()
	}
}

// Progress does the device's work in the caller's goroutine.
func (d *device) Progress() bool {
	if !d.rx.TryLock() {
		return false // somebody is doing it
	}
	if d.closed {
		d.rx.Unlock()
		return false
	}
	now := d.now()
	d.poll.note(now)
	n := d.receive(now, d.poll.busy.Load()).datagrams
	if d.flushHeldIf(n == 0, now) {
		n++
	}
	if d.scanDue(now, n) {
		d.scan(now)
	}
	yield := false
	if n > 0 {
		d.poll.empty = 0
	} else if d.poll.empty++; d.poll.empty >= yieldAfter {
		d.poll.empty, yield = 0, true
	}
	d.rx.Unlock()
	if yield {
		giveWay()
	}
	return n > 0
}

// giveWay lets others have the processor, of Go's and of the system's: whoever
// is being waited for may be one of them.
func giveWay() {
	runtime.Gosched()
	_, _, _ = unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0)
}

// run is the device's goroutine.
func (d *device) run() {
	defer close(d.done)
	var worked int64
	for !d.closing.Load() {
		now := d.now()
		if d.poll.there(now) {
			// Order: away first, then look once more; pollerLeaves does it the
			// other way round, so one of the two sees the other.
			d.poll.away.Store(true)
			if d.poll.there(now) {
				d.lend(now + lease)
				d.sleep(false)
				d.lend(0)
			}
			d.poll.away.Store(false)
			continue
		}
		got := d.serve(now)
		if got.datagrams > 0 {
			worked = now
			if got.packets == 1 {
				// Whoever was just woken goes first: his next request may take
				// the answer along.
				runtime.Gosched()
			}
			continue
		}
		if now-worked < d.spin {
			giveWay()
			continue
		}
		d.sleep(true)
	}
}

func (d *device) sleep(socket bool) {
	if r := d.waiter.Wait(socket); r.Extra {
		d.port.changed(d)
	}
}

// taken is what a receive has taken off the socket.
type taken struct{ datagrams, packets int }

// serve does what there is to do: packets, timers, and when nothing has come the
// answers held back.
func (d *device) serve(now int64) taken {
	d.rx.Lock()
	defer d.rx.Unlock()
	got := d.receive(now, true)
	d.flushHeldIf(got.datagrams == 0, now)
	if d.scanDue(now, got.datagrams) {
		d.scan(now)
	}
	return got
}

// receive takes a batch of datagrams off the socket and steps the QPs that they
// are for; device.rx is held. With hold, the answer to one packet that came alone
// is left for flushHeld.
func (d *device) receive(now int64, hold bool) taken {
	grams, err := d.recv.Recv(recvBatch)
	if len(grams) == 0 {
		if err != nil {
			d.counters.recvErrors.Add(1)
		}
		return taken{}
	}
	faults := d.faults.Load()
	var q *qp // locked
	packets := 0
	for i := range grams {
		g := &grams[i]
		n := udp.Segments(len(g.Data), g.Seg)
		packets += n
		base := uint16(0) // identification of the train's first packet
		for k := range n {
			b := udp.Segment(g.Data, g.Seg, k)
			if len(b) < wire.BTHLen+wire.ICRCLen {
				d.counters.malformed.Add(1)
				continue
			}
			if faults != nil {
				if v := faults.judgeIn(b, g); v != (verdict{}) {
					if q != nil {
						d.settle(q, now, false)
						q = nil
					}
					faults.arriving(now, b, g, base+uint16(k), v)
					continue
				}
			}
			if qpn := wire.BTH(b).DestQPN(); q == nil || q.qpn != qpn {
				if q != nil {
					d.settle(q, now, false)
				}
				if q = d.enter(qpn); q == nil {
					d.counters.unknownQP.Add(1)
					continue
				}
			}
			id, ok := q.accept(&d.packet, b, g, base+uint16(k))
			base = id - uint16(k)
			if !ok {
				continue
			}
			if faults != nil {
				d.stepLate(q, now, 0)
				continue
			}
			q.conn.Step(now, &d.packet, d.reply.out)
			if len(d.reply.out.Done) > 0 || len(d.reply.out.Events) > 0 {
				d.complete(q, d.reply)
			}
		}
	}
	d.counters.packets.Add(uint64(packets))
	if q != nil {
		d.settle(q, now, hold && packets == 1)
	}
	return taken{datagrams: len(grams), packets: packets}
}

// enter locks the QP of that number.
func (d *device) enter(qpn uint32) *qp {
	q := d.qps.find(qpn)
	if q == nil {
		return nil
	}
	q.mu.Lock()
	if q.dead {
		q.mu.Unlock()
		return nil
	}
	return q
}

// settle ends the stepping of a QP: its answers leave, or are held back. That is
// done for one packet only; the next one takes the answer of the first along.
func (d *device) settle(q *qp, now int64, hold bool) {
	if hold && !q.held {
		q.held = true
		d.held = append(d.held, q)
	} else {
		d.pump(q, d.reply, now)
	}
	q.mu.Unlock()
}

// flushHeldIf sends the answers that were held back when it is time, or when they
// are many; it reports whether there were any. device.rx is held.
func (d *device) flushHeldIf(time bool, now int64) bool {
	if len(d.held) == 0 || !time && len(d.held) < maxHeld {
		return false
	}
	d.flushHeld(now)
	return true
}

// flushHeld sends the answers that were held back; device.rx is held.
func (d *device) flushHeld(now int64) {
	for i, q := range d.held {
		q.held = false
		d.held[i] = nil
		q.mu.Lock()
		if !q.dead {
			d.pump(q, d.reply, now)
		}
		q.mu.Unlock()
	}
	d.held = d.held[:0]
}

// noteDeadline sees to it that the QP's timer is looked at in time; its lock is
// held. Deadlines mostly move later: then the scan comes once too early.
func (d *device) noteDeadline(q *qp, now int64) {
	t := q.conn.NextTick()
	if q.wake != 0 && (t == 0 || q.wake < t) {
		t = q.wake
	}
	q.deadline.Store(t)
	if t != 0 && t < d.nextScan.Load() {
		d.scanAt(t, now)
	}
}

func (d *device) scanAt(t, now int64) {
	d.timerMu.Lock()
	if t < d.nextScan.Load() {
		d.nextScan.Store(t)
		d.setTimerLocked(now)
	}
	d.timerMu.Unlock()
}

// lend leaves the timers of the QPs to pollers until then; 0 takes them back.
func (d *device) lend(until int64) {
	d.timerMu.Lock()
	d.lentUntil = until
	d.setTimerLocked(d.now())
	d.timerMu.Unlock()
}

// setTimerLocked sets what wakes the device's goroutine.
func (d *device) setTimerLocked(now int64) {
	t := d.nextScan.Load()
	if d.lentUntil != 0 {
		t = d.lentUntil
	}
	if t != math.MaxInt64 {
		d.waiter.SetTimer(time.Duration(t - now))
	}
}

// scanDue reports whether the timers are to be looked at after n datagrams were
// taken. They are for what did not come, so all that did comes first, but not for
// ever: the QP whose timer it is may not be among those that keep the socket full.
func (d *device) scanDue(now int64, n int) bool {
	late := now - d.nextScan.Load()
	return late >= 0 && (n < recvBatch || late > maxLate)
}

// scan runs the timers that are due; device.rx is held.
func (d *device) scan(now int64) {
	d.timerMu.Lock()
	d.nextScan.Store(math.MaxInt64)
	d.timerMu.Unlock()
	if f := d.faults.Load(); f != nil {
		f.tick(now)
	}
	next := int64(math.MaxInt64)
	slots := d.qps.all()
	d.firstScanned++
	for i := range slots {
		// Not always the same ones first: where all are due because a buffer
		// overflowed, the last ones might never find room.
		q := slots[(i+d.firstScanned*61)%len(slots)].Load()
		if q == nil {
			continue
		}
		t := q.deadline.Load()
		if t == 0 {
			continue
		}
		if t > now {
			next = min(next, t)
			continue
		}
		q.mu.Lock()
		if !q.dead {
			if q.wake != 0 && q.wake <= now {
				q.wake = 0
				d.land(q, now)
			}
			q.conn.Tick(now, d.reply.out)
			d.pump(q, d.reply, now)
		}
		q.mu.Unlock()
	}
	if next < math.MaxInt64 {
		d.scanAt(next, now)
	}
}
