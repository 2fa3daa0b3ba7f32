package ctrl

import (
	"context"
	"errors"
	"fmt"
	"math"
	"reflect"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/railstore/railstore/ctrl/internal/pb"
	"github.com/railstore/railstore/verbs"
)

func TestWireRoundTrips(t *testing.T) {
	o := offer("shard/0", 7, 3)
	o.From, o.FromIncarnation, o.ToIncarnation = "client/a", 1<<63, 5
	o.Lanes[0].Endpoint.LID, o.Lanes[1].Error = 65535, "no"
	if got, err := offerFromPB(offerToPB(&o)); err != nil || !reflect.DeepEqual(got, o) {
		t.Errorf("%+v %v", got, err)
	}
	n := NodeStatus{Info: info("shard/1"), Incarnation: 3, State: StateDraining, Reason: "x", Lanes: LaneCounts{1, 2, 3, 4},
		Joined: time.Unix(5, 6).UTC(), Idle: 7 * time.Millisecond}
	n.Info.Started, n.Info.Lease, n.Info.Rails[0].GID = time.Unix(1, 2).UTC(), time.Second, verbs.GID{1, 2, 15: 3}
	if got, err := nodeFromPB(nodeToPB(n)); err != nil || !reflect.DeepEqual(got, n) {
		t.Errorf("%+v %v", got, err)
	}
	ob := object(key, 4, 10, 4)
	if got, err := placedFromPB(placedToPB(ob)); err != nil || !reflect.DeepEqual(got, ob) {
		t.Errorf("%+v %v", got, err)
	}
	for _, id := range []Identity{testIdentity, {}} {
		p := identityToPB(id)
		if p.Namespace != id.Namespace || p.Deployment != id.Deployment || p.Epoch != id.Epoch || p.Digest != id.Digest || p.ProtocolVersion != ProtocolVersion {
			t.Errorf("%+v", p)
		}
	}
}

