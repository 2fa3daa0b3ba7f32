package rail

import (
	"errors"
	"strings"

	"github.com/railstore/railstore/cue/deploy"
	"github.com/railstore/railstore/pipeline"
	"github.com/railstore/railstore/verbs"
	"github.com/railstore/railstore/verbs/fabric"
)

// hostFunc reads the RDMA devices of a host; of a device's name, that one alone.
type hostFunc func(name string) (*fabric.Host, error)

func thisHost(name string) (*fabric.Host, error) {
	return fabric.Read(fabric.Options{Device: name})
}

// place is which device of this host a rail means.
type place struct {
	name    string      // what the provider calls the device
	port    fabric.Port // what is known of its port
	reason  string      // why it is that one, when the recipe does not name it
	unknown error       // why this host knows no such device
}

// locate finds the device of libibverbs that a recipe names by net device, PCI
// address or node GUID. A name that this host does not know is left to the provider,
// which has the last word.
func locate(s deploy.Rail, provider, name string, host hostFunc) (place, error) {
	at := place{name: name}
	if provider != "ibv" {
		return at, nil
	}
	h, err := host(name)
	if err != nil {
		at.unknown = err
		return at, nil
	}
	sel, err := h.Select(name)
	switch {
	case errors.Is(err, fabric.ErrAmbiguous):
		return at, err
	case err != nil:
		at.unknown = err
		return at, nil
	}
	d := sel.Device
	if f := d.Unsupported(); f != nil {
		return at, pipeline.Errorf(pipeline.LayerResource, "resolve", pipeline.AtRail(s.Name), "ibv:%s: %s", d.Name, f.Message).WithHint("%s", f.Hint)
	}
	if sel.Port != 0 && sel.Port != s.Port {
		return at, pipeline.Errorf(pipeline.LayerConfig, "resolve", pipeline.AtRail(s.Name), "%s is of port %d of ibv:%s, and the rail is of port %d", name, sel.Port, d.Name, s.Port).
			WithHint("say port: %d", sel.Port)
	}
	if d.Name != name {
		at.name, at.reason = d.Name, sel.Reason
	}
	if p, ok := d.Port(s.Port); ok {
		at.port = sel.On(*p)
	}
	return at, nil
}

// look reads again what the host knows of the port: net devices come and go while
// the device is open. What cannot be read, or is another device by now, stays.
func (at *place) look(s deploy.Rail, provider string, host hostFunc) {
	_, name, _ := strings.Cut(s.Device, ":")
	if now, err := locate(s, provider, name, host); err == nil && now.name == at.name && now.unknown == nil {
		at.port = now.port
	}
}

// explain gives the better of two reasons why a device cannot be opened.
func (at *place) explain(err error) error {
	if at.unknown != nil && errors.Is(at.unknown, verbs.ErrNotFound) && errors.Is(err, verbs.ErrNotFound) {
		return at.unknown
	}
	return err
}

// portOf is what the choice of a GID needs to know of the port.
func (at *place) portOf(link verbs.LinkLayer) fabric.Port {
	p := at.port
	p.Link = link
	return p
}
