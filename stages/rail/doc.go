// Package rail brings up the rails of a process and connects them to peers. The
// four stages are the same for shards, for clients and for read jobs:
//
//	resolve    recipe + this host  → open devices, chosen GIDs, active MTUs
//	allocate   rails + Demand      → PD, CQs, registered memory: a Set
//	publish    Set + control plane → this node is known; offers to peers are out
//	connect    offers and answers  → QPs in RTS: a Peer for each shard
//
// A shard runs a Listener instead of the last step: every client that offers
// gets matching QPs, and loses them when it leaves or its lease ends. A newer offer
// of a client that is connected gives new QPs to the links whose generation has
// grown; see Peer.Renew.
//
// The package knows nothing of slots: its user says in a Demand how many QPs a
// peer gets, how deep they are and how many registered bytes each carries, and
// makes lanes of the Links it gets back.
//
// Asynchronous events of a device change its rails: a port that goes, a device or a
// CQ that breaks make them down; anything about the port or its tables makes the rail
// read them again, and take another GID when its own is gone. See Rail.Address,
// Rail.Health and Set.OnQPEvent.
//
// Owns: Open, Join, Demand, Set, Rail, Link, Peer, Listener, the pairing of rails, the
// comparison of parameters at both ends.
// Imports: pipeline, cue/deploy, verbs, verbs/fabric, ctrl.
// Goroutines: one per rail reads asynchronous events (owner: Set); a Listener has one
// that watches the control plane and one for each client, which connects it, gives
// its links new QPs and drops it (owner: Listener).
// Locks: Set.mu, Rail.health.mu, queues.mu, Listener.mu; none is held over a verb or an RPC.
package rail
