package rc

import (
	"fmt"
	"testing"

	"github.com/railstore/railstore/verbs"
	"github.com/railstore/railstore/verbs/soft/internal/wire"
)

// flow is a pair without a net: packets go over as decoded values, as they would from
// an engine whose buffers hold headers and payload together.
type flow struct {
	*world
	packet wire.Packet
	buf    []byte
	copy   bool // gather payload as a socket would
}

func newFlow(mtu int, depth int) *flow {
	q := attrs()
	q.PathMTU, q.MaxRDAtomic, q.MaxDestRDAtomic, q.Timeout = mtu, 16, 16, 14
	cfg := Config{Cap: verbs.QPCap{MaxSendWR: depth, MaxRecvWR: depth, MaxSendSGE: 4, MaxRecvSGE: 4}}
	f := &flow{world: pair(q, q, cfg, cfg), buf: make([]byte, 8192)}
	f.a.out, f.b.out = NewOutput(64), NewOutput(64)
	return f
}

// pass pumps from and lets the other end step; it reports whether any packet went.
func (f *flow) pass(from *node) bool {
	f.now += 1000
	from.conn.Pump(f.now, from.out)
	n := len(from.out.Packets)
	to := from.peer
	for i := range from.out.Packets {
		p := &from.out.Packets[i]
		h := copy(f.buf, p.Header())
		k := &f.packet
		if f.copy || len(p.Frags) > 1 {
			at := h
			for _, fr := range p.Frags {
				at += copy(f.buf[at:], fr)
			}
			_ = k.Parse(f.buf[:at+int(p.Pad)+wire.ICRCLen])
		} else {
			// Headers alone, then the payload where it lies.
			f.buf[1] &^= 0x30
			_ = k.Parse(f.buf[:h+wire.ICRCLen])
			k.Pad = p.Pad
			k.Payload = nil
			if len(p.Frags) == 1 {
				k.Payload = p.Frags[0]
			}
		}
		to.conn.Step(f.now, k, to.out)
	}
	from.out.Reset()
	return n > 0
}

// settle passes packets both ways until none is left; it returns completions seen.
func (f *flow) settle() (done int) {
	for {
		x := f.pass(f.a)
		done += len(f.b.out.Done)
		f.b.out.Done = f.b.out.Done[:0]
		y := f.pass(f.b)
		done += len(f.a.out.Done)
		f.a.out.Done = f.a.out.Done[:0]
		if !x && !y {
			return done
		}
	}
}

func benchmark(b *testing.B, op verbs.Opcode, size, depth int) {
	const mtu = 4096
	f := newFlow(mtu, depth)
	src, dst := region(b, size), region(b, size)
	lk, _ := f.a.mem.add(src, allAccess)
	_, rk := f.b.mem.add(dst, allAccess)
	rlk, _ := f.b.mem.add(dst, allAccess)
	wrs := make([]verbs.SendWR, depth)
	sges := make([]verbs.SGE, depth)
	recvs := make([]verbs.RecvWR, depth)
	rsges := make([]verbs.SGE, depth)
	for i := range wrs {
		wrs[i] = verbs.SendWR{ID: 1, Op: op, NumSGE: 1, RemoteAddr: verbs.AddrOf(dst), RKey: rk}
		sges[i] = verbs.SGE{Addr: verbs.AddrOf(src), Length: uint32(size), LKey: lk}
		recvs[i] = verbs.RecvWR{NumSGE: 1}
		rsges[i] = verbs.SGE{Addr: verbs.AddrOf(dst), Length: uint32(size), LKey: rlk}
	}
	wrs[depth-1].Flags = verbs.Signaled
	packets := depth * max((size+mtu-1)/mtu, 1)
	b.SetBytes(int64(size * depth))
	b.ReportAllocs()
	for b.Loop() {
		if op == verbs.OpSend {
			if n, err := f.b.conn.PostRecv(recvs, rsges); n != depth {
				b.Fatal(err)
			}
		}
		if n, err := f.a.conn.PostSend(wrs, sges); n != depth {
			b.Fatal(err)
		}
		want := 1
		if op == verbs.OpSend {
			want += depth
		}
		if n := f.settle(); n != want {
			b.Fatalf("%d completions, want %d; %v", n, want, f.a.conn.State())
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*packets), "ns/packet")
}

func BenchmarkMessages(b *testing.B) {
	for _, c := range []struct {
		op    verbs.Opcode
		size  int
		depth int
	}{
		{verbs.OpWrite, 0, 32},
		{verbs.OpWrite, 64, 32},
		{verbs.OpWrite, 4096, 32},
		{verbs.OpWrite, 1 << 20, 1},
		{verbs.OpRead, 64, 16},
		{verbs.OpRead, 4096, 16},
		{verbs.OpRead, 1 << 20, 1},
		{verbs.OpSend, 64, 32},
		{verbs.OpSend, 4096, 32},
	} {
		b.Run(fmt.Sprintf("%v/size=%d", c.op, c.size), func(b *testing.B) { benchmark(b, c.op, c.size, c.depth) })
	}
}
