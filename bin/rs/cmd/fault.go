package cmd

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/urfave/cli/v3"

	"github.com/railstore/railstore/pipeline"
	"github.com/railstore/railstore/stages/launch"
)

func railFlag() cli.Flag {
	return &cli.StringFlag{Name: flagRail, Usage: "only this rail of each process, by its `NAME`"}
}

func (a *app) faultCommand() *cli.Command {
	return group(&cli.Command{
		Name:  "fault",
		Usage: "what goes wrong on soft rails of running processes: list, add, clear",
		Description: `Soft rails play faults: packets that are lost, late or doubled, ports that go down,
completions that never come. A recipe may carry a script of them; these commands
change it while the processes run. What is added here ends with the process.

Examples:
   rs fault list`,
		Commands: []*cli.Command{
			{
				Name:      "list",
				Usage:     "faults with their state and how often they hit",
				ArgsUsage: "[NAME | RECIPE]",
				Description: `The state is waiting, active or over. Hits are packets, completions, calls or
memory regions that the fault changed.

Examples:
   rs fault list
   rs fault list --shard 0 --rail rail1
   rs fault list --format json two-rail`,
				Flags:  askedFlags(railFlag()),
				Action: a.faultList,
			},
			{
				Name:      "add",
				Usage:     "add a fault",
				ArgsUsage: "[NAME | RECIPE] FIELD=VALUE...",
				Description: `The fields are those of hosts[].rails[].faults[] in a recipe, with a dot for those
inside another: do=drop rate=0.1 for=5s match.opcode=write. It goes to every soft
rail of every process of the deployment, or to those that the flags name. Times
and counts of "at" begin now. Rails of the provider ibv are refused.

Examples:
   rs fault add do=delay by=1ms rate=0.01 for=5s
   rs fault add two-rail --shard 1 --rail rail0 do=drop rate=0.1 match.direction=in`,
				Flags:  askedFlags(railFlag()),
				Action: a.faultAdd,
			},
			{
				Name:      "clear",
				Usage:     "end faults",
				ArgsUsage: "[NAME | RECIPE]",
				Description: `Ends all faults, those of the recipe included, or those that the flags name. Of a
port that was down because of a fault it is as if the link came back.

Examples:
   rs fault clear --shard 0 --rail rail0 --id 1
   rs fault clear`,
				Flags:  askedFlags(railFlag(), &cli.IntSliceFlag{Name: "id", Usage: "only the faults with these `IDS` (they count for each rail)"}),
				Action: a.faultClear,
			},
		},
	})
}

// faultTarget is the deployment and the processes that a command about faults
// means.
func (a *app) faultTarget(ctx context.Context, c *cli.Command, arg string) ([]launch.AdminPeer, error) {
	if c.IsSet(flagRail) && c.String(flagRail) == "" {
		return nil, usagef("--rail: want the name of a rail")
	}
	f, err := a.target(c, arg)
	if err != nil {
		return nil, err
	}
	return a.asked(ctx, c, f)
}

func faultQuery(c *cli.Command, ids []int) string {
	q := url.Values{}
	if r := c.String(flagRail); r != "" {
		q.Set("rail", r)
	}
	for _, n := range ids {
		q.Add("id", strconv.Itoa(n))
	}
	if len(q) == 0 {
		return "/v1/faults"
	}
	return "/v1/faults?" + q.Encode()
}

func firstOf(args []string) string {
	if len(args) == 0 {
		return ""
	}
	return args[0]
}

func (a *app) faultList(ctx context.Context, c *cli.Command) error {
	args, err := arguments(c, "[NAME | RECIPE]")
	if err != nil {
		return err
	}
	peers, err := a.faultTarget(ctx, c, firstOf(args))
	if err != nil {
		return err
	}
	rows, err := askAll[[]faultRow](ctx, peers, http.MethodGet, faultQuery(c, nil), nil)
	return errors.Join(err, a.printFaults(peers, rows, err == nil))
}

