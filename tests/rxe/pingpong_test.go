package rxe

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"testing"

	"github.com/railstore/railstore/verbs"
	"github.com/railstore/railstore/verbs/verbstest"
)

// pingpongHello is what ibv_rc_pingpong sends of itself: LID, QPN, PSN and GID in
// hex, with the zero that ends a string.
func pingpongHello(e verbs.Endpoint) []byte {
	return append(fmt.Appendf(nil, "%04x:%06x:%06x:%s", e.LID, e.QPN, e.PSN, hex.EncodeToString(e.GID[:])), 0)
}

func parsePingpong(b []byte) (e verbs.Endpoint, err error) {
	f := strings.Split(strings.TrimRight(string(b), "\x00"), ":")
	if len(f) != 4 {
		return e, fmt.Errorf("%q: want LID:QPN:PSN:GID", b)
	}
	var v [3]uint64
	for i := range v {
		if v[i], err = strconv.ParseUint(f[i], 16, 32); err != nil {
			return e, fmt.Errorf("%q: %w", b, err)
		}
	}
	gid, err := hex.DecodeString(f[3])
	if err != nil || len(gid) != 16 {
		return e, fmt.Errorf("%q: GID of %d bytes, %v", b, len(gid), err)
	}
	return verbs.Endpoint{LID: uint16(v[0]), QPN: uint32(v[1]), PSN: uint32(v[2]), GID: verbs.GID(gid)}, nil
}

func TestPingpongHello(t *testing.T) {
	e := verbs.Endpoint{LID: 0x12, QPN: 0xabcdef, PSN: 0x123456, GID: verbs.GID{0xfe, 0x80, 15: 9}}
	b := pingpongHello(e)
	if len(b) != 52 || string(b) != "0012:abcdef:123456:fe800000000000000000000000000009\x00" {
		t.Errorf("%q", b)
	}
	if got, err := parsePingpong(b); err != nil || got != e {
		t.Errorf("%+v %v", got, err)
	}
	for _, bad := range []string{"", "1:2:3", "x:2:3:00", "1:2:3:0g", "1:2:3:00"} {
		if _, err := parsePingpong([]byte(bad)); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
}

// pinger is our end of ibv_rc_pingpong: a QP that answers every message with one
// of the same bytes.
type pinger struct {
	*verbstest.Side
	size, iters int
}

// pingpongFill is what ibv_rc_pingpong fills its buffer with.
const pingpongFill = 0x7b

func newPinger(t *testing.T, ctx *verbs.Context, mtu, size, iters int) *pinger {
	t.Helper()
	const depth = 64
	p := &pinger{size: size, iters: iters, Side: &verbstest.Side{TB: t, Name: "ours", Ctx: ctx, Fix: &verbstest.Fixture{
		Size: 2 * size, Access: verbstest.All, Depth: 4 * depth,
		Cap:  verbs.QPCap{MaxSendWR: depth, MaxRecvWR: depth, MaxSendSGE: 1, MaxRecvSGE: 1},
		Path: verbs.PathOpts{MTU: mtu, RetryCount: 7, RNRRetry: 7, MaxRDAtomic: 1, MaxDestRDAtomic: 1},
	}}}
	for _, step := range []func() error{p.DefaultPD, p.DefaultCQ, p.DefaultMemory, p.DefaultQP} {
		if err := step(); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		for _, c := range []func() error{p.QP.Close, p.CQ.Close, p.MR.Close, p.Region.Close, p.PD.Close} {
			if err := c(); err != nil {
				t.Error(err)
			}
		}
	})
	return p
}

// connect goes to RTS towards the peer, with a receive waiting.
func (p *pinger) connect(remote verbs.Endpoint) error {
	remote.MTU = p.Local.MTU
	return p.QP.Connect(p.Local, remote, p.Fix.Path, nil)
}

