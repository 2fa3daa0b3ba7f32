package cmd

import (
	"slices"
	"testing"
)

func TestCompact(t *testing.T) {
	keys, rows := []uint64{1, 2, 3, 4}, []float32{1, 1, 2, 2, 3, 3, 4, 4}
	found := []bool{false, true, false, true}
	n := compact(keys, rows, found, 2)
	if n != 2 || !slices.Equal(keys[:n], []uint64{2, 4}) || !slices.Equal(rows[:2*n], []float32{2, 2, 4, 4}) || slices.Contains(found[:n], false) {
		t.Errorf("%d: %v %v %v", n, keys, rows, found)
	}
}
