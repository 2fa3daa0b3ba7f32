package lane

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/railstore/railstore/verbs"
	"github.com/railstore/railstore/verbs/verbstest"
)

// bulkServer serves op 1: read the client's region into the server's memory; op
// 2: write it back from there; op 3: write the server's memory into the answer.
// The payload is address, length and key of the client's region, and an offset
// into the server's memory.
type bulkServer struct {
	mem Memory
	err chan error
	up  atomic.Bool // mem is set: the race detector does not see that requests come after it

	started atomic.Int32
}

func (b *bulkServer) Serve(x *Exchange) {
	if b.started.Add(1); !b.up.Load() {
		return
	}
	p := x.Payload()
	region := verbs.RemoteRegion{Addr: binary.LittleEndian.Uint64(p), Length: binary.LittleEndian.Uint64(p[8:]), RKey: binary.LittleEndian.Uint32(p[16:])}
	off := uint64(binary.LittleEndian.Uint32(p[20:]))
	n := region.Length
	var sges []verbs.SGE // uneven pieces, in order
	for at, k := uint64(0), uint64(1); at < n; k++ {
		c := min(k*777, n-at)
		sges = append(sges, b.mem.MR.SGE(b.mem.Off+off+at, c))
		at += c
	}
	var err error
	switch x.Op() {
	case 1:
		err = x.Read(x.Context(), sges, region)
	case 2:
		err = x.Write(x.Context(), sges, region)
	case 3:
		var w Bulk
		to, _ := x.ResponseRegion().Slice(0, n)
		if w, err = x.StartWrite(x.Context(), sges, to); err == nil {
			x.ReplyPlaced(StatusOK, int(n))
			err = w.Wait(x.Context())
		}
	}
	if b.err != nil {
		b.err <- err
	}
	if err != nil {
		x.Reply(StatusInternal, 0)
		return
	}
	x.Reply(StatusOK, 0)
}

func bulkPayload(r verbs.RemoteRegion, off int) []byte {
	p := make([]byte, 24)
	binary.LittleEndian.PutUint64(p, r.Addr)
	binary.LittleEndian.PutUint64(p[8:], r.Length)
	binary.LittleEndian.PutUint32(p[16:], r.RKey)
	binary.LittleEndian.PutUint32(p[20:], uint32(off))
	return p
}

func newBulkRig(t testing.TB, o rigOptions, size int, errs chan error) (*rig, *bulkServer, Memory) {
	b := &bulkServer{err: errs}
	o.spare = size + 4096
	r := newRig(t, o, b)
	b.mem = r.server.take(size, 0)
	b.up.Store(true)
	return r, b, r.client.take(size, 0)
}

func TestBulk(t *testing.T) {
	modes(t, func(t *testing.T, o rigOptions) {
		const size = 400000
		o.cfg.BulkBytes, o.cfg.BulkWRs, o.cfg.MaxSGE, o.cfg.Slots, o.cfg.ResponseBytes = 5000, 8, 3, 2, 5000
		r, b, mem := newBulkRig(t, o, size, nil)
		rnd := verbstest.Seed(t)
		for _, n := range []int{0, 1, 4999, 5000, 5001, 123456, size} {
			region, _ := mem.published(size).Slice(0, uint64(n))
			verbstest.Fill(rnd, mem.Bytes[:n])
			want := bytes.Clone(mem.Bytes[:n])
			clear(b.mem.Bytes)
			for op := uint16(1); op <= 2; op++ {
				got, err := r.pool.Call(context.Background(), Request{Op: op, Payload: bulkPayload(region, 0), Exposed: true}, nil)
				if err != nil || got.Status != StatusOK {
					t.Fatalf("op %d of %d bytes: %+v, %v", op, n, got, err)
				}
				if op == 1 {
					if !bytes.Equal(b.mem.Bytes[:n], want) {
						t.Fatalf("%d bytes were read wrongly", n)
					}
					clear(mem.Bytes)
				}
			}
			if !bytes.Equal(mem.Bytes[:n], want) || n < size && mem.Bytes[n] != 0 {
				t.Fatalf("%d bytes were written wrongly", n)
			}
			if n <= 5000 {
				buf := make([]byte, 5000)
				region.Length = uint64(n)
				got, err := r.pool.Call(context.Background(), Request{Op: 3, Payload: bulkPayload(region, 0)}, buf)
				if err != nil || got.N != n || !bytes.Equal(buf[:n], want) {
					t.Fatalf("placed answer of %d bytes: %+v, %v", n, got, err)
				}
			}
		}
		c := r.acceptor.Counters()
		if c.BulkReadBytes.Load() < size || c.BulkWriteBytes.Load() < size {
			t.Fatalf("counted %d read, %d written", c.BulkReadBytes.Load(), c.BulkWriteBytes.Load())
		}
	})
}

