//go:build race

package ps

const raceOn = true
