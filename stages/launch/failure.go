package launch

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/railstore/railstore/pipeline"
	"github.com/railstore/railstore/verbs"
)

// Failure is an error as data: what rs prints as JSON, and how the error that
// ended a shard reaches the command that started it.
type Failure struct {
	Layer    string `json:"layer"`
	Op       string `json:"op"`
	Shard    *int   `json:"shard,omitempty"`
	Lane     *int   `json:"lane,omitempty"`
	Rail     string `json:"rail,omitempty"`
	Device   string `json:"device,omitempty"`
	WCStatus string `json:"wc_status,omitempty"`
	Errno    string `json:"errno,omitempty"`
	Message  string `json:"message"`
	Hint     string `json:"hint,omitempty"`
}

// FailureOf takes an error apart. The message is the cause without the place,
// which the other fields have.
func FailureOf(err error) Failure {
	f := Failure{Layer: string(pipeline.LayerInternal), Message: OneLine(err.Error())}
	var pe *pipeline.Error
	if errors.As(err, &pe) {
		f.Layer, f.Op, f.Rail, f.Hint = string(pe.Layer), pe.Op, pe.Where.Rail, pe.Hint
		if pe.Where.Shard >= 0 {
			f.Shard = &pe.Where.Shard
		}
		if pe.Where.Lane >= 0 {
			f.Lane = &pe.Where.Lane
		}
		// The message keeps what was put around the *Error and leaves out its
		// place, which the other fields have.
		if pe.Err != nil {
			f.Message = OneLine(strings.Replace(err.Error(), pe.Error(), pe.Err.Error(), 1))
		}
		f.Message = placeOnce(f.Message, pe.Err)
	}
	if f.Hint == "" {
		var h interface{ Hint() string }
		if errors.As(err, &h) {
			f.Hint = h.Hint()
		}
	}
	var ve *verbs.Error
	if errors.As(err, &ve) {
		f.Device = ve.Device
		if f.Op == "" {
			f.Op = ve.Op
		}
	}
	var wc verbs.WCStatus
	if errors.As(err, &wc) {
		f.WCStatus = wc.Name()
	}
	var errno syscall.Errno
	if errors.As(err, &errno) {
		f.Errno = errnoName(errno)
	}
	var told *toldError
	if errors.As(err, &told) {
		f.Device, f.WCStatus, f.Errno = told.f.Device, told.f.WCStatus, told.f.Errno
	}
	return f
}

// toldError is the cause of an error that another process told: its codes are
// known by name only.
type toldError struct{ f Failure }

func (e *toldError) Error() string {
	return withCode(withCode(e.f.Message, e.f.WCStatus), e.f.Errno)
}

// placeOnce leaves out what and where of errors inside err when the text had the
// same before: a stage that wraps another's error of the same place repeats it.
func placeOnce(text string, err error) string {
	switch e := err.(type) {
	case *pipeline.Error:
		head := e.Op + ": "
		if w := e.Where.String(); w != "" {
			head += w + ": "
		}
		if i := strings.Index(text, head); i >= 0 {
			i += len(head)
			text = text[:i] + strings.ReplaceAll(text[i:], head, "")
		}
		return placeOnce(text, e.Err)
	case interface{ Unwrap() []error }:
		for _, c := range e.Unwrap() {
			text = placeOnce(text, c)
		}
	case interface{ Unwrap() error }:
		return placeOnce(text, e.Unwrap())
	}
	return text
}

// String is the one line that people see: what, where, why, with the names and
// numbers of a status or an errno.
func (f Failure) String() string {
	var p []string
	if f.Op != "" {
		p = append(p, f.Op)
	}
	w := pipeline.Where{Shard: -1, Lane: -1, Rail: f.Rail}
	if f.Shard != nil {
		w.Shard = *f.Shard
	}
	if f.Lane != nil {
		w.Lane = *f.Lane
	}
	if s := w.String(); s != "" {
		p = append(p, s)
	}
	if len(p) == 1 && strings.HasPrefix(f.Message, f.Op+" ") {
		p = nil // the message begins with the verb and its device
	}
	return withCode(withCode(strings.Join(append(p, f.Message), ": "), f.WCStatus), f.Errno)
}

