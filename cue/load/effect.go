package load

import (
	"fmt"
	"regexp"
)

// without lists the fields that the schema accepts and no code reads yet, by
// pattern ([] for every index); a name stands for all that is in it. With a value,
// only that value has no effect. An entry goes when its code comes.
var without = []struct{ pattern, value, then string }{
	{"retry.hedgeAfter", "", "no request is sent twice"},
	{"control.store", "etcd", "only bbolt and memory are there yet"},
	{"control.endpoints", "", "the etcd store is not there yet"},
	{"pipeline.serve", "", "`rs up` waits as long as --timeout says"},
}

var anyIndex = regexp.MustCompile(`\[[0-9]+\]`)

// effects warns of every field of the recipe that has no effect.
func (s *shape) effects(rep *Report) {
	for path, pl := range s.places {
		pattern := anyIndex.ReplaceAllString(path, "[]")
		for _, w := range without {
			if pattern != w.pattern || w.value != "" && s.texts[path] != w.value || s.isSpoilt(path) {
				continue
			}
			what := "has no effect yet"
			if w.value != "" {
				what = fmt.Sprintf("%q %s", w.value, what)
			}
			s.warn(rep, s.located(Issue{Path: path, Rule: "no_effect", Message: what, Hint: w.then}, pl.label))
		}
	}
}

// warn adds a warning once for each place.
func (s *shape) warn(rep *Report, is Issue) {
	for _, old := range rep.Warnings {
		if old.Rule == is.Rule && old.Line == is.Line && old.Column == is.Column && tail(old.Path) == tail(is.Path) {
			return
		}
	}
	rep.Warnings = append(rep.Warnings, is)
}
