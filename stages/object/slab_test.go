package object

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"pgregory.net/rapid"
)

// pageModel is the naive allocator: a bool for each page.
type pageModel struct{ taken []bool }

// bestFit scans for the smallest run of free pages that is large enough.
func (m *pageModel) bestFit(pages int) int {
	best, bestLen := -1, 0
	for i := 0; i < len(m.taken); {
		if m.taken[i] {
			i++
			continue
		}
		j := i
		for j < len(m.taken) && !m.taken[j] {
			j++
		}
		if n := j - i; n >= pages && (best < 0 || n < bestLen) {
			best, bestLen = i, n
		}
		i = j
	}
	return best
}

func (m *pageModel) set(at, pages int, v bool) {
	for i := at; i < at+pages; i++ {
		if m.taken[i] == v {
			panic(fmt.Sprintf("page %d is %v already", i, v))
		}
		m.taken[i] = v
	}
}

func (m *pageModel) largest() (n int) {
	run := 0
	for _, t := range m.taken {
		run++
		if t {
			run = 0
		}
		n = max(n, run)
	}
	return n
}

func TestSlabAgainstPageModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		pages := rapid.IntRange(1, 64).Draw(t, "pages")
		s := NewSlab(make([]byte, pages*Align+rapid.IntRange(0, Align-1).Draw(t, "tail")))
		m := &pageModel{taken: make([]bool, pages)}
		var live []*Extent
		used := 0
		t.Repeat(map[string]func(*rapid.T){
			"acquire": func(t *rapid.T) {
				n := rapid.IntRange(0, pages*Align).Draw(t, "bytes")
				need := (n + Align - 1) / Align
				x, ok := s.TryAcquire(n)
				at := m.bestFit(need)
				if need == 0 {
					at = 0
				}
				if ok != (at >= 0) {
					t.Fatalf("acquire %d: got %v, the model says page %d", n, ok, at)
				}
				if !ok {
					return
				}
				if need > 0 && x.off != uint64(at*Align) {
					t.Fatalf("acquire %d: at %d, best fit is page %d", n, x.off, at)
				}
				if len(x.Bytes()) != n || cap(x.Bytes()) != n {
					t.Fatalf("acquire %d: %d bytes, capacity %d", n, len(x.Bytes()), cap(x.Bytes()))
				}
				m.set(at, need, true)
				used += need
				live = append(live, x)
			},
			"retain": func(t *rapid.T) {
				if len(live) == 0 {
					t.Skip()
				}
				x := rapid.SampledFrom(live).Draw(t, "which")
				x.Retain()
				x.Release()
			},
			"release": func(t *rapid.T) {
				if len(live) == 0 {
					t.Skip()
				}
				i := rapid.IntRange(0, len(live)-1).Draw(t, "which")
				x := live[i]
				live = append(live[:i], live[i+1:]...)
				m.set(int(x.off/Align), int(x.room/Align), false)
				used -= int(x.room / Align)
				x.Release()
			},
			"": func(t *rapid.T) {
				st := s.Stats()
				if st.Used != uint64(used*Align) || st.Extents != len(live) || st.Largest != uint64(m.largest()*Align) {
					t.Fatalf("stats %+v, the model has %d pages in %d extents, largest gap %d", st, used, len(live), m.largest())
				}
			},
		})
	})
}

func TestSlabFragmentation(t *testing.T) {
	s := NewSlab(make([]byte, 10*Align))
	var x []*Extent
	for range 10 {
		e, ok := s.TryAcquire(1)
		if !ok {
			t.Fatal("full too early")
		}
		x = append(x, e)
	}
	if _, ok := s.TryAcquire(1); ok {
		t.Fatal("more than there is")
	}
	for i := 0; i < 10; i += 2 {
		x[i].Release()
	}
	if _, ok := s.TryAcquire(2 * Align); ok {
		t.Fatal("two pages out of single holes")
	}
	for i := 1; i < 10; i += 2 {
		x[i].Release()
	}
	if e, ok := s.TryAcquire(10 * Align); !ok {
		t.Fatal("holes did not coalesce")
	} else {
		e.Release()
	}
	if st := s.Stats(); st.Used != 0 || st.HighWater != 10*Align || st.Largest != 10*Align {
		t.Fatalf("stats %+v", st)
	}
}

