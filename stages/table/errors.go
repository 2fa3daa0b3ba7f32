package table

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/railstore/railstore/pipeline"
)

var (
	// ErrClosed: the store is closed.
	ErrClosed = errors.New("the store is closed")
	// ErrDropped: the table was dropped; the handle is of no more use.
	ErrDropped = errors.New("the table was dropped")
	// ErrNoTable: the store has no table of that name.
	ErrNoTable = errors.New("no such table")
	// ErrSaving: another Save writes to the same path.
	ErrSaving = errors.New("another save to this path is under way")
	// ErrReplaced: the table was cleared or loaded while it was saved.
	ErrReplaced = errors.New("the table was cleared or loaded meanwhile")
	// ErrNotPrepared: a commit of a save that is not there.
	ErrNotPrepared = errors.New("it was not prepared here, or was given up")
	// ErrOvertaken: another save took the name meanwhile.
	ErrOvertaken = errors.New("the name belongs to another save meanwhile")
	// ErrForgotten: what was deleted since the base of an incremental save was given up
	// while it was saved.
	ErrForgotten = errors.New("what has changed since its base was forgotten meanwhile, for want of memory or because of many other saves; save it again")
)

// DisagreeError is a name under which the shards have saves that do not belong together.
type DisagreeError struct {
	Name    string
	Places  []string   // what the shards are called
	Current []Snapshot // what each has; an ID of zeros: nothing
}

func (e *DisagreeError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "snapshot %s: its parts do not belong together:", e.Name)
	for i, c := range e.Current {
		if i > 0 {
			b.WriteString(",")
		}
		if c.ID == (SaveID{}) {
			fmt.Fprintf(&b, " %s has none", e.Places[i])
			continue
		}
		fmt.Fprintf(&b, " %s has save %s of %s with tables %016x", e.Places[i], c.ID, c.Created.Format(time.RFC3339), c.Shape)
	}
	return b.String()
}

// BaseError is an incremental save whose base the store does not remember.
type BaseError struct {
	Name string
	Base SaveID
}

func (e *BaseError) Error() string {
	return fmt.Sprintf("what has changed since save %s (%s) is not known: it was neither saved nor loaded since the start, or is older than the last %d that were",
		e.Base, e.Name, keepMarks)
}

// ShapeError is what does not fit: a table that exists with another shape, a batch
// whose slices do not go together, a field of a Spec out of range.
type ShapeError struct {
	Table string
	Field string // dim, optimizer.kind, optimizer.learning_rate, rows, grads, found, ...
	Want  any
	Got   any
}

func (e *ShapeError) Error() string {
	return fmt.Sprintf("table %q: %s is %v, want %v", e.Table, e.Field, e.Got, e.Want)
}

// LimitError is memory, or a count, that would go beyond a limit.
type LimitError struct {
	Field string // rows, index, directory: bytes of Config.Limit; clients: of Config.Clients; depth: of the index
	Need  int64  // what was asked for in addition
	Used  int64  // what is in use
	Limit int64
	Pins  string // pins that keep memory from being used again, if any
}

func (e *LimitError) Error() string {
	s := fmt.Sprintf("limit of %s: need %d more, %d of %d in use", e.Field, e.Need, e.Used, e.Limit)
	if e.Pins != "" {
		s += "; replaced rows wait for " + e.Pins
	}
	return s
}

// BatchError is a Put or an Update that stopped half-way. A key of the batch was
// applied if, and only if, it stands at a position before Applied; of an Update, all
// gradients of such a key were applied, also those further back.
type BatchError struct {
	Table   string
	Keys    int
	Applied int
	Err     error
}

func (e *BatchError) Error() string {
	return fmt.Sprintf("table %q: %d of %d keys applied: %v", e.Table, e.Applied, e.Keys, e.Err)
}

func (e *BatchError) Unwrap() error { return e.Err }

// GradientError is a gradient that is not finite, or whose sum over the duplicates of
// its key is not. Nothing was changed.
type GradientError struct {
	Table    string
	Key      uint64
	Position int // in the batch
	Element  int // in the row
	Value    float32
}

func (e *GradientError) Error() string {
	return fmt.Sprintf("table %q: gradient of key %d (position %d), element %d is %v", e.Table, e.Key, e.Position, e.Element, e.Value)
}

// TokenError is a token that is older than what is remembered of its client: whether it
// was applied is not known, so it is not applied.
type TokenError struct {
	Token  Token
	Oldest uint64 // the first sequence that is remembered
}

