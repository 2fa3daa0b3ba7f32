package cmd

import (
	"context"

	"github.com/urfave/cli/v3"

	"github.com/railstore/railstore/ctrl"
	"github.com/railstore/railstore/stages/launch"
	"github.com/railstore/railstore/stages/object"
)

// catalog connects to the catalog of the deployment that the command means. It
// needs no rail, so it also works where there is no device. The caller closes it.
func (a *app) catalog(ctx context.Context, c *cli.Command) (*ctrl.Client, error) {
	f, err := a.folder(c)
	if err != nil {
		return nil, err
	}
	r, err := f.RequireControl()
	if err != nil {
		return nil, err
	}
	d := r.Deployment
	return ctrl.Dial(ctx, launch.ControlAddress(d), launch.Identity(d), ctrl.ClientOptions{TLS: launch.TLS(d), FailFast: true, Timeout: d.Control.Timeout.D()})
}

// objectArgument is the object that a positional argument names.
func objectArgument(c *cli.Command, s string) (object.Key, error) {
	k, err := object.ParseKey(s)
	if err != nil {
		return k, usagef("%s: %v", c.FullName(), err)
	}
	return k, nil
}
