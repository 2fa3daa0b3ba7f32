package soft

import (
	"testing"

	"github.com/railstore/railstore/verbs"
	"github.com/railstore/railstore/verbs/verbstest"
)

// The counters of a device outlive its QPs, and only grow.
func TestDeviceCountsOverQPs(t *testing.T) {
	p := verbstest.Fixture{}.New(t, openPair(Options{}, "127.0.0.1", "127.0.0.2"))
	const n, size = 10, 1000
	for i := range n {
		p.A.Write(verbs.WRID(i), 0, size, p.B, 0, verbs.Signaled)
		p.A.OK(verbs.WRID(i))
	}
	a, aok := p.A.Ctx.QPStats()
	if !aok || a.Requests != n || a.BytesSent != n*size || a.PacketsSent < n {
		t.Errorf("%+v %v", a, aok)
	}
	if b, ok := p.B.Ctx.QPStats(); !ok || b.BytesReceived != n*size || b.Requests != 0 {
		t.Errorf("peer: %+v %v", b, ok)
	}
	if err := p.A.QP.Modify(verbs.QPAttr{State: verbs.QPReset}, verbs.MaskState); err != nil {
		t.Fatal(err)
	}
	if after, ok := p.A.Ctx.QPStats(); !ok || after.Requests != n || after.BytesSent != n*size {
		t.Errorf("after a reset: %+v %v", after, ok)
	}
	if err := p.A.QP.Close(); err != nil {
		t.Fatal(err)
	}
	if after, ok := p.A.Ctx.QPStats(); !ok || after.Requests != n || after.BytesSent != n*size || after.PacketsSent < a.PacketsSent {
		t.Errorf("after the QP: %+v %v", after, ok)
	}
}
