package soft

import (
	"encoding/binary"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/railstore/railstore/verbs"
	"github.com/railstore/railstore/verbs/soft/internal/wire"
	"github.com/railstore/railstore/verbs/verbstest"
)

// until waits for something that the device's goroutine does.
func until(t testing.TB, what string, cond func() bool) {
	t.Helper()
	tick := time.NewTicker(200 * time.Microsecond)
	defer tick.Stop()
	for deadline := time.After(10 * time.Second); !cond(); {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("waited 10 s for %s", what)
		}
	}
}

// forger sends datagrams of its own making to a device, from an address.
type forger struct {
	t    testing.TB
	conn *net.UDPConn
	path wire.Path
}

func newForger(t testing.TB, from string, to *device) *forger {
	t.Helper()
	c, err := net.DialUDP("udp4", net.UDPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(from), 0)), net.UDPAddrFromAddrPort(to.addr))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return &forger{t: t, conn: c, path: wire.NewPath(c.LocalAddr().(*net.UDPAddr).AddrPort(), to.addr)}
}

func (f *forger) raw(b []byte) {
	f.t.Helper()
	if _, err := f.conn.Write(b); err != nil {
		f.t.Fatal(err)
	}
}

// packet sends a WRITE_ONLY with the right ICRC, changed by spoil after that.
func (f *forger) packet(qpn uint32, psn wire.PSN, to verbs.RemoteRegion, payload []byte, spoil func(b []byte)) {
	f.t.Helper()
	p := wire.Packet{Opcode: wire.WriteOnly, PKey: 0xffff, DestQPN: qpn, PSN: psn, AckReq: true,
		VA: to.Addr, RKey: to.RKey, Length: uint32(len(payload)), Payload: payload}
	b := append(p.Append(nil), 0, 0, 0, 0)
	f.path.Put(0, b)
	if spoil != nil {
		spoil(b)
	}
	f.raw(b)
}

// TestDropped: what is no packet for a QP here is counted and does nothing.
func TestDropped(t *testing.T) {
	p := verbstest.Fixture{}.New(t, openPair(Options{}, "127.0.0.1", "127.0.0.2"))
	dev := deviceOf(p.B.Ctx)
	peer, stranger := newForger(t, "127.0.0.1", dev), newForger(t, "127.0.0.3", dev)
	to := p.B.MR.Remote()
	qpn, psn := p.B.QP.QPN(), wire.PSN(p.A.Local.PSN)
	payload := []byte{1, 2, 3, 4, 5, 6, 7, 8}
	untouched := func(what string) {
		t.Helper()
		for i, v := range p.B.Bytes()[:64] {
			if v != 0 {
				t.Fatalf("%s: byte %d of the memory was written", what, i)
			}
		}
	}
	for _, c := range []struct {
		name  string
		count func(Counters) uint64
		send  func()
	}{
		{"empty", func(c Counters) uint64 { return c.Malformed }, func() { peer.raw(nil) }},
		{"one byte", func(c Counters) uint64 { return c.Malformed }, func() { peer.raw([]byte{4}) }},
		{"shorter than a BTH", func(c Counters) uint64 { return c.Malformed }, func() { peer.raw(make([]byte, 15)) }},
		{"no such QP", func(c Counters) uint64 { return c.UnknownQP }, func() { peer.packet(qpn^0x800000, psn, to, payload, nil) }},
		{"QP 0", func(c Counters) uint64 { return c.UnknownQP }, func() { peer.packet(0, psn, to, payload, nil) }},
		{"another sender", func(c Counters) uint64 { return c.WrongSource }, func() { stranger.packet(qpn, psn, to, payload, nil) }},
		{"payload changed", func(c Counters) uint64 { return c.BadICRC }, func() { peer.packet(qpn, psn, to, payload, func(b []byte) { b[29] ^= 1 }) }},
		{"ICRC changed", func(c Counters) uint64 { return c.BadICRC }, func() { peer.packet(qpn, psn, to, payload, func(b []byte) { b[len(b)-1] ^= 0x80 }) }},
		{"address changed", func(c Counters) uint64 { return c.BadICRC }, func() { peer.packet(qpn, psn, to, payload, func(b []byte) { b[19] ^= 8 }) }},
		{"identification no train has", func(c Counters) uint64 { return c.BadICRC }, func() {
			peer.packet(qpn, psn, to, payload, func(b []byte) { peer.path.Put(64, b) })
		}},
		{"unknown opcode", func(c Counters) uint64 { return c.Malformed }, func() {
			peer.packet(qpn, psn, to, payload, func(b []byte) { b[0] = 0x1f; peer.path.Put(0, b) })
		}},
		{"length no multiple of 4", func(c Counters) uint64 { return c.Malformed }, func() {
			b := make([]byte, 31)
			wire.BTH(b).Put(wire.SendOnly, 0, 0xffff, qpn, true, psn)
			peer.path.Put(0, b)
			peer.raw(b)
		}},
	} {
		before := c.count(dev.count())
		c.send()
		until(t, c.name, func() bool { return c.count(dev.count()) > before })
		untouched(c.name)
	}
	// The identification of a packet within a train is fine, and so is all else.
	peer.packet(qpn, psn, to, payload, func(b []byte) { peer.path.Put(63, b) })
	until(t, "the good packet", func() bool { return verbs.LoadWord(p.B.Bytes()) == binary.LittleEndian.Uint64(payload) })
	if s := p.B.QP.Stats(); s.PacketsReceived != 1 {
		t.Errorf("the QP counts %d packets, want 1", s.PacketsReceived)
	}
}

