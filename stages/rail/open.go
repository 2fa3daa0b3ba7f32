package rail

import (
	"context"

	"github.com/railstore/railstore/pipeline"
)

// Open runs the first two stages, resolve and allocate, with the recipe's deadlines. The
// scope closes the set.
func Open(ctx context.Context, scope *pipeline.Scope, in ResolveInput, demand Demand) (*Set, error) {
	resolve, allocate := Resolve, Allocate
	p := &in.Deployment.Pipeline
	resolve.Deadline, allocate.Deadline = p.Resolve.Deadline.D(), p.Allocate.Deadline.D()
	rails, err := pipeline.Run(ctx, scope, resolve, in)
	if err != nil {
		return nil, err
	}
	return pipeline.Run(ctx, scope, allocate, AllocateInput{Deployment: in.Deployment, Host: in.Host, Rails: rails, Demand: demand})
}
