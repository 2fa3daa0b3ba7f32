package lane

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/railstore/railstore/verbs"
)

// PollerConfig of a poller. Zero values get the defaults said beside them.
type PollerConfig struct {
	// Spin is how long a poller that serves lanes of Notify Adaptive or Scan goes on
	// polling after its last work before it sleeps: 30 µs; negative: not at all.
	Spin time.Duration
	// ScanSleep is the longest pause between two scans of lanes with Notify Scan:
	// 500 µs. It is what an idle scanning server costs, and what the first request
	// after idling may wait.
	ScanSleep time.Duration
	Batch     int // completions of one poll: 64
	// Scanners is among how many the lanes that acceptors serve without workers are
	// divided: 1, which serves on the poller's goroutine. Several have a goroutine each: a
	// handler that takes long then holds up the lanes of its scanner alone, and every
	// request pays for being handed over.
	Scanners int
	Counters *Counters
}

// Poller has the only right to poll a CQ. It dispatches completions to the lanes
// of the CQ, serves the requests of acceptors without workers or has scanners for
// it, and wakes those who sleep. Goroutines that wait for their own lane help by polling too, one at a
// time.
type Poller struct {
	ctx   *verbs.Context
	cq    *verbs.CQ
	cfg   PollerConfig
	count *Counters

	mu      sync.Mutex // polling, dispatch, and what follows
	wcs     []verbs.WC
	targets []targetEntry
	free    []uint32
	owing   []target // owe receives after a batch
	scans   []target // lanes whose words are polled
	failed  error

	scanners []*scanner
	wg       sync.WaitGroup // of their goroutines

	servers  atomic.Int32  // attached lanes that must hear of requests at any time
	spinning atomic.Int32  // those of them that are to be polled for a while after work
	sleepers atomic.Int32  // goroutines that sleep until a completion
	scanning atomic.Int32  // attached servers and sleeping waiters of scanned lanes
	helpers  atomic.Uint64 // grows with each goroutine that starts to help

	kicked chan struct{} // cap 1
	inWait atomic.Bool   // the goroutine waits for the CQ's event
	napped *time.Timer   // ends a nap

	stop chan struct{}
	once sync.Once
	done chan struct{}
}

// target is a lane at its poller. The methods are called under Poller.mu.
type target interface {
	complete(k kind, slot uint16, wc *verbs.WC) (owes bool)
	repost()          // the receives that complete said it owes
	scan() bool       // look at the words; reports whether there was work
	broken(err error) // the CQ is of no use any more
}

type targetEntry struct {
	gen uint32
	t   target
}

// StartPoller starts the poller of a CQ. Its Close must come before the CQ's.
func StartPoller(cq *verbs.CQ, cfg PollerConfig) *Poller {
	if cfg.Spin == 0 {
		cfg.Spin = 30 * time.Microsecond
	}
	if cfg.ScanSleep <= 0 {
		cfg.ScanSleep = 500 * time.Microsecond
	}
	if cfg.Batch <= 0 {
		cfg.Batch = 64
	}
	if cfg.Counters == nil {
		cfg.Counters = new(Counters)
	}
	p := &Poller{ctx: cq.Context(), cq: cq, cfg: cfg, count: cfg.Counters, wcs: make([]verbs.WC, cfg.Batch),
		kicked: make(chan struct{}, 1), stop: make(chan struct{}), done: make(chan struct{})}
	p.startScanners(max(cfg.Scanners, 1))
	go p.run()
	return p
}

// CQ is the queue that the poller polls.
func (p *Poller) CQ() *verbs.CQ { return p.cq }

// Counters are the poller's.
func (p *Poller) Counters() *Counters { return p.count }

// Err is why the CQ cannot be polled any more, or nil.
func (p *Poller) Err() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.failed
}

// Close stops the goroutines and waits for them. Lanes on the poller must have been
// closed.
func (p *Poller) Close() {
	p.once.Do(func() {
		close(p.stop)
		p.kick()
	})
	<-p.done
	p.closeScanners()
}

