package lane

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/railstore/railstore/verbs"
)

// attacker writes whatever it likes into a server's slots, as a client could, and
// watches what is written into the client's memory.
type attacker struct {
	*rig
	sl      *ServerLane
	slot    *serverSlot
	handled atomic.Int64
	payload atomic.Int64 // bytes of the last payload
	client  []byte       // the client's published memory
	seq     uint32       // the last that the server took
}

const guard = 0xa7

func newAttacker(tb testing.TB, settle time.Duration) *attacker {
	a := &attacker{}
	a.rig = newRig(tb, rigOptions{cfg: Config{Notify: Scan, Slots: 2, RequestBytes: 256, ResponseBytes: 256, Settle: settle}, noLeak: true},
		HandlerFunc(func(x *Exchange) {
			a.handled.Add(1)
			a.payload.Store(int64(len(x.Payload())))
			for i := range x.Response() {
				x.Response()[i] = 0x11
			}
			x.Reply(StatusOK, len(x.Response()))
		}))
	a.sl, a.slot = a.served[0], &a.served[0].slots[1]
	a.client = a.lanes[0].slots[0].word[:1:1]
	a.client = a.rig.client.region.Bytes()[:a.cfg.withDefaults().clientPublished()]
	return a
}

// valid is a descriptor with its payload that the server must serve.
func (a *attacker) valid(n int) []byte {
	b := make([]byte, descBytes+n)
	d := desc(b[:descBytes])
	d.put(&descFields{op: 1, slot: 1, seq: a.seq + 1, generation: a.sl.gen, label: 3, payload: uint32(n), capacity: 100})
	putSum(d, sum(d, b[descBytes:], false))
	return b
}

// write puts request and word into slot 1 and waits until the server has done
// with them. It returns the answer's status, if there was one.
func (a *attacker) write(req []byte, w word) (st Status, answered bool) {
	a.tb.Helper()
	word := a.client[8:16]
	for i := range a.client {
		if i < 8 || i >= 16 {
			a.client[i] = guard
		}
	}
	verbs.StoreWord(word, 0)
	answers := a.acceptor.Counters().CompleteResponse.Load()
	copy(a.slot.req.b, req)
	verbs.StoreWord(a.slot.word, uint64(w))
	a.until("the server", func() bool {
		a.sl.mu.Lock()
		defer a.sl.mu.Unlock()
		return a.slot.last.Load() == uint64(w) && !a.slot.running && !a.slot.queued && !a.slot.again
	})
	if a.acceptor.Counters().CompleteResponse.Load() == answers {
		if verbs.LoadWord(word) != 0 || !bytes.Equal(a.client[16:], bytes.Repeat([]byte{guard}, len(a.client)-16)) {
			a.tb.Fatal("ignored, but the client's memory changed")
		}
		return 0, false
	}
	a.until("the answer", func() bool { return verbs.LoadWord(word) != 0 })
	// Only the slot's own word and response may have changed.
	stride := a.cfg.withDefaults().responseStride()
	words := a.cfg.withDefaults().wordsBytes()
	for i, v := range a.client {
		inWord, inSlot := i >= 8 && i < 16, i >= words+stride && i < words+2*stride
		if v != guard && !inWord && !inSlot {
			a.tb.Fatalf("byte %d of the client's memory was written", i)
		}
	}
	h := head(a.client[words+stride:])
	if got := loadWord(word); got != makeWord(w.seq(), uint16(a.lanes[0].gen), wordDone) || h.seq() != w.seq() {
		a.tb.Fatalf("status word %#x for sequence %d, asked was %d", got, h.seq(), w.seq())
	}
	return Status(h.status()), true
}

