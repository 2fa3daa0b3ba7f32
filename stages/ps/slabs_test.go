package ps

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/railstore/railstore/stages/rail"
	"github.com/railstore/railstore/stages/table"
	"github.com/railstore/railstore/verbs"
)

// counting counts what a shard registers for tables.
type counting struct {
	Registrar
	bytes atomic.Int64
}

func (c *counting) Register(region *verbs.Region, access verbs.Access, rails []*rail.Rail, p rail.Pieces) (*rail.Registration, error) {
	c.bytes.Add(int64(region.Len()))
	return c.Registrar.Register(region, access, rails, p)
}

// Without tables a shard registers nothing for rows, as the budget of a recipe without
// tables says; with tables no more than the recipe's memory.
func TestRowsAreRegisteredFromTheFirstTableOn(t *testing.T) {
	s := newSite(t, wheres(t)[0], oneShard)
	service := s.shard(0).service
	slabs := service.cfg.Slabs
	c := &counting{Registrar: slabs.rails}
	slabs.rails = c
	if n := len(*slabs.chunks.Load()); n != 0 || slabs.made != 0 || slabs.zeros != nil {
		t.Errorf("without tables: %d chunks, %d pieces, zeros %v", n, slabs.made, slabs.zeros != nil)
	}
	for _, h := range s.dep.Budget() {
		for _, p := range h.Processes {
			if p.StoreBytes != 0 {
				t.Errorf("%s: the budget has %d bytes of rows", p.Name, p.StoreBytes)
			}
		}
	}
	ss := s.session(func(c *SessionConfig) { c.Modes = Modes{Get: DirectSG, Put: Read, PutProtocol: 2} })
	tb := s.table(ss, table.Spec{Name: "t", Dim: 64})
	if n := c.bytes.Load(); n != 0 {
		t.Errorf("%d bytes for a table without rows", n)
	}
	ctx := within(t, 30*time.Second)
	keys := seq(0, 1000)
	if err := tb.Put(ctx, keys, rowsOf(keys, 64, 0)); err != nil {
		t.Fatal(err)
	}
	if err := tb.Get(ctx, seq(900, 1100), make([]float32, 200*64), nil); err != nil {
		t.Fatal(err)
	}
	if n := c.bytes.Load(); n == 0 || n > s.dep.Shards[0].Store.Memory {
		t.Errorf("%d bytes are registered, the recipe says %d", n, s.dep.Shards[0].Store.Memory)
	}
}
