package load

import (
	"encoding/json"
	"fmt"

	"cuelang.org/go/cue"

	"github.com/railstore/railstore/cue/deploy"
)

// decode makes the deployment of a valid recipe.
func decode(dep cue.Value) (*deploy.Deployment, error) {
	b, err := dep.LookupPath(cue.ParsePath("#resolved")).MarshalJSON()
	if err != nil {
		return nil, fmt.Errorf("resolved deployment: %w", err)
	}
	var d deploy.Deployment
	if err := json.Unmarshal(b, &d); err != nil {
		return nil, fmt.Errorf("resolved deployment: %w", err)
	}
	return &d, nil
}
