package table

import (
	"errors"
	"sync"
	"testing"
)

// scanAll goes over a table, with room for so many keys at once.
func scanAll(t *testing.T, tab *Table, room int) map[uint64]int {
	t.Helper()
	seen := map[uint64]int{}
	dst := make([]uint64, room)
	for next, more := uint64(0), true; more; {
		n, after, err := tab.Scan(next, dst)
		if err != nil {
			t.Fatal(err)
		}
		for _, k := range dst[:n] {
			seen[k]++
		}
		if after != 0 && after <= next {
			t.Fatalf("after %#x comes %#x", next, after)
		}
		next, more = after, after != 0
	}
	return seen
}

// TestScan: every key once, also while the index grows under the scan.
func TestScan(t *testing.T) {
	s, err := Open(Config{Memory: NewRegions()})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	tab, err := s.Init(Spec{Name: "t", Dim: 1})
	if err != nil {
		t.Fatal(err)
	}
	if got := scanAll(t, tab, 700); len(got) != 0 {
		t.Errorf("%d keys in an empty table", len(got))
	}
	for _, from := range []uint64{1, 1<<63 + 5, 1<<64 - 1} { // no beginning of a segment
		if _, next, err := tab.Scan(from, make([]uint64, 10)); err != nil || next != 0 {
			t.Errorf("from %#x: %#x, %v", from, next, err)
		}
	}
	const n = 20000
	put := func(from, to uint64) {
		keys := make([]uint64, 0, to-from)
		for k := from; k < to; k++ {
			keys = append(keys, k)
		}
		if err := tab.Put(keys, make([]float32, len(keys))); err != nil {
			t.Error(err)
		}
	}
	put(0, n)
	if _, err := tab.Delete([]uint64{5, 6, 7}); err != nil {
		t.Fatal(err)
	}
	check := func(seen map[uint64]int) {
		t.Helper()
		for k := range uint64(n) {
			want := 1
			if k >= 5 && k <= 7 {
				want = 0
			}
			if seen[k] != want {
				t.Fatalf("key %d came %d times, want %d", k, seen[k], want)
			}
		}
	}
	check(scanAll(t, tab, 700))
	check(scanAll(t, tab, 5001))
	check(scanAll(t, tab, 1))
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := range uint64(40) {
			put(n+i*2000, n+(i+1)*2000)
		}
	})
	for range 5 {
		check(scanAll(t, tab, 700))
	}
	wg.Wait()
	if got := scanAll(t, tab, 700); len(got) != n+80000-3 {
		t.Errorf("%d keys", len(got))
	}
	if _, _, err := tab.Scan(0, nil); !errors.As(err, new(*ShapeError)) {
		t.Errorf("too little room: %v", err)
	}
	if _, err := s.Drop("t"); err != nil {
		t.Fatal(err)
	}
	if _, _, err := tab.Scan(0, make([]uint64, 10)); !errors.Is(err, ErrDropped) {
		t.Error(err)
	}
}
