package cmd

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/railstore/railstore/ctrl"
	"github.com/railstore/railstore/stages/launch"
)

func (a *app) statusCommand() *cli.Command {
	return &cli.Command{
		Name:      "status",
		Usage:     "shards, their rails and lanes, and clients",
		ArgsUsage: "[NAME]",
		Description: `The exit code is 0 when every shard serves and 3 when not, or when nothing
runs. The provider of a rail is the one that is in use. Lanes that are not active
have their reasons below the tables. --lanes asks every process and shows each
lane of each, --watch shows all of it every second until interrupted.

Examples:
   rs status
   rs status two-rail
   rs status --lanes
   rs status --format json`,
		Flags: []cli.Flag{
			deploymentFlag(),
			&cli.BoolFlag{Name: "lanes", Usage: "a row for each lane"},
			&cli.BoolFlag{Name: "watch", Aliases: []string{"w"}, Usage: "again every second, until interrupted"},
		},
		Action: a.status,
	}
}

// watchEvery is how often --watch looks.
const watchEvery = time.Second

func (a *app) status(ctx context.Context, c *cli.Command) error {
	f, err := a.named(c)
	if err != nil {
		return err
	}
	st, err := a.showStatus(ctx, c, f)
	if err != nil || !c.Bool("watch") {
		return errors.Join(err, serving(st))
	}
	t := time.NewTicker(watchEvery)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return reported{context.Cause(ctx)} // watching ends so
		case <-t.C:
		}
		if _, err := a.showStatus(ctx, c, f); err != nil {
			if ctx.Err() != nil {
				return reported{context.Cause(ctx)}
			}
			return err
		}
	}
}

func serving(st *statusResult) error {
	if st == nil {
		return nil
	}
	return launch.Serving(st.Status)
}

// showStatus looks once.
func (a *app) showStatus(ctx context.Context, c *cli.Command, f launch.Folder) (*statusResult, error) {
	st, err := f.Status(ctx, launch.AskControl)
	if err != nil {
		return nil, err
	}
	res := &statusResult{Status: st, Reasons: []laneReason{}}
	if err := res.lookAtLanes(ctx, f, c.Bool("lanes")); err != nil {
		return nil, err
	}
	if err := res.lookAtDirectories(ctx, f); err != nil {
		return nil, err
	}
	if a.json {
		return res, a.printJSON(res)
	}
	if c.Bool("watch") && a.outTTY && !a.plain() {
		a.printf("\x1b[H\x1b[2J") // top left, and clear
	}
	a.printStatus(st)
	a.printLanes(res)
	a.printDirectories(res)
	if c.Bool("watch") {
		a.printf("\n")
	}
	return res, nil
}

// named is the deployment that a positional NAME or --deployment tells.
func (a *app) named(c *cli.Command) (launch.Folder, error) {
	args, err := arguments(c, "[NAME]")
	if err != nil {
		return launch.Folder{}, err
	}
	if len(args) == 0 {
		return a.folder(c)
	}
	if c.IsSet(flagDeployment) && c.String(flagDeployment) != args[0] {
		return launch.Folder{}, usagef("%s: both %q and --deployment %q", c.FullName(), args[0], c.String(flagDeployment))
	}
	s, err := a.state(c)
	if err != nil {
		return launch.Folder{}, err
	}
	return s.Select(args[0])
}

func (a *app) printStatus(st *ctrl.Status) {
	a.printf("%s  digest %.12s  control plane %s %s\n\n", st.Deployment, st.Digest, st.Control.Address, a.paintState(st.Control.State))
	t := newTable("SHARD", "HOST", "PID", "STATE", "UPTIME", "RAILS", "LANES", "REASON")
	for _, s := range st.Shards {
		up := 0
		for _, r := range s.Rails {
			if r.State == railUp {
				up++
			}
		}
		pid := "-"
		if s.PID != 0 {
			pid = fmt.Sprint(s.PID)
		}
		t.row(s.ID, s.Host, pid, a.paintState(s.State.String()), uptime(s.UptimeS), fmt.Sprintf("%d/%d", up, len(s.Rails)), laneCell(s.Lanes), s.Reason)
	}
	a.printf("%s\n", t)
	t = newTable("SHARD", "RAIL", "FABRIC", "DEVICE", "PROVIDER", "GID", "MTU", "WEIGHT", "STATE", "REASON")
	for _, s := range st.Shards {
		for _, r := range s.Rails {
			gid, mtu := "-", "-"
			if r.GIDType != "" {
				gid = r.GID.String() + " " + r.GIDType
			}
			if r.MTU != 0 {
				mtu = fmt.Sprint(r.MTU)
			}
			t.row(s.ID, r.Name, r.Fabric, r.Device, orDash(r.Provider), gid, mtu, r.Weight, a.paintState(orDash(r.State)), r.Reason)
		}
	}
	a.printf("%s", t)
	if len(st.Clients) == 0 {
		return
	}
	t = newTable("CLIENT", "PID", "STATE", "LANES")
	for _, c := range st.Clients {
		t.row(c.ID, c.PID, a.paintState(clientState(c.State)), laneCell(c.Lanes))
	}
	a.printf("\n%s", t)
}

// clientState is a client's state in words of its own: it joins, and is connected
// from then on.
func clientState(s ctrl.State) string {
	switch s {
	case ctrl.StateStarting, ctrl.StateServing:
		return "active"
	}
	return s.String()
}

// railUp is the state of a rail that carries traffic.
const railUp = "active"

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// laneCell shows the states that have any lanes.
func laneCell(n ctrl.LaneCounts) string {
	s := ""
	for _, p := range []struct {
		n    int
		word string
	}{{n.Active, "active"}, {n.Dirty, "dirty"}, {n.Rebuilding, "rebuilding"}, {n.Dead, "dead"}} {
		if p.n > 0 {
			if s != "" {
				s += ", "
			}
			s += fmt.Sprintf("%d %s", p.n, p.word)
		}
	}
	return orDash(s)
}

func uptime(s float64) string {
	if s == 0 {
		return "-"
	}
	if s < 10 {
		return fmt.Sprintf("%.1fs", s)
	}
	return (time.Duration(s) * time.Second).String()
}
