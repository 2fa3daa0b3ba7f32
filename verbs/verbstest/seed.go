package verbstest

import (
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"
)

// Seed gives a random source for a test, logs its seed and takes RS_TEST_SEED
// instead of the clock when that is set.
func Seed(tb testing.TB) *rand.Rand {
	tb.Helper()
	seed := uint64(time.Now().UnixNano())
	if s := os.Getenv("RS_TEST_SEED"); s != "" {
		v, err := strconv.ParseUint(s, 0, 64)
		if err != nil {
			tb.Fatalf("RS_TEST_SEED=%q: %v", s, err)
		}
		seed = v
	}
	tb.Logf("RS_TEST_SEED=%d", seed)
	return rand.New(rand.NewPCG(seed, seed>>1|1))
}

// Fill fills b with random bytes.
func Fill(r *rand.Rand, b []byte) {
	for len(b) >= 8 {
		v := r.Uint64()
		for i := range 8 {
			b[i] = byte(v >> (8 * i))
		}
		b = b[8:]
	}
	for i := range b {
		b[i] = byte(r.Uint32())
	}
}
