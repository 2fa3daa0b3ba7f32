package soft

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/railstore/railstore/verbs"
	"github.com/railstore/railstore/verbs/verbstest"
)

// bulk is the size of one transfer of the bandwidth benchmarks.
const bulk = 64 << 20

// benchPair is a pair whose memory is there.
func benchPair(b *testing.B, f verbstest.Fixture, o Options) *verbstest.Pair {
	b.Helper()
	p := f.New(b, openPair(o, "127.0.0.1", "127.0.0.2"))
	// Touch every page, so that what is measured is not the kernel's zeroing.
	for _, s := range []*verbstest.Side{p.A, p.B} {
		m := s.Bytes()
		for i := 0; i < len(m); i += 4096 {
			m[i] = byte(i >> 12)
		}
	}
	return p
}

// wait polls and soon sleeps until there is a completion.
func wait(b *testing.B, s *verbstest.Side, wcs []verbs.WC) int {
	n, err := s.CQ.PollWait(b.Context(), wcs, 100)
	if err != nil {
		b.Fatal(err)
	}
	for i := range wcs[:n] {
		if wcs[i].Status != verbs.WCSuccess {
			b.Fatal(wcs[i].Status, s.QP.Err())
		}
	}
	return n
}

func bandwidth(b *testing.B, op verbs.Opcode, size int, o Options) {
	p := benchPair(b, verbstest.Fixture{Size: bulk}, o)
	per := bulk / size
	addr, rkey := p.B.At(0)
	var wcs [16]verbs.WC
	post := func(i int) {
		if op == verbs.OpSend {
			p.B.Recv(0, p.B.SGE(i*size, size))
		}
		p.A.Send(verbs.SendWR{Op: op, RemoteAddr: addr + uint64(i*size), RKey: rkey, Flags: verbs.Signaled}, p.A.SGE(i*size, size))
	}
	b.SetBytes(bulk)
	used := cpuMeter(b)
	var l laps
	b.ResetTimer()
	l.start(b.N)
	for range b.N {
		posted, done := 0, 0
		for done < per {
			for posted < per && posted-done < 16 {
				post(posted)
				posted++
			}
			done += wait(b, p.A, wcs[:])
			if op == verbs.OpSend {
				_, _ = p.B.CQ.Poll(wcs[:])
			}
		}
		l.lap()
	}
	b.StopTimer()
	used()
	l.report(b, bulk)
	report(b, p)
}

// laps are the times of the single operations; their median does not mind that
// the machine has other things to do now and then.
type laps struct {
	last time.Time
	all  []time.Duration
}

func (l *laps) start(n int) { l.all, l.last = make([]time.Duration, 0, n), time.Now() }

func (l *laps) lap() {
	now := time.Now()
	l.all = append(l.all, now.Sub(l.last))
	l.last = now
}

func (l *laps) report(b *testing.B, bytes int) {
	slices.Sort(l.all)
	at := func(p float64) time.Duration { return l.all[int(p*float64(len(l.all)-1))] }
	if bytes > 0 {
		b.ReportMetric(float64(bytes)/at(0.5).Seconds()/1e6, "p50-MB/s")
		b.ReportMetric(float64(bytes)/at(0).Seconds()/1e6, "best-MB/s")
		return
	}
	b.ReportMetric(float64(at(0.5)), "p50-ns")
	b.ReportMetric(float64(at(0.99)), "p99-ns")
}

// cpuMeter reports what the process has used of its processors, both ends
// together: that does not depend on what else the machine has to do.
func cpuMeter(b *testing.B) func() {
	start := cpu(b)
	return func() { b.ReportMetric(float64(cpu(b)-start)/1e6/float64(b.N), "cpu-ms/op") }
}

// report adds what must be zero in a run that is worth its figure.
func report(b *testing.B, p *verbstest.Pair) {
	a, c := p.A.QP.Stats(), p.B.QP.Stats()
	b.ReportMetric(float64(a.Retransmits+c.Retransmits)/float64(b.N), "resent/op")
	drops := deviceOf(p.A.Ctx).count().RecvDrops + deviceOf(p.B.Ctx).count().RecvDrops
	b.ReportMetric(float64(drops)/float64(b.N), "drops/op")
}

func BenchmarkWrite(b *testing.B) {
	b.Run("size=64MiB", func(b *testing.B) { bandwidth(b, verbs.OpWrite, bulk, Options{}) })
	b.Run("size=256KiB", func(b *testing.B) { bandwidth(b, verbs.OpWrite, 256<<10, Options{}) })
}

func BenchmarkRead(b *testing.B) {
	b.Run("size=64MiB", func(b *testing.B) { bandwidth(b, verbs.OpRead, bulk, Options{}) })
	b.Run("size=256KiB", func(b *testing.B) { bandwidth(b, verbs.OpRead, 256<<10, Options{}) })
}

func BenchmarkSend(b *testing.B) {
	b.Run("size=256KiB", func(b *testing.B) { bandwidth(b, verbs.OpSend, 256<<10, Options{}) })
}

