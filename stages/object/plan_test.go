package object

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"math/rand/v2"
	"sort"
	"strings"
	"testing"
)

// oracleSplit is the rule of split said with rationals and a sort.
func oracleSplit(loads []load, rails []PlanRail) []int {
	sums := make([]*big.Int, len(rails))
	for i := range sums {
		sums[i] = new(big.Int)
	}
	var out []int
	// sent counts what a rail got of a shard, by going through all again.
	sent := func(rail, shard int) (n uint64) {
		for i, r := range out {
			if r == rail && loads[i].shard == shard {
				n += loads[i].bytes
			}
		}
		return n
	}
	power := func(r int) *big.Int {
		share := rails[r].Share
		if share == 0 {
			share = fullShare
		}
		return new(big.Int).Mul(big.NewInt(int64(rails[r].Weight)), big.NewInt(int64(share)))
	}
	for _, l := range loads {
		type choice struct {
			rail int
			cost *big.Rat
		}
		var cs, spent []choice
		for r := range rails {
			for _, s := range rails[r].Shards {
				if s == l.shard {
					after := new(big.Int).Add(sums[r], new(big.Int).SetUint64(l.bytes))
					c := choice{r, new(big.Rat).SetFrac(after, power(r))}
					canary := false
					for _, s := range rails[r].Canary {
						canary = canary || s == l.shard
					}
					if canary && sent(r, l.shard) > 0 {
						spent = append(spent, c)
					} else {
						cs = append(cs, c)
					}
					break
				}
			}
		}
		if len(cs) == 0 {
			cs = spent
		}
		if len(cs) == 0 {
			return nil
		}
		sort.SliceStable(cs, func(i, j int) bool {
			if c := cs[i].cost.Cmp(cs[j].cost); c != 0 {
				return c < 0
			}
			if c := power(cs[i].rail).Cmp(power(cs[j].rail)); c != 0 {
				return c > 0
			}
			return sent(cs[i].rail, l.shard) < sent(cs[j].rail, l.shard)
		})
		r := cs[0].rail
		sums[r].Add(sums[r], new(big.Int).SetUint64(l.bytes))
		out = append(out, r)
	}
	return out
}

// Two shards whose stripes take turns must each send over both rails.
func TestSplitSpreadsEveryShard(t *testing.T) {
	var loads []load
	for i := range 16 {
		loads = append(loads, load{100, i % 2})
	}
	got, err := split(loads, []PlanRail{{Name: "a", Weight: 1, Shards: []int{0, 1}}, {Name: "b", Weight: 1, Shards: []int{0, 1}}})
	if err != nil {
		t.Fatal(err)
	}
	n := map[[2]int]int{}
	for i, r := range got {
		n[[2]int{loads[i].shard, r}]++
	}
	for s := range 2 {
		for r := range 2 {
			if n[[2]int{s, r}] != 4 {
				t.Errorf("rail %d carries %d stripes of shard %d, want 4 of 8: %v", r, n[[2]int{s, r}], s, got)
			}
		}
	}
}

func randomRails(r *rand.Rand, shards int) []PlanRail {
	rails := make([]PlanRail, 1+r.IntN(5))
	for i := range rails {
		w := 1 + r.IntN(4)
		switch r.IntN(4) {
		case 0:
			w = 1 << r.IntN(31)
		case 1:
			w = 1 + r.IntN(1<<31-1)
		}
		rails[i] = PlanRail{Name: fmt.Sprintf("r%d", i), Weight: w}
		for s := range shards {
			if r.IntN(8) > 0 {
				rails[i].Shards = append(rails[i].Shards, s)
			}
		}
	}
	return rails
}

