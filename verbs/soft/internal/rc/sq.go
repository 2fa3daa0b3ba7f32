package rc

import (
	"github.com/railstore/railstore/verbs"
	"github.com/railstore/railstore/verbs/soft/internal/wire"
)

// maxMessage is the longest message (IBTA 9.7.2).
const maxMessage = 1 << 31

// sendWQE is a queued send request.
type sendWQE struct {
	id            verbs.WRID
	raddr         uint64
	compare, swap uint64
	rkey, imm     uint32
	length        uint32   // bytes of all elements
	psn           wire.PSN // of the first packet; once started
	packets       uint32   // PSNs it takes; once started
	nsge          uint16
	op            verbs.Opcode
	flags         verbs.SendFlags
}

// answered reports an operation that needs more than an acknowledgement.
func (w *sendWQE) answered() bool { return w.op >= verbs.OpRead }

// end is the PSN after its last one.
func (w *sendWQE) end() wire.PSN { return w.psn.Add(w.packets) }

// sendQueue is a ring of requests. Counters run freely; the slot of a counter is
// its low bits.
//
// Invariant: head <= cur <= tail. Requests before head are completed, those
// before cur are on the wire and wait for the peer, cur is being sent.
type sendQueue struct {
	wqes  []sendWQE
	sges  []verbs.SGE // stride elements a slot
	mask  uint32
	limit uint32
	// stride is the most elements of a request.
	stride          uint32
	head, cur, tail uint32
}

func (q *sendQueue) init(c verbs.QPCap) {
	n := ringSize(c.MaxSendWR)
	q.limit, q.stride, q.mask = uint32(max(c.MaxSendWR, 0)), uint32(max(c.MaxSendSGE, 0)), uint32(n-1)
	q.wqes = make([]sendWQE, n)
	q.sges = make([]verbs.SGE, n*int(q.stride))
}

func ringSize(n int) int {
	size := 1
	for size < n {
		size <<= 1
	}
	return size
}

func (q *sendQueue) at(i uint32) *sendWQE { return &q.wqes[i&q.mask] }

func (q *sendQueue) elements(i uint32, w *sendWQE) []verbs.SGE {
	s := (i & q.mask) * q.stride
	return q.sges[s : s+uint32(w.nsge)]
}

// PostSend queues send requests and returns how many were taken. The error
// (prepared, no allocation) is about the first that was not.
func (c *Conn) PostSend(wrs []verbs.SendWR, sges []verbs.SGE) (int, error) {
	if c.attr.State < verbs.QPRTS {
		return 0, c.errState
	}
	q := &c.sq
	for i := range wrs {
		wr := &wrs[i]
		if q.tail-q.head >= q.limit {
			return i, c.errSQFull
		}
		n := uint32(wr.NumSGE)
		if wr.Op > verbs.OpFAA || n > q.stride || int(n) > len(sges) {
			return i, c.errSendWR
		}
		w := q.at(q.tail)
		var total uint64
		dst := q.sges[(q.tail&q.mask)*q.stride:]
		for k := range n {
			dst[k] = sges[k]
			total += uint64(sges[k].Length)
		}
		if total > maxMessage || wr.Op >= verbs.OpCAS && (n != 1 || total != 8) {
			return i, c.errSendWR
		}
		w.id = wr.ID
		w.raddr = wr.RemoteAddr
		w.compare, w.swap = wr.CompareAdd, wr.Swap
		w.rkey, w.imm = wr.RKey, wr.Imm
		w.length = uint32(total)
		w.nsge = wr.NumSGE
		w.op, w.flags = wr.Op, wr.Flags
		sges = sges[n:]
		c.stats.Requests++
		q.tail++
	}
	return len(wrs), nil
}
