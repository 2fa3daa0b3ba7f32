package lane

import (
	"context"
	"fmt"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/railstore/railstore/verbs"
)

// bulkCell is a read or write under way.
type bulkCell struct {
	pending int // signaled batches that did not complete; under the lane's mu
	waiting atomic.Bool
	wake    chan struct{} // cap 1
	timer   *time.Timer   // of one who sleeps until then
}

// Bulk is a read or write that was started. Wait must be called once; Serve's end
// does it for those that were not waited for.
type Bulk struct {
	x    *Exchange
	cell uint16
	op   string
}

// Write writes the pieces of src, which are in registered memory of the lane's
// PD, to dst at the client, over the lane's own QP, and returns when the device
// needs src no more. An answer after it arrives after the bytes.
//
// When ctx ends, nothing more is posted and what was posted is waited for, up to
// Config.BulkGrace; then the QP is destroyed. In no case is src read or dst
// written after Write has returned.
func (x *Exchange) Write(ctx context.Context, src []verbs.SGE, dst verbs.RemoteRegion) error {
	b, err := x.StartWrite(ctx, src, dst)
	if err != nil {
		return err
	}
	return b.Wait(ctx)
}

// Read reads src at the client into the pieces of dst; otherwise as Write.
func (x *Exchange) Read(ctx context.Context, dst []verbs.SGE, src verbs.RemoteRegion) error {
	b, err := x.StartRead(ctx, dst, src)
	if err != nil {
		return err
	}
	return b.Wait(ctx)
}

// StartWrite is Write without the last wait. It waits for room in the send
// queue.
func (x *Exchange) StartWrite(ctx context.Context, src []verbs.SGE, dst verbs.RemoteRegion) (Bulk, error) {
	return x.start(ctx, "write", verbs.OpWrite, src, dst, &x.lane.count.BulkWriteBytes)
}

// StartRead is Read without the last wait.
func (x *Exchange) StartRead(ctx context.Context, dst []verbs.SGE, src verbs.RemoteRegion) (Bulk, error) {
	return x.start(ctx, "read", verbs.OpRead, dst, src, &x.lane.count.BulkReadBytes)
}

func (x *Exchange) start(ctx context.Context, op string, code verbs.Opcode, local []verbs.SGE, remote verbs.RemoteRegion, bytes *atomic.Uint64) (Bulk, error) {
	sl := x.lane
	total := uint64(0)
	for _, g := range local {
		total += uint64(g.Length)
	}
	if total > remote.Length {
		return Bulk{}, sl.errorf(LayerUsage, op, fmt.Errorf("%d bytes here, the region at the client has %d", total, remote.Length))
	}
	if total == 0 {
		return Bulk{}, nil
	}
	cell, err := x.takeCell(ctx, op)
	if err != nil {
		return Bulk{}, err
	}
	x.open = append(x.open, cell)
	b := Bulk{x: x, cell: cell, op: op}
	cut := cutter{sges: local, addr: remote.Addr}
	for !cut.done() {
		if err := x.await(ctx, cell, waitRoom, op); err != nil {
			return Bulk{}, b.abandon(err)
		}
		if err := sl.postBulk(cell, code, remote.RKey, &cut, op); err != nil {
			return Bulk{}, b.abandon(err)
		}
	}
	bytes.Add(total)
	return b, nil
}

// takeCell gets a cell, waiting for one if all are taken.
func (x *Exchange) takeCell(ctx context.Context, op string) (uint16, error) {
	sl := x.lane
	for i := 0; ; i++ {
		sl.mu.Lock()
		if n := len(sl.spare); n > 0 {
			c := sl.spare[n-1]
			sl.spare = sl.spare[:n-1]
			sl.mu.Unlock()
			return c, nil
		}
		sl.mu.Unlock()
		// There are as many cells as slots and entries for them, so only a handler
		// that starts many without waiting comes here, and its own are the ones to
		// wait for.
		if len(x.open) == 0 {
			switch err := sl.ended(ctx); err {
			case nil:
			case errDown:
				return 0, sl.cause.Load().as(op)
			default:
				return 0, sl.errorf(LayerWait, op, err)
			}
			sl.wait(x)
			continue
		}
		if err := (Bulk{x: x, cell: x.open[0], op: op}).Wait(ctx); err != nil {
			return 0, err
		}
	}
}

