package object

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/railstore/railstore/verbs"
	"github.com/railstore/railstore/verbs/lane"
)

// Memory is registered memory under a slab, registered on every rail; a
// *rail.Registration is one. On is nil for a rail without a registration.
type Memory interface {
	On(rail string) *verbs.Span
}

// ServiceConfig of a shard's object service.
type ServiceConfig struct {
	Store  *Store
	Slab   *Slab  // over the whole region of Memory
	Memory Memory // of this shard
	// MemoryWait is how long a request waits for slab memory before the answer is
	// that the shard is busy; 0 is 10 s.
	MemoryWait time.Duration
	// Piece is how much of a stripe is read and sent at once, whole blocks; 0 is 512 KiB.
	// Two pieces fit a core's cache: what the file's read left there is sent from there,
	// and the next piece is read to where the one before the last was.
	Piece uint64
}

// Service answers the stripe requests of clients. It has no goroutines: a request
// is served on the one that calls Serve.
type Service struct {
	cfg   ServiceConfig
	tier  *memoryTier
	ctx   context.Context
	stop  context.CancelFunc
	stats serviceCounters
}

type serviceCounters struct {
	stores, fetches, deletes, failures atomic.Uint64
	memoryHits, bytesIn, bytesOut      atomic.Uint64
}

// ServiceStats are counts since the start.
type ServiceStats struct {
	Stores, Fetches, Deletes uint64 // that succeeded
	Failures                 uint64
	BytesIn, BytesOut        uint64
	MemoryHits               uint64 // fetches that needed no file
	MemoryStripes            int    // that are kept in memory now
	MemoryBytes              uint64 // of the slab, which they take
}

// NewService makes the service of a shard.
func NewService(cfg ServiceConfig) *Service {
	if cfg.MemoryWait == 0 {
		cfg.MemoryWait = 10 * time.Second
	}
	if cfg.Piece == 0 {
		cfg.Piece = 512 << 10
	}
	s := &Service{cfg: cfg, tier: newMemoryTier(cfg.Slab)}
	cfg.Store.deleted = func(dir int, file string) { s.tier.drop(tierKey{dir, file}) }
	s.ctx, s.stop = context.WithCancel(context.Background())
	return s
}

// Close makes requests that wait for memory, and all later ones, fail, and keeps no
// stripes any more. It does not wait for those being served: the lanes' owner does that.
func (s *Service) Close() {
	s.stop()
	s.tier.close()
}

// Stats is a snapshot.
func (s *Service) Stats() ServiceStats {
	c := &s.stats
	stripes, bytes := s.tier.stats()
	hits := c.memoryHits.Load() // before the fetches, of which they are a part
	return ServiceStats{
		MemoryHits: hits, MemoryStripes: stripes, MemoryBytes: bytes,
		Stores: c.stores.Load(), Fetches: c.fetches.Load(), Deletes: c.deletes.Load(), Failures: c.failures.Load(),
		BytesIn: c.bytesIn.Load(), BytesOut: c.bytesOut.Load(),
	}
}

// IsOp reports whether an operation of a lane belongs to this service.
func IsOp(op uint16) bool { return op >= OpStoreStripe && op <= OpDeleteStripe }

// exchange is what serving a request needs of a lane. Read, and the Wait of a write
// that was started, return when the device has done with the local memory, whatever the
// outcome.
type exchange interface {
	Context() context.Context // ends when nobody waits for the answer any more
	Op() uint16
	Rail() string
	Payload() []byte
	Response() []byte
	Read(ctx context.Context, dst []verbs.SGE, src verbs.RemoteRegion) error
	StartWrite(ctx context.Context, src []verbs.SGE, dst verbs.RemoteRegion) (lane.Bulk, error)
	Reply(status int32, n int)
}

func (s *Service) serve(x exchange) {
	rsp, err := s.do(x)
	out := x.Response()
	if err == nil && len(out) < responseBytes {
		err = fmt.Errorf("%w: room for a response of %d bytes, it has %d", ErrBadRequest, len(out), responseBytes)
	}
	if err != nil {
		s.stats.failures.Add(1)
		x.Reply(statusOf(err), reason(out, err))
		return
	}
	x.Reply(statusOK, rsp.encode(out))
}

