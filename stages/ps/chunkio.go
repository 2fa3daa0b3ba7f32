package ps

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/railstore/railstore/stages/table"
	"github.com/railstore/railstore/verbs/lane"
)

// write writes the request into its slot: header, keys, and rows that are pushed.
func (k *chunk) write(dst []byte) int {
	b := k.b
	if b.op == OpUpdate {
		// Now and not before: a token must not grow old while its chunk waits for a slot.
		if k.token == 0 {
			k.token = b.c.seqs[k.place].Add(1)
		}
		k.req.sequence = k.token
	}
	k.sent, k.posted = true, true
	k.req.put(dst)
	out := dst[headerBytes:]
	if b.order == nil {
		for i, key := range b.keys[k.at : k.at+k.n] {
			binary.LittleEndian.PutUint64(out[8*i:], key)
		}
	} else {
		for i, p := range b.order[k.at : k.at+k.n] {
			binary.LittleEndian.PutUint64(out[8*i:], b.keys[p])
		}
	}
	n := headerBytes + 8*k.n
	if k.piece == nil && (b.op == OpPut || b.op == OpUpdate) {
		k.rows(asFloats(dst[n:][:k.bytes()]))
		n += k.bytes()
	}
	return n
}

// stage puts the rows of a PUT or UPDATE into the piece, where the shard reads them.
func (k *chunk) stage() {
	if k.b.op != OpGet {
		k.rows(asFloats(k.piece.b[:k.bytes()]))
	}
}

// rows gathers the rows that the chunk carries.
func (k *chunk) rows(dst []float32) {
	b := k.b
	dim := b.t.spec.Dim
	if b.order == nil {
		copy(dst, b.rows[k.at*dim:][:k.n*dim])
		return
	}
	zero := b.t.spec.NonFinite == table.ZeroNonFinite
	for i, p := range b.order[k.at : k.at+k.n] {
		row := dst[i*dim:][:dim]
		copy(row, b.rows[int(p)*dim:][:dim])
		if b.op == OpUpdate && b.plan.united && b.plan.next[p] >= 0 {
			b.plan.sum(row, p, b.rows, dim, zero)
		}
	}
}

// sum adds up the gradients of a key that comes more than once, as the table does: in
// float64, rounded once.
func (p *planner) sum(row []float32, pos int32, grads []float32, dim int, zero bool) {
	for j := range row {
		var s float64
		for q := pos; q >= 0; q = p.next[q] {
			v := grads[int(q)*dim+j]
			if zero && v-v != 0 {
				continue
			}
			s += float64(v)
		}
		row[j] = float32(s)
	}
}

// read takes the answer out of its slot.
func (k *chunk) read(r lane.Response, body []byte) error {
	k.settled = true
	if r.Status != lane.StatusOK {
		k.applied, k.err = answered(r.Status, body)
		return nil
	}
	var rsp response
	rest, err := rsp.parse(body)
	if err != nil {
		k.err, k.settled = err, false
		return nil
	}
	b := k.b
	if rsp.keys != k.n || rsp.count > k.n {
		k.err, k.settled = fmt.Errorf("%w: about %d keys of %d, asked were %d", ErrBadResponse, rsp.count, rsp.keys, k.n), false
		return nil
	}
	if b.op != OpGet && b.op != OpExists {
		b.count += rsp.count
		return nil
	}
	bits := foundBytes(k.n)
	rows := rest
	if len(rest) >= bits {
		rows = rest[bits:]
	}
	want := 0
	if b.op == OpGet {
		want = k.bytes()
		if rsp.flags&respPlaced != 0 && k.piece != nil {
			if len(rows) != 0 {
				want = -1
			} else {
				rows = k.piece.b[:want]
			}
		}
	}
	if len(rest) < bits || len(rows) != want || b.op == OpGet && rsp.dim != b.t.spec.Dim {
		k.err, k.settled = fmt.Errorf("%w: %d bytes for %d keys, rows of %d floats", ErrBadResponse, len(rest), k.n, rsp.dim), false
		return nil
	}
	b.count += rsp.count
	if b.found != nil {
		for i := range k.n {
			b.found[k.pos(i)] = binary.LittleEndian.Uint64(rest[i/64*8:])>>(i%64)&1 != 0
		}
	}
	if b.op == OpGet {
		k.scatter(rows)
	}
	return nil
}

