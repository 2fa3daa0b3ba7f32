package rail

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"os"
	"time"

	"github.com/railstore/railstore/ctrl"
	"github.com/railstore/railstore/cue/deploy"
	"github.com/railstore/railstore/pipeline"
)

// ClientHost is the host whose rails a client uses: the one that is named, or the
// deployment's ClientHost.
func ClientHost(d *deploy.Deployment, named string) (string, error) {
	if named != "" {
		return named, nil
	}
	h := d.ClientHost()
	if h == nil {
		return "", pipeline.Errorf(pipeline.LayerConfig, "connect", pipeline.Nowhere, "the deployment has no host")
	}
	return h.Name, nil
}

// ClientName draws a name for a client: its host, its process, and what tells it from the
// process's other clients.
func ClientName(host string) string {
	var b [4]byte
	_, _ = rand.Read(b[:]) // never fails
	return fmt.Sprintf("%s-%d-%s", host, os.Getpid(), hex.EncodeToString(b[:]))
}

// ClientInput is what a client joins a control plane with.
type ClientInput struct {
	Set      *Set
	Name     string // the control plane knows ctrl.ClientID of it
	Control  string // address of the control plane
	Identity ctrl.Identity
	Options  ctrl.ClientOptions
}

// Join connects a client to the control plane, which knows its rails then. The scope
// leaves and closes it.
func Join(ctx context.Context, scope *pipeline.Scope, in ClientInput) (*ctrl.Client, error) {
	c, err := ctrl.Dial(ctx, in.Control, in.Identity, in.Options)
	if err != nil {
		return nil, err
	}
	scope.DeferClose("control client", c.Close)
	err = c.Join(ctx, ctrl.NodeInfo{ID: ctrl.ClientID(in.Name), Role: ctrl.RoleClient, Host: in.Set.Host, PID: os.Getpid(),
		Started: time.Now(), Rails: in.Set.Info(), Lease: in.Set.Deployment.Health.ClientLease.D()})
	if err != nil {
		return nil, err
	}
	scope.Defer("leave", func(ctx context.Context) error { return c.Leave(ctx, "done") })
	return c, nil
}
