package lane

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/railstore/railstore/verbs/verbstest"
)

// echo answers with the payload, its op as the status.
var echo = HandlerFunc(func(x *Exchange) {
	n := copy(x.Response(), x.Payload())
	x.Reply(Status(x.Op()), n)
})

func TestCallEchoes(t *testing.T) {
	modes(t, func(t *testing.T, o rigOptions) {
		o.cfg.Slots, o.cfg.RequestBytes, o.cfg.ResponseBytes = 3, 5000, 5000
		r := newRig(t, o, echo)
		rnd := verbstest.Seed(t)
		buf := make([]byte, 5000)
		for i, n := range []int{0, 1, 7, 8, 63, 64, 65, 1023, 1024, 1025, 4999, 5000} {
			p := make([]byte, n)
			verbstest.Fill(rnd, p)
			got, err := r.pool.Call(context.Background(), Request{Op: uint16(i), Token: uint64(i), Payload: p}, buf)
			if err != nil {
				t.Fatal(err)
			}
			if got.Status != Status(i) || got.N != n || !bytes.Equal(buf[:n], p) {
				t.Fatalf("%d bytes: answered %+v", n, got)
			}
		}
		c, s := r.pool.Counters(), r.acceptor.Counters()
		r.until("the last answer to be counted", func() bool { return s.CompleteResponse.Load() >= 12 })
		if c.SubmitRequest.Load() != 12 || s.CompleteResponse.Load() != 12 || s.ReadySlots.Load() != 12 || c.PendingRPC.Load() != 0 {
			t.Fatalf("counters: %v / %v", c.Fields(), s.Fields())
		}
	})
}

func TestExchangeFields(t *testing.T) {
	var mu sync.Mutex
	var seen []string
	r := newRig(t, rigOptions{cfg: Config{ResponseBytes: 256}, workers: 1}, HandlerFunc(func(x *Exchange) {
		left := time.Until(x.Deadline())
		_, has := x.Context().Deadline()
		mu.Lock()
		seen = append(seen, fmt.Sprintf("%d %d %d %d %v %v %v", x.Op(), x.Flags(), x.Token(), len(x.Response()), x.Label().Shard, has, left > 30*time.Second && left < time.Minute))
		mu.Unlock()
		x.Reply(StatusOK, 0)
	}))
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Second)
	defer cancel()
	buf := make([]byte, 1000)
	for _, q := range []struct {
		ctx context.Context
		r   Request
		buf []byte
	}{
		{ctx, Request{Op: 9, Flags: 3, Token: 1 << 60}, buf},
		{context.Background(), Request{Op: 1, MaxResponse: 17}, buf},
		{context.Background(), Request{}, nil},
		{context.Background(), Request{}, buf[:0]},
		{context.Background(), Request{Fill: func(b []byte) int { return copy(b, "x") }}, buf[:5]},
	} {
		if _, err := r.pool.Call(q.ctx, q.r, q.buf); err != nil {
			t.Fatal(err)
		}
	}
	// The race detector does not see that an answer comes after its handler.
	mu.Lock()
	defer mu.Unlock()
	want := []string{"9 3 1152921504606846976 256 3 true true", "1 0 0 17 3 false false", "0 0 0 256 3 false false", "0 0 0 0 3 false false", "0 0 0 5 3 false false"}
	if strings.Join(seen, "|") != strings.Join(want, "|") {
		t.Fatalf("handler saw\n%q, want\n%q", seen, want)
	}
}

func TestUsageErrorsKeepTheLane(t *testing.T) {
	r := newRig(t, rigOptions{cfg: Config{RequestBytes: 100, ResponseBytes: 100}}, echo)
	for what, q := range map[string]Request{
		"long payload":  {Payload: make([]byte, 101)},
		"long answer":   {MaxResponse: 101},
		"fill too much": {Fill: func([]byte) int { return 101 }},
		"fill negative": {Fill: func([]byte) int { return -1 }},
	} {
		_, err := r.pool.Call(context.Background(), q, nil)
		var le *Error
		if !errors.As(err, &le) || le.Layer != LayerUsage || !errors.Is(err, ErrTooLarge) {
			t.Fatalf("%s: %v", what, err)
		}
	}
	_, err := r.pool.Call(context.Background(), Request{Rail: "nowhere"}, nil)
	if !errors.Is(err, ErrDown) {
		t.Fatalf("unknown rail: %v", err)
	}
	// The one slot is still there.
	if _, err := r.pool.Call(context.Background(), Request{}, nil); err != nil || r.lanes[0].State() != Active {
		t.Fatalf("after usage errors: %v, lane %v", err, r.lanes[0].State())
	}
	// An answer longer than the caller's buffer is an error, too, of the handler:
	// it was told the room.
	got, err := r.pool.Call(context.Background(), Request{Payload: make([]byte, 50)}, make([]byte, 10))
	if err != nil || got.N != 10 {
		t.Fatalf("short buffer: %+v, %v", got, err)
	}
}

func TestTickets(t *testing.T) {
	modes(t, func(t *testing.T, o rigOptions) {
		o.cfg.Slots = 4
		r := newRig(t, o, echo)
		for round := range 20 {
			var ts []Ticket
			for i := range 4 {
				tk, err := r.pool.Start(context.Background(), Request{Payload: []byte{byte(round), byte(i)}})
				if err != nil {
					t.Fatal(err)
				}
				ts = append(ts, tk)
			}
			for _, i := range []int{2, 0, 3, 1} {
				var buf [2]byte
				if i%2 == 0 {
					_, err := ts[i].View(context.Background(), func(x Response, body []byte) error { copy(buf[:], body); return nil })
					if err != nil {
						t.Fatal(err)
					}
				} else if _, err := ts[i].Wait(context.Background(), buf[:]); err != nil {
					t.Fatal(err)
				}
				if buf != [2]byte{byte(round), byte(i)} {
					t.Fatalf("ticket %d of round %d brought %v", i, round, buf)
				}
				if _, err := ts[i].Wait(context.Background(), nil); !errors.Is(err, ErrTicketUsed) {
					t.Fatalf("second wait: %v", err)
				}
			}
		}
		if _, err := (Ticket{}).Wait(context.Background(), nil); !errors.Is(err, ErrTicketUsed) {
			t.Fatalf("zero ticket: %v", err)
		}
	})
}

