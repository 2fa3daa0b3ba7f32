package udp

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// testSeal makes the ICRC the CRC of identification and packet, so that a
// receiver can tell which identification it was asked for.
type testSeal struct{ asked []uint16 }

func (s *testSeal) ICRC(id uint16, header []byte, payload [][]byte, pad int) uint32 {
	s.asked = append(s.asked, id)
	c := crc32.ChecksumIEEE(header)
	for _, p := range payload {
		c = crc32.Update(c, crc32.IEEETable, p)
	}
	return crc32.Update(c, crc32.IEEETable, make([]byte, pad)) ^ uint32(id)
}

func sealedID(b []byte) int {
	return int(crc32.ChecksumIEEE(b[:len(b)-4]) ^ binary.LittleEndian.Uint32(b[len(b)-4:]))
}

func loopback(t testing.TB, v6 bool) netip.AddrPort {
	if !v6 {
		return netip.MustParseAddrPort("127.0.0.1:0")
	}
	c, err := net.ListenPacket("udp6", "[::1]:0")
	if err != nil {
		t.Skipf("no IPv6 on this host: %v", err)
	}
	_ = c.Close()
	return netip.MustParseAddrPort("[::1]:0")
}

// receiveN takes datagrams until n packets are there.
func receiveN(t testing.TB, s *Socket, r *Receiver, n int, each func(b []byte, g *Datagram, index int)) (datagrams int) {
	t.Helper()
	w, err := s.NewWaiter(-1)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = w.Close() }()
	for deadline := time.Now().Add(5 * time.Second); n > 0; {
		grams, err := r.Recv(8)
		if err != nil {
			t.Fatal(err)
		}
		if len(grams) == 0 {
			if time.Now().After(deadline) {
				t.Fatalf("%d packets missing; %+v", n, s.Stats())
			}
			w.SetTimer(100 * time.Millisecond)
			w.Wait(true)
		}
		datagrams += len(grams)
		for i := range grams {
			g := &grams[i]
			for k := range Segments(len(g.Data), g.Seg) {
				each(Segment(g.Data, g.Seg, k), g, k)
				n--
			}
		}
	}
	if n < 0 {
		t.Fatalf("%d packets too many", -n)
	}
	return datagrams
}

// TestSendReceive sends packets of many sizes and checks that they arrive as they
// were put together, whatever the offloads are.
func TestSendReceive(t *testing.T) {
	for mode := range 16 {
		c := Config{NoGSO: mode&1 != 0, NoGRO: mode&2 != 0, NoEqualTail: mode&4 != 0}
		v6 := mode&8 != 0
		t.Run(fmt.Sprintf("v6=%v/gso=%v/gro=%v/equal=%v", v6, !c.NoGSO, !c.NoGRO, !c.NoEqualTail), func(t *testing.T) {
			c.Addr = loopback(t, v6)
			a, b := mustOpen(t, c), mustOpen(t, c)
			r, err := b.NewReceiver(8)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = r.Close() }()
			dest := a.NewDest(b.Addr(), DestOptions{TrafficClass: 0x68, HopLimit: 3})
			batch := NewBatch(4) // grows
			var want [][]byte
			add := func(header, pad int, pieces ...int) {
				h := bytes.Repeat([]byte{byte(len(want) + 1)}, header)
				full := bytes.Clone(h)
				var payload [][]byte
				size := 0
				for i, n := range pieces {
					p := bytes.Repeat([]byte{byte(0x80 + i)}, n)
					payload = append(payload, p)
					full = append(full, p...)
					size += n
				}
				batch.Add(dest, h, payload, size, pad)
				want = append(want, append(full, make([]byte, pad)...))
			}
			add(28, 0, 4096)
			for range 20 {
				add(12, 0, 4096)
			}
			add(12, 3, 1001)    // smaller tail
			add(16, 0)          // no payload
			add(16, 0)          //
			add(12, 1, 3, 4, 0) // copied
			add(12, 0, 1000, 2000, 1096)
			add(12, 0, 4096)
			for range 70 {
				add(28, 0, 64)
			}
			seal := &testSeal{}
			if err := a.Send(batch, seal); err != nil {
				t.Fatal(err)
			}
			got := 0
			receiveN(t, b, r, len(want), func(p []byte, g *Datagram, k int) {
				if !bytes.Equal(p[:len(p)-4], want[got]) {
					t.Fatalf("packet %d: %d bytes do not match the %d sent", got, len(p)-4, len(want[got]))
				}
				if netip.AddrFrom16(g.From).Unmap() != a.Addr().Addr() || g.Port != a.Addr().Port() {
					t.Fatalf("packet %d: from %v port %d, sent from %v", got, netip.AddrFrom16(g.From), g.Port, a.Addr())
				}
				id := sealedID(p)
				if c.NoGSO && id != 0 || c.NoGRO && id > 63 || !c.NoGRO && !c.NoGSO && id != k {
					t.Errorf("packet %d, segment %d: sealed for identification %d", got, k, id)
				}
				got++
			})
			st := a.Stats()
			trains := st.DatagramsSent < uint64(len(want))
			if trains != (!c.NoGSO && a.feat.GSO) {
				t.Errorf("%d packets left in %d datagrams", len(want), st.DatagramsSent)
			}
			if c.NoEqualTail && !c.NoGSO {
				// Of what was sent only the 22 full packets with a smaller last one
				// and the pieces before a smaller packet may be trains.
				if st.DatagramsSent < 70 {
					t.Errorf("%d datagrams: trains of equal packets were sent", st.DatagramsSent)
				}
			}
			if st.SendDrops != 0 || b.Stats().RecvDrops != 0 {
				t.Errorf("drops: %+v %+v", st, b.Stats())
			}
		})
	}
}

