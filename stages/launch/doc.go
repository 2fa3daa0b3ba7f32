// Package launch starts the shards of a deployment as processes of this machine
// and takes them down again.
//
// # State folder
//
// Every deployment name has one folder below the state folder:
//
//	NAME/lock              held by the rs command that changes the deployment
//	NAME/resolved.json     the deployment as it was brought up, and its digest
//	NAME/run/shard-N.lock  held by shard N's process for as long as it lives
//	NAME/run/shard-N.exit  why shard N's last process ended, written by itself
//	NAME/run/*.sock        where the processes that have rails answer: shard-N.sock, client-*.sock
//	NAME/logs/shard-N.log  its output
//	NAME/events.jsonl      what happened, one JSON object a line; .1 to .4 are older
//
// # Who is alive
//
// A process id alone proves nothing: the process may be gone, its id reused, or
// the launcher may have been killed before it wrote the id down. So the proof is
// a lock. The launcher opens shard-N.lock, takes an open-file-description lock
// on it and hands the descriptor to the child it starts; from the fork on the
// child holds the same lock, whatever becomes of the launcher, and the kernel
// drops it when the child is gone, however it ends and also over a reboot. The
// lock is held exactly when a process of that shard exists, and /proc tells
// which process holds it. The record that a shard writes into its lock file is
// only where to look first.
//
// A process is signaled through a handle taken before its identity (lock and
// start time) is checked a second time, so a reused id is never hit.
//
// # Admin sockets
//
// A process shows its lanes, faults and metrics, and lets faults be added and
// cleared, over HTTP on a socket that its user alone may open. What it shows comes
// from functions that it gives to OpenAdmin: this package knows no lanes. Nobody who
// asks can make it grow: connections, headers, bodies and times are bounded.
//
// Owns: the state folder, shard processes, Up, Down, Status, events, profiles and logs as
// files, admin sockets, and Failure, the form in which an error leaves a shard process.
// Imports: pipeline, cue/deploy, verbs, ctrl, stages/rail and golang.org/x/sys/unix.
// Goroutines: Up's control poller, which Up waits for; a timer of an EventLog, which
// Close waits for; those of an AdminServer, for which Close waits, too.
// Locks: the deployment lock is taken before any shard lock; damper.mu before EventLog.mu.
package launch