// TestIdentification: a peer that may be a kernel's gets any identification.
func TestIdentification(t *testing.T) {
	for _, c := range []struct {
		policy Identification
		taken  bool
	}{{IDByPeer, false}, {IDTrain, false}, {IDAny, true}} {
		p := verbstest.Fixture{}.New(t, openPair(Options{Identification: c.policy}, "127.0.0.1", "127.0.0.2"))
		dev := deviceOf(p.B.Ctx)
		f := newForger(t, "127.0.0.1", dev)
		f.packet(p.B.QP.QPN(), wire.PSN(p.A.Local.PSN), p.B.MR.Remote(), []byte{1, 0, 0, 0, 0, 0, 0, 0},
			func(b []byte) { f.path.Put(0xBEEF, b) })
		if c.taken {
			until(t, "the packet", func() bool { return verbs.LoadWord(p.B.Bytes()) == 1 })
		} else {
			until(t, "the drop", func() bool { return dev.count().BadICRC == 1 })
		}
	}
}

// TestGarbage throws random datagrams at a device in use. Those that look like
// packets of the peer have a right ICRC, so that they reach the protocol.
func TestGarbage(t *testing.T) {
	r := verbstest.Seed(t)
	p := verbstest.Fixture{}.New(t, openPair(Options{}, "127.0.0.1", "127.0.0.2"))
	dev := deviceOf(p.B.Ctx)
	f := newForger(t, "127.0.0.1", dev)
	n := 3000
	if testing.Short() {
		n = 300
	}
	for i := range n {
		b := make([]byte, r.IntN(200))
		for j := range b {
			b[j] = byte(r.Uint32())
		}
		if len(b) >= wire.BTHLen+wire.ICRCLen && i%2 == 0 {
			b = b[:len(b)&^3]
			// Responses and a PSN far ahead: nothing that can be accepted.
			op := wire.ReadResponseFirst + wire.Opcode(r.IntN(6))
			wire.BTH(b).Put(op, 0, 0xffff, p.B.QP.QPN(), false, wire.PSN(r.Uint32()))
			f.path.Put(0, b)
		}
		f.raw(b)
	}
	// The connection is as well as before.
	p.A.Write(1, 0, 4096, p.B, 0, verbs.Signaled)
	p.A.OK(1)
	c := dev.count()
	if dropped := c.Malformed + c.UnknownQP + c.WrongSource + c.BadICRC; dropped < uint64(n/4) {
		t.Errorf("%d datagrams of %d dropped: %+v", dropped, n, c)
	}
}

// FuzzDatagram: no datagram for a connected QP makes the device fail, or touches
// memory unless its ICRC is right.
func FuzzDatagram(f *testing.F) {
	p := verbstest.Fixture{}.New(f, openPair(Options{}, "127.0.0.1", "127.0.0.2"))
	dev := deviceOf(p.B.Ctx)
	from := newForger(f, "127.0.0.1", dev)
	f.Add([]byte{}, false)
	f.Add(make([]byte, 16), true)
	f.Add(make([]byte, 40), true)
	f.Fuzz(func(t *testing.T, b []byte, seal bool) {
		if len(b) > 4096 {
			return
		}
		if seal && len(b) >= wire.BTHLen+wire.ICRCLen {
			wire.BTH(b).Put(wire.Opcode(b[0]), b[1], 0xffff, p.B.QP.QPN(), b[8]&0x80 != 0, wire.BTH(b).PSN())
			from.path.Put(0, b)
		}
		before := dev.count().Packets
		if _, err := from.conn.Write(b); err != nil {
			t.Fatal(err)
		}
		until(t, "the datagram", func() bool { return dev.count().Packets > before })
	})
}
