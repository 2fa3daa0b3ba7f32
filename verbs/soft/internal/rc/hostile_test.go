package rc

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"

	"github.com/railstore/railstore/verbs"
	"github.com/railstore/railstore/verbs/soft/internal/wire"
)

// victim is a Conn that a hostile peer talks to, with memory laid out so that
// harm shows.
type victim struct {
	*node
	secret, open, local  []byte // no rights for peers; all rights; where its own READs and receives land
	lkLocal              uint32
	rkSecret, rkOpen     uint32
	rkReadOnly, lkSecret uint32
	now                  int64
	sends, recvs         int
	sendSeen, recvSeen   int
	failed               bool
}

const hostileBytes = 8 << 10

type hostileArena [3][]byte

func newVictim(mem *hostileArena, state verbs.QPState, q verbs.QPAttr, cfg Config) *victim {
	v := &victim{node: &node{name: "victim", mem: &table{}, out: NewOutput(8)}, secret: mem[0], open: mem[1], local: mem[2], now: 1}
	for i := range v.secret {
		v.secret[i] = byte(i*11 + 3)
	}
	clear(v.open)
	clear(v.local)
	v.lkSecret, v.rkSecret = v.mem.add(v.secret, verbs.LocalWrite)
	_, v.rkOpen = v.mem.add(v.open, allAccess)
	v.lkLocal, _ = v.mem.add(v.local, verbs.LocalWrite)
	_, v.rkReadOnly = v.mem.add(v.secret, verbs.RemoteRead)
	cfg.QPN, cfg.Mem = 0x11, v.mem
	v.conn = New(cfg)
	q.State = state
	if state != verbs.QPReset {
		v.conn.Modify(&q, toRTS)
	}
	return v
}

// hostileInput turns bytes into choices; past its end all are 0.
type hostileInput struct{ b []byte }

func (h *hostileInput) byte() byte {
	if len(h.b) == 0 {
		return 0
	}
	x := h.b[0]
	h.b = h.b[1:]
	return x
}

func (h *hostileInput) pick(n int) int { return int(h.byte()) % n }

func (h *hostileInput) more() bool { return len(h.b) > 0 }

// fataler is what rapid, fuzz and plain tests share.
type fataler interface{ Fatalf(string, ...any) }

// attack plays a script against a Conn.
func attack(t fataler, mem *hostileArena, script []byte) {
	h := &hostileInput{script}
	state := []verbs.QPState{verbs.QPRTS, verbs.QPRTS, verbs.QPRTS, verbs.QPRTR, verbs.QPSQD, verbs.QPInitState, verbs.QPReset, verbs.QPErr}[h.pick(8)]
	q := attrs()
	q.DestQPN, q.Timeout, q.RetryCount, q.RNRRetry = 0x22, 5, 3, uint8(3+4*h.pick(2))
	q.SQPSN, q.RQPSN = 0xfffffa, 0xfffffc
	q.MaxRDAtomic, q.MaxDestRDAtomic = []int{4, 1, 2, 0}[h.pick(4)], []int{4, 1, 16, 0}[h.pick(4)]
	switch h.pick(8) {
	case 0:
		q.Access = verbs.LocalWrite
	case 1:
		q.Access = verbs.LocalWrite | verbs.RemoteRead
	}
	v := newVictim(mem, state, q, Config{Cap: verbs.QPCap{MaxSendWR: 8, MaxRecvWR: 4, MaxSendSGE: 3, MaxRecvSGE: 3},
		MaxWindow: []int{64, 1, 3, 9}[h.pick(4)], MinRTO: []int64{-1, 1e4}[h.pick(2)]})
	for h.more() {
		switch h.pick(12) {
		case 0:
			v.postSend(h)
		case 1:
			v.postRecv(h)
		case 2:
			v.now += int64(h.byte()) * 500
			v.conn.Tick(v.now, v.out)
		case 3:
			v.pump(t)
		default:
			v.packet(h)
		}
		v.check(t)
	}
	v.pump(t)
	for range 64 {
		at := v.conn.NextTick()
		if at == 0 {
			break
		}
		v.now = max(v.now, at)
		v.conn.Tick(v.now, v.out)
		v.check(t)
		v.pump(t)
	}
	v.conn.Modify(&verbs.QPAttr{State: verbs.QPErr}, verbs.MaskState)
	v.pump(t)
	if state != verbs.QPReset && v.recvSeen != v.recvs {
		t.Fatalf("%d of %d receives completed", v.recvSeen, v.recvs)
	}
	if v.sendSeen != v.sends {
		t.Fatalf("%d of %d sends completed", v.sendSeen, v.sends)
	}
	for i := range v.secret {
		if v.secret[i] != byte(i*11+3) {
			t.Fatalf("byte %d of memory that the peer has no right to write was written", i)
		}
	}
}

