package verbstest

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/railstore/railstore/verbs"
)

var dataCases = []namedCase{
	{"sizes", caseSizes},
	{"gather_scatter", caseGatherScatter},
	{"recv_scatter", caseRecvScatter},
	{"atomics", caseAtomics},
	{"atomics_concurrent", caseAtomicsConcurrent},
	{"word_after_payload", caseWordAfterPayload},
	{"fence", caseFence},
	{"mtus", caseMTUs},
	{"keys_differ", caseKeysDiffer},
}

// sizesFor are the lengths at which implementations go wrong.
func sizesFor(mtu, large int) []int {
	return []int{0, 1, 3, 7, 8, 9, mtu - 1, mtu, mtu + 1, 2*mtu - 1, 2 * mtu, 2*mtu + 1, 5*mtu + 3, large}
}

func caseSizes(t *testing.T, open Open) {
	const large = 1 << 20
	p := Fixture{Size: 2*large + 4096}.New(t, open)
	r := Seed(t)
	mtu := Fixture{}.Path.PathMTU(p.A.Local, p.B.Local)
	for _, op := range []verbs.Opcode{verbs.OpSend, verbs.OpSendImm, verbs.OpWrite, verbs.OpWriteImm, verbs.OpRead} {
		t.Run(op.String(), func(t *testing.T) {
			for _, n := range sizesFor(mtu, large) {
				// An odd place at both ends, with a guard on either side.
				src, dst := 64+r.IntN(63), 64+r.IntN(63)
				from, to := p.A, p.B
				if op == verbs.OpRead {
					from, to = p.B, p.A
				}
				Fill(r, from.Bytes()[:n+256])
				clear(to.Bytes()[:n+256])
				wr := verbs.SendWR{ID: 7, Op: op, Flags: verbs.Signaled, Imm: 0xa1b2c3d4}
				local := p.A.SGE(src, n)
				switch op {
				case verbs.OpSend, verbs.OpSendImm:
					p.B.Recv(9, p.B.SGE(dst, n+1))
				case verbs.OpWriteImm:
					p.B.Recv(9)
					wr.RemoteAddr, wr.RKey = p.B.At(dst)
				case verbs.OpWrite:
					wr.RemoteAddr, wr.RKey = p.B.At(dst)
				case verbs.OpRead:
					wr.RemoteAddr, wr.RKey = p.B.At(src)
					local = p.A.SGE(dst, n)
				}
				p.A.Send(wr, local)
				wc := p.A.OK(7)
				if want := sendOpcode(op); wc.Op != want {
					t.Fatalf("%d bytes: completion of %v: want %v", n, wc.Op, want)
				}
				if op == verbs.OpRead && wc.ByteLen != uint32(n) {
					t.Fatalf("%d bytes: READ completed with %d", n, wc.ByteLen)
				}
				if op != verbs.OpWrite && op != verbs.OpRead {
					checkRecv(t, p.B.OK(9), op, n)
				}
				got, want := to.Bytes()[dst:dst+n], from.Bytes()[src:src+n]
				if !bytes.Equal(got, want) {
					t.Fatalf("%d bytes: differ from byte %d on", n, firstDiff(got, want))
				}
				if !allZero(to.Bytes()[:dst]) || !allZero(to.Bytes()[dst+n:dst+n+64]) {
					t.Fatalf("%d bytes: memory beside the target was touched", n)
				}
			}
		})
	}
}

func checkRecv(t *testing.T, wc verbs.WC, op verbs.Opcode, n int) {
	t.Helper()
	want := verbs.WC{ID: wc.ID, QPN: wc.QPN, VendorErr: wc.VendorErr, ByteLen: uint32(n), Op: verbs.WCRecv}
	if op == verbs.OpWriteImm {
		want.Op = verbs.WCRecvWImm
	}
	if op == verbs.OpWriteImm || op == verbs.OpSendImm {
		want.Imm, want.Flags = 0xa1b2c3d4, verbs.WCWithImm
	} else {
		wc.Imm = 0
	}
	if wc != want {
		t.Fatalf("receive completion %+v: want %+v", wc, want)
	}
}

func firstDiff(a, b []byte) int {
	for i := range a {
		if a[i] != b[i] {
			return i
		}
	}
	return len(a)
}

func allZero(b []byte) bool {
	for _, v := range b {
		if v != 0 {
			return false
		}
	}
	return true
}

