package cmd

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"

	"github.com/urfave/cli/v3"

	"github.com/railstore/railstore/bin/provider"
	"github.com/railstore/railstore/cue/deploy"
	"github.com/railstore/railstore/pipeline"
	"github.com/railstore/railstore/verbs"
	"github.com/railstore/railstore/verbs/fabric"
)

func (a *app) fabricCommand() *cli.Command {
	return &cli.Command{
		Name:      "fabric",
		Usage:     "RDMA devices and ports of this host, their GIDs, and what a recipe calls them",
		ArgsUsage: "[DEVICE...]",
		Description: `Lists every port that can be a rail: those of RDMA devices (provider ibv), and this
host's addresses (the embedded provider soft, which needs no RDMA device). RAIL is
what to write into a recipe, GID the entry that a rail without a gid gets. What
stands in a port's way is told below the table, with what to do.

DEVICE is an RDMA device as a recipe names it, with or without ibv:, by name, net
device, PCI address or node GUID, or one port of it (DEV/PORT), or soft:ADDR. With -v
every entry of the GID tables is listed, with why it is taken or not.

Examples:
   rs fabric
   rs fabric -v
   rs fabric --netdev lo
   rs fabric --format json`,
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: flagVerbose, Aliases: []string{"v"}, Usage: "everything about the devices, and the verdict on every GID"},
			&cli.StringFlag{Name: "netdev", Usage: "only ports and addresses of this net `DEVICE`"},
			&cli.StringFlag{Name: "sysfs", Usage: "read the sysfs tree in `DIR`, a copy of another host's, instead of /sys", TakesFile: true, Hidden: true},
		},
		Action: a.fabric,
	}
}

func (a *app) fabric(_ context.Context, c *cli.Command) error {
	root := c.String("sysfs")
	var addrs []softAddress
	var provider error
	if root == "" {
		var err error
		if addrs, err = softAddresses(); err != nil {
			return err
		}
	}
	var nets []string
	for _, s := range addrs {
		nets = append(nets, s.NetDev)
	}
	h, err := fabric.Read(fabric.Options{Root: root, Nets: nets})
	if err != nil {
		return pipeline.Wrap(err, pipeline.LayerResource, "fabric", pipeline.Nowhere)
	}
	if root == "" {
		provider = probe(h)
	}
	r := fabricOf(h, addrs)
	if err := r.pick(h, c.Args().Slice(), c.String("netdev")); err != nil {
		return err
	}
	r.opened(provider)
	if c.Bool(flagVerbose) {
		for i := range r.Soft {
			r.Soft[i].open()
		}
	}
	if a.json {
		return a.printJSON(r)
	}
	a.printFabric(h, r, c.Bool(flagVerbose), c.Args().Present() || c.String("netdev") != "")
	return nil
}

// pick leaves only what the command line asks for.
func (r *fabricResult) pick(h *fabric.Host, specs []string, netdev string) error {
	if len(specs) > 0 {
		devices, softs := []fabricDevice{}, []fabricSoft{}
		for _, spec := range specs {
			if strings.HasPrefix(spec, "soft:") {
				i := slices.IndexFunc(r.Soft, func(s fabricSoft) bool { return s.Rail == spec })
				if i < 0 {
					return pipeline.Errorf(pipeline.LayerResource, "fabric", pipeline.Nowhere, "%s: not an address of this host", spec).
						WithHint("rs fabric lists them; a UDP port does not belong here")
				}
				softs = append(softs, r.Soft[i])
				continue
			}
			d, err := pickDevice(h, spec)
			if err != nil {
				return err
			}
			i := slices.IndexFunc(devices, func(o fabricDevice) bool { return o.Name == d.Name })
			if i < 0 {
				devices = append(devices, d)
				continue
			}
			for _, p := range d.Ports { // another port of a device that is listed already
				if !slices.ContainsFunc(devices[i].Ports, func(o fabricPort) bool { return o.Port == p.Port }) {
					devices[i].Ports = append(devices[i].Ports, p)
				}
			}
		}
		r.Devices, r.Soft = devices, softs
	}
	if netdev != "" {
		for i := range r.Devices {
			d := &r.Devices[i]
			d.Ports = slices.DeleteFunc(slices.Clone(d.Ports), func(p fabricPort) bool {
				return !slices.Contains(p.NetDevs, netdev) && !slices.Contains(h.Nets.Get(p.NetDev).Slaves, netdev)
			})
		}
		r.Devices = slices.DeleteFunc(r.Devices, func(d fabricDevice) bool { return len(d.Ports) == 0 })
		r.Soft = slices.DeleteFunc(r.Soft, func(s fabricSoft) bool { return s.NetDev != netdev })
		if here, known := h.Nets.Here(netdev); len(r.Devices)+len(r.Soft) == 0 && known && !here {
			return pipeline.Errorf(pipeline.LayerResource, "fabric", pipeline.Nowhere, "there is no net device %s", netdev).
				WithHint("ip link lists the net devices of this network namespace")
		}
	}
	if len(specs) > 0 || netdev != "" {
		r.Warnings = slices.DeleteFunc(r.Warnings, func(w fabricWarning) bool { return !r.about(w) })
	}
	return nil
}

