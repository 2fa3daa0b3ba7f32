package ctrl

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/keepalive"

	"github.com/railstore/railstore/ctrl/internal/pb"
	"github.com/railstore/railstore/pipeline"
)

// ClientOptions are the choices of a client. Zero values are replaced as said
// beside each field.
type ClientOptions struct {
	TLS *TLSFiles
	// FailFast ends a call at the first sign that the control plane is not
	// there, instead of waiting for it until the context ends.
	FailFast bool
	Timeout  time.Duration // 30 s, most of one call; waits for others last as long as their context
	Probe    time.Duration // 1 s, of Health without a deadline
	// Sink takes what happens to the connection: control_lost,
	// control_restored, control_rejoined, lease_lost.
	Sink pipeline.Sink
}

// Client is one process's connection to the control plane. It is safe for
// concurrent use.
type Client struct {
	addr string
	id   Identity
	opts ClientOptions
	conn *grpc.ClientConn
	ctl  pb.ControlClient
	cat  pb.CatalogClient

	count Counters

	mu         sync.Mutex
	closed     bool
	membership *membership // nil before Join and after Leave
	name       string      // this end in errors: the id that it joined as last
}

const (
	backoffFirst = 50 * time.Millisecond
	backoffMost  = time.Second
)

// Dial connects and checks that both ends mean the same deployment. It waits for
// a control plane that is not up yet until ctx ends, unless FailFast is set.
func Dial(ctx context.Context, addr string, id Identity, opts ClientOptions) (*Client, error) {
	opts.Timeout = cmp.Or(opts.Timeout, 30*time.Second)
	opts.Probe = cmp.Or(opts.Probe, time.Second)
	c := &Client{addr: addr, id: id, opts: opts, name: fmt.Sprintf("process %d", os.Getpid())}
	creds, err := opts.TLS.client()
	if err != nil {
		return nil, c.fail("dial", pipeline.Nowhere, err)
	}
	// passthrough: the address is taken as it is, without a resolver that
	// would retry behind our back.
	c.conn, err = grpc.NewClient("passthrough:///"+addr,
		grpc.WithTransportCredentials(creds),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(MaxMessageBytes), grpc.MaxCallSendMsgSize(MaxMessageBytes)),
		grpc.WithConnectParams(grpc.ConnectParams{MinConnectTimeout: 3 * time.Second,
			Backoff: backoff.Config{BaseDelay: backoffFirst, Multiplier: 1.6, Jitter: 0.2, MaxDelay: backoffMost}}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 5 * time.Second, PermitWithoutStream: true}),
		grpc.WithIdleTimeout(0),
		grpc.WithDisableServiceConfig(),
	)
	if err != nil {
		return nil, c.fail("dial", pipeline.Nowhere, err)
	}
	c.ctl, c.cat = pb.NewControlClient(c.conn), pb.NewCatalogClient(c.conn)
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, opts.Timeout)
		defer cancel()
	}
	_, err = waitCall(ctx, c, math.MaxInt64, "dial", pipeline.Nowhere, func(ctx context.Context) (*pb.HelloReply, error) {
		return c.ctl.Hello(ctx, &pb.HelloRequest{Identity: c.identity()})
	})
	if err != nil {
		_ = c.conn.Close()
		return nil, err
	}
	return c, nil
}

func (c *Client) identity() *pb.Identity { return identityToPB(c.id) }

// Addr is the address of the control plane.
func (c *Client) Addr() string { return c.addr }

// Identity is the deployment that the client belongs to.
func (c *Client) Identity() Identity { return c.id }

// Close ends the heartbeats and the watches and closes the connection. It does not
// leave: the lease runs out by itself. It is idempotent.
func (c *Client) Close() error {
	c.mu.Lock()
	s := c.membership
	closed := c.closed
	c.membership, c.closed = nil, true
	c.mu.Unlock()
	if s != nil {
		s.stop(ErrClosed)
	}
	if closed {
		return nil
	}
	return c.conn.Close()
}

// member gives the membership of a joined client.
func (c *Client) member() (*membership, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.closed:
		return nil, ErrClosed
	case c.membership == nil:
		return nil, ErrNotJoined
	}
	return c.membership, nil
}

// me is this end in errors.
func (c *Client) me() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.name
}

// fail puts both ends, and a hint where there is one, on an error.
func (c *Client) fail(op string, w pipeline.Where, err error) error {
	return c.failAs(c.me(), op, w, err)
}