// withCode makes sure that the text has the code, in parentheses.
func withCode(text, code string) string {
	if code == "" || strings.Contains(text, "("+code+")") {
		return text
	}
	if strings.Contains(text, " "+code) {
		return strings.ReplaceAll(text, " "+code, " ("+code+")")
	}
	return text + " (" + code + ")"
}

// Err is the failure as an error again.
func (f Failure) Err() error {
	w := pipeline.Where{Shard: -1, Lane: -1, Rail: f.Rail}
	if f.Shard != nil {
		w.Shard = *f.Shard
	}
	if f.Lane != nil {
		w.Lane = *f.Lane
	}
	return &pipeline.Error{Layer: pipeline.Layer(f.Layer), Op: f.Op, Where: w, Err: &toldError{f}, Hint: f.Hint}
}

// errnoName is the name with the number, as in EADDRINUSE(98).
func errnoName(e syscall.Errno) string {
	if n := unix.ErrnoName(e); n != "" {
		return fmt.Sprintf("%s(%d)", n, uint(e))
	}
	return fmt.Sprintf("errno %d", uint(e))
}

// OneLine joins the lines of joined errors.
func OneLine(s string) string {
	var parts []string
	for l := range strings.Lines(s) {
		if l = strings.TrimSpace(l); l != "" {
			parts = append(parts, l)
		}
	}
	return strings.Join(parts, "; ")
}

// exitRecord is what a shard's process leaves when it ends: an error, or the reason
// for which it was asked to.
type exitRecord struct {
	Code   int       `json:"code"`
	Time   time.Time `json:"time"`
	Error  Failure   `json:"error"`
	Reason string    `json:"reason,omitempty"`
}

// WriteExit records why the claim's process is about to end, for the launcher
// and for status. It is the last thing a shard does before Close.
func (c *Claim) WriteExit(code int, err error) error {
	b, jerr := json.Marshal(exitRecord{Code: code, Time: time.Now().UTC(), Error: FailureOf(err)})
	if jerr != nil {
		return jerr
	}
	return writeAtomic(c.folder.exitPath(c.shard), append(b, '\n'))
}

// WriteEnd records that the claim's process ends because it was asked to.
func (c *Claim) WriteEnd(reason string) error {
	b, err := json.Marshal(exitRecord{Time: time.Now().UTC(), Reason: reason})
	if err != nil {
		return err
	}
	return writeAtomic(c.folder.exitPath(c.shard), append(b, '\n'))
}

// readExit gives the error that a shard's process ended with.
func (f Folder) readExit(shard int) (exitRecord, bool) {
	r, ok := f.readRecordOfEnd(shard)
	return r, ok && r.Error.Message != ""
}

// readEnd gives the reason for which a shard's process was asked to end, and did.
func (f Folder) readEnd(shard int) (string, bool) {
	r, ok := f.readRecordOfEnd(shard)
	return r.Reason, ok && r.Error.Message == "" && r.Reason != ""
}

func (f Folder) readRecordOfEnd(shard int) (exitRecord, bool) {
	b, err := os.ReadFile(f.exitPath(shard))
	var r exitRecord
	if err != nil || json.Unmarshal(b, &r) != nil {
		return exitRecord{}, false
	}
	return r, true
}

// lastWords is the reason in a log: the first line of a Go panic or fatal error
// if there is one, else the last line that has text. Only what the log got from
// offset on counts.
func lastWords(path string, offset int64) string {
	file, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer file.Close()
	st, err := file.Stat()
	if err != nil {
		return ""
	}
	const most = 64 << 10
	if st.Size()-offset > most {
		offset = st.Size() - most
	}
	b, err := io.ReadAll(io.NewSectionReader(file, offset, most))
	if err != nil {
		return ""
	}
	last := ""
	for l := range strings.Lines(string(b)) {
		l = strings.TrimSpace(l)
		if strings.HasPrefix(l, "panic: ") || strings.HasPrefix(l, "fatal error: ") {
			return l
		}
		if l != "" {
			last = l
		}
	}
	return last
}
