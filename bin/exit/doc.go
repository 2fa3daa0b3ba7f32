// Package exit sorts errors into the few classes that users act on. They are the exit
// codes of rs and the statuses of the C interface.
//
// Owns: the classes, ErrInterrupted, ErrDegraded.
// Imports: cue/load, pipeline, stages/launch, stages/object.
// Goroutines: none. Locks: none.
package exit
