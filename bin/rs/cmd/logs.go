package cmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strconv"
	"sync"

	"github.com/urfave/cli/v3"

	"github.com/railstore/railstore/cue/deploy"
	"github.com/railstore/railstore/pipeline"
	"github.com/railstore/railstore/stages/launch"
)

func (a *app) logsCommand() *cli.Command {
	return &cli.Command{
		Name:      "logs",
		Usage:     "the output of the shards",
		ArgsUsage: "[SHARD...]",
		Description: `Every line begins with its shard. Without SHARD the logs of all shards are
shown, one after the other, or mixed as they come with --follow. With --format
json every line is one JSON object on a line.

Examples:
   rs logs
   rs logs --tail 20 0
   rs logs --deployment two-rail 1`,
		Flags: []cli.Flag{
			deploymentFlag(),
			&cli.BoolFlag{Name: flagFollow, Aliases: []string{"f"}, Usage: "wait for more until interrupted"},
			tailFlag("only the last `N` lines of each shard"),
		},
		Action: a.logs,
	}
}

func (a *app) logs(ctx context.Context, c *cli.Command) error {
	args, err := arguments(c, "[SHARD...]")
	if err != nil {
		return err
	}
	f, err := a.folder(c)
	if err != nil {
		return err
	}
	r, err := f.Resolved()
	if err != nil {
		return err
	}
	shards, err := shardArguments(r.Deployment, args)
	if err != nil {
		return err
	}
	tail, err := tailOf(c)
	if err != nil {
		return err
	}
	w := &lineWriter{w: a.out, json: a.json}
	show := func(ctx context.Context, shard int) (struct{}, error) {
		from, err := launch.Tail(ctx, f.LogPath(shard), tail, nil)
		if err != nil {
			return struct{}{}, err
		}
		prefix := a.paint(blue, fmt.Sprintf("shard %d |", shard)) + " "
		err = launch.Lines(ctx, f.LogPath(shard), from, c.Bool(flagFollow), func(line []byte) error {
			return w.line(shard, prefix, line)
		})
		if errors.Is(err, fs.ErrNotExist) {
			err = nil // it has never run
		}
		return struct{}{}, err
	}
	if !c.Bool(flagFollow) {
		for _, n := range shards {
			if _, err := show(ctx, n); err != nil {
				return err
			}
		}
		return nil
	}
	if _, err := pipeline.Each(ctx, shards, show); err != nil {
		return err
	}
	return reported{context.Cause(ctx)} // following ends so
}

// shardArguments are the shards that the arguments name, all without any.
func shardArguments(d *deploy.Deployment, args []string) ([]int, error) {
	var all, out []int
	for i := range d.Shards {
		all = append(all, d.Shards[i].ID)
	}
	if len(args) == 0 {
		return all, nil
	}
	for _, s := range args {
		n, err := strconv.Atoi(s)
		if err != nil {
			return nil, usagef("shard %q: want a number", s).withHint("to name a deployment use --deployment %s", s)
		}
		if _, ok := d.Shard(n); !ok {
			return nil, usagef("shard %d: %s has the shards %v", n, d.Name, all)
		}
		out = append(out, n)
	}
	return out, nil
}

// lineWriter keeps the lines of several logs whole.
type lineWriter struct {
	mu   sync.Mutex
	w    io.Writer
	json bool
}

// logLine is the JSON form of a line.
type logLine struct {
	Shard int    `json:"shard"`
	Line  string `json:"line"`
}

func (l *lineWriter) line(shard int, prefix string, line []byte) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.json {
		return encode(l.w, logLine{shard, string(line)})
	}
	_, err := fmt.Fprintf(l.w, "%s%s\n", prefix, line)
	return err
}
