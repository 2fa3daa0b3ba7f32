package ps

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/railstore/railstore/cue/deploy"
	"github.com/railstore/railstore/stages/table"
	"github.com/railstore/railstore/verbs/lane"
)

// While a shard is away, calls tell of its keys alone, and only it is asked again; when
// it is back, what is missing is sent.
func TestOnlyTheFailedShardIsAskedAgain(t *testing.T) {
	each(t, func(t *testing.T, w where) {
		s := newSite(t, w, func(d *deploy.Deployment) {
			d.Retry = deploy.Retry{GetAttempts: 3, Backoff: deploy.Duration(5 * time.Millisecond)}
			d.Tables = []deploy.Table{{Name: "x", Dim: 4, Optimizer: deploy.Optimizer{Type: "sgd", LearningRate: 1}}}
		})
		ss := s.session(nil)
		ctx := within(t, 60*time.Second)
		tb, err := ss.Table(ctx, "x")
		if err != nil {
			t.Fatal(err)
		}
		keys := seq(0, 40)
		rows := rowsOf(keys, 4, 2)
		if err := tb.Put(ctx, keys, rows); err != nil {
			t.Fatal(err)
		}
		folder := s.shard(1).folder
		s.stop(1)
		before := s.shard(0).service.Stats()
		got := make([]float32, len(rows))
		start := time.Now()
		err = tb.Get(ctx, keys, got, nil)
		es := shardErrors(err)
		if len(es) != 1 || es[0].Shard != 1 || es[0].Count() == 0 || !strings.Contains(err.Error(), "shard 1") {
			t.Fatalf("%v", err)
		}
		if d := time.Since(start); d < 10*time.Millisecond {
			t.Errorf("three tries with pauses took %v", d)
		}
		if n := s.shard(0).service.Stats().Gets - before.Gets; n != 1 {
			t.Errorf("shard 0 was asked %d times", n)
		}
		away := map[int]bool{}
		for _, r := range es[0].Keys {
			for p := r.From; p < r.To; p++ {
				away[p] = true
			}
		}
		for i, k := range keys {
			if away[i] != (ShardOf(k, 2) == 1) {
				t.Errorf("key %d is said to have failed: %v", k, away[i])
			}
			if !away[i] && !same(got[4*i:][:4], rows[4*i:][:4]) {
				t.Errorf("key %d: %v", k, got[4*i:][:4])
			}
		}
		grads := make([]float32, len(rows))
		for i := range grads {
			grads[i] = 1
		}
		errs := []error{tb.Put(ctx, keys, rows), tb.Update(ctx, keys, grads)}
		for _, err := range errs {
			for _, e := range shardErrors(err) {
				if e.Shard != 1 || e.Applied != NotApplied || e.Count() != len(away) {
					t.Errorf("%+v in %v", e, err)
				}
			}
			if len(shardErrors(err)) != 1 {
				t.Fatalf("%v", err)
			}
		}
		s.serve(1, folder)
		for i, err := range errs {
			for err != nil {
				var be *BatchError
				if !errors.As(err, &be) || ctx.Err() != nil {
					t.Fatal(err)
				}
				if i == 0 {
					err = tb.Resume(ctx, be, keys, rows)
				} else {
					err = tb.Resume(ctx, be, keys, grads)
				}
			}
		}
		if err := tb.Get(ctx, keys, got, nil); err != nil {
			t.Fatal(err)
		}
		for i := range got {
			if got[i] != rows[i]-1 {
				t.Fatalf("key %d: %v, want %v less 1", keys[i/4], got[i], rows[i])
			}
		}
		var be *BatchError
		errors.As(errs[0], &be)
		for _, bad := range []error{tb.Resume(ctx, be, keys[:3], rows[:12]), tb.Resume(ctx, &BatchError{Op: "get", Table: "x", Keys: 40, only: -1}, keys, rows)} {
			if !errors.Is(bad, ErrBadRequest) {
				t.Errorf("Resume of something else: %v", bad)
			}
		}
		if _, err := ss.Table(ctx, "nothing"); !errors.Is(err, ErrNoTable) {
			t.Error(err)
		}
		if err := ss.Init(ctx, table.Spec{Name: "y", Dim: 0}); !errors.Is(err, ErrBadRequest) {
			t.Error(err)
		}
	})
}

