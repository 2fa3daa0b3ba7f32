package deploy

import "strings"

// Nearest is the known word that a misspelt one was probably meant to be, or "".
func Nearest(word string, known []string) string {
	best, limit := "", max(1, min(3, len(word)/3))
	w := strings.ToLower(word)
	for _, k := range known {
		if len(k) < 2 {
			continue
		}
		if d := distance(w, strings.ToLower(k)); d <= limit {
			best, limit = k, d-1
		}
	}
	return best
}

// distance is the number of letters to insert, remove, replace or swap with their
// neighbour.
func distance(a, b string) int {
	if len(a) > 64 || len(b) > 64 {
		return 64
	}
	before, prev, cur := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range prev {
		prev[j] = j
	}
	for i := 1; i <= len(a); i++ {
		cur[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			cur[j] = min(prev[j]+1, cur[j-1]+1, prev[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				cur[j] = min(cur[j], before[j-2]+1)
			}
		}
		before, prev, cur = prev, cur, before
	}
	return prev[len(b)]
}
