package fabric

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
)

// Options of Read. The zero value is this host.
type Options struct {
	// Root is where sysfs is: /sys. Another folder holds a copy of some host's.
	Root string
	// Device is the only device to read, if there is one of that name: a GID table
	// may have a thousand entries, each of them a file.
	Device string
	// Nets are net devices to read besides those of RDMA devices.
	Nets []string
}

// Host is what sysfs says of a host's RDMA devices.
type Host struct {
	Root    string // of the tree it was read from
	Devices []Device
	Nets    *Nets
	// Absent is why there are no devices; empty when there are some.
	Absent string
}

const classInfiniBand = "class/infiniband"

// Read lists the RDMA devices. A host without any is no error; a tree that is not
// there is.
func Read(o Options) (*Host, error) {
	root := o.Root
	if root == "" {
		root = "/sys"
	}
	if fi, err := os.Stat(root); err != nil {
		return nil, fmt.Errorf("sysfs: %w", err)
	} else if !fi.IsDir() {
		return nil, fmt.Errorf("sysfs: %s is not a folder", root)
	}
	var ask mapper = sysfsMap{tree{os.DirFS(root)}}
	if filepath.Clean(root) == "/sys" {
		ask = rdmaMap{}
	}
	h, err := read(os.DirFS(root), ask, o)
	if err != nil {
		return nil, fmt.Errorf("sysfs %s: %w", root, err)
	}
	h.Root = root
	return h, nil
}

// CheckAccess finds out which devices this process can open, by opening their
// files in dev, which is /dev when empty.
func (h *Host) CheckAccess(dev string) {
	if dev == "" {
		dev = "/dev"
	}
	for i := range h.Devices {
		h.Devices[i].Access = access(&h.Devices[i], dev, openFile)
	}
}

// read is Read of a tree.
func read(fsys fs.FS, ask mapper, o Options) (*Host, error) {
	t := tree{fsys}
	h := &Host{}
	names, err := t.names(classInfiniBand)
	switch {
	case isAbsent(err):
		h.Absent = "no RDMA driver is loaded (there is no " + classInfiniBand + ")"
	case err != nil && len(names) == 0:
		return nil, err
	case len(names) == 0:
		h.Absent = "an RDMA driver is loaded, but no device is here: none was found, or they are in another network namespace (rdma system show)"
	}
	if slices.Contains(names, o.Device) {
		names = []string{o.Device}
	}
	used := slices.Clone(o.Nets)
	for _, n := range names {
		d := t.device(n)
		for i := range d.Ports {
			used = append(used, d.Ports[i].NetDevs...)
		}
		if d.parent != "" {
			used = append(used, d.parent)
		}
		h.Devices = append(h.Devices, d)
	}
	h.Nets = t.nets(used)
	for i := range h.Devices {
		d := &h.Devices[i]
		d.CharDevices = ask.charDevices(d.Name)
		d.settle(h.Nets)
	}
	h.mapNets(ask)
	return h, nil
}

// Device is the device of a name.
func (h *Host) Device(name string) (*Device, bool) {
	for i := range h.Devices {
		if h.Devices[i].Name == name {
			return &h.Devices[i], true
		}
	}
	return nil, false
}

func openFile(name string) error {
	f, err := os.OpenFile(name, os.O_RDWR|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	return f.Close()
}

// access is why this process cannot open a device's uverbs file, with what to do,
// or nil. Opening it is the only honest test: the device cgroup of a container
// refuses what the file's mode allows.
func access(d *Device, dev string, open func(string) error) *Finding {
	file := d.Uverbs()
	if file == "" {
		return &Finding{Code: "no_uverbs", Message: "the kernel offers no user verbs for it (no uverbs device)", Hint: "load the module: modprobe ib_uverbs"}
	}
	rel, err := filepath.Rel("/dev", file)
	if err != nil {
		return &Finding{Code: "uverbs", Message: err.Error()}
	}
	err = open(filepath.Join(dev, rel))
	if err == nil {
		return nil
	}
	f := &Finding{Code: "uverbs", Message: fmt.Sprintf("%s cannot be opened by uid %d: %v", file, os.Getuid(), cause(err))}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		f.Hint = "in a container pass the file to it, as in --device=" + file + "; on a host see that udev makes it"
	case errors.Is(err, unix.EPERM):
		f.Hint = "the container's device rules forbid it: start it with --device=" + file
	case errors.Is(err, unix.EACCES):
		f.Hint = "give this user the file, as in chmod 0666 " + file + " (rdma-core's udev rules do that)"
	}
	return f
}

// cause is an error without the path, which the message has.
func cause(err error) error {
	var pe *fs.PathError
	if errors.As(err, &pe) {
		return pe.Err
	}
	return err
}
