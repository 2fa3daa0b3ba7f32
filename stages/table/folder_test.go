package table

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

// fleet is some shards with a folder each, and saves over all of them.
type fleet struct {
	t       testing.TB
	folders []*Folder
}

func newFleet(t testing.TB, shards int) *fleet {
	f := &fleet{t: t}
	for i := range shards {
		s := openTest(t, Config{})
		mustInit(t, s, Spec{Name: "t", Dim: 2, Optimizer: Defaults(AdaGrad)})
		f.folders = append(f.folders, &Folder{Store: s, Dir: t.TempDir(), Place: i, Shards: shards})
	}
	return f
}

// change gives every shard other rows.
func (f *fleet) change(n int) {
	for i, folder := range f.folders {
		tb := folder.Store.Table("t")
		ks := sequence(10*(n%5)+i, 20) // not more and more of them
		if _, err := tb.Update(ks, rowsOf(ks, 2, func(k uint64) float32 { return float32(k) + 1 }), Token{}); err != nil {
			f.t.Fatal(err)
		}
		if _, err := tb.Delete(ks[:2]); err != nil {
			f.t.Fatal(err)
		}
	}
}

func (f *fleet) contents() (out []map[string]any) {
	for _, folder := range f.folders {
		out = append(out, contents(f.t, folder.Store))
	}
	return out
}

// save is what a client does.
func (f *fleet) save(name string, spec SaveSpec) error {
	if spec.ID == (SaveID{}) {
		spec.ID = NewSaveID()
	}
	for _, folder := range f.folders {
		if _, err := folder.Prepare(ctx(f.t), name, spec); err != nil {
			for _, folder := range f.folders {
				_ = folder.Abort(name, spec.ID) // as far as it comes
			}
			return err
		}
	}
	for _, folder := range f.folders {
		if err := folder.Commit(name, spec.ID, false); err != nil {
			return err
		}
	}
	return nil
}

func (f *fleet) agree(name string) (SaveID, []int, error) {
	var states []FolderState
	var places []string
	for i, folder := range f.folders {
		st, err := folder.State(name)
		if err != nil {
			return SaveID{}, nil, err
		}
		states, places = append(states, st), append(places, fmt.Sprintf("shard %d", i))
	}
	return Agree(name, states, places)
}

// load is what a client does, into new stores.
func (f *fleet) load(name string) (*fleet, error) {
	id, commit, err := f.agree(name)
	if err != nil {
		return nil, err
	}
	for _, i := range commit {
		if err := f.folders[i].Commit(name, id, true); err != nil {
			return nil, err
		}
	}
	to := &fleet{t: f.t}
	for _, folder := range f.folders {
		fresh := &Folder{Store: openTest(f.t, Config{}), Dir: folder.Dir, Place: folder.Place, Shards: folder.Shards}
		st, err := fresh.Stage(ctx(f.t), name, id)
		if err != nil {
			return nil, err
		}
		if err := st.Install(); err != nil {
			return nil, err
		}
		to.folders = append(to.folders, fresh)
	}
	return to, nil
}

func (f *fleet) breakAt(step int, killed bool, shards ...int) {
	b := &brokenFiles{left: step, killed: killed}
	for _, i := range shards {
		f.folders[i].Store.files = b
	}
}

func (f *fleet) mend() {
	for _, folder := range f.folders {
		folder.Store.files = diskFiles{}
	}
}

// TestSaveOfManyBreaks lets each step of a save over three shards fail, and kills it at
// each: all shards, or one of them. What is loaded afterwards is the old save of all or
// the new one of all, also where it has changes only, and the next save works.
func TestSaveOfManyBreaks(t *testing.T) {
	for _, c := range []struct {
		name   string
		killed bool
		shards []int
	}{{"fails", false, []int{0, 1, 2}}, {"all killed", true, []int{0, 1, 2}}, {"the second fails", false, []int{1}}, {"the last killed", true, []int{2}}} {
		for _, base := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, base %v", c.name, base), func(t *testing.T) {
				f := newFleet(t, 3)
				f.change(0)
				full := SaveSpec{ID: NewSaveID()}
				if err := f.save("full", full); err != nil {
					t.Fatal(err)
				}
				var spec SaveSpec
				if base {
					spec = SaveSpec{Base: full.ID, BaseName: "full"}
				}
				f.change(1)
				if err := f.save("snap", spec); err != nil {
					t.Fatal(err)
				}
				old := f.contents()
				sawOld, sawNew := 0, 0
				stride := 1
				if raceEnabled {
					stride = 2 // all of them take too long
				}
				for step := 0; ; step += stride {
					f.change(2 + step)
					if base { // a new one, so that each save has as many steps
						full = SaveSpec{ID: NewSaveID()}
						if err := f.save("full", full); err != nil {
							t.Fatal(err)
						}
						spec.Base = full.ID
						if err := f.save("snap", spec); err != nil {
							t.Fatal(err)
						}
						old = f.contents()
						f.change(3 + step)
					}
					f.breakAt(step, c.killed, c.shards...)
					err := f.save("snap", spec)
					f.mend()
					if err == nil {
						break
					}
					if !errors.Is(err, errBroken) {
						t.Fatal(err)
					}
					to, err := f.load("snap")
					if err != nil {
						t.Fatalf("step %d: %v", step, err)
					}
					got := to.contents()
					switch now := f.contents(); {
					case reflect.DeepEqual(got, old):
						sawOld++
					case reflect.DeepEqual(got, now):
						sawNew++
						old = now
					default:
						t.Fatalf("step %d: neither the old save nor the new one", step)
					}
				}
				if sawOld == 0 || sawNew == 0 {
					t.Errorf("the old save %d times, the new one %d times", sawOld, sawNew)
				}
				// What was given up goes after a day, and what was cut short after a minute.
				for _, folder := range f.folders {
					names, _ := filepath.Glob(filepath.Join(folder.Dir, "*"+pendingSuffix+"*"))
					for _, n := range names {
						age := 2 * pendingKept
						if strings.HasSuffix(n, tempSuffix) {
							age = 2 * halfKept
						}
						if err := os.Chtimes(n, time.Time{}, time.Now().Add(-age)); err != nil {
							t.Fatal(err)
						}
					}
				}
				if err := f.save("another", SaveSpec{}); err != nil {
					t.Fatal(err)
				}
				for _, folder := range f.folders {
					if names, _ := filepath.Glob(filepath.Join(folder.Dir, "*"+pendingSuffix+"*")); len(names) != 0 {
						t.Errorf("left %v", names)
					}
				}
			})
		}
	}
}

