package object

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/railstore/railstore/pipeline"
	"github.com/railstore/railstore/verbs"
)

// fail makes an error the *pipeline.Error that leaves the package. Where it knows
// nothing better, the place is that of the first cause.
func fail(op string, err error, at *Path) error {
	if err == nil {
		return nil
	}
	where := pipeline.Nowhere
	if at != nil {
		where = pipeline.AtShard(at.Shard).On(at.Rail)
	}
	if pe, ok := err.(*pipeline.Error); ok {
		own := *pe
		own.Op = op // what the user asked for, not the call below it
		err = pipeline.Wrap(&own, own.Layer, op, where)
	} else {
		if at == nil {
			where.Shard = shardOf(err)
		}
		err = &pipeline.Error{Layer: layerOf(err), Op: op, Where: where, Err: err}
	}
	out := *err.(*pipeline.Error)
	if out.Hint == "" {
		out.Hint = hintFor(err)
	}
	return &out
}

// shardOf is the one shard that an error's causes are about, or -1.
func shardOf(err error) int {
	var several pathErrors
	if errors.As(err, &several) {
		shard := -1
		for i, e := range several {
			if s := shardOf(e); i > 0 && s != shard {
				return -1
			} else {
				shard = s
			}
		}
		return shard
	}
	var inner *pipeline.Error
	if errors.As(err, &inner) {
		return inner.Where.Shard
	}
	return -1
}

// prefix puts words (a sentinel, or "stripe 3") in front of an error without
// hiding its place.
func prefix(words, err error) error {
	if err == nil {
		return nil
	}
	if pe, ok := err.(*pipeline.Error); ok {
		out := *pe
		out.Err = fmt.Errorf("%w: %w", words, pe.Err)
		return &out
	}
	return fmt.Errorf("%w: %w", words, err)
}

// pathErrors are the failures of several paths to one thing. They print as one
// line that names each path once, and the shard only if there are several: fail
// puts the one shard in front.
type pathErrors []error

func (e pathErrors) Error() string {
	shards := map[int]bool{}
	for _, err := range e {
		if pe, ok := err.(*pipeline.Error); ok {
			shards[pe.Where.Shard] = true
		}
	}
	var b strings.Builder
	for i, err := range e {
		if i > 0 {
			b.WriteString("; ")
		}
		if pe, ok := err.(*pipeline.Error); ok {
			at := pe.Where
			if at.Lane = -1; len(shards) == 1 {
				at.Shard = -1
			}
			fmt.Fprintf(&b, "%v: %v", at, pe.Err)
			continue
		}
		b.WriteString(err.Error())
	}
	return b.String()
}

func (e pathErrors) Unwrap() []error { return e }

// err is nil without failures, and a single one is itself.
func (e pathErrors) err() error {
	switch len(e) {
	case 0:
		return nil
	case 1:
		return e[0]
	}
	return e
}

// both joins two errors, either of which may be nil, in one line.
func both(a, b error) error {
	switch {
	case a == nil:
		return b
	case b == nil:
		return a
	}
	return fmt.Errorf("%w; %w", a, b)
}

// layerOf is the layer that an error of this package belongs to.
func layerOf(err error) pipeline.Layer {
	for _, e := range layerTable {
		for _, s := range e.sentinels {
			if errors.Is(err, s) {
				return e.layer
			}
		}
	}
	var pe *pipeline.Error
	if errors.As(err, &pe) {
		return pe.Layer
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return pipeline.LayerWait
	}
	return pipeline.LayerService
}

var layerTable = []struct {
	layer     pipeline.Layer
	sentinels []error
}{
	{pipeline.LayerIntegrity, []error{ErrChecksum, ErrCorrupt, ErrStale, ErrIncomplete, ErrLost, ErrStripeNotFound}},
	{pipeline.LayerPlacement, []error{ErrMissingStripe, ErrDuplicateStripe, ErrOutOfBounds, ErrWrongLength, ErrUnknownShard, ErrForeign, ErrDescriptor, ErrNoChecksum}},
	{pipeline.LayerStorage, []error{ErrNoSpace, ErrIO, ErrWrongDir}},
	{pipeline.LayerUsage, []error{ErrName, ErrExists, ErrNotFound, ErrSource, ErrBadRequest, ErrTooSmall, ErrRange, ErrLeased}},
	{pipeline.LayerControl, []error{ErrConflict, ErrUnknownOutcome}},
	{pipeline.LayerWait, []error{ErrTooLate}},
	{pipeline.LayerResource, []error{ErrNoMemory, ErrNoRails}},
	{pipeline.LayerInternal, []error{ErrInternal}},
}

func hintFor(err error) string {
	for _, h := range []struct {
		kind error
		hint string
	}{
		{ErrNotFound, "list what is there with: rs ls"},
		{ErrExists, "leave out --if-absent to replace it, or remove it first with: rs rm"},
		{ErrNoSpace, "make room in that directory, or give the shard another one"},
		{errAway, "mount its file system: the shard takes the directory back by itself"},
		{ErrIO, "rs status shows which directory is out of use and why; rs scrub tells what is damaged"},
		{ErrConflict, "look at the object with: rs stat"},
		{errInflight, "raise reader.maxInflightBytes or maxInflightBytesPerRail, or put the object again in shorter stripes"},
		{ErrNoMemory, "raise reader.maxStagingBytes, or the shard's slab"},
		{ErrNoChecksum, "it was stored by a program that kept none: put it again; what cannot be verified is not read"},
		{ErrLost, "put the object again; rs stat -v tells in which directory its stripes are"},
		{ErrCorrupt, "the copy on disk is damaged: put the object again and check the disk"},
		{verbs.WCRetryExceeded, "the shard does not answer: rs status tells whether it runs, rs up starts those that have died"},
		{ErrRange, "rs stat tells the object's size"},
		{ErrNoRails, "rs status shows the rails and why one is down"},
		{ErrUnknownOutcome, "look at the object with: rs stat; putting it again is safe"},
	} {
		if errors.Is(err, h.kind) {
			return h.hint
		}
	}
	return ""
}
