package object

import (
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
)

// testSeed is a new seed for each run, logged, or the one in RS_TEST_SEED.
func testSeed(t testing.TB) uint64 {
	t.Helper()
	seed := rand.Uint64()
	if s := os.Getenv("RS_TEST_SEED"); s != "" {
		v, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			t.Fatalf("RS_TEST_SEED=%q: %v", s, err)
		}
		seed = v
	}
	t.Logf("RS_TEST_SEED=%d", seed)
	return seed
}

func randomBytes(seed uint64, n int) []byte {
	r := rand.New(rand.NewPCG(seed, 1))
	b := make([]byte, n+8)
	for i := 0; i < n; i += 8 {
		v := r.Uint64()
		for j := range 8 {
			b[i+j] = byte(v >> (8 * j))
		}
	}
	return b[:n]
}
