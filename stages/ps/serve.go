package ps

import (
	"errors"
	"fmt"

	"github.com/railstore/railstore/cue/deploy"
	"github.com/railstore/railstore/pipeline"
	"github.com/railstore/railstore/stages/table"
)

// ServeConfig is what a shard's parameter service is made of.
type ServeConfig struct {
	Deployment *deploy.Deployment
	Shard      *deploy.Shard
	Rails      Registrar
	Workers    int    // that read rows from clients at once
	Snapshots  string // folder of SAVE and LOAD
	Measure    bool
}

// Serve opens the store of a shard, within the recipe's memory, makes the recipe's tables
// and gives the service and who serves what. The scope closes them; the lanes that use the
// service are closed before.
func Serve(scope *pipeline.Scope, cfg ServeConfig) (*Service, error) {
	at := pipeline.AtShard(cfg.Shard.ID)
	slabs := NewSlabs(cfg.Rails, cfg.Workers)
	limit := cfg.Shard.Store.Memory
	if limit > 0 {
		if limit -= slabs.Overhead(); limit <= 0 {
			return nil, pipeline.Errorf(pipeline.LayerConfig, "tables", at, "a store of %d bytes: %d of them are for rows on their way",
				cfg.Shard.Store.Memory, slabs.Overhead()).WithHint("raise shards[].store.memory, or lower server.storageWorkers")
		}
	}
	store, err := table.Open(table.Config{Memory: slabs, Limit: limit})
	if err != nil {
		return nil, pipeline.Wrap(err, pipeline.LayerStorage, "tables", at)
	}
	scope.DeferClose("table store", func() error { return errors.Join(store.Close(), slabs.Close()) })
	for i := range cfg.Deployment.Tables {
		if _, err := store.Init(SpecOf(&cfg.Deployment.Tables[i])); err != nil {
			return nil, pipeline.Wrap(fmt.Errorf("table %q of the recipe: %w", cfg.Deployment.Tables[i].Name, err), pipeline.LayerStorage, "tables", at)
		}
	}
	place := 0
	for i := range cfg.Deployment.Shards {
		if cfg.Deployment.Shards[i].ID < cfg.Shard.ID {
			place++
		}
	}
	s := NewService(ServiceConfig{Store: store, Slabs: slabs, Shard: cfg.Shard.ID, Snapshots: cfg.Snapshots, Measure: cfg.Measure,
		Place: place, Shards: len(cfg.Deployment.Shards)})
	scope.DeferClose("table service", s.Close)
	return s, nil
}

// SpecOf is a recipe's table.
func SpecOf(t *deploy.Table) table.Spec {
	o := &t.Optimizer
	return table.Spec{Name: t.Name, Dim: t.Dim, Optimizer: table.Optimizer{Kind: o.Type, LearningRate: o.LearningRate, Eps: o.Epsilon,
		Beta1: o.Beta1, Beta2: o.Beta2, WeightDecay: o.WeightDecay, InitialAccumulator: o.Accumulator}}
}

// Store is the service's store.
func (s *Service) Store() *table.Store { return s.cfg.Store }
