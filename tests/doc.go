// Package tests holds what needs more than one package or process: the scripts
// that specify rs (script/*.txtar), the recipes run end to end, and the tests of
// the repository itself (which package may import what, what code may not
// contain, the commands of README and docs).
//
// Owns: nothing that others import.
// Imports: everything. Goroutines: none. Locks: none.
package tests
