package object

import (
	"context"
	"fmt"
	"sync"

	"github.com/railstore/railstore/pipeline"
	"github.com/railstore/railstore/stages/rail"
	"github.com/railstore/railstore/verbs"
)

// UserBuffer is memory of the caller that shards write into directly. It is used by
// one read at a time.
type UserBuffer struct {
	mem    []byte
	memory Memory
	undo   func() error

	mu     sync.Mutex
	busy   bool
	bad    bool // a shard may write it for ever
	closed bool
}

// MapBuffer makes a buffer of n bytes, registered on all rails of the session. It is to
// be closed before the session.
func (s *Session) MapBuffer(n int) (*UserBuffer, error) {
	region, err := verbs.MapRegion(n)
	if err != nil {
		return nil, pipeline.Wrap(err, pipeline.LayerResource, "register", pipeline.Nowhere)
	}
	if err := s.lock.fits(uint64(n), pinning(s.set.Rails)); err != nil {
		return nil, both(fmt.Errorf("%w: %w", ErrNoMemory, err), region.Close())
	}
	reg, err := s.set.Register(region, verbs.LocalWrite|verbs.RemoteWrite, nil, rail.Pieces{Align: Align})
	if err != nil {
		return nil, both(err, region.Close())
	}
	return &UserBuffer{mem: region.Bytes(), memory: reg, undo: func() error {
		if err := reg.Close(); err != nil {
			return err // it may still be reached: the region stays
		}
		return region.Close()
	}}, nil
}

// Bytes is the buffer. While a read is under way, and after one that failed, they may
// be anything.
func (b *UserBuffer) Bytes() []byte { return b.mem }

// Close deregisters the buffer, after which no shard can reach it, and unmaps it. It is
// idempotent, and refused during a read.
func (b *UserBuffer) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.closed:
		return nil
	case b.busy:
		return fmt.Errorf("%w: a read into the buffer is under way", ErrLeased)
	}
	b.closed = true
	return b.undo()
}

func (b *UserBuffer) begin() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.closed:
		return fmt.Errorf("buffer: %w", ErrClosed)
	case b.bad:
		return fmt.Errorf("%w: an earlier read could not be silenced", ErrNotQuiet)
	case b.busy:
		return fmt.Errorf("%w: another read into the buffer is under way", ErrLeased)
	}
	b.busy = true
	return nil
}

// direct lands in a UserBuffer.
type direct struct {
	b *UserBuffer
	n uint64
}

func (d *direct) Bytes() []byte { return d.b.mem[:d.n:d.n] }

func (d *direct) Piece(off, n uint64) Piece {
	return Piece{Off: off, Bytes: d.b.mem[off : off+n : off+n], Memory: d.b.memory}
}

func (d *direct) Condemn() {
	d.b.mu.Lock()
	d.b.bad = true
	d.b.mu.Unlock()
}

func (d *direct) done(bool) {
	d.b.mu.Lock()
	d.b.busy = false
	d.b.mu.Unlock()
}

// ReadUnsafe reads an object straight into a registered buffer of the caller's, without
// a copy and without memory of the session's, and returns how many bytes there are. All
// else is as with Read: what it returns is complete and verified, and when it returns
// nothing writes to the buffer any more. But after an error the buffer holds anything,
// parts of the object among it; that is what is unsafe about it.
//
// A range must consist of whole stripes.
func (w *Worker) ReadUnsafe(ctx context.Context, key Key, dst *UserBuffer, opt ReadOptions) (int, *ReadReport, error) {
	_, rep, err := w.readCurrent(ctx, key, opt, func(_ context.Context, o *Object, sp span, lo, n uint64) (ground, error) {
		switch {
		case lo != 0 || n != sp.end-sp.off:
			return nil, fmt.Errorf("%w: %d bytes from %d on are not whole stripes of %d bytes, which alone can be read without a copy", ErrRange, n, sp.off+lo, o.StripeBytes)
		case n > uint64(len(dst.mem)):
			return nil, fmt.Errorf("%w: %d bytes of %s, the buffer has %d", ErrTooSmall, n, key, len(dst.mem))
		}
		if err := dst.begin(); err != nil {
			return nil, err
		}
		return &direct{dst, n}, nil
	})
	if err != nil {
		return 0, nil, err
	}
	return int(rep.Bytes), rep, nil
}
