package object

import (
	"context"
	"sync"
	"testing"

	"go.uber.org/goleak"
)

// source is where shards send stripes from: 0 files, 1 memory, the later half of them.
type source int

// bothSources runs a test with each.
func bothSources(t *testing.T, test func(*testing.T, source)) {
	t.Run("file", func(t *testing.T) { test(t, 0) })
	t.Run("memory", func(t *testing.T) { test(t, 1) })
}

// prepare makes shards keep the later half of the object's stripes, for 1.
func (s source) prepare(m *matrix) {
	m.t.Helper()
	if s == 0 {
		return
	}
	half := Range{Offset: uint64(len(m.data) / 2)}
	for range 2 {
		buf, _, err := m.session.Read(context.Background(), testKey, ReadOptions{Range: &half})
		if err != nil {
			m.t.Fatal(err)
		}
		buf.Release()
	}
	n := 0
	for _, s := range m.shards {
		n += s.service.Stats().MemoryStripes
	}
	if n != 8 {
		m.t.Errorf("%d stripes are kept, want 8", n)
	}
}

// TestMatrixKeptSource: memory from which a kept stripe is being sent is nobody else's
// until it has been, however much it is wanted.
func TestMatrixKeptSource(t *testing.T) {
	defer goleak.VerifyNone(t)
	m := newMatrix(t, func(l *Limits) { l.TaskDepth = 4 }) // all stripes at once
	defer m.end()
	for range 2 {
		readBytes(t, m.session.Worker, testKey, m.data)
	}
	asked := func(s *siteShard) uint64 {
		s.service.tier.mu.Lock()
		defer s.service.tier.mu.Unlock()
		return s.service.tier.clock
	}
	m.trouble.slow("shard b", int(40e6/matrixPace()))
	var wg sync.WaitGroup
	for _, s := range m.shards {
		before := asked(s)
		wg.Go(func() {
			waitFor(t, func() bool { return asked(s) == before+8 })
			all, err := s.slab.Acquire(context.Background(), int(s.slab.Stats().Capacity))
			if err != nil {
				t.Error(err)
				return
			}
			fill(all.Bytes(), 0xee)
			all.Release()
		})
	}
	rep := readBytes(t, m.session.Worker, testKey, m.data)
	wg.Wait()
	if rep.Rereads != 0 || rep.Degraded || !rep.Exact {
		t.Errorf("%+v", rep)
	}
	for i, s := range m.shards {
		if st := s.service.Stats(); st.MemoryHits != 8 || st.MemoryStripes != 0 {
			t.Errorf("shard %d: %+v", i, st)
		}
	}
}
