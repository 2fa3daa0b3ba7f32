package ps

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"

	"github.com/railstore/railstore/pipeline"
	"github.com/railstore/railstore/stages/table"
)

// SCAN gives the keys of a table at a shard, as many as an answer has room for:
//
//	request   120  u64  where to go on; 0: at the beginning
//	answer     16  u64  where the next SCAN goes on; 0: that was all
//	           24       keys
//
// The place is the shard's own, and means nothing to another, or after a restart.
const (
	scanHeader = 8
	scanMost   = 16 << 10 // keys at once: whoever scans must not hold up others for long
)

// scan answers SCAN.
func (s *Service) scan(r *request, rest, out []byte, w *work) (int, error) {
	if len(rest) != scanHeader || r.keys != 0 || r.dim != 0 {
		return 0, fmt.Errorf("%w: %d bytes, %d keys in scan", ErrBadRequest, len(rest), r.keys)
	}
	room := (len(out) - responseHeader - scanHeader) / 8
	if room < 1 {
		return 0, fmt.Errorf("%w: room for %d bytes", ErrTooLarge, len(out))
	}
	from := binary.LittleEndian.Uint64(rest)
	w.keys = resize(w.keys, min(room, scanMost))
	var rsp response
	var next uint64
	err := s.on(r, func(t *table.Table) (err error) {
		rsp.keys, next, err = t.Scan(from, w.keys)
		return err
	})
	if err != nil {
		return 0, err
	}
	n := rsp.put(out)
	binary.LittleEndian.PutUint64(out[n:], next)
	n += scanHeader
	for _, k := range w.keys[:rsp.keys] {
		binary.LittleEndian.PutUint64(out[n:], k)
		n += 8
	}
	return n, nil
}

// Scan goes over the keys of a table, shard by shard. It is one goroutine's.
type Scan struct {
	t     *Table
	place int
	from  uint64
	keys  []uint64
}

// Scan begins one. Keys come in no order. A key that has a row all the time comes once;
// one that comes or goes meanwhile may come or not.
func (t *Table) Scan() *Scan {
	s := &Scan{t: t}
	if t.only >= 0 {
		s.place = t.only
	}
	return s
}

// Next gives some keys, which are the scan's until the next call, and the shard that they
// are at. At the end it gives io.EOF.
func (s *Scan) Next(ctx context.Context) (keys []uint64, shard int, err error) {
	c := s.t.c
	for {
		if c.closed.Load() {
			return nil, 0, ErrClosed
		}
		if s.place < 0 || s.place >= len(c.shards) {
			return nil, 0, io.EOF
		}
		shard = c.shards[s.place]
		var r request
		r.setName(s.t.spec.Name)
		var body [scanHeader]byte
		binary.LittleEndian.PutUint64(body[:], s.from)
		var next uint64
		_, err = c.call(ctx, s.place, OpScan, &r, body[:], func(rsp *response, rest []byte) error {
			if len(rest) != scanHeader+8*rsp.keys {
				return fmt.Errorf("%w: %d bytes for %d keys", ErrBadResponse, len(rest), rsp.keys)
			}
			next = binary.LittleEndian.Uint64(rest)
			s.keys = resize(s.keys, rsp.keys)
			for i := range s.keys {
				s.keys[i] = binary.LittleEndian.Uint64(rest[scanHeader+8*i:])
			}
			if next != 0 && next <= s.from { // it would go round for ever
				return fmt.Errorf("%w: a scan that goes back", ErrBadResponse)
			}
			return nil
		})
		if err != nil {
			return nil, shard, pipeline.Wrap(err, pipeline.LayerService, "scan", pipeline.AtShard(shard))
		}
		if s.from = next; next == 0 {
			if s.place++; s.t.only >= 0 {
				s.place = -1
			}
		}
		if len(s.keys) > 0 {
			return s.keys, shard, nil
		}
	}
}
