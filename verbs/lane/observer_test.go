package lane

import (
	"fmt"
	"sync"

	"github.com/railstore/railstore/verbs"
)

// observer is a driver that sees what every QP posts. It keeps its own account of
// the slots under way, knowing nothing of lanes but where their words are: a
// request word posted takes the slot, the answer's word or the end of the
// client's QP gives it back, and a request into a slot that is taken is a fault.
type observer struct {
	verbs.Driver

	mu     sync.Mutex
	slots  map[uint64]*watched // by the address of either word
	faults []string
}

type watched struct {
	name string
	by   *observedQP // the QP whose request is under way; nil: none is
}

func observe(d verbs.Driver) *observer {
	return &observer{Driver: d, slots: map[uint64]*watched{}}
}

// know tells where the words of a lane's slots are.
func (o *observer) know(name string, slots int, commits, statuses uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for i := range uint64(slots) {
		w := &watched{name: fmt.Sprintf("%s slot %d", name, i)}
		o.slots[commits+8*i], o.slots[statuses+8*i] = w, w
	}
}

func (o *observer) report() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.faults
}

func (o *observer) Open(name string) (verbs.DriverContext, error) {
	c, err := o.Driver.Open(name)
	if err != nil {
		return nil, err
	}
	return &observedContext{c, o}, nil
}

type observedContext struct {
	verbs.DriverContext
	o *observer
}

func (c *observedContext) AllocPD() (verbs.DriverPD, error) {
	p, err := c.DriverContext.AllocPD()
	if err != nil {
		return nil, err
	}
	return &observedPD{p, c.o}, nil
}

type observedPD struct {
	verbs.DriverPD
	o *observer
}

func (p *observedPD) CreateQP(init verbs.DriverQPInit) (verbs.DriverQP, error) {
	q, err := p.DriverPD.CreateQP(init)
	if err != nil {
		return nil, err
	}
	return &observedQP{q, p.o}, nil
}

type observedQP struct {
	verbs.DriverQP
	o *observer
}

// isClient tells by the queue depths: only a server's QP has room for bulk
// requests.
func (q *observedQP) isClient() bool { c := q.Cap(); return c.MaxSendSGE == 1 }

func (q *observedQP) PostSend(wrs []verbs.SendWR, sges []verbs.SGE) (int, error) {
	q.o.mu.Lock()
	for i := range wrs {
		w := q.o.slots[wrs[i].RemoteAddr]
		if w == nil || wrs[i].NumSGE == 0 { // no word, or a touch of the first
			continue
		}
		if !q.isClient() {
			w.by = nil
			continue
		}
		if w.by != nil {
			q.o.faults = append(q.o.faults, fmt.Sprintf("%s: a request while one is under way (the same QP: %v)", w.name, w.by == q))
		}
		w.by = q
	}
	q.o.mu.Unlock()
	return q.DriverQP.PostSend(wrs, sges)
}

func (q *observedQP) Close() error {
	err := q.DriverQP.Close()
	if err != nil {
		return err
	}
	q.o.mu.Lock()
	defer q.o.mu.Unlock()
	for _, w := range q.o.slots {
		if w.by == q {
			w.by = nil
		}
	}
	return nil
}
