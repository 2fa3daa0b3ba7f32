package rail

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/railstore/railstore/ctrl"
	"github.com/railstore/railstore/pipeline"
	"github.com/railstore/railstore/verbs"
	"github.com/railstore/railstore/verbs/verbstest"
)

// slowAnswers is a driver that plays the fault delay_answer, once.
type slowAnswers struct {
	verbs.Driver
	by chan time.Duration
}

func (d *slowAnswers) AnswerDelay() time.Duration {
	select {
	case by := <-d.by:
		return by
	default:
		return 0
	}
}

type renewal struct {
	ctx     context.Context
	h       *echo
	shard   *Set
	peer    *Peer
	control *ctrl.Client
	close   func()
}

// newRenewal is a client that is connected to one shard.
func newRenewal(t *testing.T, d verbs.Driver, lc ListenConfig) *renewal {
	t.Helper()
	r := &renewal{ctx: timeout(t), h: &echo{dropped: make(chan ctrl.NodeID, 8), listen: lc}}
	w, servers, client := newWorld(t, d), pipeline.NewScope(), pipeline.NewScope()
	r.shard = w.shard(t, r.ctx, servers, 0, r.h, testDemand)
	s, err := w.set(r.ctx, client, "c", testDemand)
	if err != nil {
		t.Fatal(err)
	}
	if r.control, err = w.join(r.ctx, client, ctrl.ClientID("x"), s); err != nil {
		t.Fatal(err)
	}
	if err := r.control.WaitReady(r.ctx, ctrl.ShardID(0)); err != nil {
		t.Fatal(err)
	}
	n, err := r.control.Node(r.ctx, ctrl.ShardID(0))
	if err != nil {
		t.Fatal(err)
	}
	if r.peer, err = Redial(r.ctx, s, r.control, n.Info); err != nil {
		t.Fatal(err)
	}
	client.DeferClose("disconnect", r.peer.Close)
	r.close = func() {
		if err := errors.Join(client.Close(r.ctx), servers.Close(r.ctx)); err != nil {
			t.Error(err)
		}
		if n := r.shard.QPsInUse(); n != 0 {
			t.Errorf("%d QPs in use at the end", n)
		}
		_ = w.server.Close()
	}
	return r
}

// block is the first byte of the shard's block of a link.
func (r *renewal) block(i int) byte {
	r.h.mu.Lock()
	defer r.h.mu.Unlock()
	return r.h.peers[0].Links[i].Bytes[0]
}

// TestRenew gives one link of three a new QP, time and again.
func TestRenew(t *testing.T) {
	defer goleak.VerifyNone(t)
	r := newRenewal(t, verbstest.NewLoop(verbstest.LoopOptions{}), ListenConfig{Renew: true})
	defer r.close()
	for round := range 5 {
		var before []Link
		for i, l := range r.peer.Links {
			before = append(before, *l)
			writeOver(t, l, byte(1+i))
		}
		l := r.peer.Links[1]
		if err := l.QP.Close(); err != nil {
			t.Fatal(err)
		}
		if errs := r.peer.Renew(r.ctx, r.control, []*Link{l}); errs[0] != nil {
			t.Fatal(errs[0])
		}
		for i, l := range r.peer.Links {
			b := before[i]
			if renewed := i == 1; renewed != (l.Local.QPN != b.Local.QPN) || renewed != (l.Remote.QPN != b.Remote.QPN) ||
				renewed != (l.Generation == b.Generation+1) || renewed != (l.PeerGeneration == b.PeerGeneration+1) {
				t.Fatalf("round %d link %d: generations %d>%d and %d>%d, QPs %d>%d and %d>%d", round, i, b.Generation, l.Generation,
					b.PeerGeneration, l.PeerGeneration, b.Local.QPN, l.Local.QPN, b.Remote.QPN, l.Remote.QPN)
			}
			if got, want := r.block(i), []byte{1, 0, 3}[i]; got != want {
				t.Fatalf("round %d link %d: the shard's block begins with %d, want %d", round, i, got, want)
			}
		}
		for i, l := range r.peer.Links {
			if writeOver(t, l, byte(11+i)); r.block(i) != byte(11+i) {
				t.Fatalf("round %d link %d does not work any more", round, i)
			}
		}
	}
	if n := r.shard.QPsInUse(); n != 3 || len(r.h.retired) != 5 {
		t.Fatalf("%d QPs in use, retired %v", n, r.h.retired)
	}
}

func TestRenewIsRefused(t *testing.T) {
	defer goleak.VerifyNone(t)
	r := newRenewal(t, verbstest.NewLoop(verbstest.LoopOptions{}), ListenConfig{})
	defer r.close()
	l := r.peer.Links[2]
	if err := l.QP.Close(); err != nil {
		t.Fatal(err)
	}
	errs := r.peer.Renew(r.ctx, r.control, []*Link{l})
	if errs[0] == nil || !strings.Contains(errs[0].Error(), "rebuild.enabled is false here") {
		t.Fatalf("err = %v", errs[0])
	}
	writeOver(t, r.peer.Links[0], 7) // the others go on
}

// TestRenewTimesOut: the answer comes too late; the next attempt is under a newer
// generation and is not confused by it.
func TestRenewTimesOut(t *testing.T) {
	defer goleak.VerifyNone(t)
	d := &slowAnswers{verbstest.NewLoop(verbstest.LoopOptions{}), make(chan time.Duration, 1)}
	r := newRenewal(t, d, ListenConfig{Renew: true})
	defer r.close()
	l := r.peer.Links[0]
	if err := l.QP.Close(); err != nil {
		t.Fatal(err)
	}
	d.by <- 200 * time.Millisecond
	ctx, cancel := context.WithTimeout(r.ctx, 20*time.Millisecond)
	errs := r.peer.Renew(ctx, r.control, []*Link{l})
	cancel()
	if !errors.Is(errs[0], context.DeadlineExceeded) {
		t.Fatalf("err = %v", errs[0])
	}
	if errs = r.peer.Renew(r.ctx, r.control, []*Link{l}); errs[0] != nil {
		t.Fatal(errs[0])
	}
	if writeOver(t, l, 9); r.block(0) != 9 {
		t.Fatalf("the shard's block begins with %d", r.block(0))
	}
}

// TestListenerAsks: an offer that the stream did not bring is asked for, as long as
// links are broken.
func TestListenerAsks(t *testing.T) {
	defer goleak.VerifyNone(t)
	asked := make(chan struct{}, 100)
	broken := 3
	r := newRenewal(t, verbstest.NewLoop(verbstest.LoopOptions{}), ListenConfig{Renew: true, Poll: time.Millisecond, PollMax: 4 * time.Millisecond,
		PollTimeout: time.Second, Broken: func(*Peer) bool { asked <- struct{}{}; broken--; return broken >= 0 }})
	defer r.close()
	r.h.l.Look(ctrl.ClientID("nobody"))
	r.h.l.Look(ctrl.ClientID("x"))
	for range 4 {
		<-asked
	}
	select {
	case <-asked:
		t.Fatal("the listener asks for a client that is well")
	case <-time.After(50 * time.Millisecond):
	}
}
