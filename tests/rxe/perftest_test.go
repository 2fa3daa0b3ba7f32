package rxe

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"net"
	"strconv"
	"strings"
	"testing"

	"github.com/railstore/railstore/verbs"
	"github.com/railstore/railstore/verbs/perf"
)

// perftestHello is what ib_write_bw and its kin send of a QP: LID, outstanding
// reads, QPN, PSN, RKey, address and GID in hex, an SRQ number, and the zero that
// ends a string.
func perftestHello(e verbs.Endpoint, reads int, rkey uint32, addr uint64) []byte {
	b := fmt.Appendf(nil, "%04x:%04x:%06x:%06x:%08x:%016x:", e.LID, reads, e.QPN, e.PSN, rkey, addr)
	for _, v := range e.GID {
		b = fmt.Appendf(b, "%02x:", v)
	}
	return append(fmt.Appendf(b, "%08x:", 0), 0)
}

func parsePerftest(b []byte) (e verbs.Endpoint, rkey uint32, addr uint64, err error) {
	f := strings.Split(strings.TrimRight(string(b), "\x00"), ":")
	if len(f) != 24 {
		return e, 0, 0, fmt.Errorf("%q: %d fields, want 24", b, len(f))
	}
	var v [6]uint64
	for i := range v {
		if v[i], err = strconv.ParseUint(f[i], 16, 64); err != nil {
			return e, 0, 0, fmt.Errorf("%q: %w", b, err)
		}
	}
	gid, err := hex.DecodeString(strings.Join(f[6:22], ""))
	if err != nil || len(gid) != 16 {
		return e, 0, 0, fmt.Errorf("%q: GID of %d bytes, %v", b, len(gid), err)
	}
	return verbs.Endpoint{LID: uint16(v[0]), QPN: uint32(v[2]), PSN: uint32(v[3]), GID: verbs.GID(gid)}, uint32(v[4]), v[5], nil
}

func TestPerftestHello(t *testing.T) {
	e := verbs.Endpoint{LID: 1, QPN: 0x11, PSN: 0xc3ae48, GID: verbs.GID{10: 0xff, 11: 0xff, 12: 10, 13: 10, 15: 1}}
	b := perftestHello(e, 1, 0x22f, 0x561e29ea0000)
	want := "0001:0001:000011:c3ae48:0000022f:0000561e29ea0000:00:00:00:00:00:00:00:00:00:00:ff:ff:0a:0a:00:01:00000000:\x00"
	if string(b) != want || len(b) != 108 {
		t.Errorf("%q", b)
	}
	got, rkey, addr, err := parsePerftest(b)
	if err != nil || got != e || rkey != 0x22f || addr != 0x561e29ea0000 {
		t.Errorf("%+v %#x %#x %v", got, rkey, addr, err)
	}
	for _, bad := range []string{"", "1:2", strings.Replace(want, "c3ae48", "c3aeg8", 1), strings.Replace(want, "ff:ff", "f:f", 1)} {
		if _, _, _, err := parsePerftest([]byte(bad)); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
}

// perftest is one session of a test of perftest between our end and a stock one.
type perftest struct {
	conn   net.Conn
	client bool
	end    *perf.End
	test   perf.Test
	hello  []byte
}

// The rounds in which both sides only send their hello again, before and after
// the messages, and whether reports follow: seen on the wire of version 6.06.
var perftestRounds = map[string]struct {
	before, after int
	reports       bool
}{
	"write_bw":  {2, 1, true},
	"read_bw":   {2, 1, true},
	"send_bw":   {3, 1, false},
	"write_lat": {3, 0, false},
}

// meet agrees on a version and an MTU and connects the two QPs. The address that
// is told is where messages of the test's kind are to go to or come from.
func (p *perftest) meet(mtu int) error {
	version := make([]byte, 16)
	copy(version, "6.06")
	code := append([]byte{byte('1' + int(math.Log2(float64(mtu/256))))}, 0)
	for _, m := range [][]byte{version, binary.BigEndian.AppendUint32(nil, 4096), binary.BigEndian.AppendUint32(nil, 64), code} {
		theirs, err := exchange(p.conn, p.client, m)
		if err != nil {
			return fmt.Errorf("hello: %w", err)
		}
		if len(theirs) == len(code) && theirs[0] != code[0] {
			return fmt.Errorf("their MTU code is %q, ours %q", theirs, code)
		}
	}
	slot := uint64((p.test.Size + 63) / 64 * 64)
	mine := p.end.Hello()
	addr := mine.Region.Addr
	if p.test.Op == verbs.OpWrite {
		addr += slot // where perf receives
	}
	reads := 1
	if p.test.Op == verbs.OpRead {
		reads = 16
	}
	p.hello = perftestHello(mine.Endpoints[0], reads, mine.Region.RKey, addr)
	b, err := exchange(p.conn, p.client, p.hello)
	if err != nil {
		return err
	}
	e, rkey, remote, err := parsePerftest(b)
	if err != nil {
		return err
	}
	e.MTU = mtu
	peer := perf.Hello{Endpoints: []verbs.Endpoint{e}, Region: verbs.RemoteRegion{Addr: remote, Length: 2 * slot, RKey: rkey}}
	if p.test.Op == verbs.OpWrite {
		peer.Region.Addr -= slot
	}
	return p.end.Connect(peer)
}

func (p *perftest) sync(n int) error {
	for i := range n {
		if _, err := exchange(p.conn, p.client, p.hello); err != nil {
			return fmt.Errorf("synchronisation %d: %w", i, err)
		}
	}
	return nil
}

// run measures as the client, or answers as the server.
func (p *perftest) run(ctx context.Context) (r perf.Result, err error) {
	rounds := perftestRounds[p.test.Name()]
	if err := p.sync(rounds.before); err != nil {
		return r, err
	}
	switch {
	case p.test.Kind == perf.Latency && p.client:
		err = p.end.Respond(ctx) // in latency tests the server begins
	case p.client || p.test.Kind == perf.Latency:
		if r, err = p.end.Initiate(ctx); err == nil {
			err = p.sync(rounds.after)
		}
	default:
		err = p.answer(ctx, rounds.after)
	}
	if err != nil {
		return r, err
	}
	if rounds.reports {
		for range 5 {
			if _, err := exchange(p.conn, p.client, make([]byte, 8)); err != nil {
				return r, fmt.Errorf("reports: %w", err)
			}
		}
		if err := p.sync(1); err != nil {
			return r, err
		}
	}
	if rounds.after == 0 {
		return r, nil
	}
	// Here the server speaks first.
	_, err = exchange(p.conn, !p.client, append([]byte("done"), 0))
	return r, err
}

// answer lets the end answer until the client says that it is through.
func (p *perftest) answer(ctx context.Context, rounds int) error {
	ctx, stop := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- p.end.Respond(ctx) }()
	err := p.sync(rounds)
	stop()
	return errors.Join(err, <-done)
}

