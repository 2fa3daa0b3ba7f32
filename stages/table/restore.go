package table

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"slices"

	"github.com/zeebo/xxh3"
)

// LoadFrom reads a snapshot and gives its tables the content that they have in it. Of an
// incremental one r is the chain, from the one that stands alone to the last. Tables that
// are not there are made; those that are must have the snapshot's width and kind of
// optimizer, and keep the other numbers that they have. Tables that are not in the last
// snapshot stay as they are.
//
// All of it is read and checked into memory of its own, and only then takes the place of
// what was there, each table at once: whoever reads a table sees the old content or the
// new one. When a snapshot is broken, of another shape or too large, nothing changes.
// What calls write to these tables while it runs may be lost. Each of r must end with its
// snapshot.
func (s *Store) LoadFrom(ctx context.Context, r ...io.Reader) error {
	sources := make([]source, len(r))
	for i := range r {
		sources[i] = source{r[i], "stream"}
	}
	st, err := s.stage(ctx, sources)
	if err == nil {
		err = st.install()
	}
	if err != nil {
		return fail("table_load", err)
	}
	return nil
}

// Load reads the snapshots in files as LoadFrom does.
func (s *Store) Load(ctx context.Context, paths ...string) error {
	st, err := s.Stage(ctx, paths...)
	if err != nil {
		return err
	}
	return st.Install()
}

// Staged is a snapshot that was read and checked, before its tables take their place. It
// takes memory until it is installed or discarded.
type Staged struct {
	Info   Snapshot // of the last one, with the rows that there are
	store  *Store
	tables []*stagedTable
	period uint64 // stamps of its rows
}

// stagedTable is a table that was read.
type stagedTable struct {
	spec   Spec
	layout layout
	body   *body
	in     int    // the snapshot of the chain that had it last
	has    uint32 // what that one has of it
}

// Stage does what Load does but for its last step, which is Install.
func (s *Store) Stage(ctx context.Context, paths ...string) (*Staged, error) {
	sources := make([]source, len(paths))
	for i, p := range paths {
		f, err := openSnapshot(p)
		if err != nil {
			return nil, fail("table_load", err)
		}
		defer f.Close() // it was only read
		sources[i] = source{f, p}
	}
	st, err := s.stage(ctx, sources)
	if err != nil {
		return nil, fail("table_load", err)
	}
	return st, nil
}

type source struct {
	r    io.Reader
	path string
}

func (s *Store) stage(ctx context.Context, sources []source) (_ *Staged, err error) {
	switch {
	case len(sources) == 0:
		return nil, &ShapeError{Field: "snapshots", Got: 0, Want: "one or more"}
	case len(sources) > MaxChain:
		return nil, &ShapeError{Field: "snapshots of a chain", Got: len(sources), Want: fmt.Sprintf("up to %d", MaxChain)}
	}
	st := &Staged{store: s}
	defer func() {
		if err != nil {
			st.discard()
		}
	}()
	for i, src := range sources {
		if err := st.read(ctx, src, i, i == len(sources)-1); err != nil {
			return nil, err
		}
	}
	st.Info.Rows = 0
	for _, t := range st.tables {
		st.Info.Rows += uint64(t.body.rows.Load())
	}
	st.period = s.history.period.Load() - 1
	st.settle()
	return st, nil
}

// read takes one snapshot of a chain on top of those before.
func (st *Staged) read(ctx context.Context, src source, i int, last bool) error {
	s := st.store
	in := &snapshotReader{r: bufio.NewReaderSize(src.r, 1<<16), all: xxh3.New(), path: src.path}
	info, err := in.head()
	if err != nil {
		return err
	}
	if info.Base != (SaveID{}) && i == 0 {
		return in.broken("it has what changed since save %s (%s) only, and is read without it", info.Base, info.BaseName)
	}
	if i > 0 && info.Base != st.Info.ID {
		return in.broken("it is based on save %s (%s), the snapshot before it is save %s", info.Base, info.BaseName, st.Info.ID)
	}
	st.Info = info
	names := make(map[string]bool)
	var shapes []byte
	for range info.Tables {
		spec, has, err := in.spec()
		if err != nil {
			return err
		}
		if names[spec.Name] {
			return in.broken("table %q comes twice", spec.Name)
		}
		names[spec.Name] = true
		shapes = spec.encode(shapes)
		t, err := st.table(in, spec, has, last)
		if err != nil {
			return err
		}
		t.in, t.has = i, has
		if err := s.fill(ctx, in, t); err != nil {
			return err
		}
	}
	if info.Version > 1 && xxh3.Hash(shapes) != info.Shape {
		return in.broken("its head speaks of tables of other shapes")
	}
	if err := in.foot(); err != nil {
		return err
	}
	st.Info.Rows, st.Info.Deleted, st.Info.Bytes = in.rows, in.deleted, in.at
	// Tables of the base that this one does not have were dropped between the two.
	kept := st.tables[:0]
	for _, t := range st.tables {
		if t.in == i {
			kept = append(kept, t)
		} else {
			s.discard(t.body)
		}
	}
	st.tables = kept
	return nil
}

