package cmd

import (
	"context"
	"fmt"
	"strings"

	"github.com/urfave/cli/v3"

	"github.com/railstore/railstore/cue/deploy"
	"github.com/railstore/railstore/stages/launch"
)

func (a *app) planCommand() *cli.Command {
	return &cli.Command{
		Name:      "plan",
		Usage:     "what a recipe would bring up: rails, lanes, slots, memory, digest",
		ArgsUsage: "RECIPE",
		Description: `Follows from the recipe alone and is the same on every machine: no device is
opened and nothing is started. MEMLOCK is what ulimit -l must allow the largest
process of a host; memory of the provider soft is not locked and does not count.

Examples:
   rs plan recipes/two-rail.cue
   rs plan --format json recipes/two-rail.cue`,
		Action: a.plan,
	}
}

// planResult is the JSON form of a plan.
type planResult struct {
	Deployment string      `json:"deployment"`
	Epoch      uint64      `json:"epoch"`
	Digest     string      `json:"digest"`
	Control    string      `json:"control"`
	Hosts      []planHost  `json:"hosts"`
	Shards     []planShard `json:"shards"`
	Lanes      int         `json:"lanes"` // of one client to all shards
	Slots      int         `json:"slots"`
}

type planHost struct {
	Name            string        `json:"name"`
	Rails           []planRail    `json:"rails"`
	Processes       []planProcess `json:"processes"`
	RegisteredBytes int64         `json:"registered_bytes"`
	QPs             int           `json:"qps"`
	CQEs            int           `json:"cqes"`
	MemlockBytes    int64         `json:"memlock_bytes"`
}

type planRail struct {
	Name            string `json:"name"`
	Fabric          string `json:"fabric"`
	Device          string `json:"device"`
	Port            int    `json:"port"`
	GID             string `json:"gid"`
	Weight          int    `json:"weight"`
	MTU             int    `json:"mtu"` // 0: the smaller active MTU of both ends
	RegisteredBytes int64  `json:"registered_bytes"`
	QPs             int    `json:"qps"`
	CQEs            int    `json:"cqes"`
}

type planProcess struct {
	Name            string `json:"name"`
	Peers           int    `json:"peers"`
	LaneBytes       int64  `json:"lane_bytes"`
	SlabBytes       int64  `json:"slab_bytes"`
	StoreBytes      int64  `json:"store_bytes"`
	StagingBytes    int64  `json:"staging_bytes"`
	RegisteredBytes int64  `json:"registered_bytes"`
	MemlockBytes    int64  `json:"memlock_bytes"`
	QPs             int    `json:"qps"`
	CQEs            int    `json:"cqes"`
}

type planShard struct {
	ID    int      `json:"id"`
	Host  string   `json:"host"`
	Rails []string `json:"rails"`
	Dirs  []string `json:"dirs"`
}

func (a *app) plan(_ context.Context, c *cli.Command) error {
	args, err := arguments(c, "RECIPE")
	if err != nil {
		return err
	}
	d, err := a.loadRecipe(args[0])
	if err != nil {
		return err
	}
	p := planOf(d)
	if a.json {
		return a.printJSON(p)
	}
	a.printPlan(p)
	return nil
}

