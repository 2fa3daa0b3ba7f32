package cmd

import (
	"context"
	"errors"

	"github.com/urfave/cli/v3"

	"github.com/railstore/railstore/pipeline"
)

func (a *app) serveCommand() *cli.Command {
	return &cli.Command{
		Name:   "serve",
		Hidden: true,
		Usage:  "run one shard in the foreground (rs up starts it)",
		Description: `Serves one shard of a deployment that rs up has resolved into the state folder,
until SIGTERM or until the control plane stops it.

Examples:
   rs serve --deployment two-rail --shard 0`,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: flagDeployment, Usage: "`NAME` of the deployment", Required: true},
			&cli.IntFlag{Name: "shard", Usage: "`ID` of the shard", Value: -1, Required: true},
			&cli.IntFlag{Name: "lock-fd", Usage: "descriptor that holds the shard's lock", Value: -1, Hidden: true},
		},
		Action: a.serve,
	}
}

func (a *app) serve(ctx context.Context, c *cli.Command) (err error) {
	if _, err := arguments(c); err != nil {
		return err
	}
	s, err := a.state(c)
	if err != nil {
		return err
	}
	f, err := s.Folder(c.String(flagDeployment))
	if err != nil {
		return err
	}
	shard := c.Int("shard")
	if shard < 0 {
		return usagef("--shard %d: want the id of a shard", shard)
	}
	claim, err := f.Claim(shard, c.Int("lock-fd"), buildInfo().Version)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, claim.WriteExit(exitCode(err), err))
		}
		err = errors.Join(err, claim.Close())
	}()
	r, err := f.Resolved()
	if err != nil {
		return err
	}
	if _, ok := r.Deployment.Shard(shard); !ok {
		return usagef("--shard %d: %s has no such shard", shard, f.Name)
	}
	w := &lineWriter{w: a.err}
	events, err := f.OpenEvents(shard, func(e pipeline.Event) {
		e.Shard = nil // the log is this shard's
		_ = w.line(shard, "", []byte(a.eventLine(e)))
	})
	if err != nil {
		return err
	}
	defer func() { _ = events.Close() }()
	counts := new(eventCounts)
	sink := func(e pipeline.Event) {
		counts.take(e)
		events.Emit(e)
	}
	err = runShard(pipeline.WithSink(ctx, sink), shardRun{folder: f, deployment: r.Deployment, shard: shard, events: counts})
	if err == nil || errors.Is(err, errInterrupted) && errors.Is(context.Cause(ctx), errInterrupted) {
		// Asked to end, and ended.
		reason := "stopped through the control plane"
		if cause := context.Cause(ctx); cause != nil {
			reason = cause.Error()
		}
		sink(pipeline.Event{Event: "shard_ended", Reason: reason})
		return claim.WriteEnd(reason)
	}
	return pipeline.Wrap(err, pipeline.LayerInternal, "serve", pipeline.AtShard(shard))
}
