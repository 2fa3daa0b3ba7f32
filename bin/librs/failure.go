package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime/debug"
	"strings"

	"github.com/railstore/railstore/bin/exit"
	"github.com/railstore/railstore/cue/load"
	"github.com/railstore/railstore/pipeline"
	"github.com/railstore/railstore/stages/lanes"
	"github.com/railstore/railstore/stages/launch"
	"github.com/railstore/railstore/stages/object"
	"github.com/railstore/railstore/stages/ps"
)

var (
	errClosed = errors.New("closed") // before the call
	errClose  = errors.New("the session was closed meanwhile")
	errPanic  = errors.New("internal error of the library")
)

// kinds are the stable words for what failed, the first that fits. docs/c-abi.md has
// them, and a test compares.
var kinds = []struct {
	err  error
	word string
}{
	{exit.ErrInterrupted, "cancelled"},
	{errClose, "closed"},
	{errClosed, "closed"},
	{errLate, "deadline"},
	{errPanic, "internal"},
	{exit.ErrDegraded, "degraded"},
	{object.ErrTooLate, "deadline"},
	{object.ErrNotFound, "not_found"},
	{object.ErrExists, "exists"},
	{object.ErrConflict, "conflict"},
	{object.ErrUnknownOutcome, "unknown_outcome"},
	{object.ErrName, "name"},
	{object.ErrRange, "range"},
	{object.ErrNoMemory, "no_memory"},
	{object.ErrTooSmall, "too_small"},
	{object.ErrLeased, "leased"},
	{object.ErrLost, "lost"},
	{object.ErrCorrupt, "corrupt"},
	{object.ErrChecksum, "checksum"},
	{object.ErrNoChecksum, "no_checksum"},
	{object.ErrStale, "stale"},
	{object.ErrStripeNotFound, "stale"},
	{object.ErrNoSpace, "no_space"},
	{object.ErrIO, "io"},
	{object.ErrNoRails, "no_rails"},
	{ps.ErrNoTable, "no_table"},
	{ps.ErrShape, "shape"},
	{ps.ErrMemory, "table_memory"},
	{ps.ErrNonFinite, "not_finite"},
	{context.DeadlineExceeded, "deadline"},
}

// kindOf is the word for an error; what has none of its own is called by its layer.
func kindOf(err error) string {
	var invalid *load.InvalidError
	if errors.As(err, &invalid) {
		return "recipe"
	}
	for _, k := range kinds {
		if errors.Is(err, k.err) {
			return k.word
		}
	}
	var pe *pipeline.Error
	if errors.As(err, &pe) {
		return string(pe.Layer)
	}
	return string(pipeline.LayerInternal)
}

// statusOf is the class of an error. Who closed a session ended its calls.
func statusOf(err error) int {
	if errors.Is(err, errClose) {
		return exit.Interrupted
	}
	return exit.Of(err)
}

// failure is an error as C gets it.
type failure struct {
	launch.Failure
	Kind string `json:"kind"`
}

func failureOf(err error) failure {
	f := failure{exit.Failure(err), kindOf(err)}
	for cli, here := range map[string]string{
		"list what is there with: rs ls":                                        "rs_list tells what is there",
		"leave out --if-absent to replace it, or remove it first with: rs rm":   "without RS_PUT_IF_ABSENT it is replaced",
		"rs stat tells the object's size":                                       "rs_stat tells the object's size",
		"look at the object with: rs stat":                                      "rs_stat tells its generation",
		"look at the object with: rs stat; putting it again is safe":            "rs_stat tells its generation; putting it again is safe",
		"rs stat -v tells in which directory its stripes are":                   "rs_stat tells in which directory its stripes are",
		"put the object again; rs stat -v tells in which directory its stripes": "put the object again",
	} {
		if f.Hint == cli {
			f.Hint = here // who calls a library has other means than who types
		}
	}
	return f
}

// texts are the eight of an rs_error in its order, each with its NUL.
func (f *failure) texts() []byte {
	b, err := json.Marshal(map[string]*failure{"error": f})
	if err != nil {
		b = []byte(`{"error":{"layer":"internal","message":"the error could not be encoded"}}`)
	}
	var out []byte
	for _, s := range []string{f.Kind, f.Layer, f.Op, f.Rail, f.Device, f.Message, f.Hint, string(b)} {
		out = append(out, strings.ReplaceAll(s, "\x00", "?")...)
		out = append(out, 0)
	}
	return out
}

// place is a number of a failure, -1 where it has none.
func place(n *int) int {
	if n == nil {
		return -1
	}
	return *n
}

// safely runs a call. What panics in it, and memory of the caller's that is not there,
// is its error: the process is not ours to end.
func safely(op string, f func() error) (err error) {
	was := debug.SetPanicOnFault(true) // of this goroutine alone
	defer debug.SetPanicOnFault(was)
	defer func() {
		if p := recover(); p != nil {
			err = pipeline.Errorf(pipeline.LayerInternal, op, pipeline.Nowhere, "%w: %v: %s", errPanic, p, at(debug.Stack()))
		}
	}()
	return f()
}

// at is where a panic was, from the stack of who recovered it.
func at(stack []byte) string {
	_, rest, ok := strings.Cut(string(stack), "panic(")
	if !ok {
		return "no stack"
	}
	lines := strings.Split(rest, "\n")
	var out []string
	for _, l := range lines[min(2, len(lines)):] {
		if l = strings.TrimSpace(l); strings.Contains(l, ".go:") && !strings.Contains(l, "/runtime/") {
			file, _, _ := strings.Cut(l[strings.LastIndexByte(l, '/')+1:], " ")
			if out = append(out, file); len(out) == 3 {
				break
			}
		}
	}
	return strings.Join(out, " < ")
}

// tableFailure gives an error of a batch of rows its place and layer.
func tableFailure(err error) error {
	var b *ps.BatchError
	if !errors.As(err, &b) || len(b.Shards) == 0 {
		return err
	}
	s := b.Shards[0]
	where := pipeline.Where{Shard: s.Shard, Lane: s.Lane, Rail: s.Rail}
	out := &pipeline.Error{Layer: pipeline.LayerService, Op: b.Op, Where: where, Err: errors.New(strings.TrimPrefix(b.Error(), b.Op+": "))}
	var cause *pipeline.Error
	if errors.As(lanes.WrapError(s.Err, pipeline.LayerService, b.Op, where), &cause) {
		out.Layer, out.Hint = cause.Layer, cause.Hint
	}
	out.Err = kinded{out.Err, b}
	return out
}

// degraded is the error beside a result that did not come as planned.
func degraded(rep *object.ReadReport) error {
	why := append([]string{}, rep.Excluded...)
	for _, m := range rep.Moves {
		why = append(why, fmt.Sprintf("%d bytes moved from rail %s to rail %s (%s)", m.Bytes, m.From, m.To, m.Why))
	}
	return pipeline.Errorf(pipeline.LayerService, "read", pipeline.Nowhere, "%w: %s", exit.ErrDegraded, strings.Join(why, "; "))
}
