package cmd

import (
	"errors"
	"fmt"

	"github.com/railstore/railstore/bin/exit"
)

// Exit codes, under the names of this package.
const (
	exitFailed      = exit.Failed
	exitUsage       = exit.Usage
	exitNotReady    = exit.NotReady
	exitIntegrity   = exit.Integrity
	exitInterrupted = exit.Interrupted
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
	errInterrupted = exit.ErrInterrupted
	errDegraded    = exit.ErrDegraded
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

// exitCode judges an error. What the user did (interrupt, usage) goes before what
// happened.
func exitCode(err error) int {
	var usage *usageError
	if !errors.Is(err, errInterrupted) && errors.As(err, &usage) {
		return exitUsage
	}
	return exit.Of(err)
}
