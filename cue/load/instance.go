package load

import (
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"sync"

	"cuelang.org/go/cue"
	"cuelang.org/go/cue/ast"
	"cuelang.org/go/cue/build"
	"cuelang.org/go/cue/cuecontext"
	"cuelang.org/go/cue/errors"
	"cuelang.org/go/cue/parser"
	"cuelang.org/go/cue/token"

	"github.com/railstore/railstore/schemas"
)

// SchemaImport is the import path of the schema in a recipe.
const SchemaImport = "github.com/railstore/railstore/schemas"

// marker is a definition in the stand-in of #Deployment that says, in the
// evaluated recipe, that it was embedded.
const marker = "#railstoreDeployment"

// schemaFiles are the schema's sources by name.
var schemaFiles = sync.OnceValue(func() map[string][]byte {
	m := map[string][]byte{}
	names, err := fs.Glob(schemas.FS, "*.cue")
	if err == nil {
		for _, n := range names {
			if m[n], err = fs.ReadFile(schemas.FS, n); err != nil {
				break
			}
		}
	}
	if err != nil {
		panic("load: embedded schema: " + err.Error()) // an embed.FS cannot fail
	}
	return m
})

// standIn is a package with the schema's names and no constraint.
var standIn = sync.OnceValue(func() map[string][]byte {
	var b strings.Builder
	b.WriteString("package schemas\n")
	seen := map[string]bool{}
	for name, src := range schemaFiles() {
		f, err := parser.ParseFile(name, src)
		if err != nil {
			panic("load: embedded schema: " + err.Error()) // a test parses it
		}
		for _, d := range f.Decls {
			field, ok := d.(*ast.Field)
			if !ok {
				continue
			}
			label, _, err := ast.LabelName(field.Label)
			if err != nil || !strings.HasPrefix(label, "#") || seen[label] {
				continue
			}
			seen[label] = true
			if label == "#Deployment" {
				fmt.Fprintf(&b, "#Deployment: {%s: true, ...}\n", marker)
			} else {
				fmt.Fprintf(&b, "%s: _\n", label)
			}
		}
	}
	return map[string][]byte{"standin.cue": []byte(b.String())}
})

// evaluator compiles recipes and the schema in one CUE context.
type evaluator struct{ ctx *cue.Context }

func newEvaluator() *evaluator { return &evaluator{cuecontext.New()} }

// recipe compiles a recipe against the given files of the schema package. The
// position is that of the embedded #Deployment, which stands for the whole recipe.
func (e *evaluator) recipe(name string, src []byte, schema map[string][]byte) (cue.Value, token.Pos, error) {
	f, err := parser.ParseFile(name, src)
	if err != nil {
		return cue.Value{}, token.NoPos, err
	}
	at := f.Pos()
	for _, d := range f.Decls {
		if embed, ok := d.(*ast.EmbedDecl); ok {
			at = embed.Pos()
			break
		}
	}
	var refused errors.Error
	bc := build.NewContext(build.Loader(func(pos token.Pos, path string) *build.Instance { return nil }))
	load := func(pos token.Pos, path string) *build.Instance {
		switch {
		case path == SchemaImport || strings.HasPrefix(path, SchemaImport+"@"):
			return schemaInstance(bc, schema)
		case !strings.Contains(strings.Split(path, "/")[0], "."):
			return nil // the standard library
		}
		refused = errors.Append(refused, errors.Newf(pos, "import %q: a recipe can import %s and CUE's standard library", path, SchemaImport))
		return nil
	}
	inst := bc.NewInstance("", load)
	if err := inst.AddSyntax(f); err != nil {
		return cue.Value{}, at, err
	}
	if err := inst.Complete(); err != nil {
		return cue.Value{}, at, err
	}
	if refused != nil {
		return cue.Value{}, at, refused
	}
	v := e.ctx.BuildInstance(inst)
	if inst.Err != nil {
		return v, at, inst.Err
	}
	return v, at, nil
}

// schema compiles the schema package alone.
func (e *evaluator) schema() (cue.Value, error) {
	bc := build.NewContext()
	inst := schemaInstance(bc, schemaFiles())
	if inst.Err != nil {
		return cue.Value{}, inst.Err
	}
	v := e.ctx.BuildInstance(inst)
	return v, v.Err()
}

func schemaInstance(bc *build.Context, files map[string][]byte) *build.Instance {
	inst := bc.NewInstance("", func(token.Pos, string) *build.Instance { return nil })
	inst.ImportPath = SchemaImport
	names := make([]string, 0, len(files))
	for n := range files {
		names = append(names, n)
	}
	slices.Sort(names)
	for _, n := range names {
		f, err := parser.ParseFile("schemas/"+n, files[n], parser.ParseComments)
		if err == nil {
			err = inst.AddSyntax(f)
		}
		if err != nil {
			inst.ReportError(errors.Promote(err, ""))
			return inst
		}
	}
	if err := inst.Complete(); err != nil {
		inst.ReportError(errors.Promote(err, ""))
	}
	return inst
}
