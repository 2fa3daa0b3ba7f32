package ps

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/railstore/railstore/pipeline"
	"github.com/railstore/railstore/stages/rail"
	"github.com/railstore/railstore/verbs"
)

// Staging is memory of a client that shards write rows into and read rows from, in
// pieces of MaxPiece bytes, each in one MR.
type Staging struct {
	region *verbs.Region
	reg    *rail.Registration

	mu    sync.Mutex
	free  []*piece
	made  int
	bad   int // that a shard may still reach: never used again
	freed chan struct{}
}

// piece is a part of it.
type piece struct {
	s   *Staging
	off uint64
	b   []byte
	bad bool
}

// NewStaging maps and registers at least bytes, a multiple of MaxPiece.
func NewStaging(rails Registrar, bytes int64) (*Staging, error) {
	n := max(int((bytes+MaxPiece-1)/MaxPiece), 1)
	region, err := verbs.MapRegion(n * MaxPiece)
	if err != nil {
		return nil, pipeline.Wrap(err, pipeline.LayerResource, "allocate", pipeline.Nowhere)
	}
	reg, err := rails.Register(region, memoryAccess, nil, rail.Pieces{Align: MaxPiece, Longest: MaxPiece, Field: "lanes.getResponseMode to staging_copy and lanes.putV2TransferMode to push"})
	if err != nil {
		return nil, errors.Join(err, region.Close())
	}
	s := &Staging{region: region, reg: reg, made: n, freed: make(chan struct{}, n)}
	for i := n - 1; i >= 0; i-- {
		off := i * MaxPiece
		s.free = append(s.free, &piece{s: s, off: uint64(off), b: region.Bytes()[off : off+MaxPiece : off+MaxPiece]})
	}
	return s, nil
}

// try takes a piece if one is free.
func (s *Staging) try() *piece {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := len(s.free)
	if n == 0 {
		return nil
	}
	p := s.free[n-1]
	s.free = s.free[:n-1]
	return p
}

// take waits for a piece.
func (s *Staging) take(ctx context.Context) (*piece, error) {
	for {
		if p := s.try(); p != nil {
			return p, nil
		}
		s.mu.Lock()
		none := s.bad == s.made
		s.mu.Unlock()
		if none {
			return nil, fmt.Errorf("%w: shards may still reach all of the memory for rows; open a new session", ErrMemory)
		}
		select {
		case <-s.freed:
		case <-ctx.Done():
			return nil, fmt.Errorf("waiting for memory for rows: %w", context.Cause(ctx))
		}
	}
}

func (s *Staging) give(p *piece) {
	s.mu.Lock()
	if p.bad {
		s.bad++
	} else {
		s.free = append(s.free, p)
	}
	s.mu.Unlock()
	select {
	case s.freed <- struct{}{}:
	default:
	}
}

// remote is what the shard is told of the first n bytes, for a request over a rail. It
// reports false for a rail without a registration.
func (p *piece) remote(railName string, n int) (verbs.RemoteRegion, bool) {
	span := p.s.reg.On(railName)
	if span == nil {
		return verbs.RemoteRegion{}, false
	}
	m, at, ok := span.At(p.off, uint64(n))
	if !ok {
		return verbs.RemoteRegion{}, false
	}
	return verbs.RemoteRegion{Addr: m.Remote().Addr + at, Length: uint64(n), RKey: m.RKey()}, true
}

// Close deregisters and unmaps. Memory that a rail may still reach stays mapped.
func (s *Staging) Close() error {
	if err := s.reg.Close(); err != nil {
		return err
	}
	return s.region.Close()
}