// TestSendAfterGSOFails: the kernel refuses a train once, the packets arrive all
// the same, sealed as single ones.
func TestGSOTurnedOff(t *testing.T) {
	a := mustOpen(t, Config{Addr: loopback(t, false)})
	b := mustOpen(t, Config{Addr: loopback(t, false)})
	if !a.feat.GSO {
		t.Skip("the kernel has no UDP_SEGMENT")
	}
	// A socket without UDP checksums may not segment: EINVAL in general, EIO when
	// the device has none to offload. Loopback has, so the errno is judged apart.
	if v := judge(unix.EIO, true); v != sendNoGSO {
		t.Fatalf("EIO for a train is judged %d", v)
	}
	if v := judge(unix.EIO, false); v != sendDropped {
		t.Fatalf("EIO for a packet is judged %d", v)
	}
	for errno, want := range map[unix.Errno]verdict{unix.EAGAIN: sendWait, unix.EINTR: sendAgain, unix.EBADF: sendClosed,
		unix.ENETUNREACH: sendDropped, unix.EPERM: sendDropped, unix.EMSGSIZE: sendDropped, unix.ENOBUFS: sendDropped} {
		if got := judge(errno, true); got != want {
			t.Errorf("%v is judged %d, want %d", errno, got, want)
		}
	}
	a.gso.Store(false)
	batch, seal := NewBatch(8), &testSeal{}
	dest := a.NewDest(b.Addr(), DestOptions{})
	for range 8 {
		batch.Add(dest, make([]byte, 12), [][]byte{make([]byte, 1024)}, 1024, 0)
	}
	if err := a.Send(batch, seal); err != nil {
		t.Fatal(err)
	}
	r, err := b.NewReceiver(8)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Close() }()
	if n := receiveN(t, b, r, 8, func(p []byte, _ *Datagram, _ int) {
		if id := sealedID(p); id != 0 {
			t.Errorf("sealed for identification %d", id)
		}
	}); n != 8 {
		t.Errorf("8 packets came in %d datagrams", n)
	}
	if a.Stats().GSODisabled != 1 || a.Features().GSO {
		t.Errorf("not told: %+v %+v", a.Stats(), a.Features())
	}
}

// TestRefusedPacket: what the kernel will not send is dropped, the rest goes.
func TestRefusedPacket(t *testing.T) {
	a := mustOpen(t, Config{Addr: loopback(t, false), NoGSO: true})
	b := mustOpen(t, Config{Addr: loopback(t, false)})
	batch := NewBatch(8)
	dest := a.NewDest(b.Addr(), DestOptions{})
	big := make([]byte, 70000)
	for i := range 9 {
		n := 1000
		if i%3 == 1 {
			n = len(big)
		}
		batch.Add(dest, make([]byte, 12), [][]byte{big[:n]}, n, 0)
	}
	if err := a.Send(batch, &testSeal{}); err != nil {
		t.Fatal(err)
	}
	r, err := b.NewReceiver(8)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Close() }()
	receiveN(t, b, r, 6, func(p []byte, _ *Datagram, _ int) {
		if len(p) != 1016 {
			t.Errorf("a packet of %d bytes arrived", len(p))
		}
	})
	if st := a.Stats(); st.SendDrops != 3 || st.LastSendErrno != unix.EMSGSIZE {
		t.Errorf("drops are %d, the last for %v; want 3 for EMSGSIZE", st.SendDrops, st.LastSendErrno)
	}
}

// TestReceiveDropsCounted: a small receive buffer overflows and the socket says
// so.
func TestReceiveDropsCounted(t *testing.T) {
	a := mustOpen(t, Config{Addr: loopback(t, false), NoGSO: true})
	b := mustOpen(t, Config{Addr: loopback(t, false), RecvBuffer: 16 << 10})
	batch := NewBatch(64)
	dest := a.NewDest(b.Addr(), DestOptions{})
	send := func(n int) {
		batch.Reset()
		for range n {
			batch.Add(dest, make([]byte, 12), [][]byte{make([]byte, 2000)}, 2000, 0)
		}
		if err := a.Send(batch, &testSeal{}); err != nil {
			t.Fatal(err)
		}
	}
	send(64)
	r, err := b.NewReceiver(8)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Close() }()
	got := 0
	for {
		grams, err := r.Recv(8)
		if err != nil {
			t.Fatal(err)
		}
		if len(grams) == 0 {
			break
		}
		got += len(grams)
	}
	// The kernel tells the count with the next packet that it keeps.
	send(1)
	receiveN(t, b, r, 1, func([]byte, *Datagram, int) {})
	if drops := b.Stats().RecvDrops; got == 64 || int(drops) != 64-got {
		t.Errorf("%d of 64 arrived and %d are counted as dropped", got, drops)
	}
}

