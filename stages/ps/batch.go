package ps

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync/atomic"
	"time"

	"github.com/railstore/railstore/pipeline"
	"github.com/railstore/railstore/verbs/lane"
)

// batch is a call about rows under way, with the memory for it, which is used again: a
// warm call allocates nothing. It belongs to one goroutine at a time.
type batch struct {
	c   *Client
	t   *Table
	gen atomic.Uint64 // one more when a handle was waited for

	op     uint16
	keys   []uint64
	rows   []float32
	found  []bool
	count  int  // keys with a row, rows deleted
	late   bool // the destination is not known yet: nothing is taken out of slots
	handle bool

	// Positions of keys by place, in the caller's order; nil: all of them at one place.
	order []int32
	plan  planner

	chunks []*chunk // the first n are in use
	n      int
	idle   int // chunks before it are not idle
	flying []*chunk
	first  int // of flying
	full   []bool
}

// chunk is what goes in one request.
type chunk struct {
	b     *batch
	state chunkState
	place int
	at, n int // in order
	token uint64
	piece *piece // rows go through it

	ticket  lane.Ticket
	sent    bool // it may have gone out
	posted  bool // likewise, in this try
	settled bool // the shard has answered
	doubt   bool // an earlier try went out and had no answer
	lane    lane.Label
	applied int // keys that a shard applied before it failed
	err     error

	req  request
	fill func([]byte) int
	use  func(lane.Response, []byte) error
}

type chunkState uint8

const (
	chunkIdle chunkState = iota
	chunkFlying
	chunkDone
	chunkFailed
)

func (c *Client) borrow() *batch {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n := len(c.free); n > 0 {
		b := c.free[n-1]
		c.free = c.free[:n-1]
		return b
	}
	return &batch{c: c, full: make([]bool, len(c.shards))}
}

func (c *Client) lend(b *batch) {
	b.t, b.keys, b.rows, b.found = nil, nil, nil, nil
	c.mu.Lock()
	c.free = append(c.free, b)
	c.mu.Unlock()
}

// begin sets a batch up: whose keys go where, and in which chunks.
func (b *batch) begin(t *Table, op uint16, keys []uint64, rows []float32, found []bool) error {
	b.t, b.op, b.keys, b.rows, b.found = t, op, keys, rows, found
	b.count, b.late, b.handle = 0, false, false
	b.n, b.idle, b.first, b.flying = 0, 0, 0, b.flying[:0]
	if len(keys) > math.MaxInt32 {
		return ErrTooLarge
	}
	b.order = b.plan.route(keys, len(b.c.shards), t.only)
	most, memory, err := t.chunkKeys(op, b.plan.longest)
	if err != nil {
		return err
	}
	if b.plan.longest > most && (op == OpPut || op == OpUpdate) {
		// Chunks overtake each other: of a key that comes more than once all must be in one.
		b.order = b.plan.unite(keys, op == OpUpdate)
	}
	// In rounds, so that every shard has its first chunk before one has its second.
	for round := 0; ; round++ {
		some := false
		for place, from := range b.plan.starts[:len(b.plan.starts)-1] {
			at, end := int(from)+round*most, int(b.plan.starts[place+1])
			if at >= end {
				continue
			}
			some = true
			k := b.next()
			k.place, k.at, k.n = place, at, min(most, end-at)
			k.req.setName(t.spec.Name)
			k.setUp(memory)
		}
		if !some {
			return nil
		}
	}
}

// next gives the memory of one more chunk.
func (b *batch) next() *chunk {
	if b.n == len(b.chunks) {
		k := &chunk{b: b}
		k.fill, k.use = k.write, k.read
		b.chunks = append(b.chunks, k)
	}
	k := b.chunks[b.n]
	b.n++
	k.state, k.sent, k.settled, k.doubt, k.err, k.applied, k.token = chunkIdle, false, false, false, nil, 0, 0
	k.lane = lane.Label{Index: -1}
	k.ticket = lane.Ticket{}
	k.req.sequence, k.req.client = 0, 0
	return k
}

// setUp writes the part of the request that does not change.
func (k *chunk) setUp(memory bool) {
	b := k.b
	r := &k.req
	r.flags, r.protocol, r.keys, r.dim = 0, 0, k.n, 0
	if memory {
		r.flags = flagMemory
	}
	switch b.op {
	case OpGet:
		r.dim = b.t.spec.Dim
		if memory && b.c.cfg.Mode.Get == Auto {
			r.flags |= flagFallback
		}
	case OpPut:
		r.dim, r.protocol = b.t.spec.Dim, uint8(b.c.cfg.Mode.PutProtocol)
	case OpUpdate:
		r.dim, r.client = b.t.spec.Dim, b.c.id
	}
}

