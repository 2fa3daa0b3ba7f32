package soft

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/railstore/railstore/verbs"
)

// Fault is something that goes wrong on the devices of a driver: one entry of a
// fault script. What each kind does, and which fields it takes, is in
// docs/faults.md; Validate refuses the others.
type Fault struct {
	Do            string        // the kind, as in "drop"
	At            FaultAt       // when it begins
	For           time.Duration // how long it lasts; 0: to the end
	Rate          float64       // probability that a packet, completion or call is hit; 0: always
	Seed          uint64        // of the random numbers
	Match         FaultMatch    // what is hit; all when empty
	By            time.Duration // delay, late_write, late_visibility, reorder, delay_answer
	BitsPerSecond int64         // bandwidth
	Op            string        // fail: the verb
	Errno         string        // fail: its error, by name; EIO when empty
	Times         int           // it is over after so many hits; 0: any number
}

// FaultAt is when a fault begins: after so many bytes or packets, or so long,
// counted from the opening of the first device or, for a fault that is added later,
// from then. All zero: at once.
type FaultAt struct {
	Bytes, Packets uint64
	Time           time.Duration
}

// FaultMatch says what a fault hits; an empty field is anything.
type FaultMatch struct {
	Opcode    string // a word of docs/faults.md, as in "write"
	Peer      string // ADDR, ADDR:PORT or a prefix
	Direction string // "in" or "out"
}

// FaultState is how far a fault has come.
const (
	FaultWaiting = "waiting"
	FaultActive  = "active"
	FaultOver    = "over"
)

// FaultStatus is a fault of a driver and how far it has come.
type FaultStatus struct {
	ID    int
	Fault Fault
	State string // FaultWaiting, FaultActive or FaultOver
	Hits  uint64 // packets, completions, calls, or memory regions that it changed
}

// faultKind is what Fault.Do names.
type faultKind uint8

const (
	portDown faultKind = iota
	portUpNoEvent
	dropPackets
	duplicatePackets
	reorderPackets
	delayPackets
	corruptPayload
	corruptWire
	limitBandwidth
	blackholeCompletions
	dropZeroLength
	lateVisibility
	rkeyBump
	gidMove
	failVerb
	delayAnswer
	lateWrite
)

// Fields that a kind may or must have, beside do and at.
const (
	hasFor = 1 << iota
	hasRate
	hasOpcode
	hasPeer
	hasDirection
	hasBy
	needsBy
	hasBits
	hasOp
	hasTimes

	ofPackets = hasFor | hasRate | hasOpcode | hasPeer | hasDirection | hasTimes
)

var faultKinds = [...]struct {
	name   string
	fields int
}{
	portDown:             {"port_down", hasFor},
	portUpNoEvent:        {"port_up_no_event", hasFor},
	dropPackets:          {"drop", ofPackets},
	duplicatePackets:     {"duplicate", ofPackets},
	reorderPackets:       {"reorder", ofPackets | hasBy},
	delayPackets:         {"delay", ofPackets | needsBy},
	corruptPayload:       {"corrupt", ofPackets},
	corruptWire:          {"corrupt_wire", ofPackets},
	limitBandwidth:       {"bandwidth", hasFor | hasPeer | hasDirection | hasBits},
	blackholeCompletions: {"blackhole_completions", ofPackets},
	dropZeroLength:       {"drop_zero_length", ofPackets},
	lateVisibility:       {"late_visibility", hasFor | hasRate | hasPeer | hasTimes | hasBy},
	rkeyBump:             {"rkey_bump", 0},
	gidMove:              {"gid_move", hasFor},
	failVerb:             {"fail", hasFor | hasRate | hasOp | hasTimes},
	delayAnswer:          {"delay_answer", hasFor | hasTimes | needsBy},
	lateWrite:            {"late_write", hasFor | hasRate | hasOpcode | hasPeer | hasDirection | hasTimes | needsBy},
}

// Verbs that the fault fail knows.
const (
	opOpen      = "open"
	opRegMR     = "reg_mr"
	opCreateCQ  = "create_cq"
	opCreateQP  = "create_qp"
	opModifyRTR = "modify_rtr"
	opPostSend  = "post_send"
)

var failOps = []string{opOpen, opRegMR, opCreateCQ, opCreateQP, opModifyRTR, opPostSend}

func kindOf(do string) (faultKind, bool) {
	for k, x := range faultKinds {
		if x.name == do {
			return faultKind(k), true
		}
	}
	return 0, false
}

// FaultKinds are the words that Fault.Do may have.
func FaultKinds() []string {
	out := make([]string, len(faultKinds))
	for k, x := range faultKinds {
		out[k] = x.name
	}
	return out
}

