package rail

import "sync"

// queues are the CQs of a rail, among which its QPs are divided: each gets the next one
// of those with the fewest, so that none ever has more than its share of the most that
// there may be.
type queues struct {
	mu  sync.Mutex
	qps []int // of each CQ
}

// share is how many QPs complete into one of n CQs at most.
func share(qps, n int) int { return (qps + n - 1) / n }

func (q *queues) take() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	least := 0
	for i, n := range q.qps {
		if n < q.qps[least] {
			least = i
		}
	}
	q.qps[least]++
	return least
}

func (q *queues) give(i int) {
	q.mu.Lock()
	q.qps[i]--
	q.mu.Unlock()
}
