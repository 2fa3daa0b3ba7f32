package lanes

import (
	"context"
	"sync"
	"testing"

	"github.com/railstore/railstore/cue/deploy"
	"github.com/railstore/railstore/verbs"
	"github.com/railstore/railstore/verbs/verbstest"
)

// forger is a driver that turns the next completion of a QP into a bad one, so
// that every status can be had, and reports events of devices on demand.
type forger struct {
	verbs.Driver
	mu     sync.Mutex
	events map[string]chan verbs.AsyncEvent // of open devices
	qpn    uint32
	status verbs.WCStatus
}

func (f *forger) forge(qpn uint32, status verbs.WCStatus) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.qpn, f.status = qpn, status
}

func (f *forger) Open(name string) (verbs.DriverContext, error) {
	c, err := f.Driver.Open(name)
	if err != nil {
		return nil, err
	}
	events := make(chan verbs.AsyncEvent, 64)
	f.mu.Lock()
	if f.events == nil {
		f.events = map[string]chan verbs.AsyncEvent{}
	}
	f.events[name] = events
	f.mu.Unlock()
	go func() {
		for e := range c.Events() { // until the device is closed
			events <- e
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.events[name] == events {
			delete(f.events, name)
		}
		close(events)
	}()
	return &forgedContext{c, f, events}, nil
}

// tell reports events of a device.
func (f *forger) tell(device string, types ...verbs.EventType) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, e := range types {
		f.events[device] <- verbs.AsyncEvent{Type: e, Port: 1}
	}
}

type forgedContext struct {
	verbs.DriverContext
	f      *forger
	events chan verbs.AsyncEvent
}

func (c *forgedContext) Events() <-chan verbs.AsyncEvent { return c.events }

func (c *forgedContext) CreateCQ(depth int) (verbs.DriverCQ, error) {
	q, err := c.DriverContext.CreateCQ(depth)
	if err != nil {
		return nil, err
	}
	return &forgedCQ{q, c.f}, nil
}

func (c *forgedContext) AllocPD() (verbs.DriverPD, error) {
	p, err := c.DriverContext.AllocPD()
	if err != nil {
		return nil, err
	}
	return &forgedPD{p}, nil
}

type forgedPD struct{ verbs.DriverPD }

func (p *forgedPD) CreateQP(init verbs.DriverQPInit) (verbs.DriverQP, error) {
	init.SendCQ, init.RecvCQ = init.SendCQ.(*forgedCQ).DriverCQ, init.RecvCQ.(*forgedCQ).DriverCQ
	return p.DriverPD.CreateQP(init)
}

type forgedCQ struct {
	verbs.DriverCQ
	f *forger
}

func (q *forgedCQ) Unwrap() verbs.DriverCQ { return q.DriverCQ }

func (q *forgedCQ) Wait(ctx context.Context) error { return q.DriverCQ.Wait(ctx) }

func (q *forgedCQ) Poll(wcs []verbs.WC) (int, error) {
	n, err := q.DriverCQ.Poll(wcs)
	q.f.mu.Lock()
	defer q.f.mu.Unlock()
	for i := range wcs[:n] {
		if q.f.qpn != 0 && wcs[i].QPN == q.f.qpn {
			wcs[i] = verbs.WC{ID: wcs[i].ID, QPN: wcs[i].QPN, Status: q.f.status, VendorErr: 0x51}
			q.f.qpn = 0
		}
	}
	return n, err
}

// faulty is a site whose devices fail on demand.
type faulty struct {
	*site
	fault  *verbstest.Fault
	forger *forger
}

func newFaulty(t *testing.T, change ...func(*deploy.Deployment)) *faulty {
	t.Helper()
	w := newWorld(t, change...)
	f := &faulty{fault: verbstest.NewFault(verbstest.Trace(t, verbstest.NewLoop(verbstest.LoopOptions{})))}
	f.forger = &forger{Driver: f.fault}
	w.driver = &delayed{f.forger, w}
	f.site = newSite(t, w)
	return f
}