// Validate says which field is wrong, by its name in a recipe.
func (f *Fault) Validate() error {
	kind, ok := kindOf(f.Do)
	if !ok {
		return fmt.Errorf("do: %q: want one of %s", f.Do, strings.Join(FaultKinds(), ", "))
	}
	fields := faultKinds[kind].fields
	for _, x := range []struct {
		name  string
		given bool
		bit   int
	}{
		{"for", f.For != 0, hasFor}, {"rate", f.Rate != 0, hasRate}, {"seed", f.Seed != 0, hasRate},
		{"match.opcode", f.Match.Opcode != "", hasOpcode}, {"match.peer", f.Match.Peer != "", hasPeer},
		{"match.direction", f.Match.Direction != "", hasDirection}, {"by", f.By != 0, hasBy | needsBy},
		{"bitsPerSecond", f.BitsPerSecond != 0, hasBits}, {"op", f.Op != "", hasOp}, {"errno", f.Errno != "", hasOp},
		{"times", f.Times != 0, hasTimes},
	} {
		if x.given && fields&x.bit == 0 {
			return fmt.Errorf("%s: means nothing to %s: leave it out", x.name, f.Do)
		}
	}
	given := 0
	for _, set := range []bool{f.At.Bytes != 0, f.At.Packets != 0, f.At.Time != 0} {
		if set {
			given++
		}
	}
	switch {
	case given > 1:
		return fmt.Errorf("at: a fault begins once: give one of bytes, packets and time")
	case f.At.Time < 0:
		return fmt.Errorf("at.time: %v: want a time from 0", f.At.Time)
	case f.For < 0:
		return fmt.Errorf("for: %v: want a time above 0", f.For)
	case !(f.Rate >= 0 && f.Rate <= 1):
		return fmt.Errorf("rate: %v: want a number above 0 and up to 1", f.Rate)
	case f.Times < 0:
		return fmt.Errorf("times: %d: want a number from 0", f.Times)
	case f.By < 0:
		return fmt.Errorf("by: %v: want a time above 0", f.By)
	case fields&needsBy != 0 && f.By == 0:
		return fmt.Errorf("by: %s needs it, as in 2ms", f.Do)
	case fields&hasBits != 0 && f.BitsPerSecond <= 0:
		return fmt.Errorf("bitsPerSecond: %s needs it, as in 1000000000", f.Do)
	case fields&hasOp != 0 && !slices.Contains(failOps, f.Op):
		return fmt.Errorf("op: %q: want one of %s", f.Op, strings.Join(failOps, ", "))
	}
	if f.Errno != "" {
		if _, ok := errnoNamed(f.Errno); !ok {
			return fmt.Errorf("errno: %q: want the name of an error number, as in ENOMEM", f.Errno)
		}
	}
	return f.Match.validate(kind)
}

func (m *FaultMatch) validate(kind faultKind) error {
	if m.Direction != "" && m.Direction != "in" && m.Direction != "out" {
		return fmt.Errorf("match.direction: %q: want in or out", m.Direction)
	}
	if _, err := parseFaultPeer(m.Peer); err != nil {
		return fmt.Errorf("match.peer: %w", err)
	}
	words := packetWords
	switch kind {
	case blackholeCompletions:
		words = completionWords
	case lateWrite:
		words = []string{wordWrite, wordWriteImm}
	}
	if m.Opcode != "" && !slices.Contains(words, m.Opcode) {
		return fmt.Errorf("match.opcode: %q: want one of %s", m.Opcode, strings.Join(words, ", "))
	}
	return nil
}

// faultPeer is FaultMatch.Peer: addresses, and one port of them when it is not 0.
// The zero value is anybody.
type faultPeer struct {
	prefix netip.Prefix
	port   uint16
}

func parseFaultPeer(s string) (faultPeer, error) {
	if s == "" {
		return faultPeer{}, nil
	}
	if p, err := netip.ParsePrefix(s); err == nil {
		const mapped = 96 // bits in front of an IPv4 address in its IPv6 form
		if p.Addr().Is4In6() {
			p = netip.PrefixFrom(p.Addr().Unmap(), max(p.Bits()-mapped, 0))
		}
		return faultPeer{prefix: p.Masked()}, nil
	}
	a, port := netip.Addr{}, uint16(0)
	if ap, err := netip.ParseAddrPort(s); err == nil {
		a, port = ap.Addr(), ap.Port()
	} else if a, err = netip.ParseAddr(strings.Trim(s, "[]")); err != nil {
		return faultPeer{}, fmt.Errorf("%q: want ADDR, ADDR:PORT or a prefix", s)
	}
	a = a.Unmap().WithZone("")
	return faultPeer{prefix: netip.PrefixFrom(a, a.BitLen()), port: port}, nil
}

func (p faultPeer) is(a netip.AddrPort) bool {
	return !p.prefix.IsValid() || p.prefix.Contains(a.Addr()) && (p.port == 0 || p.port == a.Port())
}

// errnoNamed is the error number of a name.
func errnoNamed(name string) (unix.Errno, bool) {
	const last = 133 // EHWPOISON
	for e := unix.Errno(1); e <= last; e++ {
		if unix.ErrnoName(e) == name {
			return e, true
		}
	}
	return 0, false
}

// kindOfErrno is the sentinel of an error number that a verb fails with.
func kindOfErrno(op string, e unix.Errno) error {
	switch e {
	case unix.ENOMEM, unix.EAGAIN, unix.ENOSPC, unix.EMFILE, unix.ENFILE:
		if op == opPostSend {
			return verbs.ErrSQFull
		}
		return verbs.ErrNoMemory
	case unix.EPERM, unix.EACCES:
		return verbs.ErrPermission
	case unix.EINVAL:
		return verbs.ErrInvalid
	case unix.EBUSY:
		return verbs.ErrBusy
	case unix.EADDRINUSE:
		return verbs.ErrInUse
	case unix.ENODEV, unix.ENOENT, unix.ENXIO, unix.EADDRNOTAVAIL:
		return verbs.ErrNotFound
	case unix.EOPNOTSUPP, unix.ENOSYS:
		return verbs.ErrNotSupported
	}
	return verbs.ErrDevice
}
