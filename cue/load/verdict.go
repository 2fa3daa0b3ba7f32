package load

import (
	"fmt"
	"strings"

	"cuelang.org/go/cue"
	"cuelang.org/go/cue/errors"
	"cuelang.org/go/cue/scanner"
	"cuelang.org/go/cue/token"
)

// fromCUE turns errors of the evaluator into issues, one a path and place.
func fromCUE(err error, file string) []Issue {
	var out []Issue
	seen := map[string]bool{}
	for _, e := range errors.Errors(err) {
		f, args := e.Msg()
		text := fmt.Sprintf(f, args...)
		if in := errors.Unwrap(e); in != nil && text == "" {
			text = in.Error()
		}
		is := Issue{Path: spell(e.Path()), File: file, Rule: "cue", Message: oneLine(text)}
		if p := userPos(e, file); p.IsValid() {
			is.Line, is.Column = p.Line(), p.Column()
		}
		key := fmt.Sprintf("%s %d", is.Path, is.Line)
		if seen[key] || strings.Contains(is.Message, "errors in empty disjunction") {
			continue
		}
		seen[key] = true
		out = append(out, is)
	}
	if len(out) == 0 {
		out = append(out, Issue{File: file, Rule: "cue", Message: oneLine(err.Error())})
	}
	return out
}

// conflict is the text and place of a real error; an incomplete value has none.
func conflict(err error, file string) (string, token.Pos, bool) {
	if err == nil {
		return "", token.NoPos, false
	}
	for _, e := range errors.Errors(err) {
		f, args := e.Msg()
		text := oneLine(fmt.Sprintf(f, args...))
		if strings.HasPrefix(text, "incomplete value") || strings.HasPrefix(text, "non-concrete value") {
			return "", token.NoPos, false
		}
		if text != "" {
			return text, userPos(e, file), true
		}
	}
	return oneLine(err.Error()), token.NoPos, true
}

// userPos is the first position of an error that lies in the user's file.
func userPos(e errors.Error, file string) token.Pos {
	if p := e.Position(); p.IsValid() && p.Filename() == file {
		return p
	}
	for _, p := range e.InputPositions() {
		if p.IsValid() && p.Filename() == file {
			return p
		}
	}
	return token.NoPos
}

// spell writes CUE's path in our form: hosts[0].name.
func spell(path []string) string {
	s := ""
	for _, p := range path {
		if p != "" && strings.Trim(p, "0123456789") == "" {
			s += "[" + p + "]"
		} else {
			s = join(s, strings.Trim(p, `"`))
		}
	}
	return s
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

// tooDeep refuses a text whose brackets, labels or operators nest deeper than people
// write.
func tooDeep(file string, src []byte) (Issue, bool) {
	var sc scanner.Scanner
	f := token.NewFile(file, -1, len(src))
	sc.Init(f, src, func(token.Pos, string, []any) {}, 0)
	open, chain := 0, 0
	var texts []int // brackets that were open when the expression in a text began
	resumed := false
	for {
		pos, tok, _ := sc.Scan()
		switch tok {
		case token.EOF:
			return Issue{}, false
		case token.INTERPOLATION:
			texts = append(texts, open)
		case token.LPAREN:
			if resumed { // the text goes on with another expression
				texts = append(texts, open)
			}
			open++
		case token.LBRACK, token.LBRACE:
			open++
		case token.RPAREN, token.RBRACK, token.RBRACE:
			open = max(0, open-1)
		}
		resumed = false
		if n := len(texts); tok == token.RPAREN && n > 0 && texts[n-1] == open {
			texts = texts[:n-1]
			sc.ResumeInterpolation()
			resumed = true
		}
		switch {
		case tok == token.COMMA || tok == token.RBRACE:
			chain = 0
		case tok.IsOperator():
			chain++
		}
		if open > maxDepth || chain > 50*maxDepth {
			return Issue{File: file, Line: pos.Line(), Column: pos.Column(), Rule: "cue",
				Message: fmt.Sprintf("nested more than %d deep", maxDepth)}, true
		}
	}
}

// homes is, for every field name that occurs in one place only, that place.
func homes(schema cue.Value) map[string]string {
	out := map[string]string{}
	var visit func(pattern string, v cue.Value)
	visit = func(pattern string, v cue.Value) {
		for name, f := range fieldsOf(v).values {
			if _, twice := out[name]; twice {
				out[name] = ""
			} else {
				out[name] = pattern
			}
			if f.IncompleteKind() == cue.StructKind {
				visit(pattern+"."+name, f)
			}
		}
	}
	visit("", schema.LookupPath(cue.ParsePath("#Deployment")))
	return out
}
