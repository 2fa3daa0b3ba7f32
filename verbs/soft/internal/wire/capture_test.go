package wire

import (
	"bytes"
	"encoding/binary"
	"testing"
)

// What is known to be odd in user-space-interop-mtu4096.pcap.
const (
	interop      = "user-space-interop-mtu4096.pcap"
	wrongICRC    = 29 // not an ICRC at all
	wrongIdent   = 30 // computed over identification 7, sent with 0
	trainFrame   = 39 // one GSO train, captured before it was cut
	trainPackets = 7
	trainSize    = BTHLen + 4096 + ICRCLen
)

// TestCaptures decodes and encodes again every packet that the kernel's rxe and a
// user-space endpoint sent.
func TestCaptures(t *testing.T) {
	seen := map[Opcode]int{}
	odd := 0
	for _, f := range captures(t) {
		if !f.v6 && !f.df {
			t.Errorf("%v: DF not set", &f)
		}
		path := NewPath(f.src, f.dst)
		if f.file != interop || f.index != trainFrame {
			want := f.id
			bad := f.file == interop && (f.index == wrongICRC || f.index == wrongIdent)
			if bad {
				odd++
			}
			if got := path.Check(f.id, f.payload); got == bad {
				t.Errorf("%v: Check is %v", &f, got)
			}
			if bad && f.index == wrongICRC {
				if id, ok := path.Solve(f.id, f.payload); ok {
					t.Errorf("%v: solved a wrong ICRC with %d", &f, id)
				}
				identity(t, &f, path, f.payload, 0, false)
				continue
			}
			if bad {
				want = 7
			}
			// From a wrong guess; IPv6 has no identification to find.
			if id, ok := path.Solve(want^0x5aa5, f.payload); !ok || id != want && !f.v6 {
				t.Errorf("%v: Solve is %d, %v; want %d", &f, id, ok, want)
			}
			seen[identity(t, &f, path, f.payload, want, true)]++
			continue
		}
		odd++
		if len(f.payload) != trainPackets*trainSize {
			t.Fatalf("%v: train of %d bytes", &f, len(f.payload))
		}
		for i := range trainPackets {
			b := f.payload[i*trainSize : (i+1)*trainSize]
			if !path.Check(uint16(i), b) {
				t.Errorf("%v: segment %d: wrong ICRC with identification %d", &f, i, i)
			}
			if id, ok := path.Solve(0x1234, b); !ok || id != uint16(i) {
				t.Errorf("%v: segment %d: Solve is %d, %v", &f, i, id, ok)
			}
			seen[identity(t, &f, path, b, uint16(i), true)]++
		}
	}
	if odd != 3 {
		t.Errorf("%d of the 3 odd frames seen", odd)
	}
	for _, op := range []Opcode{SendFirst, SendMiddle, SendLast, WriteOnly, WriteFirst, WriteMiddle, WriteLast,
		ReadRequest, ReadResponseFirst, ReadResponseMiddle, ReadResponseLast, ReadResponseOnly, Acknowledge,
		AtomicAcknowledge, FetchAdd} {
		if seen[op] == 0 {
			t.Errorf("no %v in the captures", op)
		}
	}
	t.Logf("seen: %v", seen)
}

// identity decodes b, encodes it again and compares, ICRC included where it is right.
func identity(t *testing.T, f *frame, path Path, b []byte, id uint16, good bool) Opcode {
	t.Helper()
	var p Packet
	if err := p.Parse(b); err != nil {
		t.Errorf("%v: %v", f, err)
		return 0xff
	}
	out := append(p.Append(nil), 0, 0, 0, 0)
	if good {
		path.Put(id, out)
	} else {
		binary.LittleEndian.PutUint32(out[len(out)-4:], p.ICRC)
	}
	if !bytes.Equal(out, b) {
		t.Errorf("%v: %v PSN %v encodes to other bytes\n got %x\nwant %x", f, p.Opcode, p.PSN, head(out), head(b))
	}
	// The same in pieces.
	var h [MaxHeader]byte
	n := p.PutHeader(h[:])
	k := len(p.Payload) / 3
	frags := [][]byte{p.Payload[:k], p.Payload[k:k], p.Payload[k:]}
	if crc := path.ICRC(id, h[:n], frags, int(p.Pad)); good && crc != p.ICRC {
		t.Errorf("%v: ICRC in pieces %08x, want %08x", f, crc, p.ICRC)
	}
	bth := BTH(b)
	if bth.Opcode() != p.Opcode || bth.PSN() != p.PSN || bth.DestQPN() != p.DestQPN || bth.AckReq() != p.AckReq ||
		bth.Solicited() != p.Solicited || bth.MigReq() != p.MigReq || bth.Pad() != int(p.Pad) || bth.PKey() != p.PKey || bth.Version() != 0 {
		t.Errorf("%v: BTH accessors and Packet differ", f)
	}
	return p.Opcode
}

func head(b []byte) []byte { return b[:min(len(b), 64)] }