// pickDevice is the device that a selector means, with the port if it tells one:
// by a net device, in a recipe's short form, as in ibv:mlx4_0:2, or as the table and
// rdma link spell it, as in mlx4_0/2.
func pickDevice(h *fabric.Host, spec string) (fabricDevice, error) {
	name, port := strings.TrimPrefix(spec, "ibv:"), 0
	if dev, p, ok := strings.Cut(name, "/"); ok {
		if n, err := strconv.Atoi(p); err == nil && n > 0 {
			name, port = dev, n
		}
	}
	if r, err := deploy.ParseRail("ibv:" + name); err == nil {
		if short := strings.TrimPrefix(r.Device, "ibv:"); short != name && port == 0 {
			name, port = short, r.Port
		}
	}
	s, err := h.Select(name)
	if err != nil {
		return fabricDevice{}, selectError(err)
	}
	if port == 0 {
		port = s.Port
	}
	if _, ok := s.Device.Port(port); port != 0 && !ok {
		return fabricDevice{}, pipeline.Errorf(pipeline.LayerResource, "fabric", pipeline.Nowhere, "ibv:%s has no port %d; it has %d", s.Device.Name, port, len(s.Device.Ports))
	}
	as := *s.Device
	as.Ports = nil
	for _, p := range s.Device.Ports {
		if port == 0 || p.Number == port {
			as.Ports = append(as.Ports, s.On(p))
		}
	}
	d := fabricDeviceOf(&as)
	if name != s.Device.Name {
		d.SelectedBy = s.Reason
	}
	for i := range d.Ports {
		if only := as.Ports[i].Only; only != "" {
			d.Ports[i].Rail = railName(only, d.Ports[i].Port)
		}
	}
	return d, nil
}

// about says whether a warning is about something that is still listed.
func (r *fabricResult) about(w fabricWarning) bool {
	return slices.ContainsFunc(r.Devices, func(d fabricDevice) bool {
		return d.Name == w.Device && (w.Port == 0 || slices.ContainsFunc(d.Ports, func(p fabricPort) bool { return p.Port == w.Port }))
	})
}

// selectError tells a selector that means nothing, or too much.
func selectError(err error) error {
	e := pipeline.Errorf(pipeline.LayerResource, "fabric", pipeline.Nowhere, "%w", err)
	if errors.Is(err, verbs.ErrNotFound) {
		return e.WithHint("rs fabric lists the devices of this host")
	}
	return e
}

// probe opens the devices, to fill in what sysfs does not tell. The error says why
// the provider ibv cannot be used here at all.
func probe(h *fabric.Host) error {
	if len(h.Devices) == 0 {
		return nil
	}
	h.CheckAccess("")
	drv, err := provider.Open("ibv", deploy.Rail{Device: "ibv"})
	if err != nil {
		return err
	}
	known, err := drv.Devices()
	if err != nil {
		return err
	}
	for i := range h.Devices {
		d := &h.Devices[i]
		if d.Access != nil || d.Unsupported() != nil {
			continue
		}
		if !slices.ContainsFunc(known, func(k verbs.DeviceInfo) bool { return k.Name == d.Name }) {
			d.Access = &fabric.Finding{Code: "no_provider", Message: "libibverbs does not know it", Hint: "install the provider library of its driver (ibverbs-providers)"}
			continue
		}
		if err := ask(drv, d); err != nil {
			d.Access = &fabric.Finding{Code: "open", Message: "it cannot be opened: " + err.Error(), Hint: "ibv_devinfo -d " + d.Name + " tells more"}
		}
	}
	return nil
}

func ask(drv verbs.Driver, d *fabric.Device) (err error) {
	ctx, err := verbs.Open(drv, d.Name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ctx.Close()) }()
	for i := range d.Ports {
		p := &d.Ports[i]
		if p.Number > ctx.Attr().Ports {
			continue
		}
		pa, err := ctx.Port(uint8(p.Number))
		if err != nil {
			return err
		}
		if pa.ActiveMTU > 0 {
			p.MaxMTU, p.ActiveMTU, p.MTUFrom = pa.MaxMTU, pa.ActiveMTU, "device"
		}
	}
	return nil
}
