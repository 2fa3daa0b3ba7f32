package ps

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/railstore/railstore/stages/table"
	"github.com/railstore/railstore/verbs"
	"github.com/railstore/railstore/verbs/lane"
)

func TestShardOfVectors(t *testing.T) {
	for _, v := range []struct {
		key, mix uint64
		of3, of7 int
	}{
		{0, 0x0, 0, 0},
		{1, 0x5692161d100b05e5, 1, 6},
		{2, 0xdbd238973a2b148a, 1, 1},
		{42, 0xa759ea27d4727622, 2, 3},
		{1 << 32, 0xd820b7e910b0f93f, 1, 2},
		{math.MaxUint64, 0xb4d055fcf2cbbd7b, 0, 0},
		{0x0123456789abcdef, 0xb2c058e4ebb5112c, 2, 6},
	} {
		if Mix(v.key) != v.mix || ShardOf(v.key, 3) != v.of3 || ShardOf(v.key, 7) != v.of7 {
			t.Errorf("{%#x, %#x, %d, %d},", v.key, Mix(v.key), ShardOf(v.key, 3), ShardOf(v.key, 7))
		}
	}
}

// Sequential, strided and random keys spread evenly: a shard is not the hot one because
// of how keys are numbered.
func TestShardOfSpreads(t *testing.T) {
	for _, stride := range []uint64{1, 2, 8, 1 << 20, 1 << 56} {
		var n [5]int
		for i := range uint64(50000) {
			n[ShardOf(i*stride, 5)]++
		}
		if stride == 1<<56 {
			continue // 256 different keys
		}
		for s, c := range n {
			if c < 9500 || c > 10500 {
				t.Errorf("stride %d: shard %d has %d of 50000", stride, s, c)
			}
		}
	}
}

func TestRequestRoundTrip(t *testing.T) {
	r := request{protocol: 2, flags: flagMemory, keys: 3, dim: 65536, memory: verbs.RemoteRegion{Addr: 1 << 60, Length: 1 << 20, RKey: 7}}
	r.setName(strings.Repeat("n", maxName))
	b := make([]byte, headerBytes+24)
	r.put(b)
	var got request
	rest, err := got.parse(OpPut, b)
	if err != nil || len(rest) != 24 || got != r {
		t.Fatalf("%+v, %v; want %+v", got, err, r)
	}
	u := request{keys: 0, dim: 1, client: 9, sequence: 11}
	u.put(b)
	got = request{}
	if _, err := got.parse(OpUpdate, b); err != nil || got != u {
		t.Fatalf("%+v, %v", got, err)
	}
	spec := table.Spec{Name: "x", Dim: 7, NonFinite: table.ZeroNonFinite, Optimizer: table.Optimizer{Kind: table.AdamW, LearningRate: .1, Eps: 1e-9, Beta1: .8, Beta2: .7, WeightDecay: .6}}
	e := make([]byte, entryBytes)
	if err := putEntry(e, &spec, 12, 13); err != nil {
		t.Fatal(err)
	}
	if in, err := parseEntry(e); err != nil || in.Spec != spec || in.Rows != 12 || in.Bytes != 13 {
		t.Fatalf("%+v, %v", in, err)
	}
	p := make([]byte, 100)
	n := putError(p, CodeMemory, 77, "no\x1b[2Jroom\n")
	if c, a, text := parseError(p[:n]); c != CodeMemory || a != 77 || text != "no?[2Jroom?" {
		t.Errorf("%v %v %q", c, a, text)
	}
}

// fakeExchange is a request without a lane.
type fakeExchange struct {
	op       uint16
	payload  []byte
	response []byte
	wire     error
	moved    int

	status  lane.Status
	n       int
	answers int
}

