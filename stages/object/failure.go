package object

import (
	"context"
	"errors"
	"fmt"

	"github.com/railstore/railstore/pipeline"
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
		err = pipeline.Wrap(pe, pe.Layer, op, where)
	} else {
		var inner *pipeline.Error
		if errors.As(err, &inner) && at == nil {
			where.Shard = inner.Where.Shard
		}
		err = &pipeline.Error{Layer: layerOf(err), Op: op, Where: where, Err: err}
	}
	out := *err.(*pipeline.Error)
	if out.Hint == "" {
		out.Hint = hintFor(err)
	}
	return &out
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
	{pipeline.LayerPlacement, []error{ErrMissingStripe, ErrDuplicateStripe, ErrOutOfBounds, ErrWrongLength, ErrUnknownShard, ErrForeign, ErrDescriptor}},
	{pipeline.LayerStorage, []error{ErrNoSpace, ErrIO, ErrWrongDir}},
	{pipeline.LayerUsage, []error{ErrName, ErrExists, ErrNotFound, ErrSource, ErrBadRequest, ErrTooSmall}},
	{pipeline.LayerControl, []error{ErrConflict, ErrUnknownOutcome}},
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
		{ErrNoMemory, "raise reader.maxStagingBytes, or the shard's slab"},
		{ErrLost, "put the object again; rs doctor tells which directory lost it"},
		{ErrCorrupt, "the copy on disk is damaged: put the object again and check the disk"},
		{ErrNoRails, "rs status shows the rails and why one is down"},
		{ErrUnknownOutcome, "look at the object with: rs stat; putting it again is safe"},
	} {
		if errors.Is(err, h.kind) {
			return h.hint
		}
	}
	return ""
}
