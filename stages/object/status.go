package object

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"syscall"
	"unicode/utf8"

	"golang.org/x/sys/unix"
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

// shardError is what a shard answered: its own words, the kind they are of, and the
// errno that is the cause, or 0.
type shardError struct {
	kind  error
	text  string
	errno syscall.Errno
}

func (e *shardError) Error() string { return e.text }

func (e *shardError) Unwrap() []error {
	if e.errno == 0 {
		return []error{e.kind}
	}
	return []error{e.kind, e.errno}
}

// The errno of a failure goes at the end of its text, as in " (ENOSPC(28))": a
// client that knows nothing of it shows it all the same. Its name counts; numbers
// differ between architectures.

func withErrno(text string, err error) string {
	var e syscall.Errno
	if !errors.As(err, &e) || unix.ErrnoName(e) == "" {
		return text
	}
	return fmt.Sprintf("%s (%s(%d))", text, unix.ErrnoName(e), uint(e))
}

var errnoAtEnd = regexp.MustCompile(`^(.*) \((E[A-Z0-9]{1,20})\([0-9]{1,4}\)\)$`)

// cutErrno is the other end of withErrno.
func cutErrno(text string) (string, syscall.Errno) {
	m := errnoAtEnd.FindStringSubmatch(text)
	if m == nil {
		return text, 0
	}
	for e := syscall.Errno(1); e < maxErrno; e++ {
		if unix.ErrnoName(e) == m[2] {
			return m[1], e
		}
	}
	return text, 0
}

const maxErrno = 4096

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
			words, errno := cutErrno(readable(text))
			return &shardError{kind: e.kind, text: words, errno: errno}
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
	// The code must not be what is cut.
	if code := withErrno("", err); code != "" {
		most := max(min(len(dst), maxReasonBytes)-len(code), 0)
		for most < len(s) && most > 0 && !utf8.RuneStart(s[most]) {
			most--
		}
		s = s[:min(len(s), most)] + code
	}
	n := min(len(s), len(dst), maxReasonBytes)
	for n > 0 && n < len(s) && !utf8.RuneStart(s[n]) {
		n--
	}
	return copy(dst, s[:n])
}
