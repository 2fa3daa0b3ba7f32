package vectors

import (
	"errors"
	"fmt"
	"strings"

	"github.com/railstore/railstore/pipeline"
)

// What can be wrong with a file.
var (
	ErrFormat    = errors.New("not a file of this format")
	ErrShape     = errors.New("wrong shape")
	ErrTruncated = errors.New("the file is truncated")
	ErrTrailing  = errors.New("bytes follow the end")
	ErrNotFinite = errors.New("a value that is not finite")
	ErrDuplicate = errors.New("a key twice")
	ErrKeys      = errors.New("the keys do not fit")
)

// FaultError is what is wrong with a file, and where.
type FaultError struct {
	Path   string
	Offset int64 // of the byte at which it was noticed
	Line   int64 // of text, from 1; 0: not of text
	Row    int64 // from 0; -1: not of a row
	Column int   // float of the row, from 0; -1: of the row as a whole
	Kind   error // one of the sentinels
	What   string
}

func (e *FaultError) Error() string {
	var b strings.Builder
	b.WriteString(e.Path)
	if e.Line > 0 {
		fmt.Fprintf(&b, ": line %d", e.Line)
	} else if e.Row >= 0 {
		fmt.Fprintf(&b, ": row %d", e.Row)
	}
	if e.Column >= 0 {
		fmt.Fprintf(&b, ", column %d", e.Column)
	}
	fmt.Fprintf(&b, ": byte %d: %s", e.Offset, e.What)
	return b.String()
}

func (e *FaultError) Unwrap() error { return e.Kind }

// place is where in a file a fault is.
type place struct {
	offset, line, row int64
	column            int
}

func at(offset int64) place { return place{offset: offset, row: -1, column: -1} }

func (p place) fault(kind error, format string, args ...any) *FaultError {
	return &FaultError{Offset: p.offset, Line: p.line, Row: p.row, Column: p.column, Kind: kind, What: fmt.Sprintf(format, args...)}
}

// fail gives err its layer, and a fault the name of its file.
func fail(op, path string, err error) error {
	var (
		pe    *pipeline.Error
		fault *FaultError
	)
	if errors.As(err, &pe) {
		return err
	}
	layer, hint := pipeline.LayerStorage, ""
	if !errors.As(err, &fault) {
		return &pipeline.Error{Layer: layer, Op: op, Where: pipeline.Nowhere, Err: fmt.Errorf("%s: %w", path, err)}
	}
	if fault.Path == "" {
		fault.Path = path
	}
	switch {
	case errors.Is(fault, ErrTruncated), errors.Is(fault, ErrTrailing):
		layer, hint = pipeline.LayerIntegrity, "fetch or write the file again: it is not whole"
	case errors.Is(fault, ErrFormat):
		layer, hint = pipeline.LayerIntegrity, "want .npy, .safetensors, or text with a word and its numbers on each line"
	case errors.Is(fault, ErrNotFinite):
		hint = "let such values count as 0 or keep them, with --nan zero or --nan keep"
	case errors.Is(fault, ErrDuplicate):
		hint = "let the last one win, with --duplicates last"
	case errors.Is(fault, ErrShape):
		hint = "want a matrix of floats, its rows as wide as those of the table"
	case errors.Is(fault, ErrKeys):
		hint = "give one u8 or i8 number, from 0 on, for each row"
	}
	return &pipeline.Error{Layer: layer, Op: op, Where: pipeline.Nowhere, Err: fault, Hint: hint}
}

// shorten keeps what stands in a file from filling the screen.
func shorten(s string) string {
	const most = 60
	if len(s) > most {
		s = s[:most] + "..."
	}
	return fmt.Sprintf("%q", s)
}
