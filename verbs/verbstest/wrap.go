package verbstest

import (
	"context"

	"github.com/railstore/railstore/verbs"
)

// watcher is told what happens on a wrapped driver.
type watcher interface {
	// before is called ahead of a call; an error replaces the call.
	before(op string) error
	opened(kind string, h any)
	closed(h any)
	// polled may take completions away; it returns how many are left.
	polled(wcs []verbs.WC) int
}

// wrapped is a driver whose every call passes a watcher.
type wrapped struct {
	d verbs.Driver
	w watcher
}

func (d *wrapped) Name() string { return d.d.Name() }

func (d *wrapped) Devices() ([]verbs.DeviceInfo, error) {
	if err := d.w.before("devices"); err != nil {
		return nil, err
	}
	return d.d.Devices()
}

func (d *wrapped) Open(name string) (verbs.DriverContext, error) {
	if err := d.w.before("open_device"); err != nil {
		return nil, err
	}
	c, err := d.d.Open(name)
	if err != nil {
		return nil, err
	}
	wc := &wrappedContext{DriverContext: c, w: d.w}
	d.w.opened("device", wc)
	return wc, nil
}

type wrappedContext struct {
	verbs.DriverContext
	w watcher
}

func (c *wrappedContext) Query() (verbs.DeviceAttr, error) {
	if err := c.w.before("query_device"); err != nil {
		return verbs.DeviceAttr{}, err
	}
	return c.DriverContext.Query()
}

func (c *wrappedContext) QueryPort(port uint8) (verbs.PortAttr, error) {
	if err := c.w.before("query_port"); err != nil {
		return verbs.PortAttr{}, err
	}
	return c.DriverContext.QueryPort(port)
}

func (c *wrappedContext) GIDs(port uint8) ([]verbs.GIDEntry, error) {
	if err := c.w.before("query_gid"); err != nil {
		return nil, err
	}
	return c.DriverContext.GIDs(port)
}

func (c *wrappedContext) PKeys(port uint8) ([]uint16, error) {
	if err := c.w.before("query_pkey"); err != nil {
		return nil, err
	}
	return c.DriverContext.PKeys(port)
}

func (c *wrappedContext) AllocPD() (verbs.DriverPD, error) {
	if err := c.w.before("alloc_pd"); err != nil {
		return nil, err
	}
	p, err := c.DriverContext.AllocPD()
	if err != nil {
		return nil, err
	}
	out := &wrappedPD{DriverPD: p, w: c.w}
	c.w.opened("PD", out)
	return out, nil
}

func (c *wrappedContext) CreateCQ(depth int) (verbs.DriverCQ, error) {
	if err := c.w.before("create_cq"); err != nil {
		return nil, err
	}
	q, err := c.DriverContext.CreateCQ(depth)
	if err != nil {
		return nil, err
	}
	out := &wrappedCQ{q: q, w: c.w}
	c.w.opened("CQ", out)
	return out, nil
}

func (c *wrappedContext) Close() error {
	if err := c.w.before("close_device"); err != nil {
		return err
	}
	c.w.closed(c)
	return c.DriverContext.Close()
}

type wrappedPD struct {
	verbs.DriverPD
	w watcher
}

func (p *wrappedPD) Register(mem []byte, access verbs.Access) (verbs.DriverMR, error) {
	if err := p.w.before("reg_mr"); err != nil {
		return nil, err
	}
	m, err := p.DriverPD.Register(mem, access)
	if err != nil {
		return nil, err
	}
	out := &wrappedMR{DriverMR: m, w: p.w}
	p.w.opened("MR", out)
	return out, nil
}

func (p *wrappedPD) CreateQP(init verbs.DriverQPInit) (verbs.DriverQP, error) {
	if err := p.w.before("create_qp"); err != nil {
		return nil, err
	}
	init.SendCQ, init.RecvCQ = init.SendCQ.(*wrappedCQ).q, init.RecvCQ.(*wrappedCQ).q
	q, err := p.DriverPD.CreateQP(init)
	if err != nil {
		return nil, err
	}
	out := &wrappedQP{DriverQP: q, w: p.w}
	p.w.opened("QP", out)
	return out, nil
}

func (p *wrappedPD) Close() error {
	if err := p.w.before("dealloc_pd"); err != nil {
		return err
	}
	p.w.closed(p)
	return p.DriverPD.Close()
}

type wrappedMR struct {
	verbs.DriverMR
	w watcher
}

func (m *wrappedMR) Close() error {
	if err := m.w.before("dereg_mr"); err != nil {
		return err
	}
	m.w.closed(m)
	return m.DriverMR.Close()
}

type wrappedCQ struct {
	q verbs.DriverCQ
	w watcher
}

// Unwrap lets events of the inner queue be known as this one's.
func (q *wrappedCQ) Unwrap() verbs.DriverCQ { return q.q }

func (q *wrappedCQ) Poll(wcs []verbs.WC) (int, error) {
	n, err := q.q.Poll(wcs)
	if n > 0 {
		n = q.w.polled(wcs[:n])
	}
	return n, err
}

func (q *wrappedCQ) Arm(solicited bool) error {
	if err := q.w.before("req_notify_cq"); err != nil {
		return err
	}
	return q.q.Arm(solicited)
}

func (q *wrappedCQ) Wait(ctx context.Context) error { return q.q.Wait(ctx) }

func (q *wrappedCQ) Wake() { q.q.Wake() }

func (q *wrappedCQ) Close() error {
	if err := q.w.before("destroy_cq"); err != nil {
		return err
	}
	q.w.closed(q)
	return q.q.Close()
}

type wrappedQP struct {
	verbs.DriverQP
	w watcher
}

func (q *wrappedQP) Stats() verbs.QPStats {
	if s, ok := q.DriverQP.(verbs.StatsReporter); ok {
		return s.Stats()
	}
	return verbs.QPStats{}
}

func (q *wrappedQP) Modify(a *verbs.QPAttr, mask verbs.QPMask) error {
	op := "modify_qp"
	if mask&verbs.MaskState != 0 {
		switch a.State {
		case verbs.QPInitState:
			op = "modify_init"
		case verbs.QPRTR:
			op = "modify_rtr"
		case verbs.QPRTS:
			op = "modify_rts"
		case verbs.QPErr:
			op = "modify_err"
		}
	}
	if err := q.w.before(op); err != nil {
		return err
	}
	return q.DriverQP.Modify(a, mask)
}

func (q *wrappedQP) PostSend(wrs []verbs.SendWR, sges []verbs.SGE) (int, error) {
	if err := q.w.before("post_send"); err != nil {
		return 0, err
	}
	return q.DriverQP.PostSend(wrs, sges)
}

func (q *wrappedQP) PostRecv(wrs []verbs.RecvWR, sges []verbs.SGE) (int, error) {
	if err := q.w.before("post_recv"); err != nil {
		return 0, err
	}
	return q.DriverQP.PostRecv(wrs, sges)
}

func (q *wrappedQP) Close() error {
	if err := q.w.before("destroy_qp"); err != nil {
		return err
	}
	q.w.closed(q)
	return q.DriverQP.Close()
}
