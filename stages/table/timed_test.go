package table

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// TestGetTimed: the same rows and bits as Get, and every part takes its time.
func TestGetTimed(t *testing.T) {
	s, err := Open(Config{Memory: NewRegions()})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	tab, err := s.Init(Spec{Name: "t", Dim: 33})
	if err != nil {
		t.Fatal(err)
	}
	const n = 3*block + 7
	keys, rows := make([]uint64, n), make([]float32, n*33)
	for i := range keys {
		keys[i] = uint64(i * 3)
	}
	for i := range rows {
		rows[i] = rand.Float32()
	}
	if err := tab.Put(keys, rows); err != nil {
		t.Fatal(err)
	}
	asked := make([]uint64, 2*n)
	for i := range asked {
		asked[i] = uint64(i * 2) // every third of them is there
	}
	words := (len(asked) + 63) / 64
	a, b := make([]float32, len(asked)*33), make([]float32, len(asked)*33)
	for i := range b {
		b[i] = -1
	}
	fa, fb := make([]uint64, words), make([]uint64, words)
	na, err := tab.Get(asked, a, fa)
	if err != nil {
		t.Fatal(err)
	}
	var times GetTimes
	nb, err := tab.GetTimed(asked, b, fb, &times)
	if err != nil {
		t.Fatal(err)
	}
	if na == 0 || na == len(asked) || na != nb || !slices.Equal(a, b) || !slices.Equal(fa, fb) {
		t.Errorf("%d rows and %d", na, nb)
	}
	if times.Lookup <= 0 || times.ZeroFill <= 0 || times.RowCopy <= 0 {
		t.Errorf("%+v", times)
	}
	if _, err := tab.GetTimed(asked, b[1:], fb, &times); err == nil {
		t.Error("rows of the wrong length")
	}
}