func TestSlabWaitingIsFIFO(t *testing.T) {
	defer goleak.VerifyNone(t)
	s := NewSlab(make([]byte, 4*Align))
	hold, _ := s.TryAcquire(3 * Align)
	got := make(chan int, 2)
	var wg sync.WaitGroup
	var first *Extent
	wg.Add(1)
	go func() {
		defer wg.Done()
		x, err := s.Acquire(context.Background(), 4*Align)
		if err != nil {
			t.Error(err)
			return
		}
		first = x
		got <- 1
	}()
	waitFor(t, func() bool { return s.Stats().Waiting == 1 })
	// One page is free, but the large request was first.
	if _, ok := s.TryAcquire(Align); ok {
		t.Fatal("overtook a waiter")
	}
	wg.Add(1)
	go func() {
		defer wg.Done()
		x, err := s.Acquire(context.Background(), Align)
		if err != nil {
			t.Error(err)
			return
		}
		got <- 2
		x.Release()
	}()
	waitFor(t, func() bool { return s.Stats().Waiting == 2 })
	hold.Release()
	if n := <-got; n != 1 {
		t.Fatalf("%d came first", n)
	}
	first.Release()
	if n := <-got; n != 2 {
		t.Fatalf("%d came second", n)
	}
	wg.Wait()
}

func TestSlabAcquireEndsWithContext(t *testing.T) {
	defer goleak.VerifyNone(t)
	s := NewSlab(make([]byte, 2*Align))
	hold, _ := s.TryAcquire(Align)
	ctx, cancel := context.WithCancelCause(context.Background())
	errc := make(chan error, 2)
	go func() { _, err := s.Acquire(ctx, 2*Align); errc <- err }()
	waitFor(t, func() bool { return s.Stats().Waiting == 1 })
	small := make(chan *Extent, 1)
	go func() {
		x, err := s.Acquire(context.Background(), Align)
		if err != nil {
			t.Error(err)
		}
		small <- x
	}()
	waitFor(t, func() bool { return s.Stats().Waiting == 2 })
	cause := errors.New("gave up")
	cancel(cause)
	if err := <-errc; !errors.Is(err, cause) {
		t.Fatalf("%v", err)
	}
	(<-small).Release() // the small one got the free page once the large one left
	hold.Release()
	if st := s.Stats(); st.Used != 0 || st.Waiting != 0 {
		t.Fatalf("%+v", st)
	}
}

func TestSlabTooLargeClosedCondemned(t *testing.T) {
	s := NewSlab(make([]byte, 2*Align))
	if _, err := s.Acquire(context.Background(), 2*Align+1); !errors.Is(err, ErrNoMemory) {
		t.Fatalf("%v", err)
	}
	x, _ := s.TryAcquire(Align)
	x.Condemn()
	x.Release()
	if st := s.Stats(); st.Condemned != Align || st.Used != Align || st.Extents != 0 {
		t.Fatalf("%+v", st)
	}
	if _, err := s.Acquire(context.Background(), 2*Align); !errors.Is(err, ErrNoMemory) {
		t.Fatalf("condemned memory counted as available: %v", err)
	}
	y, _ := s.TryAcquire(Align)
	errc := make(chan error)
	go func() { _, err := s.Acquire(context.Background(), Align); errc <- err }()
	waitFor(t, func() bool { return s.Stats().Waiting == 1 })
	s.Close()
	if err := <-errc; !errors.Is(err, ErrClosed) {
		t.Fatalf("%v", err)
	}
	y.Release()
	mustPanic(t, "released twice", y.Release)
}