// scatter copies rows to where the caller wants them.
func (k *chunk) scatter(rows []byte) {
	b := k.b
	size := b.t.spec.Dim * 4
	out := floatBytes(b.rows)
	if b.order == nil {
		copy(out[k.at*size:][:k.n*size], rows)
		return
	}
	for i, p := range b.order[k.at : k.at+k.n] {
		copy(out[int(p)*size:][:size], rows[i*size:][:size])
	}
}

// failure is the error of a batch of which some chunks failed.
func (b *batch) failure() error {
	e := &BatchError{Op: opName(b.op), Table: b.t.spec.Name, Keys: len(b.keys), only: b.t.only, changes: b.op != OpGet && b.op != OpExists}
	for _, k := range b.chunks[:b.n] {
		if k.state != chunkFailed {
			continue
		}
		s := &ShardError{Shard: b.c.shards[k.place], Lane: k.lane.Index, Rail: k.lane.Rail, Err: k.err}
		if k.unknown() {
			s.Applied = AppliedUnknown
		}
		if errors.Is(k.err, ErrNoTable) || errors.Is(k.err, ErrShape) {
			b.c.forget(b.t.spec.Name)
		}
		rd := redo{place: k.place, sequence: k.token, unknown: s.Applied == AppliedUnknown, sum: b.plan.united && b.op == OpUpdate}
		var failed []int
		skip, done := k.doneKeys()
		for i := range k.n {
			if b.op == OpUpdate || !skip(i) {
				k.each(i, func(p int) { rd.pos = append(rd.pos, int32(p)) })
				rd.lens = append(rd.lens, int32(len(rd.pos)))
			}
			if !skip(i) {
				k.each(i, func(p int) { failed = append(failed, p) })
			}
		}
		if done > 0 && b.op != OpUpdate {
			rd.sequence = 0
		}
		s.Keys = ranges(failed)
		e.redo = append(e.redo, rd)
		e.Shards = append(e.Shards, s)
	}
	return e
}

// unknown reports whether nobody can tell if the shard has applied a chunk that failed.
func (k *chunk) unknown() bool {
	if k.sent && !k.settled || errors.Is(k.err, ErrToken) {
		return true
	}
	// A later try that did not go out, or was refused, says nothing of one that had no
	// answer: unless the shard has looked at the token first, or would have refused both.
	said := k.settled && k.b.op == OpUpdate && (errors.Is(k.err, ErrMemory) || errors.Is(k.err, ErrNonFinite))
	return k.doubt && !said
}

// doneKeys tells which keys of a failed chunk the shard has applied all the same: the
// first ones, and of an UPDATE those among the others that are the same.
func (k *chunk) doneKeys() (skip func(i int) bool, n int) {
	n = min(max(k.applied, 0), k.n)
	if !k.settled || n == 0 {
		return func(int) bool { return false }, 0
	}
	same := map[uint64]bool{}
	if k.b.op == OpUpdate {
		for i := range n {
			same[k.b.keys[k.pos(i)]] = true
		}
	}
	return func(i int) bool { return i < n || same[k.b.keys[k.pos(i)]] }, n
}

// ranges makes ranges of positions.
func ranges(pos []int) (out []Range) {
	slices.Sort(pos)
	for _, p := range pos {
		if n := len(out); n > 0 && out[n-1].To == p {
			out[n-1].To++
		} else {
			out = append(out, Range{p, p + 1})
		}
	}
	return out
}
