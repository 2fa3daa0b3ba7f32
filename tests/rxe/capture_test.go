package rxe

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/railstore/railstore/verbs"
	"github.com/railstore/railstore/verbs/verbstest"
)

// TestFarCapture records a conversation of every kind of request between a soft
// device and the kernel's rxe. The host's TestGuest looks at what it recorded.
func TestFarCapture(t *testing.T) {
	far(t)
	// Trains of packets are cut before the link, so that what is recorded is what
	// a wire would carry.
	if out, err := command("", "ip", "link", "set", "rf1", "gso_max_segs", "1"); err != nil {
		t.Fatal(err, out)
	}
	defer func() {
		if out, err := command("", "ip", "link", "set", "rf1", "gso_max_segs", "65535"); err != nil {
			t.Error(err, out)
		}
	}()
	for _, l := range farLink {
		for _, mtu := range []int{1024, 4096} {
			t.Run(fmt.Sprintf("%s/mtu=%d", l.name, mtu), func(t *testing.T) {
				file := fmt.Sprintf("soft-rxe-%s-mtu%d.pcap", strings.ToLower(l.name), mtu)
				stop := record(t, filepath.Join(os.Getenv("JOB"), file))
				for _, softAsks := range []bool{true, false} {
					t.Run(fmt.Sprintf("soft-asks=%v", softAsks), func(t *testing.T) { everyRequest(t, l.gid, l.soft, mtu, softAsks) })
				}
				stop()
			})
		}
	}
}

// record starts tcpdump on the kernel's side of the link; the function that it
// returns ends it once the file has stopped to grow.
func record(t *testing.T, file string) func() {
	t.Helper()
	s := startStock(t, "tcpdump", "--immediate-mode", "-U", "-Z", "root", "-s", "9100", "-B", "65536", "-i", "rf0", "-w", file, "udp port 4791")
	size := func() int64 {
		st, err := os.Stat(file)
		if err != nil {
			return -1
		}
		return st.Size()
	}
	tick := time.NewTicker(100 * time.Millisecond)
	t.Cleanup(tick.Stop)
	// The file's header is written when the socket is there.
	for end := time.Now().Add(stockPatience); size() < 24; <-tick.C {
		if time.Now().After(end) {
			t.Fatalf("tcpdump does not begin: %s", s.out.String())
		}
	}
	<-tick.C
	return func() {
		// What is in its buffer when the signal comes is lost, and under emulation
		// tcpdump may not run for a good while.
		last := size()
		for quiet := 0; quiet < 25; quiet++ {
			<-tick.C
			if n := size(); n != last {
				last, quiet = n, 0
			}
		}
		if err := s.cmd.Process.Signal(os.Interrupt); err != nil {
			t.Error(err)
		}
		s.wait()
	}
}

func everyRequest(t *testing.T, gid int, device string, mtu int, softAsks bool) {
	p := verbstest.Fixture{Path: verbs.PathOpts{MTU: mtu}}.New(t, func(tb testing.TB) (*verbs.Context, *verbs.Context) {
		k, u := openBoth(tb, gid, device)
		if softAsks {
			return u, k
		}
		return k, u
	})
	for i := range p.A.Bytes() {
		p.A.Bytes()[i] = byte(i)
	}
	addr, rkey := p.B.At(0)
	for _, n := range []int{0, 1, 7, 64, mtu, mtu + 1, 5*mtu + 3} {
		for _, op := range []verbs.Opcode{verbs.OpWrite, verbs.OpWriteImm, verbs.OpSend, verbs.OpSendImm, verbs.OpRead} {
			wr := verbs.SendWR{ID: 1, Op: op, RemoteAddr: addr, RKey: rkey, Imm: 0x01020304, Flags: verbs.Signaled}
			switch op {
			case verbs.OpSend, verbs.OpSendImm:
				if n < 64 {
					continue // tshark takes the payload for a header of 4 bytes
				}
				p.B.Recv(2, p.B.SGE(32<<10, n))
				wr.RemoteAddr, wr.RKey = 0, 0
			case verbs.OpWriteImm:
				p.B.Recv(2)
			}
			p.A.Send(wr, p.A.SGE(0, n))
			p.A.OK(1)
			if op != verbs.OpWrite && op != verbs.OpRead {
				p.B.OK(2)
			}
		}
	}
	p.A.Send(verbs.SendWR{ID: 1, Op: verbs.OpCAS, RemoteAddr: addr, RKey: rkey, CompareAdd: 1, Swap: 2, Flags: verbs.Signaled}, p.A.SGE(0, 8))
	p.A.OK(1)
	p.A.Send(verbs.SendWR{ID: 1, Op: verbs.OpFAA, RemoteAddr: addr, RKey: rkey, CompareAdd: 1, Flags: verbs.Signaled}, p.A.SGE(0, 8))
	p.A.OK(1)
	p.A.Send(verbs.SendWR{ID: 1, Op: verbs.OpWrite, RemoteAddr: addr, RKey: rkey ^ 0x500, Flags: verbs.Signaled}, p.A.SGE(0, 8)) // is refused
	p.A.Bad(1, verbs.WCRemAccess)
}

