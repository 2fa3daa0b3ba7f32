package wire

import (
	"encoding/binary"
	"hash/crc32"
	"net/netip"
	"strconv"
	"testing"

	"pgregory.net/rapid"
)

// plainICRC builds all that the ICRC covers and takes the CRC of it: slow and
// obvious.
func plainICRC(src, dst netip.AddrPort, id uint16, b []byte) uint32 {
	body := b[:len(b)-ICRCLen]
	var ip []byte
	if src.Addr().Is4() {
		ip = make([]byte, 20)
		ip[0], ip[1] = 0x45, 0xff
		binary.BigEndian.PutUint16(ip[2:], uint16(28+len(b)))
		binary.BigEndian.PutUint16(ip[4:], id)
		ip[6], ip[8], ip[9], ip[10], ip[11] = 0x40, 0xff, 17, 0xff, 0xff
		copy(ip[12:], src.Addr().AsSlice())
		copy(ip[16:], dst.Addr().AsSlice())
	} else {
		ip = make([]byte, 40)
		ip[0], ip[1], ip[2], ip[3] = 0x6f, 0xff, 0xff, 0xff
		binary.BigEndian.PutUint16(ip[4:], uint16(8+len(b)))
		ip[6], ip[7] = 17, 0xff
		copy(ip[8:], src.Addr().AsSlice())
		copy(ip[24:], dst.Addr().AsSlice())
	}
	udp := make([]byte, 8)
	binary.BigEndian.PutUint16(udp, src.Port())
	binary.BigEndian.PutUint16(udp[2:], dst.Port())
	binary.BigEndian.PutUint16(udp[4:], uint16(8+len(b)))
	udp[6], udp[7] = 0xff, 0xff
	all := append([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, ip...)
	all = append(all, udp...)
	at := len(all)
	all = append(all, body...)
	all[at+4] = 0xff
	return crc32.ChecksumIEEE(all)
}

func drawAddr(t *rapid.T, v6 bool, label string) netip.AddrPort {
	raw := rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, label)
	port := rapid.Uint16().Draw(t, label+" port")
	if v6 {
		raw[0] = 0x20 // not IPv4-mapped
		return netip.AddrPortFrom(netip.AddrFrom16([16]byte(raw)), port)
	}
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte(raw)), port)
}

func TestICRCAgainstPlain(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v6 := rapid.Bool().Draw(t, "v6")
		src, dst := drawAddr(t, v6, "src"), drawAddr(t, v6, "dst")
		id := rapid.Uint16().Draw(t, "id")
		op := rapid.SampledFrom([]Opcode{SendOnly, WriteOnly, WriteOnlyImm, ReadRequest, Acknowledge, AtomicAcknowledge, CompareSwap}).Draw(t, "op")
		p := Packet{Opcode: op, PKey: 0xffff, PSN: PSN(rapid.Uint32Range(0, PSNMask).Draw(t, "psn")), VA: rapid.Uint64().Draw(t, "va"), MigReq: true,
			Congest: rapid.Byte().Draw(t, "congest")}
		p.Payload = rapid.SliceOfN(rapid.Byte(), 0, 300).Draw(t, "payload")
		p.Pad = uint8(-len(p.Payload) & 3)
		b := append(p.Append(nil), 0, 0, 0, 0)
		path := NewPath(src, dst)
		want := plainICRC(src, dst, id, b)
		if got := path.Sum(id, b); got != want {
			t.Fatalf("Sum %08x, want %08x", got, want)
		}
		cut := rapid.IntRange(0, len(p.Payload)).Draw(t, "cut")
		var h [MaxHeader]byte
		if got := path.ICRC(id, h[:p.PutHeader(h[:])], [][]byte{p.Payload[:cut], p.Payload[cut:]}, int(p.Pad)); got != want {
			t.Fatalf("ICRC %08x, want %08x", got, want)
		}
		path.Put(id, b)
		guess := rapid.Uint16().Draw(t, "guess")
		got, ok := path.Solve(guess, b)
		if !ok || !v6 && got != id {
			t.Fatalf("Solve(%d) = %d, %v; want %d", guess, got, ok, id)
		}
		if v6 {
			return
		}
		// Any one wrong bit past the IP header has no identification that fits.
		bit := rapid.IntRange(0, 8*len(b)-1).Draw(t, "bit")
		if bit/8 == 4 {
			return // masked
		}
		b[bit/8] ^= 1 << (bit % 8)
		if got, ok := path.Solve(guess, b); ok {
			t.Fatalf("bit %d of byte %d flipped, solved with %d", bit%8, bit/8, got)
		}
	})
}

