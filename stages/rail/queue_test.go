package rail

import (
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"
)

// However peers come and go, no CQ has more QPs than its share of the most there may be.
func TestQueuesShare(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	if v := os.Getenv("RS_TEST_SEED"); v != "" {
		var err error
		if seed, err = strconv.ParseUint(v, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("RS_TEST_SEED=%d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	for range 200 {
		most, n := 1+r.IntN(40), 1+r.IntN(9)
		q := queues{qps: make([]int, n)}
		var held []int
		for range 500 {
			if len(held) < most && r.IntN(5) < 3 {
				held = append(held, q.take())
			} else if len(held) > 0 {
				k := r.IntN(len(held))
				q.give(held[k])
				held = append(held[:k], held[k+1:]...)
			}
			for i, have := range q.qps {
				if have > share(most, n) {
					t.Fatalf("%d QPs in %d CQs: CQ %d has %d", most, n, i, have)
				}
			}
		}
	}
}
