package lane

import (
	"fmt"
	"sync"

	"github.com/railstore/railstore/verbs"
)

// conn is what the two ends of a lane share: the QP with the account of its
// queues, and the names of both ends.
type conn struct {
	poller *Poller
	label  Label
	notify Notify
	count  *Counters
	id     uint32 // at the poller
	idGen  uint32

	names         sync.Mutex // a leaf; what follows, and changes of qp
	local, remote End
	gid           bool // local.GID was looked up

	mu        sync.Mutex // posting, and what follows
	qp        *verbs.QP
	destroyed bool // the QP is closed or being closed
	sq        sendQueue
	wrs       []verbs.SendWR // scratch
	sges      []verbs.SGE
	recvs     []verbs.RecvWR
	owed      int // receives to post again; under the poller's lock instead

	destroy   sync.Once
	destroyEr error
}

func (c *conn) init(p *Poller, qp *verbs.QP, l Label, cfg *Config, cap verbs.QPCap) error {
	c.poller, c.label, c.notify, c.count = p, l, cfg.Notify, cfg.Counters
	c.wrs = make([]verbs.SendWR, 0, cap.MaxSendWR)
	c.sges = make([]verbs.SGE, 0, cap.MaxSendWR*cap.MaxSendSGE)
	c.recvs = make([]verbs.RecvWR, cap.MaxRecvWR)
	return c.use(qp, cap)
}

// use is the part of init for one QP. The rest stays as long as the lane, and is
// read without a lock.
func (c *conn) use(qp *verbs.QP, cap verbs.QPCap) error {
	have := qp.Cap()
	if have.MaxSendWR < cap.MaxSendWR || have.MaxRecvWR < cap.MaxRecvWR || have.MaxSendSGE < cap.MaxSendSGE {
		return fmt.Errorf("the QP was made with %+v, the lane needs %+v", have, cap)
	}
	if qp.SendCQ() != c.poller.cq || qp.RecvCQ() != c.poller.cq {
		return fmt.Errorf("the QP does not complete into the poller's CQ")
	}
	c.sq = newSendQueue(cap.MaxSendWR)
	c.names.Lock()
	defer c.names.Unlock()
	c.qp, c.gid = qp, false
	c.local, c.remote = ends(qp, c.label)
	return nil
}

// ends names both ends of a connected QP. The device is asked for the local GID
// by the first error.
func ends(qp *verbs.QP, l Label) (local, remote End) {
	a := qp.Attr()
	return End{Name: l.Local, QPN: qp.QPN()}, End{Name: l.Remote, GID: a.AV.DGID, QPN: a.DestQPN}
}

func (c *conn) errorf(layer Layer, op string, err error) *Error {
	c.names.Lock()
	defer c.names.Unlock()
	if !c.gid {
		c.gid = true
		c.lookUpGID()
	}
	return &Error{Layer: layer, Op: op, Label: c.label, Local: c.local, Remote: c.remote, Device: c.poller.ctx.Name(), Err: err}
}

func (c *conn) lookUpGID() {
	a := c.qp.Attr()
	gids, err := c.poller.ctx.GIDs(max(a.Port, 1))
	if err != nil {
		return // it is only a name in an error
	}
	for _, g := range gids {
		if g.Index == a.AV.SGIDIndex {
			c.local.GID = g.GID
		}
	}
}

// closedError asks no device: closing is no failure.
func (c *conn) closedError() *Error {
	return &Error{Layer: LayerUsage, Op: "lane", Label: c.label, Err: ErrClosed}
}

// bad makes the error of a bad completion; the QP knows the first cause.
func (c *conn) bad(wc *verbs.WC) *Error {
	e := c.errorf(LayerDevice, "lane", wc.Status)
	e.Status, e.VendorErr, e.Class = wc.Status, wc.VendorErr, Classify(wc.Status)
	if first := c.qp.Err(); first != nil {
		e.Err = first
		if w, _, ok := c.qp.FirstBad(); ok {
			e.Status, e.VendorErr, e.Class = w.Status, w.VendorErr, Classify(w.Status)
		}
	}
	return e
}

// fillReceives posts n receives; c.mu is held.
func (c *conn) fillReceives(n int) error {
	if n == 0 || c.destroyed {
		return nil
	}
	for i := range n {
		c.recvs[i] = verbs.RecvWR{ID: wrid(kindRecv, 0, c.id, c.idGen)}
	}
	_, err := c.qp.PostRecv(c.recvs[:n], nil)
	return err
}

// closeQP destroys the QP. When it returns, the peer reaches nothing through it
// and the device reads nothing for it.
func (c *conn) closeQP() error {
	c.destroy.Do(func() {
		c.mu.Lock()
		c.destroyed = true
		c.mu.Unlock()
		c.destroyEr = c.qp.Close()
	})
	return c.destroyEr
}

// Stats are the QP's counters.
func (c *conn) Stats() verbs.QPStats {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.qp.Stats()
}
