package ps

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/railstore/railstore/cue/deploy"
	"github.com/railstore/railstore/verbs"
	"github.com/railstore/railstore/verbs/lane"
	"github.com/railstore/railstore/verbs/soft"
)

// saboteur fails lanes of a session at random until stop is called, and then gives how
// many.
func saboteur(ss *Session, r *rand.Rand, every time.Duration) (stop func() int) {
	done := make(chan struct{})
	n := 0
	var wg sync.WaitGroup
	wg.Go(func() {
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			select {
			case <-done:
				return
			case <-tick.C:
			}
			for _, name := range ss.Client.rails {
				if ls := ss.Lanes().Lanes(name); len(ls) > 0 && r.IntN(2) == 0 {
					ls[r.IntN(len(ls))].FailFrom(lane.LayerDevice, errors.New("the test fails this lane"), true)
					n++
				}
			}
		}
	})
	return func() int { close(done); wg.Wait(); return n }
}

// A client against a model, while lanes fail, packets are lost and shards restart. Every
// row that a GET does not report as failed is right. What a PUT or UPDATE reports as
// applied is applied, what it reports as not applied is not, and an UPDATE that is
// resumed until it succeeds is applied once, whatever happened to its answers.
func TestModelUnderFaults(t *testing.T) {
	each(t, func(t *testing.T, w where) {
		rng := seed(t)
		every := 4 * time.Millisecond
		if w.name != "loop" {
			every = 50 * time.Millisecond
		}
		if w.name == "soft" {
			seedOf := rng.Uint64()
			w.open = func() verbs.Driver {
				return soft.New(soft.Options{Faults: []soft.Fault{{Do: "drop", Rate: 0.003, Seed: seedOf}}})
			}
		}
		s := newSite(t, w, func(d *deploy.Deployment) {
			d.Rebuild.MaxAttempts = 1 << 20 // of a lane's life
			d.Retry = deploy.Retry{GetAttempts: 3, Backoff: deploy.Duration(5 * time.Millisecond)}
			d.Tables = []deploy.Table{{Name: "put", Dim: 2}, {Name: "upd", Dim: 2, Optimizer: deploy.Optimizer{Type: "sgd", LearningRate: 0.5}}}
			for i := range d.Hosts {
				for r := range d.Hosts[i].Rails {
					d.Hosts[i].Rails[r].Timeout = 11
				}
			}
		})
		mode := modes[rng.IntN(len(modes))]
		t.Logf("%+v", mode)
		ss := s.session(func(c *SessionConfig) { c.Modes = mode })
		ctx := within(t, 40*time.Second)
		puts, err := ss.Table(ctx, "put")
		if err != nil {
			t.Fatal(err)
		}
		upds, err := ss.Table(ctx, "upd")
		if err != nil {
			t.Fatal(err)
		}
		stop := saboteur(ss, rand.New(rand.NewPCG(rng.Uint64(), 1)), every)
		m := &model{t: t, ctx: ctx, rng: rng, puts: puts, upds: upds, put: map[uint64]float32{}, ghosts: map[uint64][]float32{}, upd: map[uint64]float32{}}
		restarts := 0
		for begin := time.Now(); time.Since(begin) < 4*time.Second && !t.Failed(); {
			for range 30 {
				m.step()
			}
			if rng.IntN(6) == 0 {
				id := rng.IntN(2)
				folder := s.shard(id).folder
				s.stop(id)
				s.serve(id, folder)
				m.forget(id)
				restarts++
			}
		}
		failed := stop()
		// In peace everything is as the model says.
		m.settle()
		t.Logf("%d GETs (%d in part), %d PUTs (%d in part), %d UPDATEs (%d resumed), %d lanes failed, %d restarts", m.gets, m.getErrs, m.nputs, m.putErrs, m.nupds, m.resumed, failed, restarts)
		if failed == 0 || m.gets == 0 || m.nputs == 0 || m.nupds == 0 {
			t.Error("the test tested nothing")
		}
	})
}

type model struct {
	t          *testing.T
	ctx        context.Context
	rng        *rand.Rand
	puts, upds *Table

	// Of the table that gets PUTs: what a key certainly had last, and what a PUT without an
	// answer may still make of it.
	put    map[uint64]float32
	ghosts map[uint64][]float32
	// Of the table that gets UPDATEs: exact.
	upd map[uint64]float32

	next                                          float32
	gets, getErrs, nputs, putErrs, nupds, resumed int
}

const modelKeys = 300

