package launch

import (
	"context"
	"errors"
	"net"
	"strconv"

	"github.com/railstore/railstore/ctrl"
	"github.com/railstore/railstore/cue/deploy"
	"github.com/railstore/railstore/pipeline"
)

// ControlAddress is where the control plane of the deployment listens.
func ControlAddress(d *deploy.Deployment) string {
	return net.JoinHostPort(d.Control.Host, strconv.Itoa(d.Control.Port))
}

// Identity is what every process of the deployment shows to the control plane.
func Identity(d *deploy.Deployment) ctrl.Identity {
	return ctrl.Identity{Namespace: d.Control.Namespace, Deployment: d.Name, Epoch: d.Epoch, Digest: d.Digest()}
}

// TLS are the files of the deployment's control plane, nil without TLS.
func TLS(d *deploy.Deployment) *ctrl.TLSFiles {
	t := d.Control.TLS
	if t == nil {
		return nil
	}
	return &ctrl.TLSFiles{Cert: t.Cert, Key: t.Key, CA: t.CA}
}

// AskControl is the Control that asks the deployment's control plane. It does not
// wait for one that is not there.
func AskControl(ctx context.Context, d *deploy.Deployment) (*ctrl.Status, error) {
	c, err := ctrl.Dial(ctx, ControlAddress(d), Identity(d), ctrl.ClientOptions{TLS: TLS(d), FailFast: true})
	if err != nil {
		return nil, bare(err)
	}
	defer func() { _ = c.Close() }()
	s, err := c.Status(ctx)
	if err != nil {
		return nil, bare(err)
	}
	return &s, nil
}

// bare is the cause without the two ends: the status that it becomes part of
// names them.
func bare(err error) error {
	var (
		ce *ctrl.CallError
		ie *ctrl.IdentityError
		pe *pipeline.Error
	)
	switch {
	case errors.As(err, &ie):
		return ie
	case errors.As(err, &ce):
		return ce
	case errors.As(err, &pe) && pe.Err != nil:
		return pe.Err
	}
	return err
}
