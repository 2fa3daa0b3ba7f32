package load

import "cuelang.org/go/cue"

// RuleNames are the schema's rules and notes, and what the loader finds itself.
func RuleNames() []string {
	names := []string{"value", "required", "unknown_field", "concrete", "rail_string", "cue", "no_effect"}
	e := newEvaluator()
	schema, err := e.schema()
	if err != nil {
		panic(err)
	}
	for _, list := range []string{"#rules", "#notes"} {
		it, err := schema.LookupPath(cue.ParsePath("#Deployment." + list)).Fields()
		if err != nil {
			panic(err)
		}
		for it.Next() {
			names = append(names, it.Selector().Unquoted())
		}
	}
	return names
}
