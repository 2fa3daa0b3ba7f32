package cmd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"sort"
	"strings"

	"github.com/urfave/cli/v3"

	"github.com/railstore/railstore/pipeline"
	"github.com/railstore/railstore/stages/launch"
)

func (a *app) eventsCommand() *cli.Command {
	return &cli.Command{
		Name:      "events",
		Usage:     "what happened: starts, stops, stages, lanes and rails",
		ArgsUsage: "[NAME]",
		Description: `With --format json every event is one JSON object on a line, as the processes
wrote it.

Examples:
   rs events
   rs events --tail 5 two-rail
   rs events --format json`,
		Flags: []cli.Flag{
			deploymentFlag(),
			&cli.BoolFlag{Name: flagFollow, Aliases: []string{"f"}, Usage: "wait for more until interrupted"},
			tailFlag("only the last `N` events that are there"),
		},
		Action: a.events,
	}
}

func (a *app) events(ctx context.Context, c *cli.Command) error {
	f, err := a.named(c)
	if err != nil {
		return err
	}
	tail, err := tailOf(c)
	if err != nil {
		return err
	}
	from, err := launch.Tail(f.EventsPath(), tail)
	if err != nil {
		return err
	}
	err = f.Events(ctx, from, c.Bool(flagFollow), func(e pipeline.Event, raw []byte) error {
		line := string(raw)
		if !a.json {
			line = a.eventLine(e)
		}
		_, err := fmt.Fprintln(a.out, line)
		return err // following ends with the reader
	})
	if errors.Is(err, fs.ErrNotExist) {
		return nil // nothing has happened yet
	}
	if err == nil && ctx.Err() != nil {
		return reported{context.Cause(ctx)} // following ends so
	}
	return err
}

const flagTail = "tail"

func tailFlag(usage string) cli.Flag {
	return &cli.IntFlag{Name: flagTail, Value: -1, HideDefault: true, Usage: usage + " (default: all)"}
}

// tailOf is how many of the last lines are wanted, -1 for all.
func tailOf(c *cli.Command) (int, error) {
	n := c.Int(flagTail)
	if c.IsSet(flagTail) && n < 0 {
		return 0, usagef("--tail %d: want a number of lines, 0 or more", n)
	}
	return n, nil
}

// eventLine is an event as a line: when, where, what, why.
func (a *app) eventLine(e pipeline.Event) string {
	w := pipeline.Nowhere
	if e.Shard != nil {
		w.Shard = *e.Shard
	}
	if e.Lane != nil {
		w.Lane = *e.Lane
	}
	w.Rail = e.Rail
	p := []string{a.paint(dim, e.Time.Local().Format("2006-01-02 15:04:05.000"))}
	if s := w.String(); s != "" {
		p = append(p, s)
	}
	p = append(p, a.paint(blue, e.Event))
	if e.Stage != "" {
		p = append(p, e.Stage)
	}
	if e.Seconds > 0 {
		p = append(p, seconds(e.Seconds))
	}
	keys := make([]string, 0, len(e.Fields))
	for k := range e.Fields {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	for _, k := range keys {
		p = append(p, fmt.Sprintf("%s=%v", k, e.Fields[k]))
	}
	if e.Reason != "" {
		p = append(p, e.Reason)
	}
	return strings.Join(p, "  ")
}