// TestBulkBesideCalls: many handlers read and write over the same QP while others
// only answer.
func TestBulkBesideCalls(t *testing.T) {
	const size, callers = 30000, 6
	o := rigOptions{workers: 4, cfg: Config{Slots: 6, BulkBytes: 1000, BulkWRs: 4, MaxSGE: 2}}
	r, b, mem := newBulkRig(t, o, size*callers, nil)
	var wg sync.WaitGroup
	for c := range callers {
		wg.Add(1)
		go func() {
			defer wg.Done()
			mine := mem.Bytes[c*size : (c+1)*size]
			region, _ := mem.published(size*callers).Slice(uint64(c*size), size)
			for i := range 20 {
				for k := range mine {
					mine[k] = byte(c*16 + i)
				}
				for op := uint16(1); op <= 2; op++ {
					if got, err := r.pool.Call(context.Background(), Request{Op: op, Payload: bulkPayload(region, c*size)}, nil); err != nil || got.Status != StatusOK {
						t.Errorf("%+v, %v", got, err)
						return
					}
					if op == 1 {
						clear(mine)
					}
				}
				for k := range mine {
					if mine[k] != byte(c*16+i) {
						t.Errorf("caller %d: byte %d is %#x", c, k, mine[k])
						return
					}
				}
			}
		}()
	}
	wg.Wait()
	_ = b
}

func TestBulkRefusals(t *testing.T) {
	errs := make(chan error, 1)
	r, _, mem := newBulkRig(t, rigOptions{workers: 1}, 4096, errs)
	region, _ := mem.published(4096).Slice(0, 100)
	// A region of the client's that does not exist: the device refuses, the lane
	// is lost, the handler is told.
	bad := region
	bad.RKey ^= 0x5500
	_, err := r.pool.Call(context.Background(), Request{Op: 2, Payload: bulkPayload(bad, 0)}, nil)
	if err == nil {
		t.Fatal("the call on a lost lane succeeded")
	}
	wantLayer(t, <-errs, LayerDevice, verbs.WCRemAccess)
	<-r.served[0].Done()
	wantLayer(t, r.served[0].Err(), LayerDevice, verbs.WCRemAccess)
}

func TestBulkLongerThanItsRegion(t *testing.T) {
	got := make(chan error, 1)
	var mr *verbs.MR
	r := newRig(t, rigOptions{workers: 1}, HandlerFunc(func(x *Exchange) {
		got <- x.Write(x.Context(), []verbs.SGE{mr.SGE(0, 64), mr.SGE(0, 1)}, x.ResponseRegion())
		x.Reply(StatusOK, 0)
	}))
	mr = r.server.mr
	if _, err := r.pool.Call(context.Background(), Request{MaxResponse: 64}, nil); err != nil {
		t.Fatal(err)
	}
	wantLayer(t, <-got, LayerUsage, nil)
	if r.served[0].Err() != nil {
		t.Fatal("a usage error cost the lane")
	}
}

// TestBulkContextEnds: what was posted is waited for; if it stays out, the QP is
// destroyed before the handler goes on.
func TestBulkContextEnds(t *testing.T) {
	for _, workers := range []int{0, 1} {
		t.Run(fmt.Sprintf("completes, workers=%d", workers), func(t *testing.T) {
			errs := make(chan error, 1)
			loop := verbstest.NewLoop(verbstest.LoopOptions{})
			r, _, mem := newBulkRig(t, rigOptions{driver: loop, workers: workers, cfg: Config{BulkBytes: 4096, BulkWRs: 2}}, 1<<20, errs)
			var once atomic.Bool
			// The network stops once the request is there.
			ctx, cancel := context.WithTimeout(context.Background(), 30*time.Millisecond)
			defer cancel()
			tk, err := r.pool.Start(ctx, Request{Op: 1, Payload: bulkPayload(mem.published(1<<20), 0), Exposed: true})
			if err != nil {
				t.Fatal(err)
			}
			loop.Hold(true)
			go func() {
				if !once.Swap(true) {
					<-time.After(80 * time.Millisecond)
					loop.Hold(false)
				}
			}()
			_, err = tk.Wait(ctx, nil)
			if err == nil {
				<-errs // the whole read was done before the network stopped
				t.Skip("too fast to be interrupted")
			}
			wantLayer(t, err, LayerWait, context.DeadlineExceeded)
			wantLayer(t, <-errs, LayerWait, context.DeadlineExceeded)
			if r.served[0].Err() != nil || r.lanes[0].State() != Active {
				t.Fatalf("server %v, lane %v", r.served[0].Err(), r.lanes[0].State())
			}
		})
		t.Run(fmt.Sprintf("stays out, workers=%d", workers), func(t *testing.T) {
			errs := make(chan error, 1)
			f := verbstest.NewFault(verbstest.NewLoop(verbstest.LoopOptions{}))
			r, _, mem := newBulkRig(t, rigOptions{driver: f, workers: workers,
				cfg: Config{BulkGrace: 20 * time.Millisecond, WaitTimeout: 300 * time.Millisecond}}, 1<<20, errs)
			f.DropCompletions(func(wc verbs.WC) bool { return wc.Op == verbs.WCRead })
			ctx, cancel := context.WithTimeout(context.Background(), 30*time.Millisecond)
			defer cancel()
			_, err := r.pool.Call(ctx, Request{Op: 1, Payload: bulkPayload(mem.published(1<<20), 0)}, nil)
			wantLayer(t, err, LayerWait, context.DeadlineExceeded)
			wantLayer(t, <-errs, LayerWait, context.DeadlineExceeded)
			wantLayer(t, r.served[0].Err(), LayerTracked, ErrTracked)
			if !r.served[0].destroyed {
				t.Fatal("the QP is still there")
			}
		})
	}
}

