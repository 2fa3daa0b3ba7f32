package soft

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/railstore/railstore/verbs"
)

// end is one end of a connection whose other end is in another process.
type end struct {
	ctx    *verbs.Context
	pd     *verbs.PD
	cq     *verbs.CQ
	region *verbs.Region
	mr     *verbs.MR
	qp     *verbs.QP
	hello  hello
}

// hello is what the two processes tell each other.
type hello struct {
	Endpoint verbs.Endpoint
	Region   verbs.RemoteRegion
}

const allRights = verbs.LocalWrite | verbs.RemoteWrite | verbs.RemoteRead | verbs.RemoteAtomic

func openEnd(addr string, size int, o Options) (e *end, err error) {
	e = &end{}
	defer func() {
		if err != nil {
			err = errors.Join(err, e.close())
		}
	}()
	if e.ctx, err = openContext(o, addr); err != nil {
		return e, err
	}
	if e.pd, err = e.ctx.AllocPD(); err != nil {
		return e, err
	}
	if e.cq, err = e.ctx.CreateCQ(512); err != nil {
		return e, err
	}
	if e.region, err = verbs.MapRegion(size); err != nil {
		return e, err
	}
	if e.mr, err = e.pd.Register(e.region, allRights); err != nil {
		return e, err
	}
	e.qp, err = e.pd.CreateQP(verbs.QPInit{SendCQ: e.cq, RecvCQ: e.cq, Cap: verbs.QPCap{MaxSendWR: 128, MaxRecvWR: 128, MaxSendSGE: 4, MaxRecvSGE: 4}})
	if err != nil {
		return e, err
	}
	port, err := e.ctx.Port(1)
	if err != nil {
		return e, err
	}
	e.hello = hello{Region: e.mr.Remote(), Endpoint: verbs.Endpoint{GID: verbs.GIDFromAddr(netip.MustParseAddr(addr)),
		GIDType: verbs.GIDTypeRoCEv2, QPN: e.qp.QPN(), PSN: 77, MTU: port.ActiveMTU, UDPPort: port.UDPPort}}
	return e, nil
}

func (e *end) connect(peer hello, o verbs.PathOpts) error {
	o.SGIDIndex, o.Access = 1, allRights
	return e.qp.Connect(e.hello.Endpoint, peer.Endpoint, o, nil)
}

func (e *end) close() error {
	var errs []error
	if e.qp != nil {
		errs = append(errs, e.qp.Close())
	}
	if e.mr != nil {
		errs = append(errs, e.mr.Close())
	}
	if e.region != nil {
		errs = append(errs, e.region.Close())
	}
	if e.cq != nil {
		errs = append(errs, e.cq.Close())
	}
	if e.pd != nil {
		errs = append(errs, e.pd.Close())
	}
	if e.ctx != nil {
		errs = append(errs, e.ctx.Close())
	}
	return errors.Join(errs...)
}

const childEnv = "RS_SOFT_TEST_CHILD"

// childMain is the other process: it opens a device, tells its hello, takes the
// parent's, and then does what the parent's lines say until there are no more.
func childMain(addr string) error {
	if addr == "net" {
		return netEcho()
	}
	e, err := openEnd(addr, 64<<20, Options{})
	if err != nil {
		return err
	}
	in, out := bufio.NewScanner(os.Stdin), json.NewEncoder(os.Stdout)
	if err := out.Encode(e.hello); err != nil {
		return err
	}
	var peer hello
	if !in.Scan() {
		return errors.New("the parent said nothing")
	}
	if err := json.Unmarshal(in.Bytes(), &peer); err != nil {
		return err
	}
	if err := e.connect(peer, verbs.PathOpts{RetryCount: 7, RNRRetry: 7, Timeout: 18}); err != nil {
		return err
	}
	if err := out.Encode("ready"); err != nil {
		return err
	}
	for in.Scan() {
		var n uint64
		switch word, _, _ := strings.Cut(in.Text(), " "); word {
		case "bounce": // answer n times, spinning on memory
			if _, err := fmt.Sscanf(in.Text(), "bounce %d", &n); err != nil {
				return err
			}
			for i := uint64(1); i <= n; i++ {
				if err := e.bounce(peer, i, true); err != nil {
					return err
				}
			}
		case "echo": // answer n messages, sleeping in between
			if _, err := fmt.Sscanf(in.Text(), "echo %d", &n); err != nil {
				return err
			}
			if err := e.recv(); err != nil {
				return err
			}
			if err := out.Encode(n); err != nil {
				return err
			}
			for i := range n {
				if err := errors.Join(e.take(), e.recv(), e.send(i)); err != nil {
					return err
				}
			}
		case "sum": // what is in the memory
			n = sum(e.region.Bytes())
		case "write": // the whole memory, over and over, until the process ends
			for {
				if err := e.write(peer.Region, len(e.region.Bytes()), 1); err != nil {
					return err
				}
			}
		default:
			return fmt.Errorf("command %q", in.Text())
		}
		if err := out.Encode(n); err != nil {
			return err
		}
	}
	return errors.Join(in.Err(), e.close())
}

