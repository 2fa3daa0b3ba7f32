package wire

import (
	"bytes"
	"errors"
	"testing"

	"pgregory.net/rapid"
)

func TestPSN(t *testing.T) {
	for _, c := range []struct {
		a, b PSN
		diff int32
	}{
		{0, 0, 0}, {1, 0, 1}, {0, 1, -1}, {0, PSNMask, 1}, {PSNMask, 0, -1}, {5, PSNMask - 4, 10},
		{1 << 23, 0, -1 << 23}, {1<<23 - 1, 0, 1<<23 - 1}, {0, 1 << 23, -1 << 23},
	} {
		if d := c.a.Diff(c.b); d != c.diff {
			t.Errorf("%v.Diff(%v) = %d, want %d", c.a, c.b, d, c.diff)
		}
		if got := c.a.Before(c.b); got != (c.diff < 0) {
			t.Errorf("%v.Before(%v) = %v", c.a, c.b, got)
		}
	}
	if p := PSN(PSNMask).Add(3); p != 2 {
		t.Errorf("ffffff + 3 = %v", p)
	}
	rapid.Check(t, func(t *rapid.T) {
		p := PSN(rapid.Uint32Range(0, PSNMask).Draw(t, "psn"))
		n := rapid.Uint32Range(0, PSNMask).Draw(t, "n")
		if q := p.Add(n); q.Sub(p) != n || q > PSNMask {
			t.Fatalf("(%v + %d) - %v = %d", p, n, p, q.Sub(p))
		}
	})
}

func TestParseRefuses(t *testing.T) {
	good := append((&Packet{Opcode: WriteOnly, Pad: 3, Payload: []byte{1}, PSN: 7}).Append(nil), 0, 0, 0, 0)
	var p Packet
	if err := p.Parse(good); err != nil {
		t.Fatal(err)
	}
	change := func(i int, v byte) []byte {
		b := bytes.Clone(good)
		b[i] = v
		return b
	}
	for _, c := range []struct {
		name string
		b    []byte
		err  error
	}{
		{"nothing", nil, ErrShort},
		{"headers cut", good[:28], ErrShort},
		{"reserved opcode", change(0, 0x15), ErrOpcode},
		{"unreliable datagram", change(0, 0x64), ErrOpcode},
		{"version", change(1, 0x01), ErrVersion},
		{"odd length", good[:len(good)-1], ErrPad},
		{"more pad than payload", append((&Packet{Opcode: Acknowledge, Pad: 1}).Append(nil)[:16], 0, 0, 0, 0), ErrPad},
	} {
		if err := p.Parse(c.b); !errors.Is(err, c.err) {
			t.Errorf("%s: %v, want %v", c.name, err, c.err)
		}
	}
	for n := range len(good) {
		if err := p.Parse(good[:n]); err == nil && n < 32 {
			t.Errorf("cut to %d bytes: accepted", n)
		}
	}
}

func TestOpcodes(t *testing.T) {
	lens := map[Header]int{HasRETH: RETHLen, HasAtomicETH: AtomicETHLen, HasAETH: AETHLen, HasAtomicAck: 8, HasImm: 4, HasIETH: 4}
	known := 0
	for i := range 256 {
		op := Opcode(i)
		if !op.Known() {
			if i <= 0x14 {
				t.Errorf("%v is not known", op)
			}
			continue
		}
		known++
		n := BTHLen
		for h, l := range lens {
			if op.Headers()&h != 0 {
				n += l
			}
		}
		if n != op.HeaderLen() {
			t.Errorf("%v: header length %d, its headers take %d", op, op.HeaderLen(), n)
		}
		var b [MaxHeader]byte
		if k := (&Packet{Opcode: op}).PutHeader(b[:]); k != n {
			t.Errorf("%v: PutHeader writes %d bytes, want %d", op, k, n)
		}
	}
	if known != 23 {
		t.Errorf("%d opcodes, want 23", known)
	}
}

// FuzzParse: any bytes are refused or decode to a packet that encodes to the same
// bytes, pad bytes and ICRC apart.
func FuzzParse(f *testing.F) {
	for _, fr := range captures(f) {
		f.Add(fr.payload[:min(len(fr.payload), 256)&^3])
	}
	for op := range Opcode(32) {
		if op.Known() {
			f.Add(append((&Packet{Opcode: op, PKey: 0xffff, Pad: 0, AckReq: true, Reserved: 0x55, Congest: 0xaa}).Append(nil), 1, 2, 3, 4))
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var p Packet
		before := bytes.Clone(b)
		err := p.Parse(b)
		if !bytes.Equal(b, before) {
			t.Fatal("Parse changed the datagram")
		}
		if err != nil {
			return
		}
		out := p.Append(nil)
		want := before[:len(before)-ICRCLen]
		clear(want[len(want)-int(p.Pad):])
		if !bytes.Equal(out, want) {
			t.Fatalf("decodes to %+v, encodes to\n%x, want\n%x", p, out, want)
		}
		if len(p.Payload)+p.Opcode.HeaderLen()+int(p.Pad)+ICRCLen != len(b) {
			t.Fatalf("payload of %d bytes in %d", len(p.Payload), len(b))
		}
	})
}
