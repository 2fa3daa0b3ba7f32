package deploy

// Fault is one entry of a soft rail's fault script. Zero values are "not given".
type Fault struct {
	Do            string     `json:"do"`
	At            FaultAt    `json:"at"`
	For           Duration   `json:"for"`
	Rate          float64    `json:"rate"`
	Seed          int64      `json:"seed"`
	Match         FaultMatch `json:"match"`
	By            Duration   `json:"by"`            // delay, late_write, late_visibility, reorder, delay_answer
	BitsPerSecond int64      `json:"bitsPerSecond"` // bandwidth
	Op            string     `json:"op"`            // fail
	Errno         string     `json:"errno"`         // fail
	Times         int        `json:"times"`         // hits after which it is over; 0 is never
}

// FaultAt is when a fault begins; at once when nothing is given.
type FaultAt struct {
	Bytes   int64    `json:"bytes"`
	Packets int64    `json:"packets"`
	Time    Duration `json:"time"`
}

// FaultMatch says which packets or completions a fault hits; all when nothing is
// given.
type FaultMatch struct {
	Opcode    string `json:"opcode"`
	Peer      string `json:"peer"`      // ADDR, ADDR:PORT or a prefix
	Direction string `json:"direction"` // in | out
}
