package cmd

import (
	"context"
	"errors"
	"strings"

	"github.com/railstore/railstore/pipeline"
	"github.com/railstore/railstore/stages/lanes"
	"github.com/railstore/railstore/stages/ps"
)

// batchFailure is a batch of which a part failed, as text after its operation.
type batchFailure struct{ *ps.BatchError }

func (e batchFailure) Error() string {
	return strings.TrimPrefix(e.BatchError.Error(), e.Op+": ")
}

func (e batchFailure) Unwrap() error { return e.BatchError }

// tableFailure gives an error of a batch its layer, which decides the exit code, and says
// what to do about it.
func tableFailure(err error) error {
	if parts := flatten(err); len(parts) > 1 {
		for i, e := range parts {
			parts[i] = tableFailure(e)
		}
		return errors.Join(parts...)
	}
	failed, ok := err.(*ps.BatchError)
	if !ok || len(failed.Shards) == 0 {
		return err
	}
	out := &pipeline.Error{Layer: pipeline.LayerService, Op: failed.Op, Where: pipeline.Nowhere, Err: batchFailure{failed}}
	switch {
	case errors.Is(failed, ps.ErrMemory):
		out.Hint = "raise shards[].store.memory in the recipe, or drop tables that are not needed"
	case errors.Is(failed, ps.ErrNonFinite):
		out.Hint = "lower the learning rate, or give the table another policy for gradients that are not finite"
	case retriable(failed):
		s := failed.Shards[0]
		var cause *pipeline.Error
		if errors.As(lanes.WrapError(s.Err, pipeline.LayerDevice, failed.Op, pipeline.AtShard(s.Shard)), &cause) {
			out.Layer, out.Hint = cause.Layer, cause.Hint
		}
		if out.Hint == "" && !errors.Is(failed, context.Canceled) {
			out.Hint = "rs status tells which shards serve; rs up starts those that have died"
		}
	}
	return out
}