// TestClientIsGone: a client that goes between two steps leaves the old save, or one that
// is completed by who loads.
func TestClientIsGone(t *testing.T) {
	f := newFleet(t, 2)
	f.change(0)
	if err := f.save("snap", SaveSpec{}); err != nil {
		t.Fatal(err)
	}
	old := f.contents()
	f.change(1)
	id := NewSaveID()
	prepare := func(id SaveID) {
		t.Helper()
		for _, folder := range f.folders {
			if _, err := folder.Prepare(ctx(t), "snap", SaveSpec{ID: id}); err != nil {
				t.Fatal(err)
			}
		}
	}
	prepare(id)
	check := func(want []map[string]any, what string) {
		t.Helper()
		to, err := f.load("snap")
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if !reflect.DeepEqual(to.contents(), want) {
			t.Errorf("%s: loaded something else", what)
		}
	}
	check(old, "prepared only")
	if err := f.folders[1].Commit("snap", id, false); err != nil {
		t.Fatal(err)
	}
	check(f.contents(), "committed at one")
	if err := f.folders[0].Commit("snap", id, false); err != nil {
		t.Errorf("a commit once more: %v", err)
	}
	// Two clients, whose commits cross: neither succeeds everywhere, and the later one is
	// loaded.
	a, b := NewSaveID(), NewSaveID()
	f.change(2)
	prepare(a)
	f.change(3)
	prepare(b)
	for _, c := range []struct {
		at   int
		id   SaveID
		want error
	}{{0, a, nil}, {1, b, nil}, {1, a, ErrOvertaken}, {0, b, ErrOvertaken}} {
		if err := f.folders[c.at].Commit("snap", c.id, false); !errors.Is(err, c.want) {
			t.Errorf("commit at %d: %v", c.at, err)
		}
	}
	check(f.contents(), "two at once")
	if err := f.folders[0].Commit("snap", NewSaveID(), true); !errors.Is(err, ErrNotPrepared) {
		t.Error(err)
	}
}

// TestPartsOfTwoSaves: what does not belong together is refused, and the error says who
// has what.
func TestPartsOfTwoSaves(t *testing.T) {
	f := newFleet(t, 2)
	if err := f.save("snap", SaveSpec{}); err != nil {
		t.Fatal(err)
	}
	id := NewSaveID()
	if _, err := f.folders[1].Prepare(ctx(t), "snap", SaveSpec{ID: id}); err != nil {
		t.Fatal(err)
	}
	if err := f.folders[1].Commit("snap", id, false); err != nil {
		t.Fatal(err)
	}
	_, err := f.load("snap")
	var de *DisagreeError
	if !errors.As(err, &de) || layerOf(err) != "integrity" || !strings.Contains(err.Error(), "shard 1 has save "+id.String()) {
		t.Error(err)
	}
	if err := f.save("snap", SaveSpec{}); err != nil {
		t.Fatal(err)
	}
	if _, err := f.load("snap"); err != nil {
		t.Error(err)
	}
	// One that is gone, and one of other tables.
	if err := os.Remove(f.folders[0].path("snap")); err != nil {
		t.Fatal(err)
	}
	if _, err := f.load("snap"); !errors.As(err, &de) || !strings.Contains(err.Error(), "shard 0 has none") {
		t.Error(err)
	}
	mustInit(t, f.folders[0].Store, Spec{Name: "extra", Dim: 1})
	if err := f.save("snap", SaveSpec{}); err != nil {
		t.Fatal(err)
	}
	if _, err := f.load("snap"); !errors.As(err, &de) {
		t.Errorf("other tables: %v", err)
	}
	if _, err := f.load("none"); !errors.Is(err, fs.ErrNotExist) || layerOf(err) != "storage" {
		t.Error(err)
	}
}