func TestHostileDescriptors(t *testing.T) {
	a := newAttacker(t, 300*time.Microsecond)
	next := func() word { return makeWord(a.seq+1, uint16(a.sl.gen), wordReady) }
	resum := func(b []byte) []byte {
		d := desc(b[:descBytes])
		putSum(d, sum(d, b[descBytes:descBytes+min(int(d.payload()), len(b)-descBytes)], false))
		return b
	}
	edit := func(off int, v uint32) func() []byte {
		return func() []byte {
			b := a.valid(40)
			binary.LittleEndian.PutUint32(b[off:], v)
			return resum(b)
		}
	}
	for _, c := range []struct {
		name string
		req  func() []byte
		want Status
	}{
		{"valid", func() []byte { return a.valid(40) }, StatusOK},
		{"empty payload", func() []byte { return a.valid(0) }, StatusOK},
		{"full payload", func() []byte { return a.valid(256) }, StatusOK},
		{"magic", edit(0, 0), StatusInvalid},
		{"version 2", edit(4, 2|1<<16), StatusInvalid},
		{"other sequence", edit(8, 77), StatusInvalid},
		{"other generation", edit(12, 1), StatusInvalid},
		{"same low half of the generation", func() []byte {
			b := a.valid(0)
			binary.LittleEndian.PutUint32(b[12:], a.sl.gen+1<<16)
			return resum(b)
		}, StatusInvalid},
		{"other slot", edit(16, 0), StatusInvalid},
		{"slot out of range", edit(16, 0xffff), StatusInvalid},
		{"other shard", edit(20, 4), StatusWrongShard},
		{"payload one too long", edit(24, 257), StatusTooLarge},
		{"payload overlaps everything", edit(24, 0xffffffff), StatusTooLarge},
		{"payload 2^31", edit(24, 1<<31), StatusTooLarge},
		{"response one too long", edit(28, 257), StatusTooLarge},
		{"response 2^32-1", edit(28, 0xffffffff), StatusTooLarge},
		{"deadline 2^64-1", func() []byte {
			b := a.valid(0)
			binary.LittleEndian.PutUint64(b[40:], ^uint64(0))
			return resum(b)
		}, StatusOK},
		{"checksum", func() []byte { b := a.valid(40); b[60] ^= 1; return b }, StatusInvalid},
		{"payload bit", func() []byte { b := a.valid(40); b[100] ^= 1; return b }, StatusInvalid},
		{"zeroes", func() []byte { return make([]byte, 320) }, StatusInvalid},
		{"ones", func() []byte { return bytes.Repeat([]byte{0xff}, 320) }, StatusTooLarge},
		{"valid again", func() []byte { return a.valid(1) }, StatusOK},
	} {
		before := a.handled.Load()
		st, answered := a.write(c.req(), next())
		a.seq++
		if !answered || st != c.want {
			t.Errorf("%s: answered %v with %v, want %v", c.name, answered, st, c.want)
		}
		if (a.handled.Load() != before) != (c.want == StatusOK) {
			t.Errorf("%s: handler ran %v", c.name, a.handled.Load() != before)
		}
	}

	count := a.acceptor.Counters()
	gen := uint16(a.sl.gen)
	for _, c := range []struct {
		name     string
		word     func() word
		answered bool
		counter  *atomic.Uint64
		seq      func() uint32 // the server's afterwards
	}{
		{"bad check", func() word { return next() ^ 1<<60 }, true, &count.InvalidDescriptor, func() uint32 { return a.seq }},
		{"state done", func() word { return makeWord(a.seq+1, gen, wordDone) }, true, &count.InvalidDescriptor, func() uint32 { return a.seq + 1 }},
		{"state 0", func() word { return makeWord(a.seq+1, gen, 0) }, true, &count.InvalidDescriptor, func() uint32 { return a.seq + 1 }},
		{"gap", func() word { return makeWord(a.seq+5, gen, wordReady) }, true, &count.InvalidDescriptor, func() uint32 { return a.seq + 5 }},
		{"other generation", func() word { return makeWord(a.seq+1, gen+1, wordReady) }, false, &count.StaleWords, func() uint32 { return a.seq }},
		{"replay", func() word { return makeWord(a.seq-3, gen, wordReady) }, false, &count.Replays, func() uint32 { return a.seq }},
		{"same sequence", func() word { return makeWord(a.seq, gen, wordReady) }, false, &count.Replays, func() uint32 { return a.seq }},
		{"sequence 0", func() word { return makeWord(0, gen, wordReady) }, false, &count.Replays, func() uint32 { return a.seq }},
	} {
		before, handled := c.counter.Load(), a.handled.Load()
		// The descriptor agrees with the word, so that only the word is wrong.
		w, was := c.word(), a.seq
		a.seq = w.seq() - 1
		req := a.valid(0)
		a.seq = was
		st, answered := a.write(req, w)
		a.seq = c.seq()
		if answered != c.answered || answered && st != StatusInvalid || c.counter.Load() != before+1 || a.handled.Load() != handled {
			t.Errorf("%s: answered %v with %v, counted %d, handler ran %v", c.name, answered, st, c.counter.Load()-before, a.handled.Load() != handled)
		}
	}
	if st, ok := a.write(a.valid(9), next()); !ok || st != StatusOK {
		t.Fatalf("after all that: answered %v with %v", ok, st)
	}
}