// bounce waits for number i in memory and sends it back, or the reverse.
func (e *end) bounce(peer hello, i uint64, waitFirst bool) error {
	m := e.region.Bytes()
	wait := func() {
		for verbs.LoadWord(m[1024+56:]) != i {
			e.ctx.Progress()
		}
	}
	if waitFirst {
		wait()
	}
	verbs.StoreWord(m[56:], i)
	wr := [1]verbs.SendWR{{Op: verbs.OpWrite, RemoteAddr: peer.Region.Addr + 1024, RKey: peer.Region.RKey, NumSGE: 1}}
	if i%16 == 0 {
		wr[0].Flags = verbs.Signaled
	}
	sge := [1]verbs.SGE{e.mr.SGE(0, 64)}
	if _, err := e.qp.PostSend(wr[:], sge[:]); err != nil {
		return err
	}
	if i%16 == 0 {
		var wcs [4]verbs.WC
		if _, err := e.cq.Poll(wcs[:]); err != nil {
			return err
		}
	}
	if !waitFirst {
		wait()
	}
	return nil
}

// recv, send and take bounce small messages between two that sleep.
func (e *end) recv() error {
	_, err := e.qp.PostRecv([]verbs.RecvWR{{NumSGE: 1}}, []verbs.SGE{e.mr.SGE(1024, 64)})
	return err
}

func (e *end) send(i uint64) error {
	wr := []verbs.SendWR{{Op: verbs.OpSend, NumSGE: 1}}
	if i%16 == 0 {
		wr[0].Flags = verbs.Signaled
	}
	_, err := e.qp.PostSend(wr, []verbs.SGE{e.mr.SGE(0, 64)})
	return err
}

func (e *end) take() error {
	var wcs [4]verbs.WC
	for {
		k, err := e.cq.PollWait(context.Background(), wcs[:], 0)
		if err != nil {
			return err
		}
		for i := range wcs[:k] {
			if wcs[i].Status != verbs.WCSuccess {
				return wcs[i].Status
			}
			if wcs[i].Op == verbs.WCRecv {
				return nil
			}
		}
	}
}

// write sends n bytes count times and spins for the completions.
func (e *end) write(to verbs.RemoteRegion, n, count int) error {
	return e.transfer(verbs.OpWrite, to, n, count)
}

func (e *end) transfer(op verbs.Opcode, with verbs.RemoteRegion, n, count int) error {
	wr := [1]verbs.SendWR{{Op: op, RemoteAddr: with.Addr, RKey: with.RKey, NumSGE: 1, Flags: verbs.Signaled}}
	sge := [1]verbs.SGE{e.mr.SGE(0, uint64(n))}
	var wcs [8]verbs.WC
	for posted, done := 0, 0; done < count; {
		for posted < count && posted-done < 4 {
			if _, err := e.qp.PostSend(wr[:], sge[:]); err != nil {
				return err
			}
			posted++
		}
		k, err := e.cq.Poll(wcs[:])
		if err != nil {
			return err
		}
		for i := range wcs[:k] {
			if wcs[i].Status != verbs.WCSuccess {
				return wcs[i].Status
			}
		}
		done += k
	}
	return nil
}

func sum(b []byte) (s uint64) {
	for i := 0; i+8 <= len(b); i += 8 {
		s = s*31 + verbs.LoadWord(b[i:])
	}
	return s
}

