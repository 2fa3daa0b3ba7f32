package object

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/railstore/railstore/pipeline"
	"github.com/railstore/railstore/stages/lanes"
	"github.com/railstore/railstore/verbs"
	"github.com/railstore/railstore/verbs/lane"
)

// laneExchange is a lane's exchange as the service sees it.
type laneExchange struct{ *lane.Exchange }

func (x laneExchange) Rail() string              { return x.Label().Rail }
func (x laneExchange) Reply(status int32, n int) { x.Exchange.Reply(lane.Status(status), n) }

// Serve answers one request of a client.
func (s *Service) Serve(x *lane.Exchange) { s.serve(laneExchange{x}) }

// LaneTransportConfig of a LaneTransport.
type LaneTransportConfig struct {
	Client *lanes.Client
	Memory Memory // what Pieces are parts of, registered on every rail
}

// LaneTransport is the Transport over the lanes of a client.
//
// Every request exposes memory, and the lane sees to it that a call which fails
// returns only when the shard cannot touch that memory any more: its late answer
// came, or its QP was destroyed. Where a QP could not be destroyed Quiesce says so.
type LaneTransport struct {
	cfg LaneTransportConfig
	// Answers are short; their buffers are kept.
	answers sync.Pool
	unquiet sync.Map // Path → why what was named over it may still be written
}

// NewLaneTransport makes a transport. It has nothing to close.
func NewLaneTransport(cfg LaneTransportConfig) *LaneTransport {
	return &LaneTransport{cfg: cfg, answers: sync.Pool{New: func() any { return new([MaxResponseBytes]byte) }}}
}

// StoreStripe lets the shard read src and returns when the stripe is durable.
func (t *LaneTransport) StoreStripe(ctx context.Context, at Path, ref StripeRef, src Piece) error {
	_, err := t.call(ctx, at, OpStoreStripe, ref, src, false)
	return err
}

// FetchStripe lets the shard write the stripe to dst.
func (t *LaneTransport) FetchStripe(ctx context.Context, at Path, ref StripeRef, dst Piece, verify bool) (Fetched, error) {
	r, err := t.call(ctx, at, OpFetchStripe, ref, dst, verify)
	return Fetched{Length: r.length, XXH3: r.xxh3}, err
}

// DeleteStripe reports whether the stripe was there.
func (t *LaneTransport) DeleteStripe(ctx context.Context, at Path, ref StripeRef) (bool, error) {
	r, err := t.call(ctx, at, OpDeleteStripe, ref, Piece{}, false)
	return r.existed, err
}

// Quiesce fails for ever once a call over the path could not be ended: the shard
// may still reach what it named.
func (t *LaneTransport) Quiesce(_ context.Context, at Path) error {
	if err, ok := t.unquiet.Load(at); ok {
		return err.(error)
	}
	return nil
}

func (t *LaneTransport) call(ctx context.Context, at Path, op uint16, ref StripeRef, mem Piece, verify bool) (stripeResponse, error) {
	where := pipeline.AtShard(at.Shard).On(at.Rail)
	pool := t.cfg.Client.Pool(at.Shard)
	if pool == nil {
		return stripeResponse{}, pipeline.Errorf(pipeline.LayerUsage, "call", where, "not connected to this shard")
	}
	q := stripeRequest{StripeRef: ref, shard: uint32(at.Shard), verify: verify}
	if n := len(mem.Bytes); n > 0 {
		if err := t.locate(&q, at, mem); err != nil {
			return stripeResponse{}, pipeline.Wrap(err, pipeline.LayerInternal, "call", where)
		}
	}
	var encodeErr error
	buf := t.answers.Get().(*[MaxResponseBytes]byte)
	defer t.answers.Put(buf)
	rsp, err := pool.Call(ctx, lane.Request{Op: op, Rail: at.Rail, Exposed: true, Fill: func(dst []byte) int {
		var n int
		n, encodeErr = q.encode(dst)
		return n
	}}, buf[:])
	if encodeErr != nil {
		return stripeResponse{}, pipeline.Wrap(encodeErr, pipeline.LayerInternal, "call", where)
	}
	if err != nil {
		err = lanes.WrapError(shorten(err), pipeline.LayerDevice, "call", where)
		if errors.Is(err, lane.ErrNotQuiet) {
			t.unquiet.Store(at, err)
		}
		return stripeResponse{}, err
	}
	if err := errorOf(int32(rsp.Status), buf[:rsp.N]); err != nil {
		return stripeResponse{}, err
	}
	return decodeResponse(buf[:rsp.N])
}

// locate tells the shard where the memory is.
func (t *LaneTransport) locate(q *stripeRequest, at Path, mem Piece) error {
	n := uint64(len(mem.Bytes))
	memory := mem.Memory
	if memory == nil {
		memory = t.cfg.Memory
	}
	span := memory.On(at.Rail)
	switch {
	case span == nil:
		return errors.New("no registered memory on this rail")
	case !span.Contains(mem.Off, n):
		return fmt.Errorf("%d bytes at %d are outside the registered memory", n, mem.Off)
	}
	var room [maxParts]verbs.RemoteRegion
	parts := span.Remotes(room[:0], mem.Off, n)
	if len(parts) > maxParts {
		return fmt.Errorf("a stripe of %d bytes lies in %d memory regions of at most %d bytes, the limit of the rail's device (max_mr_size); at most %d can be told: store the object with smaller stripes (objects.stripeBytes)",
			n, len(parts), span.Step(), maxParts)
	}
	copy(q.memory[:], parts)
	return nil
}

// shorten leaves out of a lane's error what the path says already, so that a line
// names shard, lane and rail once.
func shorten(err error) error {
	if le, ok := err.(*lane.Error); ok && le.Err != nil {
		return laneError{le}
	}
	return err
}

type laneError struct{ e *lane.Error }

func (l laneError) Unwrap() error { return l.e }

func (l laneError) Error() string {
	s := l.e.Err.Error()
	if l.e.Class != "" {
		s += " [" + string(l.e.Class) + "]"
	}
	return s
}

// Counters of a rail since the session began.
func (t *LaneTransport) Counters(rail string) RailCounters {
	var c RailCounters
	if span := t.cfg.Memory.On(rail); span != nil {
		c.RegisteredBytes = span.Len()
	}
	for _, l := range t.cfg.Client.Lanes(rail) {
		c.ConnectionsCreated++
		if l.State() != lane.Active {
			c.ConnectionsQuiesced++
		}
		c.Retransmits += l.Stats().Retransmits
	}
	if r, ok := t.cfg.Client.Set.Rail(rail); ok {
		c.RegisteredBytes += r.RegisteredBytes()
	}
	return c
}

var _ Transport = (*LaneTransport)(nil)
