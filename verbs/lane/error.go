package lane

import (
	"errors"
	"fmt"
	"strings"

	"github.com/railstore/railstore/verbs"
)

// Layer is where an error was detected. The words are those of the error table
// for lanes.
type Layer string

const (
	LayerUsage     Layer = "usage"     // an argument or a capacity
	LayerPost      Layer = "post"      // a verbs call failed
	LayerDevice    Layer = "device"    // a bad work completion
	LayerTracked   Layer = "tracked"   // a signaled request did not complete in time
	LayerWait      Layer = "wait"      // no status word in time, or the caller gave up
	LayerNode      Layer = "node"      // the peer is said to be dead
	LayerService   Layer = "service"   // the peer answered with an error status
	LayerIntegrity Layer = "integrity" // an answer that does not match its checksum
)

var (
	ErrTimeout  = errors.New("no answer in time")
	ErrTracked  = errors.New("no completion of a posted request in time")
	ErrPeerDead = errors.New("the peer is dead")
	ErrDraining = errors.New("the peer takes no new work")
	ErrClosed   = errors.New("lane closed")
	// ErrNotQuiet comes with the error of an Exposed call whose memory the peer may
	// still reach: it must not be used again.
	ErrNotQuiet    = errors.New("the QP could not be destroyed, and the peer may still reach the request's memory")
	ErrDown        = errors.New("no usable lane")
	ErrTooLarge    = errors.New("larger than the slot")
	ErrBadResponse = errors.New("the answer does not match its checksum or its request")
	ErrTicketUsed  = errors.New("the ticket was waited for before")
)

// Class sorts bad completions by what they say of the peer.
type Class string

const (
	ClassPeerUnreachable Class = "peer_unreachable" // it did not acknowledge
	ClassFlushed         Class = "flushed"          // an earlier failure
	ClassPeerRejected    Class = "peer_rejected"    // it refused the request
	ClassLocal           Class = "local_error"
	ClassOther           Class = "other"
)

// Classify gives the class of a bad status.
func Classify(s verbs.WCStatus) Class {
	switch s {
	case verbs.WCRetryExceeded, verbs.WCRNRExceeded, verbs.WCRespTimeout:
		return ClassPeerUnreachable
	case verbs.WCFlush:
		return ClassFlushed
	case verbs.WCRemAccess, verbs.WCRemInvReq, verbs.WCRemOp, verbs.WCRemAbort:
		return ClassPeerRejected
	case verbs.WCLocLen, verbs.WCLocQPOp, verbs.WCLocEECOp, verbs.WCLocProt, verbs.WCLocAccess, verbs.WCMWBind, verbs.WCBadResp:
		return ClassLocal
	}
	return ClassOther
}

// Rebuildable reports whether new QPs may cure it: only when the peer fell
// silent.
func (c Class) Rebuildable() bool { return c == ClassPeerUnreachable || c == ClassFlushed }

// Label is the words of the lane's owner; the lane gives them no meaning but for
// Shard, which requests carry and the server compares.
type Label struct {
	Shard, Index  int
	Rail          string
	Local, Remote string // names of the two ends, as "client/7" and "shard/0"
}

func (l Label) String() string {
	s := fmt.Sprintf("shard %d", l.Shard)
	if l.Index >= 0 {
		s += fmt.Sprintf(" lane %d", l.Index)
	}
	if l.Rail != "" {
		s += " rail " + l.Rail
	}
	return s
}

// End is one end of a connection in errors.
type End struct {
	Name string
	GID  verbs.GID
	QPN  uint32
}

func (e End) String() string {
	if e.QPN == 0 {
		return e.Name // QP 0 is the management's
	}
	s := fmt.Sprintf("qp 0x%06x", e.QPN)
	if !e.GID.IsZero() {
		s += " at " + e.GID.Addr().String()
	}
	if e.Name != "" {
		s = e.Name + " " + s
	}
	return s
}

// Error is what failed on a lane. Fields that were not known are zero.
type Error struct {
	Layer         Layer
	Op            string // call, start, wait, read, write, reply, lane
	Label         Label
	Local, Remote End
	Device        string
	Status        verbs.WCStatus // the first bad completion, for LayerDevice
	VendorErr     uint32         // of that completion
	Class         Class          // of Status
	Err           error          // the first cause
}

func (e *Error) Error() string { return e.Op + ": " + e.Label.String() + ": " + e.Detail() }

// Detail is the text without operation and label, for whoever tells those
// himself.
func (e *Error) Detail() string {
	var b strings.Builder
	if e.Local != (End{}) && e.Remote != (End{}) {
		fmt.Fprintf(&b, "%v to %v: ", e.Local, e.Remote)
	}
	if e.Err != nil {
		b.WriteString(e.Err.Error())
	} else {
		b.WriteString("failed")
	}
	if ve := (*verbs.Error)(nil); e.VendorErr != 0 && !errors.As(e.Err, &ve) { // which tells it
		fmt.Fprintf(&b, " (vendor error %#x)", e.VendorErr)
	}
	if e.Class != "" {
		b.WriteString(" [" + string(e.Class) + "]")
	}
	return b.String()
}

func (e *Error) Unwrap() error { return e.Err }

// as gives the same cause in another call's name.
func (e *Error) as(op string) *Error {
	out := *e
	out.Op = op
	return &out
}
