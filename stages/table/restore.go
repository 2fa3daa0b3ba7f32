package table

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"

	"github.com/zeebo/xxh3"
)

// LoadFrom reads a snapshot from r and gives its tables the content that they have in
// it. Tables that are not there are made; those that are must have the snapshot's width
// and kind of optimizer, and keep the other numbers that they have. Tables that are not in
// the snapshot stay as they are.
//
// All of it is read and checked into memory of its own, and only then takes the place of
// what was there, each table at once: whoever reads a table sees the old content or the
// new one. When the snapshot is broken, of another shape or too large, nothing changes.
// What calls write to these tables while it runs may be lost. r must end with the
// snapshot.
func (s *Store) LoadFrom(ctx context.Context, r io.Reader) error {
	if err := s.loadFrom(ctx, r, "stream"); err != nil {
		return fail("table_load", err)
	}
	return nil
}

// staged is a table that was read, before it takes its place.
type staged struct {
	spec   Spec
	layout layout
	body   *body
}

func (s *Store) loadFrom(ctx context.Context, r io.Reader, path string) (err error) {
	in := &snapshotReader{r: bufio.NewReaderSize(r, 1<<16), all: xxh3.New(), path: path}
	var tables []staged
	defer func() {
		if err != nil {
			s.discard(tables)
		}
	}()
	n, err := in.head()
	if err != nil {
		return err
	}
	names := make(map[string]bool)
	for range n {
		spec, err := in.spec()
		if err != nil {
			return err
		}
		if names[spec.Name] {
			return in.broken("table %q comes twice", spec.Name)
		}
		names[spec.Name] = true
		st, err := s.stage(spec)
		if err != nil {
			return err
		}
		tables = append(tables, st)
		if err := s.fill(ctx, in, st); err != nil {
			return err
		}
	}
	if err := in.foot(); err != nil {
		return err
	}
	return s.install(tables)
}

// stage makes the empty body of a table of a snapshot.
func (s *Store) stage(spec Spec) (staged, error) {
	if t := s.Table(spec.Name); t != nil {
		if err := layoutConflict(t.spec, spec); err != nil {
			return staged{}, err
		}
	}
	l, err := s.layout(spec)
	if err != nil {
		return staged{}, err
	}
	p, err := s.enter()
	if err != nil {
		return staged{}, err
	}
	defer p.release()
	b, err := s.newBody(l)
	return staged{spec, l, b}, err
}

// fill reads the rows of a table.
func (s *Store) fill(ctx context.Context, in *snapshotReader, st staged) error {
	w := s.borrow()
	defer s.lend(w)
	var buf []byte
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		start := in.at
		kind, rows, b, err := in.block(st.layout, buf)
		if err != nil {
			return err
		}
		buf = b
		if kind == blockEnd {
			if n := binary.LittleEndian.Uint64(b); n != uint64(st.body.rows.Load()) {
				return in.broken("table %q has %d rows, its end says %d", st.spec.Name, st.body.rows.Load(), n)
			}
			in.rows += uint64(st.body.rows.Load())
			return nil
		}
		p, err := s.enter()
		if err != nil {
			return err
		}
		duplicate, err := st.body.load(w, st.layout, b, rows)
		p.release()
		switch {
		case err != nil:
			return err
		case duplicate >= 0:
			return &SnapshotError{Path: in.path, Offset: start + blockHeadBytes + int64(duplicate*st.layout.record()), What: "a key that came before"}
		}
	}
}

// load puts records into a body that only the caller knows; it returns the first one
// whose key is there already, -1: none.
func (b *body) load(w *batch, l layout, records []byte, n int) (duplicate int, err error) {
	if err := b.take(w, n); err != nil {
		return -1, err
	}
	chunks := *b.store.table.Load()
	added := 0
	defer func() {
		b.rows.Add(int64(added))
		b.slab.give(w.fresh[added:], nil)
	}()
	for i := range n {
		rec := records[i*l.record():][:l.record()]
		key := binary.LittleEndian.Uint64(rec)
		copy(chunks.at(w.fresh[i], l.row+l.state), rec[8:])
		hash := b.store.mix.of(key)
		seg, at, j, err := b.insert(b.lock(hash), hash, key)
		if err != nil {
			return -1, err
		}
		if at.ref(j) != refEmpty {
			seg.mu.Unlock()
			return i, nil
		}
		seg.swing(at, j, w.fresh[i])
		seg.mu.Unlock()
		added++
	}
	return -1, nil
}

