package rc

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/railstore/railstore/verbs"
	"github.com/railstore/railstore/verbs/soft/internal/wire"
)

// Conversations are text files of commands, each followed by a line of dashes and
// what came of it, and an empty line. RS_UPDATE=1 records what comes of them now;
// commit the difference only when you understand it.
//
//	new [mtu= psn-a= psn-b= timeout= retry= rnr= rnr-timer= window= initial= rd= dest-rd= rto= access-a= access-b= sq= rq= sge=]
//	    two connected nodes, a and b; each has 32 KiB of memory: a pattern in
//	    the first half (it may be read), zeros in the second (it may be written)
//	post NODE OP [id= len= from= to= imm= add= compare= swap= rkey=bad lkey=bad unsignaled solicited fence sges=N]
//	recv NODE [id= len= to= lkey=bad]
//	pump NODE            packets that NODE sends; they queue up in order, numbered from 1
//	deliver NODE [drop=1,2 dup=3 order=2,1,3 only=1]   hand NODE's queued packets to its peer; the rest is lost
//	inject NODE OPCODE [psn= len= dma= va= rkey= imm= ask syndrome= ...]   hand a made-up packet to NODE
//	tick [DURATION]      let time pass (to the next timer) and timers run
//	run                  pump, deliver and tick until nothing happens
//	fail NODE | reset NODE | sqd NODE | rts NODE
//	gone NODE            deregister NODE's memory
//	state NODE           where it stands
//	memory NODE from= len= [same=OFFSET]   compare with the pattern from OFFSET on, or print
type conversation struct {
	*world
	queue map[*node][][]byte
	out   strings.Builder
	mem   map[*node][]byte
	lkey  map[*node]uint32
	rkey  map[*node]uint32
	arena [2][]byte
}

const talkBytes = 32 << 10

