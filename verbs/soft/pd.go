package soft

import (
	"sync"

	"github.com/railstore/railstore/verbs"
)

// pd is a protection domain.
type pd struct {
	dev *device

	mu  sync.Mutex
	qps map[*qp]struct{}
}

// Register makes memory known to the device.
func (p *pd) Register(mem []byte, access verbs.Access) (verbs.DriverMR, error) {
	if f := p.dev.faults.Load(); f != nil {
		if err := f.script.fails(opRegMR, "reg_mr", p.dev.name); err != nil {
			return nil, err
		}
	}
	m := &mr{pd: p, mem: mem, base: verbs.AddrOf(mem), access: access}
	if err := p.dev.mrs.add(m); err != nil {
		return nil, err
	}
	return m, nil
}

// CreateQP creates a QP in RESET.
func (p *pd) CreateQP(init verbs.DriverQPInit) (verbs.DriverQP, error) {
	if f := p.dev.faults.Load(); f != nil {
		if err := f.script.fails(opCreateQP, "create_qp", p.dev.name); err != nil {
			return nil, err
		}
	}
	q, err := newQP(p, init)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	p.qps[q] = struct{}{}
	p.mu.Unlock()
	return q, nil
}

// passQPs waits until every QP has left what it was doing when this was called.
func (p *pd) passQPs() {
	p.mu.Lock()
	all := make([]*qp, 0, len(p.qps))
	for q := range p.qps {
		all = append(all, q)
	}
	p.mu.Unlock()
	for _, q := range all {
		q.mu.Lock()
		//lint:ignore SA2001 passing through the lock is the point
		q.mu.Unlock()
	}
}

func (p *pd) dropQP(q *qp) {
	p.mu.Lock()
	delete(p.qps, q)
	p.mu.Unlock()
}

// Close frees the PD; the front has seen to it that nothing is left in it.
func (p *pd) Close() error {
	p.dev.release(&p.dev.pds)
	return nil
}
