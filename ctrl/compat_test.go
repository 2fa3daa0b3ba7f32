package ctrl

import (
	"context"
	"encoding/hex"
	"fmt"
	"net"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/railstore/railstore/ctrl/internal/pb"
)

// Messages that a release before the rails of shards in placements wrote. They are
// bytes on purpose: what this release can write proves nothing about that one.
const (
	oldLookupRequest = "0a12080112026e731a0464656d6f20032a026431120c0a026b7612066c6179657230"
	oldLookupReply   = "0aa0010a5d0a0c0a026b7612066c617965723012066374786f626a1803221030313233343536373839616263646566280130f02e388020" +
		"42080880e2cfaa0610054807520b726f756e642d726f62696e5a1066656463626139383736353433323130121c10012880203210313131313131313131313131" +
		"313131313a03662e3012210801180120802028f00e3210323232323232323232323232323232323a03662e31"
)

func unhex(t *testing.T, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// bytesCodec sends and gives messages as they are.
type bytesCodec struct{}

func (bytesCodec) Name() string                  { return "proto" }
func (bytesCodec) Marshal(v any) ([]byte, error) { return *v.(*[]byte), nil }
func (bytesCodec) Unmarshal(b []byte, v any) error {
	*v.(*[]byte) = append([]byte(nil), b...)
	return nil
}
func bytesOf(s []byte) *[]byte { return &s }
func noField(m *descriptorpb.DescriptorProto, n int32) {
	for i, f := range m.Field {
		if f.GetNumber() == n {
			m.Field = append(m.Field[:i], m.Field[i+1:]...)
			return
		}
	}
}

// oldReply is the message LookupReply as the older release knows it.
func oldReply(t *testing.T) *dynamicpb.Message {
	t.Helper()
	fd := protodesc.ToFileDescriptorProto(pb.File_control_proto)
	for _, m := range fd.MessageType {
		if m.GetName() == "LookupReply" {
			noField(m, 2)
		}
	}
	f, err := protodesc.NewFile(fd, protoregistry.GlobalFiles)
	if err != nil {
		t.Fatal(err)
	}
	return dynamicpb.NewMessage(f.Messages().ByName("LookupReply"))
}

// TestOldClientNewServer: the request of an older client is answered, and it finds in
// the answer all that it knows, and what it does not know it passes over.
func TestOldClientNewServer(t *testing.T) {
	s := startServer(t, ServerConfig{})
	_, key := placedForTest(t, s)
	c, err := grpc.NewClient(s.Addr(), grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.ForceCodec(bytesCodec{})))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	var got []byte
	if err := c.Invoke(ctx, "/"+pb.Catalog_ServiceDesc.ServiceName+"/Lookup", bytesOf(unhex(t, oldLookupRequest)), &got); err != nil {
		t.Fatal(err)
	}
	old := oldReply(t)
	if err := proto.Unmarshal(got, old); err != nil {
		t.Fatal(err)
	}
	if len(old.GetUnknown()) == 0 {
		t.Error("the server told of no rails: the test shows nothing")
	}
	found := old.Get(old.Descriptor().Fields().ByName("found")).Message()
	b, err := proto.Marshal(found.Interface())
	if err != nil {
		t.Fatal(err)
	}
	var placed pb.Placed
	if err := proto.Unmarshal(b, &placed); err != nil {
		t.Fatal(err)
	}
	o, err := placedFromPB(&placed)
	if err != nil || o.Key != key || len(o.Placement.Stripes) != 2 {
		t.Errorf("%+v, %v", o, err)
	}
}

