package ps

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/railstore/railstore/stages/table"
	"github.com/railstore/railstore/verbs"
)

func resize[T any](s []T, n int) []T {
	if cap(s) < n {
		return make([]T, n, max(n, 2*cap(s)))
	}
	return s[:n]
}

// take copies the keys out of the slot: the peer must not change them while they are
// looked up and written.
func (w *work) take(rest []byte) []uint64 {
	w.keys = resize(w.keys, w.req.keys)
	for i := range w.keys {
		w.keys[i] = binary.LittleEndian.Uint64(rest[8*i:])
	}
	return w.keys
}

// tableOf finds the table of a request about rows and compares their width.
func (s *Service) tableOf(r *request) (*table.Table, error) {
	t, err := s.table(r)
	if err != nil {
		return nil, err
	}
	if t.Spec().Dim != r.dim && s.cfg.Store.Table(t.Spec().Name) != t {
		// It was dropped, and its name may be that of another one now.
		s.forget(t)
		if t, err = s.table(r); err != nil {
			return nil, err
		}
	}
	if d := t.Spec().Dim; r.dim != d {
		return nil, fmt.Errorf("%w: rows of table %q have %d floats, the request says %d", ErrShape, r.name[:r.nameLen], d, r.dim)
	}
	return t, nil
}

// again finds a table of the name that came after the one that was dropped.
func (s *Service) again(r *request, t *table.Table, err error) (*table.Table, error) {
	if !errors.Is(err, table.ErrDropped) {
		return nil, err
	}
	s.forget(t)
	return s.tableOf(r)
}

func (s *Service) get(x exchange, w *work, rest []byte) (int, error) {
	r := &w.req
	if len(rest) != 8*r.keys {
		return 0, fmt.Errorf("%w: %d bytes for %d keys", ErrBadRequest, len(rest), r.keys)
	}
	t, err := s.tableOf(r)
	if err != nil {
		return 0, err
	}
	keys := w.take(rest)
	bits := foundBytes(len(keys))
	out := x.Response()
	// Keys are at most an eighth of a slot and a row at most 256 KiB: this cannot overflow.
	rows := uint64(len(keys)) * uint64(r.dim) * 4
	if uint64(responseHeader+bits) > uint64(len(out)) {
		return 0, fmt.Errorf("%w: an answer for %d keys, there is room for %d bytes", ErrTooLarge, len(keys), len(out))
	}
	w.found = resize(w.found, bits/8)
	rsp := response{keys: len(keys), dim: r.dim}
	head := out[responseHeader : responseHeader+bits]
	if r.flags&flagMemory != 0 {
		rsp.flags = respPlaced
		rsp.count, err = s.gather(x, w, t, keys, rows)
		if err == nil {
			s.count.direct.Add(1)
			s.answerGet(&rsp, w, out, head)
			return responseHeader + bits, nil
		}
		if r.flags&flagFallback == 0 || !errors.Is(err, errNoGather) {
			return 0, err
		}
		s.count.fallback.Add(1)
		rsp.flags = 0
	}
	if uint64(responseHeader+bits)+rows > uint64(len(out)) {
		return 0, fmt.Errorf("%w: %d rows of %d floats are %d bytes, there is room for %d", ErrTooLarge, len(keys), r.dim, rows, len(out)-responseHeader-bits)
	}
	dst := asFloats(out[responseHeader+bits:][:rows])
	rsp.count, err = s.copyRows(t, keys, dst, w.found)
	if err != nil {
		if t, err = s.again(r, t, err); err != nil {
			return 0, err
		}
		if rsp.count, err = s.copyRows(t, keys, dst, w.found); err != nil {
			return 0, err
		}
	}
	s.answerGet(&rsp, w, out, head)
	return responseHeader + bits + int(rows), nil
}

