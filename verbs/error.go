package verbs

import (
	"errors"
	"fmt"
	"strings"
)

// Sentinels. A returned *Error matches exactly one of them as its Kind.
var (
	ErrNotSupported = errors.New("not supported by this provider")
	ErrInvalid      = errors.New("invalid argument")
	ErrState        = errors.New("wrong state")
	ErrBusy         = errors.New("still in use")
	ErrClosed       = errors.New("closed")
	ErrNotFound     = errors.New("not found")
	ErrInUse        = errors.New("address or device in use")
	ErrPermission   = errors.New("permission denied")
	ErrNoMemory     = errors.New("out of memory or over a limit")
	ErrSQFull       = errors.New("send queue full")
	ErrRQFull       = errors.New("receive queue full")
	ErrCQOverrun    = errors.New("completion queue overrun")
	ErrDevice       = errors.New("device failure")
)

// Error is what failed on the device. Zero fields were not known.
type Error struct {
	Op     string // the verb, as in "create_qp" or "post_send"
	Device string // provider:device, as in "soft:127.0.0.1"
	Port   uint8
	QPN    uint32
	Kind   error // one of the sentinels
	Err    error // detail; the errno or the text of what was wrong
}

func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(e.Op)
	if e.Device != "" {
		b.WriteByte(' ')
		b.WriteString(e.Device)
	}
	if e.Port != 0 {
		fmt.Fprintf(&b, "/%d", e.Port)
	}
	if e.QPN != 0 {
		fmt.Fprintf(&b, " qp 0x%06x", e.QPN)
	}
	b.WriteString(": ")
	switch {
	case e.Err == nil && e.Kind != nil:
		b.WriteString(e.Kind.Error())
	case e.Err != nil && e.Kind == nil:
		b.WriteString(e.Err.Error())
	case e.Err != nil:
		fmt.Fprintf(&b, "%v: %v", e.Kind, e.Err)
	}
	return b.String()
}

// Unwrap makes errors.Is hold for the sentinel and for the cause beneath it.
func (e *Error) Unwrap() []error {
	out := make([]error, 0, 2)
	if e.Kind != nil {
		out = append(out, e.Kind)
	}
	if e.Err != nil {
		out = append(out, e.Err)
	}
	return out
}

// Errorf makes an *Error with a formatted detail; %w wraps.
func Errorf(kind error, op, device, format string, args ...any) *Error {
	return &Error{Op: op, Device: device, Kind: kind, Err: fmt.Errorf(format, args...)}
}
