// Package table keeps embedding tables in memory: u64 keys to rows of float32,
// all rows of a table equally wide. It has no lanes and no network in it.
//
// # Shape
//
// A Store has named Tables and the memory of all of them. A Table points to a body,
// which is what it contains at the moment: an index and a slab of rows. Clear and
// Load make a new body and swing that pointer, so both are atomic to readers and
// leave the table alone when they fail; Drop swings it to nil.
//
// The index (directory.go, segment.go) is an extendible hash table: a directory of
// segments, chosen by the first bits of a key's hash, and in a segment 256 groups of
// one cache line, four keys with four references each. A lookup of many keys hashes
// all, touches all their lines, and only then compares, so that the cache misses of a
// batch overlap. A full segment is written anew as two; nobody waits for it but the
// writers of that segment.
//
// Rows lie in slots (slab.go) of pages (page.go) of chunks that a Memory gives. A slot
// has the row and, behind it, the optimizer's state of that row.
//
// # Readers and writers
//
// A row that is in the index never changes. A writer fills a free slot and then swings
// the key's reference to it under the lock of the segment; so a reader, which takes no
// lock, sees the whole of one version, and an UPDATE, which reads the old version and
// swings the reference under one hold of the lock, loses nothing of another's.
//
// A key stays in its place of a segment for the segment's life, also when its row is
// deleted: a reader that compared the key can trust the reference that it read.
//
// What is taken out of the index (rows, segments, whole bodies) is used again only when
// no Pin from before is held (epoch.go). Every call holds one while it runs. No clock
// takes part in it, and no goroutine: writers look for what has become free when they
// need it.
//
// # Memory
//
// Config.Limit covers rows, index and directories. Who would go beyond gets a
// *LimitError. A batch takes the slots for all of its keys before it changes anything;
// what can still stop it half-way is an index that finds no room to grow, and then a
// *BatchError says how far it came.
//
// # Snapshots
//
// A save walks the index while others use it. Which rows have changed since an earlier
// one is told by stamps in the index (period.go), so it can have these alone. A load is
// staged: read and checked into bodies of its own, then installed. A Folder keeps the
// snapshots of a shard by name and has its part of saves over several shards.
//
// The formulas of the optimizers and the format of snapshots are in docs/tables.md.
//
// Owns: Store, Table, Spec, Optimizer, Pin, Token, Memory and Regions, Folder and Staged, the snapshot format.
// Imports: pipeline, verbs; golang.org/x/sys/unix, github.com/zeebo/xxh3.
// Goroutines: none.
// Locks: Folder.mu over no other. history.mu, then Store.tables.mu, then segment.mu, then body.mu (the directory), then slab.mu, then
// Store.mu (pages, chunks, index memory). clients.mu (tokens) and Pin.mu are held over no other lock. Memory is called under
// Store.mu and must not call back. Reading takes no lock.
package table