// TestSlabConcurrent has writers that would notice an overlap.
func TestSlabConcurrent(t *testing.T) {
	defer goleak.VerifyNone(t)
	s := NewSlab(make([]byte, 16*Align))
	seed := testSeed(t)
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			r := rand.New(rand.NewPCG(seed, uint64(g)))
			for range 200 {
				x, err := s.Acquire(context.Background(), r.IntN(6*Align))
				if err != nil {
					t.Error(err)
					return
				}
				b := x.Bytes()
				for i := range b {
					b[i] = byte(g)
				}
				for i := range b {
					if b[i] != byte(g) {
						t.Errorf("byte %d of goroutine %d was overwritten", i, g)
						break
					}
				}
				x.Release()
			}
		}()
	}
	wg.Wait()
	if st := s.Stats(); st.Used != 0 || st.Extents != 0 || st.Largest != 16*Align {
		t.Fatalf("%+v", st)
	}
}

func waitFor(t testing.TB, cond func() bool) {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for !cond() {
		if time.Now().After(deadline) {
			t.Fatal("did not happen within 10 s")
		}
		time.Sleep(100 * time.Microsecond) // polls a condition, orders nothing
	}
}

func mustPanic(t *testing.T, what string, f func()) {
	t.Helper()
	defer func() {
		if recover() == nil {
			t.Errorf("%s: no panic", what)
		}
	}()
	f()
}

// TestSlabGrows: what is asked for is made ready, in order, not before and not twice.
func TestSlabGrows(t *testing.T) {
	var ready uint64
	var fail error
	grown := []uint64{}
	s := NewGrowingSlab(make([]byte, 100*Align), 4*Align, func(off, n uint64) error {
		if off != ready {
			t.Errorf("%d bytes from %d on, %d are ready", n, off, ready)
		}
		if fail != nil {
			return fail
		}
		ready += n
		grown = append(grown, n/Align)
		return nil
	})
	if st := s.Stats(); st.Capacity != 0 || st.Limit != 100*Align {
		t.Errorf("%+v", st)
	}
	var held []*Extent
	get := func(n int) *Extent {
		t.Helper()
		x, err := s.Acquire(context.Background(), n*Align)
		if err != nil {
			t.Fatal(err)
		}
		if x.off+x.room > ready {
			t.Fatalf("an extent up to %d, ready are %d", x.off+x.room, ready)
		}
		held = append(held, x)
		return x
	}
	empty, err := s.Acquire(context.Background(), 0)
	if err != nil || ready != 0 {
		t.Fatalf("%v, %d bytes ready for nothing", err, ready)
	}
	empty.Release()
	get(1) // the chunk
	get(3)
	get(1) // another chunk: as much as there is
	get(30)
	get(10).Release()
	held = held[:len(held)-1]
	get(10)
	if want := []uint64{4, 4, 27, 35}; !slices.Equal(grown, want) {
		t.Errorf("grown by %v, want %v", grown, want)
	}
	// It cannot double, and does with what it needs.
	fails := 0
	s.more = func(off, n uint64) error {
		if n > 10*Align {
			fails++
			return ErrNoMemory
		}
		ready += n
		return nil
	}
	for _, x := range held {
		x.Release()
	}
	held = nil
	get(71)
	if fails != 1 || ready != 74*Align {
		t.Errorf("%d failures, %d pages ready", fails, ready/Align)
	}
	// It cannot grow at all: what it has serves on, more is an error.
	fail = fmt.Errorf("%w: ulimit", ErrNoMemory)
	s.more = func(uint64, uint64) error { return fail }
	held[0].Release()
	held = nil
	get(74).Release()
	if _, err := s.Acquire(context.Background(), 75*Align); !errors.Is(err, fail) {
		t.Errorf("%v", err)
	}
	if _, ok := s.TryAcquire(75 * Align); ok {
		t.Error("75 pages of 74")
	}
	if _, err := s.Acquire(context.Background(), 101*Align); !errors.Is(err, ErrNoMemory) || errors.Is(err, fail) {
		t.Errorf("%v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	hold, err := s.Acquire(ctx, 74*Align)
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	if _, err := s.Acquire(ctx, Align); !errors.Is(err, context.Canceled) {
		t.Errorf("who could wait must wait: %v", err)
	}
	hold.Release()
}
