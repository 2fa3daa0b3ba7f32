package ps

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/railstore/railstore/stages/table"
)

// A table's shape on the wire, little-endian; its name is in the header or before it.
//
//	0  u32  floats of a row
//	4  u8   optimizer: 1 sgd, 2 adagrad, 3 rowwise-adagrad, 4 adam, 5 adamw
//	5  u8   gradients that are not finite: 1 reject, 2 zero, 3 allow
//	6  u16  zero
//	8  f64  learning rate, then eps, beta1, beta2, weight decay, initial accumulator
const specBytes = 8 + 6*8

var (
	kinds    = []string{1: table.SGD, 2: table.AdaGrad, 3: table.RowwiseAdaGrad, 4: table.Adam, 5: table.AdamW}
	policies = []string{1: table.RejectNonFinite, 2: table.ZeroNonFinite, 3: table.AllowNonFinite}
)

func indexOf(words []string, w string) byte {
	for i := 1; i < len(words); i++ {
		if words[i] == w {
			return byte(i)
		}
	}
	return 0
}

// putSpec writes s, of which the zero values mean the defaults.
func putSpec(dst []byte, s *table.Spec) error {
	kind, policy := s.Optimizer.Kind, s.NonFinite
	if kind == "" {
		kind = table.SGD
	}
	if policy == "" {
		policy = table.RejectNonFinite
	}
	b := dst[:specBytes]
	clear(b)
	b[4], b[5] = indexOf(kinds, kind), indexOf(policies, policy)
	switch {
	case len(s.Name) > maxName || s.Name == "":
		return fmt.Errorf("%w: a table's name has 1 to %d bytes", ErrBadRequest, maxName)
	case s.Dim < 1 || s.Dim > table.MaxDim:
		return fmt.Errorf("%w: rows of %d floats: want 1 to %d", ErrBadRequest, s.Dim, table.MaxDim)
	case b[4] == 0:
		return fmt.Errorf("%w: optimizer %q: want sgd, adagrad, rowwise-adagrad, adam or adamw", ErrBadRequest, kind)
	case b[5] == 0:
		return fmt.Errorf("%w: non-finite gradients %q: want reject, zero or allow", ErrBadRequest, policy)
	}
	binary.LittleEndian.PutUint32(b, uint32(s.Dim))
	o := &s.Optimizer
	for i, v := range []float64{o.LearningRate, o.Eps, o.Beta1, o.Beta2, o.WeightDecay, o.InitialAccumulator} {
		binary.LittleEndian.PutUint64(b[8+8*i:], math.Float64bits(v))
	}
	return nil
}

// parseSpec reads what putSpec wrote. The table's own checks come after it.
func parseSpec(name string, b []byte) (table.Spec, error) {
	le := binary.LittleEndian
	if len(b) != specBytes {
		return table.Spec{}, fmt.Errorf("%w: the shape of a table has %d bytes, these are %d", ErrBadRequest, specBytes, len(b))
	}
	kind, policy, dim := b[4], b[5], le.Uint32(b)
	if kind == 0 || int(kind) >= len(kinds) || policy == 0 || int(policy) >= len(policies) || le.Uint16(b[6:]) != 0 || dim > table.MaxDim {
		return table.Spec{}, fmt.Errorf("%w: a shape of %d floats, optimizer %d, policy %d", ErrBadRequest, dim, kind, policy)
	}
	var f [6]float64
	for i := range f {
		f[i] = math.Float64frombits(le.Uint64(b[8+8*i:]))
	}
	return table.Spec{Name: name, Dim: int(dim), NonFinite: policies[policy], Optimizer: table.Optimizer{Kind: kinds[kind],
		LearningRate: f[0], Eps: f[1], Beta1: f[2], Beta2: f[3], WeightDecay: f[4], InitialAccumulator: f[5]}}, nil
}

// An entry of TABLES: the name padded with zeros, the shape, u64 rows, u64 bytes of the
// table's pages.
const entryBytes = nameBytes + specBytes + 16

// TableInfo is a table as shards tell it.
type TableInfo struct {
	Spec   table.Spec
	Rows   int64
	Bytes  int64 // of pages, optimizer state included
	Shards []int // that have it
}

func putEntry(dst []byte, s *table.Spec, rows, bytes int64) error {
	b := dst[:entryBytes]
	clear(b[:nameBytes])
	copy(b, s.Name)
	if err := putSpec(b[nameBytes:], s); err != nil {
		return err
	}
	binary.LittleEndian.PutUint64(b[nameBytes+specBytes:], uint64(rows))
	binary.LittleEndian.PutUint64(b[nameBytes+specBytes+8:], uint64(bytes))
	return nil
}

func parseEntry(b []byte) (TableInfo, error) {
	if len(b) < entryBytes {
		return TableInfo{}, fmt.Errorf("%w: %d bytes of a list of tables", ErrBadResponse, len(b))
	}
	n := 0
	for n < nameBytes && b[n] != 0 {
		n++
	}
	s, err := parseSpec(string(b[:n]), b[nameBytes:nameBytes+specBytes])
	if err != nil {
		return TableInfo{}, fmt.Errorf("%w: %w", ErrBadResponse, err)
	}
	le := binary.LittleEndian
	return TableInfo{Spec: s, Rows: int64(le.Uint64(b[nameBytes+specBytes:])), Bytes: int64(le.Uint64(b[nameBytes+specBytes+8:]))}, nil
}
