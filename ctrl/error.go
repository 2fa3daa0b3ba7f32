package ctrl

import (
	"errors"
	"fmt"
)

// Sentinels of the control plane.
var (
	ErrClosed    = errors.New("closed")
	ErrNotJoined = errors.New("not joined")
	ErrLeaseLost = errors.New("the control plane does not know this node any more")
	ErrStopping  = errors.New("the deployment is stopping")
	ErrLimit     = errors.New("over a limit of the control plane")
)

// ReplacedError says that another process joined with this node's id later.
type ReplacedError struct{ ID NodeID }

func (e *ReplacedError) Error() string {
	return fmt.Sprintf("another process has joined as %s", e.ID)
}

// Hint says what to do about it.
func (e *ReplacedError) Hint() string {
	return "two processes run with one id: stop one of them, or give it another id"
}

// AbsentError says that a node is not there: it never joined, left or died.
type AbsentError struct {
	ID     NodeID
	State  State
	Reason string
}

func (e *AbsentError) Error() string {
	s := fmt.Sprintf("%s is not there (%s)", e.ID, e.State)
	if e.Reason != "" {
		s += ": " + e.Reason
	}
	return s
}

// Missing is a node that is not in the state that somebody waits for.
type Missing struct {
	ID     NodeID
	State  State
	Reason string
}

func (m Missing) String() string {
	s := fmt.Sprintf("%s is %s", m.ID, m.State)
	if m.State == StateUnknown {
		s = fmt.Sprintf("%s has not joined", m.ID)
	}
	if m.Reason != "" {
		s += " (" + m.Reason + ")"
	}
	return s
}

// StaleOfferError says that an offer is older than what is published, or another
// one of the same generation.
type StaleOfferError struct {
	From, To   NodeID
	Generation uint64
	Have       uint64
}

func (e *StaleOfferError) Error() string {
	if e.Have == e.Generation {
		return fmt.Sprintf("offer %s to %s: another offer of generation %d is published already", e.From, e.To, e.Have)
	}
	return fmt.Sprintf("offer %s to %s: generation %d is older than the published %d", e.From, e.To, e.Generation, e.Have)
}

// BarrierError says why a barrier cannot be passed.
type BarrierError struct{ Name, Reason string }

func (e *BarrierError) Error() string { return fmt.Sprintf("barrier %q: %s", e.Name, e.Reason) }

// ConflictError says that an object is not what a commit or a delete expects.
// Have is the generation that is there, 0 when there is none.
type ConflictError struct {
	Key          ObjectKey
	Expect, Have uint64
	Reason       string
}

func (e *ConflictError) Error() string { return fmt.Sprintf("%s: conflict: %s", e.Key, e.Reason) }
