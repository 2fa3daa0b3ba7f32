package main

import (
	"encoding/json"
	"os"
	"strings"

	"github.com/railstore/railstore/cue/deploy"
	"github.com/railstore/railstore/cue/load"
	"github.com/railstore/railstore/pipeline"
)

// envRecipe names the deployment's file where the caller does not.
const envRecipe = "RS_CONFIG"

// openRecipe reads a deployment: a recipe, or what rs up keeps of one (resolved.json).
func openRecipe(path string, environ []string) (*deploy.Deployment, error) {
	if path == "" {
		for _, kv := range environ { // of a name that comes twice the last counts
			if v, ok := strings.CutPrefix(kv, envRecipe+"="); ok {
				path = v
			}
		}
	}
	if path == "" {
		return nil, usage("open", nil, "no recipe, and %s is not set in the environment", envRecipe)
	}
	if !strings.HasSuffix(path, ".json") {
		d, _, err := load.Load(path, load.Options{})
		return d, pipeline.Wrap(err, pipeline.LayerConfig, "open", pipeline.Nowhere)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, pipeline.Wrap(err, pipeline.LayerConfig, "open", pipeline.Nowhere)
	}
	var file struct {
		Deployment json.RawMessage `json:"deployment"`
	}
	if err := json.Unmarshal(b, &file); err == nil && len(file.Deployment) > 0 {
		b = file.Deployment
	}
	d, err := deploy.Decode(b)
	if err != nil {
		return nil, pipeline.Errorf(pipeline.LayerConfig, "open", pipeline.Nowhere, "%s: %w", path, err)
	}
	return d, nil
}

// railNames are names with commas between them, nil for none.
func railNames(op, s string) ([]string, error) {
	if s == "" {
		return nil, nil
	}
	var out []string
	seen := map[string]bool{}
	for n := range strings.SplitSeq(s, ",") {
		n = strings.TrimSpace(n)
		if n == "" || seen[n] {
			return nil, usage(op, nil, "rails %q: want names of rails, each once, with commas between them", s)
		}
		seen[n] = true
		out = append(out, n)
	}
	return out, nil
}
