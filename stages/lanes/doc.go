// Package lanes puts lanes on rails: what a deployment says of lanes becomes a
// lane.Config and the Demand of stages/rail; a shard serves the lanes of every
// client that connects, and a client has a pool of lanes to every shard. What
// travels over them is the business of its users, stages/object and stages/ps,
// which share one set of lanes in a process.
//
// A client keeps its lanes well: a keeper for each shard has broken ones rebuilt,
// connects anew to a shard that was lost and serves again, and refuses calls to one
// that drains; a prober asks the control plane after shards that calls wait for.
// See docs/failures.md.
//
// Owns: ConfigOf, ClientDemand, ServerDemand, Server, Router, Client, LaneStatus,
// the budget of rebuilds.
// Imports: pipeline, cue/deploy, verbs, verbs/lane, ctrl, stages/rail.
// Goroutines: those of its pollers and acceptor (owner: Server or Client); one for
// each keeper, one for the control plane's events and one for the prober (owner:
// Client, whose closing waits for them). A lane is rebuilt, opened and closed by the
// goroutine of its keeper alone.
// Locks: Server.mu; keeper.mu and prober.mu, leaves that are taken under the lock of
// a pool, too; none is held over a call of a lane.
package lanes
