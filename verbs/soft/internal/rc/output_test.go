package rc

import (
	"bytes"
	"testing"

	"github.com/railstore/railstore/verbs"
)

// TestLimit: a limited Output is full after so many packets, and as large as before
// when the limit is gone.
func TestLimit(t *testing.T) {
	o := NewOutput(8)
	for _, x := range []struct{ limit, want int }{{1, 1}, {3, 3}, {0, 8}, {100, 8}, {-1, 8}} {
		o.Limit(x.limit)
		for range 2 { // Reset keeps the limit
			if len(o.Packets) != 0 || cap(o.Packets) != x.want {
				t.Errorf("limit %d: %d packets, room for %d, want %d", x.limit, len(o.Packets), cap(o.Packets), x.want)
			}
			o.Packets = o.Packets[:cap(o.Packets)]
			o.Reset()
		}
	}
}

// TestPlacer: it sees the payload of each packet of a WRITE in order, and what it
// takes over is not placed.
func TestPlacer(t *testing.T) {
	w := pair(attrs(), attrs(), Config{Cap: verbs.QPCap{MaxSendWR: 4, MaxSendSGE: 1}}, Config{})
	src, dst := region(t, 4096), region(t, 4096)
	for i := range src {
		src[i] = byte(i%250 + 1)
	}
	lkey, _ := w.a.mem.add(src, allAccess)
	_, rkey := w.b.mem.add(dst, allAccess)
	const n = 1000 // four packets of 256 bytes at most
	var seen []byte
	w.b.conn.Placer = func(to, payload []byte, key uint32, addr uint64) bool {
		if key != rkey || addr != verbs.AddrOf(dst)+uint64(len(seen)) || verbs.AddrOf(to) != addr || len(to) != len(payload) {
			t.Errorf("%d bytes for %#x with key %#x", len(payload), addr, key)
		}
		seen = append(seen, payload...)
		return len(seen) == 512 // the second packet
	}
	write := []verbs.SendWR{{Op: verbs.OpWrite, RemoteAddr: verbs.AddrOf(dst), RKey: rkey, NumSGE: 1, Flags: verbs.Signaled}}
	if _, err := w.a.conn.PostSend(write, []verbs.SGE{{Addr: verbs.AddrOf(src), Length: n, LKey: lkey}}); err != nil {
		t.Fatal(err)
	}
	w.run(t, 1e9)
	if len(w.a.done) != 1 || w.a.done[0].WC.Status != verbs.WCSuccess || !bytes.Equal(seen, src[:n]) {
		t.Fatalf("completions %+v, %d bytes seen", w.a.done, len(seen))
	}
	want := bytes.Clone(src[:n])
	clear(want[256:512])
	if !bytes.Equal(dst[:n], want) {
		t.Error("other bytes were placed than those that were not taken over")
	}
}