// TestFarPerftest runs stock tests of perftest on the kernel's rxe against a soft
// device, as their server and as their client.
func TestFarPerftest(t *testing.T) {
	far(t)
	for _, l := range farLink {
		for _, c := range []struct {
			tool  string
			op    verbs.Opcode
			kind  perf.Kind
			size  int
			iters int
		}{
			{"ib_write_bw", verbs.OpWrite, perf.Bandwidth, 65536, 100},
			{"ib_write_bw", verbs.OpWrite, perf.Bandwidth, 5000, 200},
			{"ib_read_bw", verbs.OpRead, perf.Bandwidth, 65536, 100},
			{"ib_send_bw", verbs.OpSend, perf.Bandwidth, 65536, 100},
			{"ib_write_lat", verbs.OpWrite, perf.Latency, 64, 100},
		} {
			test := perf.Test{Op: c.op, Kind: c.kind, Size: c.size, Iters: c.iters, Depth: 16, QPs: 1}
			args := []string{c.tool, "-d", "rxe4", "-x", strconv.Itoa(l.gid), "-F", "-s", strconv.Itoa(c.size), "-n", strconv.Itoa(c.iters), "-m", "4096"}
			if c.kind == perf.Bandwidth {
				args = append(args, "-t", "16", "-r", "16")
			}
			if c.op != verbs.OpSend && c.kind == perf.Bandwidth {
				args = args[:len(args)-2] // -r is of send alone
			}
			name := fmt.Sprintf("%s/%s/size=%d", l.name, c.tool, c.size)
			t.Run(name+"/stock-serves", func(t *testing.T) {
				p := newPerftest(t, l.soft, test, true)
				s := startStock(t, args...)
				p.conn = dialStock(t, s, "10.30.0.1:18515")
				p.measure(t, s)
			})
			t.Run(name+"/stock-asks", func(t *testing.T) {
				p := newPerftest(t, l.soft, test, false)
				var s *stock
				p.conn, s = acceptStock(t, "10.30.0.2:18515", func() *stock { return startStock(t, append(args, "10.30.0.2")...) })
				p.measure(t, s)
			})
		}
	}
}

func newPerftest(t *testing.T, device string, test perf.Test, client bool) *perftest {
	t.Helper()
	ctx := openSoft(t, device)
	gids, err := ctx.GIDs(1)
	if err != nil {
		t.Fatal(err)
	}
	end, err := perf.NewEnd(ctx, perf.Path{GID: gids[0]}, test)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := end.Close(); err != nil {
			t.Error(err)
		}
	})
	return &perftest{client: client, end: end, test: test}
}

func (p *perftest) measure(t *testing.T, s *stock) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), stockPatience)
	defer cancel()
	if err := p.meet(4096); err != nil {
		t.Fatal(err)
	}
	r, err := p.run(ctx)
	if err != nil {
		t.Fatal(err)
	}
	out := s.wait()
	if r.Iterations > 0 {
		t.Logf("ours: %s", strings.TrimSpace(r.Row(p.test.Kind, false)))
	}
	for l := range strings.Lines(out) {
		if strings.HasPrefix(strings.TrimSpace(l), strconv.Itoa(p.test.Size)+" ") {
			t.Logf("stock: %s", strings.TrimSpace(l))
		}
	}
}
