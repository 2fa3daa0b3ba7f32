// Package ctrl is the control plane: who takes part in a deployment, what each
// node published for its peers, who is alive, and which objects exist. It is
// served over gRPC by shard 0 and never takes part in the data path.
//
// # Shape
//
// Registry is a pure value: no socket, no clock, no goroutine. Time is an
// argument and every change returns the notices to deliver. Catalog keeps object
// metadata in a Store (memory or a bbolt file). Server puts both behind gRPC,
// Client is the other end.
//
// # Nodes, incarnations, leases
//
// A node joins with an id ("shard/0", "client/7") and an incarnation, a random
// number that its Client draws once per life. A second Join with the same id and
// another incarnation replaces the first: whoever exchanged offers with the old
// one hears PeerGone(old) before anything of the new one. A lease is kept alive
// by heartbeats. A shard is suspect after Timing.Stale without one and dead after
// Timing.Dead; a client is suspect after half its lease and gone after all of it.
//
// An offer belongs to an ordered pair of incarnations and lives as long as both.
//
// # When the control plane restarts
//
// The registry is not stored; its members are what remembers it. A client that
// finds another registry instance joins again with the same incarnation, says
// which peers it has, and publishes its offers again. The registry holds the
// named peers as expected, for Timing.Dead: a peer that returns in time was never
// gone, one that does not is reported gone then. Not heard of is not dead.
//
// A client whose lease ended while the control plane lived is another matter: its
// peers were told and have freed what belonged to it. It joins again with a new
// incarnation and tells its user that every peer is gone.
//
// # Events
//
// Watch does not replay a queue. The Client keeps one view of its node's world,
// and each watcher gets the difference between that view and what it was given
// before, so a slow watcher skips what no longer matters, never misses what does,
// and costs no memory. The server's queue for a connection is bounded; when it
// overflows, the whole state is sent again.
//
// Owns: Identity, NodeInfo, Offer, Registry, Catalog, Store, Server, Client.
// Imports: verbs and pipeline of this module, gRPC, bbolt.
// Goroutines: of Server: the accept loop, the expiry ticker, what gRPC runs per
// connection; of Client after Join: one for heartbeats and one for the watch
// stream. Close waits for them. Registry, Catalog and the stores have none.
// Locks: Server.mu guards the Registry and the watchers' queues and is never held
// over a send or a store; Catalog.mu is held over a store's commit; Client.mu
// guards which membership there is, membership.mu its view and what it has said.
// None is held over a call or taken under another; the health service of gRPC has
// a lock of its own, taken under Server.mu.
package ctrl

//go:generate sh internal/pb/generate.sh