func (m *model) keys() []uint64 {
	keys := make([]uint64, 1+m.rng.IntN(200))
	for i := range keys {
		keys[i] = uint64(m.rng.IntN(modelKeys))
	}
	return keys
}

// failed are the positions of an error, with what is known of each.
func (m *model) failed(err error, n int) map[int]Applied {
	out := map[int]Applied{}
	if err == nil {
		return out
	}
	var be *BatchError
	if !errors.As(err, &be) {
		m.t.Fatalf("an error without places: %v", err)
	}
	for _, s := range be.Shards {
		for _, r := range s.Keys {
			for p := r.From; p < r.To; p++ {
				if _, twice := out[p]; twice || p < 0 || p >= n {
					m.t.Fatalf("position %d of %d twice, or outside: %v", p, n, err)
				}
				out[p] = s.Applied
			}
		}
	}
	if len(out) == 0 {
		m.t.Fatalf("an error about no position: %v", err)
	}
	return out
}

func (m *model) step() {
	switch m.rng.IntN(4) {
	case 0:
		m.doPut()
	case 1:
		m.doUpdate()
	default:
		m.doGet()
	}
}

func (m *model) doPut() {
	keys := m.keys()
	rows := make([]float32, 2*len(keys))
	for i := range keys {
		m.next++
		rows[2*i], rows[2*i+1] = m.next, -m.next
	}
	err := m.puts.Put(m.ctx, keys, rows)
	m.nputs++
	failed := m.failed(err, len(keys))
	if err != nil {
		m.putErrs++
	}
	for i, k := range keys {
		a, bad := failed[i]
		switch {
		case !bad:
			m.put[k] = rows[2*i]
		case a == AppliedUnknown:
			m.ghosts[k] = append(m.ghosts[k], rows[2*i])
		}
	}
}

func (m *model) doUpdate() {
	keys := m.keys()
	grads := make([]float32, 2*len(keys))
	for i := range keys {
		g := float32(1 + m.rng.IntN(8))
		grads[2*i], grads[2*i+1] = g, -g
	}
	m.nupds++
	err := m.upds.Update(m.ctx, keys, grads)
	for err != nil {
		m.failed(err, len(keys))
		if m.ctx.Err() != nil {
			m.t.Fatal(err)
		}
		var be *BatchError
		errors.As(err, &be)
		m.resumed++
		err = m.upds.Resume(m.ctx, be, keys, grads)
	}
	for i, k := range keys {
		m.upd[k] -= grads[2*i] / 2
	}
}

func (m *model) doGet() {
	keys := m.keys()
	m.gets++
	m.check(m.puts, keys, func(k uint64, v float32, found bool) bool {
		if want, ok := m.put[k]; ok == found && v == want {
			return true
		}
		for _, g := range m.ghosts[k] {
			if found && v == g {
				return true
			}
		}
		return false
	})
	m.check(m.upds, keys, func(k uint64, v float32, found bool) bool {
		want, ok := m.upd[k]
		return ok == found && v == want
	})
}

func (m *model) check(tb *Table, keys []uint64, right func(k uint64, v float32, found bool) bool) bool {
	rows, found := make([]float32, 2*len(keys)), make([]bool, len(keys))
	err := tb.Get(m.ctx, keys, rows, found)
	failed := m.failed(err, len(keys))
	if err != nil {
		m.getErrs++
	}
	for i, k := range keys {
		if _, bad := failed[i]; bad {
			continue
		}
		if rows[2*i] != -rows[2*i+1] || !right(k, rows[2*i], found[i]) {
			m.t.Errorf("table %s key %d (shard %d): %v found %v; put %v ghosts %v, updated %v", tb.Spec().Name, k, ShardOf(k, 2), rows[2*i:2*i+2], found[i], m.put[k], m.ghosts[k], m.upd[k])
			return false
		}
	}
	return err == nil
}

// forget is what a restart does: the shard has nothing any more, and nothing of before
// can reach it.
func (m *model) forget(shard int) {
	for k := range uint64(modelKeys) {
		if ShardOf(k, 2) == shard {
			delete(m.put, k)
			delete(m.ghosts, k)
			delete(m.upd, k)
		}
	}
}

func (m *model) settle() {
	all := make([]uint64, modelKeys)
	for i := range all {
		all[i] = uint64(i)
	}
	for !m.check(m.upds, all, func(k uint64, v float32, found bool) bool {
		want, ok := m.upd[k]
		return ok == found && v == want
	}) {
		if m.ctx.Err() != nil || m.t.Failed() {
			m.t.Fatal("it does not become quiet")
		}
	}
}
