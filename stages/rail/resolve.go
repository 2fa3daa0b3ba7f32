package rail

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/railstore/railstore/cue/deploy"
	"github.com/railstore/railstore/pipeline"
	"github.com/railstore/railstore/verbs"
	"github.com/railstore/railstore/verbs/fabric"
)

// Drivers gives the driver that a rail's device names. The caller of the stages
// decides which providers exist.
type Drivers func(provider string, r deploy.Rail) (verbs.Driver, error)

// ResolveInput is the first stage's input.
type ResolveInput struct {
	Deployment *deploy.Deployment
	Host       string
	Rails      []string // names; empty: all of the host
	Drivers    Drivers
}

// Rail is one rail of this process: an open device port with an Address and, after
// allocate, its PD, CQs and the registration of the process's memory.
type Rail struct {
	Spec  deploy.Rail
	Index int // in the Set

	Ctx *verbs.Context
	PD  *verbs.PD
	CQs []*verbs.CQ

	queues queues
	memory *verbs.Span // the process's lane memory on this rail
	at     place       // used by resolve, then by the reader of the rail's events alone
	health health

	driver verbs.Driver
}

// Address is what a rail's port was when it was last read, and what was chosen of
// its tables. It is a value: whoever makes several things of it reads it once.
type Address struct {
	Port      verbs.PortAttr
	GID       fabric.Choice
	PKeyIndex uint16
	ActiveMTU int // of this end
}

// Address is where the rail is now. Asynchronous events change it.
func (r *Rail) Address() Address {
	r.health.mu.Lock()
	defer r.health.mu.Unlock()
	return r.health.address
}

// Block is the MR that holds the n bytes at off of the process's lane memory, and
// where in it they begin. What one QP was given lies in one MR; it panics for what
// was not.
func (r *Rail) Block(off, n uint64) (*verbs.MR, uint64) {
	m, at, ok := r.memory.At(off, n)
	if !ok {
		panic(fmt.Sprintf("rail: %d bytes at %d are no block of %d bytes of lane memory", n, off, r.memory.Len()))
	}
	return m, at
}

// RegisteredBytes is the length of the process's lane memory on this rail.
func (r *Rail) RegisteredBytes() uint64 { return r.memory.Len() }

// Name is the rail's name in the recipe.
func (r *Rail) Name() string { return r.Spec.Name }

// Provider is the effective provider.
func (r *Rail) Provider() string { return r.Ctx.Provider() }

// Resolve asks this machine for what the recipe names: it opens the devices and
// chooses GIDs. Every rail that fails is reported, not just the first.
var Resolve = pipeline.Stage[ResolveInput, []*Rail]{
	Name: "resolve", Layer: pipeline.LayerResource, Run: resolve,
}

func resolve(ctx context.Context, scope *pipeline.Scope, in ResolveInput) ([]*Rail, error) {
	h, ok := in.Deployment.Host(in.Host)
	if !ok {
		return nil, pipeline.Errorf(pipeline.LayerConfig, "resolve", pipeline.Nowhere, "the deployment has no host %q; it has %s", in.Host, hostNames(in.Deployment))
	}
	if in.Drivers == nil {
		return nil, pipeline.Errorf(pipeline.LayerUsage, "resolve", pipeline.Nowhere, "Drivers is nil: want a function that gives the driver of a provider")
	}
	specs, err := pick(h, in.Rails)
	if err != nil {
		return nil, err
	}
	rails, err := pipeline.Each(ctx, specs, func(ctx context.Context, s deploy.Rail) (*Rail, error) {
		r, err := open(s, in.Drivers)
		if err != nil {
			return nil, pipeline.Wrap(err, pipeline.LayerResource, "resolve", pipeline.AtRail(s.Name))
		}
		scope.DeferClose("close device of rail "+s.Name, r.Ctx.Close)
		return r, nil
	})
	if err != nil {
		return nil, err
	}
	for i, r := range rails {
		r.Index = i
		a := r.Address()
		fields := map[string]any{"device": r.Ctx.Name(), "gid": a.GID.Entry.GID.String(), "gid_index": a.GID.Entry.Index, "mtu": a.ActiveMTU}
		if r.at.reason != "" {
			fields["selected_by"] = r.at.reason
		}
		pipeline.Emit(ctx, pipeline.Event{Event: "rail_resolved", Rail: r.Name(), Reason: a.GID.Reason(), Fields: fields})
	}
	return rails, nil
}

