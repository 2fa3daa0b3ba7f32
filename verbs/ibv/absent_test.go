//go:build !cgo || !linux

package ibv

import (
	"errors"
	"strings"
	"testing"

	"github.com/railstore/railstore/verbs"
)

func TestAbsentSaysWhy(t *testing.T) {
	_, err := verbs.Open(New(Options{}), "mlx5_0")
	if !errors.Is(err, verbs.ErrNotSupported) || !strings.Contains(err.Error(), "CGO_ENABLED=1") || !strings.Contains(err.Error(), "ibv:mlx5_0") {
		t.Errorf("open: %v", err)
	}
	if _, err := New(Options{}).Devices(); !errors.Is(err, verbs.ErrNotSupported) {
		t.Errorf("devices: %v", err)
	}
}
