package lane

import (
	"encoding/hex"
	"hash/crc32"
	"strings"
	"testing"
	"testing/quick"
	"time"

	"github.com/railstore/railstore/verbs"
	"pgregory.net/rapid"
)

// The golden bytes are the wire format: a change of them is a new Version.
func TestGoldenLayout(t *testing.T) {
	d := make(desc, descBytes)
	d.put(&descFields{op: 0x0102, flags: 0x0304, slot: 0x0506, seq: 0x0708090a, generation: 0x0b0c0d0e, label: 0x0f101112,
		payload: 3, capacity: 0x13141516, token: 0x1718191a1b1c1d1e, deadline: 0x1f20212223242526})
	putSum(d, sum(d, []byte("abc"), false))
	h := make(head, headBytes)
	h.put(flagPlaced, 0x01020304, 0x05060708, 0x090a, -6, 0x0b0c0d0e)
	putSum(h, sum(h, nil, true))
	var w [8]byte
	putWord(w[:], makeWord(0x01020304, 0x0506, wordReady))
	for name, c := range map[string]struct {
		got  []byte
		want string
	}{
		"descriptor": {d, "52534c44 0100 0201 0a090807 0e0d0c0b 0605 0403 1211100f 03000000 16151413 1e1d1c1b1a191817 2625242322212 01f 000000000000000000000000 " + hex.EncodeToString(d[60:])},
		"header":     {h, "52534c52 0100 0100 04030201 08070605 0a09 0000 faffffff 0e0d0c0b 0000000000000000000000000000000000000000000000000000000000000000 " + hex.EncodeToString(h[60:])},
		"word":       {w[:], "04030201 0605 01 a3"},
	} {
		want := strings.ReplaceAll(c.want, " ", "")
		if got := hex.EncodeToString(c.got); got != want {
			t.Errorf("%s is\n%s, want\n%s", name, got, want)
		}
	}
	if got := sum(make([]byte, 60), []byte("x"), false); got != sum(append(make([]byte, 60), 'y'), []byte("x"), false) {
		t.Error("the checksum covers more than 60 bytes of a header")
	}
	if d.checksum() == sum(d, []byte("abd"), false) {
		t.Error("the checksum does not depend on the payload")
	}
	if got := sum(append([]byte("123456789"), make([]byte, 51)...), nil, true); got != crc32.Checksum(append([]byte("123456789"), make([]byte, 51)...), crc32.MakeTable(0x82f63b78)) {
		t.Errorf("checksum %#x is not CRC-32C", got)
	}
}

func TestWord(t *testing.T) {
	if word(0).ok() {
		t.Error("zeroed memory holds a valid word")
	}
	err := quick.Check(func(seq uint32, gen uint16, state uint8, flip uint8) bool {
		w := makeWord(seq, gen, state)
		damaged := w ^ word(1)<<(flip%64)
		return w.ok() && w.seq() == seq && w.gen() == gen && w.state() == state && !damaged.ok()
	}, nil)
	if err != nil {
		t.Error(err)
	}
}

func TestWRID(t *testing.T) {
	err := quick.Check(func(k uint8, slot uint16, lane, gen uint32) bool {
		lane, gen = lane%wridLanes, gen%wridGens
		k2, s2, l2, g2 := splitWRID(wrid(kind(k), slot, lane, gen))
		return k2 == kind(k) && s2 == slot && l2 == lane && g2 == gen
	}, nil)
	if err != nil {
		t.Error(err)
	}
}

// TestSendQueue posts and completes at random against a plain model: the account
// never says that there is more room than there is, and never locks up.
func TestSendQueue(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		depth := rapid.IntRange(12, 64).Draw(t, "depth")
		q := newSendQueue(depth)
		type entry struct{ signaled bool }
		var model []entry // posted, not freed
		for range rapid.IntRange(1, 300).Draw(t, "steps") {
			if n := rapid.IntRange(1, 4).Draw(t, "n"); n <= q.free && rapid.Bool().Draw(t, "post") {
				signal := q.wants(n) || rapid.IntRange(0, 3).Draw(t, "extra") == 0
				if !q.reserve(n) {
					t.Fatalf("%d entries were refused, %d are free", n, q.free)
				}
				q.posted(n, signal)
				for i := range n {
					model = append(model, entry{signal && i == n-1})
				}
			} else {
				for i, e := range model {
					if e.signaled {
						model = model[i+1:]
						q.completed()
						break
					}
				}
			}
			if q.free != depth-len(model) {
				t.Fatalf("%d free, the model has %d of %d", q.free, len(model), depth)
			}
			if q.free < 4 && q.count == 0 {
				t.Fatalf("%d free of %d and no completion to come", q.free, depth)
			}
		}
	})
}

