package table

import "math"

// batch is the memory that a call which changes a table works with. Calls borrow it from
// a pool: a warm call allocates nothing.
type batch struct {
	fresh    []uint64 // slots to fill
	replaced []uint64 // references that were taken out of the index

	// Of an Update: its keys without duplicates. first[u] is the position where one comes
	// first, next[i] the position where the key of position i comes again, -1: nowhere.
	first  []int32
	next   []int32
	last   []int32  // by u
	unique []uint64 // the keys
	heads  []int32  // a hash table of u+1
	sum    []float64
	grad   []float32
	memo   corrections
}

// maxBatch bounds the keys of a call: positions are int32, and a token counts them.
const maxBatch = math.MaxInt32 / 4

func resize[T any](s []T, n int) []T {
	if cap(s) < n {
		return make([]T, n, max(n, 2*cap(s)))
	}
	return s[:n]
}

// keepBatch is the memory of a batch, in keys, that goes back to the pool. A giant load
// must not pin its working memory.
const keepBatch = 1 << 17

func (s *Store) borrow() *batch {
	w := s.batches.Get().(*batch)
	w.replaced = w.replaced[:0]
	w.memo = corrections{}
	return w
}

func (s *Store) lend(w *batch) {
	if cap(w.fresh) <= keepBatch && cap(w.next) <= keepBatch {
		s.batches.Put(w)
	}
}

// group finds the duplicates among keys.
func (w *batch) group(mix mixer, keys []uint64) {
	size := 16
	for size < 2*len(keys) {
		size *= 2
	}
	w.heads = resize(w.heads, size)
	clear(w.heads)
	w.next = resize(w.next, len(keys))
	w.first = resize(w.first, len(keys))[:0]
	w.last = resize(w.last, len(keys))[:0]
	w.unique = resize(w.unique, len(keys))[:0]
	for i, k := range keys {
		w.next[i] = -1
		at := int(mix.of(k)) & (size - 1)
		for {
			u := w.heads[at] - 1
			if u < 0 {
				w.first = append(w.first, int32(i))
				w.last = append(w.last, int32(i))
				w.unique = append(w.unique, k)
				w.heads[at] = int32(len(w.first))
				break
			}
			if w.unique[u] == k {
				w.next[w.last[u]] = int32(i)
				w.last[u] = int32(i)
				break
			}
			at = (at + 1) & (size - 1)
		}
	}
}

// gradient is the sum of the gradients of unique key u, in float64 and rounded once. zero
// says that elements which are not finite count as 0. bad is the first element of the
// sum that is not finite, -1: none.
func (w *batch) gradient(u, dim int, grads []float32, zero bool) (g []float32, bad int) {
	at := w.first[u]
	g = grads[int(at)*dim:][:dim]
	bad = -1
	if w.next[at] < 0 && !zero {
		return g, bad
	}
	w.sum = resize(w.sum, dim)
	w.grad = resize(w.grad, dim)
	clear(w.sum)
	for ; at >= 0; at = w.next[at] {
		for i, v := range grads[int(at)*dim:][:dim] {
			if zero && !finite(v) {
				continue
			}
			w.sum[i] += float64(v)
		}
	}
	for i, v := range w.sum {
		w.grad[i] = float32(v)
		if bad < 0 && !finite(w.grad[i]) {
			bad = i
		}
	}
	return w.grad, bad
}

func finite(v float32) bool { return v-v == 0 }

// allFinite is finite of all of them: 0 times anything else is not 0.
func allFinite(g []float32) bool {
	var a, b, c, d float32
	for len(g) >= 4 {
		a += g[0] * 0
		b += g[1] * 0
		c += g[2] * 0
		d += g[3] * 0
		g = g[4:]
	}
	for _, v := range g {
		a += v * 0
	}
	return a+b+c+d == 0
}
