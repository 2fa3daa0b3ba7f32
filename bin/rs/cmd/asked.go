package cmd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/railstore/railstore/pipeline"
	"github.com/railstore/railstore/stages/launch"
)

// Commands that ask running processes: fault, metrics, status --lanes.

const flagClient = "client"

// askedFlags choose among the processes of a deployment.
func askedFlags(more ...cli.Flag) []cli.Flag {
	return append([]cli.Flag{
		deploymentFlag(),
		&cli.IntFlag{Name: flagShard, Value: -1, HideDefault: true, Usage: "only this shard, by its `ID`"},
		&cli.StringFlag{Name: flagClient, Usage: "only this client, by its `ID` as rs status shows it, or its pid"},
	}, more...)
}

// target is the folder that the first argument names, or the flags do.
func (a *app) target(c *cli.Command, arg string) (launch.Folder, error) {
	name := c.String(flagDeployment)
	if arg != "" {
		if name != "" && name != arg {
			return launch.Folder{}, usagef("%s: both %q and --deployment %q", c.FullName(), arg, name)
		}
		name = arg
	}
	if strings.HasSuffix(name, ".cue") {
		d, err := a.loadRecipe(name)
		if err != nil {
			return launch.Folder{}, err
		}
		name = d.Name
	}
	s, err := a.state(c)
	if err != nil {
		return launch.Folder{}, err
	}
	return s.Select(name)
}

// asked are the processes that the flags choose. There is at least one.
func (a *app) asked(ctx context.Context, c *cli.Command, f launch.Folder) ([]launch.AdminPeer, error) {
	if c.IsSet(flagShard) && c.IsSet(flagClient) {
		return nil, usagef("%s: both --shard and --client", c.FullName())
	}
	r, err := f.Resolved()
	if err != nil {
		return nil, err
	}
	all, err := f.Admins(ctx)
	if err != nil {
		return nil, err
	}
	if len(all) == 0 {
		return nil, pipeline.Errorf(pipeline.LayerProcess, c.Name, pipeline.Nowhere, "%s: %w", f.Name, launch.ErrNotRunning).
			WithHint("bring it up with rs up RECIPE")
	}
	switch {
	case c.IsSet(flagShard):
		id := c.Int(flagShard)
		if _, ok := r.Deployment.Shard(id); !ok {
			return nil, usagef("--shard %d: %s has no such shard", id, f.Name)
		}
		i := slices.IndexFunc(all, func(p launch.AdminPeer) bool { return p.Shard == id })
		if i < 0 {
			return nil, pipeline.Errorf(pipeline.LayerProcess, c.Name, pipeline.AtShard(id), "%s: %w", f.Name, launch.ErrNotRunning).
				WithHint("rs status tells why; rs up starts shards that have died")
		}
		return all[i : i+1], nil
	case c.IsSet(flagClient):
		id := c.String(flagClient)
		var there []string
		for i, p := range all {
			if p.Shard >= 0 {
				continue
			}
			if p.ID == id || p.ID == "client/"+id || fmt.Sprint(p.PID) == id {
				return all[i : i+1], nil
			}
			there = append(there, p.ID)
		}
		e := pipeline.Errorf(pipeline.LayerProcess, c.Name, pipeline.Nowhere, "%s: client %s: %w", f.Name, id, launch.ErrNotRunning)
		if len(there) > 0 {
			return nil, e.WithHint("there is %s", strings.Join(there, ", "))
		}
		return nil, e.WithHint("no client is connected now")
	}
	return all, nil
}

// askTime bounds one question to all of them.
const askTime = 10 * time.Second

// askAll asks the processes at once. The answers are in their order, nil where
// there is none; what failed is in the error.
func askAll[T any](ctx context.Context, peers []launch.AdminPeer, method, path string, body any) ([]*T, error) {
	type result struct {
		v   *T
		err error
	}
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	rs, err := pipeline.Each(ctx, peers, func(ctx context.Context, p launch.AdminPeer) (result, error) {
		if p.Err != nil {
			return result{err: p.Err}, nil
		}
		v := new(T)
		if err := p.Ask(ctx, method, path, body, v); err != nil {
			return result{err: err}, nil // the others are asked all the same
		}
		return result{v: v}, nil
	})
	if err != nil {
		return nil, err
	}
	out := make([]*T, len(peers))
	var errs []error
	for i, r := range rs {
		out[i] = r.v
		errs = append(errs, r.err)
	}
	return out, errors.Join(errs...)
}

// shardOf is the shard of a process for JSON, nil of a client.
func shardOf(p launch.AdminPeer) *int {
	if p.Shard < 0 {
		return nil
	}
	return &p.Shard
}
