package ps

import (
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/railstore/railstore/stages/table"
)

// Rows are gathered from where they lie while others replace them as fast as the table
// can: each row that comes is one version of it.
func TestGatheredRowsAreWhole(t *testing.T) {
	each(t, func(t *testing.T, w where) {
		s := newSite(t, w, nil)
		ss := s.session(func(c *SessionConfig) { c.Modes = Modes{Get: DirectSG} })
		const dim, n = 1024, 60
		all := s.table(ss, table.Spec{Name: "g", Dim: dim})
		ctx := within(t, 30*time.Second)
		tb, err := all.On(0)
		if err != nil {
			t.Fatal(err)
		}
		keys := seq(0, n)
		local := s.shard(0).service.Store().Table("g")
		fill := func(rows []float32, v float32) {
			for i := range rows {
				rows[i] = v
			}
		}
		first := make([]float32, n*dim)
		if err := local.Put(keys, first); err != nil {
			t.Fatal(err)
		}
		stop := make(chan struct{})
		var wg sync.WaitGroup
		wg.Go(func() {
			rows := make([]float32, n*dim)
			for v := float32(1); ; v++ {
				select {
				case <-stop:
					return
				default:
				}
				fill(rows, v)
				err := local.Put(keys, rows)
				// A gather that the machine lets wait keeps all that is replaced meanwhile.
				for full := new(table.LimitError); errors.As(err, &full) && ctx.Err() == nil; {
					time.Sleep(time.Millisecond)
					err = local.Put(keys, rows)
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
		rows := make([]float32, n*dim)
		for end := time.Now().Add(700 * time.Millisecond); time.Now().Before(end) && !t.Failed(); {
			if err := tb.Get(ctx, keys, rows, nil); err != nil {
				t.Error(err)
				break
			}
			for k := range keys {
				if row := rows[k*dim:][:dim]; slices.Min(row) != slices.Max(row) {
					t.Errorf("a row of two versions: %v to %v", slices.Min(row), slices.Max(row))
					break
				}
			}
		}
		close(stop)
		wg.Wait()
		if st := s.shard(0).service.Stats(); st.DirectSG == 0 {
			t.Error("nothing was gathered")
		}
	})
}