// TestSplitAgainstOracle compares 100000 random plans with rationals.
func TestSplitAgainstOracle(t *testing.T) {
	r := rand.New(rand.NewPCG(testSeed(t), 0))
	unreachable := 0
	for n := range 100_000 {
		shards := 1 + r.IntN(4)
		rails := randomRails(r, shards)
		loads := make([]load, r.IntN(13))
		for i := range loads {
			b := uint64(4 << 20)
			switch r.IntN(4) {
			case 0:
				b = r.Uint64N(1 << 30)
			case 1:
				b = r.Uint64N(1 << 58) // sums and products leave 64 bits
			}
			loads[i] = load{b, r.IntN(shards)}
		}
		got, err := split(loads, rails)
		want := oracleSplit(loads, rails)
		if errors.Is(err, ErrNoRails) && want == nil && len(loads) > 0 {
			unreachable++
			continue
		}
		if err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
			t.Fatalf("plan %d: loads %v, rails %+v: %v, %v, oracle %v", n, loads, rails, got, err, want)
		}
	}
	if unreachable == 0 || unreachable > 50_000 {
		t.Errorf("%d plans had an unreachable shard", unreachable)
	}
}

// TestPlanProperties checks what must hold of a plan however it was made.
func TestPlanProperties(t *testing.T) {
	r := rand.New(rand.NewPCG(testSeed(t), 0))
	for range 3000 {
		nodes := make([]Node, 1+r.IntN(4))
		for i := range nodes {
			nodes[i] = Node{i, 1 + r.IntN(3)}
		}
		size := r.Uint64N(80 * Align)
		o := makeObject(t, Key{Namespace: "ns", Name: fmt.Sprint(r.Uint64())}, 1, size, Align, nodes)
		lim := DefaultLimits()
		lim.TaskMaxStripes = r.IntN(4)
		lim.MaxConnsPerRail, lim.MaxConns = 1+r.IntN(4), 1+r.IntN(6)
		rails := randomRails(r, len(nodes))
		var only []uint32
		want := map[uint32]bool{}
		for i := range o.Placement.Stripes {
			want[uint32(i)] = true
		}
		if r.IntN(2) == 0 {
			only = []uint32{}
			for i := range o.Placement.Stripes {
				if delete(want, uint32(i)); r.IntN(2) == 0 {
					want[uint32(i)] = true
					only = append([]uint32{uint32(i)}, only...)
				}
			}
		}
		p, err := BuildPlan(&o, rails, lim, only)
		if errors.Is(err, ErrNoRails) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		checkPlan(t, &o, p, rails, lim, want)
	}
}

func checkPlan(t *testing.T, o *Object, p *Plan, rails []PlanRail, lim Limits, want map[uint32]bool) {
	t.Helper()
	all := true
	var total, longest uint64
	for i := range want {
		longest = max(longest, o.Placement.Stripes[i].Length)
		total += o.Placement.Stripes[i].Length
	}
	seen := map[uint32]string{}
	for i := range p.Rails {
		var sum uint64
		for _, s := range p.Rails[i].Stripes {
			if !want[s] || seen[s] != "" {
				t.Fatalf("stripe %d is not wanted or planned twice", s)
			}
			seen[s] = rails[i].Name
			sum += o.Placement.Stripes[s].Length
		}
		if sum != p.Rails[i].PlannedBytes {
			t.Fatalf("rail %d: %d bytes, planned %d", i, sum, p.Rails[i].PlannedBytes)
		}
		total -= sum
		for _, n := range []int{0, 1, 2, 3} {
			all = all && rails[i].reaches(n) == (n < shardCount(o))
		}
	}
	if len(seen) != len(want) || total != 0 {
		t.Fatalf("%d of %d stripes planned, %d bytes over", len(seen), len(want), total)
	}
	// Balance, when every rail reaches everything: no rail could have been spared
	// its last stripe by another one.
	if all {
		for i := range rails {
			for j := range rails {
				if p.Rails[i].PlannedBytes > 0 && cmpFrac(p.Rails[i].PlannedBytes, rails[i].power(), p.Rails[j].PlannedBytes+longest, rails[j].power()) > 0 {
					t.Fatalf("rail %d has %d bytes of weight %d, rail %d %d of %d", i, p.Rails[i].PlannedBytes, rails[i].Weight, j, p.Rails[j].PlannedBytes, rails[j].Weight)
				}
			}
		}
	}
	tasked := map[uint32]bool{}
	perWave := map[int]int{}
	perWaveRail := map[[2]any]int{}
	for i := range p.Tasks {
		k := &p.Tasks[i]
		var sum uint64
		for _, s := range k.Stripes {
			if tasked[s] || seen[s] != k.Rail || o.Placement.Stripes[s].Shard != k.Shard {
				t.Fatalf("task %+v: stripe %d", k, s)
			}
			tasked[s] = true
			sum += o.Placement.Stripes[s].Length
		}
		if sum != k.Bytes || len(k.Stripes) == 0 || lim.TaskMaxStripes > 0 && len(k.Stripes) > lim.TaskMaxStripes {
			t.Fatalf("task %+v", k)
		}
		perWave[k.Wave]++
		perWaveRail[[2]any{k.Wave, k.Rail}]++
		if perWave[k.Wave] > lim.MaxConns || perWaveRail[[2]any{k.Wave, k.Rail}] > lim.MaxConnsPerRail || k.Wave >= p.Waves {
			t.Fatalf("task %+v exceeds the caps", k)
		}
		if i > 0 && k.Wave < p.Tasks[i-1].Wave {
			t.Fatal("tasks are not in the order of their waves")
		}
	}
	if len(tasked) != len(want) || len(perWave) != p.Waves {
		t.Fatalf("%d of %d stripes in tasks, %d of %d waves used", len(tasked), len(want), len(perWave), p.Waves)
	}
}

