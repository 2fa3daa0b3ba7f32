package soft

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/railstore/railstore/verbs"
)

// Driver is the provider "soft".
type Driver struct {
	opt    Options
	script *script

	mu   sync.Mutex
	open []*device
}

// New makes a driver whose devices have these options. Drivers are cheap: a
// program whose rails differ makes one for each.
func New(o Options) *Driver { return &Driver{opt: o, script: newScript(o.Faults)} }

// Name is "soft".
func (d *Driver) Name() string { return "soft" }

// Devices lists the addresses of this host's net devices that are up, loopback
// last: each is a name that Open takes.
func (d *Driver) Devices() ([]verbs.DeviceInfo, error) {
	links, err := hostLinks()
	if err != nil {
		return nil, &verbs.Error{Op: "list_devices", Kind: verbs.ErrDevice, Err: err}
	}
	slices.SortStableFunc(links, func(a, b link) int {
		rank := func(l link) int { return int(l.flags & net.FlagLoopback) }
		return rank(a) - rank(b)
	})
	var out []verbs.DeviceInfo
	for _, l := range links {
		if l.flags&net.FlagUp == 0 {
			continue
		}
		for _, p := range l.prefixes {
			a := p.Addr()
			if a.Is6() && a.IsLinkLocalUnicast() {
				a = a.WithZone(l.name)
			}
			out = append(out, verbs.DeviceInfo{Name: a.String(), NodeGUID: nodeGUID(netip.AddrPortFrom(a, 0)), Ports: 1})
		}
	}
	return out, nil
}

// Open opens the device of an address of this host.
func (d *Driver) Open(name string) (verbs.DriverContext, error) {
	const op = "open_device"
	full := "soft:" + name
	addr, err := parseName(name)
	if err != nil {
		return nil, verbs.Errorf(verbs.ErrInvalid, op, full, "%w", err)
	}
	if err := d.script.refused; err != nil {
		return nil, &verbs.Error{Op: op, Device: full, Kind: verbs.ErrInvalid, Err: err}
	}
	if err := d.script.fails(opOpen, op, full); err != nil {
		return nil, err
	}
	dev, err := openDevice(d, full, addr)
	if err != nil {
		return nil, openError(err, op, full, addr)
	}
	d.mu.Lock()
	d.open = append(d.open, dev)
	d.mu.Unlock()
	d.script.join(dev.player)
	return dev, nil
}

func (d *Driver) forget(dev *device) {
	d.mu.Lock()
	d.open = slices.DeleteFunc(d.open, func(x *device) bool { return x == dev })
	d.mu.Unlock()
}

// openError says what to do about the common reasons for a failed open.
func openError(err error, op, full string, addr netip.AddrPort) error {
	var ve *verbs.Error
	switch {
	case errors.As(err, &ve):
		return err
	case errors.Is(err, unix.EADDRINUSE):
		return verbs.Errorf(verbs.ErrInUse, op, full, "UDP port %d of %v is taken by another process or by the kernel's rdma_rxe: choose another port, or none: %w", addr.Port(), addr.Addr(), err)
	case errors.Is(err, unix.EADDRNOTAVAIL):
		return verbs.Errorf(verbs.ErrNotFound, op, full, "%v is not an address of this host: %w", addr.Addr(), err)
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		return verbs.Errorf(verbs.ErrPermission, op, full, "%w", err)
	case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE), errors.Is(err, unix.ENOMEM):
		return verbs.Errorf(verbs.ErrNoMemory, op, full, "%w", err)
	}
	return verbs.Errorf(verbs.ErrDevice, op, full, "%w", err)
}

// parseName reads ADDR, ADDR:PORT and [ADDR]:PORT.
func parseName(name string) (netip.AddrPort, error) {
	bare := name
	if strings.HasPrefix(name, "[") && strings.HasSuffix(name, "]") {
		bare = name[1 : len(name)-1]
	}
	if a, err := netip.ParseAddr(bare); err == nil {
		return checkName(name, netip.AddrPortFrom(a.Unmap(), 0))
	}
	ap, err := netip.ParseAddrPort(name)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("%q: want ADDR or ADDR:PORT with an IP address ([ADDR]:PORT for IPv6)", name)
	}
	if ap.Port() == 0 {
		return netip.AddrPort{}, fmt.Errorf("%q: port 0; leave it out for any free port", name)
	}
	return checkName(name, netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port()))
}

func checkName(name string, ap netip.AddrPort) (netip.AddrPort, error) {
	switch a := ap.Addr(); {
	case a.IsUnspecified():
		return ap, fmt.Errorf("%q: a rail needs one definite address of this host", name)
	case a.IsMulticast(), a == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return ap, fmt.Errorf("%q: not a unicast address", name)
	case a.Is6() && a.IsLinkLocalUnicast() && a.Zone() == "":
		return ap, fmt.Errorf("%q: a link-local address needs its net device, as in %s%%eth0", name, a)
	}
	return ap, nil
}
