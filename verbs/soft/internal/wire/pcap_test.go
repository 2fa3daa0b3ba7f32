package wire

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
)

// frame is one UDP datagram of a capture.
type frame struct {
	file     string
	index    int // of the frame in its capture, from 1, as Wireshark counts
	src, dst netip.AddrPort
	v6       bool
	id       uint16 // IPv4 identification
	df       bool
	payload  []byte
}

func (f *frame) String() string { return fmt.Sprintf("%s frame %d", f.file, f.index) }

// readPcap reads the RoCE v2 datagrams of a classic pcap file with Ethernet frames,
// and counts the frames that are something else.
func readPcap(name string) (out []frame, others int, err error) {
	b, err := os.ReadFile(name)
	if err != nil {
		return nil, 0, err
	}
	if len(b) < 24 {
		return nil, 0, fmt.Errorf("%s: no pcap header", name)
	}
	var order binary.ByteOrder = binary.LittleEndian
	switch binary.LittleEndian.Uint32(b) {
	case 0xa1b2c3d4, 0xa1b23c4d:
	case 0xd4c3b2a1, 0x4d3cb2a1:
		order = binary.BigEndian
	default:
		return nil, 0, fmt.Errorf("%s: not a pcap file", name)
	}
	if l := order.Uint32(b[20:]); l != 1 {
		return nil, 0, fmt.Errorf("%s: link type %d, want Ethernet", name, l)
	}
	b = b[24:]
	for i := 1; len(b) > 0; i++ {
		if len(b) < 16 {
			return nil, 0, fmt.Errorf("%s: frame %d: cut record header", name, i)
		}
		caught, full := order.Uint32(b[8:]), order.Uint32(b[12:])
		if caught != full || int(caught) > len(b)-16 {
			return nil, 0, fmt.Errorf("%s: frame %d: %d of %d bytes", name, i, caught, full)
		}
		f := frame{file: filepath.Base(name), index: i}
		if f.parse(b[16 : 16+caught]) {
			out = append(out, f)
		} else {
			others++
		}
		b = b[16+caught:]
	}
	return out, others, nil
}

func (f *frame) parse(b []byte) bool {
	if len(b) < 14 {
		return false
	}
	etype, b := binary.BigEndian.Uint16(b[12:]), b[14:]
	var src, dst netip.Addr
	switch {
	case etype == 0x0800 && len(b) >= 20 && b[0] == 0x45 && b[9] == 17:
		n := int(binary.BigEndian.Uint16(b[2:]))
		f.id = binary.BigEndian.Uint16(b[4:])
		f.df = b[6] == 0x40 && b[7] == 0
		src, dst = netip.AddrFrom4([4]byte(b[12:])), netip.AddrFrom4([4]byte(b[16:]))
		if n < 28 || n > len(b) {
			return false
		}
		b = b[20:n]
	case etype == 0x86dd && len(b) >= 48 && b[6] == 17:
		n := int(binary.BigEndian.Uint16(b[4:]))
		f.v6 = true
		src, dst = netip.AddrFrom16([16]byte(b[8:])), netip.AddrFrom16([16]byte(b[24:]))
		if n < 8 || 40+n > len(b) {
			return false
		}
		b = b[40 : 40+n]
	default:
		return false
	}
	f.src = netip.AddrPortFrom(src, binary.BigEndian.Uint16(b))
	f.dst = netip.AddrPortFrom(dst, binary.BigEndian.Uint16(b[2:]))
	f.payload = b[8:]
	return f.dst.Port() == 4791 && int(binary.BigEndian.Uint16(b[4:])) == len(b)
}

// captures are the frames of every capture under testdata.
func captures(t testing.TB) []frame {
	t.Helper()
	names, err := filepath.Glob("testdata/*.pcap")
	if err != nil || len(names) == 0 {
		t.Fatalf("no captures: %v", err)
	}
	var all []frame
	for _, n := range names {
		fs, others, err := readPcap(n)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s: %d RoCE v2 datagrams, %d other frames", filepath.Base(n), len(fs), others)
		all = append(all, fs...)
	}
	return all
}