func (s *Service) do(x exchange) (rsp stripeResponse, err error) {
	defer func() {
		// A bug must cost one request, not the shard.
		if r := recover(); r != nil {
			err = fmt.Errorf("%w: panic: %v", ErrInternal, r)
		}
	}()
	if s.ctx.Err() != nil {
		return rsp, s.stopping()
	}
	q, err := decodeRequest(x.Payload())
	if err != nil {
		return rsp, err
	}
	if int64(q.shard) != int64(s.cfg.Store.Shard()) {
		return rsp, fmt.Errorf("%w: it is for shard %d, this is shard %d", ErrWrongShard, q.shard, s.cfg.Store.Shard())
	}
	switch op := x.Op(); op {
	case OpStoreStripe:
		return s.storeStripe(x, &q)
	case OpFetchStripe:
		return s.fetchStripe(x, &q)
	case OpDeleteStripe:
		rsp.existed, err = s.cfg.Store.Delete(q.Dir, q.File, q.Identity)
		if err == nil {
			s.stats.deletes.Add(1)
		}
		return rsp, err
	default:
		return rsp, fmt.Errorf("%w: operation %#x", ErrBadRequest, op)
	}
}

// span checks what a request says of its stripe, and gives the slab's memory as the rail
// of the request has it.
func (s *Service) span(x exchange, q *stripeRequest) (*verbs.Span, error) {
	fail := func(err error) (*verbs.Span, error) { return nil, err }
	span := s.cfg.Memory.On(x.Rail())
	room, ok := q.room()
	switch {
	case q.Length > MaxStripeBytes:
		return fail(fmt.Errorf("%w: a stripe of %d bytes, at most %d are allowed", ErrBadRequest, q.Length, MaxStripeBytes))
	case !ok:
		return fail(fmt.Errorf("%w: %d bytes of memory at %#x and %d at %#x", ErrBadRequest, q.memory[0].Length, q.memory[0].Addr, q.memory[1].Length, q.memory[1].Addr))
	case room < q.Length:
		return fail(fmt.Errorf("%w: stripe %d has %d bytes, the client's memory %d", ErrTooSmall, q.Index, q.Length, room))
	case span == nil:
		return fail(fmt.Errorf("%w: no registered memory on rail %s", ErrInternal, x.Rail()))
	}
	return span, nil
}

// extent takes n bytes of memory for a stripe.
func (s *Service) extent(x exchange, n uint64) (*Extent, error) {
	fail := func(err error) (*Extent, error) { return nil, err }
	ctx, cancel := context.WithTimeoutCause(x.Context(), s.cfg.MemoryWait, ErrBusy)
	defer cancel()
	defer context.AfterFunc(s.ctx, cancel)()
	ext, err := s.cfg.Slab.Acquire(ctx, int(n))
	switch {
	case s.ctx.Err() != nil && err != nil:
		return fail(s.stopping())
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return fail(fmt.Errorf("%w: the client gave up: %w", ErrBusy, err))
	case err != nil:
		return fail(err)
	}
	return ext, nil
}

// at is the client's memory for n bytes of the stripe from off on, one part after the
// other.
func (q *stripeRequest) at(off, n uint64) (parts [maxParts]verbs.RemoteRegion) {
	for i, m := range q.memory {
		skip := min(off, m.Length)
		m.Addr, m.Length, off = m.Addr+skip, min(m.Length-skip, n), off-skip
		parts[i], n = m, n-m.Length
	}
	return parts
}

func (s *Service) storeStripe(x exchange, q *stripeRequest) (rsp stripeResponse, err error) {
	// What cannot be stored is not transferred.
	if err := s.cfg.Store.Ready(q.Dir, q.File, q.Index, q.Length); err != nil {
		return rsp, err
	}
	span, err := s.span(x, q)
	if err != nil {
		return rsp, err
	}
	ext, err := s.extent(x, q.Length)
	if err != nil {
		return rsp, err
	}
	defer ext.Release()
	var room [4]verbs.SGE
	off := ext.off
	for _, m := range q.at(0, q.Length) {
		if m.Length > 0 {
			if err := x.Read(x.Context(), span.SGEs(room[:0], off, m.Length), m); err != nil {
				return rsp, transferFailed(err)
			}
		}
		off += m.Length
	}
	if h := xxh3.Hash(ext.Bytes()); h != q.XXH3 {
		return rsp, fmt.Errorf("%w: stripe %d arrived at shard %d with xxh3 %s, the client says %s", ErrChecksum, q.Index, s.cfg.Store.Shard(), Hex(h), Hex(q.XXH3))
	}
	m := StripeMeta{Identity: q.Identity, Length: q.Length, XXH3: q.XXH3}
	if err := s.cfg.Store.Write(q.Dir, q.File, &m, ext.Bytes()); err != nil {
		return rsp, err
	}
	s.stats.stores.Add(1)
	s.stats.bytesIn.Add(q.Length)
	return stripeResponse{length: q.Length, xxh3: q.XXH3}, nil
}

