package verbstest

import (
	"encoding/binary"
	"time"

	"github.com/railstore/railstore/verbs"
)

func (p *loopPD) CreateQP(init verbs.DriverQPInit) (verbs.DriverQP, error) {
	l := p.ctx.loop
	l.mu.Lock()
	defer l.mu.Unlock()
	q := &loopQP{pd: p, send: init.SendCQ.(*loopCQ), recv: init.RecvCQ.(*loopCQ), cap: init.Cap, sigAll: init.SigAll, qpn: l.nextQPN}
	l.nextQPN++
	q.sq.init(init.Cap.MaxSendWR, init.Cap.MaxSendSGE)
	q.rq.init(init.Cap.MaxRecvWR, init.Cap.MaxRecvSGE)
	l.qps[q.qpn] = q
	return q, nil
}

// wqe is a queued request; a receive uses ID and SGEs only.
type wqe struct {
	wr   verbs.SendWR
	sges []verbs.SGE
}

// wqes is a ring of requests whose SGE lists have a fixed place.
type wqes struct {
	ring        []wqe
	head, count int
}

func (r *wqes) init(n, sge int) {
	r.ring = make([]wqe, n)
	store := make([]verbs.SGE, n*sge)
	for i := range r.ring {
		r.ring[i].sges = store[i*sge : i*sge : (i+1)*sge]
	}
}

func (r *wqes) push() *wqe {
	w := &r.ring[(r.head+r.count)%len(r.ring)]
	r.count++
	return w
}

func (r *wqes) front() *wqe { return &r.ring[r.head] }

func (r *wqes) pop() {
	r.head = (r.head + 1) % len(r.ring)
	r.count--
}

// loopQP is a QP; all of it is under Loop.mu.
type loopQP struct {
	pd         *loopPD
	send, recv *loopCQ
	cap        verbs.QPCap
	sigAll     bool
	qpn        uint32
	attr       verbs.QPAttr
	closed     bool

	sq, rq         wqes
	sqUsed, rqUsed int  // entries whose completion was not polled yet
	unsignaled     int  // sends done since the last completion
	queued         bool // Async: in the device's ready list

	stalled bool // the head of sq waits for the peer
	timer   *time.Timer
	timerID int
}

func (q *loopQP) QPN() uint32      { return q.qpn }
func (q *loopQP) Cap() verbs.QPCap { return q.cap }

func (q *loopQP) Query() (verbs.QPAttr, error) {
	l := q.pd.ctx.loop
	l.mu.Lock()
	defer l.mu.Unlock()
	return q.attr, nil
}

func (q *loopQP) Modify(a *verbs.QPAttr, mask verbs.QPMask) error {
	l := q.pd.ctx.loop
	l.mu.Lock()
	defer l.mu.Unlock()
	d := &q.attr
	set := map[verbs.QPMask]func(){
		verbs.MaskPort: func() { d.Port = a.Port }, verbs.MaskPKeyIndex: func() { d.PKeyIndex = a.PKeyIndex },
		verbs.MaskAccess: func() { d.Access = a.Access }, verbs.MaskPathMTU: func() { d.PathMTU = a.PathMTU },
		verbs.MaskAV: func() { d.AV = a.AV }, verbs.MaskDestQPN: func() { d.DestQPN = a.DestQPN },
		verbs.MaskRQPSN: func() { d.RQPSN = a.RQPSN }, verbs.MaskMaxDestRDAtomic: func() { d.MaxDestRDAtomic = a.MaxDestRDAtomic },
		verbs.MaskMinRNRTimer: func() { d.MinRNRTimer = a.MinRNRTimer }, verbs.MaskTimeout: func() { d.Timeout = a.Timeout },
		verbs.MaskRetryCount: func() { d.RetryCount = a.RetryCount }, verbs.MaskRNRRetry: func() { d.RNRRetry = a.RNRRetry },
		verbs.MaskSQPSN: func() { d.SQPSN = a.SQPSN }, verbs.MaskMaxRDAtomic: func() { d.MaxRDAtomic = a.MaxRDAtomic },
	}
	for bit, f := range set {
		if mask&bit != 0 {
			f()
		}
	}
	if mask&verbs.MaskState == 0 {
		return nil
	}
	switch a.State {
	case verbs.QPReset:
		q.unstall()
		q.sq.count, q.rq.count, q.sqUsed, q.rqUsed, q.unsignaled = 0, 0, 0, 0, 0
		q.attr = verbs.QPAttr{}
	case verbs.QPErr:
		q.failLocked()
	default:
		d.State = a.State
		q.kick()
		q.kickPeers()
	}
	return nil
}

