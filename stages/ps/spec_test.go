package ps

import (
	"testing"

	"github.com/railstore/railstore/cue/deploy"
	"github.com/railstore/railstore/stages/table"
)

// Every field of a recipe's table reaches the store.
func TestSpecOf(t *testing.T) {
	got := SpecOf(&deploy.Table{Name: "user", Dim: 7, Optimizer: deploy.Optimizer{Type: "adagrad", LearningRate: 1, Epsilon: 2, Beta1: 3, Beta2: 4, WeightDecay: 5, Accumulator: 6}})
	want := table.Spec{Name: "user", Dim: 7, Optimizer: table.Optimizer{Kind: "adagrad", LearningRate: 1, Eps: 2, Beta1: 3, Beta2: 4, WeightDecay: 5, InitialAccumulator: 6}}
	if got != want {
		t.Fatalf("%+v, want %+v", got, want)
	}
}
