package object

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// Statuses of the stripe protocol. 0 to -6 are the lane's own and mean the same
// here; each failure of a stripe has one of its own, so that a client never has to
// guess whether to look up again, to take a larger buffer or to give up.
const (
	statusOK          int32 = 0
	statusBadRequest  int32 = -1
	statusWrongShard  int32 = -2
	statusInternal    int32 = -6
	statusStale       int32 = -32
	statusNotFound    int32 = -33
	statusTooSmall    int32 = -34
	statusIO          int32 = -35
	statusNoSpace     int32 = -36
	statusChecksum    int32 = -37
	statusCorrupt     int32 = -38
	statusWrongLength int32 = -39
	statusBusy        int32 = -40
	statusNoMemory    int32 = -41
)

var statusTable = []struct {
	status int32
	kind   error
}{
	{statusStale, ErrStale},
	{statusNotFound, ErrStripeNotFound},
	{statusTooSmall, ErrTooSmall},
	{statusNoSpace, ErrNoSpace},
	{statusIO, ErrIO},
	{statusChecksum, ErrChecksum},
	{statusCorrupt, ErrCorrupt},
	{statusWrongLength, ErrWrongLength},
	{statusBusy, ErrBusy},
	{statusNoMemory, ErrNoMemory},
	{statusBadRequest, ErrBadRequest},
	{statusWrongShard, ErrWrongShard},
	{statusInternal, ErrInternal},
}

// statusOf is the status that tells a client of an error; what has none of its own
// is internal.
func statusOf(err error) int32 {
	if err == nil {
		return statusOK
	}
	for _, e := range statusTable {
		if errors.Is(err, e.kind) {
			return e.status
		}
	}
	return statusInternal
}

// shardError is what a shard answered: its own words, and the kind they are of.
type shardError struct {
	kind error
	text string
}

func (e *shardError) Error() string { return e.text }
func (e *shardError) Unwrap() error { return e.kind }

// errorOf is statusOf at the other end. The text comes from a peer: it is cut to
// one line of readable UTF-8.
func errorOf(status int32, text []byte) error {
	if status == statusOK {
		return nil
	}
	for _, e := range statusTable {
		if e.status == status {
			if len(text) == 0 {
				return e.kind
			}
			return &shardError{kind: e.kind, text: readable(text)}
		}
	}
	return &shardError{kind: ErrInternal, text: fmt.Sprintf("%v: status %d: %s", ErrInternal, status, readable(text))}
}

func readable(b []byte) string {
	s := strings.ToValidUTF8(string(b[:min(len(b), maxReasonBytes)]), "?")
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, s)
}

// reason writes an error's text into dst, cut at a character.
func reason(dst []byte, err error) int {
	s := err.Error()
	n := min(len(s), len(dst), maxReasonBytes)
	for n > 0 && n < len(s) && !utf8.RuneStart(s[n]) {
		n--
	}
	return copy(dst, s[:n])
}
