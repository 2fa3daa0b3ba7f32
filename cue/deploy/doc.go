// Package deploy is a validated deployment as plain data: hosts and their rails,
// shards, lanes, health, tables, objects and jobs, every default filled in. It
// has the same bytes on every host, so its Digest tells whether two processes
// run the same recipe.
//
// Whatever must ask this machine (devices, GID tables, addresses) happens later,
// in the resolve stage.
//
// Owns: Deployment and its parts, their canonical JSON and Digest, the string
// grammar of rails and devices, and what follows from a deployment alone (Budget).
// Imports: the standard library only; no I/O, neither os nor syscall.
// Goroutines: none. Locks: none.
package deploy
