package rc

import (
	"bytes"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/railstore/railstore/verbs"
	"github.com/railstore/railstore/verbs/soft/internal/wire"
)

// TestPure holds the package to its word: no sockets, no locks, no clock.
func TestPure(t *testing.T) {
	files, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	allowed := []string{`"encoding/binary"`, `"math/bits"`, `"github.com/railstore/railstore/verbs"`, `"github.com/railstore/railstore/verbs/soft/internal/wire"`}
	n := 0
	for _, f := range files {
		if !strings.HasSuffix(f.Name(), ".go") || strings.HasSuffix(f.Name(), "_test.go") {
			continue
		}
		n++
		file, err := parser.ParseFile(token.NewFileSet(), f.Name(), nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range file.Imports {
			if !slices.Contains(allowed, i.Path.Value) {
				t.Errorf("%s imports %s", f.Name(), i.Path.Value)
			}
		}
		ast.Inspect(file, func(x ast.Node) bool {
			if g, ok := x.(*ast.GoStmt); ok {
				t.Errorf("%s starts a goroutine at %v", f.Name(), g.Pos())
			}
			return true
		})
	}
	if n < 10 {
		t.Errorf("%d files looked at", n)
	}
}

// TestPlace covers every alignment and length around a word.
func TestPlace(t *testing.T) {
	mem := region(t, 256)
	src := make([]byte, 64)
	for i := range src {
		src[i] = byte(i + 1)
	}
	for off := range 16 {
		for n := range 48 {
			for i := range mem {
				mem[i] = 0xcc
			}
			place(mem[32+off:32+off+n], src[:n])
			if !bytes.Equal(mem[32+off:32+off+n], src[:n]) {
				t.Fatalf("offset %d, %d bytes: %x", off, n, mem[32+off:32+off+n])
			}
			for i, b := range mem {
				if (i < 32+off || i >= 32+off+n) && b != 0xcc {
					t.Fatalf("offset %d, %d bytes: byte %d before or after was written", off, n, i-32-off)
				}
			}
		}
	}
}

// TestWordAfterBytes: whoever sees the word at the end of a WRITE sees the bytes
// before it, and never half a word.
func TestWordAfterBytes(t *testing.T) {
	mem := region(t, 4096)
	const rounds = 20_000
	done := make(chan string, 1)
	go func() {
		for {
			w := verbs.LoadWord(mem[2048:])
			if w == 0 {
				continue
			}
			if uint32(w) != uint32(w>>32) {
				done <- "half a word"
				return
			}
			// Bytes of this round or a later one.
			if got := verbs.LoadWord(mem[1024:]); uint32(got) < uint32(w) {
				done <- "the word came before the bytes"
				return
			}
			if uint32(w) == rounds {
				done <- ""
				return
			}
		}
	}()
	src := make([]byte, 1032)
	for i := uint32(1); i <= rounds; i++ {
		for k := 0; k < len(src); k += 4 {
			src[k], src[k+1], src[k+2], src[k+3] = byte(i), byte(i>>8), byte(i>>16), byte(i>>24)
		}
		place(mem[1024:2056], src)
	}
	if s := <-done; s != "" {
		t.Fatal(s)
	}
}

func TestPostErrors(t *testing.T) {
	mem := &table{}
	cfg := Config{QPN: 5, Device: "test:x", Mem: mem, Cap: verbs.QPCap{MaxSendWR: 2, MaxRecvWR: 1, MaxSendSGE: 2, MaxRecvSGE: 1}}
	c := New(cfg)
	sges := []verbs.SGE{{Length: 1 << 30}, {Length: 1<<30 + 1}, {Length: 4}}
	if _, err := c.PostSend([]verbs.SendWR{{}}, nil); !errors.Is(err, verbs.ErrState) {
		t.Errorf("PostSend in RESET: %v", err)
	}
	q := attrs()
	q.State = verbs.QPRTS
	c.Modify(&q, toRTS)
	for _, x := range []struct {
		name string
		wrs  []verbs.SendWR
		sges []verbs.SGE
		n    int
		err  error
	}{
		{"unknown opcode", []verbs.SendWR{{Op: 7}}, nil, 0, verbs.ErrInvalid},
		{"too many elements", []verbs.SendWR{{NumSGE: 3}}, sges, 0, verbs.ErrInvalid},
		{"elements missing", []verbs.SendWR{{NumSGE: 2}}, sges[:1], 0, verbs.ErrInvalid},
		{"too long", []verbs.SendWR{{NumSGE: 2}}, sges, 0, verbs.ErrInvalid},
		{"atomic of 4 bytes", []verbs.SendWR{{Op: verbs.OpFAA, NumSGE: 1}}, sges[2:], 0, verbs.ErrInvalid},
		{"second is bad", []verbs.SendWR{{}, {Op: 9}}, nil, 1, verbs.ErrInvalid},
		{"full", []verbs.SendWR{{}, {}}, nil, 1, verbs.ErrSQFull},
	} {
		n, err := c.PostSend(x.wrs, x.sges)
		if n != x.n || !errors.Is(err, x.err) {
			t.Errorf("%s: %d, %v; want %d, %v", x.name, n, err, x.n, x.err)
		}
	}
	for _, x := range []struct {
		name string
		wrs  []verbs.RecvWR
		n    int
		err  error
	}{
		{"too many elements", []verbs.RecvWR{{NumSGE: 2}}, 0, verbs.ErrInvalid},
		{"full", []verbs.RecvWR{{}, {}}, 1, verbs.ErrRQFull},
	} {
		n, err := c.PostRecv(x.wrs, sges)
		if n != x.n || !errors.Is(err, x.err) {
			t.Errorf("receive: %s: %d, %v; want %d, %v", x.name, n, err, x.n, x.err)
		}
	}
	defer func() {
		if recover() == nil {
			t.Error("New took more elements than MaxSGE")
		}
	}()
	New(Config{Cap: verbs.QPCap{MaxSendSGE: MaxSGE + 1}})
}

// TestReuse: after RESET a Conn works like a new one, with other numbers.
func TestReuse(t *testing.T) {
	f := newFlow(1024, 4)
	src, dst := region(t, 1<<16), region(t, 1<<16)
	lk, _ := f.a.mem.add(src, allAccess)
	_, rk := f.b.mem.add(dst, allAccess)
	for round := range 3 {
		psn := uint32(1<<24 - 5 + round)
		q := attrs()
		q.PathMTU, q.SQPSN, q.RQPSN = 1024, psn&wire.PSNMask, 77
		q.DestQPN = 0x22
		f.a.conn.Modify(&verbs.QPAttr{State: verbs.QPReset}, verbs.MaskState)
		if f.a.conn.State() != verbs.QPReset || f.a.conn.Stats() != (verbs.QPStats{}) || f.a.conn.NextTick() != 0 {
			t.Fatal("RESET left something")
		}
		f.connect(f.a, q)
		q.SQPSN, q.RQPSN, q.DestQPN = 77, psn&wire.PSNMask, 0x11
		f.b.conn.Modify(&verbs.QPAttr{State: verbs.QPReset}, verbs.MaskState)
		f.connect(f.b, q)
		for i := range src {
			src[i] = byte(i + round)
		}
		wr := verbs.SendWR{Op: verbs.OpWrite, NumSGE: 1, RemoteAddr: verbs.AddrOf(dst), RKey: rk, Flags: verbs.Signaled}
		if _, err := f.a.conn.PostSend([]verbs.SendWR{wr}, []verbs.SGE{{Addr: verbs.AddrOf(src), Length: uint32(len(src)), LKey: lk}}); err != nil {
			t.Fatal(err)
		}
		if n := f.settle(); n != 1 || !bytes.Equal(src, dst) {
			t.Fatalf("round %d: %d completions, equal %v", round, n, bytes.Equal(src, dst))
		}
		// Left in the middle of a message for the next round.
		if _, err := f.a.conn.PostSend([]verbs.SendWR{wr}, []verbs.SGE{{Addr: verbs.AddrOf(src), Length: uint32(len(src)), LKey: lk}}); err != nil {
			t.Fatal(err)
		}
		f.pass(f.a)
		f.b.out.Reset()
	}
}

// TestEstablished: the first message that a QP in RTR takes is an event, once.
func TestEstablished(t *testing.T) {
	q := attrs()
	w := pair(q, q, Config{Cap: verbs.QPCap{MaxSendWR: 4}}, Config{})
	w.b.conn.Modify(&verbs.QPAttr{State: verbs.QPReset}, verbs.MaskState)
	q.State = verbs.QPRTR
	q.DestQPN = 0x11
	w.b.conn.Modify(&q, toRTS)
	for range 2 {
		if _, err := w.a.conn.PostSend([]verbs.SendWR{{Op: verbs.OpWrite}}, nil); err != nil {
			t.Fatal(err)
		}
		w.run(t, 1e9)
	}
	if !slices.Equal(w.b.events, []verbs.EventType{verbs.EventCommEstablished}) {
		t.Errorf("events %v", w.b.events)
	}
}

// TestLongest sends the longest message that there is: 2 GiB are 2^23 packets of
// 256 bytes, half of all PSNs. Its memory is one page that is named again and again.
func TestLongest(t *testing.T) {
	if testing.Short() || raceEnabled {
		t.Skip("prerequisite: time for eight million packets; -short and -race leave them out")
	}
	for _, op := range []verbs.Opcode{verbs.OpWrite, verbs.OpRead} {
		page := region(t, 1<<16)
		q := attrs()
		q.SQPSN, q.RQPSN = 0xfffff0, 0xfffff0
		cfg := Config{Cap: verbs.QPCap{MaxSendWR: 4, MaxSendSGE: 1}}
		f := &flow{world: pair(q, q, cfg, cfg), buf: make([]byte, 8192)}
		f.a.out, f.b.out = NewOutput(64), NewOutput(64)
		for _, n := range []*node{f.a, f.b} {
			n.conn.cfg.Mem = folded{page}
		}
		wr := verbs.SendWR{Op: op, NumSGE: 1, RKey: 1, Flags: verbs.Signaled}
		for range 2 {
			if _, err := f.a.conn.PostSend([]verbs.SendWR{wr}, []verbs.SGE{{Length: maxMessage, LKey: 1}}); err != nil {
				t.Fatal(err)
			}
		}
		if n := f.settle(); n != 2 || f.a.conn.State() != verbs.QPRTS {
			t.Fatalf("%v: %d completions, %v", op, n, f.a.conn.State())
		}
		if got := f.a.conn.una.Sub(0xfffff0); got != 0 {
			t.Errorf("%v: una moved by %#x packets, want a full circle", op, got)
		}
	}
}

// folded is memory without end that is one page in truth.
type folded struct{ page []byte }

func (m folded) Local(_ uint32, addr uint64, n uint32, _ bool) ([]byte, verbs.WCStatus) {
	return m.page[addr&0xff:][:min(int(n), 4096)], verbs.WCSuccess
}

func (m folded) Remote(_ uint32, addr uint64, n uint64, _ verbs.Access) ([]byte, bool) {
	return m.page[addr&0xff:][:min(n, 4096)], true
}

// TestAllocates: nothing on the way of a packet does.
func TestAllocates(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	f := newFlow(1024, 16)
	src, dst := region(t, 1<<16), region(t, 1<<16)
	lk, _ := f.a.mem.add(src, allAccess)
	_, rk := f.b.mem.add(dst, allAccess)
	lkb, _ := f.b.mem.add(dst, allAccess)
	wrs := make([]verbs.SendWR, 0, 8)
	sges := make([]verbs.SGE, 0, 16)
	for op := verbs.OpSend; op <= verbs.OpFAA; op++ {
		n := uint32(10_001)
		if op >= verbs.OpCAS {
			n = 8
		}
		wrs = append(wrs, verbs.SendWR{Op: op, NumSGE: 1, RemoteAddr: verbs.AddrOf(dst), RKey: rk, Flags: verbs.Signaled})
		sges = append(sges, verbs.SGE{Addr: verbs.AddrOf(src), Length: n, LKey: lk})
	}
	recvs := []verbs.RecvWR{{NumSGE: 1}, {NumSGE: 1}, {NumSGE: 1}}
	rs := verbs.SGE{Addr: verbs.AddrOf(dst), Length: 1 << 15, LKey: lkb}
	rsges := []verbs.SGE{rs, rs, rs}
	full := make([]verbs.SendWR, 17)
	for i := range full {
		full[i].Op = verbs.OpWrite
	}
	round := func() {
		if _, err := f.b.conn.PostRecv(recvs, rsges); err != nil {
			t.Fatal(err)
		}
		if _, err := f.a.conn.PostSend(wrs, sges); err != nil {
			t.Fatal(err)
		}
		// The first packets are lost on the way.
		f.a.conn.Pump(f.now, f.a.out)
		f.a.out.Reset()
		f.now = f.a.conn.NextTick()
		f.a.conn.Tick(f.now, f.a.out)
		if n := f.settle(); n != len(wrs)+len(recvs) {
			t.Fatalf("%d completions, %v", n, f.a.conn.State())
		}
		// More than the queue takes.
		if n, err := f.a.conn.PostSend(full, nil); n != 16 || err == nil {
			t.Fatal(n, err)
		}
		f.settle()
	}
	round()
	if n := testing.AllocsPerRun(50, round); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