func (q *loopQP) PostSend(wrs []verbs.SendWR, sges []verbs.SGE) (int, error) {
	l := q.pd.ctx.loop
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range wrs {
		if q.sqUsed == q.cap.MaxSendWR {
			q.kick()
			return i, &verbs.Error{Kind: verbs.ErrSQFull, QPN: q.qpn}
		}
		q.sqUsed++
		w := q.sq.push()
		w.wr = wrs[i]
		w.sges = append(w.sges[:0], sges[:wrs[i].NumSGE]...)
		sges = sges[wrs[i].NumSGE:]
	}
	q.kick()
	return len(wrs), nil
}

func (q *loopQP) PostRecv(wrs []verbs.RecvWR, sges []verbs.SGE) (int, error) {
	l := q.pd.ctx.loop
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range wrs {
		if q.rqUsed == q.cap.MaxRecvWR {
			q.kickPeers()
			return i, &verbs.Error{Kind: verbs.ErrRQFull, QPN: q.qpn}
		}
		q.rqUsed++
		w := q.rq.push()
		w.wr.ID = wrs[i].ID
		w.sges = append(w.sges[:0], sges[:wrs[i].NumSGE]...)
		sges = sges[wrs[i].NumSGE:]
	}
	if q.attr.State == verbs.QPErr {
		q.flush()
	}
	q.kickPeers()
	return len(wrs), nil
}

func (q *loopQP) Close() error {
	l := q.pd.ctx.loop
	l.mu.Lock()
	defer l.mu.Unlock()
	q.closed = true
	q.unstall()
	delete(l.qps, q.qpn)
	c := q.pd.ctx
	for i, r := range c.ready {
		if r == q {
			c.ready = append(c.ready[:i], c.ready[i+1:]...)
			break
		}
	}
	return nil
}

// kick executes what can be executed, or has the device's goroutine do it.
func (q *loopQP) kick() {
	c := q.pd.ctx
	if !c.loop.opts.Async {
		for q.stepOnce() {
		}
		return
	}
	if q.queued || q.sq.count == 0 || c.closed {
		return
	}
	q.queued = true
	c.ready = append(c.ready, q)
	select {
	case c.work <- struct{}{}:
	default:
	}
}

// kickPeers retries the QPs that send to this one: it may be ready now.
func (q *loopQP) kickPeers() {
	for _, p := range q.pd.ctx.loop.qps {
		if p.stalled && p.attr.DestQPN == q.qpn {
			p.kick()
		}
	}
}

// unstall ends the wait for the peer.
func (q *loopQP) unstall() {
	q.stalled = false
	q.timerID++
	if q.timer != nil {
		q.timer.Stop()
		q.timer = nil
	}
}

// stall leaves the head in the queue; after d (0: never) it fails with status.
func (q *loopQP) stall(status verbs.WCStatus, d time.Duration) {
	if q.stalled {
		return
	}
	q.stalled = true
	if d == 0 {
		return
	}
	q.timerID++
	id := q.timerID
	q.timer = time.AfterFunc(d, func() {
		l := q.pd.ctx.loop
		l.mu.Lock()
		defer l.mu.Unlock()
		if q.closed || q.timerID != id || q.sq.count == 0 {
			return
		}
		q.completeSend(status, 0)
	})
}

// stepOnce executes the head of the send queue; false: there is none or it must
// wait.
func (q *loopQP) stepOnce() bool {
	if q.closed || q.sq.count == 0 {
		return false
	}
	if q.attr.State == verbs.QPErr {
		q.flush()
		return false
	}
	if q.attr.State != verbs.QPRTS || q.pd.ctx.loop.held {
		return false
	}
	status, n, wait := q.execute(q.sq.front())
	if wait {
		return false
	}
	q.unstall()
	q.completeSend(status, n)
	return true
}

// completeSend takes the head off the queue. A bad status fails the QP.
func (q *loopQP) completeSend(status verbs.WCStatus, n uint32) {
	if q.sq.count == 0 { // a QP connected to itself was refused and flushed
		return
	}
	w := q.sq.front()
	wr := w.wr
	q.sq.pop()
	q.unsignaled++
	if status != verbs.WCSuccess || q.sigAll || wr.Flags&verbs.Signaled != 0 {
		wc := verbs.WC{ID: wr.ID, QPN: q.qpn, Status: status}
		if status == verbs.WCSuccess {
			wc.Op, wc.ByteLen = sendOpcode(wr.Op), n
		}
		q.send.pushLocked(cqe{wc: wc, qp: q, sends: q.unsignaled}, false)
		q.unsignaled = 0
	}
	if status != verbs.WCSuccess {
		q.failLocked()
	}
}

func sendOpcode(o verbs.Opcode) verbs.WCOpcode {
	switch o {
	case verbs.OpWrite, verbs.OpWriteImm:
		return verbs.WCWrite
	case verbs.OpRead:
		return verbs.WCRead
	case verbs.OpCAS:
		return verbs.WCCAS
	case verbs.OpFAA:
		return verbs.WCFAA
	}
	return verbs.WCSend
}

