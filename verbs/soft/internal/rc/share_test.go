package rc

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/railstore/railstore/verbs"
)

// TestShare: a share bounds what is in flight. One that changes all the time, down
// to a packet in the middle of a message, leaves nothing behind that nobody was
// asked to answer: without loss no timer may be needed.
func TestShare(t *testing.T) {
	const packets = 400
	for _, op := range []verbs.Opcode{verbs.OpWrite, verbs.OpRead} {
		for seed := range uint64(20) {
			r := rand.New(rand.NewPCG(seed, 7))
			cfg := Config{Cap: verbs.QPCap{MaxSendWR: 4, MaxRecvWR: 4, MaxSendSGE: 1, MaxRecvSGE: 1}, MaxWindow: 64, InitialWindow: 16, MinRTO: 1e6}
			w := pair(attrs(), attrs(), cfg, cfg)
			w.now, w.net.delay = 1000, 10
			mine, theirs := make([]byte, packets*256-3), make([]byte, packets*256-3)
			for i := range mine {
				mine[i], theirs[i] = byte(r.Uint32()), byte(r.Uint32())
			}
			lkey, _ := w.a.mem.add(mine, allAccess)
			_, rkey := w.b.mem.add(theirs, allAccess)
			wr := []verbs.SendWR{{Op: op, RemoteAddr: verbs.AddrOf(theirs), RKey: rkey, NumSGE: 1, Flags: verbs.Signaled}}
			if n, err := w.a.conn.PostSend(wr, []verbs.SGE{{Addr: verbs.AddrOf(mine), Length: uint32(len(mine)), LKey: lkey}}); n != 1 || err != nil {
				t.Fatal(n, err)
			}
			for i := 0; len(w.a.done) == 0; i++ {
				share := 1 + r.IntN(40)
				w.a.conn.Share(share)
				before := w.a.conn.nxt.Sub(w.a.conn.una)
				w.pump(w.a)
				// One more than the share may go to ask for the answers to those
				// that went before it shrank.
				if n := w.a.conn.nxt.Sub(w.a.conn.una); n > max(uint32(share), before)+1 {
					t.Fatalf("%v, seed %d: %d packets in flight after %d with a share of %d", op, seed, n, before, share)
				}
				if !w.step(1e12) || i > 100*packets {
					t.Fatalf("%v, seed %d: nothing happens any more", op, seed)
				}
			}
			if s := w.a.conn.Stats(); s.Retransmits+s.Timeouts != 0 || w.a.done[0].WC.Status != verbs.WCSuccess {
				t.Errorf("%v, seed %d: %+v, %v", op, seed, s, w.a.done[0].WC.Status)
			}
			if !bytes.Equal(mine, theirs) {
				t.Errorf("%v, seed %d: the bytes differ", op, seed)
			}
		}
	}
}
