package cmd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"sort"
	"strings"
	"time"

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
wrote it. Filters may be combined: an event is shown when it passes all of them;
of several values of one filter it must have one. TIME of --since is how long
ago (10m), or a time (2026-01-31T12:00:00Z, or 2026-01-31 12:00:00, local).
--follow goes on over restarts and over files that are put aside. An event with
suppressed=N stands for N that came too fast to be told one by one.

Examples:
   rs events
   rs events --tail 5 two-rail
   rs events --event lane_dirty,lane_recovered --shard 0 --since 10m
   rs events --format json`,
		Flags: []cli.Flag{
			deploymentFlag(),
			&cli.BoolFlag{Name: flagFollow, Aliases: []string{"f"}, Usage: "wait for more until interrupted"},
			tailFlag("only the last `N` events that are there"),
			&cli.StringSliceFlag{Name: "event", Usage: "only events of these `NAMES`"},
			&cli.IntSliceFlag{Name: flagShard, Usage: "only of these shards, by their `IDS`"},
			&cli.StringSliceFlag{Name: flagRail, Usage: "only of these rails, by their `NAMES`"},
			&cli.StringFlag{Name: "since", Usage: "only events that happened at `TIME` or after it"},
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
	filter, err := eventFilterOf(c, time.Now())
	if err != nil {
		return err
	}
	from, err := launch.Tail(ctx, f.EventsPath(), tail, filter.line())
	if err != nil {
		return err
	}
	err = f.Events(ctx, from, c.Bool(flagFollow), func(e pipeline.Event, raw []byte) error {
		if !filter.passes(e) {
			return nil
		}
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

// eventFilter is which events somebody wants to see; an empty list wants all.
type eventFilter struct {
	events []string
	shards []int
	rails  []string
	since  time.Time
}

func eventFilterOf(c *cli.Command, now time.Time) (eventFilter, error) {
	f := eventFilter{events: c.StringSlice("event"), shards: c.IntSlice(flagShard), rails: c.StringSlice(flagRail)}
	for _, n := range f.shards {
		if n < 0 {
			return f, usagef("--shard %d: want the id of a shard", n)
		}
	}
	if !c.IsSet("since") {
		return f, nil
	}
	s := c.String("since")
	if d, err := time.ParseDuration(s); err == nil && d >= 0 {
		f.since = now.Add(-d)
		return f, nil
	}
	if t, err := time.Parse(time.RFC3339, s); err == nil {
		f.since = t
		return f, nil
	}
	for _, layout := range []string{time.DateTime, "2006-01-02T15:04:05", time.DateOnly} {
		if t, err := time.ParseInLocation(layout, s, time.Local); err == nil {
			f.since = t
			return f, nil
		}
	}
	return f, usagef("--since %s: want how long ago, such as 10m, or a time, such as %s", s, now.UTC().Format(time.RFC3339))
}

func (f eventFilter) passes(e pipeline.Event) bool {
	return (len(f.events) == 0 || slices.Contains(f.events, e.Event)) &&
		(len(f.shards) == 0 || e.Shard != nil && slices.Contains(f.shards, *e.Shard)) &&
		(len(f.rails) == 0 || slices.Contains(f.rails, e.Rail)) &&
		!e.Time.Before(f.since)
}

// line is the filter of lines as they stand in the file, nil when all pass.
func (f eventFilter) line() func([]byte) bool {
	if len(f.events)+len(f.shards)+len(f.rails) == 0 && f.since.IsZero() {
		return nil
	}
	return func(line []byte) bool {
		e, ok := launch.ParseEvent(line)
		return ok && f.passes(e)
	}
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
	if e.Suppressed > 0 {
		p = append(p, fmt.Sprintf("suppressed=%d", e.Suppressed))
	}
	if e.Reason != "" {
		p = append(p, e.Reason)
	}
	return strings.Join(p, "  ")
}
