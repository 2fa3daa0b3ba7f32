package lane

import "sync"

// exchangeQueue is a queue without allocation: an exchange is in one at a time.
type exchangeQueue struct{ first, last *Exchange }

func (q *exchangeQueue) push(x *Exchange) {
	x.next = nil
	if q.last == nil {
		q.first = x
	} else {
		q.last.next = x
	}
	q.last = x
}

func (q *exchangeQueue) pop() *Exchange {
	x := q.first
	if x == nil {
		return nil
	}
	q.first = x.next
	if q.first == nil {
		q.last = nil
	}
	x.next = nil
	return x
}

// workQueue feeds workers or a scanner. It holds at most one exchange per slot, so it
// needs no limit of its own.
type workQueue struct {
	mu     sync.Mutex
	cond   *sync.Cond
	q      exchangeQueue
	closed bool
}

func newWorkQueue() *workQueue {
	w := &workQueue{}
	w.cond = sync.NewCond(&w.mu)
	return w
}

func (w *workQueue) push(x *Exchange) {
	w.mu.Lock()
	w.q.push(x)
	w.mu.Unlock()
	w.cond.Signal()
}

// pop waits for work; nil is the end.
func (w *workQueue) pop() *Exchange {
	w.mu.Lock()
	defer w.mu.Unlock()
	for {
		if x := w.q.pop(); x != nil {
			return x
		}
		if w.closed {
			return nil
		}
		w.cond.Wait()
	}
}

// tryPop takes work if there is some.
func (w *workQueue) tryPop() *Exchange {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.q.pop()
}

func (w *workQueue) close() {
	w.mu.Lock()
	w.closed = true
	w.mu.Unlock()
	w.cond.Broadcast()
}
