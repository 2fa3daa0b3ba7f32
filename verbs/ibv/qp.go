//go:build cgo && linux

package ibv

// #cgo noescape rs_post_send
// #cgo nocallback rs_post_send
// #cgo noescape rs_post_recv
// #cgo nocallback rs_post_recv
// #include "shim.h"
import "C"

import (
	"fmt"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/railstore/railstore/verbs"
)

// qp is an RC queue pair.
type qp struct {
	dev *device
	qpn uint32
	cap verbs.QPCap

	// What a full queue answers, made once: it is met on the hot path.
	sendFull, recvFull error

	mu    sync.Mutex // guards what follows, and posting
	qp    *C.struct_rs_qp
	state verbs.QPState // that Modify has put it in
	port  uint8         // from INIT
}

// CreateQP creates an RC QP.
func (p *pd) CreateQP(init verbs.DriverQPInit) (verbs.DriverQP, error) {
	d := p.dev
	send, recv := init.SendCQ.(*cq), init.RecvCQ.(*cq)
	a := C.struct_ab_qp_init_attr{qp_type: C.AB_QPT_RC, cap: C.struct_ab_qp_cap{
		max_send_wr: C.uint32_t(init.Cap.MaxSendWR), max_recv_wr: C.uint32_t(init.Cap.MaxRecvWR),
		max_send_sge: C.uint32_t(init.Cap.MaxSendSGE), max_recv_sge: C.uint32_t(init.Cap.MaxRecvSGE),
		max_inline_data: C.uint32_t(init.Cap.MaxInline)}}
	if init.SigAll {
		a.sq_sig_all = 1
	}
	c, err := C.rs_create_qp(d.lib, p.pd, &a, send.cq, recv.cq)
	if c == nil {
		return nil, d.createQPFailed(init.Cap, errnoOf(err))
	}
	q := &qp{dev: d, qp: c, qpn: uint32(C.rs_qp_num(c))}
	// A device that leaves the numbers alone grants what was asked for.
	q.cap = verbs.QPCap{
		MaxSendWR: max(init.Cap.MaxSendWR, int(a.cap.max_send_wr)), MaxRecvWR: max(init.Cap.MaxRecvWR, int(a.cap.max_recv_wr)),
		MaxSendSGE: max(init.Cap.MaxSendSGE, int(a.cap.max_send_sge)), MaxRecvSGE: max(init.Cap.MaxRecvSGE, int(a.cap.max_recv_sge)),
		MaxInline: int(c.inline_max)}
	q.sendFull = &verbs.Error{Op: "post_send", Device: d.name, QPN: q.qpn, Kind: verbs.ErrSQFull, Err: unix.ENOMEM}
	q.recvFull = &verbs.Error{Op: "post_recv", Device: d.name, QPN: q.qpn, Kind: verbs.ErrRQFull, Err: unix.ENOMEM}
	d.live.qps.Add(1)
	return q, nil
}

func (d *device) createQPFailed(c verbs.QPCap, e unix.Errno) error {
	text := fmt.Sprintf("%v: send queue of %d with %d elements, receive queue of %d with %d, %d bytes inline; the device allows queues of %d, %d elements and %d QPs, and other processes use them too",
		e, c.MaxSendWR, c.MaxSendSGE, c.MaxRecvWR, c.MaxRecvSGE, c.MaxInline, d.attr.MaxQPWR, d.attr.MaxSGE, d.attr.MaxQP)
	if e == unix.ENOMEM {
		text += "; queues are pinned memory too: " + memlock(0)
	}
	return &verbs.Error{Op: "create_qp", Device: d.name, Kind: kindOf(e), Err: &causes{text, []error{e}}}
}

func (q *qp) QPN() uint32      { return q.qpn }
func (q *qp) Cap() verbs.QPCap { return q.cap }

var errQPClosed error = &verbs.Error{Kind: verbs.ErrClosed}

// PostSend queues a batch in one crossing.
func (q *qp) PostSend(wrs []verbs.SendWR, sges []verbs.SGE) (int, error) {
	q.mu.Lock()
	if q.qp == nil {
		q.mu.Unlock()
		return 0, errQPClosed
	}
	r := C.rs_post_send(C.uintptr_t(uintptr(unsafe.Pointer(q.qp))), (*C.struct_rs_send_wr)(unsafe.Pointer(unsafe.SliceData(wrs))), C.int(len(wrs)),
		(*C.struct_ab_sge)(unsafe.Pointer(unsafe.SliceData(sges))))
	q.mu.Unlock()
	if e := unix.Errno(uint32(r)); e != 0 {
		return int(r >> 32), q.postFailed("post_send", q.sendFull, e)
	}
	return int(r >> 32), nil
}

// PostRecv queues a batch of receives in one crossing.
func (q *qp) PostRecv(wrs []verbs.RecvWR, sges []verbs.SGE) (int, error) {
	q.mu.Lock()
	if q.qp == nil {
		q.mu.Unlock()
		return 0, errQPClosed
	}
	r := C.rs_post_recv(C.uintptr_t(uintptr(unsafe.Pointer(q.qp))), (*C.struct_rs_recv_wr)(unsafe.Pointer(unsafe.SliceData(wrs))), C.int(len(wrs)),
		(*C.struct_ab_sge)(unsafe.Pointer(unsafe.SliceData(sges))))
	q.mu.Unlock()
	if e := unix.Errno(uint32(r)); e != 0 {
		return int(r >> 32), q.postFailed("post_recv", q.recvFull, e)
	}
	return int(r >> 32), nil
}

func (q *qp) postFailed(op string, full error, e unix.Errno) error {
	if e == unix.ENOMEM || e == unix.EAGAIN || e == unix.ENOSPC || e == unix.EOVERFLOW {
		return full
	}
	return &verbs.Error{Op: op, Device: q.dev.name, QPN: q.qpn, Kind: kindOf(e), Err: e}
}

// Close destroys the QP. The device stops to use memory through it and to add
// completions of it before that returns.
func (q *qp) Close() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.qp == nil {
		return nil
	}
	if e := C.rs_destroy_qp(q.dev.lib, q.qp); e != 0 {
		return &verbs.Error{Op: "destroy_qp", Device: q.dev.name, QPN: q.qpn, Kind: kindOf(unix.Errno(e)), Err: unix.Errno(e)}
	}
	q.qp = nil
	q.dev.live.qps.Add(-1)
	return nil
}
