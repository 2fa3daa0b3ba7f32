package load

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"cuelang.org/go/cue"
	"cuelang.org/go/cue/ast"
	"cuelang.org/go/cue/format"
	"cuelang.org/go/cue/token"

	"github.com/railstore/railstore/cue/deploy"
)

// shape holds the plain data of a recipe against the schema, value by value.
type shape struct {
	file   string
	schema cue.Value // the schema package
	ctx    *cue.Context

	issues []Issue
	places map[string]place  // of every path that the user's file has
	texts  map[string]string // the values of those that are texts
	spoilt []string          // paths whose value is not what the user meant
	fields map[string]fields // of a struct of the schema, by its pattern
	home   map[string]string // where a field name belongs, by name
}

// place is where a path is in the user's file.
type place struct{ label, value token.Pos }

// fields are the fields of one struct of the schema.
type fields struct {
	names    []string // in the schema's order
	values   map[string]cue.Value
	required []string
}

// root walks the whole recipe and returns its data without what was refused.
func (s *shape) root(raw cue.Value) ast.Expr {
	return s.structure("", "", raw, s.schema.LookupPath(cue.ParsePath("#Deployment")))
}

// issue adds a fault. A template that many use, or a comprehension, has its fault
// once.
func (s *shape) issue(path string, at token.Pos, rule, message, hint string) {
	is := s.located(Issue{Path: path, Message: message, Hint: hint, Rule: rule}, at)
	for _, old := range s.issues {
		if is.Line > 0 && old.Line == is.Line && old.Column == is.Column && old.Rule == is.Rule && tail(old.Path) == tail(is.Path) {
			return
		}
	}
	s.issues = append(s.issues, is)
}

func (s *shape) located(i Issue, at token.Pos) Issue {
	i.File = s.file
	if at.IsValid() && at.Filename() == s.file {
		i.Line, i.Column = at.Line(), at.Column()
	}
	return i
}

// value walks one value. It returns nil for what is left out. pattern is the path
// with [] for every index.
func (s *shape) value(path, pattern string, raw, schema cue.Value) ast.Expr {
	found := kindOf(raw)
	if err := raw.Err(); found == cue.BottomKind || err == nil && !raw.IsConcrete() {
		// A type such as int leaves the schema's default in place.
		if u, ok := schema.Unify(raw).Default(); ok && u.IsConcrete() && u.Err() == nil {
			return syntax(u)
		}
		return s.unusable(path, raw, schema, err)
	}
	if pattern == ".hosts[].rails[]" {
		return s.rail(path, pattern, raw, found)
	}
	switch kind := schema.IncompleteKind(); {
	case kind == cue.StructKind && found == cue.StructKind:
		return s.structure(path, pattern, raw, schema)
	case kind == cue.ListKind && found == cue.ListKind:
		return s.list(path, pattern, raw, schema)
	case raw.Err() != nil: // something in it is wrong, and it does not belong here
		return s.unusable(path, raw, schema, raw.Err())
	}
	if schema.Unify(raw).Err() == nil {
		if text, err := raw.String(); err == nil && has(schema, "size") {
			return s.size(path, raw, text)
		}
		return syntax(raw)
	}
	s.refuse(path, raw, s.wanted(schema), s.reason(schema, raw))
	return s.sample(schema, len(s.spoilt))
}

// kindOf is the kind of a value, also of a struct or list with an error in it, which
// is an error itself to the evaluator.
func kindOf(v cue.Value) cue.Kind {
	if k := v.Kind(); k != cue.BottomKind {
		return k
	}
	if it, err := v.Fields(); err == nil && it.Next() {
		return cue.StructKind
	}
	if it, err := v.List(); err == nil && it.Next() {
		return cue.ListKind
	}
	return cue.BottomKind
}

// size makes a number of a size that is written as a string.
func (s *shape) size(path string, raw cue.Value, text string) ast.Expr {
	n, err := deploy.ParseSize(text)
	if err != nil {
		s.refuse(path, raw, s.wanted(s.schema), err)
		return nil
	}
	return ast.NewLit(token.INT, strconv.FormatInt(n, 10))
}

