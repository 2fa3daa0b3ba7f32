package rc

import (
	"bytes"
	"encoding/binary"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/railstore/railstore/verbs"
)

// checks is how many worlds each property tries; go test -rapid.checks overrules.
const checks = 5000

func TestMain(m *testing.M) {
	flag.Parse()
	set := map[string]bool{}
	flag.Visit(func(f *flag.Flag) { set[f.Name] = true })
	if !set["rapid.checks"] {
		n := checks
		if testing.Short() || raceEnabled {
			n = checks / 10
		}
		must(flag.Set("rapid.checks", strconv.Itoa(n)))
	}
	if !set["rapid.seed"] {
		seed := os.Getenv("RS_TEST_SEED")
		if seed == "" {
			seed = strconv.FormatInt(time.Now().UnixNano()&(1<<53-1), 10)
		}
		must(flag.Set("rapid.seed", seed))
		fmt.Printf("RS_TEST_SEED=%s\n", seed)
	}
	must(flag.Set("rapid.nofailfile", "true"))
	os.Exit(m.Run())
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

// Sizes of a side's memory in the property tests.
const (
	sourceBytes  = 64 << 10 // read only, random: what WRITE and SEND send, what READ reads
	targetBytes  = 64 << 10 // what the peer writes
	counters     = 8        // words that the peer's atomics change
	landingBytes = 1 << 20  // where READs and atomics of this side land, one after the other
	recvBytes    = 1 << 20  // where receives land, one after the other
)

// side is one end of a property test with the model of what must come out.
type side struct {
	*node
	source, target, counter, landing, recv []byte
	lkSource, lkLanding, lkRecv            uint32
	rkSource, rkTarget, rkCounter          uint32

	// The model.
	wantTarget  []byte
	wantCounter [counters]uint64
	wantRecv    []message // at this side
	landings    []landing
	wrs         []posted
	landed      int

	// Receives: how many are wanted, posted, and where the next one lands.
	recvPosted, recvAt int
	recvSize           int

	next int // next work request to post
}

type posted struct {
	wr   verbs.SendWR
	sges []verbs.SGE
	want Completion
}

type message struct {
	data   []byte
	imm    uint32
	hasImm bool
	write  bool
	size   int
}

type landing struct {
	at   int
	want []byte
}

// arena is the memory that all worlds of a test use in turn.
type arena [2]struct{ source, target, counter, landing, recv []byte }

func newArena(t testing.TB) *arena {
	var a arena
	rnd := rand.New(rand.NewPCG(1, 2))
	for i := range a {
		a[i].source = region(t, sourceBytes)
		for k := 0; k < sourceBytes; k += 8 {
			binary.LittleEndian.PutUint64(a[i].source[k:], rnd.Uint64())
		}
		a[i].target = region(t, targetBytes)
		a[i].counter = region(t, counters*8)
		a[i].landing = region(t, landingBytes)
		a[i].recv = region(t, recvBytes)
	}
	return &a
}

func (a *arena) side(i int, n *node) *side {
	m := &a[i]
	s := &side{node: n, source: m.source, target: m.target, counter: m.counter, landing: m.landing, recv: m.recv,
		wantTarget: make([]byte, targetBytes)}
	clear(s.target)
	clear(s.counter)
	s.lkSource, s.rkSource = n.mem.add(s.source, verbs.RemoteRead)
	_, s.rkTarget = n.mem.add(s.target, verbs.LocalWrite|verbs.RemoteWrite)
	_, s.rkCounter = n.mem.add(s.counter, verbs.LocalWrite|verbs.RemoteAtomic)
	s.lkLanding, _ = n.mem.add(s.landing, verbs.LocalWrite)
	s.lkRecv, _ = n.mem.add(s.recv, verbs.LocalWrite)
	return s
}

// split cuts n bytes at addr into up to most elements, some of them empty.
func split(rnd *rand.Rand, lkey uint32, addr uint64, n, most int) []verbs.SGE {
	var out []verbs.SGE
	for len(out) < most-1 && rnd.IntN(3) == 0 {
		k := rnd.IntN(n + 1)
		if rnd.IntN(5) == 0 {
			k = 0
		}
		out = append(out, verbs.SGE{Addr: addr, Length: uint32(k), LKey: lkey})
		addr += uint64(k)
		n -= k
	}
	if n > 0 || rnd.IntN(2) == 0 {
		out = append(out, verbs.SGE{Addr: addr, Length: uint32(n), LKey: lkey})
	}
	return out
}

// plan makes the next work request of s towards o, and what it must lead to.
func (s *side) plan(rnd *rand.Rand, o *side, op verbs.Opcode, n, mostSGE int) {
	p := posted{wr: verbs.SendWR{ID: verbs.WRID(len(s.wrs)), Op: op, Imm: rnd.Uint32()}}
	if rnd.IntN(3) > 0 {
		p.wr.Flags |= verbs.Signaled
	}
	if rnd.IntN(4) == 0 {
		p.wr.Flags |= verbs.Fence
	}
	if rnd.IntN(4) == 0 {
		p.wr.Flags |= verbs.Solicited
	}
	p.want = Completion{WC: verbs.WC{ID: p.wr.ID, QPN: s.conn.cfg.QPN, Op: sendOps[op]}}
	switch op {
	case verbs.OpSend, verbs.OpSendImm, verbs.OpWrite, verbs.OpWriteImm:
		from := rnd.IntN(sourceBytes - n + 1)
		data := s.source[from : from+n]
		p.sges = split(rnd, s.lkSource, verbs.AddrOf(s.source)+uint64(from), n, mostSGE)
		if op == verbs.OpWrite || op == verbs.OpWriteImm {
			to := rnd.IntN(targetBytes - n + 1)
			if rnd.IntN(2) == 0 {
				to &^= 7
			}
			copy(o.wantTarget[to:], data)
			p.wr.RemoteAddr, p.wr.RKey = verbs.AddrOf(o.target)+uint64(to), o.rkTarget
		}
		if op != verbs.OpWrite {
			m := message{data: data, imm: p.wr.Imm, hasImm: op != verbs.OpSend, write: op == verbs.OpWriteImm, size: n}
			o.wantRecv = append(o.wantRecv, m)
		}
	case verbs.OpRead:
		from := rnd.IntN(sourceBytes - n + 1)
		s.landing[s.landed+n] = 0xa5 // must stay
		p.sges = split(rnd, s.lkLanding, verbs.AddrOf(s.landing)+uint64(s.landed), n, mostSGE)
		s.landings = append(s.landings, landing{s.landed, o.source[from : from+n]})
		s.landed += n + 1 + rnd.IntN(8)
		p.wr.RemoteAddr, p.wr.RKey = verbs.AddrOf(o.source)+uint64(from), o.rkSource
		p.want.WC.ByteLen = uint32(n)
	case verbs.OpCAS, verbs.OpFAA:
		k := rnd.IntN(counters)
		s.landed = (s.landed + 7) &^ 7
		p.sges = []verbs.SGE{{Addr: verbs.AddrOf(s.landing) + uint64(s.landed), Length: 8, LKey: s.lkLanding}}
		old := make([]byte, 8)
		binary.NativeEndian.PutUint64(old, o.wantCounter[k])
		s.landings = append(s.landings, landing{s.landed, old})
		s.landed += 8
		p.wr.RemoteAddr, p.wr.RKey = verbs.AddrOf(o.counter)+uint64(8*k), o.rkCounter
		p.wr.CompareAdd, p.wr.Swap = rnd.Uint64N(1000), rnd.Uint64N(1000)
		if op == verbs.OpFAA {
			o.wantCounter[k] += p.wr.CompareAdd
		} else {
			if rnd.IntN(2) == 0 {
				p.wr.CompareAdd = o.wantCounter[k]
			}
			if p.wr.CompareAdd == o.wantCounter[k] {
				o.wantCounter[k] = p.wr.Swap
			}
		}
		p.want.WC.ByteLen = 8
	}
	p.wr.NumSGE = uint16(len(p.sges))
	s.wrs = append(s.wrs, p)
}

// post gives some of what is planned to the Conn.
func (s *side) post(t *rapid.T, rnd *rand.Rand) {
	var wrs []verbs.SendWR
	var sges []verbs.SGE
	for range 1 + rnd.IntN(4) {
		if s.next+len(wrs) == len(s.wrs) {
			break
		}
		p := &s.wrs[s.next+len(wrs)]
		wrs = append(wrs, p.wr)
		sges = append(sges, p.sges...)
	}
	n, err := s.conn.PostSend(wrs, sges)
	if err != nil && (n == len(wrs) || err != error(s.conn.errSQFull)) {
		t.Fatalf("%s: PostSend took %d of %d: %v", s.name, n, len(wrs), err)
	}
	s.next += n
}

// receive posts some of the receives that this side will need.
func (s *side) postRecv(t *rapid.T, rnd *rand.Rand, mostSGE int) {
	for range rnd.IntN(4) {
		if s.recvPosted == len(s.wantRecv) {
			return
		}
		room := s.recvSize
		sges := split(rnd, s.lkRecv, verbs.AddrOf(s.recv)+uint64(s.recvAt), room, mostSGE)
		if len(sges) == 0 {
			sges = []verbs.SGE{{Addr: verbs.AddrOf(s.recv), Length: 0, LKey: s.lkRecv}}
		}
		wr := []verbs.RecvWR{{ID: verbs.WRID(s.recvAt)<<32 | verbs.WRID(s.recvPosted), NumSGE: uint16(len(sges))}}
		n, err := s.conn.PostRecv(wr, sges)
		if n == 0 {
			if err != error(s.conn.errRQFull) {
				t.Fatalf("%s: PostRecv: %v", s.name, err)
			}
			return
		}
		s.recvPosted++
		s.recvAt += room
	}
}

// check compares what has come out with the model. cut says that the net was cut for
// good, so that requests may have failed.
func (s *side) check(t *rapid.T, cut bool) {
	sigAll := s.conn.cfg.SigAll
	sends, recvs, i := 0, 0, 0
	failed := verbs.WCSuccess
	for _, d := range s.done {
		if d.WC.QPN != s.conn.cfg.QPN {
			t.Fatalf("%s: %s of QPN %#x", s.name, completion(&d), d.WC.QPN)
		}
		if d.Recv {
			if failed != verbs.WCSuccess || d.WC.Status == verbs.WCFlush {
				if d.WC.Status != verbs.WCFlush || !cut {
					t.Fatalf("%s: after %v: %s", s.name, failed, completion(&d))
				}
				continue
			}
			s.checkRecv(t, recvs, &d)
			recvs++
			continue
		}
		if failed == verbs.WCSuccess && d.WC.Status == verbs.WCSuccess {
			// Unsignalled ones in between completed in silence.
			for i < s.next && s.wrs[i].wr.Flags&verbs.Signaled == 0 && !sigAll {
				i++
			}
		} else if failed == verbs.WCSuccess {
			if !cut || d.WC.Status != verbs.WCRetryExceeded && d.WC.Status != verbs.WCFlush {
				t.Fatalf("%s: %s", s.name, completion(&d))
			}
			failed = d.WC.Status
			// The first that failed: it need not be signalled.
			i = int(d.WC.ID)
		} else if d.WC.Status != verbs.WCFlush {
			t.Fatalf("%s: after %v: %s", s.name, failed, completion(&d))
		}
		if i >= s.next {
			t.Fatalf("%s: completion %d (%s) of %d requests", s.name, sends, completion(&d), s.next)
		}
		want := s.wrs[i].want
		if failed != verbs.WCSuccess {
			if d.WC.ID != want.WC.ID || d.WC.Op != want.WC.Op {
				t.Fatalf("%s: %s, want id %d", s.name, completion(&d), want.WC.ID)
			}
		} else if d.WC != want.WC {
			t.Fatalf("%s: %s, want %s", s.name, completion(&d), completion(&want))
		}
		i++
		sends++
	}
	for i < s.next && failed == verbs.WCSuccess && s.wrs[i].wr.Flags&verbs.Signaled == 0 && !sigAll {
		i++
	}
	if !cut && i != len(s.wrs) || cut && failed != verbs.WCSuccess && i != s.next {
		t.Fatalf("%s: %d of %d requests completed (%d posted), state %v", s.name, i, len(s.wrs), s.next, s.conn.State())
	}
	if cut {
		return
	}
	if recvs != len(s.wantRecv) {
		t.Fatalf("%s: %d messages received, want %d", s.name, recvs, len(s.wantRecv))
	}
	if !bytes.Equal(s.target, s.wantTarget) {
		t.Fatalf("%s: target differs from the model at byte %d", s.name, differ(s.target, s.wantTarget))
	}
	for k := range counters {
		if got := binary.NativeEndian.Uint64(s.counter[8*k:]); got != s.wantCounter[k] {
			t.Fatalf("%s: counter %d is %d, want %d", s.name, k, got, s.wantCounter[k])
		}
	}
	for k, l := range s.landings {
		if got := s.landing[l.at : l.at+len(l.want)]; !bytes.Equal(got, l.want) {
			t.Fatalf("%s: READ or atomic %d landed wrong at byte %d of %d", s.name, k, differ(got, l.want), len(l.want))
		}
	}
}

func (s *side) checkRecv(t *rapid.T, i int, d *Completion) {
	if i >= len(s.wantRecv) {
		t.Fatalf("%s: message %d is one too many: %s", s.name, i, completion(d))
	}
	m := &s.wantRecv[i]
	op := verbs.WCRecv
	if m.write {
		op = verbs.WCRecvWImm
	}
	if d.WC.Status != verbs.WCSuccess || d.WC.Op != op || int(d.WC.ByteLen) != m.size || int(uint32(d.WC.ID)) != i ||
		m.hasImm != (d.WC.Flags&verbs.WCWithImm != 0) || m.hasImm && d.WC.Imm != m.imm {
		t.Fatalf("%s: message %d: %s, want %+v", s.name, i, completion(d), m)
	}
	if at := int(d.WC.ID >> 32); !m.write && !bytes.Equal(s.recv[at:at+m.size], m.data) {
		t.Fatalf("%s: message %d differs", s.name, i)
	}
}

func differ(a, b []byte) int {
	for i := range a {
		if a[i] != b[i] {
			return i
		}
	}
	return -1
}

// drawWorld makes two connected sides with random parameters.
func drawWorld(t *rapid.T, a *arena) (*world, [2]*side, *rand.Rand) {
	rnd := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 7))
	mtu := rapid.SampledFrom([]int{256, 512, 1024, 2048, 4096}).Draw(t, "mtu")
	psn := func(l string) uint32 {
		if rapid.Bool().Draw(t, l+" near the wrap") {
			return (1<<24 - rapid.Uint32Range(0, 40).Draw(t, l)) & (1<<24 - 1)
		}
		return rapid.Uint32Range(0, 1<<24-1).Draw(t, l)
	}
	qa, qb := attrs(), attrs()
	qa.PathMTU, qb.PathMTU = mtu, mtu
	qa.SQPSN, qb.SQPSN = psn("psn a"), psn("psn b")
	qa.RQPSN, qb.RQPSN = qb.SQPSN, qa.SQPSN
	rd := rapid.SampledFrom([]int{1, 2, 4, 16}).Draw(t, "max_rd_atomic")
	qa.MaxRDAtomic, qa.MaxDestRDAtomic, qb.MaxRDAtomic, qb.MaxDestRDAtomic = rd, rd, rd, rd
	cfg := func(l string) Config {
		return Config{
			Cap: verbs.QPCap{MaxSendWR: rapid.SampledFrom([]int{1, 2, 7, 16, 64}).Draw(t, l+" send queue"), MaxRecvWR: rapid.SampledFrom([]int{1, 3, 16}).Draw(t, l+" recv queue"),
				MaxSendSGE: rapid.IntRange(1, 4).Draw(t, l+" sge"), MaxRecvSGE: 3},
			SigAll:        rapid.Bool().Draw(t, l+" signal all"),
			MaxWindow:     rapid.SampledFrom([]int{1, 2, 5, 16, 128}).Draw(t, l+" window"),
			InitialWindow: rapid.SampledFrom([]int{1, 4, 64}).Draw(t, l+" initial window"),
			MinRTO:        rapid.SampledFrom([]int64{1e5, -1}).Draw(t, l+" rto"),
		}
	}
	ca, cb := cfg("a"), cfg("b")
	w := pair(qa, qb, ca, cb)
	w.rnd = rnd
	w.a.out = NewOutput(rapid.SampledFrom([]int{1, 3, 16}).Draw(t, "room a"))
	w.b.out = NewOutput(rapid.SampledFrom([]int{1, 3, 16}).Draw(t, "room b"))
	if os.Getenv("RS_TEST_TRACE") != "" {
		w.log = t.Logf
	}
	sides := [2]*side{a.side(0, w.a), a.side(1, w.b)}
	for i, s := range sides {
		o := sides[1-i]
		o.recvSize = 0
		sge := s.conn.cfg.Cap.MaxSendSGE
		n := rapid.IntRange(0, 24).Draw(t, s.name+" requests")
		for range n {
			op := rapid.SampledFrom([]verbs.Opcode{verbs.OpSend, verbs.OpSendImm, verbs.OpWrite, verbs.OpWrite, verbs.OpWriteImm, verbs.OpRead, verbs.OpCAS, verbs.OpFAA}).Draw(t, "op")
			size := rapid.SampledFrom([]int{0, 1, 7, 8, 64, mtu - 1, mtu, mtu + 1, 2 * mtu, 3*mtu - 5, min(9*mtu+3, 40_000), min(70*mtu+1, 40_000)}).Draw(t, "size")
			s.plan(rnd, o, op, size, sge)
			if op == verbs.OpSend || op == verbs.OpSendImm {
				o.recvSize = max(o.recvSize, size)
			}
		}
	}
	return w, sides, rnd
}

