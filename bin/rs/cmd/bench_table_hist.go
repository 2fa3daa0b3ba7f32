package cmd

import (
	mathbits "math/bits"
	"time"
)

// hist counts times in buckets that are at most 1/64 wide of their value, so that a
// percentile is off by less than 1.6 %. It allocates nothing.
type hist struct {
	n      int64
	sum    int64
	max    int64
	bucket [64 * 64]int64
}

const histBits = 6

func histIndex(ns int64) int {
	if ns < 1<<histBits {
		return int(max(ns, 0))
	}
	e := mathbits.Len64(uint64(ns)) - 1 - histBits
	return (e+1)<<histBits | int(uint64(ns)>>e&(1<<histBits-1))
}

// histValue is the upper end of a bucket.
func histValue(i int) int64 {
	if i < 1<<histBits {
		return int64(i)
	}
	e := i>>histBits - 1
	return (int64(1<<histBits|i&(1<<histBits-1))+1)<<e - 1
}

func (h *hist) add(d time.Duration) {
	ns := int64(d)
	h.n++
	h.sum += ns
	h.max = max(h.max, ns)
	h.bucket[histIndex(ns)]++
}

func (h *hist) merge(o *hist) {
	h.n += o.n
	h.sum += o.sum
	h.max = max(h.max, o.max)
	for i, v := range o.bucket {
		h.bucket[i] += v
	}
}

// quantile is the time that the share q of the requests did not go beyond.
func (h *hist) quantile(q float64) int64 {
	if h.n == 0 {
		return 0
	}
	want := int64(q * float64(h.n))
	if float64(want) < q*float64(h.n) {
		want++
	}
	var sum int64
	for i, v := range h.bucket {
		if sum += v; sum >= max(want, 1) {
			return min(histValue(i), h.max)
		}
	}
	return h.max
}

// points are the buckets that have something, for raw.json: upper end in ns, count.
func (h *hist) points() [][2]int64 {
	out := [][2]int64{}
	for i, v := range h.bucket {
		if v > 0 {
			out = append(out, [2]int64{histValue(i), v})
		}
	}
	return out
}