// A change that went out and had no answer is not known to be applied, whatever becomes of
// further tries, until one of them tells.
func TestNotKnownStaysSo(t *testing.T) {
	s := newSite(t, wheres(t)[0], func(d *deploy.Deployment) {
		d.Tables = []deploy.Table{{Name: "x", Dim: 4, Optimizer: deploy.Optimizer{Type: "sgd", LearningRate: 1}}}
	})
	ss := s.session(nil)
	ctx := within(t, 60*time.Second)
	tb, err := ss.Table(ctx, "x")
	if err != nil {
		t.Fatal(err)
	}
	keys := seq(0, 40)
	grads := make([]float32, 4*len(keys))
	for i := range grads {
		grads[i] = -1
	}
	over, cancel := context.WithCancel(ctx)
	cancel()
	want := func(err error, a Applied, what string) *BatchError {
		t.Helper()
		es := shardErrors(err)
		for _, e := range es {
			if e.Applied != a {
				t.Errorf("%s: %s, want %s", what, e.Applied, a)
			}
		}
		if len(es) == 0 {
			t.Fatalf("%s: %v", what, err)
		}
		var be *BatchError
		errors.As(err, &be)
		return be
	}
	// begun is a batch whose requests went out, and what a shard may have said then.
	begun := func(op uint16, settled, doubt bool, cause error) (*batch, error) {
		b := ss.borrow()
		if err := b.begin(tb, op, keys, grads, nil); err != nil {
			t.Fatal(err)
		}
		slot := make([]byte, 4096)
		for _, k := range b.chunks[:b.n] {
			k.write(slot)
			k.state, k.settled, k.doubt, k.err = chunkFailed, settled, doubt, cause
		}
		return b, b.failure()
	}
	for _, op := range []uint16{OpPut, OpUpdate} {
		for _, c := range []struct {
			settled, doubt bool
			err            error
			want           Applied
		}{
			{false, false, lane.ErrTimeout, AppliedUnknown},
			{true, false, ErrBusy, NotApplied},
			{true, true, ErrBusy, AppliedUnknown},
			{true, true, ErrNoTable, AppliedUnknown},
			{true, true, ErrMemory, map[uint16]Applied{OpPut: AppliedUnknown, OpUpdate: NotApplied}[op]},
			{true, false, ErrToken, AppliedUnknown},
		} {
			b, err := begun(op, c.settled, c.doubt, c.err)
			want(err, c.want, fmt.Sprintf("%s: answered %v, before in doubt %v, %v", opName(op), c.settled, c.doubt, c.err))
			ss.lend(b)
		}
		b, err := begun(op, false, false, lane.ErrTimeout)
		be := want(err, AppliedUnknown, "no answer")
		ss.lend(b)
		for range 2 { // sent is none of these
			be = want(tb.Resume(over, be, keys, grads), AppliedUnknown, "not sent again")
		}
		if err := tb.Resume(ctx, be, keys, grads); err != nil {
			t.Fatal(err)
		}
		b, err = begun(op, true, false, ErrBusy)
		be = want(err, NotApplied, "refused")
		ss.lend(b)
		want(tb.Resume(over, be, keys, grads), NotApplied, "refused, and not sent again")
	}
	got := make([]float32, len(grads))
	if err := tb.Get(ctx, keys, got, nil); err != nil {
		t.Fatal(err)
	}
	for i, v := range got {
		if v != 0 { // a PUT of -1 and an UPDATE of +1
			t.Fatalf("key %d: %v", keys[i/4], v)
		}
	}
}
