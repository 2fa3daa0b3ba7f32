//go:build race

package load

// UnderRace: the package has no goroutine, and the evaluator is ten times slower; a
// sample is enough.
const UnderRace = true