// checkCaptures looks at every file that the guest recorded: all of it decodes,
// nothing is malformed, the ICRCs are right, and each side said something of
// every kind.
func checkCaptures(t *testing.T, dir string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.pcap"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no captures in %s: %v", dir, err)
	}
	for _, f := range files {
		t.Run(filepath.Base(f), func(t *testing.T) {
			checkCapture(t, f)
			keep(t, f)
		})
	}
}

// keep copies a file to the folder that RS_RXE_KEEP names.
func keep(t *testing.T, file string) {
	t.Helper()
	dir := os.Getenv("RS_RXE_KEEP")
	if dir == "" {
		return
	}
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, filepath.Base(file)), b, 0o644); err != nil {
		t.Fatal(err)
	}
}

func checkCapture(t *testing.T, file string) {
	t.Helper()
	packets, err := readPcap(file)
	if err != nil {
		t.Fatal(err)
	}
	opcodes := make(map[string]map[byte]bool) // by source address
	for i, p := range packets {
		d, err := parseRoCE(p)
		if err != nil {
			t.Errorf("packet %d: %v", i+1, err)
			continue
		}
		if opcodes[d.source] == nil {
			opcodes[d.source] = make(map[byte]bool)
		}
		opcodes[d.source][d.opcode] = true
	}
	if len(opcodes) != 2 {
		t.Errorf("packets of %d sources, want 2", len(opcodes))
	}
	for from, seen := range opcodes {
		// SEND FIRST to READ REQUEST, the answers, ACK, atomic answer, CAS, FAA.
		for op := byte(0); op <= 20; op++ {
			if !seen[op] {
				t.Errorf("%s sent no packet of opcode %d", from, op)
			}
		}
	}
	// rxe's UDP checksum of 0 is an error over IPv6, which is not ours to mend.
	out, err := tshark(file, "-Y", "_ws.malformed or (_ws.expert.severity == error and (ip.src == 10.30.0.2 or ipv6.src == fd30::2))")
	if err != nil {
		t.Fatal(err)
	}
	if s := strings.TrimSpace(out); s != "" {
		t.Errorf("tshark objects to:\n%s", s)
	}
	out, err = tshark(file, "-Y", "infiniband.bth.opcode")
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(out, "\n"); n != len(packets) {
		t.Errorf("tshark decodes %d of %d packets as RoCE v2", n, len(packets))
	}
	t.Logf("%d packets decode, none is malformed, every ICRC is right", len(packets))
}

func tshark(file string, args ...string) (string, error) {
	cmd := exec.Command("tshark", append([]string{"-n", "-r", file}, args...)...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("tshark: %w\n%s", err, stderr.String())
	}
	return string(out), nil
}

