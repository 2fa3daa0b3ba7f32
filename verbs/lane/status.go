package lane

import "fmt"

// Status is what a server answers. Every value but StatusOK is an error value
// too. Statuses are ordinary answers: they do not concern the lane.
type Status int32

const (
	StatusOK           Status = 0
	StatusInvalid      Status = -1 // the request or its payload cannot be read, or the op is unknown
	StatusWrongShard   Status = -2 // the request is for another shard
	StatusTooLarge     Status = -3 // payload, batch or response beyond a limit
	StatusSizeMismatch Status = -4 // a value has another size than the request says
	StatusNotFound     Status = -5 // what the request names is not there, or is busy
	StatusInternal     Status = -6 // the handler failed
)

var statusText = [...]string{"ok", "invalid request", "wrong shard", "too large", "size mismatch", "not found or busy", "internal error"}

func (s Status) String() string {
	if s <= 0 && int(-s) < len(statusText) {
		return fmt.Sprintf("%s (%d)", statusText[-s], int32(s))
	}
	return fmt.Sprintf("status %d", int32(s))
}

func (s Status) Error() string { return "the peer answered: " + s.String() }

// Err is nil for StatusOK, else the status.
func (s Status) Err() error {
	if s == StatusOK {
		return nil
	}
	return s
}
