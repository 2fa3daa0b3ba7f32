package vectors

import (
	"bytes"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// TestBoundedMemory reads a matrix much larger than what reading it may take, in both
// orders, and text with the longest line that there may be.
func TestBoundedMemory(t *testing.T) {
	const rows, dim = 1 << 20, 64 // 256 MiB
	for _, order := range []string{"False", "True"} {
		p := write(t, "a.npy", npyFile(1, fmt.Sprintf("{'descr': '<f4', 'fortran_order': %s, 'shape': (%d, %d), }\n", order, rows, dim), nil))
		st, err := os.Stat(p)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(p, st.Size()+rows*dim*4); err != nil { // a file with a hole
			t.Fatal(err)
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		r, err := Open(p, Options{})
		if err != nil {
			t.Fatal(err)
		}
		n, err := r.Check()
		runtime.ReadMemStats(&after)
		if err != nil || n != rows {
			t.Errorf("%d rows, %v", n, err)
		}
		if took := after.TotalAlloc - before.TotalAlloc; took > 3*columnBytes {
			t.Errorf("order %s: %d bytes were allocated", order, took)
		}
		_ = r.Close()
	}
	long := write(t, "a.txt", []byte("a 1\n"+strings.Repeat("x", maxLine+1)+" 1\n"))
	if _, err := readAll(long, Options{}); err == nil || !strings.Contains(err.Error(), "line 2: byte 4: a line of more than") {
		t.Errorf("%.300v", err)
	}
}

// TestNextAllocates: rows come without garbage.
func TestNextAllocates(t *testing.T) {
	if raceEnabled {
		t.Skip("needs a build without -race, which allocates itself")
	}
	files := map[string][]byte{
		"a.npy": npyFile(1, "{'descr': '<f4', 'fortran_order': False, 'shape': (1000, 8), }\n", make([]byte, 32000)),
		"a.txt": bytes.Repeat([]byte("some-word 0.125 -0.25 1e-3\n"), 1000),
	}
	for name, b := range files {
		r, err := Open(write(t, name, b), Options{Duplicates: DuplicatesLast})
		if err != nil {
			t.Fatal(err)
		}
		keys, rows := make([]uint64, 10), make([]float32, 10*r.Dim())
		next := func() {
			if _, err := r.Next(keys, rows); err != nil && err != io.EOF {
				t.Fatal(err)
			}
		}
		next()
		if n := testing.AllocsPerRun(80, next); n > 0 {
			t.Errorf("%s: %v allocations a call", name, n)
		}
		_ = r.Close()
	}
}

// TestCutWhileRead: a file that becomes shorter is a truncated one.
func TestCutWhileRead(t *testing.T) {
	for name, b := range map[string][]byte{
		"a.npy": npyFile(1, "{'descr': '<f4', 'fortran_order': False, 'shape': (100000, 8), }\n", make([]byte, 3200000)),
		"a.txt": bytes.Repeat([]byte("some-word 0.125 -0.25 1e-3\n"), 40000),
	} {
		p := write(t, name, b)
		r, err := Open(p, Options{Duplicates: DuplicatesLast})
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(p, int64(len(b)/2)); err != nil {
			t.Fatal(err)
		}
		if _, err := r.Check(); err == nil || !strings.Contains(err.Error(), "cut while it was read") {
			t.Errorf("%s: %v", name, err)
		}
		_ = r.Close()
	}
}

func TestWriter(t *testing.T) {
	dir := t.TempDir()
	p := filepath.Join(dir, "m.npy")
	if err := os.WriteFile(p, []byte("before"), 0o600); err != nil {
		t.Fatal(err)
	}
	w, err := CreateMatrix(p, 2)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Rows([]float32{1, 2, 3}); err == nil {
		t.Error("half a row was taken")
	}
	if err := w.Keys([]uint64{1}); err == nil {
		t.Error("keys were taken")
	}
	if err := w.Rows([]float32{1, float32(math.NaN())}); err != nil {
		t.Error(err)
	}
	if err := w.Close(); err != nil || w.Close() != nil {
		t.Error(err)
	}
	if b, _ := os.ReadFile(p); string(b) != "before" {
		t.Errorf("what was not committed changed the file to %q", b)
	}
	if err := w.Rows([]float32{1, 2}); err == nil || w.Commit() == nil {
		t.Error("it goes on after Close")
	}
	if left, _ := filepath.Glob(filepath.Join(dir, ".*")); len(left) > 0 {
		t.Errorf("left over: %v", left)
	}
	if _, err := CreateMatrix(dir, 2); err == nil {
		t.Error("a folder was taken for a file")
	}
	if _, err := CreateMatrix(p, 0); err == nil {
		t.Error("rows without floats")
	}
}