// failLocked moves the QP to ERR and flushes it.
func (q *loopQP) failLocked() {
	q.attr.State = verbs.QPErr
	q.unstall()
	q.flush()
}

func (q *loopQP) flush() {
	for q.sq.count > 0 {
		id := q.sq.front().wr.ID
		q.sq.pop()
		q.send.pushLocked(cqe{wc: verbs.WC{ID: id, QPN: q.qpn, Status: verbs.WCFlush}, qp: q, sends: q.unsignaled + 1}, false)
		q.unsignaled = 0
	}
	for q.rq.count > 0 {
		id := q.rq.front().wr.ID
		q.rq.pop()
		q.recv.pushLocked(cqe{wc: verbs.WC{ID: id, QPN: q.qpn, Status: verbs.WCFlush}, qp: q, recvs: 1}, false)
	}
}

// peer is the QP at the other end when it can take requests.
func (q *loopQP) peer() *loopQP {
	p := q.pd.ctx.loop.qps[q.attr.DestQPN]
	if p == nil || p.pd.ctx.gid != q.attr.AV.DGID || p.attr.DestQPN != q.qpn {
		return nil
	}
	switch p.attr.State {
	case verbs.QPRTR, verbs.QPRTS, verbs.QPSQD:
		return p
	}
	return nil
}

// local gives the bytes of one SGE, nil when the key, the bounds or the rights
// are wrong.
func (q *loopQP) local(s verbs.SGE, need verbs.Access) []byte {
	m := q.pd.ctx.loop.lkeys[s.LKey]
	if m == nil || m.pd != q.pd {
		return nil
	}
	return m.bytes(s.Addr, uint64(s.Length), need)
}

// remote gives bytes of this QP's memory to its peer.
func (q *loopQP) remote(addr uint64, rkey uint32, n uint64, need verbs.Access) []byte {
	m := q.pd.ctx.loop.rkeys[rkey]
	if m == nil || m.pd != q.pd {
		return nil
	}
	return m.bytes(addr, n, need)
}

// execute does one request. wait means that the peer cannot take it yet.
func (q *loopQP) execute(w *wqe) (status verbs.WCStatus, byteLen uint32, wait bool) {
	wr := &w.wr
	need := verbs.Access(0)
	if wr.Op == verbs.OpRead || wr.Op == verbs.OpCAS || wr.Op == verbs.OpFAA {
		need = verbs.LocalWrite
	}
	total := uint64(0)
	for _, s := range w.sges {
		if s.Length > 0 && q.local(s, need) == nil {
			return verbs.WCLocProt, 0, false
		}
		total += uint64(s.Length)
	}
	p := q.peer()
	if p == nil {
		var d time.Duration
		if q.attr.Timeout > 0 {
			d = time.Duration(q.attr.RetryCount+1) * (4096 << q.attr.Timeout)
		}
		q.stall(verbs.WCRetryExceeded, d)
		return 0, 0, true
	}
	takesRecv := wr.Op == verbs.OpSend || wr.Op == verbs.OpSendImm || wr.Op == verbs.OpWriteImm
	if takesRecv && p.rq.count == 0 {
		var d time.Duration
		if q.attr.RNRRetry < 7 {
			d = time.Duration(q.attr.RNRRetry+1) * rnrDelay(p.attr.MinRNRTimer)
		}
		q.stall(verbs.WCRNRExceeded, d)
		return 0, 0, true
	}
	right := rightFor(wr.Op)
	if right != 0 && (p.attr.Access&right == 0 || right != verbs.RemoteWrite && p.attr.MaxDestRDAtomic == 0) {
		return p.refuse(verbs.EventQPRequestError, verbs.WCRemInvReq), 0, false
	}
	var mem []byte
	if right != 0 && total > 0 {
		if mem = p.remote(wr.RemoteAddr, wr.RKey, total, right); mem == nil {
			return p.refuse(verbs.EventQPAccessError, verbs.WCRemAccess), 0, false
		}
	}
	switch wr.Op {
	case verbs.OpSend, verbs.OpSendImm:
		return q.sendTo(p, w, uint32(total)), 0, false
	case verbs.OpWrite, verbs.OpWriteImm:
		if late := q.pd.ctx.loop.opts.Late; late != nil {
			if d := late(wr); d > 0 {
				q.placeLate(p, w, total, d)
				mem = nil
			}
		}
		if mem != nil {
			q.place(mem, w.sges, wr.RemoteAddr)
		}
		if wr.Op == verbs.OpWriteImm {
			p.completeRecv(verbs.WCSuccess, verbs.WCRecvWImm, uint32(total), wr)
		}
		return verbs.WCSuccess, 0, false
	case verbs.OpRead:
		for _, s := range w.sges {
			copy(q.local(s, need), mem[:s.Length])
			mem = mem[s.Length:]
		}
		return verbs.WCSuccess, uint32(total), false
	default:
		var old uint64
		if wr.Op == verbs.OpCAS {
			old = verbs.CompareAndSwapWord(mem, wr.CompareAdd, wr.Swap)
		} else {
			old = verbs.AddWord(mem, wr.CompareAdd)
		}
		binary.NativeEndian.PutUint64(q.local(w.sges[0], need), old)
		return verbs.WCSuccess, 8, false
	}
}

