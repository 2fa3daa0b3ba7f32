package wire

import "fmt"

// PSN is a packet sequence number: 24 bits, arithmetic modulo 2^24.
type PSN uint32

// PSNMask keeps the 24 bits of a PSN (or QPN, or MSN).
const PSNMask = 1<<24 - 1

// Add is the number n packets later.
func (p PSN) Add(n uint32) PSN { return (p + PSN(n)) & PSNMask }

// Sub is how many packets p is after q, in 0 to 2^24-1.
func (p PSN) Sub(q PSN) uint32 { return uint32(p-q) & PSNMask }

// Diff is how many packets p is after q, negative when it is before, in
// -2^23 to 2^23-1. A receiver takes the negative half for duplicates.
func (p PSN) Diff(q PSN) int32 { return int32(uint32(p-q)<<8) >> 8 }

// Before reports whether p is in the half of the circle before q.
func (p PSN) Before(q PSN) bool { return p.Diff(q) < 0 }

func (p PSN) String() string { return fmt.Sprintf("%06x", uint32(p)) }