func (x *fakeExchange) Context() context.Context { return context.Background() }
func (x *fakeExchange) Op() uint16               { return x.op }
func (x *fakeExchange) Rail() string             { return "a" }
func (x *fakeExchange) Node() string             { return "client/x" }
func (x *fakeExchange) Payload() []byte          { return x.payload }
func (x *fakeExchange) Response() []byte         { return x.response }
func (x *fakeExchange) Read(context.Context, []verbs.SGE, verbs.RemoteRegion) error {
	x.moved++
	return x.wire
}
func (x *fakeExchange) Write(context.Context, []verbs.SGE, verbs.RemoteRegion) error {
	x.moved++
	return x.wire
}
func (x *fakeExchange) Reply(st lane.Status, n int) {
	x.status, x.n = st, n
	x.answers++
}

// newService is a service without rails.
func newService(t testing.TB) *Service {
	t.Helper()
	store, err := table.Open(table.Config{Limit: 8 << 20, ChunkBytes: 1 << 20, PageBytes: 64 << 10})
	if err != nil {
		t.Fatal(err)
	}
	s := NewService(ServiceConfig{Store: store, Shard: 4, Snapshots: t.TempDir()})
	t.Cleanup(func() {
		if err := errors.Join(s.Close(), store.Close()); err != nil {
			t.Error(err)
		}
	})
	if _, err := store.Init(table.Spec{Name: "t", Dim: 4}); err != nil {
		t.Fatal(err)
	}
	return s
}

func requestOf(op uint16, keys int, extra int) []byte {
	r := request{keys: keys, dim: 4}
	r.setName("t")
	switch op {
	case OpPut:
		r.protocol = 2
	case OpExists, OpDelete:
		r.dim = 0
	case OpGet, OpUpdate:
	default:
		r.dim = 0
	}
	b := make([]byte, headerBytes+8*keys+extra)
	r.put(b)
	for i := range keys {
		binary.LittleEndian.PutUint64(b[headerBytes+8*i:], uint64(i))
	}
	return b
}

