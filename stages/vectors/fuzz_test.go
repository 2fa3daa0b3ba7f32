package vectors

import (
	"math"
	"os"
	"path/filepath"
	"testing"
)

// fuzzFile reads b as a file: whatever it is, the reader ends, gives whole rows of finite
// values only, and as many as it announced.
func fuzzFile(f *testing.F, name string, opts ...Options) {
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > 1<<16 {
			return
		}
		p := filepath.Join(dir, name)
		if err := os.WriteFile(p, b, 0o600); err != nil {
			t.Fatal(err)
		}
		for _, opt := range opts {
			r, err := Open(p, opt)
			if err != nil {
				continue
			}
			rows := r.Rows()
			_ = r.Close()
			m, err := readAll(p, opt)
			if len(m.rows) != len(m.keys)*m.dim {
				t.Fatalf("%d keys, %d floats, dim %d", len(m.keys), len(m.rows), m.dim)
			}
			if err == nil && rows >= 0 && int64(len(m.keys)) != rows {
				t.Fatalf("%d rows, want %d", len(m.keys), rows)
			}
			for i, v := range m.rows {
				if f := float64(v); opt.NaN != NaNKeep && (math.IsNaN(f) || math.IsInf(f, 0)) {
					t.Fatalf("float %d is %v", i, v)
				}
			}
		}
	})
}

func FuzzNpy(f *testing.F) {
	for _, d := range []string{
		"{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }\n", "{'descr': '>f8', 'fortran_order': True, 'shape': (3, 1), }\n",
		"{'descr': '<f2', 'fortran_order': True, 'shape': (4, 3), }\n", "{'descr': '<f4', 'fortran_order': False, 'shape': (0, 3), }\n",
	} {
		f.Add(npyFile(1, d, make([]byte, 24)))
		f.Add(npyFile(2, d, f32le(1, 2, 3, 4, 5, 6)))
	}
	fuzzFile(f, "a.npy", Options{Format: Npy}, Options{Format: Npy, NaN: NaNZero})
}

func FuzzSafeTensors(f *testing.F) {
	f.Add(stFile(`{"__metadata__":{"a":"b"},"w":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}}`, f32le(1, 2, 3, 4, 5, 6)))
	f.Add(stFile(`{"v":{"dtype":"F4","shape":[3],"data_offsets":[0,2]},"w":{"dtype":"BF16","shape":[2,1],"data_offsets":[2,6]}}`, make([]byte, 6)))
	fuzzFile(f, "a.safetensors", Options{Format: SafeTensors}, Options{Format: SafeTensors, Tensor: "w", NaN: NaNZero})
}

func FuzzText(f *testing.F) {
	for _, s := range []string{"king 1 2 3\nqueen 4 5 6\n", "2 3\nking 1 2 3 \r\nqueen 4 5 6", ". . . 1\n. 2\n", "a nan inf\n", "a 1e40 0x1p3\n"} {
		f.Add([]byte(s))
	}
	fuzzFile(f, "a.txt", Options{Format: Text}, Options{Format: Text, Dim: 1, NaN: NaNZero, Duplicates: DuplicatesLast},
		Options{Format: Text, Dim: 3, Header: HeaderNo}, Options{Format: Text, Header: HeaderYes})
}