func pick(h *deploy.Host, names []string) ([]deploy.Rail, error) {
	if len(h.Rails) == 0 {
		return nil, pipeline.Errorf(pipeline.LayerConfig, "resolve", pipeline.Nowhere, "host %q has no rails", h.Name)
	}
	if len(names) == 0 {
		return h.Rails, nil
	}
	var out []deploy.Rail
	for _, n := range names {
		r, ok := h.Rail(n)
		if !ok {
			return nil, pipeline.Errorf(pipeline.LayerUsage, "resolve", pipeline.AtRail(n), "host %q has no such rail; it has %s", h.Name, railNames(h.Rails))
		}
		if slices.ContainsFunc(out, func(o deploy.Rail) bool { return o.Name == n }) {
			return nil, pipeline.Errorf(pipeline.LayerUsage, "resolve", pipeline.AtRail(n), "the rail is named twice")
		}
		out = append(out, *r)
	}
	return out, nil
}

func open(s deploy.Rail, drivers Drivers) (*Rail, error) {
	provider, name, ok := strings.Cut(s.Device, ":")
	if !ok {
		return nil, fmt.Errorf("device %q: want PROVIDER:NAME, as in soft:127.0.0.1 or ibv:mlx5_0", s.Device)
	}
	d, err := drivers(provider, s)
	if err != nil {
		return nil, err
	}
	at, err := locate(s, provider, name, thisHost)
	if err != nil {
		return nil, err
	}
	vc, err := verbs.Open(d, at.name)
	if err != nil {
		return nil, at.explain(err)
	}
	r := &Rail{Spec: s, Ctx: vc, at: at, driver: d}
	if r.health.address, err = r.choose(nil); err != nil {
		_ = vc.Close() // the first cause is what matters
		return nil, err
	}
	return r, nil
}

// choose reads the port and its tables and takes a GID of them. What the rail has
// now is kept where the recipe still allows it: a better entry that turns up is no
// reason to move.
func (r *Rail) choose(now *Address) (Address, error) {
	port := uint8(r.Spec.Port)
	pa, err := r.Ctx.Port(port)
	if err != nil {
		return Address{}, err
	}
	if pa.State != verbs.PortActive {
		return Address{}, fmt.Errorf("%s/%d: port is %v, not ACTIVE", r.Ctx.Name(), port, pa.State)
	}
	table, err := r.Ctx.GIDs(port)
	if err != nil {
		return Address{}, err
	}
	c, err := r.chooseGID(table, pa.LinkLayer, now)
	if err != nil {
		return Address{}, fmt.Errorf("%s/%d: %w", r.Ctx.Name(), port, err)
	}
	pk, err := r.pkeyIndex(port)
	if err != nil {
		return Address{}, err
	}
	a := Address{Port: pa, GID: c, PKeyIndex: pk, ActiveMTU: pa.ActiveMTU}
	if r.Spec.MTU > 0 {
		if r.Spec.MTU > pa.ActiveMTU {
			return Address{}, fmt.Errorf("%s/%d: the recipe asks for an MTU of %d, the port's active MTU is %d", r.Ctx.Name(), port, r.Spec.MTU, pa.ActiveMTU)
		}
		a.ActiveMTU = r.Spec.MTU
	}
	return a, nil
}

func (r *Rail) chooseGID(table []verbs.GIDEntry, link verbs.LinkLayer, now *Address) (fabric.Choice, error) {
	at := r.at.portOf(link)
	if now != nil {
		if i := slices.Index(table, now.GID.Entry); i >= 0 {
			if c, err := fabric.Choose(table[i:i+1], r.Spec.GID, at); err == nil {
				return c, nil
			}
		}
	}
	return fabric.Choose(table, r.Spec.GID, at)
}

// pkeyIndex finds the partition by value: the index of a key differs from host
// to host. Bit 15 is membership; a full member is preferred.
func (r *Rail) pkeyIndex(port uint8) (uint16, error) {
	keys, err := r.Ctx.PKeys(port)
	if err != nil {
		return 0, err
	}
	want := uint16(r.Spec.PKey)
	if want == 0 {
		want = 0xffff
	}
	limited := -1
	for i, k := range keys {
		if k&0x7fff != want&0x7fff {
			continue
		}
		if k&0x8000 != 0 {
			return uint16(i), nil
		}
		limited = i
	}
	if limited >= 0 {
		return uint16(limited), nil
	}
	return 0, fmt.Errorf("%s/%d: the port is not a member of partition %#04x; its table holds %#04x", r.Ctx.Name(), port, want, keys)
}

func hostNames(d *deploy.Deployment) string {
	var n []string
	for _, h := range d.Hosts {
		n = append(n, h.Name)
	}
	return strings.Join(n, ", ")
}

func railNames(rs []deploy.Rail) string {
	var n []string
	for _, r := range rs {
		n = append(n, r.Name)
	}
	return strings.Join(n, ", ")
}