// TestBadResponses plays a server that answers wrongly: no byte of it reaches the
// caller, and the lane is retired.
func TestBadResponses(t *testing.T) {
	for name, spoil := range map[string]func(h []byte, fix func()){
		"magic":             func(h []byte, fix func()) { h[0] ^= 1; fix() },
		"version":           func(h []byte, fix func()) { h[4] ^= 2; fix() },
		"sequence":          func(h []byte, fix func()) { h[8]++; fix() },
		"generation":        func(h []byte, fix func()) { h[12] ^= 1; fix() },
		"slot":              func(h []byte, fix func()) { h[16] ^= 1; fix() },
		"one byte too many": func(h []byte, fix func()) { h[24] = 11; fix() },
		"many too many":     func(h []byte, fix func()) { binary.LittleEndian.PutUint32(h[24:], 0xffffffff) },
		"header bit":        func(h []byte, fix func()) { h[20] ^= 1 },
		"payload bit":       func(h []byte, fix func()) { h[headBytes+9] ^= 0x80 },
		"checksum":          func(h []byte, fix func()) { h[60] ^= 1 },
	} {
		t.Run(name, func(t *testing.T) {
			h := newHeld()
			r := newRig(t, rigOptions{workers: 1, cfg: Config{Settle: time.Millisecond}}, h)
			tk, err := r.pool.Start(context.Background(), Request{MaxResponse: 10})
			if err != nil {
				t.Fatal(err)
			}
			<-h.in
			l := r.lanes[0]
			s := &l.slots[0]
			b := s.resp.b
			head(b).put(0, s.seq.Load(), l.gen, 0, 0, 10)
			copy(b[headBytes:], "0123456789")
			fix := func() { putSum(b, sum(b, b[headBytes:headBytes+min(int(head(b).bytes()), 64)], false)) }
			fix()
			spoil(b, fix)
			verbs.StoreWord(s.word, uint64(makeWord(s.seq.Load(), uint16(l.gen), wordDone)))
			buf := make([]byte, 10)
			_, err = tk.Wait(context.Background(), buf)
			wantLayer(t, err, LayerIntegrity, ErrBadResponse)
			if l.State() != Dirty || !bytes.Equal(buf, make([]byte, 10)) {
				t.Fatalf("lane %v, buffer %q", l.State(), buf)
			}
		})
	}
}

// TestHostileImmediates: what an immediate says is only a hint.
func TestHostileImmediates(t *testing.T) {
	r := newRig(t, rigOptions{cfg: Config{Slots: 2}}, echo)
	l := r.lanes[0]
	post := func(imm uint32) {
		l.mu.Lock()
		defer l.mu.Unlock()
		_, err := l.qp.PostSend([]verbs.SendWR{{Op: verbs.OpWriteImm, Imm: imm, RKey: l.peer.Slots.RKey, RemoteAddr: l.peer.Slots.Addr}}, nil)
		if err != nil {
			t.Fatal(err)
		}
	}
	c := r.acceptor.Counters()
	post(makeImm(2, 1))
	post(makeImm(0xffff, 1))
	post(makeImm(1, 1))
	r.until("the server", func() bool { return c.BadImmediates.Load() == 2 && c.Duplicates.Load() == 1 })
	// A SEND takes a receive, too, and names no slot.
	l.mu.Lock()
	_, err := l.qp.PostSend([]verbs.SendWR{{Op: verbs.OpSend}}, nil)
	l.mu.Unlock()
	if err != nil {
		t.Fatal(err)
	}
	r.until("the server", func() bool { return c.BadImmediates.Load() == 3 })
	if _, err := r.pool.Call(context.Background(), Request{}, nil); err != nil {
		t.Fatal(err)
	}
}