func (x *Exchange) freeCell(cell uint16) {
	for i, c := range x.open {
		if c == cell {
			x.open = append(x.open[:i], x.open[i+1:]...)
			sl := x.lane
			sl.mu.Lock()
			sl.spare = append(sl.spare, cell)
			sl.mu.Unlock()
			return
		}
	}
}

func (x *Exchange) holds(cell uint16) bool {
	for _, c := range x.open {
		if c == cell {
			return true
		}
	}
	return false
}

// cutter cuts a list of pieces into work requests.
type cutter struct {
	sges []verbs.SGE
	off  uint32 // into sges[0]
	addr uint64 // where the rest begins at the client
}

func (c *cutter) done() bool {
	for len(c.sges) > 0 && c.sges[0].Length == c.off {
		c.sges, c.off = c.sges[1:], 0
	}
	return len(c.sges) == 0
}

// next appends the elements of one work request and gives its address.
func (c *cutter) next(out []verbs.SGE, most, bytes int) (_ []verbs.SGE, n int, addr uint64) {
	addr = c.addr
	for n < most && bytes > 0 && !c.done() {
		g := c.sges[0]
		g.Addr += uint64(c.off)
		g.Length = min(g.Length-c.off, uint32(bytes))
		out = append(out, g)
		n++
		bytes -= int(g.Length)
		c.off += g.Length
		c.addr += uint64(g.Length)
	}
	return out, n, addr
}

// roomLocked is how many bulk requests may be posted now: they never take the
// entries that answers need.
func (sl *ServerLane) roomLocked() int {
	return min(sl.cfg.BulkWRs-sl.bulk, sl.sq.free-2)
}

// postBulk posts as much as there is room for; the last request is signaled.
func (sl *ServerLane) postBulk(cell uint16, code verbs.Opcode, rkey uint32, cut *cutter, op string) error {
	sl.mu.Lock()
	defer sl.mu.Unlock()
	if sl.destroyed || sl.cause.Load() != nil {
		return errDown
	}
	// Not all at once, so that the first completion makes room early.
	room := min(sl.roomLocked(), max(1, sl.cfg.BulkWRs/4))
	wrs, sges := sl.wrs[:0], sl.sges[:0]
	for len(wrs) < room && !cut.done() {
		var n int
		var addr uint64
		sges, n, addr = cut.next(sges, sl.cfg.MaxSGE, sl.cfg.BulkBytes)
		wrs = append(wrs, verbs.SendWR{ID: wrid(kindBulk, cell, sl.id, sl.idGen), Op: code, RemoteAddr: addr, RKey: rkey, NumSGE: uint16(n)})
	}
	if len(wrs) == 0 {
		return nil // somebody else took the room
	}
	wrs[len(wrs)-1].Flags = verbs.Signaled
	k := len(wrs)
	sl.sq.reserve(k)
	if _, err := sl.qp.PostSend(wrs, sges); err != nil {
		sl.Fail(sl.errorf(LayerPost, op, err))
		return errDown
	}
	sl.sq.posted(k, true)
	sl.bulk += k
	sl.batches = append(sl.batches, k)
	sl.cells[cell].pending++
	return nil
}

// bulkDoneLocked takes the completion of a signaled bulk request.
func (sl *ServerLane) bulkDoneLocked(cell uint16) {
	if int(cell) >= len(sl.cells) || len(sl.batches) == 0 {
		return
	}
	sl.bulk -= sl.batches[0]
	sl.batches = sl.batches[:copy(sl.batches, sl.batches[1:])]
	sl.cells[cell].pending--
}

// wakeCells wakes handlers that wait for a completion or the lane's end.
func (sl *ServerLane) wakeCells() {
	for i := range sl.cells {
		if c := &sl.cells[i]; c.waiting.Load() {
			select {
			case c.wake <- struct{}{}:
			default:
			}
		}
	}
}

type waitFor uint8

const (
	waitDone waitFor = iota // the cell has nothing under way
	waitRoom                // there is room to post
)