func caseGatherScatter(t *testing.T, open Open) {
	p := Fixture{}.New(t, open)
	r := Seed(t)
	for round := range 40 {
		Fill(r, p.A.Bytes())
		Fill(r, p.B.Bytes())
		var sges []verbs.SGE
		var at []int
		total := 0
		off := r.IntN(100)
		for range p.A.Fix.Cap.MaxSendSGE {
			n := r.IntN(3000) * r.IntN(2) // some are empty
			sges, at = append(sges, p.A.SGE(off, n)), append(at, off)
			off += n + r.IntN(64)
			total += n
		}
		gathered := func() (out []byte) {
			for i, s := range sges {
				out = append(out, p.A.Bytes()[at[i]:at[i]+int(s.Length)]...)
			}
			return out
		}
		addr, rkey := p.B.At(128)
		if round%2 == 0 {
			p.A.Send(verbs.SendWR{ID: 1, Op: verbs.OpWrite, RemoteAddr: addr, RKey: rkey, Flags: verbs.Signaled}, sges...)
		} else {
			p.A.Send(verbs.SendWR{ID: 1, Op: verbs.OpRead, RemoteAddr: addr, RKey: rkey, Flags: verbs.Signaled}, sges...)
		}
		p.A.OK(1)
		if got, want := p.B.Bytes()[128:128+total], gathered(); !bytes.Equal(got, want) {
			t.Fatalf("round %d: %d bytes in %d elements differ from byte %d on", round, total, len(sges), firstDiff(got, want))
		}
	}
	// No element at all is a message of 0 bytes.
	addr, rkey := p.B.At(0)
	p.A.Send(verbs.SendWR{ID: 2, Op: verbs.OpWrite, RemoteAddr: addr, RKey: rkey, Flags: verbs.Signaled})
	p.A.OK(2)
}

func caseRecvScatter(t *testing.T, open Open) {
	p := Fixture{}.New(t, open)
	r := Seed(t)
	for _, n := range []int{0, 1, 10, 999, 1000, 1001, 5000, 7000} {
		Fill(r, p.A.Bytes()[:n])
		clear(p.B.Bytes())
		p.B.Recv(5, p.B.SGE(10, 1000), p.B.SGE(2000, 0), p.B.SGE(3000, 1), p.B.SGE(4000, 5999))
		p.A.Send(verbs.SendWR{ID: 4, Op: verbs.OpSend, Flags: verbs.Signaled}, p.A.SGE(0, n))
		p.A.OK(4)
		if wc := p.B.OK(5); int(wc.ByteLen) != n {
			t.Fatalf("%d bytes sent, %d received", n, wc.ByteLen)
		}
		b := p.B.Bytes()
		got := append(append(append([]byte(nil), b[10:1010]...), b[3000]), b[4000:9999]...)
		if !bytes.Equal(got[:n], p.A.Bytes()[:n]) || !allZero(got[n:]) {
			t.Fatalf("%d bytes were scattered wrongly", n)
		}
	}
}

func caseAtomics(t *testing.T, open Open) {
	p := Fixture{}.New(t, open)
	word := func(b []byte) uint64 { return binary.NativeEndian.Uint64(b) }
	verbs.StoreWord(p.B.Bytes()[64:], 41)
	addr, rkey := p.B.At(64)
	steps := []struct {
		op               verbs.Opcode
		cmp, swap        uint64
		wantOld, wantNew uint64
	}{
		{verbs.OpFAA, 1, 0, 41, 42},
		{verbs.OpFAA, 0, 0, 42, 42},
		{verbs.OpFAA, ^uint64(0), 0, 42, 41}, // minus one
		{verbs.OpCAS, 41, 1 << 63, 41, 1 << 63},
		{verbs.OpCAS, 41, 7, 1 << 63, 1 << 63},
		{verbs.OpFAA, 1 << 63, 0, 1 << 63, 0}, // wraps
		{verbs.OpCAS, 0, 0x0102030405060708, 0, 0x0102030405060708},
	}
	for i, s := range steps {
		clear(p.A.Bytes()[:64])
		p.A.Send(verbs.SendWR{ID: 3, Op: s.op, RemoteAddr: addr, RKey: rkey, CompareAdd: s.cmp, Swap: s.swap, Flags: verbs.Signaled}, p.A.SGE(16, 8))
		wc := p.A.OK(3)
		if want := sendOpcode(s.op); wc.Op != want {
			t.Fatalf("step %d: completion of %v, want %v", i, wc.Op, want)
		}
		if old, now := word(p.A.Bytes()[16:]), verbs.LoadWord(p.B.Bytes()[64:]); old != s.wantOld || now != s.wantNew {
			t.Fatalf("step %d: old value %#x, now %#x: want %#x and %#x", i, old, now, s.wantOld, s.wantNew)
		}
	}
	// The front refuses what can never be: unaligned, or not 8 bytes.
	for name, wr := range map[string]struct {
		addr uint64
		n    int
	}{"unaligned": {addr + 4, 8}, "four bytes": {addr, 4}} {
		_, err := p.A.QP.PostSend([]verbs.SendWR{{Op: verbs.OpFAA, RemoteAddr: wr.addr, RKey: rkey, NumSGE: 1}}, []verbs.SGE{p.A.SGE(0, wr.n)})
		wantKind(t, err, verbs.ErrInvalid, name)
	}
}

