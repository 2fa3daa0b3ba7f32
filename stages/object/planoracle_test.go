package object

import (
	"math/rand/v2"
	"reflect"
	"slices"
	"sort"
	"testing"
)

// oracleTasks is the rule of tasks and waves said another way: by sorting and counting,
// where the program goes once through a list.
func oracleTasks(o *Object, stripes []uint32, of []int, rails []PlanRail, lim Limits) ([]Task, int) {
	type keyed struct {
		Task
		turn int
	}
	var all []keyed
	for r := range rails {
		var mine []keyed
		for shard := range 8 {
			var run []uint32
			for i, s := range stripes {
				if of[i] == r && o.Placement.Stripes[s].Shard == shard {
					run = append(run, s)
				}
			}
			most := lim.TaskMaxStripes
			if most == 0 {
				most = len(run)
			}
			for part := range slices.Chunk(run, max(most, 1)) {
				t := Task{Rail: rails[r].Name, Shard: shard, Stripes: slices.Clone(part), rail: r}
				for _, s := range part {
					t.Bytes += o.Placement.Stripes[s].Length
				}
				mine = append(mine, keyed{Task: t})
			}
		}
		// Tasks of a rail are in the order of their first stripes.
		sort.Slice(mine, func(i, j int) bool { return mine[i].Stripes[0] < mine[j].Stripes[0] })
		for i := range mine {
			mine[i].turn = i
		}
		all = append(all, mine...)
	}
	sort.SliceStable(all, func(i, j int) bool { return all[i].turn < all[j].turn })
	waves := 0
	for i := range all {
		for w := 0; ; w++ {
			inAll, inRail := 0, 0
			for _, b := range all[:i] {
				if b.Wave == w {
					inAll++
					if b.rail == all[i].rail {
						inRail++
					}
				}
			}
			if inAll < lim.MaxConns && inRail < lim.MaxConnsPerRail {
				all[i].Wave = w
				break
			}
		}
		waves = max(waves, all[i].Wave+1)
	}
	sort.SliceStable(all, func(i, j int) bool { return all[i].Wave < all[j].Wave })
	out := []Task{}
	for _, k := range all {
		out = append(out, k.Task)
	}
	return out, waves
}

// TestPlanAgainstOracle compares 100000 random whole plans, shares and canaries among
// them, with the rules said in another way.
func TestPlanAgainstOracle(t *testing.T) {
	r := rand.New(rand.NewPCG(testSeed(t), 3))
	made, canaries, cut, many := 0, 0, 0, 0
	for n := range 100_000 {
		shards := 1 + r.IntN(4)
		o := Object{Key: testKey, Generation: 1, StripeBytes: Align}
		for i := range r.IntN(13) {
			s := Stripe{Index: uint32(i), Shard: r.IntN(shards), Offset: o.Size, Length: 1 + r.Uint64N(Align)}
			o.Size += s.Length
			o.Placement.Stripes = append(o.Placement.Stripes, s)
		}
		rails := randomRails(r, shards)
		for i := range rails {
			if r.IntN(3) == 0 {
				rails[i].Share = 1 + r.IntN(fullShare)
			}
			for _, s := range rails[i].Shards {
				if r.IntN(6) == 0 {
					rails[i].Canary = append(rails[i].Canary, s)
				}
			}
		}
		lim := DefaultLimits()
		lim.TaskMaxStripes, lim.MaxConnsPerRail, lim.MaxConns = r.IntN(4), 1+r.IntN(3), 1+r.IntN(5)
		var only []uint32
		stripes := make([]uint32, len(o.Placement.Stripes))
		for i := range stripes {
			stripes[i] = uint32(i)
		}
		if r.IntN(3) == 0 {
			only = []uint32{}
			for _, i := range r.Perm(len(stripes)) {
				if r.IntN(2) == 0 {
					only = append(only, uint32(i))
				}
			}
			stripes = slices.Sorted(slices.Values(only))
		}
		loads := make([]load, len(stripes))
		for i, s := range stripes {
			loads[i] = load{o.Placement.Stripes[s].Length, o.Placement.Stripes[s].Shard}
		}
		of := oracleSplit(loads, rails)
		p, err := BuildPlan(&o, rails, lim, only)
		if of == nil && len(loads) > 0 {
			if err == nil {
				t.Fatalf("plan %d: %+v of a shard that no rail reaches", n, p)
			}
			continue
		}
		if err != nil {
			t.Fatalf("plan %d: %v", n, err)
		}
		tasks, waves := oracleTasks(&o, stripes, of, rails, lim)
		if p.Waves != waves || len(tasks) != len(p.Tasks) || len(tasks) > 0 && !reflect.DeepEqual(tasks, p.Tasks) {
			t.Fatalf("plan %d: rails %+v, limits %+v\n%+v in %d waves\noracle %+v in %d", n, rails, lim, p.Tasks, p.Waves, tasks, waves)
		}
		for i := range rails {
			var mine []uint32
			var sum uint64
			for k, s := range stripes {
				if of[k] == i {
					mine, sum = append(mine, s), sum+o.Placement.Stripes[s].Length
				}
			}
			if !slices.Equal(mine, p.Rails[i].Stripes) || sum != p.Rails[i].PlannedBytes {
				t.Fatalf("plan %d, rail %d: stripes %v, %d bytes; oracle %v, %d", n, i, p.Rails[i].Stripes, p.Rails[i].PlannedBytes, mine, sum)
			}
			canaries += len(rails[i].Canary)
		}
		made++
		if waves > 1 {
			many++
		}
		if lim.TaskMaxStripes > 0 {
			cut++
		}
	}
	if made < 50_000 || canaries < 10_000 || cut < 10_000 || many < 10_000 {
		t.Errorf("%d plans, %d canaries, %d cut, %d of several waves: the test shows too little", made, canaries, cut, many)
	}
}
