package table

import (
	"bufio"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/railstore/railstore/verbs"
)

const (
	benchDim   = 128
	benchBatch = 500
)

// benchRows is how many rows of 512 bytes the benchmarks use: far more than caches
// hold, and not more than a third of the memory that is free.
func benchRows(b *testing.B) int {
	rows := 4 << 20
	if s := os.Getenv("RS_BENCH_ROWS"); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil || n < benchBatch {
			b.Fatalf("RS_BENCH_ROWS=%q: want a number from %d", s, benchBatch)
		}
		return n
	}
	f, err := os.Open("/proc/meminfo")
	if err != nil {
		return rows
	}
	defer f.Close()
	for sc := bufio.NewScanner(f); sc.Scan(); {
		if v, ok := strings.CutPrefix(sc.Text(), "MemAvailable:"); ok {
			kib, err := strconv.Atoi(strings.TrimSuffix(strings.TrimSpace(v), " kB"))
			for err == nil && rows > 1<<16 && rows*4*benchDim/1024 > kib/3 {
				rows /= 2
			}
		}
	}
	return rows
}

// benchTable is made once for all benchmarks of a run.
var benchTable = sync.OnceValues(func() (*Table, error) {
	s, err := Open(Config{})
	if err != nil {
		return nil, err
	}
	return s.Init(Spec{Name: "bench", Dim: benchDim})
})

func benchFill(b *testing.B, n int) *Table {
	t, err := benchTable()
	if err != nil {
		b.Fatal(err)
	}
	if t.Len() == n {
		return t
	}
	keys := make([]uint64, 4096)
	rows := make([]float32, len(keys)*benchDim)
	for at := 0; at < n; at += len(keys) {
		for i := range keys {
			keys[i] = benchKey(at + i)
			rows[i*benchDim] = float32(at + i)
		}
		k := keys[:min(len(keys), n-at)]
		if err := t.Put(k, rows[:len(k)*benchDim]); err != nil {
			b.Fatal(err)
		}
	}
	return t
}

func benchKey(i int) uint64 { return uint64(i) * 0x9e3779b97f4a7c15 }

// benchKeys is batches of keys, drawn at random from all of them.
func benchKeys(n, batches int) [][]uint64 {
	r := rand.New(rand.NewPCG(1, 2))
	out := make([][]uint64, batches)
	for i := range out {
		out[i] = make([]uint64, benchBatch)
		for j := range out[i] {
			out[i][j] = benchKey(r.IntN(n))
		}
	}
	return out
}

func rowsPerSecond(b *testing.B) {
	b.ReportMetric(float64(b.N)*benchBatch/b.Elapsed().Seconds()/1e6, "Mrows/s")
	b.ReportMetric(b.Elapsed().Seconds()*1e9/float64(b.N)/benchBatch, "ns/row")
}

// BenchmarkGet reads 500 rows of 512 bytes, on one core, from a table that no cache
// holds.
func BenchmarkGet(b *testing.B) {
	n := benchRows(b)
	t := benchFill(b, n)
	batches := benchKeys(n, 512)
	dst := make([]float32, benchBatch*benchDim)
	b.SetBytes(benchBatch * benchDim * 4)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if m, err := t.Get(batches[i%len(batches)], dst, nil); err != nil || m != benchBatch {
			b.Fatal(m, err)
		}
	}
	rowsPerSecond(b)
}

// BenchmarkGetOne reads one row.
func BenchmarkGetOne(b *testing.B) {
	n := benchRows(b)
	t := benchFill(b, n)
	batches := benchKeys(n, 512)
	dst := make([]float32, benchDim)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if m, err := t.Get(batches[i%len(batches)][:1], dst, nil); err != nil || m != 1 {
			b.Fatal(m, err)
		}
	}
}

// BenchmarkLocate finds 500 rows without reading them.
func BenchmarkLocate(b *testing.B) {
	n := benchRows(b)
	t := benchFill(b, n)
	batches := benchKeys(n, 512)
	refs := make([]RowRef, benchBatch)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		p := t.store.Pin("bench")
		m, err := t.Locate(p, batches[i%len(batches)], refs)
		p.Unpin()
		if err != nil || m != 0 {
			b.Fatal(m, err)
		}
	}
	rowsPerSecond(b)
}

