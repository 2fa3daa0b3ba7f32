package object

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sync/semaphore"
)

// errBudget is the cause of a wait for byte budget that took too long.
var errBudget = errors.New("the bytes in flight did not get fewer")

// errInflight is the cause of a refusal that more staging memory would not help.
var errInflight = errors.New("may be in flight")

// take takes n from the rail's semaphore, then from the common one. The common
// one is last, so that what it holds is always being used.
func take(ctx context.Context, rail, all *semaphore.Weighted, n int64) (release func(), err error) {
	if err := rail.Acquire(ctx, n); err != nil {
		return nil, context.Cause(ctx)
	}
	if err := all.Acquire(ctx, n); err != nil {
		rail.Release(n)
		return nil, context.Cause(ctx)
	}
	return func() { all.Release(n); rail.Release(n) }, nil
}

// takeBytes reserves byte budget. Whoever holds it gives it back within the I/O
// timeout; the wait is twice as long, so that a stuck transfer is blamed and not
// the one that waits for it.
func (w *Worker) takeBytes(ctx context.Context, rail string, n uint64) (func(), error) {
	within := 2 * w.cfg.Limits.IOTimeout
	r := w.rails[rail]
	wctx, cancel := context.WithTimeoutCause(ctx, within, errBudget)
	defer cancel()
	release, err := take(wctx, r.bytes, w.bytes, int64(n))
	if err != nil && errors.Is(err, errBudget) {
		return nil, fmt.Errorf("%w: waited %v for %d bytes of budget on rail %s: %w", context.DeadlineExceeded, within, n, rail, err)
	}
	return release, err
}
