package ps

import (
	"errors"
	"fmt"
	"strings"

	"github.com/railstore/railstore/pipeline"
	"github.com/railstore/railstore/stages/table"
	"github.com/railstore/railstore/verbs/lane"
)

// What a shard answers, and what a client refuses by itself. Errors of calls match these
// with errors.Is.
var (
	ErrBadRequest  = errors.New("bad request")
	ErrBadResponse = errors.New("the shard's answer cannot be read")
	ErrTooLarge    = errors.New("larger than a slot, or than what goes through memory at once")
	ErrNoTable     = errors.New("no such table")
	ErrShape       = errors.New("another shape")
	ErrBusy        = errors.New("busy")
	ErrMemory      = errors.New("no memory left for rows")
	ErrNonFinite   = errors.New("a gradient is not finite")
	ErrToken       = errors.New("the batch is too old to know whether it was applied")
	ErrSnapshot    = errors.New("the snapshot cannot be used")
	ErrDamaged     = errors.New("the snapshot is damaged")
	ErrInternal    = errors.New("internal error of the shard")
	ErrWrongShard  = errors.New("another shard is meant")

	ErrDepth      = errors.New("as many requests are in flight as lanes.asyncDepth allows")
	ErrHandleUsed = errors.New("the handle was waited for before")
	ErrClosed     = errors.New("the client is closed")
)

// Code is the cause of an answer that is not OK, finer than its status.
type Code uint8

// The codes, with the status that each goes with.
const (
	CodeNone       Code = 0  // the lane itself answered
	CodeBadRequest Code = 1  // −1
	CodeTooLarge   Code = 2  // −3
	CodeShape      Code = 3  // −4
	CodeNoTable    Code = 4  // −5
	CodeBusy       Code = 5  // −5
	CodeMemory     Code = 6  // −5
	CodeNonFinite  Code = 7  // −1
	CodeToken      Code = 8  // −5
	CodeSnapshot   Code = 9  // −5
	CodeInternal   Code = 10 // −6
	CodeDamaged    Code = 11 // −5
)

var codes = []struct {
	err    error
	status lane.Status
}{
	CodeNone:       {nil, lane.StatusInternal},
	CodeBadRequest: {ErrBadRequest, lane.StatusInvalid},
	CodeTooLarge:   {ErrTooLarge, lane.StatusTooLarge},
	CodeShape:      {ErrShape, lane.StatusSizeMismatch},
	CodeNoTable:    {ErrNoTable, lane.StatusNotFound},
	CodeBusy:       {ErrBusy, lane.StatusNotFound},
	CodeMemory:     {ErrMemory, lane.StatusNotFound},
	CodeNonFinite:  {ErrNonFinite, lane.StatusInvalid},
	CodeToken:      {ErrToken, lane.StatusNotFound},
	CodeSnapshot:   {ErrSnapshot, lane.StatusNotFound},
	CodeInternal:   {ErrInternal, lane.StatusInternal},
	CodeDamaged:    {ErrDamaged, lane.StatusNotFound},
}

// codeOf sorts an error of the shard.
func codeOf(err error) (c Code, applied int) {
	var (
		batch *table.BatchError
		shape *table.ShapeError
		limit *table.LimitError
		grad  *table.GradientError
		token *table.TokenError
		at    *pipeline.Error
	)
	if errors.As(err, &batch) {
		applied = batch.Applied
	}
	switch {
	case errors.As(err, &limit):
		return CodeMemory, applied
	case errors.As(err, &grad):
		return CodeNonFinite, applied
	case errors.As(err, &token):
		return CodeToken, applied
	case errors.As(err, &at) && at.Layer == pipeline.LayerIntegrity:
		return CodeDamaged, applied
	case errors.As(err, &shape):
		return CodeShape, applied
	case errors.Is(err, table.ErrNoTable), errors.Is(err, table.ErrDropped):
		return CodeNoTable, applied
	case errors.Is(err, table.ErrClosed), errors.Is(err, table.ErrSaving):
		return CodeBusy, applied
	}
	for c := CodeBadRequest; int(c) < len(codes); c++ {
		if errors.Is(err, codes[c].err) {
			return c, applied
		}
	}
	return CodeInternal, applied
}

// remoteError is what a shard answered.
type remoteError struct {
	kind   error // one of this package
	status lane.Status
	text   string
}

