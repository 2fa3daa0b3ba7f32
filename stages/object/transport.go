package object

import (
	"cmp"
	"context"
	"fmt"
)

// Path is a way to a shard: one rail of this process.
type Path struct {
	Rail  string
	Shard int
}

func (p Path) String() string { return fmt.Sprintf("shard %d over rail %s", p.Shard, p.Rail) }

// comparePaths orders by rail, then by shard.
func comparePaths(a, b Path) int {
	return cmp.Or(cmp.Compare(a.Rail, b.Rail), cmp.Compare(a.Shard, b.Shard))
}

// StripeRef names a stripe in a place: what it is, in which directory and file of
// its shard, and what it must contain.
type StripeRef struct {
	Identity
	Dir    int
	File   string
	Length uint64
	XXH3   uint64

	off uint64 // in the object, for errors
}

// refOf is the reference to a stripe of a validated object.
func refOf(o *Object, s *Stripe) StripeRef {
	h, _ := ParseHex(s.XXH3)
	return StripeRef{
		Identity: Identity{Handle: o.Handle, Generation: o.Generation, LayoutVersion: o.LayoutVersion, Index: s.Index},
		Dir:      s.Dir, File: s.File, Length: s.Length, XXH3: h, off: s.Offset,
	}
}

// Fetched is what a shard says about a stripe that it has written to us.
type Fetched struct {
	Length uint64
	XXH3   uint64 // as stored with the stripe
}

// Transport carries stripes between registered memory of this process and the
// shards. It is safe for concurrent use.
//
// A call that fails because the shard said so wraps one of the shard's errors
// (ErrStale, ErrStripeNotFound, ErrNoSpace, ...), and the memory is quiet then. A
// call that fails in any other way and cannot rule out that the shard still
// reads or writes the memory wraps ErrNotQuiet.
type Transport interface {
	// StoreStripe lets the shard read src and returns when the stripe is durable.
	StoreStripe(ctx context.Context, at Path, ref StripeRef, src Piece) error
	// FetchStripe lets the shard write the stripe to dst, which is ref.Length
	// long. With verify the shard checks its file first; damage is ErrCorrupt.
	FetchStripe(ctx context.Context, at Path, ref StripeRef, dst Piece, verify bool) (Fetched, error)
	// DeleteStripe reports whether the stripe was there.
	DeleteStripe(ctx context.Context, at Path, ref StripeRef) (bool, error)
	// Quiesce returns nil once nothing that was begun on the path before can touch
	// memory of this process any more; it may destroy the path's connections to
	// get there.
	Quiesce(ctx context.Context, at Path) error
	// Counters of a rail since the transport was made.
	Counters(rail string) RailCounters
}

// RailCounters is what only a transport knows of a rail.
type RailCounters struct {
	RegisteredBytes     uint64
	ConnectionsCreated  uint64
	ConnectionsQuiesced uint64
	Retransmits         uint64
}