func (e *TokenError) Error() string {
	return fmt.Sprintf("token %d of client %d is older than %d, the first that is remembered: whether it was applied is not known",
		e.Token.Sequence, e.Token.Client, e.Oldest)
}

// PinsError is a Close while pins are held.
type PinsError struct{ Pins []PinInfo }

func (e *PinsError) Error() string {
	return "in use: " + pinNames(e.Pins)
}

func pinNames(pins []PinInfo) string {
	var b strings.Builder
	for i, p := range pins {
		if i > 0 {
			b.WriteString(", ")
		}
		if i == 8 {
			fmt.Fprintf(&b, "and %d more", len(pins)-i)
			break
		}
		b.WriteString(p.String())
	}
	return b.String()
}

// SnapshotError is a snapshot that cannot be what Save wrote. The store is as before.
type SnapshotError struct {
	Path   string
	Offset int64 // of the first byte that was not read as valid
	What   string
	Err    error
}

func (e *SnapshotError) Error() string {
	s := fmt.Sprintf("snapshot %s, byte %d: %s", e.Path, e.Offset, e.What)
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

func (e *SnapshotError) Unwrap() error { return e.Err }

// VersionError is a snapshot of a version that this code does not read.
type VersionError struct {
	Path      string
	Got, Want uint32
}

func (e *VersionError) Error() string {
	return fmt.Sprintf("snapshot %s: version %d, this program reads versions up to %d", e.Path, e.Got, e.Want)
}

// fail puts an error of the package into its layer.
func fail(op string, err error) error {
	layer, hint := pipeline.LayerInternal, ""
	var (
		shape   *ShapeError
		limit   *LimitError
		grad    *GradientError
		token   *TokenError
		pins    *PinsError
		broken  *SnapshotError
		version *VersionError
	)
	switch {
	case errors.As(err, &limit):
		layer = pipeline.LayerResource
		hint = "raise the store's memory, or delete rows or drop tables that are not needed"
		switch {
		case limit.Field == "clients":
			hint = "forget clients that are gone, or raise the number of clients"
		case limit.Pins != "":
			hint = "let the pins go, or raise the store's memory"
		}
	case errors.As(err, &shape):
		layer = pipeline.LayerUsage
		hint = "use the table's shape, or drop the table first"
	case errors.As(err, &grad):
		layer = pipeline.LayerUsage
		hint = "lower the learning rate, clip gradients, or give the table another policy for gradients that are not finite"
	case errors.As(err, &token):
		layer = pipeline.LayerUsage
		hint = "number the batches of a client one by one, and retry the oldest first"
	case errors.As(err, &pins):
		layer = pipeline.LayerUsage
		hint = "end what uses the store before closing it"
	case errors.As(err, &broken), errors.As(err, &version):
		layer = pipeline.LayerIntegrity
		hint = "take an older snapshot"
		if broken != nil && broken.Err != nil && errors.As(broken.Err, new(*ioError)) {
			layer, hint = pipeline.LayerStorage, ""
		}
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		layer = pipeline.LayerWait
	case errors.As(err, new(*DisagreeError)):
		layer = pipeline.LayerIntegrity
		hint = "bring the files of one save together, or load another snapshot; saving to this name again makes it whole"
	case errors.As(err, new(*BaseError)):
		layer = pipeline.LayerUsage
		hint = "save all of it, without a base"
	case errors.Is(err, ErrClosed), errors.Is(err, ErrDropped), errors.Is(err, ErrNoTable), errors.Is(err, ErrSaving), errors.Is(err, ErrReplaced),
		errors.Is(err, ErrForgotten), errors.Is(err, ErrNotPrepared), errors.Is(err, ErrOvertaken):
		layer = pipeline.LayerUsage
	case errors.As(err, new(*ioError)):
		layer = pipeline.LayerStorage
	case errors.As(err, new(*memoryError)):
		layer = pipeline.LayerResource
	}
	return &pipeline.Error{Layer: layer, Op: op, Where: pipeline.Nowhere, Err: err, Hint: hint}
}

// ioError marks what a file or stream said, memoryError what Memory said.
type ioError struct{ err error }

func (e *ioError) Error() string { return e.err.Error() }
func (e *ioError) Unwrap() error { return e.err }

type memoryError struct{ err error }

func (e *memoryError) Error() string { return "no memory from the system: " + e.err.Error() }
func (e *memoryError) Unwrap() error { return e.err }
