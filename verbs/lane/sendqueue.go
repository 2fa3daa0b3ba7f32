package lane

// sendQueue keeps account of the entries of a QP's send queue, so that a post
// never finds it full. Only some requests are signaled; the completion of one
// frees its own entry and those of the unsignaled ones before it.
//
// A post of n entries that is not signaled leaves fewer than depth/4 entries
// behind the last signaled one. So when the queue is too full for a post, a
// signaled request is under way and its completion makes room: no deadlock.
type sendQueue struct {
	depth int
	free  int     // entries that are neither posted nor reserved
	since int     // entries since the last signaled one
	ring  []int32 // entries that each signaled request under way frees, oldest first
	head  int
	count int
}

func newSendQueue(depth int) sendQueue {
	return sendQueue{depth: depth, free: depth, ring: make([]int32, depth)}
}

// wants reports whether the last of n more entries must be signaled.
func (q *sendQueue) wants(n int) bool { return 4*(q.since+n) >= q.depth }

// reserve takes n entries for a post to come; false: there are not so many.
func (q *sendQueue) reserve(n int) bool {
	if q.free < n {
		return false
	}
	q.free -= n
	return true
}

// posted tells that n reserved entries were posted, the last of them signaled or
// not.
func (q *sendQueue) posted(n int, signaled bool) {
	q.since += n
	if signaled {
		q.ring[(q.head+q.count)%len(q.ring)] = int32(q.since)
		q.count++
		q.since = 0
	}
}

// completed is called for each completion of a signaled request.
func (q *sendQueue) completed() {
	if q.count == 0 {
		return // a failed unsignaled request; the lane is lost anyway
	}
	q.free += int(q.ring[q.head])
	q.head = (q.head + 1) % len(q.ring)
	q.count--
}
