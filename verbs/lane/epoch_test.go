package lane

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/railstore/railstore/verbs"
)

// pathOfTwoMS gives a peer that is silent up after two milliseconds.
var pathOfTwoMS = verbs.PathOpts{RetryCount: 1, RNRRetry: 7, Timeout: 8}

// freeSlots are the free slots of lane 0, sorted.
func (r *rig) freeSlots() []uint16 {
	r.pool.mu.Lock()
	defer r.pool.mu.Unlock()
	out := slices.Clone(r.lanes[0].free)
	slices.Sort(out)
	return out
}

// TestGrantOfAnOldEpoch: between being granted a slot and using it a caller can be
// overtaken by a failure and the rebuild. The slot is somebody else's then.
func TestGrantOfAnOldEpoch(t *testing.T) {
	r := newRig(t, rigOptions{cfg: Config{Slots: 2}}, echo)
	g := r.pool.slot(context.Background(), "", true)
	r.lanes[0].FailFrom(LayerNode, ErrPeerDead, true)
	r.rebuild(1000, 2000)
	if g.enter() {
		t.Fatal("a grant of before the rebuild was good after it")
	}
	if free := r.freeSlots(); !slices.Equal(free, []uint16{0, 1}) {
		t.Fatalf("free slots %v", free)
	}
	if _, err := r.pool.Call(context.Background(), Request{}, nil); err != nil {
		t.Fatal(err)
	}
}

// TestGrantGivenBackLate is the same for a caller in the queue whose context ends
// when the slot has been granted.
func TestGrantGivenBackLate(t *testing.T) {
	r := newRig(t, rigOptions{cfg: Config{Slots: 1}}, echo)
	l, p := r.lanes[0], r.pool
	both := 0
	for range 100 {
		held := p.slot(context.Background(), "", true)
		ctx, cancel := context.WithCancel(context.Background())
		got := make(chan grant, 1)
		go func() { got <- p.slot(ctx, "", true) }()
		r.until("the caller to queue", func() bool {
			p.mu.Lock()
			defer p.mu.Unlock()
			return p.queue.Len() == 1
		})
		p.mu.Lock()
		cancel()
		p.give(l, held.s)
		l.epoch.Add(1) // a rebuild, as the pool sees it
		p.fill(l)
		p.mu.Unlock()
		if g := <-got; g.err != nil {
			both++
		} else if g.enter() {
			t.Fatal("a grant of before the rebuild was good after it")
		}
		if free := r.freeSlots(); !slices.Equal(free, []uint16{0}) {
			t.Fatalf("free slots %v", free)
		}
	}
	if both == 0 {
		t.Fatal("no caller gave a slot back")
	}
}

// TestTicketOfAnOldEpoch: a Wait that was overtaken by the rebuild does not take
// the answer to the request that is in the slot now.
func TestTicketOfAnOldEpoch(t *testing.T) {
	h := newHeld()
	r := newRig(t, rigOptions{workers: 1}, h)
	old, err := r.pool.Start(context.Background(), Request{Payload: []byte("old")})
	if err != nil {
		t.Fatal(err)
	}
	<-h.in
	r.lanes[0].FailFrom(LayerNode, ErrPeerDead, true)
	r.rebuild(1000, 2000)
	tk, err := r.pool.Start(context.Background(), Request{Payload: []byte("new")})
	if err != nil {
		t.Fatal(err)
	}
	<-h.in
	old.s.claim.Store(old.claim) // as if Wait had looked at it before the failure
	r.pool.Counters().PendingRPC.Add(1)
	h.goOn <- struct{}{}
	_, err = old.Wait(context.Background(), make([]byte, 8))
	wantLayer(t, err, LayerNode, ErrPeerDead)
	old.s.claim.Store(tk.claim)
	buf := make([]byte, 8)
	if got, err := tk.Wait(context.Background(), buf); err != nil || string(buf[:got.N]) != "new" {
		t.Fatalf("%q, %v", buf[:got.N], err)
	}
	if n := r.pool.Counters().PendingRPC.Load(); n != 0 {
		t.Fatalf("%d requests are said to be under way", n)
	}
}

// TestRebuildWaitsForTheFailure: whoever made the lane Dirty has done before new
// QPs come, which have nothing to do with it.
func TestRebuildWaitsForTheFailure(t *testing.T) {
	telling, told := make(chan struct{}), make(chan struct{})
	r := newRig(t, rigOptions{cfg: Config{Slots: 2}}, echo)
	l := r.lanes[0]
	l.cfg.Events = func(e Event) {
		if e.Name == EventLaneDirty {
			close(telling)
			<-told
		}
	}
	go l.FailFrom(LayerNode, ErrPeerDead, true)
	<-telling
	begun := make(chan bool, 1)
	go func() { ok, _ := l.BeginRebuild(); begun <- ok }()
	select {
	case <-begun:
		t.Fatal("the rebuild did not wait")
	case <-time.After(20 * time.Millisecond):
	}
	close(told)
	if !<-begun {
		t.Fatal("the rebuild was refused")
	}
	l.AbortRebuild(false)
	// What was found out in an epoch fails no later one.
	epoch := l.epoch.Load()
	r.rebuild(1000, 2000)
	l.failEpoch(l.errorf(LayerWait, "call", ErrTimeout), true, epoch)
	if l.State() != Active {
		t.Fatalf("the lane is %v: %v", l.State(), l.Err())
	}
}

// TestQuarantineIsWatched: with every slot aside nobody waits on the lane, and that
// the peer has gone is noticed all the same, long before the time-out.
func TestQuarantineIsWatched(t *testing.T) {
	for _, n := range []Notify{Adaptive, Imm, Scan} {
		h := newHeld()
		asked := make(chan Label, 100)
		r := newRig(t, rigOptions{workers: 1, cfg: Config{Notify: n, TouchAfter: 5 * time.Millisecond, TouchEvery: 5 * time.Millisecond,
			ProbeAfter: 5 * time.Millisecond, ProbeEvery: 5 * time.Millisecond, Waiting: func(l Label) { asked <- l }},
			path: pathOfTwoMS}, h)
		ctx, cancel := context.WithCancel(context.Background())
		tk, err := r.pool.Start(ctx, Request{})
		if err != nil {
			t.Fatal(err)
		}
		<-h.in
		cancel()
		if _, err := tk.Wait(ctx, nil); !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		<-asked
		<-asked
		queued := make(chan error, 1)
		go func() { _, err := r.pool.Call(context.Background(), Request{}, nil); queued <- err }()
		if err := r.served[0].Close(); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		wantLayer(t, <-queued, LayerDevice, ErrDown)
		if took := time.Since(start); took > 15*time.Second {
			t.Fatalf("after %v", took)
		}
	}
}
