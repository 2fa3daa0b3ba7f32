package load

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// moduleFile makes the exported folder the CUE module that recipes import.
const moduleFile = `module: "github.com/railstore/railstore@v0"
language: version: "v0.17.0"
`

// Export writes the schema as a CUE module into dir, so that `cue vet` checks
// recipes in that folder. It makes the folder, leaves files that are the same
// already, and refuses to overwrite others before it has written anything.
func Export(dir string) error {
	files := map[string][]byte{"cue.mod/module.cue": []byte(moduleFile)}
	for name, src := range schemaFiles() {
		files["schemas/"+name] = src
	}
	names := make([]string, 0, len(files))
	for n := range files {
		names = append(names, n)
	}
	slices.Sort(names)
	var write, differ []string
	for _, n := range names {
		old, err := os.ReadFile(filepath.Join(dir, filepath.FromSlash(n)))
		switch {
		case errors.Is(err, fs.ErrNotExist):
			write = append(write, n)
		case err != nil:
			return fmt.Errorf("export schema: %w", err)
		case !bytes.Equal(old, files[n]):
			differ = append(differ, n)
		}
	}
	if len(differ) > 0 {
		return fmt.Errorf("export schema to %s: would overwrite %s, which differ; remove them or name another folder", dir, strings.Join(differ, ", "))
	}
	for _, n := range write {
		path := filepath.Join(dir, filepath.FromSlash(n))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return fmt.Errorf("export schema: %w", err)
		}
		if err := os.WriteFile(path, files[n], 0o644); err != nil {
			return fmt.Errorf("export schema: %w", err)
		}
	}
	return nil
}
