package ps

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/railstore/railstore/pipeline"
	"github.com/railstore/railstore/stages/table"
)

var someID = table.SaveID{1, 2, 3}

// stepOf makes a request one of a step, as far as it has room.
func stepOf(s step) func([]byte) []byte {
	return func(b []byte) []byte {
		b[56] = 0
		copy(b[headerBytes:], s.bytes())
		return b
	}
}

func layerOf(err error) pipeline.Layer {
	var at *pipeline.Error
	if !errors.As(err, &at) {
		return ""
	}
	return at.Layer
}

// snapshotSite is two shards with a table of rows, whose value the test changes.
type snapshotSite struct {
	*site
	t    *testing.T
	ss   *Session
	tb   *Table
	keys []uint64
	ctx  context.Context
}

func newSnapshotSite(t *testing.T, w where) *snapshotSite {
	s := newSite(t, w, nil)
	ss := s.session(nil)
	x := &snapshotSite{site: s, t: t, ss: ss, tb: s.table(ss, table.Spec{Name: "v", Dim: 3, Optimizer: table.Defaults(table.AdaGrad)}), ctx: within(t, 60*time.Second)}
	for i := range 300 {
		x.keys = append(x.keys, uint64(i))
	}
	return x
}

func (x *snapshotSite) put(keys []uint64, v float32) {
	x.t.Helper()
	rows := make([]float32, 3*len(keys))
	for i := range rows {
		rows[i] = v
	}
	if err := x.tb.Put(x.ctx, keys, rows); err != nil {
		x.t.Fatal(err)
	}
}

// want demands of each shard's keys a value.
func (x *snapshotSite) want(what string, keys []uint64, at ...float32) {
	x.t.Helper()
	rows := make([]float32, 3*len(keys))
	if err := x.tb.Get(x.ctx, keys, rows, nil); err != nil {
		x.t.Fatal(err)
	}
	for i, k := range keys {
		if v := at[ShardOf(k, 2)%len(at)]; rows[3*i] != v {
			x.t.Fatalf("%s: key %d has %v, want %v", what, k, rows[3*i], v)
		}
	}
}

func (x *snapshotSite) save(name, base string) Snapshot {
	x.t.Helper()
	s, err := x.ss.Save(x.ctx, name, base)
	if err != nil {
		x.t.Fatal(err)
	}
	return s
}

func (x *snapshotSite) load(name string) Snapshot {
	x.t.Helper()
	s, err := x.ss.Load(x.ctx, name)
	if err != nil {
		x.t.Fatal(err)
	}
	return s
}

// file is the one of a shard's snapshot.
func (x *snapshotSite) file(shard int, pattern string) string {
	x.t.Helper()
	found, _ := filepath.Glob(filepath.Join(x.shard(shard).folder, pattern))
	if len(found) != 1 {
		x.t.Fatalf("shard %d has %v of %s", shard, found, pattern)
	}
	return found[0]
}

// An incremental save has what has changed, at every shard, and loads with what it stands
// on; a load is a base, too.
func TestIncrementalSave(t *testing.T) {
	each(t, func(t *testing.T, w where) {
		x := newSnapshotSite(t, w)
		x.put(x.keys, 1)
		full := x.save("full", "")
		x.put(x.keys[:10], 2)
		if _, err := x.tb.Delete(x.ctx, x.keys[20:24]); err != nil {
			t.Fatal(err)
		}
		more := x.save("more", "full")
		x.put(x.keys, 3)
		rows, deleted := uint64(0), uint64(0)
		for i, s := range more.Shards {
			rows, deleted = rows+s.Rows, deleted+s.Deleted
			if s.Shard != i || s.Outcome != Changed || s.Whole != 0 || s.Tables != 1 {
				t.Errorf("%+v", s)
			}
		}
		if rows != 10 || deleted != 4 || more.BaseID != full.ID {
			t.Errorf("%d rows, %d deleted keys, base %s of %s", rows, deleted, more.BaseID, full.ID)
		}
		x.load("full")
		x.want("full", x.keys, 1)
		got := x.load("more")
		x.want("more", x.keys[:10], 2)
		x.want("more", x.keys[20:24], 0)
		x.want("more", x.keys[30:], 1)
		if got.ID != more.ID || got.Shards[0].Rows+got.Shards[1].Rows != 296 {
			t.Errorf("%+v", got)
		}
		x.put(x.keys[:1], 4)
		last := x.save("last", "more")
		if n := last.Shards[0].Rows + last.Shards[1].Rows; n != 1 {
			t.Errorf("%d rows after a load and one put", n)
		}
		if _, err := x.ss.Save(x.ctx, "none", "none-at-all"); !errors.Is(err, ErrSnapshot) {
			t.Errorf("a base that is not there: %v", err)
		}
		if _, err := x.ss.Save(x.ctx, "last", "last"); !errors.Is(err, ErrBadRequest) {
			t.Errorf("its own base: %v", err)
		}
		// What a shard has changed before it was started nobody knows.
		folder := x.shard(1).folder
		x.stop(1)
		x.serve(1, folder)
		var err error
		for x.ctx.Err() == nil { // the lanes need a moment to find the shard again
			if _, err = x.ss.Save(x.ctx, "again", "last"); errors.Is(err, ErrSnapshot) {
				break
			}
		}
		if err == nil || !strings.Contains(err.Error(), "what has changed since save") {
			t.Error(err)
		}
		x.load("last")
		x.want("last", x.keys[:1], 4)
		x.save("again", "last")
	})
}

