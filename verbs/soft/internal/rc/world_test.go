package rc

import (
	"container/heap"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/railstore/railstore/verbs"
	"github.com/railstore/railstore/verbs/soft/internal/wire"
)

// table is registered memory: keys are indexes from 1; the local and the remote key of
// an entry differ by rkeyBit.
type table struct {
	entries []entry
}

type entry struct {
	bytes  []byte
	access verbs.Access
	gone   bool
}

const rkeyBit = 1 << 16

func (m *table) add(b []byte, access verbs.Access) (lkey, rkey uint32) {
	m.entries = append(m.entries, entry{bytes: b, access: access})
	n := uint32(len(m.entries))
	return n, n | rkeyBit
}

func (m *table) find(key uint32, addr, n uint64) (*entry, []byte) {
	if key == 0 || int(key) > len(m.entries) {
		return nil, nil
	}
	e := &m.entries[key-1]
	base := verbs.AddrOf(e.bytes)
	if e.gone || addr < base || addr-base > uint64(len(e.bytes)) || n > uint64(len(e.bytes))-(addr-base) {
		return nil, nil
	}
	return e, e.bytes[addr-base:][:n:n]
}

func (m *table) Local(lkey uint32, addr uint64, n uint32, write bool) ([]byte, verbs.WCStatus) {
	e, b := m.find(lkey, addr, uint64(n))
	if e == nil || write && e.access&verbs.LocalWrite == 0 {
		return nil, verbs.WCLocProt
	}
	return b, verbs.WCSuccess
}

func (m *table) Remote(rkey uint32, addr uint64, n uint64, need verbs.Access) ([]byte, bool) {
	if rkey&rkeyBit == 0 {
		return nil, false
	}
	e, b := m.find(rkey&^rkeyBit, addr, n)
	if e == nil || e.access&need != need {
		return nil, false
	}
	return b, true
}

// node is one end: a Conn, its memory, what it completed.
type node struct {
	name   string
	conn   *Conn
	mem    *table
	out    *Output
	path   wire.Path // of what it sends
	peer   *node
	done   []Completion
	events []verbs.EventType
}

// flight is a datagram on its way.
type flight struct {
	at   int64
	seq  int
	to   *node
	data []byte
}

type flights []flight

func (f flights) Len() int { return len(f) }
func (f flights) Less(i, j int) bool {
	return f[i].at < f[j].at || f[i].at == f[j].at && f[i].seq < f[j].seq
}
func (f flights) Swap(i, j int) { f[i], f[j] = f[j], f[i] }
func (f *flights) Push(x any)   { *f = append(*f, x.(flight)) }
func (f *flights) Pop() any {
	x := (*f)[len(*f)-1]
	*f = (*f)[:len(*f)-1]
	return x
}

// netFaults are what the net does to datagrams.
type netFaults struct {
	drop, duplicate, corrupt float64
	jitter                   int64 // ns on top of delay: reorders
	delay                    int64
	cutAt                    int64 // from then on all is lost; 0: never
	queue                    int   // datagrams under way at most, the rest is lost; 0: any number
}

// world is two nodes and a net with virtual time.
type world struct {
	a, b    *node
	now     int64
	net     netFaults
	rnd     *rand.Rand
	flights flights
	seq     int
	packet  wire.Packet
	sent    int
	log     func(format string, args ...any) // nil: quiet
}

// pair makes two connected nodes in RTS.
func pair(qa, qb verbs.QPAttr, ca, cb Config) *world {
	w := &world{}
	addr := [2]netip.AddrPort{netip.MustParseAddrPort("10.0.0.1:4791"), netip.MustParseAddrPort("10.0.0.2:4791")}
	mk := func(name string, cfg Config, qpn uint32, i int) *node {
		n := &node{name: name, mem: &table{}, out: NewOutput(16), path: wire.NewPath(addr[i], addr[1-i])}
		cfg.QPN, cfg.Mem, cfg.Device = qpn, n.mem, "test:"+name
		n.conn = New(cfg)
		return n
	}
	w.a, w.b = mk("a", ca, 0x11, 0), mk("b", cb, 0x22, 1)
	w.a.peer, w.b.peer = w.b, w.a
	qa.DestQPN, qb.DestQPN = 0x22, 0x11
	w.connect(w.a, qa)
	w.connect(w.b, qb)
	return w
}

