package object

import (
	"cmp"
	"fmt"
	"math/bits"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
)

// PlanRail is a rail as planning sees it.
type PlanRail struct {
	Name     string
	Device   string
	Provider string
	Fabric   string // empty: not told
	Weight   int
	Shards   []int // that the rail's fabric reaches
	Share    int   // thousandths of the weight that count at present; 0 is all of it
	Canary   []int // of Shards: those that get one stripe over this rail and no more, if another rail reaches them
}

// power is what the rail weighs at present.
func (r *PlanRail) power() uint64 { return uint64(r.Weight) * uint64(r.share()) }

func (r *PlanRail) share() int {
	if r.Share == 0 {
		return fullShare
	}
	return r.Share
}

func (r *PlanRail) reaches(shard int) bool { return slices.Contains(r.Shards, shard) }

// Plan says which rail carries which stripe. It is exact: a read that finishes on
// it has moved these bytes over these rails and no others.
type Plan struct {
	Namespace   string     `json:"namespace"`
	Object      string     `json:"object"`
	Generation  uint64     `json:"generation"`
	Bytes       uint64     `json:"bytes"`
	StripeBytes uint64     `json:"stripe_bytes"`
	Stripes     int        `json:"stripes"`
	Rails       []RailPlan `json:"rails"`
	Tasks       []Task     `json:"tasks"`
	Waves       int        `json:"waves"`
	Excluded    []string   `json:"excluded,omitempty"` // rails and paths that are not planned with, and why
}

// RailPlan is the share of one rail.
type RailPlan struct {
	Name         string   `json:"name"`
	Device       string   `json:"device"`
	Provider     string   `json:"provider"`
	Weight       int      `json:"weight"`
	Share        int      `json:"share_permille"`   // of the weight that counts: less than 1000 on probation, or when the rail is slow
	Canary       []int    `json:"canary,omitempty"` // shards that get one stripe over this rail, to see whether it works again
	PlannedBytes uint64   `json:"planned_bytes"`
	Stripes      []uint32 `json:"stripes"`
}

// Task is what one connection carries: stripes of one shard over one rail.
type Task struct {
	Wave    int      `json:"wave"` // from 0: the wave in which the caps let it run
	Rail    string   `json:"rail"`
	Shard   int      `json:"shard"`
	Bytes   uint64   `json:"bytes"`
	Stripes []uint32 `json:"stripes"`

	rail int // index in Plan.Rails
}

// load is a piece of work to be split: bytes that must go to or come from a shard.
type load struct {
	bytes uint64
	shard int
}

// split gives each load, in order, to the rail that reaches its shard and whose
// (bytes so far + bytes of the load) / power is smallest, power being weight times
// share. The fractions are compared exactly, by cross multiplication in 128 bits. Of
// equals the more powerful rail takes it; of equally powerful ones the one that has
// the fewest bytes of that shard, so that shards whose stripes take turns do not each
// end up on one rail; then the first in the list.
//
// A rail that is a canary for a shard gets one load of it and no more, as long as
// there is a rail that is not.
func split(loads []load, rails []PlanRail) ([]int, error) {
	for i := range rails {
		if rails[i].Weight < 1 || rails[i].share() < 1 || rails[i].share() > fullShare {
			return nil, fmt.Errorf("%w: rail %s has weight %d and share %d; a weight is at least 1, a share at most %d", ErrBadRequest, rails[i].Name, rails[i].Weight, rails[i].Share, fullShare)
		}
	}
	sums := make([]uint64, len(rails))
	of := map[[2]int]uint64{} // bytes of a shard on a rail
	sung := map[[2]int]bool{} // canaries that have their load
	out := make([]int, len(loads))
	for i, l := range loads {
		best := -1
		pick := func(canaries bool) {
			for r := range rails {
				if !rails[r].reaches(l.shard) || !canaries && sung[[2]int{l.shard, r}] {
					continue
				}
				if best < 0 {
					best = r
					continue
				}
				p, q := rails[r].power(), rails[best].power()
				c := cmpFrac(sums[r]+l.bytes, p, sums[best]+l.bytes, q)
				if c == 0 {
					c = cmp.Compare(q, p)
				}
				if c < 0 || c == 0 && of[[2]int{l.shard, r}] < of[[2]int{l.shard, best}] {
					best = r
				}
			}
		}
		if pick(false); best < 0 {
			pick(true)
		}
		if best < 0 {
			return nil, fmt.Errorf("%w: none of the rails %s reaches shard %d", ErrNoRails, railNames(rails), l.shard)
		}
		sums[best] += l.bytes
		at := [2]int{l.shard, best}
		of[at] += l.bytes
		if slices.Contains(rails[best].Canary, l.shard) {
			sung[at] = true
		}
		out[i] = best
	}
	return out, nil
}

