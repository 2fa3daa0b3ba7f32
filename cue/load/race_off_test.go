//go:build !race

package load

// UnderRace: see race_on_test.go.
const UnderRace = false
