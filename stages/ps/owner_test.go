package ps

import (
	"errors"
	"runtime"
	"testing"
	"time"

	"github.com/railstore/railstore/stages/table"
)

// A client that ends without a word costs the shard no memory for its tokens, and what it
// sent is not applied again by one who comes with its number.
func TestTokensGoWithTheirClient(t *testing.T) {
	w := wheres(t)[0]
	s := newSite(t, w, oneShard)
	spec := table.Spec{Name: "t", Dim: 1, Optimizer: table.Optimizer{LearningRate: 1}}
	ctx := within(t, 60*time.Second)
	store := s.shard(0).service.Store()
	clients := func(want int) {
		t.Helper()
		for store.Stats().Clients != want {
			if ctx.Err() != nil {
				t.Fatalf("%d clients are remembered, want %d", store.Stats().Clients, want)
			}
			runtime.Gosched()
		}
	}
	dead := s.session(nil)
	tb := s.table(dead, spec)
	if err := tb.Update(ctx, []uint64{1}, []float32{-1}); err != nil {
		t.Fatal(err)
	}
	clients(1)
	dead.Client.closed.Store(true) // it tells nobody
	if err := dead.Close(ctx); err != nil {
		t.Fatal(err)
	}
	clients(0)
	// It comes back from the dead.
	ss := s.session(nil)
	ss.Client.id = dead.Client.id
	tb = s.table(ss, spec)
	if err := tb.Update(ctx, []uint64{1}, []float32{-1}); !errors.Is(err, ErrToken) {
		t.Errorf("a number that was used before: %v", err)
	}
	if err := tb.Update(ctx, []uint64{1}, []float32{-1}); err != nil {
		t.Errorf("the next number: %v", err)
	}
	clients(1)
	row := make([]float32, 1)
	if err := tb.Get(ctx, []uint64{1}, row, nil); err != nil || row[0] != 2 {
		t.Errorf("%v, %v; want 2", row, err)
	}
	// One that says that it ends leaves nothing.
	if err := ss.Client.Close(ctx); err != nil {
		t.Fatal(err)
	}
	clients(0)
	if n := len(s.shard(0).service.owners.nodes); n != 0 {
		t.Errorf("%d owners are left", n)
	}
}
