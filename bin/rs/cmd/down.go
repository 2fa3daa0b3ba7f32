package cmd

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/urfave/cli/v3"

	"github.com/railstore/railstore/stages/launch"
)

func (a *app) downCommand() *cli.Command {
	return &cli.Command{
		Name:      "down",
		Usage:     "stop the shards: drain, then force after a deadline",
		ArgsUsage: "[NAME | RECIPE]",
		Description: `Asks every shard to finish what it has and end; the one with the control plane
goes last. A shard that is still there after the grace is killed, and the output
says so. What shards have stored stays. Also cleans up after an rs that was
killed. Nothing running is not an error. An interrupt stops the waiting and
kills at once.

Examples:
   rs down
   rs down two-rail
   rs down --grace 2s recipes/two-rail.cue`,
		Flags: []cli.Flag{
			deploymentFlag(),
			&cli.DurationFlag{Name: "grace", Usage: "how long shards may take to drain (default: the deployment's server.shutdownTimeout and 2s)"},
		},
		Action: a.down,
	}
}

func (a *app) down(ctx context.Context, c *cli.Command) error {
	grace := c.Duration("grace")
	if grace < 0 {
		return usagef("--grace %v: want a time, such as 10s", grace)
	}
	f, err := a.downFolder(c)
	if errors.Is(err, launch.ErrNotRunning) || errors.Is(err, launch.ErrUnknown) {
		// Down is what is wanted and down it is.
		if a.json {
			return a.printJSON(launch.DownResult{Deployment: f.Name, Shards: []launch.StoppedShard{}})
		}
		a.printf("nothing is running: %s\n", strings.TrimPrefix(err.Error(), "deployment: "))
		return nil
	}
	if err != nil {
		return err
	}
	res, err := f.Down(ctx, launch.DownConfig{Grace: grace, LockWait: lockWait})
	if a.json {
		return errors.Join(err, a.printJSON(res))
	}
	for _, s := range res.Shards {
		how := "drained"
		if s.How == launch.Forced {
			how = a.paint(yellow, "forced: it did not end in time and was killed")
		}
		a.printf("shard %d  pid %d  %s  %s\n", s.Shard, s.PID, how, seconds(s.Seconds))
	}
	switch {
	case err != nil:
		return err
	case len(res.Shards) == 0:
		a.printf("%s: nothing is running\n", f.Name)
	default:
		forced := ""
		if n := len(res.Forced()); n > 0 {
			forced = fmt.Sprintf(", %d of %d shards forced", n, len(res.Shards))
		}
		a.printf("%s is down%s\n", f.Name, forced)
	}
	return nil
}

// downFolder is the deployment to stop: by name, by its recipe, or the only one.
func (a *app) downFolder(c *cli.Command) (launch.Folder, error) {
	args, err := arguments(c, "[NAME | RECIPE]")
	if err != nil {
		return launch.Folder{}, err
	}
	s, err := a.state(c)
	if err != nil {
		return launch.Folder{}, err
	}
	name := c.String(flagDeployment)
	if len(args) == 1 {
		if name != "" && name != args[0] {
			return launch.Folder{}, usagef("%s: both %q and --deployment %q", c.FullName(), args[0], name)
		}
		name = args[0]
	}
	if strings.HasSuffix(name, ".cue") {
		d, err := a.loadRecipe(name)
		if err != nil {
			return launch.Folder{}, err
		}
		name = d.Name
	}
	if name == "" {
		return s.Select("")
	}
	f, err := s.Folder(name)
	if err != nil {
		return f, err
	}
	// The resolved deployment may be missing or damaged: that is no reason not
	// to stop what runs.
	if !f.Exists() {
		return s.Select(name)
	}
	return f, nil
}
