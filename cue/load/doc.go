// Package load turns a recipe into a validated deploy.Deployment. It is the only
// package that links the CUE evaluator.
//
// A recipe is checked in three steps, so that one run reports every fault, each
// once and at its place in the user's file:
//
//  1. shape: the recipe is evaluated beside open stand-ins for the schema's
//     definitions. Its plain data are then held against #Deployment value by value:
//     unknown fields, missing ones, values that do not fit.
//  2. rules: the data, without what step 1 refused, are unified with #Deployment and
//     the findings of its #rules and #notes are read. They are data with a path, so
//     no error of the evaluator has to be interpreted. A finding that rests on a
//     refused value is left out.
//  3. verdict: when nothing was found, the recipe itself is evaluated with the
//     schema, as `cue vet` does, and must be without an error.
//
// Owns: Load, Report and Issue, Export, the table of fields without effect.
// Imports: cue/deploy, schemas, cuelang.org/go.
// Goroutines: none. Locks: none.
package load