// reason is what is wrong with a text that has a grammar.
func (s *shape) reason(schema, raw cue.Value) (err error) {
	text, isText := raw.String()
	switch {
	case isText != nil:
	case has(schema, "device"):
		_, err = deploy.ParseDevice(text)
	case has(schema, "size") && strings.Trim(text, "0123456789KMGTiB") == "":
		_, err = deploy.ParseSize(text)
	}
	return err
}

// refuse reports a value that does not fit.
func (s *shape) refuse(path string, raw cue.Value, word string, why error) {
	hint := ""
	if str, err := raw.String(); err == nil {
		if w := deploy.Nearest(str, choices(word)); w != "" {
			hint = fmt.Sprintf("did you mean %q?", w)
		}
	}
	text := "is " + show(raw)
	if why != nil {
		text += ": " + why.Error()
	}
	s.issue(path, s.places[path].value, "value", text+", want "+word, hint)
	s.spoilt = append(s.spoilt, path)
}

// unusable reports a value that is an error or not known.
func (s *shape) unusable(path string, raw, schema cue.Value, err error) ast.Expr {
	s.spoilt = append(s.spoilt, path)
	if fault, pos, ok := conflict(err, s.file); ok {
		if !pos.IsValid() {
			pos = s.places[path].value
		}
		s.issue(path, pos, "cue", fault, "")
	} else {
		s.issue(path, s.places[path].value, "concrete", fmt.Sprintf("is not one value (%s), want %s", show(raw), s.wanted(schema)), "")
	}
	return s.sample(schema, len(s.spoilt))
}

// rail takes a rail in either form.
func (s *shape) rail(path, pattern string, raw cue.Value, kind cue.Kind) ast.Expr {
	switch kind {
	case cue.StructKind:
		return s.structure(path, pattern, raw, s.schema.LookupPath(cue.ParsePath("#Rail")))
	case cue.StringKind:
		text, _ := raw.String()
		_, err := deploy.ParseRail(text)
		if err == nil {
			return syntax(raw)
		}
		s.issue(path, s.places[path].value, "rail_string", fmt.Sprintf("is %s: %v", show(raw), err), "the form is DEVICE[:PORT[:GID[:WEIGHT[:MTU]]]][@EP[;EP…]], as in soft:127.0.0.1 or ibv:mlx5_0:1:3:2")
	default:
		s.refuse(path, raw, "a rail: a struct, or a string such as soft:127.0.0.1", nil)
	}
	s.spoilt = append(s.spoilt, path)
	return ast.NewString(fmt.Sprintf("ibv:refused-%d", len(s.spoilt)))
}

func (s *shape) list(path, pattern string, raw, schema cue.Value) ast.Expr {
	elem := schema.LookupPath(cue.MakePath(cue.AnyIndex))
	it, err := raw.List()
	if err != nil {
		return s.unusable(path, raw, schema, err)
	}
	out := &ast.ListLit{}
	each := attribute(schema, "want", "each")
	for i := 0; it.Next(); i++ {
		at := fmt.Sprintf("%s[%d]", path, i)
		v := it.Value()
		s.note(at, v)
		if each != "" && v.Err() == nil && v.IsConcrete() && elem.Unify(v).Err() != nil {
			s.refuse(at, v, each, nil)
			out.Elts = append(out.Elts, s.sample(elem, len(s.spoilt)))
			continue
		}
		if x := s.value(at, pattern+"[]", v, elem); x != nil {
			out.Elts = append(out.Elts, x)
		} else {
			out.Elts = append(out.Elts, ast.NewStruct())
		}
	}
	return out
}