// TestChainOfAFolder: what a snapshot stands on is found by name and ID, and what is not
// what it was is refused.
func TestChainOfAFolder(t *testing.T) {
	f := newFleet(t, 1)
	ids := map[string]SaveID{}
	save := func(name, base string) error {
		t.Helper()
		spec := SaveSpec{ID: NewSaveID(), BaseName: base, Base: ids[base]}
		if base == "" {
			spec.Base = SaveID{}
		}
		err := f.save(name, spec)
		if err == nil {
			ids[name] = spec.ID
		}
		return err
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(save("mon", ""))
	f.change(1)
	must(save("tue", "mon"))
	f.change(2)
	must(save("wed", "tue"))
	want := f.contents()
	to, err := f.load("wed")
	must(err)
	if !reflect.DeepEqual(to.contents(), want) {
		t.Error("the chain loads something else")
	}
	// A store that has loaded it goes on with it.
	f = to
	folder := f.folders[0]
	f.change(3)
	must(save("thu", "wed"))
	if info, err := readHead(folder.path("thu")); err != nil || info.BaseName != "wed" || info.Base != ids["wed"] {
		t.Errorf("%+v, %v", info, err)
	}
	var shape *ShapeError
	if err := save("tue", "thu"); !errors.As(err, &shape) {
		t.Errorf("a save over what it stands on: %v", err)
	}
	var se *SnapshotError
	refuse := func(want string) {
		t.Helper()
		before := f.contents()
		if _, err := folder.Stage(ctx(t), "thu", ids["thu"]); !errors.As(err, &se) || layerOf(err) != "integrity" || !strings.Contains(err.Error(), want) {
			t.Error(err)
		}
		if !reflect.DeepEqual(f.contents(), before) {
			t.Error("the store changed")
		}
	}
	must(os.Rename(folder.path("tue"), folder.path("kept")))
	refuse("its base, save " + ids["tue"].String() + " named tue, is not there")
	must(save("tue", ""))
	refuse("has save " + ids["tue"].String() + " since")
	must(os.Rename(folder.path("kept"), folder.path("tue")))
	if _, err := folder.Stage(ctx(t), "thu", NewSaveID()); !errors.Is(err, ErrOvertaken) {
		t.Error(err)
	}
	st, err := folder.Stage(ctx(t), "thu", ids["thu"])
	must(err)
	st.Discard()
	b, err := os.ReadFile(folder.path("mon"))
	must(err)
	b[len(b)-30] ^= 1
	must(os.WriteFile(folder.path("mon"), b, 0o600))
	refuse("mon.0-of-1")
	// The file of another place under this one's name.
	other := &Folder{Store: folder.Store, Dir: folder.Dir, Place: 1, Shards: 2}
	must(os.Rename(folder.path("thu"), other.path("thu")))
	if _, err := other.State("thu"); !errors.As(err, &se) || !strings.Contains(err.Error(), "place 0 of 1") {
		t.Error(err)
	}
	if _, err := folder.Stage(ctx(t), "thu", ids["thu"]); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "place 1 of 2") {
		t.Error(err)
	}
}

// TestLongestChain: what Load would refuse is not saved, and the longest chain is loaded.
func TestLongestChain(t *testing.T) {
	f := newFleet(t, 1)
	last := SaveSpec{}
	name := func(n int) string { return fmt.Sprintf("s%d", n) }
	for n := range MaxChain {
		f.change(n)
		next := SaveSpec{ID: NewSaveID(), Base: last.ID}
		if n > 0 {
			next.BaseName = name(n - 1)
		}
		if err := f.save(name(n), next); err != nil {
			t.Fatalf("save %d: %v", n, err)
		}
		last = next
	}
	want := f.contents()
	var shape *ShapeError
	if err := f.save("more", SaveSpec{BaseName: name(MaxChain - 1), Base: last.ID}); !errors.As(err, &shape) || !strings.Contains(err.Error(), "without a base") {
		t.Errorf("save %d: %v", MaxChain, err)
	}
	to, err := f.load(name(MaxChain - 1))
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(to.contents(), want) {
		t.Error("the chain loads something else")
	}
	if err := f.save("more", SaveSpec{}); err != nil {
		t.Error(err)
	}
}

func TestPrepareEnds(t *testing.T) {
	f := newFleet(t, 1)
	over, cancel := context.WithCancel(ctx(t))
	cancel()
	if _, err := f.folders[0].Prepare(over, "snap", SaveSpec{ID: NewSaveID()}); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if names, _ := filepath.Glob(filepath.Join(f.folders[0].Dir, "*")); len(names) != 0 {
		t.Errorf("left %v", names)
	}
	for _, name := range []string{"", ".", "../x", "a/b", "-a", strings.Repeat("a", 129)} {
		if ValidSnapshotName(name) {
			t.Errorf("%q is a name", name)
		}
	}
}