func shardCount(o *Object) int {
	m := map[int]bool{}
	for _, s := range o.Placement.Stripes {
		m[s.Shard] = true
	}
	return len(m)
}

func TestSplitTable(t *testing.T) {
	equal := func(n int, b uint64) []load {
		l := make([]load, n)
		for i := range l {
			l[i].bytes = b
		}
		return l
	}
	all := []int{0}
	for _, c := range []struct {
		name    string
		loads   []load
		weights []int
		want    []uint64
	}{
		{"equal weights", equal(16, 4<<20), []int{1, 1}, []uint64{32 << 20, 32 << 20}},
		{"two to one", equal(6, 4<<20), []int{2, 1}, []uint64{16 << 20, 8 << 20}},
		{"one to two", equal(6, 4<<20), []int{1, 2}, []uint64{8 << 20, 16 << 20}},
		{"16 to 64", equal(10, 1), []int{16, 64}, []uint64{2, 8}},
		{"one stripe goes to the heavier", equal(1, 7), []int{1, 3, 2}, []uint64{0, 7, 0}},
		{"one stripe, equal weights: the first", equal(1, 7), []int{2, 2}, []uint64{7, 0}},
		{"short last stripe", append(equal(2, 100), load{bytes: 1}), []int{1, 1}, []uint64{101, 100}},
		{"nothing", nil, []int{1, 1}, []uint64{0, 0}},
		{"huge weights", equal(3, 1<<40), []int{1<<31 - 1, 1<<31 - 2}, []uint64{2 << 40, 1 << 40}},
	} {
		var rails []PlanRail
		for _, w := range c.weights {
			rails = append(rails, PlanRail{Weight: w, Shards: all})
		}
		of, err := split(c.loads, rails)
		if err != nil {
			t.Fatal(err)
		}
		got := make([]uint64, len(rails))
		for i, r := range of {
			got[r] += c.loads[i].bytes
		}
		if fmt.Sprint(got) != fmt.Sprint(c.want) {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
	if _, err := split(equal(1, 1), []PlanRail{{Name: "a", Weight: 0, Shards: all}}); !errors.Is(err, ErrBadRequest) {
		t.Errorf("weight 0: %v", err)
	}
	if _, err := split(equal(1, 1), []PlanRail{{Name: "a", Weight: 1}, {Name: "b", Weight: 1}}); !errors.Is(err, ErrNoRails) || !strings.Contains(err.Error(), "a, b reaches shard 0") {
		t.Errorf("unreachable: %v", err)
	}
	if _, err := split(equal(1, 1), nil); !errors.Is(err, ErrNoRails) {
		t.Errorf("no rails: %v", err)
	}
}

func TestPlanRefusesStripeAboveBudget(t *testing.T) {
	o := makeObject(t, Key{Namespace: "ns", Name: "x"}, 1, 2*Align, 2*Align, []Node{{0, 1}})
	lim := DefaultLimits()
	lim.MaxInflightPerRail = 2*Align - 1
	if _, err := BuildPlan(&o, []PlanRail{{Name: "a", Weight: 1, Shards: []int{0}}}, lim, nil); !errors.Is(err, ErrNoMemory) {
		t.Fatalf("%v", err)
	}
}

const goldenPlan = `kv/layer0 generation 3: 28772 bytes, 8 stripes of 4096, 5 tasks in 2 waves
RAIL  DEVICE          PROVIDER  WEIGHT  STRIPES  BYTES  SHARE
a     soft:127.0.1.1  soft      2       5        20480  71.18%
b     soft:127.0.2.1  soft      1       3        8292   28.81%

WAVE  RAIL  SHARD  STRIPES  BYTES
0     a     1      2        8192
0     b     1      1        4096
0     a     0      2        8192
0     b     0      2        4196
1     a     1      1        4096
`

func TestPlanPrints(t *testing.T) {
	o := makeObject(t, Key{Namespace: "kv", Name: "layer0"}, 3, 7*Align+100, Align, []Node{{0, 2}, {1, 2}})
	lim := DefaultLimits()
	lim.TaskMaxStripes, lim.MaxConnsPerRail = 2, 2
	rails := []PlanRail{
		{Name: "a", Device: "soft:127.0.1.1", Provider: "soft", Weight: 2, Shards: []int{0, 1}},
		{Name: "b", Device: "soft:127.0.2.1", Provider: "soft", Weight: 1, Shards: []int{0, 1}},
	}
	p, err := BuildPlan(&o, rails, lim, nil)
	if err != nil {
		t.Fatal(err)
	}
	if s := p.String(); s != goldenPlan {
		t.Errorf("got\n%s\nwant\n%s", s, goldenPlan)
	}
	b, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	var back struct {
		Namespace, Object        string
		Generation, Bytes, Waves int
		Rails                    []struct {
			Name         string
			PlannedBytes int `json:"planned_bytes"`
			Stripes      []int
		}
		Tasks []struct{ Wave, Shard, Bytes int }
	}
	if err := json.Unmarshal(b, &back); err != nil {
		t.Fatal(err)
	}
	if back.Object != "layer0" || back.Bytes != 28772 || back.Waves != 2 || back.Rails[0].PlannedBytes != 20480 || len(back.Rails[1].Stripes) != 3 || back.Tasks[3].Bytes != 4196 {
		t.Errorf("%s", b)
	}
	empty := makeObject(t, Key{Namespace: "kv", Name: "none"}, 1, 0, Align, nil)
	if p, err = BuildPlan(&empty, rails, lim, nil); err != nil || p.Waves != 0 || len(p.Tasks) != 0 {
		t.Errorf("%+v, %v", p, err)
	}
	if b, _ := json.Marshal(p); strings.Contains(string(b), "null") {
		t.Errorf("null in %s", b)
	}
	_ = p.String()
}

func BenchmarkSplit(b *testing.B) {
	loads := make([]load, 4096)
	for i := range loads {
		loads[i] = load{4 << 20, i % 4}
	}
	rails := []PlanRail{{Weight: 2, Shards: []int{0, 1, 2, 3}}, {Weight: 1, Shards: []int{0, 1, 2, 3}}, {Weight: 1, Shards: []int{0, 1, 2, 3}}, {Weight: 3, Shards: []int{0, 1, 2, 3}}}
	for b.Loop() {
		if _, err := split(loads, rails); err != nil {
			b.Fatal(err)
		}
	}
}
