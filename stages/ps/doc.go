// Package ps is the parameter server: it serves the tables of stages/table over the
// lanes of stages/lanes, and has the client that calls them.
//
// # At a shard
//
//	Slabs      table.Memory whose chunks are registered on every rail
//	Service    answers the operations of family 0x02 (message.go, docs/ps-protocol.md);
//	           a lane.Handler, and Sort tells who serves which request
//
// A GET is answered in the response slot (staging_copy: one copy, from the table into
// the slot) or gathered from the slabs by RDMA straight into memory of the client
// (direct_sg), while a Pin keeps the rows. A PUT or UPDATE carries its rows in the
// request slot (push) or the shard READs them (read). Everything that a request says is
// checked against the slot, the table and the limits before anything is touched.
//
// # At a client
//
//	s, err := ps.OpenSession(ctx, ps.SessionConfig{...})  // or ps.Attach over lanes that are there
//	err = s.Init(ctx, table.Spec{Name: "user", Dim: 64})  // on every shard, idempotent
//	t, err := s.Table(ctx, "user")
//	err = t.Get(ctx, keys, rows, found)                   // found may be nil
//	err = t.Put(ctx, keys, rows)
//	err = t.Update(ctx, keys, grads)
//	err = t.Exists(ctx, keys, found); n, err := t.Delete(ctx, keys); err = t.Clear(ctx)
//	h, err := t.StartGet(ctx, keys, rows, found)          // StartPut, StartUpdate
//	err = h.Wait(ctx)                                     // exactly once
//	p, err := t.Prefetch(ctx, keys); err = p.Take(ctx, rows, found) // exactly once
//	err = t.On(shard).Get(ctx, keys, rows, nil)           // an explicit shard, no routing
//	err = s.Barrier(ctx, "epoch 3", parties)
//	snap, err := s.Save(ctx, "nightly", ""); snap, err = s.Load(ctx, "nightly")
//	snap, err = s.Save(ctx, "hourly", "nightly")             // what has changed since
//	sc := t.Scan(); keys, shard, err := sc.Next(ctx)         // every key, in no order; then io.EOF
//	err = s.Drop(ctx, "user"); infos, err := s.Tables(ctx); st, err := s.Stats(ctx, shard)
//
// Keys go to shards by ShardOf. A batch is cut into chunks that fit a slot; chunks to all
// shards are under way at once, and no call waits for a slot while it holds another one,
// so calls cannot block each other for ever. Slices that are given to Start… belong to
// the client until Wait has returned.
//
// A batch that fails is a *BatchError with a *ShardError for each part that failed: which
// positions of the caller's batch, and whether they were applied (no, or unknown: no
// answer came). All other positions were done. GETs are tried again at the shard that
// failed alone, and so are UPDATEs: each chunk has a token, and a shard applies a token
// once. PUTs are sent once. Client.Resume sends what is missing of a PUT or UPDATE.
//
// # The op layer
//
// FromEnv gives an Op, configured by environment variables only. It connects at the first
// call that has keys. Its asynchronous calls give numbers: AsyncGet, Prefetch, SubmitUpdate.
//
// Owns: Service, Slabs, Client, Table, Handle, Prefetch, Scan, Snapshot, Session, Op, ShardOf, the slot protocol.
// Imports: pipeline, cue/deploy, verbs, verbs/lane, ctrl, stages/rail, stages/lanes, stages/table.
// Goroutines: at a shard one for each SAVE or LOAD that was prepared, which Service.Close waits for. At a
// client those of calls to all shards at once, which are waited for. Requests are served
// on the goroutines of the lanes' poller and acceptor.
// Locks: Op.connecting is held while a session is opened and closed. Client.mu (free
// batches, tables), Staging.mu, Service.mu, Op.mu, Slabs.mu, owners.mu and fence.mu are leaves, but
// for Service.mu, under which the store's own lock of its tables is taken; none is held
// over a call of a lane. Slabs.mu is taken under the table store's lock.
package ps
