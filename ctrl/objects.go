package ctrl

import (
	"context"

	"github.com/railstore/railstore/ctrl/internal/pb"
	"github.com/railstore/railstore/pipeline"
)

// Lookup gives an object with its stripes; found is false when there is none.
func (c *Client) Lookup(ctx context.Context, key ObjectKey) (o Object, found bool, err error) {
	const op = "lookup"
	if err := key.Validate(); err != nil {
		return Object{}, false, c.fail(op, pipeline.Nowhere, err)
	}
	reply, err := call(ctx, c, op, pipeline.Nowhere, func(ctx context.Context) (*pb.LookupReply, error) {
		return c.cat.Lookup(ctx, &pb.LookupRequest{Identity: c.identity(), Key: keyToPB(key)})
	})
	if err != nil {
		return Object{}, false, err
	}
	o, found, err = c.placed(op, reply.GetFound())
	o.Placement.Shards = shardRailsFromPB(reply.GetShards())
	return o, found, err
}

func (c *Client) placed(op string, p *pb.Placed) (Object, bool, error) {
	if p == nil {
		return Object{}, false, nil
	}
	o, err := placedFromPB(p)
	return o, err == nil, c.fail(op, pipeline.Nowhere, err)
}

// Begin reserves the next generation of a key. It is never given out again, also
// when it is never committed.
func (c *Client) Begin(ctx context.Context, key ObjectKey) (generation uint64, err error) {
	const op = "begin"
	if err := key.Validate(); err != nil {
		return 0, c.fail(op, pipeline.Nowhere, err)
	}
	reply, err := call(ctx, c, op, pipeline.Nowhere, func(ctx context.Context) (*pb.BeginReply, error) {
		return c.cat.Begin(ctx, &pb.BeginRequest{Identity: c.identity(), Key: keyToPB(key)})
	})
	return reply.GetGeneration(), err
}

// Commit makes o the object of its key if the present generation is expect (0:
// there is none, AnyOlder: any older one). old is what it replaced, whose stripes
// can go; call Forget when they are gone. A *ConflictError says that somebody else
// was faster.
func (c *Client) Commit(ctx context.Context, o Object, expect uint64) (old Object, replaced bool, err error) {
	const op = "commit"
	if err := o.Key.Validate(); err != nil {
		return Object{}, false, c.fail(op, pipeline.Nowhere, err)
	}
	if n := len(o.Placement.Stripes); n > MaxStripes {
		return Object{}, false, c.fail(op, pipeline.Nowhere, invalidf("placement.stripes", "%d, at most %d are allowed", n, MaxStripes))
	}
	reply, err := call(ctx, c, op, pipeline.Nowhere, func(ctx context.Context) (*pb.CommitReply, error) {
		return c.cat.Commit(ctx, &pb.CommitRequest{Identity: c.identity(), Object: placedToPB(o), Expect: expect})
	})
	if err != nil {
		return Object{}, false, err
	}
	return c.placed(op, reply.GetOld())
}

// Delete takes an object out if its generation is the one given (AnyOlder: any).
// old is what it was, whose stripes can go; call Forget when they are gone. found
// is false when there is no such object.
func (c *Client) Delete(ctx context.Context, key ObjectKey, generation uint64) (old Object, found bool, err error) {
	const op = "delete"
	if err := key.Validate(); err != nil {
		return Object{}, false, c.fail(op, pipeline.Nowhere, err)
	}
	reply, err := call(ctx, c, op, pipeline.Nowhere, func(ctx context.Context) (*pb.DeleteReply, error) {
		return c.cat.Delete(ctx, &pb.DeleteRequest{Identity: c.identity(), Key: keyToPB(key), Generation: generation})
	})
	if err != nil {
		return Object{}, false, err
	}
	return c.placed(op, reply.GetOld())
}

// List gives objects without their stripes, in the order of their keys, and
// whether there are more: ask again with After set to the last key.
func (c *Client) List(ctx context.Context, q ListQuery) (objects []Object, more bool, err error) {
	const op = "list"
	if err := q.validate(); err != nil {
		return nil, false, c.fail(op, pipeline.Nowhere, err)
	}
	req := &pb.ListRequest{Identity: c.identity(), Namespace: q.Namespace, Prefix: q.Prefix, Limit: i32(q.Limit), Over: q.Over}
	if q.After != (ObjectKey{}) {
		req.After = keyToPB(q.After)
	}
	reply, err := call(ctx, c, op, pipeline.Nowhere, func(ctx context.Context) (*pb.ListReply, error) { return c.cat.List(ctx, req) })
	if err != nil {
		return nil, false, err
	}
	for _, p := range reply.GetObjects() {
		o, err := objectFromPB(p)
		if err != nil {
			return nil, false, c.fail(op, pipeline.Nowhere, err)
		}
		objects = append(objects, o)
	}
	return objects, reply.GetMore(), nil
}