// FuzzSlot writes arbitrary bytes into a request slot: they are answered or
// ignored as the rules say, and nothing but the slot's own response changes.
func FuzzSlot(f *testing.F) {
	a := newAttacker(f, 20*time.Microsecond)
	f.Add(uint8(0), uint64(0), a.valid(10), uint8(0), uint8(0))
	f.Add(uint8(1), uint64(0), a.valid(10), uint8(24), uint8(0xff))
	f.Add(uint8(2), uint64(makeWord(1, 200, 1)), []byte{}, uint8(0), uint8(0))
	f.Add(uint8(3), uint64(1), bytes.Repeat([]byte{0xff}, 400), uint8(60), uint8(1))
	f.Fuzz(func(t *testing.T, mode uint8, raw uint64, req []byte, at, flip uint8) {
		a.tb = t
		gen := uint16(a.sl.gen)
		w := makeWord(a.seq+1, gen, wordReady)
		if len(req) > len(a.slot.req.b) {
			req = req[:len(a.slot.req.b)]
		}
		switch mode % 4 {
		case 0: // a fair word over any bytes
		case 1: // a fair request with one byte changed and, half the time, a right checksum
			b := a.valid(int(at))
			b[int(at)%len(b)] ^= flip
			if raw&1 == 0 {
				d := desc(b[:descBytes])
				putSum(d, sum(d, b[descBytes:], false))
			}
			req = b
		case 2:
			w = word(raw)
		case 3: // a well-made word of any fields
			w = makeWord(uint32(raw), gen, uint8(raw>>32)%3)
		}
		if uint64(w) == a.slot.last.Load() {
			return // by rule nothing new, and this test could not see it pass
		}
		handled := a.handled.Load()
		// What is in the slot is what counts, leftovers of before included.
		full := append([]byte(nil), a.slot.req.b...)
		copy(full, req)
		st, answered := a.write(req, w)
		wantAnswer, wantHandler, next := judge(full, w, a)
		if answered != wantAnswer || (a.handled.Load() != handled) != wantHandler {
			t.Fatalf("word %#x: answered %v (%v), handler ran %v; want %v and %v", uint64(w), answered, st, a.handled.Load() != handled, wantAnswer, wantHandler)
		}
		a.seq = next
	})
}

// judge is the rules once more, written down independently.
func judge(slot []byte, w word, a *attacker) (answer, handler bool, seq uint32) {
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], uint64(w))
	x := byte(0xa5)
	for _, v := range b[:7] {
		x ^= v
	}
	if x != b[7] {
		return true, false, a.seq
	}
	wseq, wgen, state := binary.LittleEndian.Uint32(b[:]), binary.LittleEndian.Uint16(b[4:]), b[6]
	if wgen != uint16(a.sl.gen) || int32(wseq-a.seq) <= 0 {
		return false, false, a.seq
	}
	le := binary.LittleEndian
	n := le.Uint32(slot[24:])
	good := state == 1 && wseq == a.seq+1 && string(slot[:4]) == "RSLD" && le.Uint16(slot[4:]) == 1 && le.Uint32(slot[8:]) == wseq &&
		le.Uint32(slot[12:]) == a.sl.gen && le.Uint16(slot[16:]) == 1 && le.Uint32(slot[20:]) == 3 && n <= 256 && le.Uint32(slot[28:]) <= 256
	if good {
		c := sum(slot[:descBytes], slot[descBytes:descBytes+int(n)], false)
		good = le.Uint32(slot[60:]) == c
	}
	return true, good, wseq
}

// TestPeerThatDoesNotWait writes the next request before the answer to the last.
func TestPeerThatDoesNotWait(t *testing.T) {
	for _, workers := range []int{0, 2} {
		t.Run(fmt.Sprintf("workers=%d", workers), func(t *testing.T) {
			in, goOn := make(chan uint16, 8), make(chan struct{})
			r := newRig(t, rigOptions{cfg: Config{Notify: Scan}, workers: workers}, HandlerFunc(func(x *Exchange) {
				in <- x.Op()
				<-goOn
				x.Reply(StatusOK, 0)
			}))
			sl := r.served[0]
			put := func(seq uint32, op uint16) {
				d := desc(sl.slots[0].req.b[:descBytes])
				d.put(&descFields{op: op, seq: seq, generation: sl.gen, label: 3})
				putSum(d, sum(d, nil, false))
				verbs.StoreWord(sl.slots[0].word, uint64(makeWord(seq, uint16(sl.gen), wordReady)))
			}
			put(1, 10)
			if op := <-in; op != 10 {
				t.Fatalf("op %d", op)
			}
			put(2, 20)
			select {
			case op := <-in:
				t.Fatalf("op %d was taken while the slot was busy", op)
			case <-time.After(20 * time.Millisecond):
			}
			goOn <- struct{}{}
			if op := <-in; op != 20 {
				t.Fatalf("op %d after the first was answered", op)
			}
			goOn <- struct{}{}
			r.until("both answers", func() bool { return r.acceptor.Counters().CompleteResponse.Load() == 2 })
		})
	}
}
