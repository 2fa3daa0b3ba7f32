package cmd

import (
	"context"
	"errors"
	"io"
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/railstore/railstore/stages/ps"
)

// counted rows: key i has the row i. A fault comes at a row, if wanted.
type rowsOf struct {
	n, at, fault int
}

var errFault = errors.New("a fault of the file")

func (r *rowsOf) Next(keys []uint64, rows []float32) (int, error) {
	n := 0
	for ; n < len(keys) && r.at < r.n; n++ {
		if r.fault > 0 && r.at == r.fault {
			return n, errFault
		}
		keys[n], rows[n] = uint64(r.at), float32(r.at)
		r.at++
	}
	if n == 0 {
		return 0, io.EOF
	}
	return n, nil
}

// fickle is a table of two shards, even and odd keys, that fails as it was told.
type fickle struct {
	mu      sync.Mutex
	applied map[uint64]int
	calls   int
	failAt  int   // the call
	heals   int   // after so many attempts more; negative: never
	unknown bool  // of what failed
	err     error // cause
}

func (f *fickle) call(keys []uint64, todo func(i int) bool) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	fails := f.failAt > 0 && f.calls >= f.failAt && f.heals != 0
	f.calls++
	if fails && f.heals > 0 {
		f.heals--
	}
	se := &ps.ShardError{Shard: 1, Lane: -1, Err: f.err}
	if f.unknown {
		se.Applied = ps.AppliedUnknown
	}
	for i, k := range keys {
		if !todo(i) {
			continue
		}
		if fails && k%2 == 1 {
			se.Keys = append(se.Keys, ps.Range{From: i, To: i + 1})
			continue
		}
		f.applied[k]++
	}
	if len(se.Keys) == 0 {
		return nil
	}
	return &ps.BatchError{Op: "put", Table: "t", Keys: len(keys), Shards: []*ps.ShardError{se}}
}

func (f *fickle) put(_ context.Context, keys []uint64, _ []float32) error {
	return f.call(keys, func(int) bool { return true })
}

func (f *fickle) again(_ context.Context, e *ps.BatchError, keys []uint64, _ []float32) error {
	return f.call(keys, func(i int) bool {
		for _, s := range e.Shards {
			for _, r := range s.Keys {
				if i >= r.From && i < r.To {
					return true
				}
			}
		}
		return false
	})
}

// TestTransferBooks: whatever fails, the report and the table agree on every row.
func TestTransferBooks(t *testing.T) {
	lost := errors.New("no answer")
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(0, 200).Draw(t, "rows")
		f := &fickle{applied: map[uint64]int{}, failAt: rapid.IntRange(0, 8).Draw(t, "fails at"), heals: rapid.IntRange(-1, 3).Draw(t, "heals"),
			unknown: rapid.Bool().Draw(t, "unknown"), err: rapid.SampledFrom([]error{lost, ps.ErrMemory}).Draw(t, "cause")}
		src := &rowsOf{n: n}
		if n > 1 && rapid.Bool().Draw(t, "faulty") {
			src.fault = rapid.IntRange(1, n-1).Draw(t, "fault")
		}
		x := transfer{from: src, do: f.put, resume: f.again, dim: 1, batch: rapid.IntRange(1, 20).Draw(t, "batch"), depth: rapid.IntRange(1, 3).Draw(t, "depth"),
			skip: int64(rapid.IntRange(0, 50).Draw(t, "skip")), limit: int64(rapid.IntRange(0, 100).Draw(t, "limit")), retries: 2,
			again: func(context.Context, int) error { return nil }}
		err := x.run(context.Background())
		r := &x.rep
		if r.Read != r.Applied+r.NotApplied+r.Unknown {
			t.Fatalf("%+v", r)
		}
		if err == nil && r.Read != r.Applied {
			t.Fatalf("no error, and %+v", r)
		}
		if f.err == ps.ErrMemory && r.Retried > 0 {
			t.Fatalf("a refusal was tried again %d times", r.Retried)
		}
		bad := map[uint64]bool{}
		for _, p := range r.Failed {
			c := int64(0)
			for _, s := range p.Rows {
				for i := s[0]; i < s[1]; i++ {
					bad[uint64(i)] = true
					c++
				}
			}
			if want := map[bool]string{false: "no", true: "unknown"}[f.unknown]; c != p.Count || p.Applied != want || p.Shard != 1 {
				t.Fatalf("%+v", p)
			}
		}
		if int64(len(f.applied)) != r.Applied || int64(len(bad)) != r.NotApplied+r.Unknown {
			t.Fatalf("the table has %d rows, the report says %+v", len(f.applied), r)
		}
		for k, c := range f.applied {
			if c != 1 || bad[k] || int64(k) < x.skip || x.limit > 0 && int64(k) >= x.skip+x.limit {
				t.Fatalf("row %d was applied %d times; failed %v", k, c, bad[k])
			}
		}
		if err == nil {
			want := max(int64(n)-x.skip, 0)
			if x.limit > 0 {
				want = min(want, x.limit)
			}
			if r.Applied != want {
				t.Fatalf("%d rows, want %d", r.Applied, want)
			}
		} else if f.failAt == 0 && !errors.Is(err, errFault) {
			t.Fatal(err)
		}
	})
}

