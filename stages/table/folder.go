package table

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
)

// Folder is the snapshots of one shard, by name, and its part of saves that several shards
// make together. Such a save goes in two steps. First every shard prepares: it writes its
// part into a file of its own, which is durable and has not the name yet. When all have
// done so, all commit: the files get the name. Who stops between the two leaves the old
// save; who stops between two commits leaves shards where the new one only needs its name,
// which Agree finds.
type Folder struct {
	Store *Store
	Dir   string
	// Place is where the shard is among so many Shards that share the keys: a snapshot holds
	// the keys of one place, and is loaded there only.
	Place, Shards int

	mu sync.Mutex // commits look at the name and then change it
}

// pendingKept is how long a save that was prepared waits for its commit, at least: that of
// a client that is gone for good is removed when another one is prepared after this time.
const pendingKept = 24 * time.Hour

// halfKept is how long a part that nobody writes any more stays: a save that has just
// opened its file and not yet locked it must not find it locked.
const halfKept = time.Minute

const pendingSuffix = ".pending"

// snapshotName is what a snapshot may be called: nothing that leaves the folder.
var snapshotName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$`)

// ValidSnapshotName tells whether a snapshot may have that name.
func ValidSnapshotName(name string) bool { return snapshotName.MatchString(name) }

// FolderState is what a folder has of a name.
type FolderState struct {
	Current Snapshot   // its ID is zero: there is none
	Pending []Snapshot // prepared and not committed; the newest first
}

// The names say whose keys are in the files: with another number of shards they would lie
// where nobody asks for them.
func (f *Folder) path(name string) string {
	return filepath.Join(f.Dir, fmt.Sprintf("%s.%d-of-%d.rstab", name, f.Place, f.Shards))
}

func (f *Folder) pending(name string, id SaveID) string {
	return filepath.Join(f.Dir, fmt.Sprintf("%s.%d-of-%d.%s%s", name, f.Place, f.Shards, id, pendingSuffix))
}

// Prepare writes a save of all tables that waits for its commit. spec has its ID, and of
// an incremental one the name and ID of its base, which must have been committed.
func (f *Folder) Prepare(ctx context.Context, name string, spec SaveSpec) (Snapshot, error) {
	info, err := f.prepare(ctx, name, spec)
	if err != nil {
		return info, fail("table_save", err)
	}
	return info, nil
}

func (f *Folder) prepare(ctx context.Context, name string, spec SaveSpec) (info Snapshot, err error) {
	if err := os.MkdirAll(f.Dir, 0o700); err != nil {
		return info, &ioError{err}
	}
	f.clean()
	if spec.Replaces, err = f.currentID(name); err != nil {
		return info, err
	}
	if spec.Base != (SaveID{}) {
		chain, err := f.chain(spec.BaseName, spec.Base)
		if err != nil {
			return info, err
		}
		if slices.Contains(chain, f.path(name)) {
			return info, &ShapeError{Field: "name of the snapshot", Got: name, Want: "another one than those that it is based on"}
		}
		if len(chain) >= MaxChain {
			return info, &ShapeError{Field: "snapshots of a chain", Got: len(chain) + 1, Want: fmt.Sprintf("up to %d: save all of it, without a base", MaxChain)}
		}
	}
	spec.Place, spec.Shards = f.Place, f.Shards
	return f.Store.save(ctx, f.pending(name, spec.ID), spec)
}

// Commit gives a save that was prepared its name. Once is enough, more do no harm. If the
// name belongs to another save than when this one was prepared it is ErrOvertaken, unless
// forced: by who found that this save has the name elsewhere.
func (f *Folder) Commit(name string, id SaveID, force bool) error {
	if err := f.commit(name, id, force); err != nil {
		return fail("table_save", fmt.Errorf("snapshot %s: %w", name, err))
	}
	return nil
}

func (f *Folder) commit(name string, id SaveID, force bool) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	current, err := f.currentID(name)
	if err != nil || current == id {
		return err
	}
	info, err := readHead(f.pending(name, id))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("save %s: %w", id, ErrNotPrepared)
	case err != nil:
		return err
	case info.Replaces != current && !force:
		return fmt.Errorf("save %s: %w: it has save %s", id, ErrOvertaken, current)
	}
	if err := f.Store.files.rename(f.pending(name, id), f.path(name)); err != nil {
		return &ioError{err}
	}
	return durable(f.Store.files, f.path(name))
}

// Abort removes a save that was prepared, or is being: none is no error.
func (f *Folder) Abort(name string, id SaveID) error {
	err := f.Store.files.remove(f.pending(name, id))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fail("table_save", &ioError{err})
	}
	return nil
}

// clean removes what saves left: what was prepared and nobody has touched for long, and
// what nobody writes any more, which is when its lock is free.
func (f *Folder) clean() {
	entries, _ := os.ReadDir(f.Dir) // without it they stay
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			continue // gone
		}
		path, age := filepath.Join(f.Dir, e.Name()), time.Since(info.ModTime())
		switch {
		case strings.HasSuffix(path, pendingSuffix+tempSuffix) && age > halfKept:
			if half, err := f.Store.files.create(path); err == nil {
				_ = f.Store.files.remove(path)
				_ = half.Close() // gone with its name
			}
		case strings.HasSuffix(path, pendingSuffix) && age > pendingKept:
			_ = f.Store.files.remove(path)
		}
	}
}

// currentID is that of the save that has the name. Of a file whose head cannot be read,
// which a save may replace, it is zero as if there were none.
func (f *Folder) currentID(name string) (SaveID, error) {
	info, err := readHead(f.path(name))
	if errors.Is(err, fs.ErrNotExist) || err != nil && !errors.As(err, new(*ioError)) {
		return SaveID{}, nil
	}
	return info.ID, err
}

// State looks at a name.
func (f *Folder) State(name string) (FolderState, error) {
	st, err := f.state(name)
	if err != nil {
		return st, fail("table_load", err)
	}
	return st, nil
}

func (f *Folder) state(name string) (st FolderState, err error) {
	if st.Current, err = f.head(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return st, err
	}
	entries, err := os.ReadDir(f.Dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return st, &ioError{err}
	}
	prefix := strings.TrimSuffix(filepath.Base(f.path(name)), "rstab")
	for _, e := range entries {
		id, ok := strings.CutPrefix(e.Name(), prefix)
		if id, pending := strings.CutSuffix(id, pendingSuffix); !ok || !pending || len(id) != 2*len(SaveID{}) {
			continue
		}
		// One that cannot be read is as good as none.
		if info, err := readHead(filepath.Join(f.Dir, e.Name())); err == nil {
			st.Pending = append(st.Pending, info)
		}
	}
	slices.SortFunc(st.Pending, func(a, b Snapshot) int { return b.Created.Compare(a.Created) })
	return st, nil
}

// head is readHead of a name, for loading.
func (f *Folder) head(name string) (Snapshot, error) {
	path := f.path(name)
	info, err := readHead(path)
	if err == nil && info.Version > 1 && (info.Place != f.Place || info.Shards != f.Shards) {
		return Snapshot{}, &SnapshotError{Path: path, What: fmt.Sprintf("it is of place %d of %d shards, and here is place %d of %d", info.Place, info.Shards, f.Place, f.Shards)}
	}
	return info, err
}

// chain is the files of a snapshot, from the one that stands alone to the last.
func (f *Folder) chain(name string, id SaveID) (paths []string, err error) {
	for of := ""; ; {
		info, err := f.head(name)
		switch {
		case errors.Is(err, fs.ErrNotExist) && of == "":
			return nil, f.missing(name, err)
		case errors.Is(err, fs.ErrNotExist):
			return nil, &SnapshotError{Path: of, What: fmt.Sprintf("its base, save %s named %s, is not there", id, name)}
		case err != nil:
			return nil, err
		case info.ID != id && of == "":
			return nil, fmt.Errorf("snapshot %s: %w: save %s was asked for, it has save %s", name, ErrOvertaken, id, info.ID)
		case info.ID != id:
			return nil, &SnapshotError{Path: of, What: fmt.Sprintf("its base is save %s, and %s, which was that, has save %s since", id, name, info.ID)}
		case len(paths) == MaxChain:
			return nil, &SnapshotError{Path: of, What: fmt.Sprintf("it stands on more than %d others", MaxChain)}
		}
		of = f.path(name)
		paths = append(paths, of)
		if info.Base == (SaveID{}) {
			slices.Reverse(paths)
			return paths, nil
		}
		if name, id = info.BaseName, info.Base; !snapshotName.MatchString(name) {
			return nil, &SnapshotError{Path: of, What: fmt.Sprintf("its base is called %q", name)}
		}
	}
}

// missing says so if a snapshot is there, but of another place or number of shards.
func (f *Folder) missing(name string, err error) error {
	entries, readErr := os.ReadDir(f.Dir)
	if readErr != nil {
		return err
	}
	for _, e := range entries {
		var place, shards int
		rest, ok := strings.CutPrefix(e.Name(), name)
		if !ok {
			continue
		}
		if n, _ := fmt.Sscanf(rest, ".%d-of-%d.rstab", &place, &shards); n == 2 && rest == fmt.Sprintf(".%d-of-%d.rstab", place, shards) {
			return &ioError{fmt.Errorf("snapshot %s: this shard has place %d of %d shards, the snapshot in its folder is of place %d of %d: %s; it is loaded with as many shards as it was saved with: %w",
				name, f.Place, f.Shards, place, shards, e.Name(), fs.ErrNotExist)}
		}
	}
	return err
}

// Stage reads save id of a name, with all that it is based on, and changes nothing yet.
func (f *Folder) Stage(ctx context.Context, name string, id SaveID) (*Staged, error) {
	paths, err := f.chain(name, id)
	if err != nil {
		return nil, fail("table_load", err)
	}
	return f.Store.Stage(ctx, paths...)
}

// Agree finds the save of a name that the shards have together, from what each has by
// place, and the places where it must be committed, by force, before it can be loaded:
// there it was prepared, and whoever saved it was stopped when some had committed. A
// save that was committed nowhere is none. Names of places are for the error.
func Agree(name string, states []FolderState, places []string) (id SaveID, commit []int, err error) {
	var best Snapshot
	for i := range states {
		c := states[i].Current
		if c.ID == (SaveID{}) {
			continue
		}
		everywhere, shape := true, true
		for j := range states {
			at := states[j].find(c.ID)
			everywhere = everywhere && at != nil
			shape = shape && at != nil && at.Shape == c.Shape
		}
		newer := c.Created.After(best.Created) || c.Created.Equal(best.Created) && slices.Compare(c.ID[:], best.ID[:]) > 0
		if everywhere && shape && (best.ID == (SaveID{}) || newer) {
			best = c
		}
	}
	if best.ID == (SaveID{}) {
		e := &DisagreeError{Name: name}
		some := false
		for i := range states {
			some = some || states[i].Current.ID != (SaveID{})
			e.Places = append(e.Places, places[i])
			e.Current = append(e.Current, states[i].Current)
		}
		if !some {
			return id, nil, fail("table_load", &ioError{fmt.Errorf("snapshot %s: no shard has one: %w", name, fs.ErrNotExist)})
		}
		return id, nil, fail("table_load", e)
	}
	for i := range states {
		if states[i].Current.ID != best.ID {
			commit = append(commit, i)
		}
	}
	return best.ID, commit, nil
}

// find is what a folder has of a save, nil: nothing.
func (st *FolderState) find(id SaveID) *Snapshot {
	if st.Current.ID == id {
		return &st.Current
	}
	for i := range st.Pending {
		if st.Pending[i].ID == id {
			return &st.Pending[i]
		}
	}
	return nil
}
