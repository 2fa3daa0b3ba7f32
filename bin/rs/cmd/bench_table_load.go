package cmd

import (
	"math"
	"math/rand/v2"
	"time"

	"github.com/railstore/railstore/stages/ps"
)

// What a benchmark asks for: which keys, and when.

const (
	keysUniform = "uniform"
	keysZipf    = "zipf"
	keysFixed   = "fixed"

	arrivalsPoisson = "poisson"
	arrivalsEven    = "even"
)

// keyDraw draws keys from 0 to n.
type keyDraw struct {
	kind string
	n    uint64
	zipf *zipf
}

func newKeyDraw(k *benchCase) keyDraw {
	d := keyDraw{kind: k.Keys, n: uint64(k.Records)}
	if k.Keys == keysZipf {
		d.zipf = newZipf(d.n, k.Theta)
	}
	return d
}

func (d keyDraw) fill(keys []uint64, rnd *rand.Rand) {
	switch d.kind {
	case keysFixed:
		for i := range keys {
			keys[i] = uint64(i) % d.n
		}
	case keysZipf:
		for i := range keys {
			// Scrambled: neighbours in rank are no neighbours in the table, or at a shard.
			keys[i] = ps.Mix(d.zipf.draw(rnd)+1) % d.n
		}
	default:
		for i := range keys {
			keys[i] = rnd.Uint64N(d.n)
		}
	}
}

// zipf draws ranks from 0 to n, rank i with a probability proportional to 1/(i+1)^theta,
// theta below 1, by the inverse of the distribution as in Gray et al., "Quickly
// generating billion-record synthetic databases" (1994).
type zipf struct {
	n                 float64
	theta, alpha      float64
	zetan, eta, half2 float64
}

func newZipf(n uint64, theta float64) *zipf {
	z := &zipf{n: float64(n), theta: theta, alpha: 1 / (1 - theta)}
	for i := uint64(1); i <= n; i++ {
		z.zetan += 1 / math.Pow(float64(i), theta)
	}
	z.half2 = 1 + math.Pow(0.5, theta) // zeta of 2
	z.eta = (1 - math.Pow(2/z.n, 1-theta)) / (1 - z.half2/z.zetan)
	return z
}

func (z *zipf) draw(rnd *rand.Rand) uint64 {
	u := rnd.Float64()
	uz := u * z.zetan
	if uz < 1 || z.n < 2 {
		return 0
	}
	if uz < z.half2 {
		return 1
	}
	return min(uint64(z.n*math.Pow(z.eta*u-z.eta+1, z.alpha)), uint64(z.n)-1)
}

// schedule are the moments at which requests come in an open loop, from the beginning of
// the warm-up. It is made before anything is sent, so no answer can move it.
func schedule(k *benchCase) []time.Duration {
	total := k.Warmup + k.Duration
	rnd := rand.New(rand.NewPCG(k.Seed, 0xa881))
	out := make([]time.Duration, 0, int(k.Rate*total.Seconds()*1.1)+16)
	gap := float64(time.Second) / k.Rate
	for at := 0.0; ; {
		if k.Arrivals == arrivalsEven {
			at += gap
		} else {
			at += gap * rnd.ExpFloat64()
		}
		if at >= float64(total) {
			return out
		}
		out = append(out, time.Duration(at))
	}
}

// benchRow is the row of a key before any update: whole numbers below 2^20, different
// for every key and column. An update takes 1 from all of them at once, so whatever the
// updates are, all floats of a row are less by the same whole number, and float32 is
// exact.
func benchRow(row []float32, key uint64) {
	h := ps.Mix(key + 0x9e3779b97f4a7c15)
	for i := range row {
		row[i] = float32(h >> 44)
		h = h*6364136223846793005 + 1442695040888963407
	}
}

// checkRow gives how many updates a row has had, or -1 if it is none that could be.
func checkRow(row []float32, key uint64) int64 {
	h := ps.Mix(key + 0x9e3779b97f4a7c15)
	k := float32(h>>44) - row[0]
	if !(k >= 0 && k < 1<<23) || k != float32(int64(k)) {
		return -1
	}
	for i := range row {
		if float32(h>>44)-row[i] != k {
			return -1
		}
		h = h*6364136223846793005 + 1442695040888963407
	}
	return int64(k)
}