// child is the parent's view of the other process.
type child struct {
	tb    testing.TB
	cmd   *exec.Cmd
	in    io.WriteCloser
	out   *json.Decoder
	hello hello
}

// startChild starts the other process; connect must follow.
func startChild(tb testing.TB, addr string) *child {
	tb.Helper()
	c := &child{tb: tb, cmd: exec.Command(os.Args[0])}
	c.cmd.Env = append(os.Environ(), childEnv+"="+addr)
	c.cmd.Stderr = os.Stderr
	var err error
	if c.in, err = c.cmd.StdinPipe(); err != nil {
		tb.Fatal(err)
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		tb.Fatal(err)
	}
	if err := c.cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	c.out = json.NewDecoder(out)
	c.read(&c.hello)
	return c
}

func (c *child) read(v any) {
	c.tb.Helper()
	if err := c.out.Decode(v); err != nil {
		c.tb.Fatalf("the other process: %v", err)
	}
}

func (c *child) connect(e *end, o verbs.PathOpts) {
	c.tb.Helper()
	if err := e.connect(c.hello, o); err != nil {
		c.tb.Fatal(err)
	}
	if err := json.NewEncoder(c.in).Encode(e.hello); err != nil {
		c.tb.Fatal(err)
	}
	var ready string
	c.read(&ready)
}

func (c *child) say(format string, args ...any) {
	c.tb.Helper()
	if _, err := fmt.Fprintf(c.in, format+"\n", args...); err != nil {
		c.tb.Fatal(err)
	}
}

func (c *child) number() (n uint64) {
	c.tb.Helper()
	c.read(&n)
	return n
}

// stop lets the process end in order.
func (c *child) stop() {
	c.tb.Helper()
	_ = c.in.Close()
	if err := c.cmd.Wait(); err != nil {
		c.tb.Errorf("the other process: %v", err)
	}
}

// kill ends it as a crash would.
func (c *child) kill() {
	_ = c.cmd.Process.Kill()
	_ = c.cmd.Wait()
	_ = c.in.Close()
}

func mustEnd(tb testing.TB, addr string, size int, o Options) *end {
	tb.Helper()
	e, err := openEnd(addr, size, o)
	if err != nil {
		tb.Fatal(err)
	}
	return e
}

