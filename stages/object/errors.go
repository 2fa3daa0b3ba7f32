package object

import (
	"context"
	"errors"
)

// What can be wrong with a name or an object as a whole.
var (
	ErrName     = errors.New("not a usable object name")
	ErrNotFound = errors.New("object not found")
	ErrExists   = errors.New("object exists")
	ErrSource   = errors.New("source cannot be put")
	ErrRange    = errors.New("range outside the object")
	ErrConflict = errors.New("another writer was faster")
	// ErrUnknownOutcome is a commit whose answer got lost and that a lookup could
	// not settle. Nothing is deleted then: one of the two generations is whole.
	ErrUnknownOutcome = errors.New("it is not known whether the commit happened")
)

// What can be wrong with a placement. All are found before any I/O.
var (
	ErrMissingStripe   = errors.New("missing stripes")
	ErrDuplicateStripe = errors.New("duplicate stripes")
	ErrOutOfBounds     = errors.New("stripe out of bounds")
	ErrWrongLength     = errors.New("stripe of the wrong length")
	ErrUnknownShard    = errors.New("stripe on an unknown shard or directory")
	ErrForeign         = errors.New("placement of another object")
	ErrDescriptor      = errors.New("descriptor does not add up")
	ErrNoChecksum      = errors.New("stripe without a checksum")
)

// What a shard answers. Each is a different status on the wire, so that the
// client can choose between looking up again, a bigger buffer, another rail and
// giving up.
var (
	ErrStale          = errors.New("stale descriptor")
	ErrStripeNotFound = errors.New("stripe not found")
	ErrTooSmall       = errors.New("buffer too small for the stripe")
	ErrIO             = errors.New("storage failed")
	ErrNoSpace        = errors.New("directory full")
	ErrCorrupt        = errors.New("stripe file damaged")
	ErrChecksum       = errors.New("checksum differs")
	ErrWrongShard     = errors.New("request for another shard")
	ErrBadRequest     = errors.New("malformed request")
	ErrBusy           = errors.New("shard is busy or stopping")
	ErrInternal       = errors.New("shard failed internally")
)

// What can be wrong on the way.
var (
	ErrNoRails = errors.New("no usable rail")
	// ErrNotQuiet marks a failed transfer whose memory the peer may still touch.
	// The memory may be reused only after Transport.Quiesce.
	ErrNotQuiet   = errors.New("the peer may still touch the memory")
	ErrNoMemory   = errors.New("not enough registered memory")
	ErrIncomplete = errors.New("object incomplete")
	// ErrTooLate ends a read whose rest the rails that are left cannot bring in time.
	ErrTooLate  = errors.New("the deadline is too near")
	ErrLost     = errors.New("the catalog names a stripe that its shard does not have")
	ErrWrongDir = errors.New("not the directory of this shard")
	ErrClosed   = errors.New("closed")
	ErrLeased   = errors.New("memory is in use")
)

// class says what a failure of one stripe means for the rest of the job.
type class uint8

const (
	classCanceled  class = iota // the caller gave up
	classStale                  // look up again
	classData                   // the bytes are wrong: read again, on another rail if there is one
	classService                // the shard answered no: the rail is healthy
	classTransport              // the rail or the peer: the rail cools down
)

// classify sorts a failure. Only classTransport may mark a rail unhealthy: a
// shard that answers proves that the rail works.
func classify(err error) class {
	is := func(targets ...error) bool {
		for _, t := range targets {
			if errors.Is(err, t) {
				return true
			}
		}
		return false
	}
	switch {
	case is(ErrStale, ErrStripeNotFound):
		return classStale
	case is(ErrChecksum, ErrCorrupt):
		return classData
	case is(ErrTooSmall, ErrIO, ErrNoSpace, ErrWrongShard, ErrBadRequest, ErrBusy, ErrInternal, ErrNoMemory, ErrClosed, ErrWrongLength, errBudget):
		return classService
	case is(context.Canceled):
		return classCanceled
	}
	return classTransport
}