// rightFor is the remote right that a request needs.
func rightFor(o verbs.Opcode) verbs.Access {
	switch o {
	case verbs.OpWrite, verbs.OpWriteImm:
		return verbs.RemoteWrite
	case verbs.OpRead:
		return verbs.RemoteRead
	case verbs.OpCAS, verbs.OpFAA:
		return verbs.RemoteAtomic
	}
	return 0
}

// refuse is what the responder does about a request it may not execute.
func (q *loopQP) refuse(e verbs.EventType, status verbs.WCStatus) verbs.WCStatus {
	q.pd.ctx.emitLocked(verbs.AsyncEvent{Type: e, Port: 1, QPN: q.qpn})
	q.failLocked()
	return status
}

// place copies the gathered bytes. An aligned word is one store, after all that
// came before.
func (q *loopQP) place(mem []byte, sges []verbs.SGE, addr uint64) {
	if len(sges) == 1 && sges[0].Length == 8 && addr%8 == 0 {
		src := q.local(sges[0], 0)
		if sges[0].Addr%8 == 0 {
			verbs.StoreWord(mem, verbs.LoadWord(src))
		} else {
			verbs.StoreWord(mem, binary.NativeEndian.Uint64(src))
		}
		return
	}
	for _, s := range sges {
		if s.Length > 0 {
			mem = mem[copy(mem, q.local(s, 0)):]
		}
	}
}

// placeLate takes the bytes now and places them after d, if they still may be.
func (q *loopQP) placeLate(p *loopQP, w *wqe, total uint64, d time.Duration) {
	buf := make([]byte, 0, total)
	for _, s := range w.sges {
		if s.Length > 0 {
			buf = append(buf, q.local(s, 0)...)
		}
	}
	addr, rkey := w.wr.RemoteAddr, w.wr.RKey
	time.AfterFunc(d, func() {
		l := p.pd.ctx.loop
		l.mu.Lock()
		defer l.mu.Unlock()
		if !p.closed {
			copy(p.remote(addr, rkey, total, verbs.RemoteWrite), buf)
		}
	})
}

// sendTo delivers a SEND into the peer's next receive.
func (q *loopQP) sendTo(p *loopQP, w *wqe, total uint32) verbs.WCStatus {
	r := p.rq.front()
	room := uint32(0)
	for _, s := range r.sges {
		if s.Length > 0 && p.local(s, verbs.LocalWrite) == nil {
			p.completeRecv(verbs.WCLocProt, 0, 0, &w.wr)
			p.failLocked()
			return verbs.WCRemOp
		}
		room += s.Length
	}
	if total > room {
		p.completeRecv(verbs.WCLocLen, 0, 0, &w.wr)
		p.failLocked()
		return verbs.WCRemInvReq
	}
	si, so := 0, uint32(0) // cursor in the receive's elements
	for _, s := range w.sges {
		if s.Length == 0 {
			continue
		}
		src := q.local(s, 0)
		for len(src) > 0 {
			dst := r.sges[si]
			if so == dst.Length {
				si, so = si+1, 0
				continue
			}
			n := copy(p.local(dst, verbs.LocalWrite)[so:], src)
			src, so = src[n:], so+uint32(n)
		}
	}
	p.completeRecv(verbs.WCSuccess, verbs.WCRecv, total, &w.wr)
	return verbs.WCSuccess
}

func (q *loopQP) completeRecv(status verbs.WCStatus, op verbs.WCOpcode, n uint32, wr *verbs.SendWR) {
	wc := verbs.WC{ID: q.rq.front().wr.ID, QPN: q.qpn, Status: status, Op: op, ByteLen: n}
	q.rq.pop()
	if status == verbs.WCSuccess && (wr.Op == verbs.OpSendImm || wr.Op == verbs.OpWriteImm) {
		wc.Imm, wc.Flags = wr.Imm, verbs.WCWithImm
	}
	q.recv.pushLocked(cqe{wc: wc, qp: q, recvs: 1}, wr.Flags&verbs.Solicited != 0)
}

// rnrDelay is the wait that an RNR NAK asks for, in milliseconds / 100 (IBTA
// table 45).
func rnrDelay(code uint8) time.Duration {
	table := [32]int{65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072,
		4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152}
	return time.Duration(table[code&31]) * 10 * time.Microsecond
}
