package rail

import (
	"context"
	"strings"
	"testing"

	"github.com/railstore/railstore/cue/deploy"
	"github.com/railstore/railstore/pipeline"
)

// A program that forgets its drivers is told so.
func TestResolveWithoutDrivers(t *testing.T) {
	d := &deploy.Deployment{Hosts: []deploy.Host{{Name: "a", Rails: []deploy.Rail{{Name: "r", Device: "soft:127.0.0.1"}}}}}
	_, err := pipeline.Run(context.Background(), pipeline.NewScope(), Resolve, ResolveInput{Deployment: d, Host: "a"})
	if err == nil || !strings.Contains(err.Error(), "Drivers is nil") {
		t.Error(err)
	}
}