// copyRows is the table's Get, measured if that is wanted.
func (s *Service) copyRows(t *table.Table, keys []uint64, dst []float32, found []uint64) (n int, err error) {
	if !s.cfg.Measure {
		return t.Get(keys, dst, found)
	}
	var times table.GetTimes
	n, err = t.GetTimed(keys, dst, found, &times)
	s.count.batchGetNS.Add(uint64(times.Lookup))
	s.count.zeroNS.Add(uint64(times.ZeroFill))
	s.count.copyNS.Add(uint64(times.RowCopy))
	return n, err
}

func (s *Service) answerGet(rsp *response, w *work, out, bits []byte) {
	for i, v := range w.found {
		binary.LittleEndian.PutUint64(bits[8*i:], v)
	}
	rsp.put(out)
	s.count.keys.Add(uint64(rsp.keys))
	s.count.missing.Add(uint64(rsp.keys - rsp.count))
}

// errNoGather says that rows cannot be gathered here, but copied.
var errNoGather = errors.New("rows are not registered on this rail")

// gather writes the rows from where they lie into the client's memory.
func (s *Service) gather(x exchange, w *work, t *table.Table, keys []uint64, bytes uint64) (have int, err error) {
	r := &w.req
	switch {
	case s.cfg.Slabs == nil:
		return 0, fmt.Errorf("%w: %w", ErrInternal, errNoGather)
	case bytes > MaxPiece:
		return 0, fmt.Errorf("%w: %d bytes of rows, at most %d go through a client's memory at once", ErrTooLarge, bytes, MaxPiece)
	case bytes > r.memory.Length:
		return 0, fmt.Errorf("%w: %d bytes of rows, the client's memory has %d", ErrTooLarge, bytes, r.memory.Length)
	}
	defer s.lap(&s.count.gatherNS, s.now())
	pin := s.cfg.Store.Pin("direct_sg")
	defer pin.Unpin()
	w.refs = resize(w.refs, len(keys))
	missing, err := t.Locate(pin, keys, w.refs)
	if err != nil {
		if t, err = s.again(r, t, err); err == nil {
			missing, err = t.Locate(pin, keys, w.refs)
		}
		if err != nil {
			return 0, err
		}
	}
	if w.sges, err = s.cfg.Slabs.gather(w.sges[:0], x.Rail(), w.refs, uint64(r.dim)*4); err != nil {
		return 0, err
	}
	clear(w.found)
	for i, ref := range w.refs {
		if ref.Chunk >= 0 {
			w.found[i/64] |= 1 << (i % 64)
		}
	}
	if err := x.Write(x.Context(), w.sges, r.memory); err != nil {
		return 0, transferFailed(x, err)
	}
	return len(keys) - missing, nil
}

// transferFailed names a failed transfer. The client rarely hears of it: it gave up, or
// its QP is gone as well.
func transferFailed(x exchange, err error) error {
	if x.Context().Err() != nil {
		return fmt.Errorf("%w: the caller's time was over: %w", ErrBusy, err)
	}
	return fmt.Errorf("%w: transfer with the client's memory: %w", ErrInternal, err)
}