func (e *remoteError) Error() string {
	if e.text == "" {
		return e.status.Error()
	}
	return e.text
}

func (e *remoteError) Unwrap() []error { return []error{e.kind, e.status} }

// answered makes an error of an answer with a status other than StatusOK.
func answered(st lane.Status, body []byte) (applied int, err error) {
	code, applied, text := parseError(body)
	e := &remoteError{status: st, text: text}
	switch {
	case code != CodeNone && int(code) < len(codes):
		e.kind = codes[code].err
	case st == lane.StatusInvalid:
		e.kind = ErrBadRequest
	case st == lane.StatusWrongShard:
		e.kind = ErrWrongShard
	case st == lane.StatusTooLarge:
		e.kind = ErrTooLarge
	case st == lane.StatusSizeMismatch:
		e.kind = ErrShape
	case st == lane.StatusNotFound:
		e.kind = ErrBusy
	default:
		e.kind = ErrInternal
	}
	return applied, e
}

// Range is positions [From, To) of the caller's batch.
type Range struct{ From, To int }

func (r Range) String() string {
	if r.To == r.From+1 {
		return fmt.Sprint(r.From)
	}
	return fmt.Sprintf("%d-%d", r.From, r.To-1)
}

// Applied is what is known of a change that failed.
type Applied uint8

const (
	// NotApplied: nothing of it was done. Of a GET, an EXISTS it says nothing.
	NotApplied Applied = iota
	// AppliedUnknown: it was sent, by this call or one that it resumes, and no answer came.
	// It was done, or not, or in part.
	AppliedUnknown
)

func (a Applied) String() string {
	return [...]string{"not applied", "not known whether applied"}[a]
}

// ShardError is a part of a batch that failed at one shard.
type ShardError struct {
	Shard   int
	Lane    int    // -1: none was taken
	Rail    string // empty: none was taken
	Keys    []Range
	Applied Applied // of all these keys
	Err     error
}

// Count is how many positions the error is about.
func (e *ShardError) Count() (n int) {
	for _, r := range e.Keys {
		n += r.To - r.From
	}
	return n
}

func (e *ShardError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "shard %d", e.Shard)
	if e.Lane >= 0 {
		fmt.Fprintf(&b, " lane %d", e.Lane)
	}
	if e.Rail != "" {
		b.WriteString(" rail " + e.Rail)
	}
	if len(e.Keys) > 0 {
		b.WriteString(": keys ")
	}
	for i, r := range e.Keys {
		if i == 3 {
			fmt.Fprintf(&b, " and %d ranges more", len(e.Keys)-i)
			break
		}
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(r.String())
	}
	text := e.Err.Error()
	var le *lane.Error
	if errors.As(e.Err, &le) { // its place was said
		text = le.Detail()
	}
	return b.String() + ": " + text
}

func (e *ShardError) Unwrap() error { return e.Err }

// BatchError is a batch of which some positions failed. The others were done.
type BatchError struct {
	Op     string // get, put, update, exists, delete
	Table  string
	Keys   int // of the batch
	Shards []*ShardError

	changes bool
	only    int // shard place, -1: routed
	redo    []redo
}

// redo is a part of a batch that Resume sends again, as it was: of each key the position
// that stands for it, then those chained to it.
type redo struct {
	place    int
	sequence uint64  // 0: a new one
	unknown  bool    // whether it was applied
	pos      []int32 // key by key
	lens     []int32 // where in pos each key ends
	sum      bool    // the chained ones are added up
}

// Failed is how many positions failed.
func (e *BatchError) Failed() (n int) {
	for _, s := range e.Shards {
		n += s.Count()
	}
	return n
}

func (e *BatchError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: table %q: %d of %d keys failed", e.Op, e.Table, e.Failed(), e.Keys)
	for i, s := range e.Shards {
		if i == 4 {
			fmt.Fprintf(&b, "; and %d parts more", len(e.Shards)-i)
			break
		}
		b.WriteString("; " + s.Error())
		if e.changes {
			b.WriteString(" (" + s.Applied.String() + ")")
		}
	}
	return b.String()
}

func (e *BatchError) Unwrap() []error {
	out := make([]error, len(e.Shards))
	for i, s := range e.Shards {
		out[i] = s
	}
	return out
}
