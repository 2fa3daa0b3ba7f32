package vectors

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// BenchmarkRead is the speed of reading files of 20 000 rows of 100 floats to their end.
func BenchmarkRead(b *testing.B) {
	const n, dim = 20000, 100
	dir := b.TempDir()
	var t strings.Builder
	data := make([]float32, n*dim)
	for i := range n {
		fmt.Fprintf(&t, "word%d", i)
		for j := range dim {
			data[i*dim+j] = float32(rand.IntN(2e6)-1e6) / 1e6
			fmt.Fprintf(&t, " %.6f", data[i*dim+j])
		}
		t.WriteByte('\n')
	}
	npy := func(order string) []byte {
		return npyFile(1, fmt.Sprintf("{'descr': '<f4', 'fortran_order': %s, 'shape': (%d, %d), }\n", order, n, dim), f32le(data...))
	}
	for _, f := range []struct {
		name string
		b    []byte
	}{{"text", []byte(t.String())}, {"npy", npy("False")}, {"npy-columns", npy("True")}} {
		b.Run(f.name, func(b *testing.B) {
			p := filepath.Join(dir, f.name)
			if err := os.WriteFile(p, f.b, 0o600); err != nil {
				b.Fatal(err)
			}
			b.SetBytes(int64(len(f.b)))
			b.ReportAllocs()
			for b.Loop() {
				r, err := Open(p, Options{})
				if err != nil {
					b.Fatal(err)
				}
				if rows, err := r.Check(); err != nil || rows != n {
					b.Fatal(rows, err)
				}
				_ = r.Close()
			}
			b.ReportMetric(float64(n)*float64(b.N)/b.Elapsed().Seconds(), "rows/s")
		})
	}
}
