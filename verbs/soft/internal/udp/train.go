package udp

// Limits of one train. The kernel takes 64 segments from version 4.18 on (128
// later); a UDP datagram over IPv4 carries at most 65507 bytes.
const (
	MaxSegments = 64
	MaxTrain    = 65507
)

// trainRules say what may go into one train.
type trainRules struct {
	gso       bool // false: every packet goes alone
	equalTail bool // false: a train must end with a smaller packet
}

// trainLen returns how many of the packets from the first on form the next
// train; it is at least 1 when there is a packet. Packet i has size bytes in
// sizes[i]; same reports whether it goes where the first one goes.
func trainLen(sizes []int32, same func(i int) bool, r trainRules) int {
	if len(sizes) == 0 {
		return 0
	}
	if !r.gso {
		return 1
	}
	seg, total := sizes[0], sizes[0]
	n := 1
	for n < len(sizes) && n < MaxSegments {
		s := sizes[n]
		if s > seg || total+s > MaxTrain || !same(n) {
			break
		}
		total += s
		n++
		if s < seg {
			return n
		}
	}
	if !r.equalTail {
		return 1
	}
	return n
}

// Segments is the number of packets in a datagram of n bytes that arrived with
// the given segment size (0: it is one packet).
func Segments(n, seg int) int {
	if seg <= 0 || seg >= n {
		return 1
	}
	return (n + seg - 1) / seg
}

// Segment is packet i of a datagram that arrived with the given segment size.
func Segment(data []byte, seg, i int) []byte {
	if seg <= 0 || seg >= len(data) {
		return data
	}
	from := i * seg
	return data[from:min(from+seg, len(data))]
}