// cmpFrac compares a/wa with b/wb without dividing.
func cmpFrac(a, wa, b, wb uint64) int {
	h1, l1 := bits.Mul64(a, wb)
	h2, l2 := bits.Mul64(b, wa)
	switch {
	case h1 != h2 && h1 < h2, h1 == h2 && l1 < l2:
		return -1
	case h1 == h2 && l1 == l2:
		return 0
	}
	return 1
}

func railNames(rails []PlanRail) string {
	if len(rails) == 0 {
		return "(none)"
	}
	var n []string
	for i := range rails {
		n = append(n, rails[i].Name)
	}
	return strings.Join(n, ", ")
}

// BuildPlan plans the given stripes of a validated object, all of them if only is
// nil, over the rails.
func BuildPlan(o *Object, rails []PlanRail, lim Limits, only []uint32) (*Plan, error) {
	p := &Plan{
		Namespace: o.Key.Namespace, Object: o.Key.Name, Generation: o.Generation,
		Bytes: o.Size, StripeBytes: o.StripeBytes, Stripes: len(o.Placement.Stripes),
	}
	for i := range rails {
		r := &rails[i]
		p.Rails = append(p.Rails, RailPlan{Name: r.Name, Device: r.Device, Provider: r.Provider, Weight: r.Weight, Share: r.share(), Canary: r.Canary, Stripes: []uint32{}})
	}
	stripes := stripesInOrder(o, only)
	loads := make([]load, len(stripes))
	for i, s := range stripes {
		if err := lim.stripeFits(s.Length); err != nil {
			return nil, err
		}
		loads[i] = load{s.Length, s.Shard}
	}
	of, err := split(loads, rails)
	if err != nil {
		return nil, err
	}
	for i, s := range stripes {
		r := &p.Rails[of[i]]
		r.PlannedBytes += s.Length
		r.Stripes = append(r.Stripes, s.Index)
	}
	p.Tasks = makeTasks(stripes, of, p.Rails, lim.TaskMaxStripes)
	p.Waves = planWaves(p.Tasks, len(rails), lim.MaxConnsPerRail, lim.MaxConns)
	return p, nil
}

// stripesInOrder gives the object's stripes by index.
func stripesInOrder(o *Object, only []uint32) []*Stripe {
	all := make([]*Stripe, len(o.Placement.Stripes))
	for i := range o.Placement.Stripes {
		all[o.Placement.Stripes[i].Index] = &o.Placement.Stripes[i]
	}
	if only == nil {
		return all
	}
	only = slices.Clone(only)
	slices.Sort(only)
	out := make([]*Stripe, len(only))
	for i, x := range only {
		out[i] = all[x]
	}
	return out
}

