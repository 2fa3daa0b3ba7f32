package load

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"cuelang.org/go/cue"
	"cuelang.org/go/cue/ast"
	"cuelang.org/go/cue/format"
	"cuelang.org/go/cue/parser"
	"cuelang.org/go/cue/token"
)

const (
	docsFile   = "../../docs/schema.md"
	docsMarker = "\n## Fields\n"
)

// docsOrder are the definitions that the document explains, with where they are used.
var docsOrder = [][2]string{
	{"Deployment", ""}, {"Control", "control"}, {"TLS", "control.tls"}, {"Fabric", "fabrics[]"}, {"Host", "hosts[]"},
	{"Rail", "hosts[].rails[]"}, {"GID", "hosts[].rails[].gid"}, {"Shard", "shards[]"}, {"Store", "shards[].store"}, {"Metrics", "shards[].metrics"}, {"Lanes", "lanes"},
	{"Health", "health"}, {"Rebuild", "rebuild"}, {"Retry", "retry"}, {"Server", "server"}, {"Objects", "objects"},
	{"Limits", "reader, jobs[].limits"}, {"Table", "tables[]"}, {"Optimizer", "tables[].optimizer"}, {"Pipeline", "pipeline"},
	{"StageOpts", "pipeline.*"}, {"ReadJob", "jobs[]"}, {"Profile", "profile"}, {"Fault", "hosts[].rails[].faults[]"},
	{"FaultAt", "hosts[].rails[].faults[].at"}, {"FaultMatch", "hosts[].rails[].faults[].match"}, {"Caps", "hosts[].rails[].caps"}, {"SoftGID", "hosts[].rails[].gids[]"},
}

