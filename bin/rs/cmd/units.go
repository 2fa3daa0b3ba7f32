package cmd

import (
	"fmt"
	"time"
)

// rate shows bytes per second in the unit of links (10^9 bits) and the unit of
// memory (2^30 bytes).
func rate(bytesPerSecond float64) string {
	return fmt.Sprintf("%.2f Gb/s (%.2f GiB/s)", bytesPerSecond*8/1e9, bytesPerSecond/(1<<30))
}

// size shows a number of bytes in the largest unit of 1024 that leaves at least
// one before the point. The exact number is in JSON.
func size(n uint64) string {
	const units = "KMGTPE"
	if n < 1024 {
		return fmt.Sprintf("%d B", n)
	}
	v, i := float64(n)/1024, 0
	for v >= 1024 && i < len(units)-1 {
		v /= 1024
		i++
	}
	if n&(1<<(10*(i+1))-1) == 0 {
		return fmt.Sprintf("%.0f %ciB", v, units[i])
	}
	return fmt.Sprintf("%.1f %ciB", v, units[i])
}

// seconds shows a length of time with three digits.
func seconds(s float64) string {
	switch {
	case s < 0.001:
		return fmt.Sprintf("%.0f µs", s*1e6)
	case s < 1:
		return fmt.Sprintf("%.3g ms", s*1e3)
	case s < 100:
		return fmt.Sprintf("%.3g s", s)
	}
	return (time.Duration(s) * time.Second).String()
}