// makeTasks groups the stripes of each rail by shard and cuts the groups at most
// stripes (0: not at all). The tasks of the rails take turns, so that a cap on all
// of them does not favour the first rail.
func makeTasks(stripes []*Stripe, of []int, rails []RailPlan, most int) []Task {
	type group struct{ rail, shard int }
	open := map[group]int{} // index of the group's unfinished task in its rail's list
	perRail := make([][]Task, len(rails))
	for i, s := range stripes {
		g := group{of[i], s.Shard}
		at, ok := open[g]
		if !ok || most > 0 && len(perRail[g.rail][at].Stripes) == most {
			at = len(perRail[g.rail])
			open[g] = at
			perRail[g.rail] = append(perRail[g.rail], Task{Rail: rails[g.rail].Name, Shard: g.shard, rail: g.rail})
		}
		t := &perRail[g.rail][at]
		t.Stripes = append(t.Stripes, s.Index)
		t.Bytes += s.Length
	}
	out := []Task{}
	for turn, more := 0, true; more; turn++ {
		more = false
		for r := range perRail {
			if turn < len(perRail[r]) {
				out = append(out, perRail[r][turn])
				more = true
			}
		}
	}
	return out
}

// planWaves puts each task into the first wave that has room for it under both
// caps, and returns the number of waves.
func planWaves(tasks []Task, rails, perRail, total int) int {
	var sums []int     // of all rails, by wave
	var counts [][]int // by wave and rail
	for i := range tasks {
		w := 0
		for w < len(sums) && (sums[w] >= total || counts[w][tasks[i].rail] >= perRail) {
			w++
		}
		if w == len(sums) {
			sums = append(sums, 0)
			counts = append(counts, make([]int, rails))
		}
		sums[w]++
		counts[w][tasks[i].rail]++
		tasks[i].Wave = w
	}
	slices.SortStableFunc(tasks, func(a, b Task) int { return a.Wave - b.Wave })
	return len(sums)
}

// String is the plan for people: one row a rail, one row a task.
func (p *Plan) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s/%s generation %d: %d bytes, %d stripes of %d, %d tasks in %d waves\n",
		p.Namespace, p.Object, p.Generation, p.Bytes, p.Stripes, p.StripeBytes, len(p.Tasks), p.Waves)
	var sum uint64
	for i := range p.Rails {
		sum += p.Rails[i].PlannedBytes
	}
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	canaries := slices.ContainsFunc(p.Rails, func(r RailPlan) bool { return len(r.Canary) > 0 })
	note := func(s string) string {
		if !canaries {
			return ""
		}
		return "\t" + s
	}
	fmt.Fprintln(w, "RAIL\tDEVICE\tPROVIDER\tWEIGHT\tSTRIPES\tBYTES\tSHARE"+note("NOTE"))
	for i := range p.Rails {
		r := &p.Rails[i]
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d\t%d\t%s%s\n", r.Name, r.Device, r.Provider, r.weight(), len(r.Stripes), r.PlannedBytes, percent(r.PlannedBytes, sum), note(r.note()))
	}
	_ = w.Flush() // writes to a strings.Builder
	fmt.Fprintln(w, "\nWAVE\tRAIL\tSHARD\tSTRIPES\tBYTES")
	for i := range p.Tasks {
		t := &p.Tasks[i]
		fmt.Fprintf(w, "%d\t%s\t%d\t%d\t%d\n", t.Wave, t.Rail, t.Shard, len(t.Stripes), t.Bytes)
	}
	_ = w.Flush()
	for _, x := range p.Excluded {
		fmt.Fprintf(&b, "not used: %s\n", x)
	}
	return b.String()
}

// weight is the weight, and what counts of it.
func (r *RailPlan) weight() string {
	if r.Share == fullShare {
		return strconv.Itoa(r.Weight)
	}
	return fmt.Sprintf("%d x %d.%d%%", r.Weight, r.Share/10, r.Share%10)
}

func (r *RailPlan) note() string {
	if len(r.Canary) == 0 {
		return "-"
	}
	return fmt.Sprintf("canary to shards %s", strings.Trim(fmt.Sprint(r.Canary), "[]"))
}

// percent is a share in hundredths of a percent, rounded down, by integers.
func percent(part, whole uint64) string {
	if whole == 0 {
		return "0.00%"
	}
	h, l := bits.Mul64(part, 10000)
	q, _ := bits.Div64(h, l, whole) // part <= whole, so h < whole
	return fmt.Sprintf("%d.%02d%%", q/100, q%100)
}