// TestDocs keeps the tables of docs/schema.md in step with the schema. RS_UPDATE=1
// writes them.
func TestDocs(t *testing.T) {
	defs := map[string]*ast.Field{}
	for _, file := range slices.Sorted(maps.Keys(schemaFiles())) {
		if strings.HasPrefix(file, "rules") || file == "resolved.cue" {
			continue
		}
		f, err := parser.ParseFile(file, schemaFiles()[file], parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			if field, ok := d.(*ast.Field); ok {
				if label, _, _ := ast.LabelName(field.Label); strings.HasPrefix(label, "#") {
					defs[label[1:]] = field
				}
			}
		}
	}
	e := newEvaluator()
	schema, err := e.schema()
	if err != nil {
		t.Fatal(err)
	}
	s := &shape{schema: schema}
	var b strings.Builder
	listed := map[string]bool{}
	for _, d := range docsOrder {
		listed[d[0]] = true
		body, ok := defs[d[0]].Value.(*ast.StructLit)
		if !ok {
			t.Fatalf("#%s is no struct", d[0])
		}
		fmt.Fprintf(&b, "\n### %s\n\n%s\n\n| field | default | value | what it is |\n| --- | --- | --- | --- |\n", title(d), oneLine(comment(defs[d[0]])))
		values := fieldsOf(schema.LookupPath(cue.ParsePath("#" + d[0]))).values
		for _, elt := range body.Elts {
			f, ok := elt.(*ast.Field)
			if !ok {
				continue
			}
			name, _, err := ast.LabelName(f.Label)
			if err != nil || strings.HasPrefix(name, "#") {
				continue
			}
			text, flags := splitFlags(comment(f))
			def := defaultOf(f)
			if d[0] == "Limits" {
				def = defaultIn(defs["Reader"], name)
			}
			if text == "" {
				t.Errorf("#%s: %s has no comment", d[0], name)
			}
			for _, w := range without {
				if w.value == "" && w.pattern == strings.TrimPrefix(d[1]+"."+name, ".") {
					text += " *No effect yet.*"
				}
			}
			for _, flag := range flags {
				text += " `" + flag + "`"
			}
			fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", name, def, kind(s, values[name]), strings.ReplaceAll(text, "|", "\\|"))
		}
	}
	for name := range defs {
		if strings.HasPrefix(name, "max") || slices.Contains([]string{"Reader", "ToBytes", "ShowBytes", "ParseRail"}, name) {
			continue
		}
		if st, ok := defs[name].Value.(*ast.StructLit); ok && !listed[name] && name != "units" {
			t.Errorf("the document does not explain #%s (%d fields)", name, len(st.Elts))
		}
	}
	old, err := os.ReadFile(docsFile)
	if err != nil {
		t.Fatal(err)
	}
	prose, _, ok := strings.Cut(string(old), docsMarker)
	if !ok {
		t.Fatalf("%s has no %q", docsFile, docsMarker)
	}
	want := prose + docsMarker + b.String()
	if os.Getenv("RS_UPDATE") != "" {
		if err := os.WriteFile(docsFile, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if string(old) != want {
		t.Errorf("%s is not what the schema says; RS_UPDATE=1 writes it anew", docsFile)
	}
	// The recipe in it is a valid one.
	_, recipe, _ := strings.Cut(prose, "```cue\n")
	recipe, _, _ = strings.Cut(recipe, "```")
	if _, _, err := Load("docs.cue", Options{Source: []byte(recipe)}); err != nil {
		t.Error(err)
	}
	// So are the flags of the parameters that the reference names.
	for _, flag := range strings.Fields(`
		--rdma-namespace --rdma-control-plane-host --rdma-control-plane-port --qps-per-client-per-shard --slots-per-qp --async-depth
		--rdma-put-protocol-version --rdma-put-v2-transfer-mode --rdma-wait-timeout-ms --rdma-heartbeat-interval-ms --rdma-health-stale-ms
		--rdma-health-dead-ms --rdma-health-probe-after-ms --rdma-health-probe-interval-ms --rdma-health-probe-timeout-ms
		--rdma-cq-harvest-interval-ms --rdma-lane-rebuild-enabled --rdma-lane-rebuild-max-attempts --rdma-lane-rebuild-wait-ms
		--rdma-lane-rebuild-poll-ms --rdma-lane-rebuild-poll-max-ms --rdma-lane-rebuild-poll-timeout-ms --rdma-lane-rebuild-cooldown-ms
		--rdma-get-response-mode --server-rdma-threads --rdma-rc-server-get-workers --rdma-rc-server-coroutines-per-thread`) {
		if !strings.Contains(want, "`"+flag+"`") {
			t.Errorf("no field has the flag %s", flag)
		}
	}
}

func title(d [2]string) string {
	if d[1] == "" {
		return "The recipe"
	}
	return "`" + d[1] + "`"
}

// kind is what a value must be, in the document's words.
func kind(s *shape, v cue.Value) string {
	switch {
	case has(v, "size"):
		return "size"
	case attribute(v, "duration", "") == "positive":
		return "duration above 0"
	case has(v, "duration"):
		return "duration"
	case has(v, "device"):
		return "soft:ADDR[:PORT] or ibv:DEV"
	}
	if each := attribute(v, "want", "each"); each != "" {
		return s.wanted(v) + ", each " + each
	}
	return strings.NewReplacer("whole number", "number", "|", "\\|").Replace(s.wanted(v))
}

func comment(n ast.Node) string {
	var b strings.Builder
	for _, g := range ast.Comments(n) {
		if g.Doc {
			b.WriteString(g.Text())
		}
	}
	return b.String()
}

// splitFlags takes the lines that are a flag out of a comment.
func splitFlags(text string) (rest string, flags []string) {
	var keep []string
	for _, l := range strings.Split(text, "\n") {
		if strings.HasPrefix(l, "--") {
			flags = append(flags, l)
		} else {
			keep = append(keep, l)
		}
	}
	return oneLine(strings.Join(keep, " ")), flags
}

// defaultOf is the marked disjunct of a field, as text.
func defaultOf(f *ast.Field) string {
	if f.Constraint == token.NOT {
		return "required"
	}
	if f.Constraint == token.OPTION {
		return ""
	}
	var star ast.Expr
	ast.Walk(f.Value, func(n ast.Node) bool {
		if u, ok := n.(*ast.UnaryExpr); ok && u.Op == token.MUL && star == nil {
			star = u.X
		}
		return star == nil
	}, nil)
	switch x := f.Value.(type) {
	case *ast.ListLit:
		if star == nil {
			return "`[]`"
		}
	case *ast.Ident, *ast.BinaryExpr:
		if star == nil {
			return ""
		}
	default:
		_ = x
	}
	if star == nil {
		return ""
	}
	b, err := format.Node(star)
	if err != nil {
		return ""
	}
	return "`" + strings.NewReplacer("#given", `"auto"`, "#deployment", "name", `\(#index)`, "N", "(", "", ")", "").Replace(string(b)) + "`"
}

func defaultIn(def *ast.Field, name string) string {
	for _, e := range def.Value.(*ast.StructLit).Elts {
		if f, ok := e.(*ast.Field); ok {
			if n, _, _ := ast.LabelName(f.Label); n == name {
				return defaultOf(f)
			}
		}
	}
	return ""
}