// TestRequestsNeverMix has many callers on few slots, some of which give up; each
// answer must be made of its own request only.
func TestRequestsNeverMix(t *testing.T) {
	modes(t, func(t *testing.T, o rigOptions) {
		o.cfg.Slots, o.cfg.RequestBytes, o.cfg.ResponseBytes = 3, 4096, 4096
		o.lanes, o.rails = 3, 2
		testNeverMix(t, o, 12, 150)
	})
}

func testNeverMix(t *testing.T, o rigOptions, callers, each int) {
	rnd := verbstest.Seed(t)
	slow := rand.New(rand.NewPCG(rnd.Uint64(), 1))
	var mu sync.Mutex
	r := newRig(t, o, HandlerFunc(func(x *Exchange) {
		// id, then bytes of it; the answer repeats the id in another length.
		p := x.Payload()
		id := binary.LittleEndian.Uint64(p)
		for _, b := range p[8:] {
			if b != byte(id) {
				x.Reply(StatusSizeMismatch, 0)
				return
			}
		}
		mu.Lock()
		lag := slow.IntN(100)
		mu.Unlock()
		if lag == 0 {
			<-time.After(300 * time.Microsecond)
		}
		out := x.Response()
		binary.LittleEndian.PutUint64(out, id)
		n := 8 + int(id*31)%(len(out)-8)
		for i := 8; i < n; i++ {
			out[i] = ^byte(id)
		}
		x.Reply(StatusOK, n)
	}))
	var wg sync.WaitGroup
	var gaveUp, done int
	for c := range callers {
		rnd := rand.New(rand.NewPCG(rnd.Uint64(), uint64(c)))
		wg.Add(1)
		go func() {
			defer wg.Done()
			buf := make([]byte, 4096)
			for i := range each {
				id := uint64(c)<<32 | uint64(i)<<8 | uint64(rnd.IntN(256))
				p := make([]byte, 8+rnd.IntN(4000))
				binary.LittleEndian.PutUint64(p, id)
				for k := 8; k < len(p); k++ {
					p[k] = byte(id)
				}
				ctx, cancel := context.WithCancel(context.Background())
				if rnd.IntN(10) == 0 {
					cancel()
					ctx, cancel = context.WithTimeout(context.Background(), time.Duration(rnd.IntN(200))*time.Microsecond)
				}
				q := Request{Payload: p}
				if rnd.IntN(3) == 0 && o.rails > 1 {
					q.Rail = fmt.Sprintf("r%d", rnd.IntN(o.rails))
				}
				got, err := r.pool.Call(ctx, q, buf)
				cancel()
				if errors.Is(err, context.DeadlineExceeded) {
					mu.Lock()
					gaveUp++
					mu.Unlock()
					continue
				}
				if err != nil {
					t.Errorf("caller %d: %v", c, err)
					return
				}
				if got.Status != StatusOK || binary.LittleEndian.Uint64(buf) != id || got.N != 8+int(id*31)%(4096-8) {
					t.Errorf("caller %d asked %#x, was answered %+v with %#x", c, id, got, binary.LittleEndian.Uint64(buf))
					return
				}
				for k := 8; k < got.N; k++ {
					if buf[k] != ^byte(id) {
						t.Errorf("caller %d: byte %d of the answer belongs to another request", c, k)
						return
					}
				}
				mu.Lock()
				done++
				mu.Unlock()
			}
		}()
	}
	wg.Wait()
	for _, l := range r.lanes {
		if l.State() != Active {
			t.Fatalf("lane %v: %v", l.State(), l.Err())
		}
	}
	t.Logf("%d answered, %d given up, counters %v", done, gaveUp, r.pool.Counters().Fields())
	// Every quarantined slot comes back.
	r.until("all slots", func() bool {
		r.pool.mu.Lock()
		defer r.pool.mu.Unlock()
		free := 0
		for _, l := range r.lanes {
			free += len(l.free)
		}
		return free == len(r.lanes)*o.cfg.Slots
	})
}

func TestCallDoesNotAllocate(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	for _, n := range []Notify{Adaptive, Scan} {
		for _, workers := range []int{0, 2} {
			r := newRig(t, rigOptions{cfg: Config{Notify: n, Slots: 4}, workers: workers}, echo)
			payload, buf := make([]byte, 300), make([]byte, 300)
			ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
			defer cancel()
			call := func() {
				if _, err := r.pool.Call(ctx, Request{Op: 0, Payload: payload}, buf); err != nil {
					t.Fatal(err)
				}
			}
			for range 100 {
				call()
			}
			if a := testing.AllocsPerRun(2000, call); a != 0 {
				t.Errorf("%v, %d workers: a call allocates %v times", n, workers, a)
			}
			if a := testing.AllocsPerRun(2000, func() {
				tk, err := r.pool.Start(ctx, Request{Payload: payload})
				if err != nil {
					t.Fatal(err)
				}
				if _, err := tk.Wait(ctx, buf); err != nil {
					t.Fatal(err)
				}
			}); a != 0 {
				t.Errorf("%v, %d workers: start and wait allocate %v times", n, workers, a)
			}
		}
	}
}
