package fabric

import (
	"fmt"
	"strconv"
	"strings"
)

// Rate is the rate of a port.
type Rate struct {
	Gbps  float64 // 10^9 bit/s; 0 where it is not known
	Lanes int
	Speed string // of a lane, as in EDR; may be empty
}

// parseRate reads "100 Gb/sec (4X EDR)".
func parseRate(s string) (Rate, bool) {
	num, rest, _ := strings.Cut(s, " ")
	g, err := strconv.ParseFloat(num, 64)
	if err != nil || !(g >= 0 && g < 1e6) || !strings.HasPrefix(rest, "Gb/sec") {
		return Rate{}, false
	}
	r := Rate{Gbps: g}
	if _, in, ok := strings.Cut(rest, "("); ok {
		in, _, _ = strings.Cut(in, ")")
		lanes, speed, _ := strings.Cut(in, "X")
		if n, err := strconv.ParseUint(lanes, 10, 8); err == nil {
			r.Lanes, r.Speed = int(n), strings.TrimSpace(speed)
		}
	}
	return r, true
}

func (r Rate) String() string {
	if r.Gbps == 0 {
		return ""
	}
	return fmt.Sprintf("%g Gb/s", r.Gbps)
}