const toRTS = verbs.MaskState | verbs.MaskPort | verbs.MaskAccess | verbs.MaskPathMTU | verbs.MaskAV | verbs.MaskDestQPN | verbs.MaskRQPSN |
	verbs.MaskMaxDestRDAtomic | verbs.MaskMinRNRTimer | verbs.MaskTimeout | verbs.MaskRetryCount | verbs.MaskRNRRetry | verbs.MaskSQPSN | verbs.MaskMaxRDAtomic

func (w *world) connect(n *node, q verbs.QPAttr) {
	q.State = verbs.QPRTS
	n.conn.Modify(&q, toRTS)
}

const allAccess = verbs.LocalWrite | verbs.RemoteWrite | verbs.RemoteRead | verbs.RemoteAtomic

// attrs are attributes of a healthy connection.
func attrs() verbs.QPAttr {
	return verbs.QPAttr{Access: allAccess, PathMTU: 256, MaxDestRDAtomic: 4, MaxRDAtomic: 4, Timeout: 10, RetryCount: 7, RNRRetry: 7, MinRNRTimer: 1}
}

// collect takes what a call put out: packets are encoded and given to send.
func (w *world) collect(n *node, send func(to *node, data []byte)) {
	for i := range n.out.Packets {
		p := &n.out.Packets[i]
		b := append([]byte(nil), p.Header()...)
		total := 0
		for _, f := range p.Frags {
			b = append(b, f...)
			total += len(f)
		}
		if uint32(total) != p.Len {
			panic(fmt.Sprintf("packet %x: Len %d, fragments hold %d", p.Header(), p.Len, total))
		}
		b = append(b, make([]byte, int(p.Pad)+wire.ICRCLen)...)
		if len(b) != p.Size() {
			panic("packet size")
		}
		n.path.Put(0, b)
		w.sent++
		send(n.peer, b)
	}
	n.done = append(n.done, n.out.Done...)
	n.events = append(n.events, n.out.Events...)
	n.out.Reset()
}

// pump lets a node put out all that it may.
func (w *world) pump(n *node) {
	for range 1 << 16 {
		more := n.conn.Pump(w.now, n.out)
		w.collect(n, w.send)
		if !more {
			return
		}
	}
	panic("Pump never ends")
}

// send gives a datagram to the net.
func (w *world) send(to *node, data []byte) {
	f := &w.net
	if f.cutAt != 0 && w.now >= f.cutAt || f.queue != 0 && len(w.flights) >= f.queue {
		return
	}
	copies := 1
	if w.rnd != nil {
		if w.rnd.Float64() < f.drop {
			return
		}
		if w.rnd.Float64() < f.corrupt {
			data[w.rnd.IntN(len(data))] ^= 1 << w.rnd.IntN(8)
		}
		if w.rnd.Float64() < f.duplicate {
			copies = 2
		}
	}
	for range copies {
		at := w.now + f.delay
		if f.jitter > 0 {
			at += w.rnd.Int64N(f.jitter)
		}
		w.seq++
		heap.Push(&w.flights, flight{at, w.seq, to, append([]byte(nil), data...)})
	}
}

// receive gives a datagram to a node, as an engine would.
func (w *world) receive(to *node, data []byte) {
	if !to.peer.path.Check(0, data) || w.packet.Parse(data) != nil {
		return
	}
	if w.log != nil {
		w.log("%8d %s <- %s", w.now, to.name, describe(&w.packet))
	}
	to.conn.Step(w.now, &w.packet, to.out)
	if len(to.out.Packets) != 0 {
		panic("Step put out packets")
	}
	w.collect(to, w.send)
}