func (v *victim) postSend(h *hostileInput) {
	op := verbs.Opcode(h.pick(8)) // 7 is unknown
	n := []int{8, 0, 1, 255, 256, 257, 1500}[h.pick(7)]
	if op >= verbs.OpCAS {
		n = 8
	}
	lkey := v.lkLocal
	if h.pick(64) == 0 {
		lkey = 0x999
	}
	wr := verbs.SendWR{ID: verbs.WRID(v.sends), Op: op, NumSGE: 1, RemoteAddr: 64, RKey: 5, Flags: verbs.Signaled | verbs.SendFlags(h.pick(8))}
	k, _ := v.conn.PostSend([]verbs.SendWR{wr}, []verbs.SGE{{Addr: verbs.AddrOf(v.local), Length: uint32(n), LKey: lkey}})
	v.sends += k
}

func (v *victim) postRecv(h *hostileInput) {
	n := []int{600, 2000, 2000, 255, 256, 257, 1500}[h.pick(7)]
	lkey := v.lkLocal
	if h.pick(64) == 0 {
		lkey = 0x999
	}
	k, _ := v.conn.PostRecv([]verbs.RecvWR{{ID: verbs.WRID(v.recvs), NumSGE: 1}}, []verbs.SGE{{Addr: verbs.AddrOf(v.local), Length: uint32(n), LKey: lkey}})
	v.recvs += k
}

// packet makes one up: mostly one that could be, as only such get far, with at most
// one thing wrong.
func (v *victim) packet(h *hostileInput) {
	p := wire.Packet{PKey: 0xffff, DestQPN: 0x11, RKey: v.rkOpen, VA: verbs.AddrOf(v.open), Syndrome: 0x1f}
	f := h.byte()
	p.AckReq, p.Solicited, p.MSN = f&1 != 0, f&2 != 0, uint32(f)
	n := v.plausible(&p, h)
	switch h.byte() {
	case 0:
		p.PSN = wire.PSN(uint32(h.byte())<<16 | uint32(h.byte())<<8 | uint32(h.byte()))
	case 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26:
		p.PSN = p.PSN.Add(uint32(int32(int8(h.byte()) / 8)))
	case 27:
		n = []int{256, 256, 8, 0, 1, 255, 257, 100, 4096}[h.pick(9)]
	case 28:
		p.Length = []uint32{0, 8, 256, 300, 512, 1024, 1 << 31, 1<<31 + 1, 1<<32 - 1}[h.pick(9)]
	case 29:
		p.RKey = []uint32{v.rkSecret, v.rkReadOnly, 0, v.lkSecret, 0xffffffff}[h.pick(5)]
		p.VA = verbs.AddrOf(v.secret)
	case 30:
		p.VA = []uint64{p.VA + 8, p.VA + 3, p.VA + hostileBytes - 8, p.VA + hostileBytes, p.VA - 1, 0, 1<<64 - 1}[h.pick(7)]
	case 31:
		p.Syndrome = []uint8{0x00, 0x60, 0x61, 0x62, 0x63, 0x64, 0x20, 0x21, 0x3f, 0x40, 0x7f, 0xff}[h.pick(12)]
	case 32:
		if op := wire.Opcode(h.pick(32)); op.Known() {
			p.Opcode = op
		}
	case 33:
		p.PKey = 0x7f00
	case 34:
		p.DestQPN = 0x12
	}
	p.Payload = make([]byte, n)
	for i := range p.Payload {
		p.Payload[i] = 0xee
	}
	p.Pad = uint8(-n & 3)
	v.conn.Step(v.now, &p, v.out)
}

