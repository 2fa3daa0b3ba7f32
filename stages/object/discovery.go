package object

import (
	"fmt"
	"slices"

	"github.com/railstore/railstore/ctrl"
)

// advice is which fabrics lead to a shard at present, by what the placement advertises.
// A shard that is not in it may be reached over any; so may all of them when the control
// plane is one that advertises nothing.
type advice map[int][]ctrl.ShardRail

// adviceOf reads what a placement advertises. It must be about shards that have stripes
// of the object, and name each of them and each of their rails once.
func adviceOf(o *Object) (advice, error) {
	if len(o.Placement.Shards) == 0 {
		return nil, nil
	}
	owners := shardsOf(o, span{first: 0, last: uint32(len(o.Placement.Stripes))})
	out := advice{}
	for _, s := range o.Placement.Shards {
		switch _, twice := out[s.Shard]; {
		case !slices.Contains(owners, s.Shard):
			return nil, fmt.Errorf("%w: it advertises rails of shard %d, which has no stripe", ErrDescriptor, s.Shard)
		case twice:
			return nil, fmt.Errorf("%w: it advertises shard %d twice", ErrDescriptor, s.Shard)
		}
		for i, r := range s.Rails {
			if r.Name == "" || r.Fabric == "" {
				return nil, fmt.Errorf("%w: rail %q of shard %d is on fabric %q: neither may be empty", ErrDescriptor, r.Name, s.Shard, r.Fabric)
			}
			if slices.ContainsFunc(s.Rails[:i], func(o ctrl.ShardRail) bool { return o.Name == r.Name }) {
				return nil, fmt.Errorf("%w: it advertises rail %s of shard %d twice", ErrDescriptor, r.Name, s.Shard)
			}
		}
		out[s.Shard] = s.Rails
	}
	return out, nil
}

// leads reports whether a shard has an active rail on the fabric of a local one.
func (a advice) leads(r *PlanRail, shard int) bool {
	rails, told := a[shard]
	return !told || r.Fabric == "" || slices.ContainsFunc(rails, func(o ctrl.ShardRail) bool { return o.Fabric == r.Fabric })
}

// trusted is the advice about the shards to which it leaves a way. What the control
// plane knows is as old as the last heartbeat: it may spare a read a path that fails, and
// must not cost it the last one.
func (a advice) trusted(rails []PlanRail) advice {
	out := advice{}
	for shard := range a {
		if slices.ContainsFunc(rails, func(r PlanRail) bool { return r.reaches(shard) && a.leads(&r, shard) }) {
			out[shard] = a[shard]
		}
	}
	return out
}

// apply takes the shards that a rail does not lead to, by the advice, out of it.
func (a advice) apply(rails []PlanRail, need func(shard int) bool) (kept []PlanRail, excluded []string) {
	a = a.trusted(rails)
	for _, r := range rails {
		var up []int
		for _, s := range r.Shards {
			if a.leads(&r, s) {
				up = append(up, s)
			} else if need(s) {
				excluded = append(excluded, fmt.Sprintf("%v: shard %d has no active rail on fabric %s", Path{r.Name, s}, s, r.Fabric))
			}
		}
		if r.Shards = up; len(up) > 0 {
			kept = append(kept, r)
		}
	}
	return kept, excluded
}