// BenchmarkGetBeside takes turns, batch by batch, so that a machine that is busy with
// other things slows all alike, and the median batch of each counts: the table; a Go map of places with a copy of each row
// ("map"); and the copies alone, at random places that are known ("copy"): a way to a row
// can hardly be faster than none.
func BenchmarkGetBeside(b *testing.B) {
	n := benchRows(b)
	t := benchFill(b, n)
	batches := benchKeys(n, 512)
	dst := make([]float32, benchBatch*benchDim)
	out := floatBytes(dst)
	region, err := verbs.MapRegion(n * benchDim * 4)
	if err != nil {
		b.Fatal(err)
	}
	defer region.Close()
	mem := region.Bytes()
	for i := 0; i < len(mem); i += 4096 {
		mem[i] = 1
	}
	places := make(map[uint64]int, n)
	for i := range n {
		places[benchKey(i)] = i * benchDim * 4
	}
	known := make([][]int, len(batches))
	r := rand.New(rand.NewPCG(3, 4))
	for i := range known {
		known[i] = make([]int, benchBatch)
		for j := range known[i] {
			known[i][j] = r.IntN(n) * benchDim * 4
		}
	}
	ways := []struct {
		name string
		run  func(i int)
		took []time.Duration
	}{
		{"table", func(i int) {
			if m, err := t.Get(batches[i], dst, nil); err != nil || m != benchBatch {
				b.Fatal(m, err)
			}
		}, nil},
		{"copy", func(i int) {
			for j, at := range known[i] {
				copy(out[j*benchDim*4:][:benchDim*4], mem[at:at+benchDim*4])
			}
		}, nil},
		{"map", func(i int) {
			for j, k := range batches[(i+len(batches)/2)%len(batches)] {
				at, ok := places[k]
				if !ok {
					b.Fatal("a key is missing")
				}
				copy(out[j*benchDim*4:][:benchDim*4], mem[at:at+benchDim*4])
			}
		}, nil},
	}
	count := 0
	for ; b.Loop(); count++ {
		for w := range ways {
			start := time.Now()
			ways[w].run(count % len(batches))
			ways[w].took = append(ways[w].took, time.Since(start))
		}
	}
	var median [3]float64
	for w := range ways {
		slices.Sort(ways[w].took)
		median[w] = ways[w].took[count/2].Seconds()
		b.ReportMetric(benchBatch/median[w]/1e6, ways[w].name+"-Mrows/s")
	}
	b.ReportMetric(median[1]/median[0], "of-copy")
	b.ReportMetric(median[2]/median[0], "times-map")
	b.ReportMetric(0, "ns/op")
}

// BenchmarkPut replaces 500 rows of 512 bytes.
func BenchmarkPut(b *testing.B) {
	n := benchRows(b)
	t := benchFill(b, n)
	batches := benchKeys(n, 512)
	rows := make([]float32, benchBatch*benchDim)
	b.SetBytes(benchBatch * benchDim * 4)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if err := t.Put(batches[i%len(batches)], rows); err != nil {
			b.Fatal(err)
		}
	}
	rowsPerSecond(b)
}

// BenchmarkUpdate applies 500 gradients of 128 elements with each optimizer.
func BenchmarkUpdate(b *testing.B) {
	const n = 1 << 18
	for _, kind := range []string{SGD, AdaGrad, RowwiseAdaGrad, Adam, AdamW} {
		b.Run(kind, func(b *testing.B) {
			s, err := Open(Config{})
			if err != nil {
				b.Fatal(err)
			}
			defer s.Close()
			t, err := s.Init(Spec{Name: "bench", Dim: benchDim, Optimizer: Defaults(kind)})
			if err != nil {
				b.Fatal(err)
			}
			benchPut(b, t, n)
			batches := benchKeys(n, 512)
			grads := make([]float32, benchBatch*benchDim)
			for i := range grads {
				grads[i] = float32(i%17) * 0.01
			}
			token := Token{Client: 1}
			b.SetBytes(benchBatch * benchDim * 4)
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				token.Sequence++
				if ok, err := t.Update(batches[i%len(batches)], grads, token); err != nil || !ok {
					b.Fatal(ok, err)
				}
			}
			rowsPerSecond(b)
		})
	}
}

func benchPut(b *testing.B, t *Table, n int) {
	keys := make([]uint64, 4096)
	rows := make([]float32, len(keys)*benchDim)
	for at := 0; at < n; at += len(keys) {
		for i := range keys {
			keys[i] = benchKey(at + i)
		}
		if err := t.Put(keys, rows); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkGetParallel is BenchmarkGet on all cores at once, beside a writer for each
// eight readers: readers and writers share no lock.
func BenchmarkGetParallel(b *testing.B) {
	n := benchRows(b)
	t := benchFill(b, n)
	batches := benchKeys(n, 512)
	b.SetBytes(benchBatch * benchDim * 4)
	b.RunParallel(func(pb *testing.PB) {
		rows := make([]float32, benchBatch*benchDim)
		for i := rand.IntN(len(batches)); pb.Next(); i++ {
			keys := batches[i%len(batches)]
			if i%9 == 8 {
				if err := t.Put(keys, rows); err != nil {
					b.Error(err)
				}
			} else if m, err := t.Get(keys, rows, nil); err != nil || m != benchBatch {
				b.Error(m, err)
			}
		}
	})
	rowsPerSecond(b)
}