// readPcap gives the frames of a capture file, of which none may be cut.
func readPcap(file string) ([][]byte, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	if len(b) < 24 || binary.LittleEndian.Uint32(b) != 0xa1b2c3d4 {
		return nil, fmt.Errorf("%s: not a capture file of this byte order", file)
	}
	var out [][]byte
	for b = b[24:]; len(b) > 0; {
		if len(b) < 16 {
			return nil, io.ErrUnexpectedEOF
		}
		n, whole := binary.LittleEndian.Uint32(b[8:]), binary.LittleEndian.Uint32(b[12:])
		if n != whole || uint32(len(b)-16) < n {
			return nil, fmt.Errorf("%s: packet %d is cut: %d of %d bytes", file, len(out)+1, n, whole)
		}
		out = append(out, b[16:16+n])
		b = b[16+n:]
	}
	return out, nil
}

type rocePacket struct {
	source string
	opcode byte
}

// parseRoCE takes an Ethernet frame apart and checks its ICRC: a CRC-32 over
// eight bytes of ones, the IP and UDP headers with what routers change set to
// ones, and the rest from the BTH on (RoCE v2 annex A17.3.3).
func parseRoCE(frame []byte) (d rocePacket, err error) {
	if len(frame) < 14 {
		return d, errors.New("short frame")
	}
	ip := slices.Clone(frame[14:])
	var header int
	switch {
	case binary.BigEndian.Uint16(frame[12:]) == 0x0800 && len(ip) >= 20:
		header = 20
		if n := int(binary.BigEndian.Uint16(ip[2:])); n <= len(ip) {
			ip = ip[:n] // the rest is Ethernet's padding
		}
		d.source = fmt.Sprint(ip[12:16])
		ip[1], ip[8], ip[10], ip[11] = 0xff, 0xff, 0xff, 0xff
	case binary.BigEndian.Uint16(frame[12:]) == 0x86dd && len(ip) >= 40:
		header = 40
		if n := 40 + int(binary.BigEndian.Uint16(ip[4:])); n <= len(ip) {
			ip = ip[:n]
		}
		d.source = fmt.Sprint(ip[8:24])
		ip[0] |= 0x0f
		ip[1], ip[2], ip[3], ip[7] = 0xff, 0xff, 0xff, 0xff
	default:
		return d, errors.New("neither IPv4 nor IPv6")
	}
	udp := ip[header:]
	if len(udp) < 8+12+4 || binary.BigEndian.Uint16(udp[2:]) != 4791 {
		return d, errors.New("not RoCE v2")
	}
	udp[6], udp[7] = 0xff, 0xff
	bth := udp[8:]
	d.opcode = bth[0]
	bth[4] = 0xff
	end := len(ip) - 4
	crc := crc32.ChecksumIEEE(append(bytes.Repeat([]byte{0xff}, 8), ip[:end]...))
	if got := binary.LittleEndian.Uint32(ip[end:]); got != crc {
		return d, fmt.Errorf("ICRC %08x, want %08x", got, crc)
	}
	return d, nil
}

// The captures in testdata were recorded by TestFarCapture; they show what a
// soft device sends without a guest.
func TestRecordedCaptures(t *testing.T) {
	if _, err := exec.LookPath("tshark"); err != nil {
		t.Skip("no tshark: apt-get install tshark")
	}
	checkCaptures(t, "testdata")
}

// The check of an ICRC can fail: any changed bit of what it covers is found.
func TestICRCFindsChanges(t *testing.T) {
	for _, f := range []string{"testdata/soft-rxe-ipv4-mtu1024.pcap", "testdata/soft-rxe-ipv6-mtu1024.pcap"} {
		packets, err := readPcap(f)
		if err != nil {
			t.Fatal(err)
		}
		p := packets[0]
		if _, err := parseRoCE(p); err != nil {
			t.Fatal(err)
		}
		// Behind the part that routers change: the addresses, the BTH, the payload.
		for _, at := range []int{len(p) - 1, len(p) - 5, len(p) - 16, 14 + 17} {
			q := slices.Clone(p)
			q[at] ^= 0x10
			if _, err := parseRoCE(q); err == nil {
				t.Errorf("%s: a change of byte %d of %d was not seen", f, at, len(p))
			}
		}
		for n := range len(p) {
			if _, err := parseRoCE(p[:n]); err == nil {
				t.Errorf("%s: a packet cut to %d of %d bytes was taken", f, n, len(p))
			}
		}
	}
}
