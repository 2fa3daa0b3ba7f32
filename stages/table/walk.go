package table

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"time"

	"github.com/zeebo/xxh3"
)

// SaveTo writes a snapshot of the named tables, of all if none is named, to w, while
// others use them. Each row and its state are of one moment. A row that was there all
// the time, or was written before the call, is in the snapshot, in the version of some
// moment of the call; one that comes or goes meanwhile may be in it or not.
//
// With a base, which must be a save or load of this store that it still remembers, only
// what has changed since is written; a table that was made, cleared or loaded since is
// written whole. Loading the base and then this gives what saving everything would.
func (s *Store) SaveTo(ctx context.Context, w io.Writer, spec SaveSpec) (Snapshot, error) {
	info, err := s.saveTo(ctx, w, spec)
	if err != nil {
		return info, fail("table_save", err)
	}
	return info, nil
}

func (s *Store) saveTo(ctx context.Context, w io.Writer, spec SaveSpec) (_ Snapshot, err error) {
	if len(spec.BaseName) > maxBaseName {
		return Snapshot{}, &ShapeError{Field: "name of the base", Got: spec.BaseName, Want: fmt.Sprintf("up to %d bytes", maxBaseName)}
	}
	tables, err := s.named(spec.Tables)
	if err != nil {
		return Snapshot{}, err
	}
	var base *mark
	if spec.Base != (SaveID{}) {
		if base = s.history.find(spec.Base); base == nil {
			return Snapshot{}, &BaseError{Name: spec.BaseName, Base: spec.Base}
		}
	}
	if spec.ID == (SaveID{}) {
		spec.ID = NewSaveID()
	}
	p, err := s.enter()
	if err != nil {
		return Snapshot{}, err
	}
	m := s.beginPeriod(spec.ID)
	p.release()
	defer func() {
		if err != nil {
			s.history.drop(m)
		}
	}()
	out := &snapshotWriter{w: w, all: xxh3.New(), info: Snapshot{Version: snapshotVersion, ID: spec.ID, Base: spec.Base, BaseName: spec.BaseName,
		Replaces: spec.Replaces, Created: time.Now().UTC(), Place: spec.Place, Shards: spec.Shards, Shape: shapeOf(tables), Tables: len(tables)}}
	if err := out.head(); err != nil {
		return Snapshot{}, err
	}
	for _, t := range tables {
		if err := t.save(ctx, out, base, m); err != nil {
			return Snapshot{}, fmt.Errorf("table %q: %w", t.spec.Name, err)
		}
	}
	if base != nil && !s.history.has(base) {
		return Snapshot{}, ErrForgotten
	}
	if err := out.foot(); err != nil {
		return Snapshot{}, err
	}
	s.history.complete(m)
	return out.info, nil
}

func (s *Store) named(names []string) ([]*Table, error) {
	if s.state.Load() == closed {
		return nil, ErrClosed
	}
	if len(names) == 0 {
		return s.Tables(), nil
	}
	var tables []*Table
	seen := make(map[string]bool)
	for _, n := range names {
		t := s.Table(n)
		if t == nil {
			return nil, fmt.Errorf("table %q: %w", n, ErrNoTable)
		}
		if !seen[n] {
			tables = append(tables, t)
		}
		seen[n] = true
	}
	return tables, nil
}

// tableWalk is the save of one table.
type tableWalk struct {
	out     *snapshotWriter
	layout  layout
	changes bool // only what has changed after period since
	since   uint64
	buf     []byte // the block that is being filled
	gone    []byte // likewise, of deleted keys
	rows    uint64
	deleted uint64
}

// save writes a table: what has changed since base, if the base has this body of it and
// no deletion since was forgotten, else all.
func (t *Table) save(ctx context.Context, out *snapshotWriter, base, m *mark) error {
	p, of, err := t.enter()
	if err != nil {
		return err
	}
	p.release()
	w := &tableWalk{out: out, layout: t.layout}
	w.buf = make([]byte, blockHeadBytes, blockHeadBytes+t.layout.perBlock()*t.layout.record())
	has := uint32(tableWhole)
	if base != nil && base.bodies[t.spec.Name] == of.id && base.period >= of.floor.Load() {
		w.changes, w.since, has = true, base.period, tableChanges
	} else {
		out.info.Whole++
	}
	m.bodies[t.spec.Name] = of.id
	if err := out.spec(t.spec, has); err != nil {
		return err
	}
	// Segments only ever divide, so the end of one is where another begins.
	for next, more := uint64(0), true; more; more = next != 0 {
		if err := ctx.Err(); err != nil {
			return err
		}
		p, b, err := t.enter()
		if err != nil {
			return err
		}
		if b != of {
			p.release()
			return ErrReplaced
		}
		// One pin for each segment: memory that changes free is kept no longer.
		next, err = w.segment(b, next)
		p.release()
		if err != nil {
			return err
		}
	}
	if w.changes && w.since < of.floor.Load() {
		return ErrForgotten
	}
	return out.end(w.rows, w.deleted)
}

// segment writes what is to be written of the segment that begins with hash from, and
// returns where the next one begins, 0 after the last.
func (w *tableWalk) segment(b *body, from uint64) (after uint64, err error) {
	seg := b.lock(from)
	seg.mu.Unlock() // who changes it from here on has seen the new period; see period.go
	now := b.store.history.period.Load()
	w.buf, w.gone = w.buf[:blockHeadBytes], append(w.gone[:0], make([]byte, blockHeadBytes)...)
	rows, deleted := 0, 0
	for i := range seg.mem {
		at := &seg.mem[i]
		for j := range slotsPerLine {
			ref := at.ref(j)
			switch {
			case ref == refEmpty:
			case ref < refFirst:
				if w.changes && deletedIn(ref) > w.since {
					w.gone = binary.LittleEndian.AppendUint64(w.gone, at.key(j))
					deleted++
				}
			case !w.changes || changedIn(ref, now) > w.since:
				w.buf = binary.LittleEndian.AppendUint64(w.buf, at.key(j))
				w.buf = append(w.buf, (*b.store.table.Load()).at(ref, w.layout.row+w.layout.state)...)
				w.rows++
				if rows++; rows == w.layout.perBlock() {
					if err := w.out.block(blockRows, rows, w.buf); err != nil {
						return 0, err
					}
					w.buf, rows = w.buf[:blockHeadBytes], 0
				}
			}
		}
	}
	w.deleted += uint64(deleted)
	if rows > 0 {
		if err := w.out.block(blockRows, rows, w.buf); err != nil {
			return 0, err
		}
	}
	if deleted > 0 {
		if err := w.out.block(blockDeleted, deleted, w.gone); err != nil {
			return 0, err
		}
	}
	return from + 1<<(64-seg.depth), nil
}
