package main

import (
	"context"

	"github.com/railstore/railstore/stages/ps"
)

// tableShape is what rs_table_describe tells.
type tableShape struct {
	Table     string `json:"table"`
	Dim       int    `json:"dim"`
	Optimizer string `json:"optimizer"`
}

func (s *session) describeTable(name string, l limits) (out tableShape, err error) {
	err = s.onTable("table", name, l, func(_ context.Context, t *ps.Table) error {
		spec := t.Spec()
		out = tableShape{Table: spec.Name, Dim: spec.Dim, Optimizer: spec.Optimizer.Kind}
		return nil
	})
	return out, err
}

func (s *session) onTable(op, name string, l limits, f func(ctx context.Context, t *ps.Table) error) error {
	return s.do(op, l, func(ctx context.Context) error {
		t, err := s.table(ctx, name)
		if err != nil {
			return err
		}
		return tableFailure(f(ctx, t))
	})
}

// get gives the rows of keys, as ps.Table.Get does.
func (s *session) get(name string, keys []uint64, rows []float32, found []bool, l limits) error {
	return s.onTable("get", name, l, func(ctx context.Context, t *ps.Table) error { return t.Get(ctx, keys, rows, found) })
}

func (s *session) putRows(name string, keys []uint64, rows []float32, l limits) error {
	return s.onTable("put", name, l, func(ctx context.Context, t *ps.Table) error { return t.Put(ctx, keys, rows) })
}

// update applies gradients, each once.
func (s *session) update(name string, keys []uint64, grads []float32, l limits) error {
	return s.onTable("update", name, l, func(ctx context.Context, t *ps.Table) error { return t.Update(ctx, keys, grads) })
}
