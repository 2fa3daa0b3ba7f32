//go:build cgo && linux

package ibv

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/railstore/railstore/verbs"
)

// Commit and status words rely on the order of WRITEs, so nothing that is registered
// and no QP may ask for relaxed ordering (IBV_ACCESS_RELAXED_ORDERING, bit 20), nor for
// any other right than the four of package verbs.
func TestNeverRelaxedOrdering(t *testing.T) {
	const relaxed = 1 << 20
	f := newFake(t)
	b := f.bare()
	defer b.close(t)
	region, err := verbs.MapRegion(4096)
	if err != nil {
		t.Fatal(err)
	}
	defer region.Close()
	access := []verbs.Access{^verbs.Access(0), verbs.Access(relaxed)} // what package verbs does not know counts for nothing
	for a := range verbs.RemoteAtomic << 1 {
		access = append(access, a)
	}
	for _, a := range access {
		m, err := b.pd.Register(region.Bytes(), a)
		if err != nil {
			t.Fatal(err)
		}
		// The fake makes keys of the rights that it was given.
		if got := m.LKey() - 0x100; got&relaxed != 0 || got > 0xf {
			t.Errorf("registered with %v: the library was asked for rights %#x", a, got)
		}
		if err := m.Close(); err != nil {
			t.Fatal(err)
		}
		if err := b.qp.Modify(&verbs.QPAttr{State: verbs.QPInitState, Port: 1, Access: a}, verbs.MaskState|verbs.MaskPort|verbs.MaskPKeyIndex|verbs.MaskAccess); err != nil {
			t.Fatal(err)
		}
	}
	log, err := os.ReadFile(os.Getenv("FAKE_LOG"))
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for l := range strings.Lines(string(log)) {
		var got uint32
		if _, err := fmt.Sscanf(l, "rights %x", &got); err != nil {
			continue
		}
		seen++
		if got&relaxed != 0 || got > 0xf {
			t.Errorf("a QP was given rights %#x", got)
		}
	}
	if seen != len(access) {
		t.Errorf("%d changes of a QP's rights were seen, want %d", seen, len(access))
	}
}
