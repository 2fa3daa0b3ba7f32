package verbs

import "fmt"

// PortState is the logical state of a port (IBTA 11.2.1.3).
type PortState uint8

const (
	PortNop PortState = iota
	PortDown
	PortInit
	PortArmed
	PortActive
	PortActiveDefer
)

var portStateNames = [...]string{"NOP", "DOWN", "INIT", "ARMED", "ACTIVE", "ACTIVE_DEFER"}

func (s PortState) String() string {
	if int(s) < len(portStateNames) {
		return portStateNames[s]
	}
	return fmt.Sprintf("port state %d", uint8(s))
}

// LinkLayer tells InfiniBand from Ethernet (RoCE) ports.
type LinkLayer uint8

const (
	LinkUnspecified LinkLayer = iota
	LinkInfiniBand
	LinkEthernet
)

func (l LinkLayer) String() string {
	switch l {
	case LinkInfiniBand:
		return "InfiniBand"
	case LinkEthernet:
		return "Ethernet"
	}
	return "Unspecified"
}

// PortAttr is what a port says of itself.
type PortAttr struct {
	State     PortState
	MaxMTU    int // bytes of payload a packet: 256, 512, 1024, 2048 or 4096
	ActiveMTU int
	LinkLayer LinkLayer
	LID       uint16
	SMLID     uint16
	GIDs      int     // entries of the GID table, empty ones included
	PKeys     int     // entries of the PKey table
	Gbps      float64 // 10^9 bit/s; 0 where unknown
	UDPPort   uint16  // RoCE v2 destination port that this port receives on; 0 means 4791
}

// RoCEPort is the UDP destination port that IANA assigned to RoCE v2.
const RoCEPort = 4791

// ValidMTU reports whether n is one of the five path MTUs (IBTA 9.7.1, table 25).
func ValidMTU(n int) bool {
	switch n {
	case 256, 512, 1024, 2048, 4096:
		return true
	}
	return false
}

// MTUFor is the largest path MTU whose packets fit a link of n bytes, headers of
// RoCE v2 included (IPv6 40 + UDP 8 + BTH 12 + RETH 16 + ImmDt 4 + ICRC 4 = 84);
// 0 when not even 256 fits.
func MTUFor(link int) int {
	for _, m := range []int{4096, 2048, 1024, 512, 256} {
		if link >= m+84 {
			return m
		}
	}
	return 0
}