// drive posts, runs and takes until both sides are done or virtual time ends.
func drive(t *rapid.T, w *world, sides [2]*side, rnd *rand.Rand, limit int64) {
	pending := func() bool {
		for _, s := range sides {
			if s.conn.State() == verbs.QPRTS && (s.next < len(s.wrs) || s.recvPosted < len(s.wantRecv)) {
				return true
			}
		}
		return false
	}
	idle := 0
	for i := 0; ; i++ {
		for _, s := range sides {
			if rnd.IntN(3) == 0 {
				s.post(t, rnd)
			}
			if rnd.IntN(4) == 0 {
				s.postRecv(t, rnd, 3)
			}
		}
		if !w.step(limit) {
			if w.now >= limit || !pending() {
				return
			}
			// What was posted last may have been done at once; a receive that
			// nothing will take any more stays pending.
			if idle++; idle > 1000 {
				return
			}
			w.now += 1000
		} else {
			idle = 0
		}
		if i > 200_000 {
			t.Fatalf("no end at %d ns: a %d/%d %v, b %d/%d %v", w.now, sides[0].next, len(sides[0].wrs), w.a.conn.State(), sides[1].next, len(sides[1].wrs), w.b.conn.State())
		}
	}
}

// TestLossyNet: over a net that drops, repeats, reorders and corrupts, every request
// completes exactly once, in order, and memory is what the model says.
func TestLossyNet(t *testing.T) {
	a := newArena(t)
	rapid.Check(t, func(t *rapid.T) {
		w, sides, rnd := drawWorld(t, a)
		w.net = netFaults{
			drop:      rapid.SampledFrom([]float64{0, 0, 0.01, 0.1}).Draw(t, "drop"),
			duplicate: rapid.SampledFrom([]float64{0, 0, 0.05}).Draw(t, "duplicate"),
			corrupt:   rapid.SampledFrom([]float64{0, 0, 0.02}).Draw(t, "corrupt"),
			jitter:    rapid.SampledFrom([]int64{0, 0, 3000, 50_000}).Draw(t, "jitter"),
			queue:     rapid.SampledFrom([]int{0, 0, 20}).Draw(t, "queue"),
			delay:     10_000,
		}
		if w.a.conn.cfg.MinRTO < 0 || w.b.conn.cfg.MinRTO < 0 {
			// With the IBTA timer alone every silence counts towards retry_cnt, and at a
			// window of one packet eight losses in a row are not so rare.
			w.net.drop, w.net.corrupt = min(w.net.drop, 0.03), 0
		}
		drive(t, w, sides, rnd, 60e9)
		for _, s := range sides {
			s.check(t, false)
			if st := s.conn.State(); st != verbs.QPRTS {
				t.Fatalf("%s is in %v", s.name, st)
			}
		}
	})
}

// TestCutNet: when the net is cut for good, what was not answered ends in RETRY_EXC
// and flushes. (How long that takes is said in testdata/timeout.txt.)
func TestCutNet(t *testing.T) {
	a := newArena(t)
	rapid.Check(t, func(t *rapid.T) {
		w, sides, rnd := drawWorld(t, a)
		retry := uint8(rapid.IntRange(0, 7).Draw(t, "retry_cnt"))
		for _, s := range sides {
			s.conn.Modify(&verbs.QPAttr{RetryCount: retry}, verbs.MaskRetryCount)
		}
		w.net = netFaults{delay: 10_000, cutAt: rapid.Int64Range(1, 400_000).Draw(t, "cut")}
		drive(t, w, sides, rnd, 60e9)
		for _, s := range sides {
			s.check(t, true)
		}
	})
}