func caseAtomicsConcurrent(t *testing.T, open Open) {
	p := Fixture{}.New(t, open)
	const each = 200
	addrB, keyB := p.B.At(0)
	done := make(chan struct{})
	// A adds remotely while B adds to its own word through its CPU.
	go func() {
		defer close(done)
		for range each {
			verbs.AddWord(p.B.Bytes(), 1<<32)
		}
	}()
	for range each {
		p.A.Send(verbs.SendWR{ID: 1, Op: verbs.OpFAA, RemoteAddr: addrB, RKey: keyB, CompareAdd: 1, Flags: verbs.Signaled}, p.A.SGE(8, 8))
		p.A.OK(1)
	}
	<-done
	// IBTA lets a device be atomic only among its own operations, so only the
	// remote half must add up.
	if got := uint32(verbs.LoadWord(p.B.Bytes())); got != each {
		t.Fatalf("%d remote additions left %d", each, got)
	}
}

// caseWordAfterPayload checks the promise that commit words rely on: whoever
// sees an aligned word of a later WRITE sees every byte of the earlier ones.
func caseWordAfterPayload(t *testing.T, open Open) {
	p := Fixture{Size: 64 << 10}.New(t, open)
	mtu := Fixture{}.Path.PathMTU(p.A.Local, p.B.Local)
	size := min(4*mtu+8, 32<<10)
	const rounds = 300
	for round := 1; round <= rounds; round++ {
		payload := p.A.Bytes()[:size]
		for i := range payload {
			payload[i] = byte(round)
		}
		verbs.StoreWord(p.A.Bytes()[60<<10:], uint64(round))
		p.A.Write(1, 0, size, p.B, 0, 0)
		p.A.Write(2, 60<<10, 8, p.B, 60<<10, verbs.Signaled)
		p.B.Until("the word", func() bool { return verbs.LoadWord(p.B.Bytes()[60<<10:]) == uint64(round) })
		for i, v := range p.B.Bytes()[:size] {
			if v != byte(round) {
				t.Fatalf("round %d: the word was seen, byte %d of %d is still %d", round, i, size, v)
			}
		}
		p.A.OK(2)
	}
}

func caseFence(t *testing.T, open Open) {
	p := Fixture{}.New(t, open)
	for round := range 50 {
		verbs.StoreWord(p.B.Bytes(), uint64(round)+1000)
		verbs.StoreWord(p.A.Bytes(), 0)
		addr, rkey := p.B.At(0)
		p.A.Send(verbs.SendWR{ID: 1, Op: verbs.OpRead, RemoteAddr: addr, RKey: rkey}, p.A.SGE(0, 8))
		p.A.Write(2, 0, 8, p.B, 512, verbs.Signaled|verbs.Fence)
		p.A.OK(2)
		if got := verbs.LoadWord(p.B.Bytes()[512:]); got != uint64(round)+1000 {
			t.Fatalf("round %d: the fenced WRITE sent %d, the READ before it brought %d", round, got, round+1000)
		}
	}
}

func caseMTUs(t *testing.T, open Open) {
	for _, mtu := range []int{256, 512, 1024, 2048, 4096} {
		t.Run(fmt.Sprint(mtu), func(t *testing.T) {
			r := Seed(t)
			p := Fixture{Size: 1 << 17, Path: verbs.PathOpts{MTU: mtu}}.New(t, open)
			if got := p.A.QP.Attr().PathMTU; got > mtu {
				t.Fatalf("path MTU %d over the cap of %d", got, mtu)
			}
			for _, n := range []int{mtu - 1, mtu, mtu + 1, 3 * mtu, 1<<16 + 1} {
				Fill(r, p.A.Bytes()[:n])
				p.A.Write(1, 0, n, p.B, 3, verbs.Signaled)
				p.A.OK(1)
				if !bytes.Equal(p.A.Bytes()[:n], p.B.Bytes()[3:3+n]) {
					t.Fatalf("WRITE of %d bytes differs", n)
				}
				clear(p.A.Bytes())
				addr, rkey := p.B.At(3)
				p.A.Send(verbs.SendWR{ID: 1, Op: verbs.OpRead, RemoteAddr: addr, RKey: rkey, Flags: verbs.Signaled}, p.A.SGE(5, n))
				p.A.OK(1)
				if !bytes.Equal(p.A.Bytes()[5:5+n], p.B.Bytes()[3:3+n]) {
					t.Fatalf("READ of %d bytes differs", n)
				}
			}
		})
	}
}

func caseKeysDiffer(t *testing.T, open Open) {
	p := Fixture{}.New(t, open)
	if p.A.MR.LKey() == p.A.MR.RKey() && p.A.Ctx.Provider() != "ibv" {
		t.Errorf("lkey and rkey are both %#x: a mix-up would go unnoticed", p.A.MR.LKey())
	}
}
