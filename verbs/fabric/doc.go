// Package fabric knows what a host's RDMA devices look like to a person: their
// ports, GID tables and link layers, and which GID of a port to use.
//
// Owns: GID selection with a reason for every entry that was not taken.
// Imports: verbs, cue/deploy (selectors are written in recipes) and the standard
// library.
// Goroutines: none. Locks: none.
package fabric