// pos is the position in the caller's batch of the chunk's key i.
func (k *chunk) pos(i int) int {
	if k.b.order == nil {
		return k.at + i
	}
	return int(k.b.order[k.at+i])
}

// each calls f for every position that the chunk's key i stands for.
func (k *chunk) each(i int, f func(pos int)) {
	p := k.pos(i)
	f(p)
	if k.b.plan.united {
		for p := k.b.plan.next[p]; p >= 0; p = k.b.plan.next[p] {
			f(int(p))
		}
	}
}

// pump starts what can be started without waiting.
func (b *batch) pump(ctx context.Context) {
	clear(b.full)
	for i := b.idle; i < b.n; i++ {
		k := b.chunks[i]
		if k.state != chunkIdle {
			if i == b.idle {
				b.idle++
			}
			continue
		}
		if b.full[k.place] {
			continue
		}
		if b.handle && !b.c.unit() {
			return
		}
		if !k.start(ctx, false) {
			b.full[k.place] = true
			if b.handle {
				b.c.flying.Add(-1)
			}
			continue
		}
		if k.state == chunkFailed && b.handle {
			b.c.flying.Add(-1)
		}
	}
}

// unit takes one of the requests that handles may have in flight.
func (c *Client) unit() bool {
	for {
		n := c.flying.Load()
		if n >= int64(c.cfg.Depth) {
			return false
		}
		if c.flying.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// start sends a chunk. Without wait it reports false when that would mean to wait.
// Otherwise the chunk flies or has failed.
func (k *chunk) start(ctx context.Context, wait bool) bool {
	c := k.b.c
	if k.req.flags&flagMemory != 0 && k.piece == nil {
		if k.piece = c.cfg.Staging.try(); k.piece == nil {
			if !wait {
				return false
			}
			// Other chunks of this batch hold no pieces, so this holds up nobody.
			p, err := c.cfg.Staging.take(ctx)
			if err != nil {
				k.fail(err)
				return true
			}
			k.piece = p
		}
		k.stage()
	}
	k.lane = lane.Label{Index: -1}
	pool := c.pools[k.place]
	r := lane.Request{Op: k.b.op, Token: k.token, Fill: k.fill, Exposed: k.piece != nil}
	if k.piece == nil {
		k.req.memory.Addr, k.req.memory.Length, k.req.memory.RKey = 0, 0, 0
		return k.try(ctx, pool, &r, wait)
	}
	r.Flags = waits
	// The shard reaches the piece over the lane's own rail, so the rail is chosen here.
	turn := int(c.turn.Add(1) % uint32(len(c.rails)))
	busy := ""
	k.state, k.err = chunkFailed, errNoGather // should no rail have the piece
	for i := range c.rails {
		name := c.rails[(turn+i)%len(c.rails)]
		var ok bool
		if k.req.memory, ok = k.piece.remote(name, k.bytes()); !ok {
			continue
		}
		r.Rail = name
		if !k.try(ctx, pool, &r, false) {
			busy = name
			continue
		}
		if k.state == chunkFlying || k.posted || ctx.Err() != nil {
			return true
		}
	}
	switch {
	case busy == "":
		return true // it has failed on every rail
	case !wait:
		k.state, k.err = chunkIdle, nil
		k.release()
		return false
	}
	r.Rail = busy
	k.req.memory, _ = k.piece.remote(busy, k.bytes())
	return k.try(ctx, pool, &r, true)
}

// bytes is the length of the chunk's rows.
func (k *chunk) bytes() int { return k.n * k.b.t.spec.Dim * 4 }

func (k *chunk) try(ctx context.Context, pool *lane.Pool, r *lane.Request, wait bool) bool {
	var err error
	ok := true
	k.posted = false
	if wait {
		k.ticket, err = pool.Start(ctx, *r)
	} else {
		k.ticket, ok, err = pool.TryStart(ctx, *r)
	}
	switch {
	case err != nil:
		k.fail(err)
	case !ok:
		return false
	default:
		k.state, k.err = chunkFlying, nil
		k.lane = k.ticket.Lane().Label()
		k.b.flying = append(k.b.flying, k)
	}
	return true
}

// fail ends a chunk. Its piece is free again, unless the shard may still reach it.
func (k *chunk) fail(err error) {
	k.state, k.err = chunkFailed, err
	if le := (*lane.Error)(nil); k.lane.Index < 0 && errors.As(err, &le) && le.Label.Rail != "" {
		k.lane = le.Label
	}
	if k.piece != nil && errors.Is(err, lane.ErrNotQuiet) {
		k.piece.bad = true
	}
}

func (k *chunk) release() {
	if k.piece != nil {
		k.piece.s.give(k.piece)
		k.piece = nil
	}
}

// collect waits for the answer of the chunk that has flown longest.
func (b *batch) collect(ctx context.Context) {
	k := b.flying[b.first]
	if b.first++; b.first == len(b.flying) {
		b.flying, b.first = b.flying[:0], 0
	}
	k.err = nil
	_, err := k.ticket.View(ctx, k.use)
	if b.handle {
		b.c.flying.Add(-1)
	}
	if err == nil {
		err = k.err
		if err != nil && errors.Is(err, ErrBusy) && over(ctx) {
			err = fmt.Errorf("%w: %w", context.DeadlineExceeded, err) // the shard noticed it first
		}
	}
	if err != nil {
		k.fail(err)
	} else {
		k.state = chunkDone
	}
	k.release()
}

// over reports that the time of ctx has passed, also when ctx itself does not know yet.
func over(ctx context.Context) bool {
	d, ok := ctx.Deadline()
	return ctx.Err() != nil || ok && !time.Now().Before(d)
}

// finish sees a batch to its end. The slices of the caller are not used afterwards.
func (b *batch) finish(ctx context.Context) error {
	b.late = false
	for attempt := 1; ; attempt++ {
		for {
			b.pump(ctx)
			if b.first < len(b.flying) {
				b.collect(ctx)
				continue
			}
			k := b.firstIdle()
			if k == nil {
				break
			}
			b.startAlone(ctx, k)
		}
		if attempt >= b.c.cfg.Attempts || !b.again(ctx) {
			break
		}
	}
	return b.result()
}

// startAlone waits for a slot while the batch holds nothing, so that it holds up nobody.
// Handles may hold all there is, and perhaps their owner is who waits here: then it ends
// after lanes.waitTimeout.
func (b *batch) startAlone(ctx context.Context, k *chunk) {
	wctx, held := ctx, b.c.flying.Load()
	if held > 0 {
		var cancel context.CancelFunc
		wctx, cancel = context.WithTimeout(ctx, b.c.patience)
		defer cancel()
	}
	if b.handle {
		b.c.flying.Add(1) // one request of a batch that is being waited for: no limit
	}
	k.start(wctx, true)
	if k.state == chunkFlying {
		return
	}
	if b.handle {
		b.c.flying.Add(-1)
	}
	k.release()
	if held > 0 && !k.posted && wctx.Err() != nil && ctx.Err() == nil {
		k.fail(fmt.Errorf("%w: no slot or memory for rows in %v, while %d requests of handles that were not waited for are in flight", ErrBusy, b.c.patience, held))
	}
}

func (b *batch) firstIdle() *chunk {
	for i := b.idle; i < b.n; i++ {
		if b.chunks[i].state == chunkIdle {
			return b.chunks[i]
		}
	}
	return nil
}

// again makes what failed, and may be tried once more, idle after a pause.
func (b *batch) again(ctx context.Context) bool {
	some := false
	for _, k := range b.chunks[:b.n] {
		some = some || k.retryable()
	}
	if !some || ctx.Err() != nil {
		return false
	}
	t := time.NewTimer(b.c.cfg.Backoff)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
		return false
	}
	b.idle = 0
	for _, k := range b.chunks[:b.n] {
		if k.retryable() {
			k.release()
			k.doubt = k.doubt || k.sent && !k.settled
			k.state, k.settled = chunkIdle, false
		}
	}
	return true
}

// retryable reports whether a failed chunk may be sent again. GETs change nothing, and a
// shard applies an UPDATE's token once. A PUT that went out may have been overtaken by
// another's, which a second one would undo.
func (k *chunk) retryable() bool {
	if k.state != chunkFailed || errors.Is(k.err, lane.ErrClosed) {
		return false
	}
	if k.settled && !errors.Is(k.err, ErrBusy) {
		return false
	}
	if le := (*lane.Error)(nil); !k.settled && !errors.As(k.err, &le) {
		return false // not a lane's: asked wrongly, or memory
	}
	switch k.b.op {
	case OpGet, OpExists, OpUpdate:
		return true
	}
	return !k.sent
}

// result gives the error of a batch that has ended.
func (b *batch) result() error {
	bad := false
	for _, k := range b.chunks[:b.n] {
		k.release()
		bad = bad || k.state == chunkFailed
	}
	if !bad {
		return nil
	}
	return b.failure()
}

// start begins a batch for a handle.
func (b *batch) start(ctx context.Context) error {
	b.handle = true
	b.pump(ctx)
	if b.n > 0 && b.first == len(b.flying) && b.c.flying.Load() >= int64(b.c.cfg.Depth) && b.firstIdle() == b.chunks[0] {
		return pipeline.Errorf(pipeline.LayerUsage, opName(b.op), pipeline.Nowhere, "%w (%d): wait for a handle first", ErrDepth, b.c.cfg.Depth)
	}
	return nil
}
