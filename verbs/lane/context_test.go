package lane

import (
	"context"
	"errors"
	"testing"
	"time"
)

// The context of a request ends with its deadline, with the lane and with Serve, whether
// its channel was wanted before or not, and what was made of it ends with it.
func TestRequestContext(t *testing.T) {
	never := time.Now().Add(time.Hour)
	for _, early := range []bool{false, true} {
		for _, c := range []struct {
			name string
			end  func(cancel context.CancelFunc, c *requestContext)
			at   time.Time
			want error
		}{
			{"deadline", func(context.CancelFunc, *requestContext) {}, time.Now(), context.DeadlineExceeded},
			{"lane", func(cancel context.CancelFunc, _ *requestContext) { cancel() }, never, context.Canceled},
			{"serve", func(_ context.CancelFunc, c *requestContext) { c.Done(); c.over() }, never, context.Canceled},
		} {
			type key struct{}
			lane, cancel := context.WithCancel(context.WithValue(context.Background(), key{}, "v"))
			defer cancel()
			ctx := &requestContext{lane: lane, deadline: c.at}
			if d, ok := ctx.Deadline(); !ok || !d.Equal(c.at) || ctx.Value(key{}) != "v" {
				t.Errorf("%s: deadline %v %v, value %v", c.name, d, ok, ctx.Value(key{}))
			}
			var child context.Context = ctx
			if early {
				if c.at == never {
					if err := ctx.Err(); err != nil {
						t.Errorf("%s: ended before: %v", c.name, err)
					}
				}
				derived, stop := context.WithTimeout(ctx, 2*time.Hour)
				defer stop()
				child = derived
			}
			c.end(cancel, ctx)
			<-child.Done()
			if err := ctx.Err(); !errors.Is(err, c.want) || !errors.Is(child.Err(), c.want) || !errors.Is(context.Cause(ctx), c.want) {
				t.Errorf("%s, channel first %v: %v, child %v, cause %v; want %v", c.name, early, err, child.Err(), context.Cause(ctx), c.want)
			}
			if ctx.over() {
				t.Errorf("%s: a context whose channel is out would be used again", c.name)
			}
		}
	}
	// Without a channel it knows as well, and is used again.
	lane, cancel := context.WithCancel(context.Background())
	ctx := &requestContext{lane: lane, deadline: never}
	if err := ctx.Err(); err != nil || !ctx.over() {
		t.Errorf("before its end: %v", err)
	}
	ctx.deadline = time.Now()
	if err := ctx.Err(); err != context.DeadlineExceeded || context.Cause(ctx) != err {
		t.Errorf("after its deadline: %v, cause %v", err, context.Cause(ctx))
	}
	ctx.deadline = never
	cancel()
	if err := ctx.Err(); err != context.Canceled {
		t.Errorf("after the lane's end: %v", err)
	}
}