// table finds or makes the body that a table of a snapshot goes to.
func (st *Staged) table(in *snapshotReader, spec Spec, has uint32, last bool) (*stagedTable, error) {
	s := st.store
	if t := s.Table(spec.Name); t != nil && last {
		if err := layoutConflict(t.spec, spec); err != nil {
			return nil, err
		}
	}
	l, err := s.layout(spec)
	if err != nil {
		return nil, err
	}
	at := slices.IndexFunc(st.tables, func(t *stagedTable) bool { return t.spec.Name == spec.Name })
	if has == tableChanges {
		if at < 0 || layoutConflict(st.tables[at].spec, spec) != nil {
			return nil, in.broken("it has changes of table %q, which its base does not have in this shape", spec.Name)
		}
		st.tables[at].spec = spec
		return st.tables[at], nil
	}
	p, err := s.enter()
	if err != nil {
		return nil, err
	}
	defer p.release()
	b, err := s.newBody(l)
	if err != nil {
		return nil, err
	}
	t := &stagedTable{spec: spec, layout: l, body: b}
	if at >= 0 {
		s.bury(st.tables[at].body)
		st.tables[at] = t
	} else {
		st.tables = append(st.tables, t)
	}
	return t, nil
}

// fill reads the blocks of a table.
func (s *Store) fill(ctx context.Context, in *snapshotReader, t *stagedTable) error {
	w := s.borrow()
	defer s.lend(w)
	var (
		buf           []byte
		rows, deleted uint64
	)
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		start := in.at
		kind, n, b, err := in.block(t.layout, buf)
		if err != nil {
			return err
		}
		buf = b
		if kind == blockEnd {
			if said := binary.LittleEndian.Uint64(b); said != rows {
				return in.broken("table %q has %d rows, its end says %d", t.spec.Name, rows, said)
			}
			if len(b) > 8 && binary.LittleEndian.Uint64(b[8:]) != deleted {
				return in.broken("table %q has %d deleted keys, its end says %d", t.spec.Name, deleted, binary.LittleEndian.Uint64(b[8:]))
			}
			in.rows += rows
			in.deleted += deleted
			return nil
		}
		if kind == blockDeleted && t.has == tableWhole {
			return in.broken("deleted keys of table %q, of which it has all rows", t.spec.Name)
		}
		p, err := s.enter()
		if err != nil {
			return err
		}
		duplicate, record := -1, t.layout.record()
		if kind == blockRows {
			duplicate, err = t.body.load(w, t.layout, b, n, t.in)
			rows += uint64(n)
		} else {
			duplicate, record = t.body.loadDeleted(w, b, n, t.in), 8
			deleted += uint64(n)
		}
		p.release()
		switch {
		case err != nil:
			return err
		case duplicate >= 0:
			return &SnapshotError{Path: in.path, Offset: start + blockHeadBytes + int64(duplicate*record), What: "a key that came before"}
		}
	}
}

// MaxChain is how many snapshots an incremental one may stand on, itself included.
const MaxChain = 64