func (c *Client) failAs(me, op string, w pipeline.Where, err error) error {
	var pe *pipeline.Error
	if err == nil || errors.As(err, &pe) {
		return err
	}
	pe = pipeline.Errorf(pipeline.LayerControl, op, w, "%s at the control plane %s: %w", me, c.addr, err)
	var h interface{ Hint() string }
	if errors.As(err, &h) {
		pe.Hint = h.Hint()
	}
	// A server that does not like our certificate hangs up, and what this end
	// sees of it varies.
	if c.opts.TLS != nil && unreachable(err) && !strings.Contains(err.Error(), "connection refused") {
		pe.Hint = tlsHint
	}
	return pe
}

// where places an error at the shard that an id names.
func where(id NodeID) pipeline.Where {
	if n, ok := id.Shard(); ok {
		return pipeline.AtShard(n)
	}
	return pipeline.Nowhere
}

// WaitError says what a call waited for when its time was over.
type WaitError struct {
	For     string // what it waited for
	Waited  time.Duration
	Missing []Missing // nodes that are not as asked
	Last    error     // last failure to reach the control plane; nil: it answered
	Err     error     // why the wait ended
}

func (e *WaitError) Error() string {
	s := fmt.Sprintf("waited %v for %s", e.Waited.Round(time.Millisecond), e.For)
	for i, m := range e.Missing {
		if i == 8 {
			s += fmt.Sprintf(", and %d more", len(e.Missing)-i)
			break
		}
		s += map[bool]string{true: ": ", false: ", "}[i == 0] + m.String()
	}
	if e.Last != nil {
		s += fmt.Sprintf("; last cause: %v", e.Last)
	}
	return s
}

// Hint says what to do about it.
func (e *WaitError) Hint() string {
	var h interface{ Hint() string }
	if errors.As(e.Last, &h) {
		return h.Hint()
	}
	for _, m := range e.Missing {
		if n, ok := m.ID.Shard(); ok {
			return fmt.Sprintf("rs logs shows what shard %d does, rs status the state of all", n)
		}
	}
	return ""
}

func (e *WaitError) Unwrap() []error {
	if e.Last == nil {
		return []error{e.Err}
	}
	return []error{e.Err, e.Last}
}

// retry counts the waits between attempts.
type retry struct {
	start time.Time
	delay time.Duration
	last  error
}

func newRetry() *retry { return &retry{start: time.Now(), delay: backoffFirst} }

// pause waits before the next attempt; it reports false when ctx ends first.
func (r *retry) pause(ctx context.Context) bool {
	d := r.delay/2 + rand.N(r.delay/2+1)
	r.delay = min(2*r.delay, backoffMost)
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// call makes one idempotent call, again and again while the control plane cannot
// be reached, until ctx ends.
func call[R any](ctx context.Context, c *Client, op string, w pipeline.Where, f func(ctx context.Context) (R, error)) (R, error) {
	return patientCall(ctx, c, math.MaxInt64, op, w, f)
}

// patientCall is call that gives up once the control plane could not be reached
// for the time of patience.
func patientCall[R any](ctx context.Context, c *Client, patience time.Duration, op string, w pipeline.Where, f func(ctx context.Context) (R, error)) (R, error) {
	ctx, cancel := context.WithTimeout(ctx, c.opts.Timeout) // or what is left of its time
	defer cancel()
	return waitCall(ctx, c, patience, op, w, f)
}

// waitCall is patientCall without any limit but ctx's.
func waitCall[R any](ctx context.Context, c *Client, patience time.Duration, op string, w pipeline.Where, f func(ctx context.Context) (R, error)) (R, error) {
	var zero R
	r := newRetry()
	for {
		reply, err := f(ctx)
		if err == nil {
			return reply, nil
		}
		err = fromStatus(err)
		if unreachable(err) && ctx.Err() == nil {
			r.last = err
			if c.isClosed() {
				return zero, c.fail(op, w, ErrClosed)
			}
			if c.opts.FailFast || time.Since(r.start) >= patience {
				return zero, c.fail(op, w, err)
			}
			if r.pause(ctx) {
				c.conn.ResetConnectBackoff()
				continue
			}
		}
		if cause := ended(ctx, err); cause != nil && (errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) || unreachable(err)) {
			return zero, c.fail(op, w, &WaitError{For: "an answer", Waited: time.Since(r.start), Last: r.last, Err: cause})
		}
		return zero, c.fail(op, w, err)
	}
}

// ended gives why ctx is over, or is about to be: the other end may see the
// deadline first.
func ended(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if _, ok := ctx.Deadline(); ok && errors.Is(err, context.DeadlineExceeded) {
		return context.DeadlineExceeded
	}
	return nil
}

func unreachable(err error) bool {
	var ce *CallError
	return errors.As(err, &ce) && ce.Unreachable()
}

func (c *Client) isClosed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.closed
}
