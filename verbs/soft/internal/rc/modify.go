package rc

import (
	"math/bits"

	"github.com/railstore/railstore/verbs"
	"github.com/railstore/railstore/verbs/soft/internal/wire"
)

// Modify applies the attributes that mask names; the verbs front has checked them
// against the state table. Entering ERR flushes at the next Pump; entering RESET
// forgets everything without completions.
func (c *Conn) Modify(attr *verbs.QPAttr, mask verbs.QPMask) {
	if mask&verbs.MaskState != 0 {
		switch attr.State {
		case verbs.QPReset:
			c.reset()
			return
		case verbs.QPErr:
			if c.attr.State != verbs.QPErr {
				c.dropReplies()
			}
			c.stopTimers()
		}
		c.attr.State = attr.State
	}
	a := &c.attr
	if mask&verbs.MaskPort != 0 {
		a.Port = attr.Port
	}
	if mask&verbs.MaskPKeyIndex != 0 {
		a.PKeyIndex = attr.PKeyIndex
	}
	if mask&verbs.MaskAccess != 0 {
		a.Access = attr.Access
	}
	if mask&verbs.MaskPathMTU != 0 {
		a.PathMTU = attr.PathMTU
		c.mtu = uint32(attr.PathMTU)
		c.mtuShift = uint8(bits.TrailingZeros32(c.mtu))
		if b := c.cfg.WindowBytes; b > 0 {
			c.win.init(c.cfg.InitialWindow, min(max(b>>c.mtuShift, 8), c.cfg.MaxWindow))
		}
	}
	if mask&verbs.MaskAV != 0 {
		a.AV = attr.AV
	}
	if mask&verbs.MaskDestQPN != 0 {
		a.DestQPN = attr.DestQPN
	}
	if mask&verbs.MaskRQPSN != 0 {
		a.RQPSN = attr.RQPSN
		c.epsn = wire.PSN(attr.RQPSN & wire.PSNMask)
	}
	if mask&verbs.MaskMaxDestRDAtomic != 0 {
		a.MaxDestRDAtomic = attr.MaxDestRDAtomic
		// In SQD the peer may be owed answers; the rings then stay as they are.
		if len(c.replies.list) == 0 && c.atomics.n == 0 {
			c.replies.init(attr.MaxDestRDAtomic)
			c.atomics.init(attr.MaxDestRDAtomic)
		}
	}
	if mask&verbs.MaskMinRNRTimer != 0 {
		a.MinRNRTimer = attr.MinRNRTimer
	}
	if mask&verbs.MaskTimeout != 0 {
		a.Timeout = attr.Timeout
	}
	if mask&verbs.MaskRetryCount != 0 {
		a.RetryCount = attr.RetryCount
	}
	if mask&verbs.MaskRNRRetry != 0 {
		a.RNRRetry = attr.RNRRetry
	}
	if mask&verbs.MaskSQPSN != 0 {
		a.SQPSN = attr.SQPSN
		p := wire.PSN(attr.SQPSN & wire.PSNMask)
		c.una, c.nxt, c.top, c.asg = p, p, p, p
		c.win.recover = p
	}
	if mask&verbs.MaskMaxRDAtomic != 0 {
		a.MaxRDAtomic = attr.MaxRDAtomic
		if c.reads.n == 0 {
			c.reads.init(attr.MaxRDAtomic)
		}
	}
}

// reset makes the Conn as New made it.
func (c *Conn) reset() {
	c.attr = verbs.QPAttr{State: verbs.QPReset}
	c.stats = verbs.QPStats{}
	c.turn = false
	sq, rq := c.sq, c.rq
	c.requester = requester{sq: sq}
	c.responder = responder{rq: rq}
	c.sq.head, c.sq.cur, c.sq.tail = 0, 0, 0
	c.rq.head, c.rq.tail = 0, 0
	c.win.init(c.cfg.InitialWindow, c.cfg.MaxWindow)
}
