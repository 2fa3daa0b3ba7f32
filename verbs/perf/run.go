package perf

import (
	"context"
	"errors"
	"math"
	"slices"
	"time"

	"github.com/railstore/railstore/verbs"
)

// Initiate runs the measuring side. The responder must be in Respond, or be
// called at the same time.
func (e *End) Initiate(ctx context.Context) (Result, error) {
	if e.test.Kind == Latency {
		return e.latency(ctx)
	}
	return e.bandwidth(ctx)
}

// Respond runs the answering side until the test's messages are through or ctx
// ends, which is no error: WRITE and READ bandwidth and READ latency need
// nothing of it, so it waits for ctx there.
func (e *End) Respond(ctx context.Context) error {
	var err error
	switch {
	case e.test.Op == verbs.OpSend && e.test.Kind == Bandwidth:
		err = e.drain(ctx, e.test.Iters+e.test.Warmup)
	case e.test.Op != verbs.OpRead && e.test.Kind == Latency:
		err = e.pingPong(ctx, false, nil)
	default:
		<-ctx.Done()
	}
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// post posts n requests of the test on a QP.
func (e *End) post(qp int, n int) error {
	e.request(qp, n)
	_, err := e.qps[qp].PostSend(e.wrs, e.sges)
	return err
}

// request makes n requests of the test in wrs and sges.
func (e *End) request(qp int, n int) {
	e.wrs, e.sges = e.wrs[:0], e.sges[:0]
	size := uint64(e.test.Size)
	for range n {
		off := e.sendOff(qp)
		wr := verbs.SendWR{ID: verbs.WRID(qp) << 1, Op: e.test.Op, Flags: verbs.Signaled, NumSGE: 1, RKey: e.peer.Region.RKey}
		switch e.test.Op {
		case verbs.OpWrite:
			wr.RemoteAddr = e.peer.Region.Addr + e.recvOff(qp)
		case verbs.OpRead:
			wr.RemoteAddr = e.peer.Region.Addr + e.sendOff(qp)
			off = e.recvOff(qp)
		}
		e.wrs = append(e.wrs, wr)
		e.sges = append(e.sges, e.mr.SGE(off, size))
	}
}

// bandwidth keeps Depth messages in flight on each QP.
func (e *End) bandwidth(ctx context.Context) (Result, error) {
	t := e.test
	total := t.Iters + t.Warmup
	posted, done := 0, 0
	inflight := make([]int, len(e.qps))
	var start, last time.Time
	// The peak is over windows of a full queue's messages: single polls see
	// bursts that no link carries.
	var peak float64
	var markTime time.Time
	var mark int
	if t.Warmup == 0 {
		start = time.Now()
		last, markTime = start, start
	}
	for done < total {
		for q := range e.qps {
			if n := min(t.Depth-inflight[q], total-posted, 64); n > 0 {
				if err := e.post(q, n); err != nil {
					return Result{}, err
				}
				posted += n
				inflight[q] += n
			}
		}
		n, err := e.cq.PollWait(ctx, e.wcs[:], 200)
		if err != nil {
			return Result{}, err
		}
		for i := range e.wcs[:n] {
			wc := &e.wcs[i]
			if wc.Status != verbs.WCSuccess {
				return Result{}, e.bad(wc)
			}
			inflight[wc.ID>>1]--
		}
		done += n
		switch now := time.Now(); {
		case start.IsZero() && done >= t.Warmup:
			start, last, markTime, mark = now, now, now, done
			total += done - t.Warmup // what completed before the clock started does not count
		case !start.IsZero():
			if k := done - mark; k >= t.Depth*t.QPs {
				if d := now.Sub(markTime).Seconds(); d > 0 {
					peak = max(peak, float64(k)*float64(t.Size)/d)
				}
				mark, markTime = done, now
			}
			last = now
		}
	}
	sec := last.Sub(start).Seconds()
	r := Result{Test: t.Name(), Bytes: t.Size, Iterations: t.Iters, Seconds: sec}
	if sec > 0 {
		r.MessagesPerSecond = float64(t.Iters) / sec
		r.BytesPerSecond = r.MessagesPerSecond * float64(t.Size)
		r.PeakBytesPerSecond = max(peak, r.BytesPerSecond)
	}
	return r, nil
}

// drain receives n SENDs and keeps receives posted.
func (e *End) drain(ctx context.Context, n int) error {
	for got := 0; got < n; {
		k, err := e.cq.PollWait(ctx, e.wcs[:], 200)
		if err != nil {
			return err
		}
		for i := range e.wcs[:k] {
			if e.wcs[i].Status != verbs.WCSuccess {
				return e.bad(&e.wcs[i])
			}
			if err := e.postRecv(int(e.wcs[i].ID >> 1)); err != nil {
				return err
			}
		}
		got += k
	}
	return nil
}

func (e *End) latency(ctx context.Context) (Result, error) {
	t := e.test
	ns := make([]int64, 0, t.Iters)
	start := time.Now()
	var err error
	if t.Op == verbs.OpRead {
		err = e.readLatency(ctx, &ns)
	} else {
		err = e.pingPong(ctx, true, &ns)
	}
	if err != nil {
		return Result{}, err
	}
	r := Result{Test: t.Name(), Bytes: t.Size, Iterations: t.Iters, Seconds: time.Since(start).Seconds()}
	r.percentiles(ns, t.Op != verbs.OpRead)
	return r, nil
}

func (e *End) readLatency(ctx context.Context, ns *[]int64) error {
	for i := range e.test.Warmup + e.test.Iters {
		t0 := time.Now()
		if err := e.post(0, 1); err != nil {
			return err
		}
		if err := e.one(ctx); err != nil {
			return err
		}
		if i >= e.test.Warmup {
			*ns = append(*ns, int64(time.Since(t0)))
		}
	}
	return nil
}

// one waits actively for one completion.
func (e *End) one(ctx context.Context) error {
	for i := 1; ; i++ {
		n, err := e.cq.Poll(e.wcs[:1])
		if err != nil {
			return err
		}
		if n == 1 {
			if e.wcs[0].Status != verbs.WCSuccess {
				return e.bad(&e.wcs[0])
			}
			return nil
		}
		if i%4096 == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
	}
}

// pingPong is the latency loop of WRITE and SEND. A WRITE is seen by polling the
// message's last byte in memory, as ib_write_lat does, a SEND by its receive
// completion. The tag in the last byte tells one round from the next.
func (e *End) pingPong(ctx context.Context, first bool, ns *[]int64) error {
	t := e.test
	e.sent, e.got = 0, 0
	sendLast := e.region.Bytes()[int(e.sendOff(0))+t.Size-1:]
	// The request is always the same one.
	e.request(0, 1)
	last := time.Now()
	for i := range t.Warmup + t.Iters {
		tag := byte(i + 1)
		if !first {
			if err := e.await(ctx, i+1, tag); err != nil {
				return err
			}
		}
		sendLast[0] = tag
		if _, err := e.qps[0].PostSend(e.wrs, e.sges); err != nil {
			return err
		}
		// The buffer is written again only when the last message has left it. That
		// is asked now, while the peer is at work.
		for n := 1; e.sent < i+1; n++ {
			if err := e.reap(ctx, n); err != nil {
				return err
			}
		}
		if first {
			if err := e.await(ctx, i+1, tag); err != nil {
				return err
			}
			now := time.Now()
			if i >= t.Warmup {
				*ns = append(*ns, int64(now.Sub(last)))
			}
			last = now
		}
	}
	return nil
}

// await waits actively for message number n. Memory is looked at all the time, the
// CQ now and then only, for errors: it is dear to ask on some devices.
func (e *End) await(ctx context.Context, n int, tag byte) error {
	last := int(e.recvOff(0)) + e.test.Size - 1
	word := e.region.Bytes()[last&^7:]
	shift := 8 * (last % 8)
	for i := 1; ; i++ {
		if e.test.Op == verbs.OpSend {
			if e.got >= n {
				return e.postRecv(0)
			}
		} else {
			for range 16 {
				if byte(verbs.LoadWord(word)>>shift) == tag {
					return nil
				}
			}
			e.ctx.Progress()
			if i%64 != 0 {
				continue
			}
		}
		if err := e.reap(ctx, i); err != nil {
			return err
		}
	}
}

// reap polls once and counts; i is the number of the try.
func (e *End) reap(ctx context.Context, i int) error {
	n, err := e.cq.Poll(e.wcs[:])
	if err != nil {
		return err
	}
	for k := range e.wcs[:n] {
		switch wc := &e.wcs[k]; {
		case wc.Status != verbs.WCSuccess:
			return e.bad(wc)
		case wc.ID&1 == 1:
			e.got++
		default:
			e.sent++
		}
	}
	if i%4096 == 0 {
		return ctx.Err()
	}
	return nil
}

// percentiles fills the times; half counts one way of a round trip.
func (r *Result) percentiles(ns []int64, half bool) {
	if len(ns) == 0 {
		return
	}
	slices.Sort(ns)
	div := 1e3
	if half {
		div = 2e3
	}
	at := func(p float64) float64 {
		return float64(ns[min(len(ns)-1, int(p*float64(len(ns))))]) / div
	}
	var sum, sq float64
	for _, v := range ns {
		sum += float64(v) / div
	}
	avg := sum / float64(len(ns))
	for _, v := range ns {
		d := float64(v)/div - avg
		sq += d * d
	}
	r.MinUS, r.MaxUS = at(0), float64(ns[len(ns)-1])/div
	r.TypicalUS, r.AvgUS, r.StdevUS = at(0.5), avg, math.Sqrt(sq/float64(len(ns)))
	r.P99US, r.P999US = at(0.99), at(0.999)
}

// Between runs a test between two connected ends of one process.
func Between(ctx context.Context, initiator, responder *End) (Result, error) {
	rctx, stop := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- responder.Respond(rctx) }()
	r, err := initiator.Initiate(ctx)
	stop()
	return r, errors.Join(err, <-done)
}