// attach gives a lane its number and the number's generation. From now on its
// completions reach it.
func (p *Poller) attach(t target, c *conn, serves bool) {
	p.mu.Lock()
	if n := len(p.free); n > 0 {
		c.id = p.free[n-1]
		p.free = p.free[:n-1]
	} else {
		c.id = uint32(len(p.targets))
		p.targets = append(p.targets, targetEntry{})
	}
	e := &p.targets[c.id]
	e.gen = (e.gen + 1) % wridGens
	e.t = t
	c.idGen = e.gen
	if c.notify == Scan {
		p.scans = append(p.scans, t)
	}
	if p.failed != nil {
		t.broken(p.failed)
	}
	p.mu.Unlock()
	p.expect(c, serves, 1)
	p.kick()
}

// detach returns when no call to the lane is under way or can come.
func (p *Poller) detach(t target, c *conn, serves bool) {
	p.mu.Lock()
	p.targets[c.id].t = nil
	p.free = append(p.free, c.id)
	for i, s := range p.scans {
		if s == t {
			p.scans = append(p.scans[:i], p.scans[i+1:]...)
			break
		}
	}
	p.mu.Unlock()
	p.expect(c, serves, -1)
}

// expect counts what lanes need of the goroutine.
func (p *Poller) expect(c *conn, serves bool, d int32) {
	if !serves {
		return
	}
	p.servers.Add(d)
	switch c.notify {
	case Scan:
		p.scanning.Add(d)
	case Adaptive:
		p.spinning.Add(d)
	}
}

// help does some of the poller's work if nobody else is at it, and reports
// whether there was any.
func (p *Poller) help() bool {
	did := p.ctx.Progress()
	if p.mu.TryLock() {
		n := p.poll()
		p.mu.Unlock()
		did = did || n > 0
	}
	return did
}

// poll takes one batch of completions; p.mu is held.
func (p *Poller) poll() int {
	if p.failed != nil {
		return 0
	}
	n, err := p.cq.Poll(p.wcs)
	for i := range p.wcs[:n] {
		wc := &p.wcs[i]
		k, slot, id, gen := splitWRID(wc.ID)
		if int(id) >= len(p.targets) || p.targets[id].t == nil || p.targets[id].gen != gen {
			continue // of a lane that is gone
		}
		if t := p.targets[id].t; t.complete(k, slot, wc) {
			p.owing = append(p.owing, t)
		}
	}
	for i, t := range p.owing {
		t.repost()
		p.owing[i] = nil
	}
	p.owing = p.owing[:0]
	if n > 0 {
		p.count.Completions.Add(uint64(n))
	}
	if err != nil {
		p.failed = err
		for _, e := range p.targets {
			if e.t != nil {
				e.t.broken(err)
			}
		}
	}
	return n
}

// drain polls until the CQ was seen empty.
func (p *Poller) drain() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.poll() > 0 {
	}
}

// scanOnce looks at the words of all scanned lanes.
func (p *Poller) scanOnce() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	did := false
	for _, t := range p.scans {
		if t.scan() {
			did = true
		}
	}
	p.count.ScanRounds.Add(1)
	if !did {
		p.count.EmptyScanRounds.Add(1)
	}
	return did
}

// kick makes the goroutine look again, wherever it is.
func (p *Poller) kick() {
	select {
	case p.kicked <- struct{}{}:
	default:
	}
	if p.inWait.Load() {
		p.cq.Wake()
	}
}

// sleeping is called with 1 before a goroutine sleeps until a completion of its
// lane and with -1 afterwards.
func (p *Poller) sleeping(d int32, scan bool) {
	if scan {
		if p.scanning.Add(d) == 1 && d > 0 {
			p.kick()
		}
		return
	}
	p.sleepers.Add(d)
	// A goroutine that waits for the event has armed the CQ. If it is just on
	// its way out of there, it sees the sleeper before it goes elsewhere.
	if d > 0 && !p.inWait.Load() {
		p.kick()
	}
}

