package load

import (
	"cmp"
	"fmt"
	"slices"
)

// Issue is one fault of a recipe, or one warning.
type Issue struct {
	Path    string `json:"path"` // as in hosts[0].rails[1].weight; empty: the file
	Message string `json:"message"`
	File    string `json:"file"`
	Line    int    `json:"line"`
	Column  int    `json:"column"`
	Hint    string `json:"hint"` // what to change; may be empty
	Rule    string `json:"rule"` // a stable name of the rule that is broken
}

// Text is the issue in one line, without its hint: file:line:col: path: message.
func (i Issue) Text() string {
	s := i.File
	if i.Line > 0 {
		s = fmt.Sprintf("%s:%d:%d", i.File, i.Line, i.Column)
	}
	if i.Path != "" {
		s += ": " + i.Path
	}
	return s + ": " + i.Message
}

// Report is all that is to be said about one recipe, in the file's order.
type Report struct {
	Errors   []Issue `json:"errors"`
	Warnings []Issue `json:"warnings"`
}

// InvalidError says that a recipe is not a valid deployment.
type InvalidError struct{ Report *Report }

// Error is the first fault and the number of the others.
func (e *InvalidError) Error() string {
	es := e.Report.Errors
	if len(es) == 0 {
		return "invalid deployment"
	}
	if len(es) == 1 {
		return es[0].Text()
	}
	return fmt.Sprintf("%s (and %d more)", es[0].Text(), len(es)-1)
}

func sortIssues(is []Issue) {
	slices.SortStableFunc(is, func(a, b Issue) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column), cmp.Compare(a.Path, b.Path), cmp.Compare(a.Message, b.Message))
	})
}