// change is PUT and UPDATE.
func (s *Service) change(x exchange, w *work, rest []byte) (int, error) {
	r := &w.req
	rows := uint64(r.keys) * uint64(r.dim) * 4
	body := uint64(8 * r.keys)
	read := r.flags&flagMemory != 0
	if !read {
		body += rows
	}
	if uint64(len(rest)) != body {
		return 0, fmt.Errorf("%w: %d bytes for %d keys of %d floats", ErrBadRequest, len(rest), r.keys, r.dim)
	}
	if read && (rows > MaxPiece || rows > r.memory.Length) {
		return 0, fmt.Errorf("%w: %d bytes of rows, the client's memory has %d and at most %d go through it at once", ErrTooLarge, rows, r.memory.Length, MaxPiece)
	}
	t, err := s.tableOf(r)
	if err != nil {
		return 0, err
	}
	keys := w.take(rest)
	from := rest[8*r.keys:]
	if read && rows > 0 {
		if s.cfg.Slabs == nil {
			return 0, fmt.Errorf("%w: %w", ErrInternal, errNoGather)
		}
		b, err := s.cfg.Slabs.scratch(x.Context())
		if err != nil {
			return 0, err
		}
		defer s.cfg.Slabs.give(b)
		span := b.reg.On(x.Rail())
		if span == nil {
			return 0, fmt.Errorf("%w: %w", ErrInternal, errNoGather)
		}
		w.sges = span.SGEs(w.sges[:0], 0, rows)
		if err := x.Read(x.Context(), w.sges, verbs.RemoteRegion{Addr: r.memory.Addr, Length: rows, RKey: r.memory.RKey}); err != nil {
			return 0, transferFailed(x, err)
		}
		from = b.region.Bytes()[:rows]
	}
	rsp := response{keys: len(keys), count: len(keys), dim: r.dim}
	applied, err := s.apply(x, t, r, keys, asFloats(from))
	if err != nil {
		if t, err = s.again(r, t, err); err != nil {
			return 0, err
		}
		if applied, err = s.apply(x, t, r, keys, asFloats(from)); err != nil {
			return 0, err
		}
	}
	if !applied {
		rsp.flags |= respApplied
		s.count.repeated.Add(1)
	}
	s.count.keys.Add(uint64(len(keys)))
	return rsp.put(x.Response()), nil
}

// apply changes the table. A store that is full only as long as rows that were replaced
// are being gathered has room again when those gathers end: that is waited for.
func (s *Service) apply(x exchange, t *table.Table, r *request, keys []uint64, rows []float32) (applied bool, err error) {
	for last := false; ; {
		if x.Op() == OpPut {
			applied, err = true, t.Put(keys, rows)
		} else {
			var token table.Token
			if r.sequence != 0 {
				token = table.Token{Client: r.client, Sequence: r.sequence}
			}
			applied, err = t.Update(keys, rows, token)
			if err == nil && token != (table.Token{}) {
				s.owners.note(token.Client, x.Node())
			}
		}
		if err == nil || last || !noRows(err) {
			return applied, err
		}
		// Nothing was changed. Without anything to wait for the store is full, or somebody has
		// just had the rows back: once more tells.
		waited := false
		if t.Retired() > 0 {
			ctx, cancel := context.WithTimeout(x.Context(), pinPatience)
			var over error
			waited, over = s.cfg.Store.Unpinned(ctx)
			cancel()
			if over != nil {
				return applied, err
			}
		}
		last = !waited
	}
}

func noRows(err error) bool {
	full := new(table.LimitError)
	return errors.As(err, &full) && full.Field == "rows"
}

// pinPatience is for callers that wait for ever.
const pinPatience = 10 * time.Second

// lookup is EXISTS and DELETE.
func (s *Service) lookup(x exchange, w *work, rest []byte) (n int, err error) {
	r := &w.req
	if len(rest) != 8*r.keys || r.dim != 0 {
		return 0, fmt.Errorf("%w: %d bytes for %d keys, rows of %d floats", ErrBadRequest, len(rest), r.keys, r.dim)
	}
	keys := w.take(rest)
	out := x.Response()
	rsp := response{keys: len(keys)}
	if x.Op() == OpDelete {
		err = s.on(r, func(t *table.Table) (err error) {
			rsp.count, err = t.Delete(keys)
			return err
		})
		if err != nil {
			return 0, err
		}
		return rsp.put(out), nil
	}
	bits := foundBytes(len(keys))
	if responseHeader+bits > len(out) {
		return 0, fmt.Errorf("%w: an answer for %d keys, there is room for %d bytes", ErrTooLarge, len(keys), len(out))
	}
	w.found = resize(w.found, bits/8)
	err = s.on(r, func(t *table.Table) (err error) {
		rsp.count, err = t.Exists(keys, w.found)
		return err
	})
	if err != nil {
		return 0, err
	}
	for i, v := range w.found {
		binary.LittleEndian.PutUint64(out[responseHeader+8*i:], v)
	}
	return rsp.put(out) + bits, nil
}
