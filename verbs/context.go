package verbs

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
)

// Context is an open device. Its children are PDs and CQs; close them first.
type Context struct {
	drv  DriverContext
	name string // provider:device
	prov string
	attr DeviceAttr

	mu     sync.Mutex
	closed bool
	pds    int
	cqs    int
	qps    map[uint32]*QP // by QPN, for the first bad completion
	past   QPStats        // of QPs that are destroyed
	counts bool           // some QP counted
}

// Open opens a device of a provider. The name is the provider's own spelling.
func Open(d Driver, name string) (*Context, error) {
	full := d.Name() + ":" + name
	dc, err := d.Open(name)
	if err != nil {
		return nil, wrapDriver(err, "open_device", full)
	}
	attr, err := dc.Query()
	if err != nil {
		return nil, errors.Join(wrapDriver(err, "query_device", full), dc.Close())
	}
	return &Context{drv: dc, name: full, prov: d.Name(), attr: attr, qps: map[uint32]*QP{}}, nil
}

// Name is provider:device, as in "soft:127.0.0.1".
func (c *Context) Name() string { return c.name }

// Provider is the provider's word, as in "soft".
func (c *Context) Provider() string { return c.prov }

// Attr are the limits of the device, read when it was opened.
func (c *Context) Attr() DeviceAttr { return c.attr }

// Port reads the attributes of a port, counted from 1.
func (c *Context) Port(port uint8) (PortAttr, error) {
	if err := c.checkPort("query_port", port); err != nil {
		return PortAttr{}, err
	}
	a, err := c.drv.QueryPort(port)
	return a, wrapDriver(err, "query_port", c.name)
}

// GIDs is the port's GID table without empty entries.
func (c *Context) GIDs(port uint8) ([]GIDEntry, error) {
	if err := c.checkPort("query_gid", port); err != nil {
		return nil, err
	}
	g, err := c.drv.GIDs(port)
	return g, wrapDriver(err, "query_gid", c.name)
}

// PKeys is the port's PKey table.
func (c *Context) PKeys(port uint8) ([]uint16, error) {
	if err := c.checkPort("query_pkey", port); err != nil {
		return nil, err
	}
	k, err := c.drv.PKeys(port)
	return k, wrapDriver(err, "query_pkey", c.name)
}

func (c *Context) checkPort(op string, port uint8) error {
	if port < 1 || int(port) > c.attr.Ports {
		return Errorf(ErrInvalid, op, c.name, "port %d: the device has ports 1 to %d", port, c.attr.Ports)
	}
	return nil
}

// Events are the device's asynchronous events; the channel is closed by Close.
func (c *Context) Events() <-chan AsyncEvent { return c.drv.Events() }

// Progress lets the caller, who is waiting actively for memory to change, do
// the device's work. It never blocks and reports whether anything was done.
func (c *Context) Progress() bool { return c.drv.Progress() }

// AllocPD allocates a protection domain.
func (c *Context) AllocPD() (*PD, error) {
	if err := c.addChild("alloc_pd", &c.pds); err != nil {
		return nil, err
	}
	d, err := c.drv.AllocPD()
	if err != nil {
		c.dropChild(&c.pds)
		return nil, wrapDriver(err, "alloc_pd", c.name)
	}
	return &PD{ctx: c, drv: d}, nil
}

// CreateCQ creates a completion queue with room for depth completions.
func (c *Context) CreateCQ(depth int) (*CQ, error) {
	if depth < 1 || depth > c.attr.MaxCQE {
		return nil, Errorf(ErrInvalid, "create_cq", c.name, "depth %d: the device allows 1 to %d", depth, c.attr.MaxCQE)
	}
	if err := c.addChild("create_cq", &c.cqs); err != nil {
		return nil, err
	}
	d, err := c.drv.CreateCQ(depth)
	if err != nil {
		c.dropChild(&c.cqs)
		return nil, wrapDriver(err, "create_cq", c.name)
	}
	return &CQ{ctx: c, drv: d, depth: depth}, nil
}

// Close closes the device. It fails with ErrBusy while PDs or CQs are open.
func (c *Context) Close() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil
	}
	if c.pds+c.cqs > 0 {
		err := Errorf(ErrBusy, "close_device", c.name, "%d PDs and %d CQs are open", c.pds, c.cqs)
		c.mu.Unlock()
		return err
	}
	c.closed = true
	c.mu.Unlock()
	return wrapDriver(c.drv.Close(), "close_device", c.name)
}

func (c *Context) addChild(op string, n *int) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return &Error{Op: op, Device: c.name, Kind: ErrClosed}
	}
	*n++
	return nil
}

func (c *Context) dropChild(n *int) {
	c.mu.Lock()
	*n--
	c.mu.Unlock()
}

func (c *Context) findQP(qpn uint32) *QP {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.qps[qpn]
}

// wrapDriver fills what a driver's error did not know.
func wrapDriver(err error, op, device string) error {
	if err == nil {
		return nil
	}
	var ve *Error
	if errors.As(err, &ve) {
		if ve.Op != "" && ve.Device != "" {
			return err
		}
		out := *ve
		if out.Op == "" {
			out.Op = op
		}
		if out.Device == "" {
			out.Device = device
		}
		return &out
	}
	return &Error{Op: op, Device: device, Kind: ErrDevice, Err: err}
}

// PD is a protection domain. Its children are MRs and QPs.
type PD struct {
	ctx *Context
	drv DriverPD

	mu     sync.Mutex
	closed bool
	mrs    int
	qps    int
}

// Context is the device the PD belongs to.
func (p *PD) Context() *Context { return p.ctx }

func (p *PD) addChild(op string, n *int) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return &Error{Op: op, Device: p.ctx.name, Kind: ErrClosed}
	}
	*n++
	return nil
}

func (p *PD) dropChild(n *int) {
	p.mu.Lock()
	*n--
	p.mu.Unlock()
}

// Close frees the PD. It fails with ErrBusy while MRs or QPs are open.
func (p *PD) Close() error {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return nil
	}
	if p.mrs+p.qps > 0 {
		err := Errorf(ErrBusy, "dealloc_pd", p.ctx.name, "%d MRs and %d QPs are open", p.mrs, p.qps)
		p.mu.Unlock()
		return err
	}
	p.closed = true
	p.mu.Unlock()
	p.ctx.dropChild(&p.ctx.pds)
	return wrapDriver(p.drv.Close(), "dealloc_pd", p.ctx.name)
}

// closer is the part that CQ, MR and QP share: closed exactly once, and a count
// of children that forbids it. Every Close gives what the first one gave: what
// could not be destroyed is not safe because it was tried.
type closer struct {
	mu       sync.Mutex
	closed   bool
	err      error
	children atomic.Int32
}

func (c *closer) close(op, device, what string, destroy func() error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return c.err
	}
	if n := c.children.Load(); n > 0 {
		return &Error{Op: op, Device: device, Kind: ErrBusy, Err: fmt.Errorf("%d %s open", n, what)}
	}
	c.closed = true
	c.err = wrapDriver(destroy(), op, device)
	return c.err
}