func TestConversations(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no conversations: %v", err)
	}
	c := &conversation{arena: [2][]byte{region(t, talkBytes), region(t, talkBytes)}}
	for _, f := range files {
		t.Run(strings.TrimSuffix(filepath.Base(f), ".txt"), func(t *testing.T) {
			old, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			got := c.play(t, string(old))
			if got == string(old) {
				return
			}
			if os.Getenv("RS_UPDATE") != "" {
				if err := os.WriteFile(f, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			a, b := strings.Split(string(old), "\n"), strings.Split(got, "\n")
			i := 0
			for i < len(a) && i < len(b) && a[i] == b[i] {
				i++
			}
			t.Errorf("line %d:\n got %q\nwant %q\n(RS_UPDATE=1 records)\n%s", i+1, at(b, i), at(a, i), got)
		})
	}
}

func at(s []string, i int) string {
	if i < len(s) {
		return s[i]
	}
	return "end of file"
}

// play runs the commands of a file and returns the file as it should be.
func (c *conversation) play(t *testing.T, text string) string {
	var res strings.Builder
	golden := false
	for _, line := range strings.Split(strings.TrimRight(text, "\n"), "\n") {
		switch {
		case golden:
			if strings.TrimSpace(line) == "" {
				golden = false
				res.WriteString("\n")
			}
			continue
		case strings.HasPrefix(line, "----"):
			golden = true
			res.WriteString("----\n")
			res.WriteString(c.out.String())
			c.out.Reset()
			continue
		case line == "" || strings.HasPrefix(line, "#"):
		default:
			c.command(t, line)
		}
		res.WriteString(line + "\n")
	}
	if c.out.Len() > 0 {
		t.Errorf("output without dashes before it: %s", c.out.String())
	}
	return res.String()
}

// args of a command: key=value, and words.
type args map[string]string

func (a args) num(t *testing.T, key string, def int) int {
	v, ok := a[key]
	if !ok {
		return def
	}
	n, err := strconv.ParseInt(v, 0, 64)
	if err != nil {
		t.Fatalf("%s=%s: %v", key, v, err)
	}
	return int(n)
}

func (a args) has(key string) bool { _, ok := a[key]; return ok }

func (a args) list(t *testing.T, key string) (out []int) {
	if !a.has(key) {
		return nil
	}
	for _, s := range strings.Split(a[key], ",") {
		n, err := strconv.Atoi(s)
		if err != nil {
			t.Fatalf("%s=%s", key, a[key])
		}
		out = append(out, n)
	}
	return
}

func (c *conversation) printf(format string, args ...any) { fmt.Fprintf(&c.out, format+"\n", args...) }

func (c *conversation) command(t *testing.T, line string) {
	t.Helper()
	f := strings.Fields(line)
	a := args{}
	for _, w := range f[1:] {
		k, v, _ := strings.Cut(w, "=")
		a[k] = v
	}
	var n *node
	if len(f) > 1 && c.world != nil {
		switch f[1] {
		case "a":
			n = c.a
		case "b":
			n = c.b
		}
	}
	if n == nil && !slices.Contains([]string{"new", "tick", "run"}, f[0]) {
		t.Fatalf("%s: which node?", line)
	}
	switch f[0] {
	case "new":
		c.begin(t, a)
	case "post":
		c.post(t, n, f[2], a)
	case "recv":
		c.recv(t, n, a)
	case "pump":
		c.pumpNode(n)
	case "deliver":
		c.deliver(t, n, a)
	case "inject":
		c.inject(t, n, f[2], a)
	case "tick":
		c.tick(t, f[1:])
	case "run":
		c.runAll(t)
	case "fail":
		n.conn.Modify(&verbs.QPAttr{State: verbs.QPErr}, verbs.MaskState)
	case "reset":
		n.conn.Modify(&verbs.QPAttr{State: verbs.QPReset}, verbs.MaskState)
	case "sqd":
		n.conn.Modify(&verbs.QPAttr{State: verbs.QPSQD}, verbs.MaskState)
	case "rts":
		n.conn.Modify(&verbs.QPAttr{State: verbs.QPRTS}, verbs.MaskState)
	case "gone":
		n.mem.entries[0].gone = true
	case "state":
		k := n.conn
		s := fmt.Sprintf("%s %v una=%v nxt=%v top=%v epsn=%v msn=%d window=%d", n.name, k.State(), k.una, k.nxt, k.top, k.epsn, k.msn, k.win.size)
		if nt := k.NextTick(); nt != 0 {
			s += fmt.Sprintf(" next=+%v", time.Duration(nt-c.now))
		}
		c.printf("%s", s)
		st := k.Stats()
		c.printf("%s sent=%d received=%d resent=%d timeouts=%d naks=%d/%d rnr=%d duplicates=%d", n.name,
			st.PacketsSent, st.PacketsReceived, st.Retransmits, st.Timeouts, st.NAKsSent, st.NAKsReceived, st.RNRNAKs, st.Duplicates)
	case "memory":
		m := c.mem[n][a.num(t, "from", 0):][:a.num(t, "len", 8)]
		if !a.has("same") {
			c.printf("%x", m)
			break
		}
		want := c.mem[n][a.num(t, "same", 0):][:len(m)] // both nodes have the same pattern
		if bytes.Equal(m, want) {
			c.printf("same")
		} else {
			c.printf("differs from byte %d on", differ(m, want))
		}
	default:
		t.Fatalf("unknown command %q", line)
	}
	c.flush()
}

// flush prints completions and events that came out since.
func (c *conversation) flush() {
	if c.world == nil {
		return
	}
	for _, n := range []*node{c.a, c.b} {
		for i := range n.done {
			c.printf("%s %s", n.name, completion(&n.done[i]))
		}
		for _, e := range n.events {
			c.printf("%s event %v", n.name, e)
		}
		n.done, n.events = nil, nil
	}
}

func (c *conversation) begin(t *testing.T, a args) {
	q := verbs.QPAttr{PathMTU: a.num(t, "mtu", 256), Timeout: uint8(a.num(t, "timeout", 14)), RetryCount: uint8(a.num(t, "retry", 7)),
		RNRRetry: uint8(a.num(t, "rnr", 7)), MinRNRTimer: uint8(a.num(t, "rnr-timer", 12)), MaxRDAtomic: a.num(t, "rd", 4), MaxDestRDAtomic: a.num(t, "dest-rd", 4)}
	qa, qb := q, q
	qa.SQPSN, qb.SQPSN = uint32(a.num(t, "psn-a", 0x100)), uint32(a.num(t, "psn-b", 0x200))
	qa.RQPSN, qb.RQPSN = qb.SQPSN, qa.SQPSN
	access := func(k string) verbs.Access {
		switch a[k] {
		case "none":
			return verbs.LocalWrite
		case "read":
			return verbs.LocalWrite | verbs.RemoteRead
		}
		return allAccess
	}
	qa.Access, qb.Access = access("access-a"), access("access-b")
	cfg := Config{Cap: verbs.QPCap{MaxSendWR: a.num(t, "sq", 8), MaxRecvWR: a.num(t, "rq", 8), MaxSendSGE: 4, MaxRecvSGE: 4},
		MaxWindow: a.num(t, "window", 64), InitialWindow: a.num(t, "initial", 0), MinRTO: int64(a.num(t, "rto", -1))}
	c.world = pair(qa, qb, cfg, cfg)
	c.now = 1_000_000
	c.queue = map[*node][][]byte{}
	c.mem, c.lkey, c.rkey = map[*node][]byte{}, map[*node]uint32{}, map[*node]uint32{}
	for i, n := range []*node{c.a, c.b} {
		m := c.arena[i]
		clear(m)
		for k := range talkBytes / 2 {
			m[k] = byte(k*7 + k>>8)
		}
		c.mem[n] = m
		c.lkey[n], c.rkey[n] = n.mem.add(m, allAccess)
	}
}

func (c *conversation) post(t *testing.T, n *node, op string, a args) {
	ops := map[string]verbs.Opcode{"send": verbs.OpSend, "send-imm": verbs.OpSendImm, "write": verbs.OpWrite, "write-imm": verbs.OpWriteImm,
		"read": verbs.OpRead, "cas": verbs.OpCAS, "faa": verbs.OpFAA}
	o, ok := ops[op]
	if !ok {
		t.Fatalf("post: operation %q", op)
	}
	length, from, to := a.num(t, "len", 0), a.num(t, "from", 0), a.num(t, "to", talkBytes/2)
	if o >= verbs.OpRead {
		from, to = a.num(t, "from", 0), a.num(t, "to", talkBytes/2)
		from, to = to, from // the local side is written
	}
	if o >= verbs.OpCAS {
		length = 8
	}
	wr := verbs.SendWR{ID: verbs.WRID(a.num(t, "id", 1)), Op: o, Flags: verbs.Signaled, Imm: uint32(a.num(t, "imm", 0)),
		RemoteAddr: verbs.AddrOf(c.mem[n.peer]) + uint64(to), RKey: c.rkey[n.peer],
		CompareAdd: uint64(a.num(t, "add", a.num(t, "compare", 0))), Swap: uint64(a.num(t, "swap", 0))}
	if o >= verbs.OpCAS {
		wr.RemoteAddr = verbs.AddrOf(c.mem[n.peer]) + uint64(a.num(t, "at", talkBytes/2))
	}
	lkey := c.lkey[n]
	if a["rkey"] == "bad" {
		wr.RKey ^= 0x5000
	}
	if a["lkey"] == "bad" {
		lkey ^= 0x5000
	}
	if a.has("unsignaled") {
		wr.Flags &^= verbs.Signaled
	}
	if a.has("solicited") {
		wr.Flags |= verbs.Solicited
	}
	if a.has("fence") {
		wr.Flags |= verbs.Fence
	}
	var sges []verbs.SGE
	addr := verbs.AddrOf(c.mem[n]) + uint64(from)
	k := a.num(t, "sges", 1)
	for i := range k {
		part := length / k
		if i == k-1 {
			part = length - part*(k-1)
		}
		sges = append(sges, verbs.SGE{Addr: addr, Length: uint32(part), LKey: lkey})
		addr += uint64(part)
	}
	wr.NumSGE = uint16(k)
	if _, err := n.conn.PostSend([]verbs.SendWR{wr}, sges); err != nil {
		c.printf("%s %v", n.name, err)
	}
}

func (c *conversation) recv(t *testing.T, n *node, a args) {
	lkey := c.lkey[n]
	if a["lkey"] == "bad" {
		lkey ^= 0x5000
	}
	sge := verbs.SGE{Addr: verbs.AddrOf(c.mem[n]) + uint64(a.num(t, "to", talkBytes/2)), Length: uint32(a.num(t, "len", 0)), LKey: lkey}
	if _, err := n.conn.PostRecv([]verbs.RecvWR{{ID: verbs.WRID(a.num(t, "id", 1)), NumSGE: 1}}, []verbs.SGE{sge}); err != nil {
		c.printf("%s %v", n.name, err)
	}
}

// pumpNode prints what a node sends and queues it.
func (c *conversation) pumpNode(n *node) {
	for more := true; more; {
		more = n.conn.Pump(c.now, n.out)
		c.collect(n, func(to *node, b []byte) {
			c.queue[n] = append(c.queue[n], b)
			var p wire.Packet
			if err := p.Parse(b); err != nil {
				panic(err)
			}
			c.printf("%d: %s -> %s", len(c.queue[n]), n.name, describe(&p))
		})
	}
}

func (c *conversation) give(to *node, b []byte) {
	var p wire.Packet
	if err := p.Parse(b); err != nil {
		panic(err)
	}
	to.conn.Step(c.now, &p, to.out)
	c.collect(to, nil)
}

func (c *conversation) deliver(t *testing.T, from *node, a args) {
	q := c.queue[from]
	delete(c.queue, from)
	var order []int
	for i := range q {
		order = append(order, i+1)
	}
	if a.has("order") {
		order = a.list(t, "order")
	}
	if a.has("only") {
		order = a.list(t, "only")
	}
	drop, dup := a.list(t, "drop"), a.list(t, "dup")
	for _, i := range order {
		if slices.Contains(drop, i) {
			continue
		}
		c.give(from.peer, q[i-1])
		if slices.Contains(dup, i) {
			c.give(from.peer, q[i-1])
		}
	}
}

func (c *conversation) inject(t *testing.T, to *node, op string, a args) {
	var p wire.Packet
	for i := range wire.Opcode(32) {
		if i.Known() && i.String() == op {
			p.Opcode = i
		}
	}
	p.PKey = uint16(a.num(t, "pkey", 0xffff))
	p.DestQPN = uint32(a.num(t, "qpn", int(to.conn.cfg.QPN)))
	p.PSN = wire.PSN(a.num(t, "psn", 0))
	p.VA = verbs.AddrOf(c.mem[to]) + uint64(a.num(t, "va", talkBytes/2))
	p.RKey = c.rkey[to]
	if a["rkey"] == "bad" {
		p.RKey ^= 0x5000
	}
	p.Length = uint32(a.num(t, "dma", 0))
	p.Imm = uint32(a.num(t, "imm", 0))
	p.SwapAdd, p.Compare = uint64(a.num(t, "swap", 0)), uint64(a.num(t, "compare", 0))
	p.Orig = uint64(a.num(t, "orig", 0))
	p.Syndrome = uint8(a.num(t, "syndrome", 0x1f))
	p.AckReq = a.has("ask")
	p.Payload = make([]byte, a.num(t, "len", 0))
	p.Pad = uint8(-len(p.Payload) & 3)
	c.give(to, append(p.Append(nil), 0, 0, 0, 0))
}

func (c *conversation) tick(t *testing.T, f []string) {
	if len(f) > 0 {
		d, err := time.ParseDuration(f[0])
		if err != nil {
			t.Fatal(err)
		}
		c.now += int64(d)
	} else {
		next := int64(0)
		for _, n := range []*node{c.a, c.b} {
			if at := n.conn.NextTick(); at != 0 && (next == 0 || at < next) {
				next = at
			}
		}
		if next == 0 {
			c.printf("no timer runs")
			return
		}
		c.printf("+%v", time.Duration(next-c.now))
		c.now = next
	}
	for _, n := range []*node{c.a, c.b} {
		n.conn.Tick(c.now, n.out)
		c.collect(n, nil)
	}
}

func (c *conversation) runAll(t *testing.T) {
	for range 1000 {
		c.pumpNode(c.a)
		c.pumpNode(c.b)
		c.flush()
		if len(c.queue) == 0 {
			return
		}
		c.deliver(t, c.a, nil)
		c.flush()
		c.deliver(t, c.b, nil)
		c.flush()
	}
	t.Fatal("run: no end")
}
