package verbs

import (
	"fmt"
	"sync"
	"sync/atomic"
)

// QPInit is what a new QP is made of. Both CQs must be of the PD's device.
type QPInit struct {
	SendCQ, RecvCQ *CQ
	Cap            QPCap
	SigAll         bool // every send WR gets a WC
}

// QP is a reliable-connection queue pair. Calls that post to it are made by one
// goroutine at a time; all others may be made from any.
type QP struct {
	closer
	pd    *PD
	drv   DriverQP
	send  *CQ
	recv  *CQ
	cap   QPCap
	qpn   uint32
	state atomic.Uint32

	mu      sync.Mutex // guards what follows
	attr    QPAttr
	first   WCStatus // first bad completion
	firstWC WC
	flushes uint64
}

// CreateQP creates a QP in RESET.
func (p *PD) CreateQP(init QPInit) (*QP, error) {
	const op = "create_qp"
	dev, lim := p.ctx.name, p.ctx.attr
	if init.SendCQ == nil || init.RecvCQ == nil || init.SendCQ.ctx != p.ctx || init.RecvCQ.ctx != p.ctx {
		return nil, Errorf(ErrInvalid, op, dev, "send and receive CQ must be of the same device as the PD")
	}
	c := init.Cap
	if c.MaxSendWR < 0 || c.MaxSendWR > lim.MaxQPWR || c.MaxRecvWR < 0 || c.MaxRecvWR > lim.MaxQPWR {
		return nil, Errorf(ErrInvalid, op, dev, "queue of %d send and %d receive requests: the device allows 0 to %d", c.MaxSendWR, c.MaxRecvWR, lim.MaxQPWR)
	}
	if c.MaxSendSGE < 0 || c.MaxSendSGE > lim.MaxSGE || c.MaxRecvSGE < 0 || c.MaxRecvSGE > lim.MaxSGE {
		return nil, Errorf(ErrInvalid, op, dev, "%d send and %d receive elements a request: the device allows 0 to %d", c.MaxSendSGE, c.MaxRecvSGE, lim.MaxSGE)
	}
	if err := p.addChild(op, &p.qps); err != nil {
		return nil, err
	}
	d, err := p.drv.CreateQP(DriverQPInit{SendCQ: init.SendCQ.drv, RecvCQ: init.RecvCQ.drv, Cap: c, SigAll: init.SigAll})
	if err != nil {
		p.dropChild(&p.qps)
		return nil, wrapDriver(err, op, dev)
	}
	q := &QP{pd: p, drv: d, send: init.SendCQ, recv: init.RecvCQ, cap: d.Cap(), qpn: d.QPN()}
	q.send.children.Add(1)
	q.recv.children.Add(1)
	p.ctx.mu.Lock()
	p.ctx.qps[q.qpn] = q
	p.ctx.mu.Unlock()
	return q, nil
}

// QPN is the queue pair number, 24 bits.
func (q *QP) QPN() uint32 { return q.qpn }

// Cap is what the device granted.
func (q *QP) Cap() QPCap { return q.cap }

// SendCQ is the queue that send completions go to.
func (q *QP) SendCQ() *CQ { return q.send }

// RecvCQ is the queue that receive completions go to.
func (q *QP) RecvCQ() *CQ { return q.recv }

// State is the state that the program put the QP in, or ERR once a bad
// completion was polled.
func (q *QP) State() QPState { return QPState(q.state.Load()) }

// Attr are the attributes set so far.
func (q *QP) Attr() QPAttr {
	q.mu.Lock()
	defer q.mu.Unlock()
	a := q.attr
	a.State = q.State()
	return a
}

// Stats are the driver's counters; zero where it does not count.
func (q *QP) Stats() QPStats {
	if s, ok := q.drv.(StatsReporter); ok {
		return s.Stats()
	}
	return QPStats{}
}