// A snapshot that is damaged at one shard changes none, and is told as damage.
func TestDamagedSnapshot(t *testing.T) {
	w := wheres(t)[0]
	x := newSnapshotSite(t, w)
	x.put(x.keys, 1)
	x.save("one", "")
	path := x.file(1, "one.*.rstab")
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	x.put(x.keys, 2)
	flipped := append([]byte(nil), good...)
	flipped[len(flipped)/2] ^= 4
	for what, b := range map[string][]byte{"cut": good[:len(good)-9], "cut in its head": good[:50], "flipped": flipped, "longer": append(append([]byte(nil), good...), 0), "empty": nil} {
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		s, err := x.ss.Load(x.ctx, "one")
		if !errors.Is(err, ErrDamaged) || layerOf(err) != pipeline.LayerIntegrity || !strings.Contains(err.Error(), "shard 1") {
			t.Errorf("%s: %v, layer %s", what, err, layerOf(err))
		}
		for _, sh := range s.Shards {
			if sh.Outcome != Unchanged {
				t.Errorf("%s: %+v", what, sh)
			}
		}
		x.want(what, x.keys, 2)
	}
	for id := range 2 {
		if j := x.shard(id).service.jobs; len(j) > 0 {
			for _, j := range j {
				<-j.ended // what was read beside the damaged one has been given up
			}
		}
	}
	if err := os.WriteFile(path, good, 0o600); err != nil {
		t.Fatal(err)
	}
	x.load("one")
	x.want("mended", x.keys, 1)
}