func (p *Poller) run() {
	defer close(p.done)
	timer := time.NewTimer(time.Hour)
	timer.Stop()
	last := clock() // of the last work
	awake := last
	var seen uint64
	pause := minScanSleep
	var spin hunch
	var spun bool     // polled in vain since the last work
	var pieces uint32 // of work
	for {
		select {
		case <-p.stop:
			return
		default:
		}
		did := p.work()
		now := clock()
		if did {
			if spun {
				spin.hit()
			}
			last, pause, spun = now, minScanSleep, false
			pieces++
			continue
		}
		serving, scanning := p.servers.Load() > 0, p.scanning.Load() > 0
		if (scanning || p.spinning.Load() > 0 && spin.worth(pieces)) && now-last < p.cfg.Spin {
			spun = true
			runtime.Gosched()
			continue
		}
		if spun {
			spun = false
			spin.miss()
		}
		p.count.PollLoopNS.Add(uint64(now - awake))
		p.count.PollerSleeps.Add(1)
		helpers := p.helpers.Load()
		switch {
		case p.Err() != nil:
			p.pause(nil)
		case scanning:
			timer.Reset(pause)
			p.pause(timer)
			pause = min(2*pause, p.cfg.ScanSleep)
		case !serving && p.sleepers.Load() == 0 && helpers != seen:
			// Those who wait poll for themselves. An armed CQ would wake this
			// goroutine for each of their completions.
			seen = helpers
			timer.Reset(helperLease)
			p.pause(timer)
		default:
			p.waitEvent()
			last = clock()
		}
		awake = clock()
	}
}

const (
	minScanSleep = 20 * time.Microsecond
	// helperLease is how long the goroutine leaves the CQ to others after it last
	// saw one help.
	helperLease = 2 * time.Millisecond
)

// work does what there is to do, once, and reports whether there was something.
func (p *Poller) work() bool {
	did := p.ctx.Progress()
	p.mu.Lock()
	did = p.poll() > 0 || did
	p.mu.Unlock()
	if p.scanning.Load() > 0 {
		did = p.scanOnce() || did
	}
	if s := p.scanners[0]; !s.own {
		did = s.serveReady() || did
	}
	return did
}

// pause waits for a kick, the timer or the end.
func (p *Poller) pause(timer *time.Timer) {
	var c <-chan time.Time
	if timer != nil {
		c = timer.C
		defer timer.Stop()
	}
	select {
	case <-p.kicked:
	case <-c:
	case <-p.stop:
	}
}

// waitEvent arms the CQ and sleeps until its event or a kick.
func (p *Poller) waitEvent() {
	p.mu.Lock()
	err := p.cq.Arm(false)
	n := 0
	if err == nil {
		n = p.poll()
	}
	p.mu.Unlock()
	if err != nil {
		p.breakDown(err)
		return
	}
	if n > 0 {
		return
	}
	p.inWait.Store(true)
	defer p.inWait.Store(false)
	select {
	case <-p.kicked:
		return
	default:
	}
	if err := p.cq.Wait(context.Background()); err != nil {
		p.breakDown(err)
	}
}

// breakDown gives the CQ up.
func (p *Poller) breakDown(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.failed != nil {
		return
	}
	p.failed = err
	for _, e := range p.targets {
		if e.t != nil {
			e.t.broken(err)
		}
	}
}

// nap is the sleep of a handler that runs on the goroutine itself: until a
// completion, and not for long.
func (p *Poller) nap() {
	p.mu.Lock()
	err := p.cq.Arm(false)
	n := 0
	if err == nil {
		n = p.poll()
	}
	p.mu.Unlock()
	if err != nil || n > 0 {
		return
	}
	// Bounded, because what a handler waits for may also be the end of its
	// context, which nobody announces to the CQ.
	if p.napped == nil {
		p.napped = time.AfterFunc(napLimit, p.cq.Wake)
	} else {
		p.napped.Reset(napLimit)
	}
	_ = p.cq.Wait(context.Background())
	p.napped.Stop()
}

const napLimit = 5 * time.Millisecond
