package cmd

import (
	"bytes"
	"encoding/json"
	"sync"

	"github.com/railstore/railstore/bin/provider"
	"github.com/railstore/railstore/cue/deploy"
	"github.com/railstore/railstore/pipeline"
	"github.com/railstore/railstore/verbs"
	"github.com/railstore/railstore/verbs/soft"
)

// devices are the drivers of a process's rails, for whoever wants to see more of
// them than a rail shows.
type devices struct {
	mu    sync.Mutex
	rails []device
}

type device struct {
	spec   deploy.Rail
	driver verbs.Driver
}

// open is drivers, and remembers what it gave.
func (d *devices) open(name string, r deploy.Rail) (verbs.Driver, error) {
	drv, err := provider.Open(name, r)
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for i := range d.rails {
		if d.rails[i].spec.Name == r.Name {
			d.rails[i] = device{r, drv}
			return drv, nil
		}
	}
	d.rails = append(d.rails, device{r, drv})
	return drv, nil
}

func (d *devices) list() []device {
	d.mu.Lock()
	defer d.mu.Unlock()
	return append([]device(nil), d.rails...)
}

// soft is the rail's driver if it is one that plays faults.
func (d *devices) soft(rail string) (*soft.Driver, bool) {
	for _, x := range d.list() {
		if x.spec.Name == rail {
			s, ok := x.driver.(*soft.Driver)
			return s, ok
		}
	}
	return nil, false
}

// faultRow is a fault of a rail as a process tells it.
type faultRow struct {
	Process string         `json:"process,omitempty"`
	Shard   *int           `json:"shard,omitempty"` // absent: of a client
	Rail    string         `json:"rail"`
	ID      int            `json:"id"`
	State   string         `json:"state"`
	Hits    uint64         `json:"hits"`
	Fault   map[string]any `json:"fault"` // as in a recipe
}

// clearedRow says how many faults of a rail were cleared.
type clearedRow struct {
	Process string `json:"process,omitempty"`
	Shard   *int   `json:"shard,omitempty"`
	Rail    string `json:"rail"`
	Cleared int    `json:"cleared"`
	IDs     []int  `json:"ids,omitempty"` // those of them that were asked for
}

// targets are the rails that a request about faults means: the named one, or all
// that are soft.
func (d *devices) targets(op, rail string) (names []string, drvs []*soft.Driver, err error) {
	all := d.list()
	var known, refused string
	for _, x := range all {
		known += ", " + x.spec.Name
		if rail != "" && x.spec.Name != rail {
			continue
		}
		s, ok := x.driver.(*soft.Driver)
		if !ok {
			refused = x.spec.Name
			if rail != "" {
				return nil, nil, notSoft(op, x)
			}
			continue
		}
		names, drvs = append(names, x.spec.Name), append(drvs, s)
	}
	switch {
	case len(names) > 0:
		return names, drvs, nil
	case rail != "":
		return nil, nil, pipeline.Errorf(pipeline.LayerUsage, op, pipeline.AtRail(rail), "there is no such rail; there is %s", orDash(trimComma(known)))
	case refused != "":
		for _, x := range all {
			if x.spec.Name == refused {
				return nil, nil, notSoft(op, x)
			}
		}
	}
	return nil, nil, pipeline.Errorf(pipeline.LayerUsage, op, pipeline.Nowhere, "the process has no rail")
}

func trimComma(s string) string {
	if len(s) > 2 {
		return s[2:]
	}
	return s
}

func notSoft(op string, x device) error {
	return pipeline.Errorf(pipeline.LayerUsage, op, pipeline.AtRail(x.spec.Name), "%s is the provider %s, and faults are played by soft alone", x.spec.Device, x.driver.Name()).
		WithHint("break the network itself there (ip link, tc netem), or use a soft rail")
}

func (d *devices) faults(rail string) (any, error) {
	out := []faultRow{}
	names, drvs, err := d.targets("fault list", rail)
	if err != nil {
		if rail == "" {
			return out, nil // no soft rail, no faults
		}
		return nil, err
	}
	for i, drv := range drvs {
		for _, f := range drv.Faults() {
			out = append(out, rowOf(names[i], f))
		}
	}
	return out, nil
}

// addFault adds to all targets or to none.
func (d *devices) addFault(rail string, body []byte) (any, error) {
	const op = "fault add"
	var f deploy.Fault
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&f); err != nil {
		return nil, pipeline.Errorf(pipeline.LayerUsage, op, pipeline.Nowhere, "%w", err)
	}
	names, drvs, err := d.targets(op, rail)
	if err != nil {
		return nil, err
	}
	ids := make([]int, 0, len(drvs))
	out := []faultRow{}
	for i, drv := range drvs {
		id, err := drv.AddFault(provider.SoftFault(f))
		if err != nil {
			for k, id := range ids {
				drvs[k].ClearFaults(id)
			}
			return nil, pipeline.Errorf(pipeline.LayerUsage, op, pipeline.AtRail(names[i]), "%w", err)
		}
		ids = append(ids, id)
		for _, st := range drv.Faults() {
			if st.ID == id {
				out = append(out, rowOf(names[i], st))
			}
		}
	}
	return out, nil
}

func (d *devices) clearFaults(rail string, ids []int) (any, error) {
	out := []clearedRow{}
	names, drvs, err := d.targets("fault clear", rail)
	if err != nil {
		if rail == "" {
			return out, nil
		}
		return nil, err
	}
	for i, drv := range drvs {
		row := clearedRow{Rail: names[i]}
		for _, id := range ids {
			if drv.ClearFaults(id) > 0 {
				row.IDs = append(row.IDs, id)
			}
		}
		if row.Cleared = len(row.IDs); len(ids) == 0 {
			row.Cleared = drv.ClearFaults()
		}
		out = append(out, row)
	}
	return out, nil
}

func rowOf(rail string, s soft.FaultStatus) faultRow {
	return faultRow{Rail: rail, ID: s.ID, State: s.State, Hits: s.Hits, Fault: faultFields(s.Fault)}
}

// faultFields is a fault as a recipe says it: only what was given.
func faultFields(f soft.Fault) map[string]any {
	out := map[string]any{"do": f.Do}
	put := func(to map[string]any, name string, given bool, v any) {
		if given {
			to[name] = v
		}
	}
	at, match := map[string]any{}, map[string]any{}
	put(at, "bytes", f.At.Bytes != 0, f.At.Bytes)
	put(at, "packets", f.At.Packets != 0, f.At.Packets)
	put(at, "time", f.At.Time != 0, f.At.Time.String())
	put(match, "opcode", f.Match.Opcode != "", f.Match.Opcode)
	put(match, "peer", f.Match.Peer != "", f.Match.Peer)
	put(match, "direction", f.Match.Direction != "", f.Match.Direction)
	put(out, "at", len(at) > 0, at)
	put(out, "match", len(match) > 0, match)
	put(out, "for", f.For != 0, f.For.String())
	put(out, "rate", f.Rate != 0, f.Rate)
	put(out, "seed", f.Seed != 0, f.Seed)
	put(out, "by", f.By != 0, f.By.String())
	put(out, "bitsPerSecond", f.BitsPerSecond != 0, f.BitsPerSecond)
	put(out, "op", f.Op != "", f.Op)
	put(out, "errno", f.Errno != "", f.Errno)
	put(out, "times", f.Times != 0, f.Times)
	return out
}
