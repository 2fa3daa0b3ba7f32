package cmd

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/railstore/railstore/bin/exit"
	"github.com/railstore/railstore/pipeline"
	"github.com/railstore/railstore/stages/launch"
)

// printError is the one place where errors become text. An error of several
// shards or rails is a line for each, every line once.
func (a *app) printError(err error) {
	var fs []launch.Failure
	seen := make(map[string]bool)
	for _, e := range flatten(err) {
		if errors.Is(e, errReported) {
			continue
		}
		f := failureOf(e)
		if key := f.String(); !seen[key] {
			seen[key] = true
			fs = append(fs, f)
		}
	}
	if len(fs) == 0 {
		return
	}
	if a.json {
		for i := range fs {
			if fs[i].Op == "" {
				fs[i].Op = cmp.Or(a.command, "rs")
			}
		}
		out := struct {
			Error launch.Failure   `json:"error"`
			More  []launch.Failure `json:"more,omitempty"`
		}{fs[0], fs[1:]}
		b, err := json.Marshal(out)
		if err != nil {
			b = []byte(`{"error":{"layer":"internal","op":"json","message":"the error could not be encoded"}}`)
		}
		fmt.Fprintf(a.err, "%s\n", b)
		return
	}
	lastHint := ""
	for i, f := range fs {
		fmt.Fprintln(a.err, a.paintErr(red, f.String()))
		// The same hint for several lines is told once, after the last of them.
		if f.Hint != "" && (i+1 == len(fs) || fs[i+1].Hint != f.Hint) && f.Hint != lastHint {
			fmt.Fprintf(a.err, "hint: %s\n", f.Hint)
			lastHint = f.Hint
		}
	}
}

// failureOf takes apart the errors that only this package knows, and leaves the
// others to launch.
func failureOf(err error) launch.Failure {
	var usage *usageError
	if errors.As(err, &usage) {
		return launch.Failure{Layer: string(pipeline.LayerUsage), Message: launch.OneLine(err.Error()), Hint: usage.hint}
	}
	f := exit.Failure(err)
	if errors.Is(err, errInterrupted) && f.Hint == "" {
		f.Layer = string(pipeline.LayerUsage)
	}
	return f
}

// flatten takes joined errors apart. An error that merely has several causes
// stays whole: its text is more than theirs.
func flatten(err error) []error {
	if err == nil {
		return nil
	}
	m, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return []error{err}
	}
	causes := m.Unwrap()
	texts := make([]string, len(causes))
	for i, e := range causes {
		texts[i] = e.Error()
	}
	if strings.Join(texts, "\n") != err.Error() {
		return []error{err}
	}
	var out []error
	for _, e := range causes {
		out = append(out, flatten(e)...)
	}
	return out
}

// printJSON writes one JSON object as one line of the result.
func (a *app) printJSON(v any) error { return encode(a.out, v) }

func encode(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}
