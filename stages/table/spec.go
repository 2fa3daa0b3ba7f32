package table

import (
	"fmt"
	"regexp"
)

// MaxDim bounds the floats of a row.
const MaxDim = 65536

// What a table does with a gradient that is not finite.
const (
	RejectNonFinite = "reject" // the default: the batch is refused as a whole
	ZeroNonFinite   = "zero"   // such an element counts as 0
	AllowNonFinite  = "allow"  // it goes into the row as the arithmetic has it
)

// Spec is the shape of a table.
type Spec struct {
	Name      string
	Dim       int // float32s of a row
	Optimizer Optimizer
	NonFinite string // RejectNonFinite if empty
}

var nameRE = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$`)

// Check reports what keeps a Spec from being the shape of a table.
func (s Spec) Check() error {
	_, err := s.complete()
	return err
}

// complete checks a Spec and fills in what was left out.
func (s Spec) complete() (Spec, error) {
	if !nameRE.MatchString(s.Name) {
		return s, &ShapeError{Table: s.Name, Field: "name", Got: fmt.Sprintf("%q", s.Name),
			Want: "1 to 63 of A-Z, a-z, 0-9, '.', '_' and -, beginning with a letter or digit"}
	}
	if s.Dim < 1 || s.Dim > MaxDim {
		return s, &ShapeError{Table: s.Name, Field: "dim", Got: s.Dim, Want: fmt.Sprintf("from 1 to %d", MaxDim)}
	}
	switch s.NonFinite {
	case "":
		s.NonFinite = RejectNonFinite
	case RejectNonFinite, ZeroNonFinite, AllowNonFinite:
	default:
		return s, &ShapeError{Table: s.Name, Field: "non_finite", Got: s.NonFinite, Want: "reject, zero or allow"}
	}
	var err error
	s.Optimizer, err = s.Optimizer.complete(s.Name)
	return s, err
}

// conflict is what keeps a table of the shape have from being the one of want.
func conflict(have, want Spec) error {
	if err := layoutConflict(have, want); err != nil {
		return err
	}
	h, w := have.Optimizer, want.Optimizer
	for _, f := range []struct {
		field     string
		have, got any
	}{
		{"optimizer.learning_rate", h.LearningRate, w.LearningRate},
		{"optimizer.eps", h.Eps, w.Eps},
		{"optimizer.beta1", h.Beta1, w.Beta1},
		{"optimizer.beta2", h.Beta2, w.Beta2},
		{"optimizer.weight_decay", h.WeightDecay, w.WeightDecay},
		{"optimizer.initial_accumulator", h.InitialAccumulator, w.InitialAccumulator},
		{"non_finite", have.NonFinite, want.NonFinite},
	} {
		if f.have != f.got {
			return &ShapeError{Table: have.Name, Field: f.field, Got: f.got, Want: f.have}
		}
	}
	return nil
}

// layoutConflict is conflict for rows alone: what decides how a row and its state look.
func layoutConflict(have, want Spec) error {
	if have.Dim != want.Dim {
		return &ShapeError{Table: have.Name, Field: "dim", Got: want.Dim, Want: have.Dim}
	}
	if have.Optimizer.Kind != want.Optimizer.Kind {
		return &ShapeError{Table: have.Name, Field: "optimizer.kind", Got: want.Optimizer.Kind, Want: have.Optimizer.Kind}
	}
	return nil
}
