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
			&cli.IntFlag{Name: "tail", Value: -1, Usage: "only the last `N` events that are there"},
		},
		Action: a.events,
	}
}

func (a *app) events(ctx context.Context, c *cli.Command) error {
	f, err := a.named(c)
	if err != nil {
		return err
	}
	from, err := launch.Tail(f.EventsPath(), c.Int("tail"))
	if err != nil {
		return err
	}
	err = f.Events(ctx, from, c.Bool(flagFollow), func(e pipeline.Event, raw []byte) error {
		if a.json {
			a.printf("%s\n", raw)
			return nil
		}
		a.printf("%s\n", a.eventLine(e))
		return nil
	})
	if errors.Is(err, fs.ErrNotExist) {
		return nil // nothing has happened yet
	}
	if err == nil && ctx.Err() != nil {
		return reported{context.Cause(ctx)} // following ends so
	}
	return err
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
