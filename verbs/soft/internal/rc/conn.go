package rc

import (
	"github.com/railstore/railstore/verbs"
	"github.com/railstore/railstore/verbs/soft/internal/wire"
)

// Memory is how a connection reaches registered memory. A slice is used only
// during the call that got it; slices in Packet.Frags until the Output is reset.
type Memory interface {
	// Local is the memory of a local key; write asks for the right to write. A
	// status other than WCSuccess (WCLocProt) fails the work request.
	Local(lkey uint32, addr uint64, n uint32, write bool) ([]byte, verbs.WCStatus)
	// Remote is the memory that a peer names, when the key exists, the range is
	// inside it and it grants need.
	Remote(rkey uint32, addr uint64, n uint64, need verbs.Access) ([]byte, bool)
}

// Config of a Conn. Zero values are replaced as said beside each field.
type Config struct {
	QPN    uint32
	Device string // for errors
	Cap    verbs.QPCap
	SigAll bool // every send request gets a completion
	Mem    Memory

	PKey          uint16 // 0xffff
	InitialWindow int    // packets in flight at first; 64
	MaxWindow     int    // packets in flight at most; 1024
	MinRTO        int64  // ns, floor of the early retransmission timer; 5 ms; negative: only the IBTA timer
}

// Conn is both halves of a reliable connection. All calls are serialised by the
// owner.
type Conn struct {
	cfg   Config
	attr  verbs.QPAttr
	stats verbs.QPStats
}

// New makes a Conn in RESET.
func New(cfg Config) *Conn { return &Conn{cfg: cfg} }

// State is the state of the QP.
func (c *Conn) State() verbs.QPState { return c.attr.State }

// Attr are the attributes set so far and the state.
func (c *Conn) Attr() verbs.QPAttr { return c.attr }

// Stats are the counters since the last reset.
func (c *Conn) Stats() verbs.QPStats { return c.stats }

// Modify applies the attributes that mask names; the verbs front has checked them
// against the state table. Entering ERR flushes at the next Pump; entering RESET
// forgets everything without completions.
func (c *Conn) Modify(attr *verbs.QPAttr, mask verbs.QPMask) {}

// PostSend queues send requests and returns how many were taken. The error
// (prepared, no allocation) is about the first that was not.
func (c *Conn) PostSend(wrs []verbs.SendWR, sges []verbs.SGE) (int, error) { return len(wrs), nil }

// PostRecv queues receive requests likewise.
func (c *Conn) PostRecv(wrs []verbs.RecvWR, sges []verbs.SGE) (int, error) { return len(wrs), nil }

// Step takes one received packet whose ICRC was checked.
func (c *Conn) Step(now int64, p *wire.Packet, out *Output) {}

// Tick runs the timers that are due at now.
func (c *Conn) Tick(now int64, out *Output) {}

// Pump puts out packets that may be sent now. It reports whether there are more
// and only room was missing.
func (c *Conn) Pump(now int64, out *Output) (more bool) { return false }

// NextTick is the time at which Tick is due; 0 when no timer runs.
func (c *Conn) NextTick() int64 { return 0 }