// Modify moves the QP through the state table and sets attributes.
func (q *QP) Modify(attr QPAttr, mask QPMask) error {
	const op = "modify_qp"
	q.closer.mu.Lock()
	defer q.closer.mu.Unlock()
	if q.closed {
		return &Error{Op: op, Device: q.pd.ctx.name, QPN: q.qpn, Kind: ErrClosed}
	}
	from := q.State()
	to := from
	if mask&MaskState != 0 {
		to = attr.State
	}
	if err := checkTransition(from, to, mask); err != nil {
		return &Error{Op: op, Device: q.pd.ctx.name, QPN: q.qpn, Kind: ErrState, Err: err}
	}
	if err := checkAttr(&attr, mask, q.pd.ctx.attr); err != nil {
		return &Error{Op: op, Device: q.pd.ctx.name, QPN: q.qpn, Kind: ErrInvalid, Err: err}
	}
	before := QPStats{}
	if to == QPReset {
		before = q.Stats() // which begin at zero again
	}
	if err := q.drv.Modify(&attr, mask); err != nil {
		return wrapDriver(err, op, q.pd.ctx.name)
	}
	if to == QPReset {
		q.pd.ctx.mu.Lock()
		q.pd.ctx.past.add(before)
		q.pd.ctx.mu.Unlock()
	}
	q.mu.Lock()
	merge(&q.attr, &attr, mask)
	if to == QPReset {
		q.first, q.firstWC, q.flushes = WCSuccess, WC{}, 0
	}
	q.mu.Unlock()
	q.state.Store(uint32(to))
	return nil
}

func merge(dst, src *QPAttr, m QPMask) {
	set := func(bit QPMask, f func()) {
		if m&bit != 0 {
			f()
		}
	}
	set(MaskPort, func() { dst.Port = src.Port })
	set(MaskPKeyIndex, func() { dst.PKeyIndex = src.PKeyIndex })
	set(MaskAccess, func() { dst.Access = src.Access })
	set(MaskPathMTU, func() { dst.PathMTU = src.PathMTU })
	set(MaskAV, func() { dst.AV = src.AV })
	set(MaskDestQPN, func() { dst.DestQPN = src.DestQPN })
	set(MaskRQPSN, func() { dst.RQPSN = src.RQPSN })
	set(MaskMaxDestRDAtomic, func() { dst.MaxDestRDAtomic = src.MaxDestRDAtomic })
	set(MaskMinRNRTimer, func() { dst.MinRNRTimer = src.MinRNRTimer })
	set(MaskTimeout, func() { dst.Timeout = src.Timeout })
	set(MaskRetryCount, func() { dst.RetryCount = src.RetryCount })
	set(MaskRNRRetry, func() { dst.RNRRetry = src.RNRRetry })
	set(MaskSQPSN, func() { dst.SQPSN = src.SQPSN })
	set(MaskMaxRDAtomic, func() { dst.MaxRDAtomic = src.MaxRDAtomic })
}

// Fail moves the QP to ERR: everything outstanding is flushed.
func (q *QP) Fail() error { return q.Modify(QPAttr{State: QPErr}, MaskState) }

// PostSend queues a batch; the SGEs of all requests stand in order in sges. It
// returns how many requests were taken; the error is about the first that was
// not. Posting in ERR is allowed: the requests are flushed.
func (q *QP) PostSend(wrs []SendWR, sges []SGE) (int, error) {
	if s := q.State(); s < QPRTS {
		return 0, &Error{Op: "post_send", Device: q.pd.ctx.name, QPN: q.qpn, Kind: ErrState, Err: fmt.Errorf("the QP is in %v", s)}
	}
	n := 0
	for i := range wrs {
		w := &wrs[i]
		n += int(w.NumSGE)
		if w.Op >= opMax || int(w.NumSGE) > q.cap.MaxSendSGE || n > len(sges) {
			return 0, q.badWR("post_send", i, len(wrs), w.Op, int(w.NumSGE), q.cap.MaxSendSGE, len(sges))
		}
		if (w.Op == OpCAS || w.Op == OpFAA) && (w.NumSGE != 1 || sges[n-1].Length != 8 || w.RemoteAddr%8 != 0) {
			return 0, &Error{Op: "post_send", Device: q.pd.ctx.name, QPN: q.qpn, Kind: ErrInvalid,
				Err: fmt.Errorf("request %d: %v takes one element of 8 bytes and an 8-byte aligned remote address", i, w.Op)}
		}
	}
	k, err := q.drv.PostSend(wrs, sges)
	if err != nil {
		return k, wrapDriver(err, "post_send", q.pd.ctx.name)
	}
	return k, nil
}

