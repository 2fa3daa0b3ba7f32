//go:build cgo && linux

package ibv

// #include "shim.h"
import "C"

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/railstore/railstore/verbs"
)

// Driver is the provider "ibv".
type Driver struct{ opt Options }

// New makes a driver. Nothing is loaded before it is used.
func New(o Options) *Driver { return &Driver{opt: o} }

// Name is "ibv".
func (d *Driver) Name() string { return "ibv" }

// found is a device of the library's list, valid while the list is.
type found struct {
	dev                *C.struct_ab_device
	name, uverbs, path string
}

// each calls f for the devices that the library knows, until f returns false.
func (d *Driver) each(f func(lib *C.struct_rs_lib, dev found) bool) error {
	lib, err := d.library()
	if err != nil {
		return err
	}
	var n C.int
	list, err := C.rs_get_device_list(lib, &n)
	if list == nil {
		e := errnoOf(err)
		if e == unix.ENOSYS || e == unix.ENOENT {
			return &verbs.Error{Op: "list_devices", Kind: verbs.ErrNotSupported,
				Err: fmt.Errorf("the kernel has no user verbs (%w): load the module ib_uverbs", e)}
		}
		return &verbs.Error{Op: "list_devices", Kind: kindOf(e), Err: e}
	}
	defer C.rs_free_device_list(lib, list)
	for i := range n {
		dev := C.rs_device_at(list, i)
		fd := found{dev: dev, name: text(dev.name[:]), uverbs: text(dev.dev_name[:]), path: text(dev.ibdev_path[:])}
		if !f(lib, fd) {
			break
		}
	}
	return nil
}

// text is a C string in an array, whether it ends in a zero or not.
func text(c []C.char) string {
	b := make([]byte, 0, len(c))
	for _, v := range c {
		if v == 0 {
			break
		}
		b = append(b, byte(v))
	}
	return string(b)
}

// Devices lists the devices that the library has a provider for.
func (d *Driver) Devices() ([]verbs.DeviceInfo, error) {
	var out []verbs.DeviceInfo
	err := d.each(func(lib *C.struct_rs_lib, f found) bool {
		info := verbs.DeviceInfo{Name: f.name, NodeGUID: uint64(C.rs_get_device_guid(lib, f.dev))}
		ports, err := os.ReadDir(filepath.Join(f.path, "ports"))
		if err == nil {
			info.Ports = len(ports)
		}
		out = append(out, info)
		return true
	})
	return out, err
}

// Open opens a device by its name, as ibv_devices shows it.
func (d *Driver) Open(name string) (verbs.DriverContext, error) {
	var out *device
	var fail error
	var names []string
	err := d.each(func(lib *C.struct_rs_lib, f found) bool {
		names = append(names, f.name)
		if f.name != name {
			return true
		}
		ctx, err := C.rs_open_device(lib, f.dev)
		if ctx == nil {
			fail = d.openFailed(name, f.uverbs, errnoOf(err))
			return false
		}
		out, fail = newDevice(lib, ctx, name, f.path)
		return false
	})
	switch {
	case err != nil:
		return nil, err
	case fail != nil:
		return nil, fail
	case out == nil:
		return nil, d.unknown(name, names)
	}
	return out, nil
}

// unknown says what there is instead of the device.
func (d *Driver) unknown(name string, names []string) error {
	have := "there is none"
	if len(names) > 0 {
		have = "there are " + strings.Join(names, ", ")
	}
	why := fmt.Sprintf("libibverbs has no device %q; %s", name, have)
	if _, err := os.Stat(filepath.Join(d.opt.sysDir(), name)); err == nil && name != "" && !strings.ContainsRune(name, '/') {
		why = fmt.Sprintf("the kernel has the device %q, but libibverbs has no provider for it: install the package ibverbs-providers, and load the module ib_uverbs", name)
	}
	return verbs.Errorf(verbs.ErrNotFound, "open_device", "ibv:"+name, "%s", why)
}
