package ctrl

import (
	"math"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/railstore/railstore/ctrl/internal/pb"
	"github.com/railstore/railstore/verbs"
)

// This file turns the messages of internal/pb into the types of this package and
// back. What comes from outside is narrowed here, with a check that nothing is cut
// off; what it means is checked by the Validate of each type.

func identityToPB(id Identity) *pb.Identity {
	return &pb.Identity{ProtocolVersion: ProtocolVersion, Namespace: id.Namespace, Deployment: id.Deployment, Epoch: id.Epoch, Digest: id.Digest}
}

func timeToPB(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

func timeFromPB(field string, t *timestamppb.Timestamp) (time.Time, error) {
	if t == nil {
		return time.Time{}, nil
	}
	if err := t.CheckValid(); err != nil {
		return time.Time{}, invalidf(field, "not a time")
	}
	return t.AsTime(), nil
}

func durationFromPB(field string, d *durationpb.Duration) (time.Duration, error) {
	if d == nil {
		return 0, nil
	}
	if err := d.CheckValid(); err != nil {
		return 0, invalidf(field, "not a duration")
	}
	return d.AsDuration(), nil
}

func gidFromPB(field string, b []byte) (g verbs.GID, err error) {
	if len(b) != 0 && len(b) != len(g) {
		return g, invalidf(field, "%d bytes, a GID has %d", len(b), len(g))
	}
	copy(g[:], b)
	return g, nil
}

func u16(field string, v uint32) (uint16, error) {
	if v > math.MaxUint16 {
		return 0, invalidf(field, "%d has more than 16 bits", v)
	}
	return uint16(v), nil
}

// i32 is for values of our own: out of range they become the bound, which the
// other end refuses by name.
func i32(v int) int32 { return int32(min(max(v, math.MinInt32), math.MaxInt32)) }

func railsToPB(rails []RailInfo) []*pb.Rail {
	out := make([]*pb.Rail, len(rails))
	for i, r := range rails {
		out[i] = &pb.Rail{Name: r.Name, Fabric: r.Fabric, Device: r.Device, Provider: r.Provider, GidType: r.GIDType,
			Mtu: i32(r.MTU), Weight: i32(r.Weight), State: r.State, Reason: clip(r.Reason, MaxReasonBytes), UdpPort: uint32(r.UDPPort)}
		if !r.GID.IsZero() {
			out[i].Gid = r.GID[:]
		}
	}
	return out
}

func railsFromPB(rails []*pb.Rail) ([]RailInfo, error) {
	if len(rails) > MaxRails {
		return nil, invalidf("rails", "%d, at most %d are allowed", len(rails), MaxRails)
	}
	out := make([]RailInfo, len(rails))
	for i, r := range rails {
		gid, err := gidFromPB("rails.gid", r.GetGid())
		if err != nil {
			return nil, err
		}
		port, err := u16("rails.udp_port", r.GetUdpPort())
		if err != nil {
			return nil, err
		}
		out[i] = RailInfo{Name: r.GetName(), Fabric: r.GetFabric(), Device: r.GetDevice(), Provider: r.GetProvider(), GID: gid,
			GIDType: r.GetGidType(), MTU: int(r.GetMtu()), Weight: int(r.GetWeight()), State: r.GetState(), Reason: r.GetReason(), UDPPort: port}
	}
	return out, nil
}

func infoToPB(n NodeInfo) *pb.NodeInfo {
	return &pb.NodeInfo{Id: string(n.ID), Role: pb.Role(n.Role), Host: n.Host, Pid: int64(n.PID), Rails: railsToPB(n.Rails),
		Started: timeToPB(n.Started), Lease: durationpb.New(n.Lease)}
}

func infoFromPB(n *pb.NodeInfo) (NodeInfo, error) {
	rails, err := railsFromPB(n.GetRails())
	if err != nil {
		return NodeInfo{}, err
	}
	started, err := timeFromPB("started", n.GetStarted())
	if err != nil {
		return NodeInfo{}, err
	}
	lease, err := durationFromPB("lease", n.GetLease())
	if err != nil {
		return NodeInfo{}, err
	}
	if r := n.GetRole(); r < 0 || r > 255 {
		return NodeInfo{}, invalidf("role", "%d", r)
	}
	return NodeInfo{ID: NodeID(n.GetId()), Role: Role(n.GetRole()), Host: n.GetHost(), PID: int(n.GetPid()), Rails: rails,
		Started: started, Lease: lease}, nil
}

func stateFromPB(s pb.State) (State, error) {
	if s < 0 || int(s) >= len(stateNames) {
		return 0, invalidf("state", "%d is not one", s)
	}
	return State(s), nil
}

func lanesToPB(c LaneCounts) *pb.Lanes {
	return &pb.Lanes{Active: int64(c.Active), Dirty: int64(c.Dirty), Rebuilding: int64(c.Rebuilding), Dead: int64(c.Dead)}
}

func lanesFromPB(c *pb.Lanes) LaneCounts {
	return LaneCounts{Active: int(c.GetActive()), Dirty: int(c.GetDirty()), Rebuilding: int(c.GetRebuilding()), Dead: int(c.GetDead())}
}

func nodeToPB(n NodeStatus) *pb.Node {
	return &pb.Node{Info: infoToPB(n.Info), Incarnation: n.Incarnation, State: pb.State(n.State), Reason: n.Reason,
		Lanes: lanesToPB(n.Lanes), Joined: timeToPB(n.Joined), Idle: durationpb.New(n.Idle)}
}

func nodeFromPB(n *pb.Node) (NodeStatus, error) {
	info, err := infoFromPB(n.GetInfo())
	if err != nil {
		return NodeStatus{}, err
	}
	state, err := stateFromPB(n.GetState())
	if err != nil {
		return NodeStatus{}, err
	}
	joined, err := timeFromPB("joined", n.GetJoined())
	if err != nil {
		return NodeStatus{}, err
	}
	idle, err := durationFromPB("idle", n.GetIdle())
	if err != nil {
		return NodeStatus{}, err
	}
	return NodeStatus{Info: info, Incarnation: n.GetIncarnation(), State: state, Reason: n.GetReason(),
		Lanes: lanesFromPB(n.GetLanes()), Joined: joined, Idle: idle}, nil
}

func offerToPB(o *Offer) *pb.Offer {
	out := &pb.Offer{From: string(o.From), To: string(o.To), Generation: o.Generation, Params: o.Params,
		FromIncarnation: o.FromIncarnation, ToIncarnation: o.ToIncarnation, Lanes: make([]*pb.Lane, len(o.Lanes))}
	for i, l := range o.Lanes {
		e := l.Endpoint
		out.Lanes[i] = &pb.Lane{Rail: l.Rail, PeerRail: l.PeerRail, Fabric: l.Fabric, Index: i32(l.Index), Generation: l.Generation,
			Error: clip(l.Error, MaxReasonBytes),
			Slots: &pb.Region{Addr: l.Slots.Addr, Length: l.Slots.Length, Rkey: l.Slots.RKey},
			Endpoint: &pb.Endpoint{Gid: e.GID[:], GidType: uint32(e.GIDType), Lid: uint32(e.LID), Qpn: e.QPN, Psn: e.PSN,
				Mtu: i32(e.MTU), UdpPort: uint32(e.UDPPort)}}
	}
	return out
}

func offerFromPB(o *pb.Offer) (Offer, error) {
	if len(o.GetLanes()) > MaxLanes {
		return Offer{}, invalidf("lanes", "%d, an offer has at most %d", len(o.GetLanes()), MaxLanes)
	}
	out := Offer{From: NodeID(o.GetFrom()), To: NodeID(o.GetTo()), Generation: o.GetGeneration(), Params: o.GetParams(),
		FromIncarnation: o.GetFromIncarnation(), ToIncarnation: o.GetToIncarnation(), Lanes: make([]LaneMeta, len(o.GetLanes()))}
	for i, l := range o.GetLanes() {
		e, err := endpointFromPB(l.GetEndpoint())
		if err != nil {
			return Offer{}, err
		}
		s := l.GetSlots()
		out.Lanes[i] = LaneMeta{Rail: l.GetRail(), PeerRail: l.GetPeerRail(), Fabric: l.GetFabric(), Index: int(l.GetIndex()), Endpoint: e,
			Slots:      verbs.RemoteRegion{Addr: s.GetAddr(), Length: s.GetLength(), RKey: s.GetRkey()},
			Generation: l.GetGeneration(), Error: l.GetError()}
	}
	return out, nil
}

func endpointFromPB(e *pb.Endpoint) (verbs.Endpoint, error) {
	gid, err := gidFromPB("lanes.endpoint.gid", e.GetGid())
	if err != nil {
		return verbs.Endpoint{}, err
	}
	lid, err := u16("lanes.endpoint.lid", e.GetLid())
	if err != nil {
		return verbs.Endpoint{}, err
	}
	port, err := u16("lanes.endpoint.udp_port", e.GetUdpPort())
	if err != nil {
		return verbs.Endpoint{}, err
	}
	if e.GetGidType() > uint32(verbs.GIDTypeRoCEv2) {
		return verbs.Endpoint{}, invalidf("lanes.endpoint.gid_type", "%d is not one", e.GetGidType())
	}
	return verbs.Endpoint{GID: gid, GIDType: verbs.GIDType(e.GetGidType()), LID: lid, QPN: e.GetQpn(), PSN: e.GetPsn(),
		MTU: int(e.GetMtu()), UDPPort: port}, nil
}

func viewToPB(p PeerView) *pb.PeerView {
	return &pb.PeerView{Id: string(p.ID), Incarnation: p.Incarnation, State: pb.State(p.State), Reason: p.Reason}
}

func viewFromPB(p *pb.PeerView) (PeerView, error) {
	s, err := stateFromPB(p.GetState())
	return PeerView{ID: NodeID(p.GetId()), Incarnation: p.GetIncarnation(), State: s, Reason: p.GetReason()}, err
}

func idsFromPB(ids []string) ([]NodeID, error) {
	if len(ids) > MaxWaitIDs {
		return nil, invalidf("ids", "%d, at most %d are possible", len(ids), MaxWaitIDs)
	}
	out := make([]NodeID, len(ids))
	for i, id := range ids {
		out[i] = NodeID(id)
		if err := out[i].Validate(); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func idsToPB(ids []NodeID) []string {
	out := make([]string, len(ids))
	for i, id := range ids {
		out[i] = string(id)
	}
	return out
}

func keyToPB(k ObjectKey) *pb.ObjectKey { return &pb.ObjectKey{Namespace: k.Namespace, Name: k.Name} }

func keyFromPB(k *pb.ObjectKey) ObjectKey {
	return ObjectKey{Namespace: k.GetNamespace(), Name: k.GetName()}
}

func objectToPB(o Object) *pb.Object {
	out := &pb.Object{Key: keyToPB(o.Key), Handle: o.Handle, Generation: o.Generation, Xxh3: o.XXH3, LayoutVersion: o.LayoutVersion,
		Size: o.Size, StripeBytes: o.StripeBytes, Created: timeToPB(o.Created), PlacementEpoch: o.Placement.Epoch,
		PlacementPolicy: o.Placement.Policy, LayoutHash: o.Placement.LayoutHash, Expires: timeToPB(o.Expires)}
	if o.TTL != 0 {
		out.Ttl = durationpb.New(o.TTL)
	}
	return out
}

func objectFromPB(o *pb.Object) (Object, error) {
	created, err := timeFromPB("created", o.GetCreated())
	if err != nil {
		return Object{}, err
	}
	ttl, err := durationFromPB("ttl", o.GetTtl())
	if err != nil {
		return Object{}, err
	}
	expires, err := timeFromPB("expires", o.GetExpires())
	if err != nil {
		return Object{}, err
	}
	return Object{TTL: ttl, Expires: expires, Key: keyFromPB(o.GetKey()), Handle: o.GetHandle(), Generation: o.GetGeneration(), XXH3: o.GetXxh3(),
		LayoutVersion: o.GetLayoutVersion(), Size: o.GetSize(), StripeBytes: o.GetStripeBytes(), Created: created,
		Placement: Placement{Epoch: o.GetPlacementEpoch(), Policy: o.GetPlacementPolicy(), LayoutHash: o.GetLayoutHash()}}, nil
}

func stripesToPB(stripes []Stripe) []*pb.Stripe {
	out := make([]*pb.Stripe, len(stripes))
	for i, s := range stripes {
		out[i] = &pb.Stripe{Index: s.Index, Shard: uint32(s.Shard), Dir: uint32(s.Dir), Offset: s.Offset, Length: s.Length, Xxh3: s.XXH3, File: s.File}
	}
	return out
}

func stripesFromPB(stripes []*pb.Stripe) ([]Stripe, error) {
	if len(stripes) > MaxStripes {
		return nil, invalidf("placement.stripes", "%d, at most %d are allowed", len(stripes), MaxStripes)
	}
	if len(stripes) == 0 {
		return nil, nil
	}
	out := make([]Stripe, len(stripes))
	for i, s := range stripes {
		if s.GetShard() > math.MaxInt32 || s.GetDir() > math.MaxInt32 {
			return nil, invalidf("placement.stripes.shard, dir", "%d, %d are out of range", s.GetShard(), s.GetDir())
		}
		out[i] = Stripe{Index: s.GetIndex(), Shard: int(s.GetShard()), Dir: int(s.GetDir()), Offset: s.GetOffset(), Length: s.GetLength(),
			XXH3: s.GetXxh3(), File: s.GetFile()}
	}
	return out, nil
}

func placedToPB(o Object) *pb.Placed {
	return &pb.Placed{Object: objectToPB(o), Stripes: stripesToPB(o.Placement.Stripes)}
}

func placedFromPB(p *pb.Placed) (Object, error) {
	o, err := objectFromPB(p.GetObject())
	if err != nil {
		return Object{}, err
	}
	o.Placement.Stripes, err = stripesFromPB(p.GetStripes())
	return o, err
}