// PostRecv queues a batch of receives; allowed from INIT on.
func (q *QP) PostRecv(wrs []RecvWR, sges []SGE) (int, error) {
	if s := q.State(); s < QPInitState {
		return 0, &Error{Op: "post_recv", Device: q.pd.ctx.name, QPN: q.qpn, Kind: ErrState, Err: fmt.Errorf("the QP is in %v", s)}
	}
	n := 0
	for i := range wrs {
		n += int(wrs[i].NumSGE)
		if int(wrs[i].NumSGE) > q.cap.MaxRecvSGE || n > len(sges) {
			return 0, q.badWR("post_recv", i, len(wrs), OpSend, int(wrs[i].NumSGE), q.cap.MaxRecvSGE, len(sges))
		}
	}
	k, err := q.drv.PostRecv(wrs, sges)
	if err != nil {
		return k, wrapDriver(err, "post_recv", q.pd.ctx.name)
	}
	return k, nil
}

func (q *QP) badWR(op string, i, n int, code Opcode, sge, lim, have int) error {
	return &Error{Op: op, Device: q.pd.ctx.name, QPN: q.qpn, Kind: ErrInvalid,
		Err: fmt.Errorf("request %d of %d: %v with %d elements; the QP allows %d, the batch holds %d", i, n, code, sge, lim, have)}
}

func (q *QP) noteBad(wc *WC) {
	q.mu.Lock()
	if q.first == WCSuccess {
		q.first, q.firstWC = wc.Status, *wc
	} else if wc.Status == WCFlush {
		q.flushes++
	}
	q.mu.Unlock()
	if s := q.State(); s == QPRTS || s == QPRTR || s == QPSQD {
		q.state.CompareAndSwap(uint32(s), uint32(QPErr))
	}
}

// Err is the first cause: nil while the QP is well, else an *Error that wraps
// the WCStatus of the first bad completion and tells how many flushes followed.
func (q *QP) Err() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.first == WCSuccess {
		return nil
	}
	e := &Error{Op: "completion", Device: q.pd.ctx.name, Port: q.attr.Port, QPN: q.qpn, Kind: ErrDevice}
	peer := fmt.Sprintf("to qp 0x%06x at %v", q.attr.DestQPN, q.attr.AV.DGID.Addr())
	if q.firstWC.VendorErr != 0 {
		peer += fmt.Sprintf(", vendor error %#x", q.firstWC.VendorErr)
	}
	if q.flushes > 0 {
		e.Err = fmt.Errorf("%w %s (%d flushed after it)", q.first, peer, q.flushes)
	} else {
		e.Err = fmt.Errorf("%w %s", q.first, peer)
	}
	return e
}

// FirstBad is the first bad completion, and how many flushes followed it.
func (q *QP) FirstBad() (wc WC, flushes uint64, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.firstWC, q.flushes, q.first != WCSuccess
}

// Close destroys the QP. After it returns, no packet of the peer reaches memory
// through it and no completion of it enters a CQ; what was outstanding will not
// complete.
func (q *QP) Close() error {
	return q.close("destroy_qp", q.pd.ctx.name, "children", func() error {
		err := q.drv.Close()
		ctx := q.pd.ctx
		ctx.mu.Lock()
		if ctx.qps[q.qpn] == q {
			delete(ctx.qps, q.qpn)
			ctx.keepStats(q)
		}
		ctx.mu.Unlock()
		q.send.children.Add(-1)
		q.recv.children.Add(-1)
		q.pd.dropChild(&q.pd.qps)
		return err
	})
}