// install gives the bodies to their tables. It either gives all or none.
func (s *Store) install(tables []staged) error {
	p, err := s.enter()
	if err != nil {
		return err
	}
	defer p.release()
	s.tables.mu.Lock()
	defer s.tables.mu.Unlock()
	for _, st := range tables {
		// Somebody may have made it while the snapshot was read.
		if t, ok := s.tables.byName[st.spec.Name]; ok {
			if err := layoutConflict(t.spec, st.spec); err != nil {
				return err
			}
		}
	}
	for _, st := range tables {
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

// discard gives up what was read.
func (s *Store) discard(tables []staged) {
	p, err := s.enter()
	if err != nil {
		return // closed: its memory went with the store
	}
	defer p.release()
	for _, st := range tables {
		s.bury(st.body)
	}
}

// snapshotReader reads the parts and believes nothing.
type snapshotReader struct {
	r    *bufio.Reader
	all  *xxh3.Hasher
	path string
	at   int64 // bytes that were read
	rows uint64
}

func (in *snapshotReader) broken(format string, args ...any) error {
	return &SnapshotError{Path: in.path, Offset: in.at, What: fmt.Sprintf(format, args...)}
}

// read fills b, which is part of what.
func (in *snapshotReader) read(b []byte, what string) error {
	n, err := io.ReadFull(in.r, b)
	_, _ = in.all.Write(b[:n])
	in.at += int64(n)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return in.broken("it ends in %s", what)
	}
	return &SnapshotError{Path: in.path, Offset: in.at, What: "reading " + what, Err: &ioError{err}}
}

func (in *snapshotReader) head() (tables int, err error) {
	var b [headBytes]byte
	if err := in.read(b[:], "its head"); err != nil {
		return 0, err
	}
	if string(b[:8]) != headMagic {
		return 0, &SnapshotError{Path: in.path, What: "not a snapshot of tables: it begins with other bytes"}
	}
	// The version before the checksum: another version may have another.
	if v := binary.LittleEndian.Uint32(b[8:]); v != snapshotVersion {
		return 0, &VersionError{Path: in.path, Got: v, Want: snapshotVersion}
	}
	if xxh3.Hash(b[:16]) != binary.LittleEndian.Uint64(b[16:]) {
		return 0, in.broken("the checksum of its head is wrong")
	}
	n := binary.LittleEndian.Uint32(b[12:])
	if n > maxTables {
		return 0, in.broken("%d tables, more than %d", n, maxTables)
	}
	return int(n), nil
}

func (in *snapshotReader) spec() (Spec, error) {
	var s Spec
	b := make([]byte, 4, 4+maxSpecBytes+8)
	if err := in.read(b, "the head of a table"); err != nil {
		return s, err
	}
	n := binary.LittleEndian.Uint32(b)
	if n > maxSpecBytes {
		return s, in.broken("the head of a table has %d bytes, more than %d", n, maxSpecBytes)
	}
	b = b[:4+n+8]
	if err := in.read(b[4:], "the head of a table"); err != nil {
		return s, err
	}
	b, sum := b[:4+n], b[4+n:]
	if xxh3.Hash(b) != binary.LittleEndian.Uint64(sum) {
		return s, in.broken("the checksum of the head of a table is wrong")
	}
	b = b[4:]
	for _, str := range []*string{&s.Name, &s.Optimizer.Kind, &s.NonFinite} {
		if len(b) < 2 || len(b)-2 < int(binary.LittleEndian.Uint16(b)) {
			return s, in.broken("the head of a table is too short")
		}
		k := 2 + int(binary.LittleEndian.Uint16(b))
		*str, b = string(b[2:k]), b[k:]
	}
	numbers := s.Optimizer.numbers()
	if len(b) != 4+8*len(numbers) {
		return s, in.broken("the head of table %q has %d bytes of numbers, want %d", s.Name, len(b), 4+8*len(numbers))
	}
	if dim := binary.LittleEndian.Uint32(b); dim <= MaxDim {
		s.Dim = int(dim)
	}
	for i, f := range numbers {
		*f = math.Float64frombits(binary.LittleEndian.Uint64(b[4+8*i:]))
	}
	whole, err := s.complete()
	if err != nil {
		return s, &SnapshotError{Path: in.path, Offset: in.at, What: "the head of a table", Err: err}
	}
	if whole != s {
		return s, in.broken("the head of table %q leaves out what Save writes", s.Name)
	}
	return s, nil
}

// block reads a block into buf or longer memory and checks it.
func (in *snapshotReader) block(l layout, buf []byte) (kind, rows int, b []byte, err error) {
	var head [blockHeadBytes]byte
	if err := in.read(head[:], "the head of a block"); err != nil {
		return 0, 0, nil, err
	}
	word := binary.LittleEndian.Uint64(head[:])
	n := 0
	switch count := uint32(word); word >> 32 {
	case blockRows:
		if count == 0 || count > uint32(l.perBlock()) {
			return 0, 0, nil, in.broken("a block of %d rows, want 1 to %d", count, l.perBlock())
		}
		rows = int(count)
		n = rows * l.record()
	case blockEnd:
		if count != 0 {
			return 0, 0, nil, in.broken("the end of a table with %d rows", count)
		}
		n = 8
	default:
		return 0, 0, nil, in.broken("a block of the unknown kind %d", word>>32)
	}
	b = resize(buf, n)
	if err := in.read(b, "a block"); err != nil {
		return 0, 0, nil, err
	}
	if xxh3.HashSeed(b, word) != binary.LittleEndian.Uint64(head[8:]) {
		return 0, 0, nil, in.broken("the checksum of the block that ends here is wrong")
	}
	return int(word >> 32), rows, b, nil
}

func (in *snapshotReader) foot() error {
	var b [footBytes]byte
	if err := in.read(b[:16], "its end"); err != nil {
		return err
	}
	want := in.all.Sum64()
	if err := in.read(b[16:], "its end"); err != nil {
		return err
	}
	switch {
	case string(b[:8]) != footMagic:
		return in.broken("more tables than its head says, or other bytes at its end")
	case binary.LittleEndian.Uint64(b[16:]) != want:
		return in.broken("the checksum of the whole is wrong")
	case binary.LittleEndian.Uint64(b[8:]) != in.rows:
		return in.broken("%d rows, its end says %d", in.rows, binary.LittleEndian.Uint64(b[8:]))
	}
	switch _, err := in.r.ReadByte(); {
	case errors.Is(err, io.EOF):
		return nil
	case err != nil:
		return &SnapshotError{Path: in.path, Offset: in.at, What: "reading on after its end", Err: &ioError{err}}
	}
	return in.broken("there are bytes after its end")
}