// Garbage gives the next object, after one of a key and generation (zero: the
// first), that a commit or a delete took out and whose stripes nobody has said to
// be removed.
func (c *Client) Garbage(ctx context.Context, after ObjectKey, generation uint64) (o Object, found bool, err error) {
	const op = "garbage"
	req := &pb.GarbageRequest{Identity: c.identity(), AfterGeneration: generation}
	if after != (ObjectKey{}) {
		req.After = keyToPB(after)
	}
	reply, err := call(ctx, c, op, pipeline.Nowhere, func(ctx context.Context) (*pb.GarbageReply, error) { return c.cat.Garbage(ctx, req) })
	if err != nil {
		return Object{}, false, err
	}
	return c.placed(op, reply.GetObject())
}

// Forget says that the stripes of an object that was taken out are removed.
func (c *Client) Forget(ctx context.Context, key ObjectKey, generation uint64) error {
	const op = "forget"
	if err := key.Validate(); err != nil {
		return c.fail(op, pipeline.Nowhere, err)
	}
	_, err := call(ctx, c, op, pipeline.Nowhere, func(ctx context.Context) (*pb.ForgetReply, error) {
		return c.cat.Forget(ctx, &pb.ForgetRequest{Identity: c.identity(), Key: keyToPB(key), Generation: generation})
	})
	return err
}

// ForgetShard says that the stripes of an object that was taken out are removed
// from one shard. When no shard has any the control plane forgets it.
func (c *Client) ForgetShard(ctx context.Context, key ObjectKey, generation uint64, shard int) error {
	const op = "forget"
	if err := key.Validate(); err != nil {
		return c.fail(op, pipeline.Nowhere, err)
	}
	_, err := call(ctx, c, op, pipeline.Nowhere, func(ctx context.Context) (*pb.ForgetShardReply, error) {
		return c.cat.ForgetShard(ctx, &pb.ForgetShardRequest{Identity: c.identity(), Key: keyToPB(key), Generation: generation, Shard: uint32(i32(shard))})
	})
	return err
}

// Expire takes objects whose time is over out, at most so many, and tells how many
// there were and whether there are more. Their stripes are garbage then.
func (c *Client) Expire(ctx context.Context, most int) (n int, more bool, err error) {
	const op = "expire"
	reply, err := call(ctx, c, op, pipeline.Nowhere, func(ctx context.Context) (*pb.ExpireReply, error) {
		return c.cat.Expire(ctx, &pb.ExpireRequest{Identity: c.identity(), Most: i32(most)})
	})
	return int(reply.GetExpired()), reply.GetMore(), err
}

// LookupMany gives objects with their stripes, in the order of the keys, in as few
// questions as their placements allow. What is not there has generation 0.
func (c *Client) LookupMany(ctx context.Context, keys []ObjectKey) ([]Object, error) {
	const op = "lookup"
	for _, k := range keys {
		if err := k.Validate(); err != nil {
			return nil, c.fail(op, pipeline.Nowhere, err)
		}
	}
	var out []Object
	for len(out) < len(keys) {
		req := &pb.LookupManyRequest{Identity: c.identity()}
		for _, k := range keys[len(out):min(len(keys), len(out)+MaxLookups)] {
			req.Keys = append(req.Keys, keyToPB(k))
		}
		reply, err := call(ctx, c, op, pipeline.Nowhere, func(ctx context.Context) (*pb.LookupManyReply, error) {
			return c.cat.LookupMany(ctx, req)
		})
		if err != nil {
			return nil, err
		}
		if n := len(reply.GetReplies()); n == 0 || n > len(req.Keys) {
			return nil, c.fail(op, pipeline.Nowhere, invalidf("replies", "%d to %d keys", n, len(req.Keys)))
		}
		for _, r := range reply.GetReplies() {
			o, _, err := c.placed(op, r.GetFound())
			if err != nil {
				return nil, err
			}
			o.Placement.Shards = shardRailsFromPB(r.GetShards())
			if want := keys[len(out)]; o.Generation != 0 && o.Key != want {
				return nil, c.fail(op, pipeline.Nowhere, invalidf("key", "asked for %s, got %s", want, o.Key))
			}
			out = append(out, o)
		}
	}
	return out, nil
}
