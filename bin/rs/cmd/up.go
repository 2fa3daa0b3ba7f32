package cmd

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/railstore/railstore/pipeline"
	"github.com/railstore/railstore/stages/launch"
)

func (a *app) upCommand() *cli.Command {
	return &cli.Command{
		Name:      "up",
		Usage:     "start the shards of a recipe; returns when every one serves",
		ArgsUsage: "RECIPE",
		Description: `Starts a process for each shard that does not run yet and waits until all
serve. When that fails, everything this call started is stopped again and the
exit code is 3. The shards go on after rs has ended; rs down stops them.
Running it again is harmless: shards that serve stay, those that died are
started.

Examples:
   rs up recipes/two-rail.cue
   rs up --timeout 1m recipes/two-rail.cue
   rs up --format json recipes/two-rail.cue`,
		Flags: []cli.Flag{
			&cli.DurationFlag{Name: flagTimeout, Value: 30 * time.Second, Usage: "how long all shards together may take to serve"},
		},
		Action: a.up,
	}
}

const (
	// lockWait is how long a command waits for another one that is changing the
	// same deployment.
	lockWait = time.Minute
	// undoGrace is what shards get to end after a failed start; they have no
	// clients that would need more.
	undoGrace = 5 * time.Second
)

func (a *app) up(ctx context.Context, c *cli.Command) error {
	args, err := arguments(c, "RECIPE")
	if err != nil {
		return err
	}
	timeout := c.Duration(flagTimeout)
	if timeout <= 0 {
		return usagef("--timeout %v: want a time above zero, such as 30s", timeout)
	}
	d, err := a.loadRecipe(args[0])
	if err != nil {
		return err
	}
	s, err := a.state(c)
	if err != nil {
		return err
	}
	f, err := s.Folder(d.Name)
	if err != nil {
		return err
	}
	recipe, err := filepath.Abs(args[0])
	if err != nil {
		return err
	}
	stop := a.followProgress(f)
	res, err := f.Up(ctx, launch.UpConfig{
		Deployment: d, Recipe: recipe, Control: launch.AskControl,
		Timeout: timeout, Grace: undoGrace, LockWait: lockWait,
	})
	unseen := stop()
	if err != nil {
		return err
	}
	if unseen != nil {
		a.progress("progress was not shown: %v", unseen)
	}
	if a.json {
		return a.printJSON(res.Status)
	}
	a.printUp(res)
	return nil
}

// followProgress prints the deployment's events as they come. stop prints those
// that are there by then, and returns when that is done, with the reason if they
// could not be read. That is worth a word only when all else went well: what is in
// the way of the events is in the way of the command, too.
func (a *app) followProgress(f launch.Folder) (stop func() error) {
	if a.silent() {
		return func() error { return nil }
	}
	ctx, cancel := context.WithCancel(context.Background())
	from := launch.Here(f.EventsPath())
	var wg sync.WaitGroup
	var err error
	wg.Go(func() {
		err = f.Events(ctx, from, true, func(e pipeline.Event, _ []byte) error {
			if line := progressLine(e); line != "" {
				a.progress("%s", line)
			}
			return nil
		})
	})
	return func() error {
		cancel()
		wg.Wait()
		return err
	}
}

// progressLine is an event for somebody who waits; empty for those that say
// nothing to them.
func progressLine(e pipeline.Event) string {
	who := "deployment"
	if e.Shard != nil {
		who = fmt.Sprintf("shard %d", *e.Shard)
	}
	took := ""
	if e.Seconds > 0 {
		took = "  " + seconds(e.Seconds)
	}
	switch e.Event {
	case "shard_started":
		return fmt.Sprintf("%s  started, pid %v", who, e.Fields["pid"])
	case "shard_ready":
		return fmt.Sprintf("%s  serving%s", who, took) // the control plane says so
	case "shard_stopped":
		return fmt.Sprintf("%s  %s%s", who, e.Reason, took)
	case "stage_done":
		return fmt.Sprintf("%s  %s%s", who, e.Stage, took)
	case "stage_failed":
		return fmt.Sprintf("%s  %s failed: %s", who, e.Stage, e.Reason)
	}
	return ""
}

func (a *app) printUp(res *launch.UpResult) {
	st := res.Status
	verb := "serves"
	if len(res.Started) == 0 {
		verb = "serves already"
	}
	a.printf("%s %s: %d shards, control plane %s, digest %.12s\n", st.Deployment, verb, len(st.Shards), st.Control.Address, st.Digest)
	for _, s := range st.Shards {
		var rails []string
		for _, r := range s.Rails {
			rail := r.Name + " " + r.Device
			if r.Provider != "" {
				rail += " (" + r.Provider + ")"
			}
			rails = append(rails, rail)
		}
		a.printf("  shard %d  pid %d  rails %s\n", s.ID, s.PID, strings.Join(rails, ", "))
	}
	a.printf("next: rs status, rs put NAMESPACE/OBJECT FILE, rs down\n")
}