func TestBulkTrackedTimeout(t *testing.T) {
	errs := make(chan error, 1)
	f := verbstest.NewFault(verbstest.NewLoop(verbstest.LoopOptions{}))
	r, _, mem := newBulkRig(t, rigOptions{driver: f, workers: 1, cfg: Config{TrackedTimeout: 30 * time.Millisecond, WaitTimeout: 300 * time.Millisecond}}, 4096, errs)
	f.DropCompletions(func(wc verbs.WC) bool { return wc.Op == verbs.WCRead })
	_, err := r.pool.Call(context.Background(), Request{Op: 1, Payload: bulkPayload(mem.published(4096), 0)}, nil)
	wantLayer(t, err, LayerWait, ErrTimeout)
	wantLayer(t, <-errs, LayerTracked, ErrTracked)
}

// TestManyStartedBulks starts more than there are cells and waits for none.
func TestManyStartedBulks(t *testing.T) {
	var mr *verbs.MR
	var bad atomic.Int32
	r := newRig(t, rigOptions{workers: 2, cfg: Config{BulkWRs: 2}}, HandlerFunc(func(x *Exchange) {
		for range 50 {
			if _, err := x.StartWrite(x.Context(), []verbs.SGE{mr.SGE(0, 8)}, x.ResponseRegion()); err != nil {
				bad.Add(1)
			}
		}
		x.Reply(StatusOK, 0)
	}))
	mr = r.server.mr
	for range 20 {
		if _, err := r.pool.Call(context.Background(), Request{}, nil); err != nil {
			t.Fatal(err)
		}
	}
	sl := r.served[0]
	r.until("all cells", func() bool {
		sl.mu.Lock()
		defer sl.mu.Unlock()
		return len(sl.spare) == len(sl.cells) && sl.bulk == 0
	})
	if bad.Load() != 0 {
		t.Fatalf("%d writes failed", bad.Load())
	}
}

// TestServerLaneCloseInterruptsBulk: Close does not wait for a handler that waits
// for a peer that is silent.
func TestServerLaneCloseInterruptsBulk(t *testing.T) {
	for _, workers := range []int{0, 1} {
		errs := make(chan error, 1)
		loop := verbstest.NewLoop(verbstest.LoopOptions{})
		r, b, mem := newBulkRig(t, rigOptions{driver: loop, workers: workers, cfg: Config{BulkBytes: 4096, BulkWRs: 1}, noLeak: true}, 1<<20, errs)
		f := make(chan struct{})
		go func() {
			defer close(f)
			_, _ = r.pool.Call(context.Background(), Request{Op: 1, Payload: bulkPayload(mem.published(1<<20), 0)}, nil)
		}()
		r.until("the handler", func() bool { return b.started.Load() == 1 })
		loop.Hold(true)
		start := time.Now()
		if err := r.served[0].Close(); err != nil {
			t.Fatal(err)
		}
		if d := time.Since(start); d > 2*time.Second {
			t.Fatalf("Close took %v", d)
		}
		if err := <-errs; err != nil && !errors.Is(err, ErrClosed) {
			t.Fatalf("the handler was told %v", err)
		}
		loop.Hold(false)
		_ = r.lanes[0].Close()
		<-f
	}
}