// What does not fit is refused and not cut off.
func TestWireNarrowing(t *testing.T) {
	lane := func(f func(*pb.Lane)) error {
		o := offer("shard/0", 7, 1)
		p := offerToPB(&o)
		f(p.Lanes[0])
		_, err := offerFromPB(p)
		return err
	}
	rail := func(f func(*pb.Rail)) error {
		p := infoToPB(info("shard/0"))
		f(p.Rails[0])
		_, err := infoFromPB(p)
		return err
	}
	stripe := func(f func(*pb.Stripe)) error {
		p := placedToPB(object(key, 4, 10, 4))
		f(p.Stripes[0])
		_, err := placedFromPB(p)
		return err
	}
	node := func(f func(*pb.Node)) error {
		p := nodeToPB(NodeStatus{Info: info("shard/0")})
		f(p)
		_, err := nodeFromPB(p)
		return err
	}
	for name, err := range map[string]error{
		"lid":      lane(func(l *pb.Lane) { l.Endpoint.Lid = 1 << 16 }),
		"udp port": lane(func(l *pb.Lane) { l.Endpoint.UdpPort = 1 << 16 }),
		"gid":      lane(func(l *pb.Lane) { l.Endpoint.Gid = make([]byte, 15) }),
		"gid type": lane(func(l *pb.Lane) { l.Endpoint.GidType = 3 }),
		"rail gid": rail(func(r *pb.Rail) { r.Gid = make([]byte, 17) }),
		"rail udp": rail(func(r *pb.Rail) { r.UdpPort = math.MaxUint32 }),
		"shard":    stripe(func(s *pb.Stripe) { s.Shard = math.MaxUint32 }),
		"dir":      stripe(func(s *pb.Stripe) { s.Dir = 1 << 31 }),
		"state":    node(func(n *pb.Node) { n.State = 7 }),
		"no state": node(func(n *pb.Node) { n.State = -1 }),
		"role":     node(func(n *pb.Node) { n.Info.Role = 257 }),
		"time":     node(func(n *pb.Node) { n.Info.Started = &timestamppb.Timestamp{Nanos: -1} }),
		"duration": node(func(n *pb.Node) { n.Idle = &durationpb.Duration{Seconds: 1, Nanos: -1} }),
	} {
		var invalid *InvalidError
		if !errors.As(err, &invalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := lane(func(l *pb.Lane) { l.Endpoint, l.Slots = nil, nil }); err != nil {
		t.Errorf("a lane that is only an error: %v", err)
	}
}

func TestErrorsSurviveTheWire(t *testing.T) {
	for _, c := range []struct {
		err  error
		code codes.Code
	}{
		{&InvalidError{"f", "r"}, codes.InvalidArgument},
		{&ReplacedError{"shard/0"}, codes.FailedPrecondition},
		{&AbsentError{"shard/0", StateDead, "why"}, codes.FailedPrecondition},
		{&StaleOfferError{"a", "b", 1, 2}, codes.FailedPrecondition},
		{&BarrierError{"n", "r"}, codes.Aborted},
		{&ConflictError{key, 1, 2, "r"}, codes.Aborted},
	} {
		st := toStatus(c.err)
		if status.Code(st) != c.code {
			t.Errorf("%v: code %v", c.err, status.Code(st))
		}
		if got := fromStatus(st); !reflect.DeepEqual(got, c.err) {
			t.Errorf("%#v arrives as %#v", c.err, got)
		}
	}
	for _, err := range []error{ErrLeaseLost, ErrStopping, ErrLimit, context.Canceled, context.DeadlineExceeded} {
		if got := fromStatus(toStatus(fmt.Errorf("%w: x", err))); !errors.Is(got, err) {
			t.Errorf("%v arrives as %v", err, got)
		}
	}
	var ie *IdentityError
	if !errors.As(fromStatus(toStatus(&IdentityError{"epoch", "server", "client"})), &ie) || ie.Mine != "client" || ie.Theirs != "server" {
		t.Errorf("%+v", ie)
	}
	var ce *CallError
	if err := fromStatus(toStatus(errors.New("disk"))); !errors.As(err, &ce) || ce.Unreachable() || ce.Error() != "disk" {
		t.Errorf("%v", err)
	}
	if fromStatus(nil) != nil || toStatus(nil) != nil {
		t.Error("nil does not stay nil")
	}
}

// idleServer has the state of a server but no socket.
func idleServer() *Server {
	r, err := NewRegistry(time.Now(), 1, []int{0, 1}, Timing{})
	if err != nil {
		panic(err)
	}
	return &Server{cfg: ServerConfig{Identity: testIdentity}, catalog: NewCatalog(NewMemoryStore(), []int{0, 1}), health: health.NewServer(),
		done: make(chan struct{}), reg: r, changed: make(chan struct{}), watchers: map[NodeID]*watcher{},
		healthy: map[string]healthpb.HealthCheckResponse_ServingStatus{}}
}

// FuzzRequests hands arbitrary bytes to every call as its request. Nothing may
// panic or hang, and the registry must stay whole.
func FuzzRequests(f *testing.F) {
	add := func(which byte, m proto.Message) {
		b, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(which, b)
	}
	o := offer("shard/1", 1, 2)
	o.From = "shard/0"
	member := &pb.Member{Id: "shard/0", Incarnation: 1}
	add(0, &pb.JoinRequest{Info: infoToPB(info("client/a")), Incarnation: 4, Rejoin: true, Peers: []*pb.Member{{Id: "shard/1", Incarnation: 8}}})
	add(1, &pb.HeartbeatRequest{Member: member, HasRails: true, Rails: railsToPB(info("shard/0").Rails)})
	add(2, &pb.SetStateRequest{Member: member, State: pb.State_STATE_SERVING, Reason: "x"})
	add(3, &pb.LeaveRequest{Member: member})
	add(4, &pb.PublishRequest{Member: member, Offer: offerToPB(&o)})
	add(5, &pb.WaitRequest{Ids: []string{"shard/0"}, AtMost: durationpb.New(time.Nanosecond)})
	add(6, &pb.NodesRequest{Ids: []string{"shard/0"}})
	add(7, &pb.ArriveRequest{Member: member, Name: "b", Parties: 1, Ticket: 3})
	add(8, &pb.WithdrawRequest{Member: member, Name: "b", Ticket: 3})
	add(9, &pb.StopRequest{Reason: "x"})
	add(10, &pb.LookupRequest{Key: keyToPB(key)})
	add(11, &pb.BeginRequest{Key: keyToPB(key)})
	add(12, &pb.CommitRequest{Object: placedToPB(object(key, 1, 10, 4))})
	add(13, &pb.DeleteRequest{Key: keyToPB(key), Generation: 1})
	add(14, &pb.ListRequest{Namespace: "kv", Limit: 3})
	add(15, &pb.GarbageRequest{After: keyToPB(key)})
	add(16, &pb.ForgetRequest{Key: keyToPB(key), Generation: 1})
	add(17, &pb.ForgetShardRequest{Key: keyToPB(key), Generation: 1, Shard: 1})
	add(18, &pb.ExpireRequest{Most: 10})
	add(19, &pb.LookupManyRequest{Keys: []*pb.ObjectKey{keyToPB(key), keyToPB(key)}})
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	f.Fuzz(func(t *testing.T, which byte, data []byte) {
		s := idleServer()
		for i, id := range []NodeID{"shard/0", "shard/1"} {
			if _, err := s.reg.Join(time.Now(), JoinRequest{Info: info(id), Incarnation: uint64(i + 1)}); err != nil {
				t.Fatal(err)
			}
		}
		c, cat := &controlService{s: s}, &catalogService{s: s}
		if _, err := cat.Begin(ctx, &pb.BeginRequest{Key: keyToPB(key)}); err != nil {
			t.Fatal(err)
		}
		try := []func(){
			func() { feed(ctx, data, &pb.JoinRequest{}, c.Join) },
			func() { feed(ctx, data, &pb.HeartbeatRequest{}, c.Heartbeat) },
			func() { feed(ctx, data, &pb.SetStateRequest{}, c.SetState) },
			func() { feed(ctx, data, &pb.LeaveRequest{}, c.Leave) },
			func() { feed(ctx, data, &pb.PublishRequest{}, c.Publish) },
			func() { feed(ctx, data, &pb.WaitRequest{}, c.Wait) },
			func() { feed(ctx, data, &pb.NodesRequest{}, c.Nodes) },
			func() { feed(ctx, data, &pb.ArriveRequest{}, c.Arrive) },
			func() { feed(ctx, data, &pb.WithdrawRequest{}, c.Withdraw) },
			func() { feed(ctx, data, &pb.StopRequest{}, c.Stop) },
			func() { feed(ctx, data, &pb.LookupRequest{}, cat.Lookup) },
			func() { feed(ctx, data, &pb.BeginRequest{}, cat.Begin) },
			func() { feed(ctx, data, &pb.CommitRequest{}, cat.Commit) },
			func() { feed(ctx, data, &pb.DeleteRequest{}, cat.Delete) },
			func() { feed(ctx, data, &pb.ListRequest{}, cat.List) },
			func() { feed(ctx, data, &pb.GarbageRequest{}, cat.Garbage) },
			func() { feed(ctx, data, &pb.ForgetRequest{}, cat.Forget) },
			func() { feed(ctx, data, &pb.ForgetShardRequest{}, cat.ForgetShard) },
			func() { feed(ctx, data, &pb.ExpireRequest{}, cat.Expire) },
			func() { feed(ctx, data, &pb.LookupManyRequest{}, cat.LookupMany) },
		}
		try[int(which)%len(try)]()
		var w pb.WatchReply
		if proto.Unmarshal(data, &w) == nil {
			if apply, _, err := changeOf(&w, &Snapshot{}); err == nil && apply != nil {
				v := newView()
				apply(v)
				newCursor(v).next(v)
			}
		}
		var d pb.Detail
		if proto.Unmarshal(data, &d) == nil {
			_ = fromDetail(&d)
		}
		for _, n := range s.reg.Nodes(time.Now()) {
			if err := n.Info.ID.Validate(); err != nil {
				t.Fatal(err)
			}
			if n.State == StateUnknown || n.State.Ended() {
				continue
			}
			snap, err := s.reg.Snapshot(n.Info.ID, n.Incarnation)
			if err != nil {
				t.Fatal(err)
			}
			for _, o := range snap.Offers {
				if err := o.validate(); err != nil {
					t.Fatal(err)
				}
			}
		}
	})
}

func feed[Q proto.Message, R any](ctx context.Context, data []byte, q Q, f func(context.Context, Q) (R, error)) {
	if proto.Unmarshal(data, q) == nil {
		_, err := f(ctx, q)
		_ = toStatus(err)
	}
}