// errDown says that the lane has failed, errTracked that completions stay out.
var (
	errDown    = fmt.Errorf("%w", ErrDown)
	errTracked = fmt.Errorf("%w", ErrTracked)
)

// ended says why a wait cannot go on. The lane's end comes first: contexts of
// handlers end with it.
func (sl *ServerLane) ended(ctx context.Context) error {
	err := ctx.Err()
	if sl.cause.Load() != nil {
		return errDown
	}
	return err
}

// await waits for a cell. The error is ctx's, errDown or errTracked.
func (x *Exchange) await(ctx context.Context, cell uint16, what waitFor, op string) error {
	sl := x.lane
	c := &sl.cells[cell]
	ready := func() bool {
		sl.mu.Lock()
		defer sl.mu.Unlock()
		if what == waitRoom {
			return sl.roomLocked() > 0
		}
		return c.pending == 0
	}
	start := time.Now()
	sl.poller.helpers.Add(1)
	for i := 1; ; i++ {
		if ready() {
			return nil
		}
		if err := sl.ended(ctx); err != nil {
			return err
		}
		if sl.poller.help() {
			continue
		}
		if i%8 == 0 && time.Since(start) > max(sl.cfg.Spin, 10*time.Microsecond) {
			break
		}
		runtime.Gosched()
	}
	if x.inline {
		sl.scanner.flush() // an answer that was given must not wait for this
	}
	if x.inline && !sl.scanner.own {
		for !ready() {
			if err := sl.ended(ctx); err != nil {
				return err
			}
			if time.Since(start) > sl.cfg.TrackedTimeout {
				return errTracked
			}
			sl.poller.nap()
		}
		return nil
	}
	scan := sl.notify == Scan
	sl.poller.sleeping(1, scan)
	defer sl.poller.sleeping(-1, scan)
	c.waiting.Store(true)
	defer c.waiting.Store(false)
	if c.timer == nil {
		c.timer = time.NewTimer(time.Hour)
	}
	defer c.timer.Stop()
	// The request's own context needs no channel: of its lane's end the cell is told.
	var gone <-chan struct{}
	own, _ := ctx.(*requestContext)
	if own == nil {
		gone = ctx.Done()
	}
	for !ready() {
		if err := sl.ended(ctx); err != nil {
			return err
		}
		left := sl.cfg.TrackedTimeout - time.Since(start)
		if left <= 0 {
			return errTracked
		}
		if own != nil {
			left = min(left, time.Until(own.deadline))
		}
		c.timer.Reset(left)
		select {
		case <-c.wake:
		case <-c.timer.C:
		case <-gone:
		}
	}
	return nil
}

// Wait waits until the read or write is done.
func (b Bulk) Wait(ctx context.Context) error {
	if b.x == nil || !b.x.holds(b.cell) {
		return nil
	}
	if err := b.x.await(ctx, b.cell, waitDone, b.op); err != nil {
		return b.abandon(err)
	}
	b.x.freeCell(b.cell)
	return nil
}

// abandon ends a read or write that cannot go on. When it returns, the device
// does not use its memory any more.
func (b Bulk) abandon(why error) error {
	x, sl := b.x, b.x.lane
	defer x.freeCell(b.cell)
	switch why {
	case errDown:
	case errTracked:
		sl.Fail(sl.errorf(LayerTracked, b.op, fmt.Errorf("%w: %v", ErrTracked, sl.cfg.TrackedTimeout)))
	default:
		ctx, cancel := context.WithTimeout(context.Background(), sl.cfg.BulkGrace)
		defer cancel()
		err := x.await(ctx, b.cell, waitDone, b.op)
		if err == nil {
			return sl.errorf(LayerWait, b.op, why)
		}
		if err != errDown {
			sl.Fail(sl.errorf(LayerTracked, b.op, fmt.Errorf("%w: still under way %v after %v", ErrTracked, sl.cfg.BulkGrace, why)))
		}
	}
	// In ERR requests are flushed, but only without the QP is it sure that the
	// device has done with them.
	_ = sl.closeQP()
	if why != errDown && why != errTracked {
		return sl.errorf(LayerWait, b.op, why)
	}
	return sl.cause.Load().as(b.op)
}