// A save that one shard cannot write leaves the old one at all; one that was committed at
// one shard only is completed by the next load; parts of two saves are refused.
func TestSaveIsOfAllOrNone(t *testing.T) {
	x := newSnapshotSite(t, wheres(t)[0])
	x.put(x.keys, 1)
	old := x.save("one", "")
	x.put(x.keys, 2)
	// A folder where shard 1's file should be written.
	st := step{id: table.NewSaveID(), name: "one"}
	blocked := filepath.Join(x.shard(1).folder, "one.1-of-2."+st.id.String()+".pending.partial")
	if err := os.Mkdir(blocked, 0o700); err != nil {
		t.Fatal(err)
	}
	s := Snapshot{Name: "one", ID: st.id}
	if err := x.ss.prepare(x.ctx, OpSave, &s, &st); !errors.Is(err, ErrSnapshot) || !strings.Contains(err.Error(), "shard 1") {
		t.Errorf("a shard that cannot write: %v", err)
	}
	if left, _ := filepath.Glob(filepath.Join(x.shard(0).folder, "*.pending")); len(left) > 0 {
		t.Errorf("left %v", left)
	}
	if got := x.load("one"); got.ID != old.ID {
		t.Error("another save was loaded")
	}
	x.want("the old save", x.keys, 1)

	x.put(x.keys, 3)
	st = step{id: table.NewSaveID(), name: "one"}
	s = Snapshot{Name: "one", ID: st.id}
	if err := x.ss.prepare(x.ctx, OpSave, &s, &st); err != nil {
		t.Fatal(err)
	}
	x.load("one")
	x.want("a save that was prepared only", x.keys, 1)
	commit := st
	commit.step = stepCommit
	if _, err := x.ss.step(x.ctx, OpSave, 1, &commit); err != nil {
		t.Fatal(err)
	}
	if got := x.load("one"); got.ID != st.id {
		t.Error("the old save was loaded")
	}
	x.want("a save that was committed at one shard", x.keys, 3)

	// Two saves of one name at once, whose commits cross: neither is whole, and the next
	// load completes the later one.
	var crossing [2]step
	for i := range crossing {
		x.put(x.keys, float32(6+i))
		crossing[i] = step{id: table.NewSaveID(), name: "one"}
		s = Snapshot{Name: "one", ID: crossing[i].id}
		if err := x.ss.prepare(x.ctx, OpSave, &s, &crossing[i]); err != nil {
			t.Fatal(err)
		}
		crossing[i].step = stepCommit
	}
	for _, c := range []struct {
		shard, save int
		ok          bool
	}{{0, 0, true}, {1, 1, true}, {1, 0, false}, {0, 1, false}} {
		if _, err := x.ss.step(x.ctx, OpSave, c.shard, &crossing[c.save]); (err == nil) != c.ok || err != nil && !errors.Is(err, ErrSnapshot) {
			t.Errorf("save %d at shard %d: %v", c.save, c.shard, err)
		}
	}
	x.put(x.keys, 8)
	if got := x.load("one"); got.ID != crossing[1].id {
		t.Error("not the later save was loaded")
	}
	x.want("two saves at once", x.keys, 7)

	// One part of another save, as from a copy.
	aside := x.file(0, "one.*.rstab")
	b, err := os.ReadFile(aside)
	if err != nil {
		t.Fatal(err)
	}
	x.put(x.keys, 4)
	x.save("one", "")
	if err := os.WriteFile(aside, b, 0o600); err != nil {
		t.Fatal(err)
	}
	x.put(x.keys, 5)
	_, err = x.ss.Load(x.ctx, "one")
	if layerOf(err) != pipeline.LayerIntegrity || !strings.Contains(err.Error(), "shard 0 has save "+crossing[1].id.String()) || !strings.Contains(err.Error(), "shard 1 has save") {
		t.Errorf("parts of two saves: %v", err)
	}
	x.want("parts of two saves", x.keys, 5)
	x.save("one", "")
	x.load("one")
}

// A load that one shard has not carried out says which.
func TestLoadOfSomeShards(t *testing.T) {
	x := newSnapshotSite(t, wheres(t)[0])
	x.put(x.keys, 1)
	saved := x.save("one", "")
	x.put(x.keys, 2)
	prepare := func() (Snapshot, step) {
		t.Helper()
		s, st := Snapshot{Name: "one", ID: saved.ID}, step{id: saved.ID, name: "one"}
		if err := x.ss.prepare(x.ctx, OpLoad, &s, &st); err != nil {
			t.Fatal(err)
		}
		return s, st
	}
	s, st := prepare()
	abort := st
	abort.step = stepAbort
	if _, err := x.ss.step(x.ctx, OpLoad, 1, &abort); err != nil {
		t.Fatal(err)
	}
	err := partly(OpLoad, &s, x.ss.carryOut(x.ctx, OpLoad, &s, st), "hint")
	var pe *PartlyError
	if !errors.As(err, &pe) || s.Shards[0].Outcome != Changed || s.Shards[1].Outcome != Unchanged ||
		!strings.Contains(err.Error(), "changed: shards 0; not changed: shards 1") || !errors.Is(err, ErrSnapshot) {
		t.Errorf("%v: %+v", err, s.Shards)
	}
	x.want("one of two", x.keys, 1, 2)
	// Told twice it is done once.
	if err := x.ss.carryOut(x.ctx, OpLoad, &s, st); err == nil {
		t.Error("a load that was given up succeeded")
	}
	x.put(x.keys, 3)
	commit := st
	commit.step = stepCommit
	if _, err := x.ss.step(x.ctx, OpLoad, 0, &commit); err != nil {
		t.Error(err)
	}
	x.want("an answer that was repeated", x.keys, 3)

	// A client that does not ask any more is taken for gone.
	for id := range 2 {
		x.shard(id).service.lease = time.Millisecond
	}
	_, st = prepare()
	for id := range 2 {
		<-x.shard(id).service.find(st.number).ended
	}
	x.want("a client that is gone", x.keys, 3)
	// One that ends while it reads.
	over, cancel := context.WithCancel(x.ctx)
	cancel()
	if _, err := x.ss.Load(over, "one"); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
