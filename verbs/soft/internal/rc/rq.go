package rc

import "github.com/railstore/railstore/verbs"

// recvWQE is a queued receive request.
type recvWQE struct {
	id     verbs.WRID
	length uint32
	nsge   uint16
}

// recvQueue is a ring of receive requests, as sendQueue.
type recvQueue struct {
	wqes       []recvWQE
	sges       []verbs.SGE
	mask       uint32
	limit      uint32
	stride     uint32
	head, tail uint32
}

func (q *recvQueue) init(c verbs.QPCap) {
	n := ringSize(c.MaxRecvWR)
	q.limit, q.stride, q.mask = uint32(max(c.MaxRecvWR, 0)), uint32(max(c.MaxRecvSGE, 0)), uint32(n-1)
	q.wqes = make([]recvWQE, n)
	q.sges = make([]verbs.SGE, n*int(q.stride))
}

func (q *recvQueue) empty() bool { return q.head == q.tail }

// first is the request that the next message takes; the queue is not empty.
func (q *recvQueue) first() *recvWQE { return &q.wqes[q.head&q.mask] }

func (q *recvQueue) elements(w *recvWQE) []verbs.SGE {
	s := (q.head & q.mask) * q.stride
	return q.sges[s : s+uint32(w.nsge)]
}

// PostRecv queues receive requests as PostSend does send requests.
func (c *Conn) PostRecv(wrs []verbs.RecvWR, sges []verbs.SGE) (int, error) {
	q := &c.rq
	for i := range wrs {
		if q.tail-q.head >= q.limit {
			return i, c.errRQFull
		}
		n := uint32(wrs[i].NumSGE)
		if n > q.stride || int(n) > len(sges) {
			return i, c.errRecvWR
		}
		var total uint64
		dst := q.sges[(q.tail&q.mask)*q.stride:]
		for k := range n {
			dst[k] = sges[k]
			total += uint64(sges[k].Length)
		}
		if total > 1<<32-1 {
			return i, c.errRecvWR
		}
		q.wqes[q.tail&q.mask] = recvWQE{id: wrs[i].ID, length: uint32(total), nsge: wrs[i].NumSGE}
		sges = sges[n:]
		q.tail++
	}
	return len(wrs), nil
}
