package object

import (
	"fmt"
	"sort"
)

const (
	// LayoutVersion is the version of how stripes and stripe files are laid out.
	LayoutVersion = 1
	// Policy is the one placement policy: see Place.
	Policy = "round-robin"
	// MaxStripes bounds a placement, which travels as one message.
	MaxStripes = 65535
	// MaxStripeBytes bounds one transfer; a verbs message is at most 2^31 bytes.
	MaxStripeBytes = 1 << 30
	// Align is the granularity of stripes and of registered memory: the largest
	// block that direct I/O asks for, and a page.
	Align = 4096
)

// Node is a shard that stores stripes, with the number of its directories.
type Node struct {
	Shard int
	Dirs  int
}

// StripeCount is how many stripes an object has: size divided by stripeBytes,
// rounded up. An empty object has none: nothing to store, nothing to fetch, and
// reading it needs no rail.
func StripeCount(size, stripeBytes uint64) (int, error) {
	if stripeBytes == 0 || stripeBytes%Align != 0 || stripeBytes > MaxStripeBytes {
		return 0, fmt.Errorf("%w: stripes of %d bytes; want a multiple of %d up to %d", ErrDescriptor, stripeBytes, Align, MaxStripeBytes)
	}
	n := size / stripeBytes
	if size%stripeBytes != 0 {
		n++
	}
	if n > MaxStripes {
		return 0, fmt.Errorf("%w: %d bytes are %d stripes of %d bytes, at most %d are allowed; use larger stripes", ErrDescriptor, size, n, stripeBytes, MaxStripes)
	}
	return int(n), nil
}

// stripeSpan is the byte range of stripe i: all stripes are equal but the last.
func stripeSpan(size, stripeBytes uint64, i uint32) (off, n uint64) {
	off = uint64(i) * stripeBytes
	return off, min(stripeBytes, size-off)
}

// Place computes where the stripes of an object go. The policy is round-robin
// from a home that the key's hash gives:
//
//   - the nodes are taken in the order of their shard numbers;
//   - stripe i goes to node (home + i) mod nodes, home being the low half of the
//     key's hash;
//   - on its node, the k-th stripe (k counts the object's stripes on that node)
//     goes to directory (home' + k) mod directories, home' being the high half.
//
// The directory follows the local ordinal k and not i: otherwise a common factor
// of the two counts would pin a node to some of its disks. The two halves are
// independent for the same reason with objects of one stripe.
func Place(k Key, handle string, size, stripeBytes uint64, nodes []Node) ([]Stripe, error) {
	count, err := StripeCount(size, stripeBytes)
	if err != nil || count == 0 {
		return nil, err
	}
	if len(nodes) == 0 {
		return nil, fmt.Errorf("%w: the deployment has no shard that stores objects", ErrUnknownShard)
	}
	nodes = append([]Node(nil), nodes...)
	sort.Slice(nodes, func(i, j int) bool { return nodes[i].Shard < nodes[j].Shard })
	for _, n := range nodes {
		if n.Dirs < 1 {
			return nil, fmt.Errorf("%w: shard %d has no object directory", ErrUnknownShard, n.Shard)
		}
	}
	h := homeHash(k)
	home, dirHome := uint64(uint32(h)), h>>32
	out := make([]Stripe, count)
	for i := range out {
		node := nodes[(home+uint64(i))%uint64(len(nodes))]
		ordinal := uint64(i / len(nodes)) // rotation visits every node once per turn
		file, err := FileName(handle, uint32(i))
		if err != nil {
			return nil, err
		}
		off, n := stripeSpan(size, stripeBytes, uint32(i))
		out[i] = Stripe{
			Index: uint32(i), Shard: node.Shard, Dir: int((dirHome + ordinal) % uint64(node.Dirs)),
			Offset: off, Length: n, File: file,
		}
	}
	return out, nil
}