func (s *shape) structure(path, pattern string, raw, schema cue.Value) ast.Expr {
	fs := s.fieldsOf(pattern, schema)
	it, err := raw.Fields()
	if err != nil {
		return s.unusable(path, raw, schema, err)
	}
	out := &ast.StructLit{}
	have := map[string]bool{}
	var meant []string // names that unknown fields were probably meant to be
	for it.Next() {
		name := it.Selector().Unquoted()
		at := join(path, name)
		s.note(at, it.Value())
		want, ok := fs.values[name]
		if !ok {
			meant = append(meant, s.unknown(path, pattern, name, fs.names))
			continue
		}
		have[name] = true
		if x := s.value(at, pattern+"."+name, it.Value(), want); x != nil {
			out.Elts = append(out.Elts, &ast.Field{Label: ast.NewString(name), Value: x})
		}
	}
	for _, name := range fs.required {
		if have[name] {
			continue
		}
		at := join(path, name)
		s.spoilt = append(s.spoilt, at)
		if !slices.Contains(meant, name) {
			s.issue(at, s.places[path].value, "required", "is missing, want "+s.wanted(fs.values[name]), "")
		}
		if x := s.sample(fs.values[name], len(s.spoilt)); x != nil {
			out.Elts = append(out.Elts, &ast.Field{Label: ast.NewString(name), Value: x})
		}
	}
	return out
}

// unknown reports a field that the schema does not have, and returns the one that
// was probably meant.
func (s *shape) unknown(path, pattern, name string, known []string) string {
	at := join(path, name)
	hint := ""
	guess := deploy.Nearest(name, known)
	switch home := s.home[name]; {
	case guess != "":
		hint = fmt.Sprintf("did you mean %q?", guess)
		s.spoilt = append(s.spoilt, join(path, guess))
	case home != "" && home != pattern:
		hint = fmt.Sprintf("%q is a field of %s", name, strings.TrimPrefix(home, "."))
		s.spoilt = append(s.spoilt, strings.TrimPrefix(home, ".")+"."+name)
	default:
		where := "here"
		if path == "" {
			where = "of a deployment"
		}
		hint = fmt.Sprintf("the fields %s are %s; a helper of your own needs a name that begins with _", where, strings.Join(known, ", "))
		if path != "" { // no section stands for another
			s.spoilt = append(s.spoilt, path)
		}
	}
	s.issue(at, s.places[at].label, "unknown_field", fmt.Sprintf("unknown field %q", name), hint)
	return guess
}

// note remembers where a path is.
func (s *shape) note(path string, v cue.Value) {
	p := place{label: v.Pos(), value: v.Pos()}
	if f, ok := v.Source().(*ast.Field); ok {
		p.label, p.value = f.Label.Pos(), f.Value.Pos()
	}
	s.places[path] = p
	if t, err := v.String(); err == nil {
		s.texts[path] = t
	}
}

// find is where a finding stands: at its own path, or else at the first of the near
// ones that the user's file has, or else at the innermost part of its own path.
func (s *shape) find(at string, near []string) (string, token.Pos) {
	for _, p := range append([]string{at}, near...) {
		if pl, ok := s.places[p]; ok {
			return p, pl.value
		}
	}
	for p := at; p != ""; {
		p = p[:max(strings.LastIndexAny(p, ".["), 0)]
		if pl, ok := s.places[p]; ok {
			return at, pl.value
		}
	}
	return at, s.places[""].value
}

// isSpoilt tells whether a path, a part of it or something in it was refused.
func (s *shape) isSpoilt(path string) bool {
	return slices.ContainsFunc(s.spoilt, func(bad string) bool { return within(bad, path) || within(path, bad) })
}

// within tells whether path is outer or a part of it.
func within(path, outer string) bool {
	rest, ok := strings.CutPrefix(path, outer)
	return ok && (rest == "" || outer == "" || rest[0] == '.' || rest[0] == '[')
}

func (s *shape) fieldsOf(pattern string, schema cue.Value) fields {
	if f, ok := s.fields[pattern]; ok {
		return f
	}
	f := fieldsOf(schema)
	s.fields[pattern] = f
	return f
}

func fieldsOf(schema cue.Value) fields {
	f := fields{values: map[string]cue.Value{}}
	it, err := schema.Fields(cue.Optional(true))
	if err != nil {
		return f
	}
	for it.Next() {
		sel := it.Selector()
		name := sel.Unquoted()
		f.names = append(f.names, name)
		f.values[name] = it.Value()
		if sel.ConstraintType() == cue.RequiredConstraint {
			f.required = append(f.required, name)
		}
	}
	return f
}

