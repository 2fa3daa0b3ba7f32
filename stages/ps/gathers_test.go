package ps

import "testing"

// Auto takes what was cheaper on soft; see BenchmarkGetWideRows.
func TestAutoGathersWhereItIsCheaper(t *testing.T) {
	for _, c := range []struct {
		slot, row int // bytes
		want      bool
	}{
		{4 << 10, 256, true}, {4 << 10, 512, true}, {4 << 10, 2048, true}, {4 << 10, 8192, true}, // one row does not fit
		{64 << 10, 256, false}, {64 << 10, 512, false}, {64 << 10, 4096, true}, {64 << 10, 16384, true},
		{512 << 10, 512, false}, {512 << 10, 4096, false}, {512 << 10, 61440, false}, {512 << 10, 128 << 10, false},
	} {
		slot, piece := c.slot/c.row, MaxPiece/c.row
		if got := gathers(slot, piece, 1<<20/c.row); got != c.want {
			t.Errorf("slots of %d, rows of %d: gathered %v", c.slot, c.row, got)
		}
		if slot > 0 && gathers(slot, piece, slot) {
			t.Errorf("slots of %d, rows of %d: what one slot holds is gathered", c.slot, c.row)
		}
	}
}