func planOf(d *deploy.Deployment) *planResult {
	p := &planResult{Deployment: d.Name, Epoch: d.Epoch, Digest: d.Digest(), Control: launch.ControlAddress(d), Hosts: []planHost{}, Shards: []planShard{}}
	p.Lanes, p.Slots = d.Totals()
	for _, b := range d.Budget() {
		h, _ := d.Host(b.Host)
		ph := planHost{Name: b.Host, Rails: []planRail{}, Processes: []planProcess{}, RegisteredBytes: b.RegisteredBytes,
			QPs: b.QPs, CQEs: b.CQEs, MemlockBytes: b.MemlockBytes}
		for i := range h.Rails {
			r, rb := &h.Rails[i], &b.Rails[i]
			ph.Rails = append(ph.Rails, planRail{Name: r.Name, Fabric: r.Fabric, Device: r.Device, Port: r.Port, GID: gidText(r.GID),
				Weight: r.Weight, MTU: r.MTU, RegisteredBytes: rb.RegisteredBytes, QPs: rb.QPs, CQEs: rb.CQEs})
		}
		for i := range b.Processes {
			q := &b.Processes[i]
			ph.Processes = append(ph.Processes, planProcess{Name: q.Name, Peers: q.Peers, LaneBytes: q.LaneBytes, SlabBytes: q.SlabBytes,
				StoreBytes: q.StoreBytes, StagingBytes: q.StagingBytes, RegisteredBytes: q.RegisteredBytes, MemlockBytes: q.MemlockBytes,
				QPs: q.QPs, CQEs: q.CQEs})
		}
		p.Hosts = append(p.Hosts, ph)
	}
	for i := range d.Shards {
		s := &d.Shards[i]
		ps := planShard{ID: s.ID, Host: s.Host, Rails: []string{}, Dirs: notNil(s.Dirs)}
		for _, r := range d.ShardRails(s) {
			ps.Rails = append(ps.Rails, r.Name)
		}
		p.Shards = append(p.Shards, ps)
	}
	return p
}

// gidText is a selector as a person would say it.
func gidText(g deploy.GIDSelector) string {
	switch g.Select {
	case "index":
		return fmt.Sprintf("index %d", g.Index)
	case "address":
		return g.Address
	case "type":
		return g.Type
	}
	return g.Select
}

func (a *app) printPlan(p *planResult) {
	a.printf("%s  epoch %d  control plane %s\ndigest %s\n\n", p.Deployment, p.Epoch, p.Control, p.Digest)
	t := newTable("SHARD", "HOST", "RAILS", "DIRECTORIES")
	for _, s := range p.Shards {
		t.row(s.ID, s.Host, strings.Join(s.Rails, ", "), orDash(strings.Join(s.Dirs, ", ")))
	}
	a.printf("%s\n", t)
	t = newTable("HOST", "RAIL", "FABRIC", "DEVICE", "PORT", "GID", "WEIGHT", "MTU", "QPS", "CQES", "REGISTERED")
	for _, h := range p.Hosts {
		for _, r := range h.Rails {
			mtu := "auto"
			if r.MTU != 0 {
				mtu = fmt.Sprint(r.MTU)
			}
			t.row(h.Name, r.Name, r.Fabric, r.Device, r.Port, r.GID, r.Weight, mtu, r.QPs, r.CQEs, size(uint64(r.RegisteredBytes)))
		}
	}
	a.printf("%s\n", t)
	a.printBudget(p)
	a.printf("\na client has %d lanes with %d slots to all shards together\n", p.Lanes, p.Slots)
}

// printBudget is what a deployment takes of each host.
func (a *app) printBudget(p *planResult) {
	t := newTable("HOST", "PROCESS", "REGISTERED", "MEMLOCK", "QPS", "CQES")
	t.rightAlign(3, 4)
	for _, h := range p.Hosts {
		for _, q := range h.Processes {
			t.row(h.Name, q.Name, size(uint64(q.RegisteredBytes)), size(uint64(q.MemlockBytes)), q.QPs, q.CQEs)
		}
		if len(h.Processes) > 1 {
			t.row(h.Name, "all", size(uint64(h.RegisteredBytes)), size(uint64(h.MemlockBytes)), h.QPs, h.CQEs)
		}
	}
	a.printf("%s", t)
	for _, h := range p.Hosts {
		if h.MemlockBytes > 0 {
			// ulimit counts in units of 1024 bytes.
			a.printf("host %s needs: ulimit -l %d\n", h.Name, (h.MemlockBytes+1023)/1024)
		}
	}
}
