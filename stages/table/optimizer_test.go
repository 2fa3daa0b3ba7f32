package table

import (
	"errors"
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// reference is an optimizer of its own, in the form of the papers and of PyTorch, in the
// precision of N: float64, or big numbers.
type reference[N any] struct {
	n                   number[N]
	o                   Optimizer
	x, a, m, v          []N
	t                   int
	lr, eps, b1, b2, wd N
}

// number is arithmetic.
type number[N any] struct {
	of            func(float64) N
	add, sub      func(a, b N) N
	mul, div, pow func(a, b N) N // pow: b is a whole number
	sqrt          func(N) N
	float         func(N) float64
}

var float64s = number[float64]{
	of:    func(f float64) float64 { return f },
	add:   func(a, b float64) float64 { return a + b },
	sub:   func(a, b float64) float64 { return a - b },
	mul:   func(a, b float64) float64 { return a * b },
	div:   func(a, b float64) float64 { return a / b },
	pow:   math.Pow,
	sqrt:  math.Sqrt,
	float: func(f float64) float64 { return f },
}

func bigOf() *big.Float { return new(big.Float).SetPrec(200) }

var bigs = number[*big.Float]{
	of:  func(f float64) *big.Float { return bigOf().SetFloat64(f) },
	add: func(a, b *big.Float) *big.Float { return bigOf().Add(a, b) },
	sub: func(a, b *big.Float) *big.Float { return bigOf().Sub(a, b) },
	mul: func(a, b *big.Float) *big.Float { return bigOf().Mul(a, b) },
	div: func(a, b *big.Float) *big.Float { return bigOf().Quo(a, b) },
	pow: func(a, b *big.Float) *big.Float {
		out := bigOf().SetInt64(1)
		n, _ := b.Int64()
		for range n {
			out.Mul(out, a)
		}
		return out
	},
	sqrt:  func(a *big.Float) *big.Float { return bigOf().Sqrt(a) },
	float: func(a *big.Float) float64 { f, _ := a.Float64(); return f },
}

func newReference[N any](n number[N], o Optimizer, row []float32) *reference[N] {
	r := &reference[N]{n: n, o: o, lr: n.of(o.LearningRate), eps: n.of(o.Eps), b1: n.of(o.Beta1), b2: n.of(o.Beta2), wd: n.of(o.WeightDecay)}
	for _, x := range row {
		r.x = append(r.x, n.of(float64(x)))
		r.a = append(r.a, n.of(float64(float32(o.InitialAccumulator)))) // as it is stored
		r.m = append(r.m, n.of(0))
		r.v = append(r.v, n.of(0))
	}
	return r
}

func (r *reference[N]) step(grad []float32) {
	n := r.n
	r.t++
	g := make([]N, len(grad))
	for i := range g {
		g[i] = n.of(float64(grad[i]))
		if r.o.Kind == AdamW {
			r.x[i] = n.sub(r.x[i], n.mul(n.mul(r.lr, r.wd), r.x[i]))
		} else {
			g[i] = n.add(g[i], n.mul(r.wd, r.x[i]))
		}
	}
	mean := n.of(0)
	for i := range g {
		mean = n.add(mean, n.div(n.mul(g[i], g[i]), n.of(float64(len(g)))))
	}
	one := n.of(1)
	for i := range g {
		switch r.o.Kind {
		case SGD:
			r.x[i] = n.sub(r.x[i], n.mul(r.lr, g[i]))
		case AdaGrad, RowwiseAdaGrad:
			if r.o.Kind == AdaGrad {
				r.a[i] = n.add(r.a[i], n.mul(g[i], g[i]))
			} else {
				r.a[i] = n.add(r.a[i], mean)
			}
			r.x[i] = n.sub(r.x[i], n.mul(r.lr, n.div(g[i], n.add(n.sqrt(r.a[i]), r.eps))))
		case Adam, AdamW:
			r.m[i] = n.add(r.m[i], n.mul(n.sub(one, r.b1), n.sub(g[i], r.m[i])))
			r.v[i] = n.add(n.mul(r.b2, r.v[i]), n.mul(n.mul(n.sub(one, r.b2), g[i]), g[i]))
			bc1 := n.sub(one, n.pow(r.b1, n.of(float64(r.t))))
			bc2 := n.sub(one, n.pow(r.b2, n.of(float64(r.t))))
			denom := n.add(n.div(n.sqrt(r.v[i]), n.sqrt(bc2)), r.eps)
			r.x[i] = n.sub(r.x[i], n.mul(n.div(r.lr, bc1), n.div(r.m[i], denom)))
		}
	}
}

// takeOver compares the row and the state that were stored with the reference's, and goes
// on with the stored ones. They may be an ulp apart where a value lies nearly between two
// float32s, as 0.9·m + 0.1·g often does; and where terms nearly cancel, by what float64
// loses of the larger ones.
func (r *reference[N]) takeOver(slot []float32, was []float32) error {
	n := len(r.x)
	parts := [][]N{r.x}
	switch r.o.Kind {
	case AdaGrad:
		parts = append(parts, r.a)
	case RowwiseAdaGrad:
		parts = append(parts, r.a[:1])
	case Adam, AdamW:
		parts = append(parts, r.m, r.v)
	}
	at := 0
	for p, part := range parts {
		for i := range part {
			got, want := float64(slot[at]), r.n.float(part[i])
			if diff := math.Abs(got - want); diff > ulp(want)+1e-13*math.Abs(float64(was[at])) {
				return fmt.Errorf("part %d, element %d: %v, want %v: %.2f ulp", p, i, got, want, diff/ulp(want))
			}
			part[i] = r.n.of(got)
			at++
		}
	}
	if r.o.Kind == RowwiseAdaGrad {
		for i := range r.a {
			r.a[i] = r.a[0]
		}
	}
	if r.o.Kind == Adam || r.o.Kind == AdamW {
		if got := int(math.Float32bits(slot[2*n+n])); got != r.t {
			return fmt.Errorf("%d steps, want %d", got, r.t)
		}
	}
	return nil
}

// ulp is the distance from |f| to the next float32.
func ulp(f float64) float64 {
	a := float32(math.Abs(f))
	return float64(math.Nextafter32(a, math.MaxFloat32)) - float64(a)
}

func testOptimizers() []Optimizer {
	return []Optimizer{
		{Kind: SGD, LearningRate: 0.01},
		{Kind: SGD, LearningRate: 0.3, WeightDecay: 0.1},
		{Kind: AdaGrad, LearningRate: 0.01, Eps: 1e-10},
		{Kind: AdaGrad, LearningRate: 0.1, Eps: 1e-3, WeightDecay: 0.01, InitialAccumulator: 0.1},
		{Kind: RowwiseAdaGrad, LearningRate: 0.01, Eps: 1e-8},
		{Kind: RowwiseAdaGrad, LearningRate: 0.5, Eps: 1e-4, WeightDecay: 0.02, InitialAccumulator: 2},
		{Kind: Adam, LearningRate: 0.001, Eps: 1e-8, Beta1: 0.9, Beta2: 0.999},
		{Kind: Adam, LearningRate: 0.1, Eps: 1e-3, Beta1: 0.5, Beta2: 0.9, WeightDecay: 0.05},
		{Kind: Adam, LearningRate: 0.1, Eps: 1e-3},
		{Kind: AdamW, LearningRate: 0.001, Eps: 1e-8, Beta1: 0.9, Beta2: 0.98, WeightDecay: 0.01},
		{Kind: AdamW, LearningRate: 0.2, Eps: 1e-6, Beta1: 0.8, Beta2: 0.999, WeightDecay: 0.5},
	}
}

// TestOptimizersAgainstReference compares each step, row and state, with one in big
// numbers: one ulp, and what float64 loses where terms nearly cancel. Then it compares
// many steps with float64 that is never rounded: for each step an ulp of the largest value
// that was seen for the row that is rounded, and one for its state.
func TestOptimizersAgainstReference(t *testing.T) {
	const dim, steps = 9, 25
	for i, o := range testOptimizers() {
		for _, from := range []string{"put", "missing"} {
			t.Run(fmt.Sprintf("%d-%s-%s", i, o.Kind, from), func(t *testing.T) {
				r := rand.New(rand.NewPCG(testSeed(t), uint64(i)))
				s := openTest(t, Config{})
				tb := mustInit(t, s, Spec{Name: "t", Dim: dim, Optimizer: o})
				row := make([]float32, dim)
				if from == "put" {
					for j := range row {
						row[j] = float32(r.NormFloat64())
					}
					mustPut(t, tb, []uint64{7}, row)
				}
				exact := newReference(bigs, o, row)
				free := newReference(float64s, o, row)
				largest := 0.0
				for step := range steps {
					grad := make([]float32, dim)
					for j := range grad {
						grad[j] = float32(r.NormFloat64() * math.Pow(10, float64(r.IntN(5)-2)))
					}
					if step == 3 {
						clear(grad)
					}
					was := slotOf(tb, 7)
					if ok, err := tb.Update([]uint64{7}, grad, Token{}); !ok || err != nil {
						t.Fatal(ok, err)
					}
					if n, err := tb.Get([]uint64{7}, row, nil); n != 1 || err != nil {
						t.Fatal(n, err)
					}
					exact.step(grad)
					free.step(grad)
					slot := slotOf(tb, 7)
					if was == nil {
						was = make([]float32, len(slot))
					}
					if !slices.Equal(slot[:dim], row) {
						t.Fatalf("GET gives %v, stored is %v", row, slot[:dim])
					}
					if err := exact.takeOver(slot, was); err != nil {
						t.Fatalf("step %d: %v", step, err)
					}
					for _, x := range row {
						largest = max(largest, math.Abs(float64(x)))
					}
				}
				for j, got := range row {
					if diff := math.Abs(float64(got) - free.x[j]); diff > 2*steps*ulp(largest) {
						t.Errorf("after %d steps, element %d: %v, want %v: %.1f ulp", steps, j, got, free.x[j], diff/ulp(largest))
					}
				}
			})
		}
	}
}

// TestStateFollowsTheRow: PUT keeps the state of a key, DELETE forgets it.
func TestStateFollowsTheRow(t *testing.T) {
	for _, o := range testOptimizers() {
		if o.stateWords(3) == 0 {
			continue
		}
		s := openTest(t, Config{})
		tb := mustInit(t, s, Spec{Name: "t", Dim: 3, Optimizer: o})
		key, g := []uint64{1}, []float32{1, -2, 3}
		update := func() []float32 {
			if _, err := tb.Update(key, g, Token{}); err != nil {
				t.Fatal(err)
			}
			row := make([]float32, 3)
			if _, err := tb.Get(key, row, nil); err != nil {
				t.Fatal(err)
			}
			return row
		}
		first := update()
		again := update()
		mustPut(t, tb, key, make([]float32, 3))
		kept := update()
		if o.Kind != Adam && o.Kind != AdamW && fmt.Sprint(kept) == fmt.Sprint(first) {
			t.Errorf("%s: PUT forgot the state", o.Kind)
		}
		if o.Kind == Adam || o.Kind == AdamW {
			// All gradients are alike, so the step hardly changes; the count tells.
			if got := stepOf(tb, 1); got != 3 {
				t.Errorf("%s: %d steps after three updates and a PUT", o.Kind, got)
			}
		}
		if _, err := tb.Delete(key); err != nil {
			t.Fatal(err)
		}
		if fresh := update(); fmt.Sprint(fresh) != fmt.Sprint(first) {
			t.Errorf("%s: after DELETE %v, want %v; DELETE kept the state (second step: %v)", o.Kind, fresh, first, again)
		}
	}
}

// slotOf is a row and its state as they are stored, nil without one.
func slotOf(tb *Table, key uint64) []float32 {
	b := tb.body.Load()
	h := tb.store.mix.of(key)
	at, j, ok := b.dir.Load().mem[b.dir.Load().index(h)].Load().find(h, key)
	if !ok || at.ref(j) < refFirst {
		return nil
	}
	return slices.Clone(asFloats((*tb.store.table.Load()).at(at.ref(j), tb.layout.row+tb.layout.state)))
}

func stepOf(tb *Table, key uint64) uint32 {
	slot := slotOf(tb, key)
	return math.Float32bits(slot[len(slot)-1])
}

// TestStepsSaturate: the count of steps is an integer, not a float, and stays at its end.
func TestStepsSaturate(t *testing.T) {
	o := Defaults(Adam)
	for _, at := range []uint32{1<<24 + 1, 0x7f800001, math.MaxUint32 - 1, math.MaxUint32} {
		row, state := make([]float32, 1), make([]float32, 3)
		state[2] = math.Float32frombits(at)
		o.apply(row, state, row, state, []float32{1}, new(corrections))
		want := at + 1
		if at == math.MaxUint32 {
			want = at
		}
		if got := math.Float32bits(state[2]); got != want {
			t.Errorf("step %d, then %d", at, got)
		}
		if !finite(row[0]) {
			t.Errorf("step %d: row %v", at, row)
		}
	}
}

// TestDuplicatesAreAggregated: the same key twice is one step with the sum, also when it
// is missing, and the sum is not rounded on the way.
func TestDuplicatesAreAggregated(t *testing.T) {
	for _, o := range testOptimizers() {
		s := openTest(t, Config{})
		a := mustInit(t, s, Spec{Name: "a", Dim: 2, Optimizer: o})
		b := mustInit(t, s, Spec{Name: "b", Dim: 2, Optimizer: o})
		if _, err := a.Update([]uint64{5, 6, 5, 5}, []float32{1, 1 << 25, 9, 9, 2, 1, 4, -1 << 25}, Token{}); err != nil {
			t.Fatal(err)
		}
		if _, err := b.Update([]uint64{6, 5}, []float32{9, 9, 7, 1}, Token{}); err != nil {
			t.Fatal(err)
		}
		if x, y := content(t, a), content(t, b); fmt.Sprint(x) != fmt.Sprint(y) {
			t.Errorf("%s: %x, want %x", o.Kind, x, y)
		}
	}
}

func TestGradientPolicies(t *testing.T) {
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	bad := []struct {
		keys  []uint64
		grads []float32
		at    int
		el    int
	}{
		{[]uint64{1, 2}, []float32{1, 2, 3, nan}, 1, 1},
		{[]uint64{1, 2}, []float32{-inf, 2, 3, 4}, 0, 0},
		{[]uint64{1, 2, 1}, []float32{1, math.MaxFloat32, 3, 4, 1, math.MaxFloat32}, 0, 1},
	}
	s := openTest(t, Config{})
	o := Optimizer{Kind: SGD, LearningRate: 1}
	reject := mustInit(t, s, Spec{Name: "reject", Dim: 2, Optimizer: o})
	for i, c := range bad {
		token := Token{Client: 1, Sequence: uint64(i + 1)}
		_, err := reject.Update(c.keys, c.grads, token)
		var ge *GradientError
		if !errors.As(err, &ge) || ge.Position != c.at || ge.Element != c.el || ge.Key != c.keys[c.at] || !strings.Contains(err.Error(), "reject") {
			t.Errorf("case %d: %v", i, err)
		}
		if reject.Len() != 0 {
			t.Errorf("case %d: rows were made", i)
		}
		// A refused batch does not use its token up.
		if ok, err := reject.Update(nil, nil, token); !ok || err != nil {
			t.Errorf("case %d: %v, %v", i, ok, err)
		}
	}
	zero := mustInit(t, s, Spec{Name: "zero", Dim: 2, Optimizer: o, NonFinite: ZeroNonFinite})
	allow := mustInit(t, s, Spec{Name: "allow", Dim: 2, Optimizer: o, NonFinite: AllowNonFinite})
	for tb, want := range map[*Table][]float32{zero: {-4, -2}, allow: {nan, -2}} {
		if _, err := tb.Update([]uint64{1, 1}, []float32{nan, 1, 4, 1}, Token{}); err != nil {
			t.Fatal(err)
		}
		row := make([]float32, 2)
		if _, err := tb.Get([]uint64{1}, row, nil); err != nil || fmt.Sprint(row) != fmt.Sprint(want) {
			t.Errorf("%s: %v, %v; want %v", tb.Spec().Name, row, err, want)
		}
	}
	if !allFinite([]float32{1, 2, 3, 4, 5, -math.MaxFloat32}) {
		t.Error("finite numbers are not")
	}
	for i := range 9 {
		g := make([]float32, 9)
		for _, f := range []float32{nan, inf, -inf} {
			if g[i] = f; allFinite(g) {
				t.Errorf("%v at %d is finite", f, i)
			}
		}
	}
}

func TestSpecs(t *testing.T) {
	s := openTest(t, Config{})
	nan := math.NaN()
	for _, c := range []struct {
		field string
		spec  Spec
	}{
		{"name", Spec{Dim: 1}},
		{"name", Spec{Name: "a b", Dim: 1}},
		{"name", Spec{Name: strings.Repeat("a", 64), Dim: 1}},
		{"dim", Spec{Name: "t"}},
		{"dim", Spec{Name: "t", Dim: -1}},
		{"dim", Spec{Name: "t", Dim: MaxDim + 1}},
		{"dim", Spec{Name: "t", Dim: math.MaxInt}},
		{"bytes of a row with its state", Spec{Name: "t", Dim: 2000}},
		{"non_finite", Spec{Name: "t", Dim: 1, NonFinite: "maybe"}},
		{"optimizer.kind", Spec{Name: "t", Dim: 1, Optimizer: Optimizer{Kind: "rmsprop"}}},
		{"optimizer.learning_rate", Spec{Name: "t", Dim: 1, Optimizer: Optimizer{LearningRate: -1}}},
		{"optimizer.learning_rate", Spec{Name: "t", Dim: 1, Optimizer: Optimizer{LearningRate: nan}}},
		{"optimizer.learning_rate", Spec{Name: "t", Dim: 1, Optimizer: Optimizer{Kind: Adam, Beta1: 0.5}}},
		{"optimizer.learning_rate", Spec{Name: "t", Dim: 1, Optimizer: Optimizer{LearningRate: math.Inf(1)}}},
		{"optimizer.eps", Spec{Name: "t", Dim: 1, Optimizer: Optimizer{Kind: AdaGrad, LearningRate: 1}}},
		{"optimizer.eps", Spec{Name: "t", Dim: 1, Optimizer: Optimizer{Kind: AdaGrad, LearningRate: 1, Eps: nan}}},
		{"optimizer.beta1", Spec{Name: "t", Dim: 1, Optimizer: Optimizer{Kind: Adam, LearningRate: 1, Eps: 1, Beta1: 1}}},
		{"optimizer.beta2", Spec{Name: "t", Dim: 1, Optimizer: Optimizer{Kind: AdamW, LearningRate: 1, Eps: 1, Beta2: nan}}},
		{"optimizer.weight_decay", Spec{Name: "t", Dim: 1, Optimizer: Optimizer{LearningRate: 1, WeightDecay: 2}}},
		{"optimizer.initial_accumulator", Spec{Name: "t", Dim: 1, Optimizer: Optimizer{Kind: AdaGrad, LearningRate: 1, Eps: 1, InitialAccumulator: -1}}},
	} {
		_, err := s.Init(c.spec)
		var se *ShapeError
		if !errors.As(err, &se) || se.Field != c.field {
			t.Errorf("%+v: %v, want %s", c.spec, err, c.field)
		}
	}
	if len(s.Tables()) != 0 || s.Stats().Used != 0 {
		t.Errorf("refused tables are there: %+v", s.Stats())
	}
	// Numbers of other kinds, as recipes have them for all, do not matter.
	a := mustInit(t, s, Spec{Name: "t", Dim: 4})
	recipe := Optimizer{Kind: SGD, LearningRate: 0.01, Eps: 1e-8, Beta1: 0.9, Beta2: 0.999}
	if b := mustInit(t, s, Spec{Name: "t", Dim: 4, Optimizer: recipe, NonFinite: RejectNonFinite}); a != b {
		t.Error("Init made the same table twice")
	}
	for field, spec := range map[string]Spec{
		"dim":                     {Name: "t", Dim: 5},
		"optimizer.kind":          {Name: "t", Dim: 4, Optimizer: Defaults(Adam)},
		"optimizer.learning_rate": {Name: "t", Dim: 4, Optimizer: Optimizer{LearningRate: 1}},
		"optimizer.weight_decay":  {Name: "t", Dim: 4, Optimizer: Optimizer{LearningRate: 0.01, WeightDecay: 0.5}},
		"non_finite":              {Name: "t", Dim: 4, NonFinite: ZeroNonFinite},
	} {
		_, err := s.Init(spec)
		var se *ShapeError
		if !errors.As(err, &se) || se.Field != field || se.Table != "t" {
			t.Errorf("%+v: %v, want %s", spec, err, field)
		}
	}
}