func (a *app) faultAdd(ctx context.Context, c *cli.Command) error {
	args := c.Args().Slice()
	name := ""
	if len(args) > 0 && !strings.Contains(args[0], "=") {
		name, args = args[0], args[1:]
	}
	if len(args) == 0 {
		return usagef("%s: missing FIELD=VALUE", c.FullName()).withHint("usage: %s [NAME | RECIPE] do=drop rate=0.1", c.FullName())
	}
	fault, err := parseFault(c.FullName(), args)
	if err != nil {
		return err
	}
	peers, err := a.faultTarget(ctx, c, name)
	if err != nil {
		return err
	}
	rows, err := askAll[[]faultRow](ctx, peers, http.MethodPost, faultQuery(c, nil), fault)
	if !anyOf(rows) {
		return err
	}
	return errors.Join(err, a.printFaults(peers, rows, false))
}

func anyOf[T any](list []*T) bool {
	for _, v := range list {
		if v != nil {
			return true
		}
	}
	return false
}

func (a *app) faultClear(ctx context.Context, c *cli.Command) error {
	args, err := arguments(c, "[NAME | RECIPE]")
	if err != nil {
		return err
	}
	ids := c.IntSlice("id")
	for _, n := range ids {
		if n < 0 {
			return usagef("--id %d: want the id of a fault", n)
		}
	}
	peers, err := a.faultTarget(ctx, c, firstOf(args))
	if err != nil {
		return err
	}
	rows, err := askAll[[]clearedRow](ctx, peers, http.MethodDelete, faultQuery(c, ids), nil)
	total, unknown := 0, slices.Clone(ids)
	for i, list := range rows {
		if list == nil {
			continue
		}
		for _, r := range *list {
			total += r.Cleared
			unknown = slices.DeleteFunc(unknown, func(id int) bool { return slices.Contains(r.IDs, id) })
			r.Process, r.Shard = peers[i].ID, shardOf(peers[i])
			switch {
			case a.json:
				if jerr := a.printJSON(r); jerr != nil {
					return jerr
				}
			case r.Cleared > 0:
				a.printf("%s %s: %s cleared\n", r.Process, r.Rail, plural(r.Cleared, "fault"))
			}
		}
	}
	if len(unknown) > 0 && err == nil {
		return pipeline.Errorf(pipeline.LayerProcess, "fault clear", pipeline.Nowhere, "no fault with id %s on the rails that were asked", joinInts(unknown)).
			WithHint("rs fault list shows the faults with their ids, which count for each rail")
	}
	if total == 0 && err == nil && !a.json {
		a.printf("no faults\n")
	}
	return err
}

func joinInts(list []int) string {
	s := make([]string, len(list))
	for i, n := range list {
		s[i] = strconv.Itoa(n)
	}
	return strings.Join(s, ", ")
}

func plural(n int, word string) string {
	if n == 1 {
		return "1 " + word
	}
	return strconv.Itoa(n) + " " + word + "s"
}

func (a *app) printFaults(peers []launch.AdminPeer, rows []*[]faultRow, sayNone bool) error {
	t := newTable("PROCESS", "RAIL", "ID", "STATE", "HITS", "FAULT")
	t.rightAlign(3, 5)
	n := 0
	for i, list := range rows {
		if list == nil {
			continue
		}
		for _, r := range *list {
			n++
			r.Process, r.Shard = peers[i].ID, shardOf(peers[i])
			if a.json {
				if err := a.printJSON(r); err != nil {
					return err
				}
				continue
			}
			t.row(r.Process, r.Rail, r.ID, a.paintState(r.State), r.Hits, faultWords(r.Fault))
		}
	}
	switch {
	case a.json:
	case n > 0:
		a.printf("%s", t)
	case sayNone:
		a.printf("no faults\n")
	}
	return nil
}
