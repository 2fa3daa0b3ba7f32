package exit

import (
	"context"
	"errors"

	"github.com/railstore/railstore/cue/load"
	"github.com/railstore/railstore/pipeline"
	"github.com/railstore/railstore/stages/launch"
	"github.com/railstore/railstore/stages/object"
)

// The classes. They are part of the interface.
const (
	OK          = 0
	Failed      = 1   // the operation failed
	Usage       = 2   // wrong usage, or the deployment is invalid
	NotReady    = 3   // not running, not ready, or timed out
	Integrity   = 4   // what was read is not what was stored
	Degraded    = 5   // complete but not as planned, where that was asked for
	Interrupted = 130 // the caller gave it up
)

var (
	// ErrInterrupted is the cause of a context that the caller ended, by a signal or a call.
	ErrInterrupted = errors.New("interrupted")
	// ErrDegraded is a result that is complete but used fewer rails than planned.
	ErrDegraded = errors.New("complete but degraded")
)

// Of gives the class of an error. What was found out last (not ready) goes before its
// cause.
func Of(err error) int {
	var (
		invalid *load.InvalidError
		at      *pipeline.Error
	)
	switch {
	case err == nil:
		return OK
	case errors.Is(err, ErrInterrupted):
		return Interrupted
	case errors.As(err, &invalid):
		return Usage
	case errors.Is(err, ErrDegraded):
		return Degraded
	case errors.Is(err, launch.ErrNotRunning), errors.Is(err, launch.ErrNotReady),
		errors.Is(err, launch.ErrUnknown), errors.Is(err, launch.ErrLocked):
		return NotReady
	case errors.Is(err, object.ErrNotFound), errors.Is(err, object.ErrExists), errors.Is(err, object.ErrSource):
		return Failed // the call is fine, the world is not
	case errors.As(err, &at):
		switch at.Layer {
		case pipeline.LayerUsage, pipeline.LayerConfig:
			return Usage
		case pipeline.LayerIntegrity, pipeline.LayerPlacement:
			return Integrity
		case pipeline.LayerWait, pipeline.LayerNode:
			return NotReady
		}
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return NotReady
	}
	return Failed
}

// Failure takes an error apart for people and programs.
func Failure(err error) launch.Failure {
	var invalid *load.InvalidError
	if errors.As(err, &invalid) {
		return launch.Failure{Layer: string(pipeline.LayerConfig), Op: "vet", Message: launch.OneLine(invalid.Error())}
	}
	return launch.FailureOf(err)
}
