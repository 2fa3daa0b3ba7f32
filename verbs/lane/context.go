package lane

import (
	"context"
	"sync"
	"time"
)

// requestContext is the context of a request with a deadline. Until somebody wants its
// channel it costs no more than to compare the time.
type requestContext struct {
	lane     context.Context
	deadline time.Time

	mu     sync.Mutex
	full   context.Context // once its channel was wanted
	cancel context.CancelFunc
}

// over ends the context. It reports whether it can be another request's: somebody who
// has its channel may look at it later.
func (c *requestContext) over() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.full == nil {
		return true
	}
	c.cancel()
	return false
}

func (c *requestContext) Deadline() (time.Time, bool) { return c.deadline, true }

func (c *requestContext) Done() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.full == nil {
		c.full, c.cancel = context.WithDeadline(c.lane, c.deadline)
	}
	return c.full.Done()
}

func (c *requestContext) Err() error {
	c.mu.Lock()
	full := c.full
	c.mu.Unlock()
	if full != nil {
		return full.Err()
	}
	if err := c.lane.Err(); err != nil {
		return err
	}
	if time.Now().Before(c.deadline) {
		return nil
	}
	return context.DeadlineExceeded
}

// Value lets contexts made of this one find the channel's owner.
func (c *requestContext) Value(key any) any {
	c.mu.Lock()
	full := c.full
	c.mu.Unlock()
	if full != nil {
		return full.Value(key)
	}
	return c.lane.Value(key)
}