// TestSolveAllLengths covers the table's end and beyond it.
func TestSolveAllLengths(t *testing.T) {
	path := NewPath(netip.MustParseAddrPort("10.0.0.1:50000"), netip.MustParseAddrPort("10.0.0.2:4791"))
	for _, n := range []int{16, 20, 24, 4112, 4128, 4136, 4300, 4320, 4324, 4328, 4352, 4356, 9000, 65000} {
		b := make([]byte, n)
		for i := range b {
			b[i] = byte(i * 7)
		}
		for _, id := range []uint16{0, 1, 0x8000, 0xffff, 0x1234} {
			path.Put(id, b)
			if got, ok := path.Solve(0, b); !ok || got != id {
				t.Errorf("length %d, identification %d: Solve is %d, %v", n, id, got, ok)
			}
		}
	}
}

func TestICRCAllocates(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	path := NewPath(netip.MustParseAddrPort("10.0.0.1:50000"), netip.MustParseAddrPort("10.0.0.2:4791"))
	p := Packet{Opcode: WriteOnly, PKey: 0xffff, Payload: make([]byte, 4096)}
	b := append(p.Append(nil), 0, 0, 0, 0)
	frags := [][]byte{p.Payload[:100], p.Payload[100:]}
	h := make([]byte, MaxHeader)
	var q Packet
	if n := testing.AllocsPerRun(100, func() {
		path.Put(3, b)
		if _, ok := path.Solve(0, b); !ok {
			t.Fatal("not solved")
		}
		if err := q.Parse(b); err != nil {
			t.Fatal(err)
		}
		path.ICRC(3, h[:q.PutHeader(h)], frags, 0)
		b = q.Append(b[:0])[:len(b)]
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkParse(b *testing.B) {
	d := append((&Packet{Opcode: WriteMiddle, PKey: 0xffff, Payload: make([]byte, 4096)}).Append(nil), 0, 0, 0, 0)
	var p Packet
	for b.Loop() {
		if err := p.Parse(d); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkICRC(b *testing.B) {
	path := NewPath(netip.MustParseAddrPort("10.0.0.1:50000"), netip.MustParseAddrPort("10.0.0.2:4791"))
	for _, n := range []int{0, 64, 1024, 4096} {
		b.Run("bytes="+strconv.Itoa(n), func(b *testing.B) {
			p := Packet{Opcode: WriteMiddle, PKey: 0xffff, Payload: make([]byte, n)}
			d := append(p.Append(nil), 0, 0, 0, 0)
			b.SetBytes(int64(len(d)))
			for b.Loop() {
				path.Put(1, d)
			}
		})
	}
}

func BenchmarkSolve(b *testing.B) {
	path := NewPath(netip.MustParseAddrPort("10.0.0.1:50000"), netip.MustParseAddrPort("10.0.0.2:4791"))
	p := Packet{Opcode: WriteMiddle, PKey: 0xffff, Payload: make([]byte, 4096)}
	d := append(p.Append(nil), 0, 0, 0, 0)
	path.Put(0xbeef, d)
	for b.Loop() {
		if id, ok := path.Solve(0, d); !ok || id != 0xbeef {
			b.Fatal(id, ok)
		}
	}
}