func TestTwoProcesses(t *testing.T) {
	for _, addrs := range [][2]string{{"127.0.0.1", "127.0.0.2"}, {"::1", "::1"}} {
		t.Run(addrs[0], func(t *testing.T) {
			if strings.Contains(addrs[0], ":") {
				needIPv6(t)
			}
			e := mustEnd(t, addrs[0], 64<<20, Options{})
			c := startChild(t, addrs[1])
			c.connect(e, verbs.PathOpts{RetryCount: 7, RNRRetry: 7, Timeout: 18})
			m := e.region.Bytes()
			for i := range m {
				m[i] = byte(i*7 + i>>11)
			}
			const size = 64<<20 - 8 // the last word stays 0 at the peer
			if err := e.write(c.hello.Region, size, 1); err != nil {
				t.Fatal(err)
			}
			clear(m[size:])
			want := sum(m)
			c.say("sum")
			if got := c.number(); got != want {
				t.Errorf("after a WRITE of %d bytes the peer's sum is %#x, want %#x", size, got, want)
			}
			clear(m)
			if err := e.transfer(verbs.OpRead, c.hello.Region, size, 1); err != nil {
				t.Fatal(err)
			}
			if got := sum(m); got != want {
				t.Errorf("after a READ of %d bytes the sum is %#x, want %#x", size, got, want)
			}
			// Atomics, one after the other, on a word of the peer.
			var wcs [1]verbs.WC
			for i := range uint64(20) {
				wr := verbs.SendWR{Op: verbs.OpFAA, RemoteAddr: c.hello.Region.Addr + size, RKey: c.hello.Region.RKey, CompareAdd: 3, NumSGE: 1, Flags: verbs.Signaled}
				want := 3 * i
				if i >= 10 { // then swapped back
					wr.Op, wr.CompareAdd, wr.Swap, want = verbs.OpCAS, 30-3*(i-10), 27-3*(i-10), 30-3*(i-10)
				}
				if _, err := e.qp.PostSend([]verbs.SendWR{wr}, []verbs.SGE{e.mr.SGE(4096, 8)}); err != nil {
					t.Fatal(err)
				}
				if _, err := e.cq.PollWait(t.Context(), wcs[:], 0); err != nil || wcs[0].Status != verbs.WCSuccess {
					t.Fatalf("%v: %v, %v", wr.Op, err, wcs[0].Status)
				}
				if got := verbs.LoadWord(m[4096:]); got != want {
					t.Errorf("%v %d brings %d, want %d", wr.Op, i, got, want)
				}
			}
			clear(m[:4096])
			c.say("echo 50")
			c.number()
			for i := range uint64(50) {
				if err := errors.Join(e.recv(), e.send(i), e.take()); err != nil {
					t.Fatal(err)
				}
			}
			c.number()
			clear(m[:4096])
			c.say("bounce 200")
			for i := uint64(1); i <= 200; i++ {
				if err := e.bounce(c.hello, i, false); err != nil {
					t.Fatal(err)
				}
			}
			c.number()
			c.stop()
			if err := e.close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestPeerKilled: the other process dies while it is written to and read from; what
// is outstanding completes with the first cause and flushes.
func TestPeerKilled(t *testing.T) {
	e := mustEnd(t, "127.0.0.1", 64<<20, Options{})
	c := startChild(t, "127.0.0.2")
	c.connect(e, verbs.PathOpts{RetryCount: 3, RNRRetry: 7, Timeout: 15})
	wr := []verbs.SendWR{{ID: 1, Op: verbs.OpWrite}, {ID: 2, Op: verbs.OpRead}, {ID: 3, Op: verbs.OpWrite}}
	var sges []verbs.SGE
	for i := range wr {
		wr[i].RemoteAddr, wr[i].RKey, wr[i].NumSGE, wr[i].Flags = c.hello.Region.Addr, c.hello.Region.RKey, 1, verbs.Signaled
		sges = append(sges, e.mr.SGE(0, 64<<20))
	}
	if err := e.write(c.hello.Region, 64<<20, 1); err != nil {
		t.Fatal(err)
	}
	c.kill()
	if _, err := e.qp.PostSend(wr, sges); err != nil {
		t.Fatal(err)
	}
	want := []verbs.WCStatus{verbs.WCRetryExceeded, verbs.WCFlush, verbs.WCFlush}
	var wcs [8]verbs.WC
	for got := 0; got < len(want); {
		n, err := e.cq.Poll(wcs[:])
		if err != nil {
			t.Fatal(err)
		}
		for _, w := range wcs[:n] {
			if w.Status != want[got] || w.ID != wr[got].ID {
				t.Errorf("completion %d is %d with %v, want %d with %v", got, w.ID, w.Status, wr[got].ID, want[got])
			}
			got++
		}
	}
	if !errors.Is(e.qp.Err(), verbs.WCRetryExceeded) {
		t.Errorf("the first cause is %v", e.qp.Err())
	}
	if err := e.close(); err != nil {
		t.Error(err)
	}
}

// TestKilledWriter: the other process dies while it writes here. This end can
// close at once, and its memory keeps still.
func TestKilledWriter(t *testing.T) {
	e := mustEnd(t, "127.0.0.1", 64<<20, Options{})
	c := startChild(t, "127.0.0.2")
	c.connect(e, verbs.PathOpts{RetryCount: 7, RNRRetry: 7, Timeout: 18})
	m := e.region.Bytes()
	for i := range m {
		m[i] = 0xA5
	}
	c.say("write")
	for verbs.LoadWord(m) == 0xA5A5A5A5A5A5A5A5 {
		e.ctx.Progress()
	}
	before := e.unknown()
	if err := e.qp.Close(); err != nil {
		t.Fatal(err)
	}
	if err := e.mr.Close(); err != nil {
		t.Fatal(err)
	}
	for i := range m {
		m[i] = 0x5A
	}
	// The writer keeps sending until it is killed; its packets find no QP.
	until(t, "packets for the closed QP", func() bool { return e.unknown() >= before+4 })
	c.kill()
	for i := range m {
		if m[i] != 0x5A {
			t.Fatalf("byte %d was written after the QP and the MR were closed", i)
		}
	}
	if err := e.close(); err != nil {
		t.Error(err)
	}
}

func (e *end) unknown() uint64 { return deviceOf(e.ctx).count().UnknownQP }

// BenchmarkTwoProcesses is bandwidth and latency with the peer in another process.
func BenchmarkTwoProcesses(b *testing.B) {
	run := func(name string, bytes int64, f func(b *testing.B, e *end, c *child)) {
		b.Run(name, func(b *testing.B) {
			e := mustEnd(b, "127.0.0.1", 64<<20, Options{})
			c := startChild(b, "127.0.0.2")
			c.connect(e, verbs.PathOpts{RetryCount: 7, RNRRetry: 7, Timeout: 18})
			m := e.region.Bytes()
			for i := 0; i < len(m); i += 4096 {
				m[i] = 1
			}
			// The peer's pages, too.
			if err := e.write(c.hello.Region, 64<<20, 1); err != nil {
				b.Fatal(err)
			}
			b.SetBytes(bytes)
			b.ResetTimer()
			f(b, e, c)
			b.StopTimer()
			b.ReportMetric(float64(e.qp.Stats().Retransmits)/float64(b.N), "resent/op")
			c.stop()
			if err := e.close(); err != nil {
				b.Error(err)
			}
		})
	}
	run("write/size=64MiB", 64<<20, func(b *testing.B, e *end, c *child) {
		if err := e.transfer(verbs.OpWrite, c.hello.Region, 64<<20, b.N); err != nil {
			b.Fatal(err)
		}
	})
	run("read/size=64MiB", 64<<20, func(b *testing.B, e *end, c *child) {
		if err := e.transfer(verbs.OpRead, c.hello.Region, 64<<20, b.N); err != nil {
			b.Fatal(err)
		}
	})
	run("bounce/64B", 0, func(b *testing.B, e *end, c *child) {
		clear(e.region.Bytes()[:4096])
		if err := e.write(c.hello.Region, 4096, 1); err != nil {
			b.Fatal(err)
		}
		c.say("bounce %d", b.N)
		var l laps
		l.start(b.N)
		for i := uint64(1); i <= uint64(b.N); i++ {
			if err := e.bounce(c.hello, i, false); err != nil {
				b.Fatal(err)
			}
			l.lap()
		}
		l.report(b, 0)
		c.number()
	})
	run("echo/64B", 0, func(b *testing.B, e *end, c *child) {
		c.say("echo %d", b.N)
		c.number()
		var l laps
		b.ResetTimer()
		l.start(b.N)
		for i := range uint64(b.N) {
			if err := errors.Join(e.recv(), e.send(i), e.take()); err != nil {
				b.Fatal(err)
			}
			l.lap()
		}
		l.report(b, 0)
		c.number()
	})
	// What echo is compared with: sockets of package net, the other in a process.
	b.Run("net/64B", func(b *testing.B) {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), childEnv+"=net")
		out, err := cmd.StdoutPipe()
		if err != nil {
			b.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			b.Fatal(err)
		}
		defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
		var addr string
		if err := json.NewDecoder(out).Decode(&addr); err != nil {
			b.Fatal(err)
		}
		c, err := net.Dial("udp4", addr)
		if err != nil {
			b.Fatal(err)
		}
		defer func() { _ = c.Close() }()
		buf := make([]byte, 128)
		var l laps
		b.ResetTimer()
		l.start(b.N)
		for range b.N {
			if _, err := c.Write(buf[:64]); err != nil {
				b.Fatal(err)
			}
			if _, err := c.Read(buf); err != nil {
				b.Fatal(err)
			}
			l.lap()
		}
		l.report(b, 0)
	})
}

// netEcho is the other process of that.
func netEcho() error {
	c, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 2)})
	if err != nil {
		return err
	}
	if err := json.NewEncoder(os.Stdout).Encode(c.LocalAddr().String()); err != nil {
		return err
	}
	buf := make([]byte, 128)
	for {
		n, from, err := c.ReadFromUDPAddrPort(buf)
		if err != nil {
			return err
		}
		if _, err := c.WriteToUDPAddrPort(buf[:n], from); err != nil {
			return err
		}
	}
}