// plausible makes a packet that a well-behaved peer might send now; it returns the
// length of its payload.
func (v *victim) plausible(p *wire.Packet, h *hostileInput) int {
	c := v.conn
	mtu := int(c.mtu)
	if h.pick(2) == 0 && c.top != c.una {
		p.PSN = c.una.Add(uint32(h.byte()) % c.top.Sub(c.una))
		if h.pick(2) == 0 {
			p.PSN = c.una
		}
		w := c.find(p.PSN)
		switch x := h.pick(16); {
		case x == 0:
			p.Opcode, p.Syndrome = wire.Acknowledge, wire.NAKSequence
		case x == 1:
			p.Opcode, p.Syndrome = wire.Acknowledge, 0x21
		case w.op == verbs.OpRead && x < 13:
			p.Opcode = wire.ReadResponseFirst + wire.Opcode(h.pick(4))
			return int(min(c.mtu, w.length-p.PSN.Sub(w.psn)<<c.mtuShift))
		case w.answered() && x < 13:
			p.Opcode = wire.AtomicAcknowledge
		default:
			p.Opcode = wire.Acknowledge
		}
		return 0
	}
	p.PSN = c.epsn
	if h.pick(4) == 0 {
		p.PSN = p.PSN.Add(wire.PSNMask - uint32(h.pick(6))) // a repeated one
	}
	n := []int{256, 8, 1, 0, 255, 100}[h.pick(6)]
	imm := wire.Opcode(h.pick(2))
	switch {
	case c.message == kindSend:
		p.Opcode = []wire.Opcode{wire.SendMiddle, wire.SendLast + imm}[h.pick(2)]
	case c.message == kindWrite:
		p.Opcode = wire.WriteMiddle
		if int(c.left) <= mtu {
			p.Opcode = wire.WriteLast + imm
			return int(c.left)
		}
	default:
		switch h.pick(8) {
		case 0:
			p.Opcode = wire.SendFirst
		case 1:
			p.Opcode = wire.SendOnly + imm
			return n
		case 2:
			p.Opcode, p.Length = wire.WriteFirst, uint32(mtu+1+h.pick(600))
		case 3:
			p.Opcode, p.Length = wire.WriteOnly+imm, uint32(n)
			return n
		case 4, 5:
			p.Opcode, p.Length = wire.ReadRequest, uint32(n*(1+h.pick(5)))
			return 0
		default:
			p.Opcode, p.SwapAdd = wire.FetchAdd-imm, 1
			return 0
		}
	}
	if requestOps[p.Opcode].last {
		return max(n, 1)
	}
	return mtu
}

func (v *victim) pump(t fataler) {
	for range 4096 {
		more := v.conn.Pump(v.now, v.out)
		v.check(t)
		v.out.Reset()
		if !more {
			return
		}
	}
	t.Fatalf("Pump never ends")
}

