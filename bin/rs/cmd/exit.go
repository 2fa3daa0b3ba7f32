package cmd

import (
	"context"
	"errors"
	"fmt"

	"github.com/railstore/railstore/cue/load"
	"github.com/railstore/railstore/pipeline"
	"github.com/railstore/railstore/stages/launch"
	"github.com/railstore/railstore/stages/object"
)

// Exit codes. They are part of the interface.
const (
	exitOK          = 0
	exitFailed      = 1
	exitUsage       = 2
	exitNotReady    = 3
	exitIntegrity   = 4
	exitDegraded    = 5
	exitInterrupted = 130
)

const exitCodesHelp = `Exit codes:
   0    done
   1    the operation failed
   2    wrong usage, or the deployment is invalid
   3    not running, not ready, or timed out
   4    data integrity: what was read is not what was stored
   5    complete but degraded (only with --fail-on-degraded)
   130  interrupted`

var (
	// errInterrupted is the cause of a context that a signal ended.
	errInterrupted = errors.New("interrupted")
	// errDegraded is a result that is complete but used fewer rails than planned.
	errDegraded = errors.New("complete but degraded")
	// errReported ends a command whose findings are already on standard output.
	errReported = errors.New("reported")
)

// usageError is a command line that does not make sense.
type usageError struct {
	msg  string
	hint string
}

func (e *usageError) Error() string { return e.msg }

func usagef(format string, args ...any) *usageError {
	return &usageError{msg: fmt.Sprintf(format, args...)}
}

func (e *usageError) withHint(format string, args ...any) *usageError {
	e.hint = fmt.Sprintf(format, args...)
	return e
}

// exitCode judges an error. What the user did (interrupt, usage) goes before
// what happened, and what was found out last (not ready) before its cause.
func exitCode(err error) int {
	var (
		usage   *usageError
		invalid *load.InvalidError
		at      *pipeline.Error
	)
	switch {
	case err == nil:
		return exitOK
	case errors.Is(err, errInterrupted):
		return exitInterrupted
	case errors.As(err, &usage), errors.As(err, &invalid):
		return exitUsage
	case errors.Is(err, errDegraded):
		return exitDegraded
	case errors.Is(err, launch.ErrNotRunning), errors.Is(err, launch.ErrNotReady),
		errors.Is(err, launch.ErrUnknown), errors.Is(err, launch.ErrLocked):
		return exitNotReady
	case errors.Is(err, object.ErrNotFound), errors.Is(err, object.ErrExists), errors.Is(err, object.ErrSource):
		return exitFailed // the command line is fine, the world is not
	case errors.As(err, &at):
		switch at.Layer {
		case pipeline.LayerUsage, pipeline.LayerConfig:
			return exitUsage
		case pipeline.LayerIntegrity, pipeline.LayerPlacement:
			return exitIntegrity
		case pipeline.LayerWait, pipeline.LayerNode:
			return exitNotReady
		}
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return exitNotReady
	}
	return exitFailed
}
