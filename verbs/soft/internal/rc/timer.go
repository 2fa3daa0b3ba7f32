package rc

import "github.com/railstore/railstore/verbs"

// rnrDelay is the wait that a RNR NAK's five-bit code asks for, in ns (IBTA table
// 45).
var rnrDelay = [32]int64{
	655360e3, 10e3, 20e3, 30e3, 40e3, 60e3, 80e3, 120e3,
	160e3, 240e3, 320e3, 480e3, 640e3, 960e3, 1280e3, 1920e3,
	2560e3, 3840e3, 5120e3, 7680e3, 10240e3, 15360e3, 20480e3, 30720e3,
	40960e3, 61440e3, 81920e3, 122880e3, 163840e3, 245760e3, 327680e3, 491520e3,
}

// timers of the requester. All times are the owner's monotonic ns; 0 is off.
//
// Three run. The IBTA's local ACK timer counts time without progress while
// packets are unanswered; only it uses up retry_cnt, so that a dead peer is
// reported after (retry_cnt+1) timeouts whatever else was retransmitted
// meanwhile. The early timer follows the measured round trip and resends a lost
// tail, which no NAK tells, long before. The RNR timer is the wait that the peer
// asked for; the other two stand still then.
type timers struct {
	ack   int64
	early int64
	rnr   int64

	retries    uint8
	rnrRetries uint8
	backoff    uint8 // doublings of the early timer

	// One round trip at a time is measured: from sending rttPSN to its answer.
	sampling bool
	rttPSN   uint32
	rttFrom  int64
	srtt     int64
	rttvar   int64
}

// ackTimeout is the local ACK timeout in ns; 0 is never.
func (c *Conn) ackTimeout() int64 {
	if c.attr.Timeout == 0 {
		return 0
	}
	return 4096 << c.attr.Timeout
}

func (t *timers) stop() { t.ack, t.early = 0, 0 }

func (c *Conn) stopTimers() { c.timers.stop(); c.timers.rnr = 0 }

// restart sets both timers from now on: packets are in flight and the peer is well.
func (c *Conn) restart(now int64) {
	t := &c.timers
	if to := c.ackTimeout(); to != 0 {
		t.ack = now + to
	}
	c.restartEarly(now)
}

func (c *Conn) restartEarly(now int64) {
	t := &c.timers
	t.early = 0
	if c.cfg.MinRTO < 0 {
		return
	}
	rto := max(t.srtt+4*t.rttvar, c.cfg.MinRTO)
	if t.srtt == 0 {
		rto *= 4 // nothing is known of this peer, and the first packet is often slow
	}
	rto <<= t.backoff
	if to := c.ackTimeout(); to == 0 || rto < to {
		t.early = now + rto
	}
}

// sample takes the round trip that ends now.
func (t *timers) sample(now int64) {
	t.sampling = false
	rtt := now - t.rttFrom
	if rtt < 0 {
		return
	}
	if t.srtt == 0 {
		t.srtt, t.rttvar = rtt, rtt/2
		return
	}
	d := rtt - t.srtt
	t.srtt += d / 8
	t.rttvar += (max(d, -d) - t.rttvar) / 4
}

// NextTick is the time at which Tick is due; 0 when no timer runs.
func (c *Conn) NextTick() int64 {
	t := &c.timers
	if t.rnr != 0 {
		return t.rnr
	}
	if t.early != 0 && (t.ack == 0 || t.early < t.ack) {
		return t.early
	}
	return t.ack
}

// Tick runs the timers that are due at now.
func (c *Conn) Tick(now int64, out *Output) {
	if c.attr.State < verbs.QPRTS || c.attr.State == verbs.QPErr {
		return
	}
	t := &c.timers
	if t.rnr != 0 {
		if now >= t.rnr {
			// What was refused goes out again with the next Pump, which
			// starts the timers.
			t.rnr = 0
		}
		return
	}
	switch {
	case t.ack != 0 && now >= t.ack:
		c.stats.Timeouts++
		if t.retries >= c.attr.RetryCount {
			c.fail(verbs.WCRetryExceeded, out)
			return
		}
		t.retries++
		t.backoff = 0
		c.win.timeout(c.una, c.top)
		c.rewind()
		c.restart(now)
	case t.early != 0 && now >= t.early:
		if t.backoff < 16 {
			t.backoff++
		}
		c.win.timeout(c.una, c.top)
		c.rewind()
		c.restartEarly(now)
	}
}
