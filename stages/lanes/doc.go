// Package lanes puts lanes on rails: what a deployment says of lanes becomes a
// lane.Config and the Demand of stages/rail; a shard serves the lanes of every
// client that connects, and a client has a pool of lanes to every shard. What
// travels over them is the business of its users, stages/object and stages/ps,
// which share one set of lanes in a process.
//
// Owns: ConfigOf, ClientDemand, ServerDemand, Server, Router, Client.
// Imports: pipeline, cue/deploy, verbs, verbs/lane, ctrl, stages/rail.
// Goroutines: those of its pollers and acceptor (owner: Server or Client). Locks:
// Server.mu, never held over a call of a lane.
package lanes