func TestOpenErrors(t *testing.T) {
	a := mustOpen(t, Config{Addr: loopback(t, false)})
	for _, c := range []struct {
		addr netip.AddrPort
		want error
	}{
		{a.Addr(), unix.EADDRINUSE},
		{netip.MustParseAddrPort("192.0.2.1:0"), unix.EADDRNOTAVAIL},
		{netip.MustParseAddrPort("0.0.0.0:0"), unix.EINVAL},
		{netip.AddrPort{}, unix.EINVAL},
	} {
		s, err := Open(Config{Addr: c.addr})
		if !errors.Is(err, c.want) {
			t.Errorf("%v: %v, want %v", c.addr, err, c.want)
		}
		if err == nil {
			_ = s.Close()
		}
	}
}

func TestWaiter(t *testing.T) {
	a := mustOpen(t, Config{Addr: loopback(t, false)})
	b := mustOpen(t, Config{Addr: loopback(t, false)})
	w, err := b.NewWaiter(-1)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	}()
	within := func(d time.Duration, socket bool) Ready {
		w.SetTimer(d)
		return w.Wait(socket)
	}
	start := time.Now()
	w.SetTimer(time.Hour)
	if r := within(3*time.Millisecond, true); r != (Ready{Timer: true}) || time.Since(start) < 3*time.Millisecond {
		t.Errorf("after %v: %+v", time.Since(start), r)
	}
	w.Kick()
	w.Kick()
	if r := within(time.Hour, true); r != (Ready{Kick: true}) {
		t.Errorf("after a kick: %+v", r)
	}
	if r := within(time.Millisecond, true); r != (Ready{Timer: true}) {
		t.Errorf("a kick counts once: %+v", r)
	}
	batch := NewBatch(1)
	batch.Add(a.NewDest(b.Addr(), DestOptions{}), make([]byte, 12), nil, 0, 0)
	if err := a.Send(batch, &testSeal{}); err != nil {
		t.Fatal(err)
	}
	if r := within(2*time.Millisecond, false); r != (Ready{Timer: true}) {
		t.Errorf("not looking at the socket: %+v", r)
	}
	for range 2 { // nobody reads the packet
		if r := within(time.Hour, true); r != (Ready{Socket: true}) {
			t.Errorf("looking at the socket: %+v", r)
		}
	}
	if r := within(2*time.Millisecond, false); r != (Ready{Timer: true}) {
		t.Errorf("not looking at the socket any more: %+v", r)
	}
	w.SetTimer(time.Hour)
	// Asleep, it is woken by each.
	for _, c := range []struct {
		wake func()
		want Ready
	}{
		{w.Kick, Ready{Kick: true}},
		{func() { w.SetTimer(1) }, Ready{Timer: true}},
	} {
		done := make(chan Ready)
		go func() { done <- w.Wait(false) }()
		c.wake()
		if r := <-done; r != c.want {
			t.Errorf("woken with %+v, want %+v", r, c.want)
		}
	}
	r, err := b.NewReceiver(1)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Close() }()
	if g, err := r.Recv(1); len(g) != 1 || err != nil {
		t.Fatalf("%d datagrams, %v", len(g), err)
	}
	done := make(chan Ready)
	go func() { done <- w.Wait(true) }()
	if err := a.Send(batch, &testSeal{}); err != nil {
		t.Fatal(err)
	}
	if r := <-done; r != (Ready{Socket: true}) {
		t.Errorf("woken by a packet with %+v", r)
	}
	if raceEnabled {
		return
	}
	if n := testing.AllocsPerRun(100, func() { w.Kick(); w.Wait(true); within(time.Microsecond, false) }); n != 0 {
		t.Errorf("%v allocations a Wait", n)
	}
}

func TestNoAllocations(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	a := mustOpen(t, Config{Addr: loopback(t, false)})
	r, err := a.NewReceiver(8)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Close() }()
	batch := NewBatch(32)
	dest := a.NewDest(a.Addr(), DestOptions{})
	payload := [][]byte{make([]byte, 4096)}
	header := make([]byte, 12)
	if n := testing.AllocsPerRun(100, func() {
		batch.Reset()
		for range 20 {
			batch.Add(dest, header, payload, 4096, 0)
		}
		batch.Add(dest, header, [][]byte{payload[0][:64]}, 64, 0)
		if err := a.Send(batch, fixedSeal{}); err != nil {
			t.Fatal(err)
		}
		for {
			g, err := r.Recv(8)
			if err != nil {
				t.Fatal(err)
			}
			if len(g) == 0 {
				break
			}
		}
	}); n != 0 {
		t.Errorf("%v allocations for a batch", n)
	}
}
