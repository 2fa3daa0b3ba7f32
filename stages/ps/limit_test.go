package ps

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/railstore/railstore/cue/deploy"
	"github.com/railstore/railstore/stages/table"
	"github.com/railstore/railstore/verbs/lane"
)

// When a shard has no memory left, a PUT tells exactly which positions are in the table,
// and the shard lives on.
func TestMemoryLimitIsReportedExactly(t *testing.T) {
	each(t, func(t *testing.T, w where) {
		s := newSite(t, w, func(d *deploy.Deployment) {
			for i := range d.Shards {
				d.Shards[i].Store.Memory = 8 << 20
			}
		})
		for m, mode := range modes {
			ss := s.session(func(c *SessionConfig) { c.Modes = mode })
			const dim = 200
			name := string(rune('a' + m))
			tb := s.table(ss, table.Spec{Name: name, Dim: dim})
			ctx := within(t, 60*time.Second)
			full := false
			for at := 0; !full && at < 100000; at += 500 {
				keys := make([]uint64, 500)
				for i := range keys {
					keys[i] = uint64(at + i)
				}
				err := tb.Put(ctx, keys, rowsOf(keys, dim, 0))
				if err == nil {
					continue
				}
				full = true
				if !errors.Is(err, ErrMemory) || !errors.Is(err, lane.StatusNotFound) {
					t.Fatalf("%v", err)
				}
				want := make([]bool, len(keys))
				for i := range want {
					want[i] = true
				}
				for _, e := range shardErrors(err) {
					if e.Applied != NotApplied || e.Lane < 0 || e.Rail == "" {
						t.Errorf("%+v", e)
					}
					for _, r := range e.Keys {
						for p := r.From; p < r.To; p++ {
							want[p] = false
						}
					}
				}
				got := make([]bool, len(keys))
				if err := tb.Exists(ctx, keys, got); err != nil {
					t.Fatal(err)
				}
				if !slices.Equal(got, want) {
					t.Errorf("what the error says is not what is there: %v", err)
				}
				// With room again the rest goes in.
				if _, err := tb.Delete(ctx, seq(0, 2000)); err != nil {
					t.Fatal(err)
				}
				var be *BatchError
				errors.As(err, &be)
				rows := rowsOf(keys, dim, 0)
				if err := tb.Resume(ctx, be, keys, rows); err != nil {
					t.Fatal(err)
				}
				back := make([]float32, len(rows))
				if err := tb.Get(ctx, keys, back, got); err != nil || slices.Contains(got, false) || !same(back, rows) {
					t.Errorf("after Resume: %v", err)
				}
			}
			if !full {
				t.Fatal("8 MiB were never full")
			}
			if _, err := ss.Drop(ctx, name); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// A store that is full of rows that a gather keeps is not full: who changes rows waits for
// the gather, as long as its caller waits.
func TestFullStoreWaitsForGathers(t *testing.T) {
	each(t, func(t *testing.T, w where) {
		s := newSite(t, w, func(d *deploy.Deployment) {
			oneShard(d)
			d.Shards[0].Store.Memory = 8 << 20
		})
		ss := s.session(nil)
		const dim = 200
		tb := s.table(ss, table.Spec{Name: "t", Dim: dim})
		ctx := within(t, 60*time.Second)
		service := s.shard(0).service
		local := service.Store().Table("t")
		keys := seq(0, 200)
		rows := rowsOf(keys, dim, 0)
		fill := func() *table.Pin {
			pin := service.Store().Pin("direct_sg")
			full := new(table.LimitError)
			for err := error(nil); !errors.As(err, &full); {
				if err = local.Put(keys, rows); err != nil && !errors.As(err, &full) {
					t.Fatal(err)
				}
			}
			return pin
		}
		for name, change := range map[string]func(context.Context) error{
			"put":    func(ctx context.Context) error { return tb.Put(ctx, keys, rows) },
			"update": func(ctx context.Context) error { return tb.Update(ctx, keys, rows) },
		} {
			pin := fill()
			before := service.Stats()
			done := make(chan error, 1)
			go func() { done <- change(ctx) }()
			for st := before; st.Puts+st.Updates == before.Puts+before.Updates; st = service.Stats() {
				runtime.Gosched()
			}
			for range 100 {
				runtime.Gosched() // a chance to fail
			}
			pin.Unpin()
			if err := <-done; err != nil {
				t.Errorf("%s: %v", name, err)
			}
			pin = fill()
			short, cancel := context.WithTimeout(ctx, 30*time.Millisecond)
			if err := change(short); !errors.Is(err, ErrMemory) && !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s while rows are kept: %v", name, err)
			}
			cancel()
			pin.Unpin()
		}
	})
}

func seq(from, to int) (out []uint64) {
	for i := from; i < to; i++ {
		out = append(out, uint64(i))
	}
	return out
}

// Callers that give up at any moment cost nobody a slot or a piece for ever, and what
// they did not get told is told as not known.
func TestImpatientCallers(t *testing.T) {
	each(t, func(t *testing.T, w where) {
		s := newSite(t, w, nil)
		for m, mode := range modes {
			ss := s.session(func(c *SessionConfig) { c.Modes = mode })
			const dim = 64
			tb := s.table(ss, table.Spec{Name: string(rune('a' + m)), Dim: dim})
			ctx := within(t, 60*time.Second)
			keys := seq(0, 300)
			rows := rowsOf(keys, dim, 1)
			if err := tb.Put(ctx, keys, rows); err != nil {
				t.Fatal(err)
			}
			gaveUp := 0
			for i := range 60 {
				short, cancel := context.WithTimeout(ctx, time.Duration(i*10)*time.Microsecond)
				back := make([]float32, len(rows))
				err := tb.Get(short, keys, back, nil)
				if err == nil && !same(back, rows) {
					t.Fatal("wrong rows")
				}
				if err != nil {
					gaveUp++
					if !errors.Is(err, context.DeadlineExceeded) {
						t.Fatal(err)
					}
				}
				if err := tb.Put(short, keys, rows); err != nil {
					gaveUp++
					for _, e := range shardErrors(err) {
						if len(e.Keys) == 0 {
							t.Fatal(err)
						}
					}
				}
				cancel()
			}
			if gaveUp == 0 {
				t.Error("nobody gave up")
			}
			// All slots and pieces are there again.
			var hs []Handle
			for range s.dep.Lanes.QPs * s.dep.Lanes.Slots {
				h, err := tb.StartGet(ctx, keys[:1], make([]float32, dim), nil)
				if err != nil {
					t.Fatal(err)
				}
				hs = append(hs, h)
			}
			for _, h := range hs {
				if err := h.Wait(ctx); err != nil {
					t.Fatal(err)
				}
			}
		}
	})
}

// Tables that are dropped and made again while others use them: callers get rows, no such
// table, or another shape, and never anything else.
func TestTablesComeAndGo(t *testing.T) {
	each(t, func(t *testing.T, w where) {
		s := newSite(t, w, nil)
		ss := s.session(nil)
		ctx := within(t, 30*time.Second)
		spec := table.Spec{Name: "x", Dim: 3}
		tb := s.table(ss, spec)
		stop := make(chan struct{})
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() {
				keys, rows := seq(0, 50), make([]float32, 150)
				for {
					select {
					case <-stop:
						return
					default:
					}
					for _, err := range []error{tb.Put(ctx, keys, rows), tb.Get(ctx, keys, rows, nil), tb.Exists(ctx, keys, nil)} {
						if err != nil && !errors.Is(err, ErrNoTable) && !errors.Is(err, ErrShape) {
							t.Error(err)
							return
						}
					}
				}
			})
		}
		for i := range 40 {
			if _, err := ss.Drop(ctx, "x"); err != nil {
				t.Error(err)
			}
			spec.Dim = 3 + i%2
			if err := ss.Init(ctx, spec); err != nil {
				t.Error(err)
			}
		}
		close(stop)
		wg.Wait()
	})
}
