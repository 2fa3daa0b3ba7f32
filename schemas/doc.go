// Package schemas holds the CUE schema of a deployment as files, so that the
// loader and `rs schema export` have them without the repository.
//
// Owns: the .cue files. Imports: embed only. Goroutines: none. Locks: none.
package schemas