// TestNewClientOldServer: the answer of an older server is an object of which no rails
// are known.
func TestNewClientOldServer(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	reply := unhex(t, oldLookupReply)
	var asked []byte
	old := grpc.NewServer(grpc.ForceServerCodec(bytesCodec{}), grpc.UnknownServiceHandler(func(_ any, st grpc.ServerStream) error {
		var b []byte
		if err := st.RecvMsg(&b); err != nil {
			return err
		}
		m, _ := grpc.MethodFromServerStream(st)
		if m != "/"+pb.Catalog_ServiceDesc.ServiceName+"/Lookup" {
			b = []byte{} // any other answer is empty
			return st.SendMsg(&b)
		}
		asked = b
		return st.SendMsg(&reply)
	}))
	done := make(chan error, 1)
	go func() { done <- old.Serve(ln) }()
	defer func() { old.Stop(); <-done }()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	c, err := Dial(ctx, ln.Addr().String(), testIdentity, ClientOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	o, found, err := c.Lookup(ctx, ObjectKey{"kv", "layer0"})
	if err != nil || !found {
		t.Fatal(found, err)
	}
	want := Object{Key: ObjectKey{"kv", "layer0"}, Handle: "ctxobj", Generation: 3, XXH3: "0123456789abcdef", LayoutVersion: 1, Size: 6000, StripeBytes: 4096,
		Created: time.Unix(1700000000, 5).UTC(), Placement: Placement{Epoch: 7, Policy: "round-robin", LayoutHash: "fedcba9876543210", Stripes: []Stripe{
			{0, 1, 0, 0, 4096, "1111111111111111", "f.0"}, {1, 0, 1, 4096, 1904, "2222222222222222", "f.1"}}}}
	if fmt.Sprintf("%+v", o) != fmt.Sprintf("%+v", want) {
		t.Errorf("%+v\nwant %+v", o, want)
	}
	if hex.EncodeToString(asked) != oldLookupRequest {
		t.Errorf("asked with %x, the older server knows %s", asked, oldLookupRequest)
	}
}

// TestShardRails: a placement tells the active rails of the shards that have stripes,
// and nothing of others; it is neither stored nor part of what is compared.
func TestShardRails(t *testing.T) {
	s := startServer(t, ServerConfig{Shards: []int{0, 1, 2}})
	c, key := placedForTest(t, s)
	ctx := context.Background()
	o, found, err := c.Lookup(ctx, key)
	if err != nil || !found {
		t.Fatal(found, err)
	}
	want := "[{Shard:0 Rails:[{Name:a Fabric:fa Device:dev0 GID:0000:0000:0000:0000:0000:0000:0000:0000}]} {Shard:1 Rails:[{Name:a Fabric:fa Device:dev0 GID:0000:0000:0000:0000:0000:0000:0000:0000} {Name:c Fabric:fc Device:dev2 GID:0000:0000:0000:0000:0000:0000:0000:0000}]}]"
	if got := fmt.Sprintf("%+v", o.Placement.Shards); got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
	// Committing what was looked up does not write the advice.
	gen, err := c.Begin(ctx, key)
	if err != nil {
		t.Fatal(err)
	}
	o.Generation = gen
	if _, _, err := c.Commit(ctx, o, AnyOlder); err != nil {
		t.Fatal(err)
	}
	if kept, _, err := s.catalog.Lookup(key); err != nil || kept.Placement.Shards != nil {
		t.Errorf("%+v, %v", kept.Placement.Shards, err)
	}
	if _, found, err := c.Lookup(ctx, ObjectKey{"kv", "none"}); found || err != nil {
		t.Error(found, err)
	}
}

// placedForTest joins shards with rails and commits an object on two of them.
func placedForTest(t *testing.T, s *Server) (*Client, ObjectKey) {
	t.Helper()
	ctx := context.Background()
	rails := [][]RailInfo{
		{{Name: "a", Fabric: "fa", Device: "dev0", State: "active"}, {Name: "b", Fabric: "fb", Device: "dev1", State: "down"}},
		{{Name: "a", Fabric: "fa", Device: "dev0", State: "active"}, {Name: "c", Fabric: "fc", Device: "dev2", State: "active"}},
		{{Name: "z", Fabric: "fz", Device: "dev9", State: "active"}},
	}
	var c *Client
	for i := range s.cfg.Shards {
		node, err := Dial(ctx, s.Addr(), testIdentity, ClientOptions{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = node.Close() })
		c = node
		if err := c.Join(ctx, NodeInfo{ID: ShardID(i), Role: RoleShard, Host: "h", Rails: rails[i]}); err != nil {
			t.Fatal(err)
		}
	}
	key := ObjectKey{"kv", "layer0"}
	gen, err := c.Begin(ctx, key)
	if err != nil {
		t.Fatal(err)
	}
	o := Object{Key: key, Handle: "ctxobj", Generation: gen, XXH3: "0123456789abcdef", LayoutVersion: 1, Size: 6000, StripeBytes: 4096, Created: time.Unix(1700000000, 0).UTC(),
		Placement: Placement{Epoch: 7, Policy: "round-robin", LayoutHash: "fedcba9876543210", Stripes: []Stripe{
			{0, 1, 0, 0, 4096, "1111111111111111", "f.0"}, {1, 0, 1, 4096, 1904, "2222222222222222", "f.1"}}}}
	if _, _, err := c.Commit(ctx, o, 0); err != nil {
		t.Fatal(err)
	}
	return c, key
}
