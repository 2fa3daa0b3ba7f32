package table

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"math"

	"github.com/zeebo/xxh3"
)

// The parts of a snapshot; docs/tables.md has the format.
const (
	snapshotVersion = 1
	headMagic       = "RSTABLE\n"
	footMagic       = "RSTABEND"
	headBytes       = 8 + 4 + 4 + 8
	blockHeadBytes  = 4 + 4 + 8
	footBytes       = 8 + 8 + 8

	blockRows = 1 // a block of rows
	blockEnd  = 2 // the end of a table

	// A block has as many records as fit in this, at least one.
	blockBytes = 256 << 10

	maxTables    = 1 << 16
	maxSpecBytes = 1 << 10
)

// record is the bytes of a row in a snapshot: the key, the row, the state.
func (l layout) record() int { return 8 + l.row + l.state }

// perBlock is how many records a block has at most.
func (l layout) perBlock() int { return max(1, blockBytes/l.record()) }

// snapshotWriter writes the parts and hashes what it writes.
type snapshotWriter struct {
	w    io.Writer
	all  *xxh3.Hasher
	rows uint64
}

func (s *snapshotWriter) write(b []byte) error {
	_, _ = s.all.Write(b) // a hasher never fails
	if _, err := s.w.Write(b); err != nil {
		return &ioError{err}
	}
	return nil
}

func (s *snapshotWriter) head(tables int) error {
	b := append(make([]byte, 0, headBytes), headMagic...)
	b = binary.LittleEndian.AppendUint32(b, snapshotVersion)
	b = binary.LittleEndian.AppendUint32(b, uint32(tables))
	return s.write(binary.LittleEndian.AppendUint64(b, xxh3.Hash(b)))
}

func (s *snapshotWriter) spec(spec Spec) error {
	b := make([]byte, 4, 256)
	for _, str := range []string{spec.Name, spec.Optimizer.Kind, spec.NonFinite} {
		b = binary.LittleEndian.AppendUint16(b, uint16(len(str)))
		b = append(b, str...)
	}
	b = binary.LittleEndian.AppendUint32(b, uint32(spec.Dim))
	for _, f := range spec.Optimizer.numbers() {
		b = binary.LittleEndian.AppendUint64(b, math.Float64bits(*f))
	}
	binary.LittleEndian.PutUint32(b, uint32(len(b)-4))
	return s.write(binary.LittleEndian.AppendUint64(b, xxh3.Hash(b)))
}

// numbers are the fields of an optimizer in the order of the format.
func (o *Optimizer) numbers() []*float64 {
	return []*float64{&o.LearningRate, &o.Eps, &o.Beta1, &o.Beta2, &o.WeightDecay, &o.InitialAccumulator}
}

// block writes b, whose first blockHeadBytes are free for the head.
func (s *snapshotWriter) block(kind, rows int, b []byte) error {
	head := uint64(uint32(rows)) | uint64(kind)<<32
	binary.LittleEndian.PutUint64(b, head)
	binary.LittleEndian.PutUint64(b[8:], xxh3.HashSeed(b[blockHeadBytes:], head))
	return s.write(b)
}

func (s *snapshotWriter) end(rows uint64) error {
	s.rows += rows
	b := make([]byte, blockHeadBytes, blockHeadBytes+8)
	return s.block(blockEnd, 0, binary.LittleEndian.AppendUint64(b, rows))
}

func (s *snapshotWriter) foot() error {
	b := append(make([]byte, 0, footBytes), footMagic...)
	b = binary.LittleEndian.AppendUint64(b, s.rows)
	_, _ = s.all.Write(b)
	b = binary.LittleEndian.AppendUint64(b, s.all.Sum64())
	if _, err := s.w.Write(b); err != nil {
		return &ioError{err}
	}
	return nil
}

// SaveTo writes a snapshot of the named tables, of all if none is named, to w, while
// others use them. Each row and its state are of one moment. A row that was there all
// the time, or was written before the call, is in the snapshot, in the version of some
// moment of the call; one that comes or goes meanwhile may be in it or not.
func (s *Store) SaveTo(ctx context.Context, w io.Writer, names ...string) error {
	if err := s.saveTo(ctx, w, names); err != nil {
		return fail("table_save", err)
	}
	return nil
}

func (s *Store) saveTo(ctx context.Context, w io.Writer, names []string) error {
	tables, err := s.named(names)
	if err != nil {
		return err
	}
	out := &snapshotWriter{w: w, all: xxh3.New()}
	if err := out.head(len(tables)); err != nil {
		return err
	}
	for _, t := range tables {
		if err := t.save(ctx, out); err != nil {
			return fmt.Errorf("table %q: %w", t.spec.Name, err)
		}
	}
	return out.foot()
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

func (t *Table) save(ctx context.Context, out *snapshotWriter) error {
	if err := out.spec(t.spec); err != nil {
		return err
	}
	var (
		buf  = make([]byte, blockHeadBytes, blockHeadBytes+t.layout.perBlock()*t.layout.record())
		rows uint64
		of   *body
	)
	// Segments only ever divide, so the end of one is where another begins.
	for next, more := uint64(0), true; more; {
		if err := ctx.Err(); err != nil {
			return err
		}
		p, b, err := t.enter()
		if err != nil {
			return err
		}
		if of == nil {
			of = b
		}
		if b != of {
			p.release()
			return ErrReplaced
		}
		// One pin for each segment: memory that changes free is kept no longer.
		n, after, err := b.saveSegment(t.layout, out, buf, next)
		p.release()
		if err != nil {
			return err
		}
		rows += n
		next, more = after, after != 0
	}
	return out.end(rows)
}

// saveSegment writes the rows of the segment that begins with hash from, and returns
// where the next one begins, 0 after the last.
func (b *body) saveSegment(l layout, out *snapshotWriter, buf []byte, from uint64) (rows uint64, after uint64, err error) {
	d := b.dir.Load()
	seg := d.segments[d.index(from)].Load()
	buf = buf[:blockHeadBytes]
	n := 0
	flush := func() error {
		if n == 0 {
			return nil
		}
		err := out.block(blockRows, n, buf)
		rows += uint64(n)
		buf, n = buf[:blockHeadBytes], 0
		return err
	}
	for i := range seg.mem {
		at := &seg.mem[i]
		for j := range slotsPerLine {
			ref := at.ref(j)
			if ref < refFirst {
				continue
			}
			buf = binary.LittleEndian.AppendUint64(buf, at.key(j))
			buf = append(buf, (*b.store.table.Load()).at(ref, l.row+l.state)...)
			if n++; n == l.perBlock() {
				if err := flush(); err != nil {
					return rows, 0, err
				}
			}
		}
	}
	err = flush()
	return rows, from + 1<<(64-seg.depth), err
}