func (s *Service) fetchStripe(x exchange, q *stripeRequest) (rsp stripeResponse, err error) {
	span, err := s.span(x, q)
	if err != nil {
		return rsp, err
	}
	send, key := sending{x: x, q: q, span: span}, tierKey{q.Dir, q.File}
	hit := false
	if q.verify {
		s.tier.drop(key)
		rsp, err = s.sendVerified(&send)
	} else if ext, meta := s.tier.get(key, &q.Identity, q.Length); ext != nil {
		defer ext.Release()
		hit, rsp = true, stripeResponse{length: meta.Length, xxh3: meta.XXH3}
		err = send.whole(ext)
	} else {
		rsp, err = s.sendFile(&send, key)
	}
	if err != nil {
		return rsp, err
	}
	s.stats.fetches.Add(1)
	s.stats.bytesOut.Add(q.Length)
	if hit {
		s.stats.memoryHits.Add(1)
	}
	return rsp, nil
}

// sendVerified sends a stripe whose file has its checksum. Nothing is sent of a file
// that is wrong.
func (s *Service) sendVerified(send *sending) (rsp stripeResponse, err error) {
	q := send.q
	ext, err := s.extent(send.x, q.Length)
	if err != nil {
		return rsp, err
	}
	defer ext.Release()
	meta, err := s.cfg.Store.Read(q.Dir, q.File, q.Identity, ext.Bytes())
	if err != nil {
		return rsp, err
	}
	if h := xxh3.Hash(ext.Bytes()); h != meta.XXH3 {
		return rsp, fmt.Errorf("%w: %s in directory %d of shard %d: xxh3 %s, %s was stored", ErrCorrupt, q.File, q.Dir, s.cfg.Store.Shard(), Hex(h), Hex(meta.XXH3))
	}
	return stripeResponse{length: meta.Length, xxh3: meta.XXH3}, send.whole(ext)
}

// sendFile sends a stripe as its file is read, piece by piece, through memory that two
// pieces take in turns, or else through memory that the stripe is kept in.
func (s *Service) sendFile(send *sending, key tierKey) (rsp stripeResponse, err error) {
	q := send.q
	step := min(q.Length, s.cfg.Piece)
	turn := 2 * step // of the memory
	var ext *Extent
	room := s.tier.room(key, q.Length)
	if room != nil {
		defer room.release()
		ext, turn = room.ext, q.Length
	} else {
		if ext, err = s.extent(send.x, min(q.Length, turn)); err != nil {
			return rsp, err
		}
		defer ext.Release()
	}
	r, err := s.cfg.Store.reader(q.Dir, q.File, q.Identity, q.Length)
	if err != nil {
		return rsp, err
	}
	defer r.close()
	// The memory is not given back before the device has let go of it.
	defer func() { _ = send.end() }()
	for off, i := uint64(0), 0; off < q.Length && err == nil; off, i = off+step, i+1 {
		n, at := min(step, q.Length-off), off%turn
		if err = send.wait(i % 2); err != nil {
			break
		}
		if err = r.next(ext.Bytes()[at : at+n]); err != nil {
			break
		}
		err = send.start(i%2, ext, at, off, n)
	}
	if err = both(err, send.end()); err != nil {
		return rsp, err
	}
	if room != nil {
		room.keep(&r.meta)
	} else {
		s.tier.passed(key)
	}
	return stripeResponse{length: r.meta.Length, xxh3: r.meta.XXH3}, nil
}

// sending are the pieces of a stripe that are on their way, two at most.
type sending struct {
	x    exchange
	q    *stripeRequest
	span *verbs.Span
	on   [2][maxParts]lane.Bulk
}

// wait waits until a piece has left its memory.
func (s *sending) wait(piece int) (err error) {
	for i := range s.on[piece] {
		b := &s.on[piece][i]
		err = both(err, b.Wait(s.x.Context()))
		*b = lane.Bulk{}
	}
	return transferFailed(err)
}

// start sends n bytes of an extent from at on, which are those of the stripe from off on.
func (s *sending) start(piece int, ext *Extent, at, off, n uint64) (err error) {
	var room [4]verbs.SGE
	from := ext.off + at
	for i, m := range s.q.at(off, n) {
		if m.Length > 0 {
			if s.on[piece][i], err = s.x.StartWrite(s.x.Context(), s.span.SGEs(room[:0], from, m.Length), m); err != nil {
				return transferFailed(err)
			}
		}
		from += m.Length
	}
	return nil
}

// whole sends a stripe that an extent holds, and returns when it has left it.
func (s *sending) whole(ext *Extent) error {
	defer func() { _ = s.end() }()
	return both(s.start(0, ext, 0, 0, s.q.Length), s.end())
}

// end waits for what is on its way.
func (s *sending) end() error { return both(s.wait(0), s.wait(1)) }

func (s *Service) stopping() error {
	return fmt.Errorf("%w: shard %d is stopping", ErrBusy, s.cfg.Store.Shard())
}

// transferFailed names a failed transfer. The client rarely hears of it: it gave
// up, or its QP is gone as well.
func transferFailed(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w: transfer with the client's memory: %w", ErrInternal, err)
}