// TestTransferEnds with its context, and books what it had.
func TestTransferEnds(t *testing.T) {
	ctx, cancel := context.WithCancelCause(context.Background())
	f := &fickle{applied: map[uint64]int{}}
	x := transfer{from: &rowsOf{n: 1 << 30}, dim: 1, batch: 10, depth: 2, resume: f.again,
		do: func(ctx context.Context, keys []uint64, rows []float32) error {
			if keys[0] == 500 {
				cancel(errInterrupted)
			}
			return f.put(ctx, keys, rows)
		}}
	if err := x.run(ctx); !errors.Is(err, errInterrupted) || x.rep.Applied != int64(len(f.applied)) || x.rep.Applied < 500 {
		t.Errorf("%v, %+v, %d rows", err, x.rep, len(f.applied))
	}
}

// TestTransferLetsOthersFinish: a batch that fails does not take those with it that are
// under way.
func TestTransferLetsOthersFinish(t *testing.T) {
	failed, begun := make(chan struct{}), make(chan struct{})
	refused := &ps.BatchError{Op: "put", Table: "t", Keys: 5, Shards: []*ps.ShardError{{Shard: 1, Keys: []ps.Range{{From: 0, To: 5}}, Err: ps.ErrMemory}}}
	x := transfer{from: &rowsOf{n: 1 << 30}, dim: 1, batch: 5, depth: 2,
		do: func(ctx context.Context, keys []uint64, _ []float32) error {
			if keys[0] == 0 {
				<-begun
				close(failed)
				return refused
			}
			if keys[0] == 5 {
				close(begun)
				<-failed
				select {
				case <-ctx.Done():
				case <-time.After(50 * time.Millisecond):
				}
			}
			return ctx.Err()
		}}
	if err := x.run(context.Background()); !errors.Is(err, ps.ErrMemory) || x.rep.NotApplied != 5 || x.rep.Unknown != 0 || x.rep.Applied < 5 {
		t.Errorf("%v, %+v", err, x.rep)
	}
}

func TestParseRow(t *testing.T) {
	for _, tc := range []struct {
		in   string
		dim  int
		key  string
		row  string
		want string // in the error
	}{
		{"7=1,2", 2, "7", "1 2", ""},
		{"0xff=1e-3, 2", 2, "255", "0.001 2", ""},
		{"18446744073709551615=0", 1, "18446744073709551615", "0", ""},
		{"word:a=b=3", 1, "word:a=b", "3", ""},
		{"7", 1, "", "", "want KEY=NUMBER"},
		{"word:=1", 1, "", "", `key "word:"`},
		{"-1=1", 1, "", "", `key "-1"`},
		{"18446744073709551616=1", 1, "", "", "from 0 to 2^64-1"},
		{"7=1", 2, "", "", "1 numbers, the rows of the table have 2"},
		{"7=", 1, "", "", `"" is not a number`},
		{"7=inf", 1, "", "", "is not finite"},
		{"7=1e40", 1, "", "", "does not fit"},
	} {
		k, row, err := parseRow(tc.in, tc.dim)
		if tc.want != "" {
			if err == nil || exitCode(err) != exitUsage || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%s: %v", tc.in, err)
			}
			continue
		}
		if err != nil || k.String() != tc.key || floats(row).String() != tc.row {
			t.Errorf("%s: %v, %v, %v", tc.in, k, row, err)
		}
	}
}

func TestFloatsJSON(t *testing.T) {
	b, err := floats{0.1, -0, 1e-20, float32(math.NaN()), float32(math.Inf(-1)), 16777216}.MarshalJSON()
	if err != nil || string(b) != `[0.1,0,1e-20,"NaN","-Inf",16777216]` && string(b) != `[0.1,0,1e-20,"NaN","-Inf",1.6777216e+07]` {
		t.Errorf("%s, %v", b, err)
	}
}
