// Package pipeline runs the stages that bring a deployment or a job up, and
// takes down what they made, last first, when one of them fails or the work is
// done.
//
// A stage is a typed step: the product of one is the input of the next, so a
// wrong order does not compile. Whatever a stage acquires it hands to a Scope,
// whose Close undoes it in reverse. Errors say in which layer and where (shard,
// lane, rail) they happened; see Error.
//
// Owns: Stage, Run, Each, Scope, Event, Where, Error.
// Imports: the standard library and github.com/sourcegraph/conc only.
// Goroutines: those of Each, which waits for them. Locks: Scope.mu.
package pipeline
