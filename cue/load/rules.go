package load

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"cuelang.org/go/cue"
	"cuelang.org/go/cue/errors"
)

// finding is one broken rule as the schema reports it.
type finding struct {
	At      string   `json:"at"`
	Message string   `json:"message"`
	Hint    string   `json:"hint"`
	Near    []string `json:"near"` // where it stands when the recipe does not have At
	Uses    []string `json:"uses"` // other paths that it rests on
}

// rules adds the findings of #rules to the errors and those of #notes to the
// warnings. The error says which rule could not be evaluated although no value was
// refused.
func (s *shape) rules(dep cue.Value, rep *Report) (broken error) {
	for _, list := range []struct {
		path string
		into *[]Issue
	}{{"#rules", &rep.Errors}, {"#notes", &rep.Warnings}} {
		it, err := dep.LookupPath(cue.ParsePath(list.path)).Fields()
		if err != nil {
			broken = fmt.Errorf("schema, %s: %s", list.path, oneLine(errors.Details(err, nil)))
			continue
		}
		for it.Next() {
			rule := it.Selector().Unquoted()
			found, err := findings(it.Value())
			if err != nil {
				// It rests on a value that was refused and that nothing stands in for.
				broken = fmt.Errorf("schema, rule %s: %s", rule, oneLine(errors.Details(err, nil)))
				continue
			}
			for _, f := range found {
				rests := append(append([]string{f.At}, f.Near...), f.Uses...)
				if !slices.ContainsFunc(rests, s.isSpoilt) {
					s.add(list.into, rule, f)
				}
			}
		}
	}
	return broken
}

// add appends a finding. Findings of one rule at one place of the file are one: a
// value that is used often, or a default that it broke for every shard.
func (s *shape) add(into *[]Issue, rule string, f finding) {
	path, at := s.find(f.At, f.Near)
	if path != f.At && strings.HasPrefix(f.Message, "is ") {
		f.Message = "by default " + f.At + " " + f.Message
	}
	is := s.located(Issue{Path: path, Message: f.Message, Hint: f.Hint, Rule: rule}, at)
	for _, old := range *into {
		if old.Rule == rule && old.Line == is.Line && old.Column == is.Column {
			return
		}
	}
	*into = append(*into, is)
}

func findings(v cue.Value) ([]finding, error) {
	b, err := v.MarshalJSON()
	if err != nil {
		return nil, err
	}
	var out []finding
	return out, json.Unmarshal(b, &out)
}