func TestConfigArithmetic(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := Config{Slots: rapid.IntRange(1, 64).Draw(t, "slots"), RequestBytes: rapid.IntRange(1, 5000).Draw(t, "request"),
			ResponseBytes: rapid.IntRange(1, 5000).Draw(t, "response"), Notify: Notify(rapid.IntRange(0, 2).Draw(t, "notify"))}
		if err := c.Check(); err != nil {
			t.Fatal(err)
		}
		if c.ClientBytes()%64 != 0 || c.ServerBytes()%64 != 0 {
			t.Fatal("not a multiple of 64")
		}
		if c.ClientBytes() < c.Slots*(c.RequestBytes+c.ResponseBytes+descBytes+headBytes+16) {
			t.Fatalf("%d bytes for %+v", c.ClientBytes(), c)
		}
		n := rapid.IntRange(1, 8).Draw(t, "lanes")
		cc, sc := c.ClientCap(), c.ServerCap()
		if CQDepth(c, n, n) < n*(cc.MaxSendWR+cc.MaxRecvWR+sc.MaxSendWR+sc.MaxRecvWR) {
			t.Fatal("the CQ could overrun")
		}
		if (c.Notify == Scan) != (cc.MaxRecvWR == 0) {
			t.Fatalf("%v with %d receives", c.Notify, cc.MaxRecvWR)
		}
	})
	for what, c := range map[string]Config{
		"slots":    {Slots: MaxSlots + 1},
		"negative": {Slots: -1},
		"request":  {RequestBytes: 1<<30 + 1},
		"response": {ResponseBytes: -5},
		"notify":   {Notify: 9},
		"bulk":     {BulkBytes: 1},
		"elements": {MaxSGE: 1000},
	} {
		if c.Check() == nil {
			t.Errorf("%s: accepted", what)
		}
	}
	if p := (Config{Slots: 2, Notify: Scan}).Params(); p["slots"] != "2" || p["notify"] != "scan" || p["request_bytes"] != "65536" || len(p) != 6 {
		t.Errorf("params %v", p)
	}
	for _, n := range []Notify{Adaptive, Imm, Scan} {
		b, _ := n.MarshalText()
		var back Notify
		if err := back.UnmarshalText(b); err != nil || back != n {
			t.Errorf("%v comes back as %v, %v", n, back, err)
		}
	}
	if _, err := ParseNotify("poll"); err == nil {
		t.Error("an unknown word was accepted")
	}
}

func TestCutter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var in []verbs.SGE
		addr := uint64(1000)
		for range rapid.IntRange(0, 10).Draw(t, "pieces") {
			n := rapid.Uint32Range(0, 9000).Draw(t, "n")
			in = append(in, verbs.SGE{Addr: addr, Length: n, LKey: uint32(len(in))})
			addr += uint64(n) + 100000
		}
		most, limit := rapid.IntRange(1, 4).Draw(t, "most"), rapid.IntRange(1, 8000).Draw(t, "limit")
		type atom struct {
			local, remote uint64
			key           uint32
		}
		var want, got []atom
		r := uint64(77)
		for _, g := range in {
			for i := range g.Length {
				want = append(want, atom{g.Addr + uint64(i), r, g.LKey})
				r++
			}
		}
		for cut := (cutter{sges: in, addr: 77}); !cut.done(); {
			out, n, at := cut.next(nil, most, limit)
			if n != len(out) || n == 0 || n > most {
				t.Fatalf("%d elements, at most %d", n, most)
			}
			sum := 0
			for _, g := range out {
				for i := range g.Length {
					got = append(got, atom{g.Addr + uint64(i), at, g.LKey})
					at++
				}
				sum += int(g.Length)
			}
			if sum > limit {
				t.Fatalf("%d bytes, at most %d", sum, limit)
			}
		}
		if len(got) != len(want) {
			t.Fatalf("%d bytes of %d", len(got), len(want))
		}
		for i := range got {
			if got[i] != want[i] {
				t.Fatalf("byte %d goes %+v, want %+v", i, got[i], want[i])
			}
		}
	})
}

func TestGate(t *testing.T) {
	g := newGate()
	for range 2 {
		for range 3 {
			if !g.enter() {
				t.Fatal("an open gate keeps out")
			}
		}
		shut := make(chan struct{})
		go func() { g.shut(); close(shut) }()
		for g.n.Load() > 0 {
			pause()
		}
		if g.enter() {
			t.Fatal("a shut gate lets in")
		}
		for range 3 {
			select {
			case <-shut:
				t.Fatal("shut while somebody was inside")
			case <-time.After(time.Millisecond):
			}
			g.leave()
		}
		<-shut
		g.open()
	}
}

func TestHunch(t *testing.T) {
	var h hunch
	for i := range uint32(hunchLimit) {
		if !h.worth(i + 1) {
			t.Fatalf("given up after %d misses", i)
		}
		h.miss()
	}
	tries := 0
	for i := range uint32(10 * hunchTry) {
		if h.worth(i) {
			tries++
			h.miss()
		}
	}
	if tries != 10 {
		t.Fatalf("%d tries", tries)
	}
	for range 4 {
		h.hit()
	}
	if !h.worth(1) {
		t.Fatal("four hits do not count")
	}
}

func TestErrorText(t *testing.T) {
	gid, _ := verbs.ParseGID("10.0.0.1")
	e := &Error{Layer: LayerDevice, Op: "call", Label: Label{Shard: 2, Index: 5, Rail: "r1"},
		Local: End{Name: "client/7", QPN: 0x11, GID: gid}, Remote: End{Name: "shard/2", QPN: 0x22}, Class: ClassPeerUnreachable, Err: verbs.WCRetryExceeded}
	const want = "call: shard 2 lane 5 rail r1: client/7 qp 0x000011 at 10.0.0.1 to shard/2 qp 0x000022: " +
		"transport retry counter exceeded RETRY_EXC(12) [peer_unreachable]"
	if e.Error() != want {
		t.Errorf("%s\nwant\n%s", e, want)
	}
	for s, want := range map[verbs.WCStatus]Class{verbs.WCRetryExceeded: ClassPeerUnreachable, verbs.WCRNRExceeded: ClassPeerUnreachable,
		verbs.WCFlush: ClassFlushed, verbs.WCRemAccess: ClassPeerRejected, verbs.WCLocProt: ClassLocal, verbs.WCFatal: ClassOther, 99: ClassOther} {
		if got := Classify(s); got != want || got.Rebuildable() != (want == ClassPeerUnreachable || want == ClassFlushed) {
			t.Errorf("%v is %s, want %s", s, got, want)
		}
	}
	if StatusOK.Err() != nil || StatusWrongShard.Err() == nil || Status(-99).String() != "status -99" || Status(5).String() != "status 5" {
		t.Error("statuses")
	}
}
