// Package object stores objects in stripes over the shards and their directories,
// and reads one object over several rails at once.
//
// # At a shard
//
// Store keeps stripe files: the stripe's bytes, then a trailer that says whose they
// are (stripefile.go). A file gets its name only when its content is durable, its
// name comes from the object's handle and never from the user's name (stripename.go).
// Service answers the stripe requests that come over lanes (message.go): it moves
// the bytes between the client's memory and a Slab of its own by RDMA.
//
// A Store has directories behind a small interface (filesystem.go). Stripes go to and
// from the disk around the page cache where that is wanted and possible (directio.go).
// A directory carries a marker, and the shard remembers elsewhere which directories it
// had (marker.go, known.go); one that fails or is away is out of use until a probe
// finds it well (dirstate.go). Janitor takes out objects whose time is over, removes
// what was taken out, sweeps and probes. Scrubber compares everything that is on the
// disks with the catalog when it is asked to. docs/objects.md has the order of changes,
// what a crash leaves, and the rules of time.
//
// # At a client
//
// Worker puts and reads over a Transport (LaneTransport, over lanes) and a Catalog
// (the control plane). Session is a Worker with the connections under it.
//
//	put     source → stripes → store on every shard, durable → one commit → the old
//	        generation's stripes go
//	read    lookup → stripe (validate, plan) → fetch → verify → commit
//
// lookup gives the descriptor and the placement. stripe is pure arithmetic: Validate
// refuses placements that do not add up, BuildPlan gives every stripe to a rail, byte
// by byte by the rails' weights, and cuts tasks and waves under the caps. fetch asks
// the shards to write the stripes into one extent of registered memory. verify checks
// each stripe on the goroutine that asked for it and hashes the whole in order as
// the pieces come. commit looks the object up again and hands over a LeasedBuffer, or
// renames an Output. Nothing is handed over before all of it is verified.
//
// # Failures
//
// Health is what a process knows of its paths, each a rail to a shard. One that failed
// is left alone for the cooldown and comes back as a canary, then in steps; the matrix
// of rails and shards tells what seems to be broken. The paths that remain take over
// what is missing, or the read ends, as the recipe says; every byte that moves is
// accounted for (job.go). With adaptive weights a rail that is done takes over what one
// that is far behind has not begun (takeover.go). Near a deadline a late stripe is asked for twice (hedge.go).
// Memory that a failed transfer may still touch is used again only after
// Transport.Quiesce; if that fails it is condemned, never reused. A stripe that arrives
// with wrong bytes is read once more, over another rail, and the shard is asked to check
// its file first; the rail that was wrong is put into quarantine. A descriptor that is
// stale is looked up again. What each answer of a shard means is decided in one place,
// classify. docs/reading.md has the rules.
//
// A put that fails before its commit removes its stripes. A put that dies leaves files
// that a shard's Janitor finds; what a commit replaced stays listed in the catalog
// until its stripes are gone: each Janitor removes those of its shard, and every later
// change tidies a little (Worker.Reclaim all of it). A stripe whose directory is full or
// fails goes to another one of its shard, or else to another shard.
//
// Owns: Store, Janitor, Scrubber, Slab, Service, LaneTransport, Session, Worker, Plan, Health, LeasedBuffer,
// UserBuffer, Output, Environment, the stripe protocol, the form of handles, file names and stripe files.
// Imports: pipeline, cue/deploy, verbs, verbs/lane, ctrl, stages/rail, stages/lanes.
// Goroutines: those of Put, Read and the removal of stripes, each waited for before
// the call returns; one of each Janitor and of a Scrubber that scrubs, which their Close waits for. Store, Slab and
// Service have none.
// Locks: directory.mu is held shared over work on a directory's files, dirHealth.mu and
// mount.mu are taken under it, the latter is held over the creation of a fan-out folder, Slab.grow over the
// registration of memory, and Slab.mu is taken under it; Slab.mu, Health.mu, meter.mu,
// inOrder.mu, UserBuffer.mu and the mutex of a job are held over no call out of the
// package but that of events and, of UserBuffer.mu, deregistration. A job's mutex may be
// held when Health.mu or meter.mu is taken, no other is taken under another.
package object