// Every field of a request, wrong. Each is answered once, with the status that it should
// have, nothing is moved and nothing changes.
func TestHostileRequests(t *testing.T) {
	s := newService(t)
	le := binary.LittleEndian
	put32 := func(at int, v uint32) func([]byte) []byte {
		return func(b []byte) []byte { le.PutUint32(b[at:], v); return b }
	}
	put64 := func(at int, v uint64) func([]byte) []byte {
		return func(b []byte) []byte { le.PutUint64(b[at:], v); return b }
	}
	put8 := func(at int, v byte) func([]byte) []byte {
		return func(b []byte) []byte { b[at] = v; return b }
	}
	flags := func(v uint16) func([]byte) []byte {
		return func(b []byte) []byte { le.PutUint16(b[2:], v); return b }
	}
	cut := func(n int) func([]byte) []byte { return func(b []byte) []byte { return b[:n] } }
	both := func(f ...func([]byte) []byte) func([]byte) []byte {
		return func(b []byte) []byte {
			for _, g := range f {
				b = g(b)
			}
			return b
		}
	}
	for _, c := range []struct {
		name string
		op   uint16
		keys int
		more int
		room int
		f    func([]byte) []byte
		want lane.Status
		code Code
	}{
		{"nothing", OpGet, 2, 0, 4096, cut(0), lane.StatusInvalid, CodeBadRequest},
		{"half a header", OpGet, 2, 0, 4096, cut(headerBytes - 1), lane.StatusInvalid, CodeBadRequest},
		{"version", OpGet, 2, 0, 4096, put8(0, 2), lane.StatusInvalid, CodeBadRequest},
		{"protocol", OpPut, 2, 32, 4096, put8(1, 3), lane.StatusInvalid, CodeBadRequest},
		{"protocol 0", OpPut, 2, 32, 4096, put8(1, 0), lane.StatusInvalid, CodeBadRequest},
		{"protocol 1 with memory", OpPut, 2, 0, 4096, both(put8(1, 1), flags(flagMemory), put64(40, 64)), lane.StatusInvalid, CodeBadRequest},
		{"protocol of a get", OpGet, 2, 0, 4096, put8(1, 2), lane.StatusInvalid, CodeBadRequest},
		{"unknown flag", OpGet, 2, 0, 4096, flags(0x80), lane.StatusInvalid, CodeBadRequest},
		{"fallback of nothing", OpGet, 2, 0, 4096, flags(flagFallback), lane.StatusInvalid, CodeBadRequest},
		{"flag of another", OpDelete, 2, 0, 4096, flags(flagMemory), lane.StatusInvalid, CodeBadRequest},
		{"exact get", OpGet, 2, 0, 4096, flags(flagExact), lane.StatusInvalid, CodeBadRequest},
		{"more keys than bytes", OpGet, 2, 0, 4096, put32(4, 3), lane.StatusInvalid, CodeBadRequest},
		{"fewer keys than bytes", OpGet, 2, 0, 4096, put32(4, 1), lane.StatusInvalid, CodeBadRequest},
		{"all the keys there are", OpGet, 2, 0, 4096, put32(4, math.MaxUint32), lane.StatusInvalid, CodeBadRequest},
		{"keys whose bytes overflow", OpPut, 2, 32, 4096, put32(4, 1<<29), lane.StatusInvalid, CodeBadRequest},
		{"a key too few bytes", OpGet, 2, 0, 4096, cut(headerBytes + 15), lane.StatusInvalid, CodeBadRequest},
		{"dim 0", OpGet, 2, 0, 4096, put32(8, 0), lane.StatusSizeMismatch, CodeShape},
		{"another dim", OpGet, 2, 0, 4096, put32(8, 5), lane.StatusSizeMismatch, CodeShape},
		{"dim beyond", OpGet, 2, 0, 4096, put32(8, 65537), lane.StatusInvalid, CodeBadRequest},
		{"all the floats there are", OpPut, 2, 32, 4096, put32(8, math.MaxUint32), lane.StatusInvalid, CodeBadRequest},
		{"dim of exists", OpExists, 2, 0, 4096, put32(8, 4), lane.StatusInvalid, CodeBadRequest},
		{"reserved", OpGet, 2, 0, 4096, put32(12, 1), lane.StatusInvalid, CodeBadRequest},
		{"reserved too", OpGet, 2, 0, 4096, put32(52, 1<<31), lane.StatusInvalid, CodeBadRequest},
		{"token of a get", OpGet, 2, 0, 4096, put64(24, 1), lane.StatusInvalid, CodeBadRequest},
		{"client of a put", OpPut, 2, 32, 4096, put64(16, 1), lane.StatusInvalid, CodeBadRequest},
		{"memory that wraps", OpGet, 2, 0, 4096, both(flags(flagMemory), put64(32, math.MaxUint64), put64(40, 2)), lane.StatusInvalid, CodeBadRequest},
		{"memory for nothing", OpGet, 2, 0, 4096, put64(32, 64), lane.StatusInvalid, CodeBadRequest},
		{"memory too short", OpPut, 2, 0, 4096, both(flags(flagMemory), put64(40, 31)), lane.StatusTooLarge, CodeTooLarge},
		{"memory without rails", OpPut, 2, 0, 4096, both(flags(flagMemory), put64(40, 32)), lane.StatusInternal, CodeInternal},
		{"gather without rails", OpGet, 2, 0, 4096, both(flags(flagMemory), put64(40, 32)), lane.StatusInternal, CodeInternal},
		{"gather of another dim", OpGet, 2, 0, 4096, both(flags(flagMemory), put64(40, 64), put32(8, 5)), lane.StatusSizeMismatch, CodeShape},
		{"memory of another dim", OpPut, 2, 0, 4096, both(flags(flagMemory), put64(40, 64), put32(8, 5)), lane.StatusSizeMismatch, CodeShape},
		{"a name to the end", OpGet, 2, 0, 4096, func(b []byte) []byte { copy(b[56:], strings.Repeat("x", 64)); return b }, lane.StatusInvalid, CodeBadRequest},
		{"a name that goes on", OpGet, 2, 0, 4096, put8(60, 'x'), lane.StatusInvalid, CodeBadRequest},
		{"no name", OpGet, 2, 0, 4096, put8(56, 0), lane.StatusNotFound, CodeNoTable},
		{"no such table", OpGet, 2, 0, 4096, put8(56, 'u'), lane.StatusNotFound, CodeNoTable},
		{"no such table to put", OpPut, 2, 32, 4096, put8(56, 'u'), lane.StatusNotFound, CodeNoTable},
		{"no such table to delete", OpDelete, 2, 0, 4096, put8(56, 'u'), lane.StatusNotFound, CodeNoTable},
		{"no such table to clear", OpClear, 0, 0, 4096, put8(56, 'u'), lane.StatusNotFound, CodeNoTable},
		{"no room for a header", OpGet, 2, 0, 15, nil, lane.StatusTooLarge, CodeTooLarge},
		{"no room at all", OpGet, 2, 0, 0, nil, lane.StatusTooLarge, CodeTooLarge},
		{"no room for the bits", OpGet, 2, 0, 23, nil, lane.StatusTooLarge, CodeTooLarge},
		{"no room for the rows", OpGet, 2, 0, 55, nil, lane.StatusTooLarge, CodeTooLarge},
		{"no room for exists", OpExists, 2, 0, 23, nil, lane.StatusTooLarge, CodeTooLarge},
		{"rows too few", OpPut, 2, 31, 4096, nil, lane.StatusInvalid, CodeBadRequest},
		{"rows too many", OpUpdate, 2, 33, 4096, nil, lane.StatusInvalid, CodeBadRequest},
		{"a NaN", OpUpdate, 2, 32, 4096, put32(headerBytes+16, 0x7fc00000), lane.StatusInvalid, CodeNonFinite},
		{"keys in clear", OpClear, 1, 0, 4096, nil, lane.StatusInvalid, CodeBadRequest},
		{"bytes in drop", OpDrop, 0, 1, 4096, nil, lane.StatusInvalid, CodeBadRequest},
		{"bytes in tables", OpTables, 0, 8, 4096, nil, lane.StatusInvalid, CodeBadRequest},
		{"no room for tables", OpTables, 0, 0, 100, put8(56, 0), lane.StatusTooLarge, CodeTooLarge},
		{"no room for stats", OpStats, 0, 0, 20, put8(56, 0), lane.StatusTooLarge, CodeTooLarge},
		{"bytes in barrier", OpBarrier, 0, 1, 4096, nil, lane.StatusInvalid, CodeBadRequest},
		{"no shape", OpInit, 0, 0, 4096, nil, lane.StatusInvalid, CodeBadRequest},
		{"half a shape", OpInit, 0, specBytes - 1, 4096, nil, lane.StatusInvalid, CodeBadRequest},
		{"a shape of zeros", OpInit, 0, specBytes, 4096, nil, lane.StatusInvalid, CodeBadRequest},
		{"dim 0 in init", OpInit, 0, specBytes, 4096, both(put8(headerBytes+4, 1), put8(headerBytes+5, 1)), lane.StatusSizeMismatch, CodeShape},
		{"optimizer 6", OpInit, 0, specBytes, 4096, both(put8(headerBytes, 4), put8(headerBytes+4, 6), put8(headerBytes+5, 1)), lane.StatusInvalid, CodeBadRequest},
		{"another shape", OpInit, 0, specBytes, 4096, both(put8(headerBytes, 5), put8(headerBytes+4, 1), put8(headerBytes+5, 1)), lane.StatusSizeMismatch, CodeShape},
		{"a NaN of a rate", OpInit, 0, specBytes, 4096, both(put8(headerBytes, 4), put8(headerBytes+4, 1), put8(headerBytes+5, 1), put64(headerBytes+8, 0x7ff8000000000000)), lane.StatusSizeMismatch, CodeShape},
		{"save of nothing", OpSave, 0, 0, 4096, put8(56, 0), lane.StatusInvalid, CodeBadRequest},
		{"save without a name", OpSave, 0, stepHead, 4096, stepOf(step{step: stepPrepare, id: someID}), lane.StatusInvalid, CodeBadRequest},
		{"save elsewhere", OpSave, 0, stepHead + 4, 4096, stepOf(step{step: stepPrepare, id: someID, name: "../x"}), lane.StatusInvalid, CodeBadRequest},
		{"save without an ID", OpSave, 0, stepHead + 1, 4096, stepOf(step{step: stepPrepare, name: "x"}), lane.StatusInvalid, CodeBadRequest},
		{"save on nothing", OpSave, 0, stepHead + 2, 4096, stepOf(step{step: stepPrepare, id: someID, name: "x", base: "y"}), lane.StatusInvalid, CodeBadRequest},
		{"save on what is not there", OpSave, 0, stepHead + 2, 4096, stepOf(step{step: stepPrepare, id: someID, name: "x", base: "y", baseID: someID}), lane.StatusNotFound, CodeSnapshot},
		{"load with a base", OpLoad, 0, stepHead + 2, 4096, stepOf(step{step: stepPrepare, id: someID, name: "x", base: "y", baseID: someID}), lane.StatusInvalid, CodeBadRequest},
		{"look in save", OpSave, 0, stepHead + 1, 4096, stepOf(step{step: stepLook, name: "x"}), lane.StatusInvalid, CodeBadRequest},
		{"look with an ID", OpLoad, 0, stepHead + 1, 4096, stepOf(step{step: stepLook, id: someID, name: "x"}), lane.StatusInvalid, CodeBadRequest},
		{"no room to look", OpLoad, 0, stepHead + 1, responseHeader + snapshotBytes - 1, stepOf(step{step: stepLook, name: "x"}), lane.StatusTooLarge, CodeTooLarge},
		{"step 5", OpLoad, 0, stepHead + 1, 4096, stepOf(step{step: 5, id: someID, name: "x"}), lane.StatusInvalid, CodeBadRequest},
		{"a load by force", OpLoad, 0, stepHead + 1, 4096, stepOf(step{step: stepCommit, force: true, id: someID, name: "x"}), lane.StatusInvalid, CodeBadRequest},
		{"a byte more", OpLoad, 0, stepHead + 2, 4096, stepOf(step{step: stepLook, name: "x"}), lane.StatusInvalid, CodeBadRequest},
		{"load of none", OpLoad, 0, stepHead + 1, 4096, stepOf(step{step: stepPrepare, number: 7, id: someID, name: "x"}), lane.StatusNotFound, CodeSnapshot},
		{"commit of no save", OpSave, 0, stepHead + 1, 4096, stepOf(step{step: stepCommit, id: someID, name: "x"}), lane.StatusNotFound, CodeSnapshot},
		{"commit of no load", OpLoad, 0, stepHead + 1, 4096, stepOf(step{step: stepCommit, number: 99, id: someID, name: "x"}), lane.StatusNotFound, CodeSnapshot},
		{"operation 0", 0x0200, 0, 0, 4096, nil, lane.StatusInvalid, CodeBadRequest},
		{"operation beyond", 0x02ff, 0, 0, 4096, nil, lane.StatusInvalid, CodeBadRequest},
	} {
		b := requestOf(c.op, c.keys, c.more)
		if c.f != nil {
			b = c.f(b)
		}
		x := &fakeExchange{op: c.op, payload: b, response: make([]byte, c.room)}
		s.serve(x)
		code, applied, text := parseError(x.response[:x.n])
		if x.answers != 1 || x.status != c.want || x.moved != 0 || applied != 0 || (c.room >= errorHeader && (code != c.code || text == "")) {
			t.Errorf("%s: %d answers, %v code %d (%s), %d transfers; want %v code %d", c.name, x.answers, x.status, code, text, x.moved, c.want, c.code)
		}
	}
	if n := s.cfg.Store.Table("t").Len(); n != 0 {
		t.Errorf("%d rows came from requests that were refused", n)
	}
	if n := len(s.cfg.Store.Tables()); n != 1 {
		t.Errorf("%d tables", n)
	}
}