// check looks at what came out and at the Conn's own order.
func (v *victim) check(t fataler) {
	c := v.conn
	if len(v.out.Packets) > 8 || cap(v.out.Packets) != 8 {
		t.Fatalf("%d packets in an Output for 8", len(v.out.Packets))
	}
	for i := range v.out.Packets {
		p := &v.out.Packets[i]
		total := 0
		for _, f := range p.Frags {
			total += len(f)
			if len(f) > 0 && p.Hdr[0] != 0 && bytes.Equal(f, v.secret[:len(f)]) && wire.Opcode(p.Hdr[0]).Response() && v.conn.attr.Access&verbs.RemoteRead == 0 {
				t.Fatalf("memory given away")
			}
		}
		if uint32(total) != p.Len || p.Len > c.mtu || (p.Len+uint32(p.Pad))&3 != 0 {
			t.Fatalf("packet of %d bytes, fragments of %d, pad %d", p.Len, total, p.Pad)
		}
	}
	for i := range v.out.Done {
		d := &v.out.Done[i]
		seen := &v.sendSeen
		if d.Recv {
			seen = &v.recvSeen
		}
		if int(d.WC.ID) != *seen {
			t.Fatalf("completion of %d, want %d: %s", d.WC.ID, *seen, completion(d))
		}
		*seen++
		if v.failed && d.WC.Status != verbs.WCFlush && d.WC.Status != verbs.WCLocLen && d.WC.Status != verbs.WCLocProt && d.WC.Status != verbs.WCRemInvReq {
			t.Fatalf("after a failure: %s", completion(d))
		}
		if d.WC.Status != verbs.WCSuccess {
			v.failed = true
		}
	}
	if v.failed && c.State() != verbs.QPErr {
		t.Fatalf("a bad completion in %v", c.State())
	}
	if v.sendSeen > v.sends || v.recvSeen > v.recvs {
		t.Fatalf("more completions than requests")
	}
	v.out.Done, v.out.Events = v.out.Done[:0], v.out.Events[:0]
	if c.State() == verbs.QPErr || c.State() == verbs.QPReset {
		return
	}
	flight, sent, given := c.nxt.Sub(c.una), c.top.Sub(c.una), c.asg.Sub(c.una)
	if flight > sent || sent > given {
		t.Fatalf("una %v nxt %v top %v asg %v", c.una, c.nxt, c.top, c.asg)
	}
	if q := &c.sq; q.cur-q.head > q.tail-q.head || q.tail-q.head > q.limit {
		t.Fatalf("send queue %d %d %d", q.head, q.cur, q.tail)
	}
	if r := &c.reads; r.n > len(r.end) || r.sent > r.n {
		t.Fatalf("reads %+v", r)
	}
	for i, r := range c.replies.list {
		if r.psn.Diff(r.end) >= 0 || c.epsn.Before(r.end) || i > 0 && r.psn.Before(c.replies.list[i-1].end) {
			t.Fatalf("replies out of order: %+v", c.replies.list)
		}
	}
	if c.win.size < 1 || c.win.size > c.win.max {
		t.Fatalf("window %+v", c.win)
	}
}

// TestHostilePeer plays random scripts.
func TestHostilePeer(t *testing.T) {
	mem := &hostileArena{region(t, hostileBytes), region(t, hostileBytes), region(t, hostileBytes)}
	rapid.Check(t, func(t *rapid.T) {
		rnd := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 3))
		script := make([]byte, rapid.IntRange(0, 1500).Draw(t, "length"))
		for i := range script {
			script[i] = byte(rnd.Uint32())
		}
		attack(t, mem, script)
	})
}

// FuzzConn lets the fuzzer write scripts.
func FuzzConn(f *testing.F) {
	mem := &hostileArena{region(f, hostileBytes), region(f, hostileBytes), region(f, hostileBytes)}
	rnd := rand.New(rand.NewPCG(1, 1))
	for range 64 {
		b := make([]byte, 8+rnd.IntN(300))
		for i := range b {
			b[i] = byte(rnd.Uint32())
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) { attack(t, mem, b) })
}

// FuzzDatagram lets the fuzzer write packets as they are on the wire, to a Conn in
// the middle of everything.
func FuzzDatagram(f *testing.F) {
	mem := &hostileArena{region(f, hostileBytes), region(f, hostileBytes), region(f, hostileBytes)}
	for op := range wire.Opcode(32) {
		if op.Known() {
			p := wire.Packet{Opcode: op, PKey: 0xffff, DestQPN: 0x11, PSN: 0xfffffc, RKey: 2 | rkeyBit, Length: 256, Syndrome: 0x1f, AckReq: true}
			f.Add(append(p.Append(nil), 0, 0, 0, 0))
			p.Payload = make([]byte, 256)
			f.Add(append(p.Append(nil), 0, 0, 0, 0))
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		q := attrs()
		q.DestQPN, q.SQPSN, q.RQPSN = 0x22, 0xfffffc, 0xfffffc
		v := newVictim(mem, verbs.QPRTS, q, Config{Cap: verbs.QPCap{MaxSendWR: 8, MaxRecvWR: 4, MaxSendSGE: 3, MaxRecvSGE: 3}})
		h := &hostileInput{[]byte{4, 2, 1, 1, 0, 2, 1, 1}}
		v.postSend(h)
		v.postSend(h)
		v.postRecv(&hostileInput{[]byte{5, 1}})
		v.pump(t)
		// Any number of packets: each of 16-bit length and bytes.
		for len(b) > 0 {
			var p wire.Packet
			n := min(len(b), 280)
			if p.Parse(b[:n]) == nil {
				v.conn.Step(v.now, &p, v.out)
				v.check(t)
			}
			b = b[n:]
			v.pump(t)
		}
	})
}
