package lanes

import (
	"cmp"
	"maps"
	"slices"

	"github.com/railstore/railstore/verbs/lane"
)

// LaneStatus is one lane as rs status shows it.
type LaneStatus struct {
	Shard      int    `json:"shard"`
	Index      int    `json:"index"`
	Rail       string `json:"rail"`
	Peer       string `json:"peer"`
	State      string `json:"state"`            // active, dirty, rebuilding, dead; at a shard active or dirty
	Reason     string `json:"reason,omitempty"` // why it is not active
	Epoch      uint32 `json:"epoch,omitempty"`  // 1 and one more for each rebuild; clients only
	Generation uint32 `json:"generation"`
	Attempts   int    `json:"attempts"` // to rebuild it, in its life; clients only
}

// Status is the client's lanes, by shard and index. A shard that is absent has
// none.
func (c *Client) Status() (out []LaneStatus) {
	for _, shard := range slices.Sorted(maps.Keys(c.keepers)) {
		k := c.keepers[shard]
		k.mu.Lock()
		for _, w := range k.wards {
			st := LaneStatus{Shard: shard, Index: w.link.Index, Rail: w.link.Rail.Name(), Peer: string(k.id), State: w.lane.State().String(),
				Epoch: w.lane.Flags().Epoch, Generation: w.lane.Generation(), Attempts: w.ledger.attempts}
			if err := w.lane.Err(); err != nil {
				st.Reason = err.Error()
			}
			out = append(out, st)
		}
		k.mu.Unlock()
	}
	return out
}

// Status is the lanes of every client, by client and index.
func (s *Server) Status() (out []LaneStatus) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for p, ls := range s.lanes {
		for i, sl := range ls {
			l := p.Links[i]
			st := LaneStatus{Shard: s.shard, Index: l.Index, Rail: l.Rail.Name(), Peer: string(p.Node), State: lane.Active.String()}
			switch {
			case sl == nil:
				st.State, st.Reason = lane.Dirty.String(), "its client gives it a new QP, or has tried to"
			case sl.Err() != nil:
				st.State, st.Reason, st.Generation = lane.Dirty.String(), sl.Err().Error(), sl.Generation()
			default:
				st.Generation = sl.Generation()
			}
			out = append(out, st)
		}
	}
	slices.SortFunc(out, func(a, b LaneStatus) int { return cmp.Or(cmp.Compare(a.Peer, b.Peer), a.Index-b.Index) })
	return out
}