// What a client is answered may be anything, too.
func TestHostileAnswers(t *testing.T) {
	good := make([]byte, 64)
	(&response{keys: 2, count: 1, dim: 3}).put(good)
	for name, b := range map[string][]byte{"nothing": nil, "short": good[:15], "version": append([]byte{2}, good[1:]...), "flags": append([]byte{1, 0x80}, good[2:]...),
		"reserved": append([]byte{1, 0, 1}, good[3:]...)} {
		if _, err := new(response).parse(b); !errors.Is(err, ErrBadResponse) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := answered(lane.StatusInternal, nil); !errors.Is(err, ErrInternal) || !errors.Is(err, lane.StatusInternal) {
		t.Error(err)
	}
	if n, err := answered(lane.Status(-99), []byte{1, 200, 0, 0, 9, 0, 0, 0}); !errors.Is(err, ErrInternal) || n != 9 {
		t.Error(err, n)
	}
	if _, err := parseEntry(make([]byte, entryBytes)); !errors.Is(err, ErrBadResponse) {
		t.Error(err)
	}
}

// panicExchange is one whose context is a bug.
type panicExchange struct{ *fakeExchange }

func (panicExchange) Context() context.Context { panic("no context") }

// A handler that panics costs its request alone.
func TestPanicIsAnswered(t *testing.T) {
	s := newService(t)
	b := requestOf(OpBarrier, 0, 0)
	b[56] = 0
	x := &fakeExchange{op: OpBarrier, payload: b, response: make([]byte, 256)}
	s.serve(panicExchange{x})
	if c, _, text := parseError(x.response[:x.n]); x.answers != 1 || x.status != lane.StatusInternal || c != CodeInternal || !strings.Contains(text, "no context") {
		t.Errorf("%d answers, %v, %q", x.answers, x.status, text)
	}
	s.serve(x)
	if x.status != lane.StatusOK {
		t.Errorf("the next one: %v", x.status)
	}
}

func FuzzRequest(f *testing.F) {
	for op := range opNames {
		f.Add(op, requestOf(op, 2, 32), 256)
		f.Add(op, requestOf(op, 0, specBytes), 4096)
	}
	f.Fuzz(func(t *testing.T, op uint16, b []byte, room int) {
		s := fuzzService(t)
		x := &fakeExchange{op: op, payload: b, response: make([]byte, min(max(room, 0), 1<<16))}
		s.serve(x)
		if x.answers != 1 || x.n < 0 || x.n > len(x.response) {
			t.Errorf("%d answers of %d bytes, room for %d", x.answers, x.n, len(x.response))
		}
		var r request
		if rest, err := r.parse(op, b); err == nil {
			again := make([]byte, headerBytes)
			r.put(again)
			var q request
			if _, err := q.parse(op, append(again, rest...)); err != nil || q != r {
				t.Errorf("%+v is written as %+v, %v", r, q, err)
			}
		}
	})
}

func fuzzService(t *testing.T) *Service {
	store, err := table.Open(table.Config{Limit: 4 << 20, ChunkBytes: 1 << 20, PageBytes: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	s := NewService(ServiceConfig{Store: store})
	t.Cleanup(func() { _ = s.Close(); _ = store.Close() })
	if _, err := store.Init(table.Spec{Name: "t", Dim: 4}); err != nil {
		t.Fatal(err)
	}
	return s
}

func FuzzAnswer(f *testing.F) {
	b := make([]byte, entryBytes)
	_ = putEntry(b, &table.Spec{Name: "x", Dim: 3}, 1, 2)
	f.Add(b, int32(0))
	f.Add([]byte{1, 5, 0, 0, 1, 0, 0, 0, 'x'}, int32(-5))
	f.Fuzz(func(t *testing.T, b []byte, st int32) {
		if _, err := answered(lane.Status(st), b); err == nil || err.Error() == "" {
			t.Error("an answer that is no success without an error")
		}
		_, _ = parseEntry(b)
		var r response
		if rest, err := r.parse(b); err == nil {
			out := make([]byte, responseHeader)
			r.put(out)
			var q response
			if _, err := q.parse(append(out, rest...)); err != nil || q != r {
				t.Errorf("%+v %+v", q, r)
			}
		}
		_ = fmt.Sprint(new(Stats).decode(b))
	})
}