// BenchmarkTCP is what the bandwidth is compared with: one connection over
// loopback, 64 MiB in writes of 256 KiB, read straight into their place.
func BenchmarkTCP(b *testing.B) {
	b.Run("size=64MiB", func(b *testing.B) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			b.Fatal(err)
		}
		defer func() { _ = l.Close() }()
		src, dst := mapped(b), mapped(b)
		done := make(chan error)
		go func() {
			c, err := l.Accept()
			if err != nil {
				done <- err
				return
			}
			defer func() { _ = c.Close() }()
			for range b.N {
				_, err := io.ReadFull(c, dst)
				if err == nil {
					_, err = c.Write([]byte{1})
				}
				if err != nil {
					done <- err
					return
				}
			}
			done <- nil
		}()
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			b.Fatal(err)
		}
		defer func() { _ = c.Close() }()
		b.SetBytes(bulk)
		used := cpuMeter(b)
		b.ResetTimer()
		var ack [1]byte
		var times laps
		times.start(b.N)
		for range b.N {
			for off := 0; off < bulk; off += 256 << 10 {
				if _, err := c.Write(src[off : off+256<<10]); err != nil {
					b.Fatal(err)
				}
			}
			if _, err := io.ReadFull(c, ack[:]); err != nil {
				b.Fatal(err)
			}
			times.lap()
		}
		b.StopTimer()
		used()
		times.report(b, bulk)
		if err := <-done; err != nil {
			b.Fatal(err)
		}
	})
}

func mapped(b *testing.B) []byte {
	r, err := verbs.MapRegion(bulk)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = r.Close() })
	m := r.Bytes()
	for i := 0; i < len(m); i += 4096 {
		m[i] = byte(i >> 12)
	}
	return m
}

// BenchmarkWriteLatency bounces 64 bytes: each side spins on its memory and calls
// Progress. One operation is there and back.
func BenchmarkWriteLatency(b *testing.B) {
	b.Run("64B", func(b *testing.B) {
		p := benchPair(b, verbstest.Fixture{Size: 4096}, Options{})
		clear(p.A.Bytes())
		clear(p.B.Bytes())
		n := uint64(b.N)
		bounce := func(s, peer *verbstest.Side, i uint64) {
			addr, rkey := peer.At(1024)
			verbs.StoreWord(s.Bytes()[56:], i)
			wr := [1]verbs.SendWR{{Op: verbs.OpWrite, RemoteAddr: addr, RKey: rkey, NumSGE: 1}}
			if i%16 == 0 {
				wr[0].Flags = verbs.Signaled
			}
			sge := [1]verbs.SGE{s.SGE(0, 64)}
			if _, err := s.QP.PostSend(wr[:], sge[:]); err != nil {
				b.Error(err)
			}
			if i%16 == 0 {
				var wcs [4]verbs.WC
				_, _ = s.CQ.Poll(wcs[:])
			}
		}
		await := func(s *verbstest.Side, i uint64) {
			for verbs.LoadWord(s.Bytes()[1024+56:]) != i {
				s.Ctx.Progress()
			}
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			for i := uint64(1); i <= n; i++ {
				await(p.B, i)
				bounce(p.B, p.A, i)
			}
		}()
		var l laps
		b.ResetTimer()
		l.start(b.N)
		for i := uint64(1); i <= n; i++ {
			bounce(p.A, p.B, i)
			await(p.A, i)
			l.lap()
		}
		b.StopTimer()
		<-done
		l.report(b, 0)
		report(b, p)
	})
}

// BenchmarkUDPPingPong is what the latency is compared with: two plain sockets,
// both polled without pause.
func BenchmarkUDPPingPong(b *testing.B) {
	b.Run("64B", func(b *testing.B) {
		open := func(addr string) (int, unix.Sockaddr) {
			fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				b.Fatal(err)
			}
			b.Cleanup(func() { _ = unix.Close(fd) })
			if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: netip.MustParseAddr(addr).As4()}); err != nil {
				b.Fatal(err)
			}
			sa, err := unix.Getsockname(fd)
			if err != nil {
				b.Fatal(err)
			}
			return fd, sa
		}
		fa, sa := open("127.0.0.1")
		fb, sb := open("127.0.0.2")
		if unix.Connect(fa, sb) != nil || unix.Connect(fb, sa) != nil {
			b.Fatal("connect")
		}
		recv := func(fd int, buf []byte) {
			for {
				if n, err := unix.Read(fd, buf); n > 0 || err != unix.EAGAIN {
					return
				}
			}
		}
		n := b.N
		done := make(chan struct{})
		go func() {
			defer close(done)
			buf := make([]byte, 128)
			for range n {
				recv(fb, buf)
				_, _ = unix.Write(fb, buf[:64])
			}
		}()
		buf := make([]byte, 128)
		var l laps
		b.ResetTimer()
		l.start(n)
		for range n {
			_, _ = unix.Write(fa, buf[:64])
			recv(fa, buf)
			l.lap()
		}
		b.StopTimer()
		<-done
		l.report(b, 0)
	})
}

