package load

import (
	"fmt"

	"cuelang.org/go/cue"

	"github.com/railstore/railstore/cue/deploy"
)

// Options of Load.
type Options struct {
	// Source is the recipe's text; nil reads it from the path, which otherwise only
	// names it in messages.
	Source []byte
}

// Load reads and checks a recipe. The error is an *InvalidError when the file is a
// recipe with faults, and a plain error of one line when it is none: missing,
// unreadable, empty, binary, a directory. The report is nil only with such an error.
func Load(path string, opts Options) (d *deploy.Deployment, rep *Report, err error) {
	src := opts.Source
	if src == nil {
		src, err = read(path)
	} else {
		err = sane(path, src)
	}
	if err != nil {
		return nil, nil, err
	}
	// The evaluator is large and its input is anybody's file: a panic in it is a
	// fault of that one recipe, not the end of the process.
	defer func() {
		if p := recover(); p != nil {
			d, rep, err = nil, nil, fmt.Errorf("%s: the CUE evaluator failed on this file: %v", path, p)
		}
	}()
	rep = &Report{Errors: []Issue{}, Warnings: []Issue{}}
	d, err = check(path, src, rep)
	if err != nil {
		return nil, nil, err
	}
	sortIssues(rep.Errors)
	sortIssues(rep.Warnings)
	if len(rep.Errors) > 0 {
		return nil, rep, &InvalidError{rep}
	}
	return d, rep, nil
}

// check fills the report. Its error is an internal one.
func check(path string, src []byte, rep *Report) (*deploy.Deployment, error) {
	if issue, ok := tooDeep(path, src); ok {
		rep.Errors = append(rep.Errors, issue)
		return nil, nil
	}
	e := newEvaluator()
	schema, err := e.schema()
	if err != nil {
		return nil, fmt.Errorf("embedded schema: %w", err)
	}
	raw, embed, err := e.recipe(path, src, standIn())
	if err == nil && kindOf(raw) != cue.StructKind {
		err = raw.Err()
	}
	if err != nil {
		rep.Errors = fromCUE(err, path)
		return nil, nil
	}
	if !raw.LookupPath(cue.ParsePath(marker)).Exists() {
		rep.Errors = []Issue{{File: path, Line: 1, Column: 1, Rule: "no_deployment",
			Message: "not a deployment: the file does not embed schemas.#Deployment",
			Hint:    fmt.Sprintf("begin it with: import %q, and a line schemas.#Deployment", SchemaImport)}}
		return nil, nil
	}
	s := &shape{file: path, schema: schema, ctx: e.ctx, texts: map[string]string{},
		places: map[string]place{"": {embed, embed}}, fields: map[string]fields{}, home: homes(schema)}
	data := s.root(raw)
	rep.Errors = s.issues
	dep := schema.LookupPath(cue.ParsePath("#Deployment")).Unify(e.ctx.BuildExpr(data))
	broken := s.rules(dep, rep)
	s.effects(rep)
	if len(rep.Errors) > 0 {
		return nil, nil
	}
	// The verdict is that of `cue vet` on the user's own file.
	strict, _, err := e.recipe(path, src, schemaFiles())
	if err == nil {
		err = strict.Validate(cue.Concrete(true), cue.Attributes(true), cue.Definitions(true), cue.Hidden(true))
	}
	if err != nil {
		rep.Errors = fromCUE(err, path)
		return nil, nil
	}
	if broken != nil {
		return nil, broken
	}
	return decode(dep)
}