// play sends and receives iters messages, one in each direction at a time.
func (p *pinger) play() error {
	mine, theirs := p.Bytes()[:p.size], p.Bytes()[p.size:]
	for i := range mine {
		mine[i] = pingpongFill
	}
	want := bytes.Clone(mine)
	for i := range p.iters {
		p.Send(verbs.SendWR{ID: 1, Op: verbs.OpSend, Flags: verbs.Signaled}, p.SGE(0, p.size))
		got := map[verbs.WRID]bool{}
		for _, wc := range p.Wait(2) {
			if wc.Status != verbs.WCSuccess {
				return fmt.Errorf("message %d: %w", i, p.QP.Err())
			}
			if wc.ID == 2 && int(wc.ByteLen) != p.size {
				return fmt.Errorf("message %d has %d bytes, want %d", i, wc.ByteLen, p.size)
			}
			got[wc.ID] = true
		}
		if !got[1] || !got[2] {
			return fmt.Errorf("message %d: completions %v, want a send and a receive", i, got)
		}
		if !bytes.Equal(theirs, want) {
			return fmt.Errorf("message %d holds other bytes than ibv_rc_pingpong sends", i)
		}
		clear(theirs)
		if i < p.iters-1 {
			p.Recv(2, p.SGE(p.size, p.size))
		}
	}
	return nil
}

// meet does the exchange in the role of ibv_rc_pingpong's client or server and
// plays the game.
func (p *pinger) meet(t *testing.T, conn net.Conn, client bool) {
	t.Helper()
	// Our receive is posted before the peer can send.
	var remote verbs.Endpoint
	ready := func() error {
		if err := p.connect(remote); err != nil {
			return err
		}
		p.Recv(2, p.SGE(p.size, p.size))
		return nil
	}
	mine := pingpongHello(p.Local)
	theirs := make([]byte, len(mine))
	read := func() error {
		_, err := io.ReadFull(conn, theirs)
		if err == nil {
			remote, err = parsePingpong(theirs)
		}
		return err
	}
	write := func(b []byte) func() error {
		return func() error { _, err := conn.Write(b); return err }
	}
	done := append([]byte("done"), 0)
	steps := []func() error{read, ready, write(mine), func() error { _, err := io.ReadFull(conn, done); return err }}
	if client {
		// The server connects before it answers; "done" tells it that so have we.
		steps = []func() error{write(mine), read, ready, write(done)}
	}
	for i, step := range append(steps, p.play) {
		if err := step(); err != nil {
			t.Fatalf("step %d: %v", i, err)
		}
	}
}

// TestFarPingpong runs stock ibv_rc_pingpong on the kernel's rxe against a soft
// device, as its server and as its client.
func TestFarPingpong(t *testing.T) {
	far(t)
	for _, l := range farLink {
		for _, c := range []struct{ mtu, size, iters int }{{1024, 4096, 50}, {4096, 4096, 50}, {4096, 65536, 20}, {1024, 1, 20}} {
			args := []string{"ibv_rc_pingpong", "-d", "rxe4", "-g", strconv.Itoa(l.gid), "-m", strconv.Itoa(c.mtu), "-s", strconv.Itoa(c.size), "-n", strconv.Itoa(c.iters), "-r", "50"}
			name := fmt.Sprintf("%s/mtu=%d/size=%d", l.name, c.mtu, c.size)
			t.Run(name+"/stock-serves", func(t *testing.T) {
				p := newPinger(t, openSoft(t, l.soft), c.mtu, c.size, c.iters)
				s := startStock(t, args...)
				conn := dialStock(t, s, "10.30.0.1:18515")
				p.meet(t, conn, true)
				t.Log(lastLine(s.wait()))
			})
			t.Run(name+"/stock-asks", func(t *testing.T) {
				p := newPinger(t, openSoft(t, l.soft), c.mtu, c.size, c.iters)
				conn, s := acceptStock(t, "10.30.0.2:18515", func() *stock { return startStock(t, append(args, "10.30.0.2")...) })
				p.meet(t, conn, false)
				t.Log(lastLine(s.wait()))
			})
		}
	}
}

func lastLine(s string) string {
	s = strings.TrimSpace(s)
	return s[strings.LastIndexByte(s, '\n')+1:]
}

// openSoft opens a soft device for the length of the test.
func openSoft(t *testing.T, device string) *verbs.Context {
	t.Helper()
	c, err := verbs.Open(verbstest.AtGID(newSoft(), 1), device)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}
