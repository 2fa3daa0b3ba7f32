package verbstest

import "github.com/railstore/railstore/verbs"

// AtGID wraps a driver so that its devices show one GID only: the one that stands
// at index in their table, at index 0. Tests of this package take the first GID
// there is.
func AtGID(d verbs.Driver, index int) verbs.Driver { return &atGID{d, index} }

type atGID struct {
	verbs.Driver
	index int
}

func (d *atGID) Open(name string) (verbs.DriverContext, error) {
	c, err := d.Driver.Open(name)
	if err != nil {
		return nil, err
	}
	return &atGIDContext{c, d.index}, nil
}

type atGIDContext struct {
	verbs.DriverContext
	index int
}

func (c *atGIDContext) GIDs(port uint8) ([]verbs.GIDEntry, error) {
	all, err := c.DriverContext.GIDs(port)
	for _, g := range all {
		if g.Index == c.index {
			g.Index = 0
			return []verbs.GIDEntry{g}, err
		}
	}
	return nil, err
}

func (c *atGIDContext) AllocPD() (verbs.DriverPD, error) {
	p, err := c.DriverContext.AllocPD()
	if err != nil {
		return nil, err
	}
	return &atGIDPD{p, c.index}, nil
}

type atGIDPD struct {
	verbs.DriverPD
	index int
}

func (p *atGIDPD) CreateQP(init verbs.DriverQPInit) (verbs.DriverQP, error) {
	q, err := p.DriverPD.CreateQP(init)
	if err != nil {
		return nil, err
	}
	return &atGIDQP{q, p.index}, nil
}

type atGIDQP struct {
	verbs.DriverQP
	index int
}

func (q *atGIDQP) Modify(attr *verbs.QPAttr, mask verbs.QPMask) error {
	a := *attr
	if a.AV.SGIDIndex == 0 {
		a.AV.SGIDIndex = q.index
	}
	return q.DriverQP.Modify(&a, mask)
}

func (q *atGIDQP) Stats() verbs.QPStats {
	if s, ok := q.DriverQP.(verbs.StatsReporter); ok {
		return s.Stats()
	}
	return verbs.QPStats{}
}
