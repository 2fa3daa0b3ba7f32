package ctrl

import (
	"slices"

	"github.com/railstore/railstore/ctrl/internal/pb"
)

// shardRails are the active rails of the shards that have stripes of an object, by
// shard. A shard that is not there has none; nor has one of which nothing is known.
func (s *Server) shardRails(o *Object) (out []*pb.ShardRails) {
	var shards []int
	for i := range o.Placement.Stripes {
		if id := o.Placement.Stripes[i].Shard; !slices.Contains(shards, id) {
			shards = append(shards, id)
		}
	}
	slices.Sort(shards)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range shards {
		n := s.reg.nodes[ShardID(id)]
		if n == nil || n.state.Ended() {
			continue
		}
		r := &pb.ShardRails{Shard: uint32(id)}
		for i := range n.info.Rails {
			if rail := &n.info.Rails[i]; rail.State == "active" || rail.State == "" {
				r.Rails = append(r.Rails, &pb.ShardRail{Name: rail.Name, Fabric: rail.Fabric, Device: rail.Device, Gid: rail.GID.String()})
			}
		}
		out = append(out, r)
	}
	return out
}

// shardRailsFromPB takes as much as a placement may have; what it means is for the
// reader to judge.
func shardRailsFromPB(shards []*pb.ShardRails) (out []ShardRails) {
	for _, s := range shards {
		r := ShardRails{Shard: int(s.GetShard())}
		for _, rail := range s.GetRails()[:min(len(s.GetRails()), MaxRails)] {
			r.Rails = append(r.Rails, ShardRail{Name: clip(rail.GetName(), maxRailText), Fabric: clip(rail.GetFabric(), maxRailText), Device: clip(rail.GetDevice(), maxRailText), GID: clip(rail.GetGid(), maxRailText)})
		}
		out = append(out, r)
	}
	return out
}

// maxRailText bounds each word of a shard's rail.
const maxRailText = 255
