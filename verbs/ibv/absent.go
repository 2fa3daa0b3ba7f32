//go:build !cgo || !linux

package ibv

import "github.com/railstore/railstore/verbs"

// Driver is the provider "ibv" of a build that cannot have it.
type Driver struct{}

// New gives the driver that says why it is not there.
func New(Options) *Driver { return &Driver{} }

// Name is "ibv".
func (*Driver) Name() string { return "ibv" }

// Devices fails with ErrNotSupported.
func (*Driver) Devices() ([]verbs.DeviceInfo, error) {
	return nil, absent("list_devices", "")
}

// Open fails with ErrNotSupported.
func (*Driver) Open(name string) (verbs.DriverContext, error) {
	return nil, absent("open_device", "ibv:"+name)
}

func absent(op, device string) error {
	return verbs.Errorf(verbs.ErrNotSupported, op, device,
		"this program was built without cgo, which libibverbs needs: build it on Linux with CGO_ENABLED=1 and a C compiler")
}
