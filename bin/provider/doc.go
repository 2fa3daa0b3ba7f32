// Package provider knows the providers that the programs link. They hand Open to the
// stages, so that no other package has to know which there are.
//
// Owns: how a recipe's rail becomes a driver.
// Imports: cue/deploy, pipeline, verbs, verbs/soft, verbs/ibv.
// Goroutines: none. Locks: none.
package provider