// load puts records of snapshot number file of a chain into a body that only the caller
// knows; it returns the first one whose key was in that snapshot before, -1: none. Until
// settle the stamps of the body are numbers of snapshots.
func (b *body) load(w *batch, l layout, records []byte, n, file int) (duplicate int, err error) {
	if err := b.take(w, n); err != nil {
		return -1, err
	}
	chunks := *b.store.table.Load()
	stamp := uint64(file)
	added := 0
	defer func() {
		b.rows.Add(int64(added))
		b.slab.give(w.fresh[added:], nil)
	}()
	for i := range n {
		rec := records[i*l.record():][:l.record()]
		key := binary.LittleEndian.Uint64(rec)
		hash := b.store.mix.of(key)
		seg, at, j, err := b.insert(b.lock(hash), hash, key)
		if err != nil {
			return -1, err
		}
		switch old := at.ref(j); {
		case old >= refFirst && old&stampMask == stamp, old == deleted(stamp):
			seg.mu.Unlock()
			return i, nil
		case old >= refFirst: // nobody reads the row yet
			copy(chunks.at(old, l.row+l.state), rec[8:])
			at.setRef(j, old&^stampMask|stamp)
		default:
			copy(chunks.at(w.fresh[added], l.row+l.state), rec[8:])
			seg.swing(at, j, w.fresh[added]|stamp)
			added++
		}
		seg.mu.Unlock()
	}
	return -1, nil
}

// loadDeleted is load of keys that were deleted.
func (b *body) loadDeleted(w *batch, keys []byte, n, file int) (duplicate int) {
	stamp := uint64(file)
	w.fresh = w.fresh[:0]
	defer func() {
		b.rows.Add(int64(-len(w.fresh)))
		b.slab.give(w.fresh, nil)
	}()
	for i := range n {
		key := binary.LittleEndian.Uint64(keys[8*i:])
		hash := b.store.mix.of(key)
		seg := b.lock(hash)
		// A key that the base does not have came and went between the two.
		if at, j, ok := seg.mem.find(hash, key); ok {
			old := at.ref(j)
			if old >= refFirst && old&stampMask == stamp || old == deleted(stamp) {
				seg.mu.Unlock()
				return i
			}
			if old >= refFirst {
				w.fresh = append(w.fresh, old)
				seg.live--
			}
			at.setRef(j, deleted(stamp))
		}
		seg.mu.Unlock()
	}
	return -1
}

// settle stamps all that was read as changed in period st.period, which is that of its
// mark or an earlier one.
func (st *Staged) settle() {
	for _, t := range st.tables {
		t.body.walk(func(seg *segment) {
			for i := range seg.mem {
				at := &seg.mem[i]
				for j := range slotsPerLine {
					switch ref := at.ref(j); {
					case ref >= refFirst:
						at.setRef(j, ref&^stampMask|st.period&stampMask)
					case ref != refEmpty:
						at.setRef(j, deleted(st.period))
					}
				}
			}
		})
	}
}

// Install gives the tables their content. It does so for all or none, and once.
func (st *Staged) Install() error {
	if err := st.install(); err != nil {
		return fail("table_load", err)
	}
	return nil
}

func (st *Staged) install() (err error) {
	s := st.store
	defer func() {
		if err != nil {
			st.discard()
		}
		st.tables = nil
	}()
	p, err := s.enter()
	if err != nil {
		return err
	}
	defer p.release()
	s.history.mu.Lock()
	defer s.history.mu.Unlock()
	if st.period < s.history.lowest {
		// So many saves have begun since it was read that its stamps are out of date.
		st.period = s.history.period.Load() - 1
		st.settle()
	}
	s.tables.mu.Lock()
	defer s.tables.mu.Unlock()
	for _, t := range st.tables {
		// Somebody may have made it while the snapshot was read.
		if have, ok := s.tables.byName[t.spec.Name]; ok {
			if err := layoutConflict(have.spec, t.spec); err != nil {
				return err
			}
		}
	}
	m := &mark{id: st.Info.ID, period: st.period, bodies: make(map[string]uint64), whole: true}
	for _, t := range st.tables {
		m.bodies[t.spec.Name] = t.body.id
	}
	if st.Info.Version > 1 { // the ID of an older one says nothing
		s.history.addLocked(m)
	}
	for _, st := range st.tables {
		t, ok := s.tables.byName[st.spec.Name]
		if !ok {
			t = &Table{store: s, spec: st.spec, layout: st.layout}
			t.body.Store(st.body)
			s.tables.byName[st.spec.Name] = t
			continue
		}
		// A table that has a name is not dropped: Drop takes the name away first, under the
		// lock that is held here.
		s.bury(t.body.Swap(st.body))
	}
	return nil
}

// Discard gives up what was read.
func (st *Staged) Discard() { st.discard() }

func (st *Staged) discard() {
	for _, t := range st.tables {
		st.store.discard(t.body)
	}
	st.tables = nil
}

func (s *Store) discard(b *body) {
	p, err := s.enter()
	if err != nil {
		return // closed: its memory went with the store
	}
	defer p.release()
	s.bury(b)
}