// BenchmarkSendBlocking bounces 64 bytes between two that sleep until a
// completion comes, as servers without work do.
func BenchmarkSendBlocking(b *testing.B) {
	b.Run("64B", func(b *testing.B) {
		p := benchPair(b, verbstest.Fixture{Size: 4096}, Options{})
		n := b.N
		take := func(s *verbstest.Side) error {
			var wcs [4]verbs.WC
			for {
				k, err := s.CQ.PollWait(b.Context(), wcs[:], 0)
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
		send := func(s *verbstest.Side, i int) error {
			wr := [1]verbs.SendWR{{Op: verbs.OpSend, NumSGE: 1}}
			if i%16 == 0 {
				wr[0].Flags = verbs.Signaled
			}
			rwr := [1]verbs.RecvWR{{NumSGE: 1}}
			rsge, sge := [1]verbs.SGE{s.SGE(1024, 64)}, [1]verbs.SGE{s.SGE(0, 64)}
			if _, err := s.QP.PostRecv(rwr[:], rsge[:]); err != nil {
				return err
			}
			_, err := s.QP.PostSend(wr[:], sge[:])
			return err
		}
		p.B.Recv(0, p.B.SGE(1024, 64))
		done := make(chan error)
		go func() {
			for i := range n {
				if err := errors.Join(take(p.B), send(p.B, i)); err != nil {
					done <- err
					return
				}
			}
			done <- nil
		}()
		var l laps
		b.ResetTimer()
		l.start(n)
		for i := range n {
			if err := errors.Join(send(p.A, i), take(p.A)); err != nil {
				b.Fatal(err)
			}
			l.lap()
		}
		b.StopTimer()
		if err := <-done; err != nil {
			b.Fatal(err)
		}
		l.report(b, 0)
		report(b, p)
	})
}

// BenchmarkUDPBlocking is what that is compared with: sockets of package net.
func BenchmarkUDPBlocking(b *testing.B) {
	b.Run("64B", func(b *testing.B) {
		open := func(ip string) *net.UDPConn {
			c, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.ParseIP(ip)})
			if err != nil {
				b.Fatal(err)
			}
			return c
		}
		ca, cb := open("127.0.0.1"), open("127.0.0.2")
		defer func() { _, _ = ca.Close(), cb.Close() }()
		aa, ab := ca.LocalAddr().(*net.UDPAddr).AddrPort(), cb.LocalAddr().(*net.UDPAddr).AddrPort()
		n := b.N
		done := make(chan struct{})
		go func() {
			defer close(done)
			buf := make([]byte, 128)
			for range n {
				_, _, _ = cb.ReadFromUDPAddrPort(buf)
				_, _ = cb.WriteToUDPAddrPort(buf[:64], aa)
			}
		}()
		buf := make([]byte, 128)
		var l laps
		b.ResetTimer()
		l.start(n)
		for range n {
			_, _ = ca.WriteToUDPAddrPort(buf[:64], ab)
			_, _, _ = ca.ReadFromUDPAddrPort(buf)
			l.lap()
		}
		b.StopTimer()
		<-done
		l.report(b, 0)
	})
}

// BenchmarkMessageRate posts WRITEs of 64 bytes in batches of 32: as it is, and with
// a fault script that has only begun to wait.
func BenchmarkMessageRate(b *testing.B) {
	b.Run("64B", messageRate(Options{}))
	b.Run("64B_faults_waiting", messageRate(Options{Faults: []Fault{{Do: "drop", At: FaultAt{Time: time.Hour}}}}))
}

func messageRate(o Options) func(b *testing.B) {
	return func(b *testing.B) {
		const batch = 32
		p := benchPair(b, verbstest.Fixture{Size: 4096, Cap: verbs.QPCap{MaxSendWR: 8 * batch, MaxSendSGE: 1}}, o)
		addr, rkey := p.B.At(0)
		var wrs [batch]verbs.SendWR
		var sges [batch]verbs.SGE
		for i := range wrs {
			wrs[i] = verbs.SendWR{Op: verbs.OpWrite, RemoteAddr: addr + uint64(i)*64, RKey: rkey, NumSGE: 1}
			sges[i] = p.A.SGE(i*64, 64)
		}
		wrs[batch-1].Flags = verbs.Signaled
		var wcs [8]verbs.WC
		used := cpuMeter(b)
		b.ResetTimer()
		posted, done := 0, 0
		for done*batch < b.N {
			for posted*batch < b.N && posted-done < 8 {
				if _, err := p.A.QP.PostSend(wrs[:], sges[:]); err != nil {
					b.Fatal(err)
				}
				posted++
			}
			done += wait(b, p.A, wcs[:])
		}
		b.StopTimer()
		used()
		report(b, p)
	}
}