// wanted says in words what a value of the schema must be.
func (s *shape) wanted(schema cue.Value) string {
	switch {
	case attribute(schema, "want", "") != "":
		return attribute(schema, "want", "")
	case has(schema, "size"):
		return `a number of bytes such as 65536, 64Ki or "64KiB"`
	case has(schema, "device"):
		return "soft:ADDR[:PORT] or ibv:DEV, as in soft:127.0.0.1 or ibv:mlx5_0"
	case attribute(schema, "duration", "") == "positive":
		return `a length of time above zero, such as "30s" or "500ms"`
	case has(schema, "duration"):
		return `a length of time such as "30s" or "500ms"`
	}
	switch schema.IncompleteKind() {
	case cue.StructKind:
		return "a struct"
	case cue.ListKind:
		return "a list"
	}
	return schema.IncompleteKind().String()
}

// choices are the words of "a, b or c".
func choices(word string) []string {
	var out []string
	for _, w := range strings.Split(strings.ReplaceAll(word, " or ", ", "), ", ") {
		if !strings.ContainsAny(w, " \"") {
			out = append(out, w)
		}
	}
	return out
}

func has(v cue.Value, name string) bool {
	a := v.Attribute(name)
	return a.Err() == nil
}

// attribute is the first argument of an attribute, or the one with the key.
func attribute(v cue.Value, name, key string) string {
	a := v.Attribute(name)
	if a.Err() != nil {
		return ""
	}
	if key != "" {
		text, _, _ := a.Lookup(0, key)
		return text
	}
	text, _ := a.String(0)
	return text
}

// sample is a value that fits the schema, in place of one that did not. What the
// schema has a default for, and what is not a plain value, is left out.
func (s *shape) sample(schema cue.Value, n int) ast.Expr {
	if _, ok := schema.Default(); ok {
		return nil
	}
	for _, x := range []ast.Expr{
		ast.NewString(fmt.Sprintf("refused-%d", n)),
		ast.NewLit(token.INT, strconv.Itoa(n)),
		ast.NewString(fmt.Sprintf("ibv:refused-%d", n)),
		ast.NewString("1s"),
		ast.NewString("drop"),
		ast.NewString(fmt.Sprintf("fd00::%d", n)),
	} {
		if schema.IncompleteKind()&(cue.StringKind|cue.NumberKind) != 0 && schema.Unify(s.ctx.BuildExpr(x)).Err() == nil {
			return x
		}
	}
	return nil
}

// syntax is a concrete value as an expression.
func syntax(v cue.Value) ast.Expr {
	x, ok := v.Syntax(cue.Final(), cue.Concrete(true)).(ast.Expr)
	if !ok {
		return nil
	}
	return x
}

// show is a value for a message: short, and on one line.
func show(v cue.Value) string {
	form := cue.Raw()
	if v.IsConcrete() && v.Err() == nil {
		form = cue.Final() // the value itself, not how the recipe makes it
	}
	x, ok := v.Syntax(form).(ast.Expr)
	if !ok {
		return "not a value"
	}
	b, err := format.Node(x, format.Simplify())
	if err != nil {
		return "not a value"
	}
	t := strings.Join(strings.Fields(strings.ReplaceAll(strings.TrimSpace(string(b)), "\n", ", ")), " ")
	t = strings.NewReplacer("{, ", "{", ", }", "}", "[, ", "[", ",, ", ", ", ", ]", "]").Replace(t)
	if r := []rune(t); len(r) > 64 {
		t = string(r[:60]) + "…"
	}
	return t
}

// tail is the last part of a path, without an index.
func tail(path string) string {
	path = path[strings.LastIndexByte(path, '.')+1:]
	if i := strings.IndexByte(path, '['); i > 0 {
		path = path[:i]
	}
	return path
}

// join is the path of a field.
func join(path, name string) string {
	if !ast.IsValidIdent(name) && !plain(name) {
		return path + "[" + strconv.Quote(name) + "]"
	}
	if path == "" {
		return name
	}
	return path + "." + name
}

func plain(name string) bool {
	for _, r := range name {
		if r != '-' && r != '_' && (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') {
			return false
		}
	}
	return name != ""
}