// step runs until the next moment at which something happens. It reports false
// when nothing will, or that moment is after limit.
func (w *world) step(limit int64) bool {
	w.pump(w.a)
	w.pump(w.b)
	next := int64(0)
	if len(w.flights) > 0 {
		next = w.flights[0].at
	}
	for _, n := range [2]*node{w.a, w.b} {
		if t := n.conn.NextTick(); t != 0 && (next == 0 || t < next) {
			next = t
		}
	}
	if next == 0 || next > limit {
		return false
	}
	w.now = max(w.now, next)
	for len(w.flights) > 0 && w.flights[0].at <= w.now {
		f := heap.Pop(&w.flights).(flight)
		w.receive(f.to, f.data)
	}
	for _, n := range [2]*node{w.a, w.b} {
		if t := n.conn.NextTick(); t != 0 && t <= w.now {
			if w.log != nil {
				w.log("%8d %s tick", w.now, n.name)
			}
			n.conn.Tick(w.now, n.out)
			w.collect(n, w.send)
		}
	}
	return true
}

// run steps until nothing happens any more or virtual time ends.
func (w *world) run(t testing.TB, limit int64) {
	t.Helper()
	for i := 0; w.step(limit); i++ {
		if i > 5_000_000 {
			t.Fatal("the world does not come to rest")
		}
	}
}

// describe prints a packet as conversations show it.
func describe(p *wire.Packet) string {
	s := fmt.Sprintf("%v psn=%v", p.Opcode, p.PSN)
	h := p.Opcode.Headers()
	if h&(wire.HasRETH|wire.HasAtomicETH) != 0 && p.Length > 0 {
		s += fmt.Sprintf(" dma=%d", p.Length)
	}
	if h&wire.HasImm != 0 {
		s += fmt.Sprintf(" imm=%#x", p.Imm)
	}
	if h&wire.HasAETH != 0 {
		s += " " + syndrome(p.Syndrome) + fmt.Sprintf(" msn=%d", p.MSN)
	}
	if h&wire.HasAtomicAck != 0 {
		s += fmt.Sprintf(" orig=%d", p.Orig)
	}
	if h&wire.HasPayload != 0 {
		s += fmt.Sprintf(" len=%d", len(p.Payload))
	}
	if p.Solicited {
		s += " solicited"
	}
	if p.AckReq {
		s += " ask"
	}
	return s
}

func syndrome(s uint8) string {
	switch {
	case s == wire.SynAck|wire.SynCredits:
		return "ack"
	case s&wire.SynKind == wire.SynRNR:
		return fmt.Sprintf("rnr(%d)", s&wire.SynValue)
	case s == wire.NAKSequence:
		return "nak(sequence)"
	case s == wire.NAKInvalid:
		return "nak(invalid)"
	case s == wire.NAKAccess:
		return "nak(access)"
	case s == wire.NAKOperation:
		return "nak(operation)"
	}
	return fmt.Sprintf("syndrome(%#x)", s)
}

func completion(c *Completion) string {
	s := fmt.Sprintf("wc id=%d %v %s", c.WC.ID, c.WC.Op, c.WC.Status.Name())
	if c.WC.ByteLen > 0 {
		s += fmt.Sprintf(" bytes=%d", c.WC.ByteLen)
	}
	if c.WC.Flags&verbs.WCWithImm != 0 {
		s += fmt.Sprintf(" imm=%#x", c.WC.Imm)
	}
	if c.Solicited {
		s += " solicited"
	}
	return s
}

// region is aligned memory outside the Go heap, as applications register it.
func region(t testing.TB, n int) []byte {
	t.Helper()
	r, err := verbs.MapRegion(n)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r.Bytes()
}
