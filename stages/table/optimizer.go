package table

import (
	"fmt"
	"math"
)

// The kinds of optimizers, spelt as in recipes.
const (
	SGD            = "sgd"
	AdaGrad        = "adagrad"
	RowwiseAdaGrad = "rowwise-adagrad"
	Adam           = "adam"
	AdamW          = "adamw"
)

// Optimizer is what Update does with a gradient; docs/tables.md has the formulas. Fields
// that a kind does not use are ignored. When all numbers are 0 they are those of Defaults.
type Optimizer struct {
	Kind               string
	LearningRate       float64 // above 0, up to 1000
	Eps                float64 // above 0, up to 1; not of sgd
	Beta1, Beta2       float64 // from 0 to below 1; adam and adamw
	WeightDecay        float64 // from 0 to 1
	InitialAccumulator float64 // from 0 to 1e30; adagrad and rowwise-adagrad
}

// Defaults is the optimizer of a kind with the numbers that recipes give it.
func Defaults(kind string) Optimizer {
	o := Optimizer{Kind: kind, LearningRate: 0.01, Eps: 1e-8, Beta1: 0.9, Beta2: 0.999}
	o.forget()
	return o
}

// forget clears what the kind does not use, so that equal optimizers compare equal.
func (o *Optimizer) forget() {
	if o.Kind == SGD {
		o.Eps = 0
	}
	if o.Kind != Adam && o.Kind != AdamW {
		o.Beta1, o.Beta2 = 0, 0
	}
	if o.Kind != AdaGrad && o.Kind != RowwiseAdaGrad {
		o.InitialAccumulator = 0
	}
}

func (o Optimizer) complete(table string) (Optimizer, error) {
	if o.Kind == "" {
		o.Kind = SGD
	}
	switch o.Kind {
	case SGD, AdaGrad, RowwiseAdaGrad, Adam, AdamW:
	default:
		return o, &ShapeError{Table: table, Field: "optimizer.kind", Got: fmt.Sprintf("%q", o.Kind), Want: "sgd, adagrad, rowwise-adagrad, adam or adamw"}
	}
	if o == (Optimizer{Kind: o.Kind}) {
		return Defaults(o.Kind), nil
	}
	o.forget()
	bad := func(field string, got float64, want string) (Optimizer, error) {
		return o, &ShapeError{Table: table, Field: "optimizer." + field, Got: got, Want: want}
	}
	// Each test is written so that NaN fails it.
	switch {
	case !(o.LearningRate > 0 && o.LearningRate <= 1000):
		return bad("learning_rate", o.LearningRate, "above 0 and up to 1000")
	case o.Kind != SGD && !(o.Eps > 0 && o.Eps <= 1):
		return bad("eps", o.Eps, "above 0 and up to 1")
	case !(o.Beta1 >= 0 && o.Beta1 < 1):
		return bad("beta1", o.Beta1, "from 0 to below 1")
	case !(o.Beta2 >= 0 && o.Beta2 < 1):
		return bad("beta2", o.Beta2, "from 0 to below 1")
	case !(o.WeightDecay >= 0 && o.WeightDecay <= 1):
		return bad("weight_decay", o.WeightDecay, "from 0 to 1")
	case !(o.InitialAccumulator >= 0 && o.InitialAccumulator <= 1e30):
		return bad("initial_accumulator", o.InitialAccumulator, "from 0 to 1e30")
	}
	return o, nil
}

// stateWords is the length of the state of a row, in words of four bytes.
func (o Optimizer) stateWords(dim int) int {
	switch o.Kind {
	case AdaGrad:
		return dim
	case RowwiseAdaGrad:
		return 1
	case Adam, AdamW:
		return 2*dim + 1 // both moments, and the count of steps as an integer
	}
	return 0
}

// begin makes the state of a row that was not there.
func (o *Optimizer) begin(state []float32) {
	switch o.Kind {
	case AdaGrad, RowwiseAdaGrad:
		for i := range state {
			state[i] = float32(o.InitialAccumulator)
		}
	default:
		clear(state)
	}
}

// corrections remembers the last bias corrections of Adam: rows of a batch mostly have
// the same count of steps.
type corrections struct {
	step   uint32
	c1, c2 float64
}

// apply makes a new row and its new state from the old ones and a gradient. New and old
// may be the same memory. All arithmetic is done in float64; each result is rounded to
// float32 once, when it is stored.
func (o *Optimizer) apply(row, state, oldRow, oldState, grad []float32, memo *corrections) {
	// One length for all, so that the compiler sees it.
	n := len(row)
	oldRow, grad = oldRow[:n], grad[:n]
	lr, wd, eps := o.LearningRate, o.WeightDecay, o.Eps
	switch o.Kind {
	case SGD:
		for i, g := range grad {
			x := float64(oldRow[i])
			row[i] = float32(x - lr*(float64(g)+wd*x))
		}
	case AdaGrad:
		acc, oldAcc := state[:n], oldState[:n]
		for i, g := range grad {
			x := float64(oldRow[i])
			d := float64(g) + wd*x
			a := float64(oldAcc[i]) + d*d
			acc[i] = float32(a)
			row[i] = float32(x - lr*d/(math.Sqrt(a)+eps))
		}
	case RowwiseAdaGrad:
		var sum float64
		for i, g := range grad {
			d := float64(g) + wd*float64(oldRow[i])
			sum += d * d
		}
		a := float64(oldState[0]) + sum/float64(n)
		state[0] = float32(a)
		step := lr / (math.Sqrt(a) + eps)
		for i, g := range grad {
			x := float64(oldRow[i])
			row[i] = float32(x - step*(float64(g)+wd*x))
		}
	case Adam, AdamW:
		b1, b2 := o.Beta1, o.Beta2
		step := math.Float32bits(oldState[2*n])
		if step < math.MaxUint32 {
			step++
		}
		state[2*n] = math.Float32frombits(step)
		if memo.step != step {
			*memo = corrections{step: step, c1: 1 / (1 - math.Pow(b1, float64(step))), c2: 1 / (1 - math.Pow(b2, float64(step)))}
		}
		c1, c2 := memo.c1, memo.c2
		keep, coupled := 1.0, wd
		if o.Kind == AdamW {
			keep, coupled = 1-lr*wd, 0
		}
		m, v := state[:n], state[n:2*n]
		oldM, oldV := oldState[:n], oldState[n:2*n]
		for i, g := range grad {
			x := float64(oldRow[i])
			d := float64(g) + coupled*x
			mi := b1*float64(oldM[i]) + (1-b1)*d
			vi := b2*float64(oldV[i]) + (1-b2)*d*d
			m[i], v[i] = float32(mi), float32(vi)
			row[i] = float32(keep*x - lr*(mi*c1)/(math.Sqrt(vi*c2)+eps))
		}
	}
}
