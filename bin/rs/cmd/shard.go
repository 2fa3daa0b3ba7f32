package cmd

import (
	"context"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/railstore/railstore/ctrl"
	"github.com/railstore/railstore/cue/deploy"
	"github.com/railstore/railstore/pipeline"
	"github.com/railstore/railstore/stages/launch"
)

// shardRun is what a shard's process is to run.
type shardRun struct {
	folder     launch.Folder
	deployment *deploy.Deployment
	shard      int
}

// runShard brings one shard up, serves until ctx ends or the control plane stops
// it, drains and takes it down.
func runShard(ctx context.Context, r shardRun) (err error) {
	scope := pipeline.NewScope()
	stop := context.WithoutCancel(ctx)
	defer func() {
		tctx, cancel := context.WithTimeout(stop, r.deployment.Server.ShutdownTimeout.D())
		defer cancel()
		if cerr := scope.Close(tctx); err == nil {
			err = cerr
		}
	}()
	if r.shard == 0 {
		if err := r.startControl(scope); err != nil {
			return err
		}
	}
	client, err := pipeline.Run(ctx, scope, pipeline.Stage[shardRun, *ctrl.Client]{
		Name: "join", Layer: pipeline.LayerControl, Deadline: r.deployment.Pipeline.Publish.Deadline.D(), Run: joinShard,
	}, r)
	if err != nil {
		return err
	}
	if err := client.SetState(ctx, ctrl.StateServing, ""); err != nil {
		return err
	}
	wctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stopped := make(chan string, 1)
	var wg sync.WaitGroup
	wg.Go(func() {
		for ev, err := range client.Watch(wctx) {
			if err != nil {
				return
			}
			if s, ok := ev.(ctrl.Stop); ok {
				stopped <- s.Reason
				return
			}
		}
	})
	defer wg.Wait()
	defer cancel()
	reason := ""
	select {
	case <-ctx.Done():
		reason = context.Cause(ctx).Error()
	case reason = <-stopped:
	}
	pipeline.Emit(ctx, pipeline.Event{Event: "shard_draining", Reason: reason})
	return nil
}

// startControl runs the control plane, which is shard 0's.
func (r shardRun) startControl(scope *pipeline.Scope) error {
	at := pipeline.AtShard(r.shard)
	d := r.deployment
	store := ctrl.NewMemoryStore()
	if d.Control.Store == "bbolt" {
		path := d.Control.Path
		if !filepath.IsAbs(path) {
			path = filepath.Join(r.folder.Path, path)
		}
		var err error
		if store, err = ctrl.OpenBoltStore(path); err != nil {
			return pipeline.Wrap(err, pipeline.LayerStorage, "control", at)
		}
	}
	scope.DeferClose("control store", store.Close)
	var shards []int
	for i := range d.Shards {
		shards = append(shards, d.Shards[i].ID)
	}
	srv, err := ctrl.NewServer(ctrl.ServerConfig{
		Address: launch.ControlAddress(d), Identity: launch.Identity(d), Shards: shards, Store: store,
		Timing: ctrl.Timing{
			Heartbeat: d.Health.HeartbeatInterval.D(), Stale: d.Health.Stale.D(), Dead: d.Health.Dead.D(),
			ClientLease: d.Health.ClientLease.D(),
		},
		TLS: launch.TLS(d), Insecure: d.Control.Insecure, Local: ctrl.ShardID(r.shard),
	})
	if err != nil {
		return pipeline.Wrap(err, pipeline.LayerControl, "control", at)
	}
	scope.DeferClose("control plane", srv.Close)
	return nil
}

// joinShard connects to the control plane and becomes a member, until the scope
// is closed.
func joinShard(ctx context.Context, scope *pipeline.Scope, r shardRun) (*ctrl.Client, error) {
	d := r.deployment
	sh, _ := d.Shard(r.shard)
	client, err := ctrl.Dial(ctx, launch.ControlAddress(d), launch.Identity(d), ctrl.ClientOptions{TLS: launch.TLS(d), Timeout: d.Control.Timeout.D()})
	if err != nil {
		return nil, err
	}
	scope.DeferClose("control client", client.Close)
	err = client.Join(ctx, ctrl.NodeInfo{ID: ctrl.ShardID(r.shard), Role: ctrl.RoleShard, Host: sh.Host, PID: os.Getpid(), Started: time.Now()})
	if err != nil {
		return nil, err
	}
	scope.Defer("leave", func(ctx context.Context) error { return client.Leave(ctx, "shutting down") })
	return client, nil
}
