package cmd

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/railstore/railstore/ctrl"
	"github.com/railstore/railstore/cue/deploy"
	"github.com/railstore/railstore/pipeline"
	"github.com/railstore/railstore/stages/lanes"
	"github.com/railstore/railstore/stages/launch"
	"github.com/railstore/railstore/stages/object"
	"github.com/railstore/railstore/stages/ps"
	"github.com/railstore/railstore/stages/rail"
	"github.com/railstore/railstore/verbs"
)

// shardRun is what a shard's process is to run.
type shardRun struct {
	folder     launch.Folder
	deployment *deploy.Deployment
	shard      int
	events     *eventCounts
}

// runShard brings one shard up, serves until ctx ends or the control plane stops
// it, drains and takes it down.
func runShard(ctx context.Context, r shardRun) (err error) {
	d, at := r.deployment, pipeline.AtShard(r.shard)
	scope := pipeline.NewScope()
	defer func() {
		tctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), d.Server.ShutdownTimeout.D())
		defer cancel()
		if cerr := scope.Close(tctx); err == nil {
			err = cerr
		}
	}()
	sh, ok := d.Shard(r.shard)
	if !ok {
		return pipeline.Errorf(pipeline.LayerConfig, "serve", at, "the deployment has no such shard")
	}
	if r.shard == 0 {
		if err := r.startControl(scope); err != nil {
			return err
		}
	}
	cfg, err := lanes.ConfigOf(ctx, d)
	if err != nil {
		return err
	}
	devs := new(devices)
	set, err := rail.Open(ctx, scope, rail.ResolveInput{Deployment: d, Host: sh.Host, Rails: sh.Rails, Drivers: devs.open}, lanes.ServerDemand(d, cfg))
	if err != nil {
		return pipeline.Wrap(err, pipeline.LayerResource, "serve", at)
	}
	router := new(lanes.Router)
	store, objects, err := r.startObjects(ctx, scope, sh, set, router)
	if err != nil {
		return pipeline.Wrap(err, pipeline.LayerStorage, "serve", at)
	}
	tables, err := r.startTables(scope, sh, set, router)
	if err != nil {
		return err
	}
	sort, pools := ps.Sort(d.Server.GetWorkers)
	join := pipeline.Stage[*rail.Set, *ctrl.Client]{Name: "join", Layer: pipeline.LayerControl, Deadline: d.Pipeline.Publish.Deadline.D(), Run: r.join}
	client, err := pipeline.Run(ctx, scope, join, set)
	if err != nil {
		return err
	}
	server := lanes.Serve(ctx, scope, lanes.ServerInput{Set: set, Control: client, Shard: r.shard, Config: cfg, Handler: router, Workers: d.Server.StorageWorkers,
		Sort: sort, Pools: pools, Gone: tables.ClientGone})
	if err := client.SetReport(server.Report); err != nil {
		return err
	}
	o := observed{deployment: d, set: set, control: client, counters: cfg.Counters, lanes: server.Status, devices: devs, events: r.events, tables: tables.Stats,
		process: launch.Process{ID: string(ctrl.ShardID(r.shard)), Shard: r.shard, Host: sh.Host, Command: "serve"}}
	scrubber := object.NewScrubber(ctx, store, client)
	scope.DeferClose("scrubber", scrubber.Close)
	o.more, o.directories, o.objects = objectCalls(store, scrubber), store.Directories, objects
	if err := o.observe(ctx, scope, r.folder); err != nil {
		return err
	}
	scope.DeferClose("janitor", object.StartJanitor(ctx, object.JanitorConfig{Store: store, Catalog: client}).Close)
	if err := client.SetState(ctx, ctrl.StateServing, ""); err != nil {
		return err
	}
	pipeline.Emit(ctx, pipeline.Event{Event: "shard_serving", Fields: map[string]any{"rails": len(set.Rails), "pid": os.Getpid()}})
	reason := ""
	select {
	case <-ctx.Done():
		reason = context.Cause(ctx).Error()
	case <-server.Stopped():
		reason = "stopped through the control plane"
	case <-server.Done():
		return pipeline.Wrap(server.Err(), pipeline.LayerControl, "serve", at)
	}
	pipeline.Emit(ctx, pipeline.Event{Event: "shard_draining", Reason: reason})
	dctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), d.Control.Timeout.D())
	defer cancel()
	// Clients hear of it where they can; that they cannot does not keep the shard.
	_ = client.SetState(dctx, ctrl.StateDraining, reason)
	wctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), d.Server.ShutdownTimeout.D()/2)
	defer cancel()
	if err := server.Drain(wctx); err != nil {
		pipeline.Emit(ctx, pipeline.Event{Event: "drain_incomplete", Reason: err.Error()})
	}
	return nil
}

// startObjects opens the shard's directories and serves stripes from them. The function
// gives the counts of that.
func (r shardRun) startObjects(ctx context.Context, scope *pipeline.Scope, sh *deploy.Shard, set *rail.Set, router *lanes.Router) (
	*object.Store, func() (object.ServiceStats, object.SlabStats), error) {
	cfg := object.StoreConfig{Deployment: r.deployment.Name, Shard: r.shard, NoSync: !r.deployment.Objects.Sync, DirectIO: r.deployment.Objects.DirectIO,
		Known: r.absolute(fmt.Sprintf("directories-%d.json", r.shard)), Report: func(st object.DirectoryStatus) { emitDirectory(ctx, st) }}
	for _, dir := range sh.Dirs {
		cfg.Dirs = append(cfg.Dirs, r.absolute(dir))
	}
	store, err := object.OpenStore(cfg)
	if err != nil {
		return nil, nil, err
	}
	scope.DeferClose("object store", store.Close)
	region, err := verbs.MapRegion(int(sh.Slab))
	if err != nil {
		return nil, nil, err
	}
	scope.DeferClose("unmap slab", region.Close)
	// Stripes are read into and written from the slab by this end alone.
	reg, err := set.Register(region, verbs.LocalWrite, nil, rail.Pieces{Align: object.Align})
	if err != nil {
		return nil, nil, err
	}
	scope.DeferClose("deregister slab", reg.Close)
	slab := object.NewSlab(region.Bytes())
	scope.DeferClose("slab", func() error { slab.Close(); return nil })
	service := object.NewService(object.ServiceConfig{Store: store, Slab: slab, Memory: reg})
	scope.DeferClose("object service", func() error { service.Close(); return nil })
	router.Handle(uint8(object.OpStoreStripe>>8), service)
	return store, func() (object.ServiceStats, object.SlabStats) { return service.Stats(), slab.Stats() }, nil
}

// startTables opens the shard's table store and serves it.
func (r shardRun) startTables(scope *pipeline.Scope, sh *deploy.Shard, set *rail.Set, router *lanes.Router) (*ps.Service, error) {
	service, err := ps.Serve(scope, ps.ServeConfig{Deployment: r.deployment, Shard: sh, Rails: set, Workers: r.deployment.Server.StorageWorkers,
		Snapshots: r.absolute(filepath.Join("tables", fmt.Sprintf("shard-%d", r.shard))), Measure: r.deployment.Profile.Enabled})
	if err != nil {
		return nil, err
	}
	router.Handle(ps.Family, service)
	return service, nil
}

// emitDirectory tells that a directory went out of use or came back.
func emitDirectory(ctx context.Context, st object.DirectoryStatus) {
	event := "directory_in_use"
	if st.State == object.DirOut {
		event = "directory_out"
	}
	pipeline.Emit(ctx, pipeline.Event{Event: event, Shard: &st.Shard, Reason: st.Reason, Fields: map[string]any{"directory": st.Directory, "path": st.Path}})
}

func (r shardRun) absolute(path string) string {
	if filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(r.folder.Path, path)
}

// startControl runs the control plane, which is shard 0's.
func (r shardRun) startControl(scope *pipeline.Scope) error {
	at := pipeline.AtShard(r.shard)
	d := r.deployment
	var store ctrl.Store
	switch d.Control.Store {
	case "memory":
		store = ctrl.NewMemoryStore()
	case "bbolt":
		var err error
		if store, err = ctrl.OpenBoltStore(r.absolute(d.Control.Path)); err != nil {
			return pipeline.Wrap(err, pipeline.LayerStorage, "control", at)
		}
	default:
		// Another store in its place would forget what the recipe wants kept.
		return pipeline.Errorf(pipeline.LayerConfig, "control", at, "control.store %q is not in this build", d.Control.Store).
			WithHint("use control: store: \"bbolt\", a file of shard 0, or \"memory\"")
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

// join connects to the control plane and becomes a member, until the scope is
// closed.
func (r shardRun) join(ctx context.Context, scope *pipeline.Scope, set *rail.Set) (*ctrl.Client, error) {
	d := r.deployment
	client, err := ctrl.Dial(ctx, launch.ControlAddress(d), launch.Identity(d),
		ctrl.ClientOptions{TLS: launch.TLS(d), Timeout: d.Control.Timeout.D(), Sink: func(e pipeline.Event) { pipeline.Emit(ctx, e) }})
	if err != nil {
		return nil, err
	}
	scope.DeferClose("control client", client.Close)
	err = client.Join(ctx, ctrl.NodeInfo{ID: ctrl.ShardID(r.shard), Role: ctrl.RoleShard, Host: set.Host, PID: os.Getpid(), Started: time.Now(), Rails: set.Info()})
	if err != nil {
		return nil, err
	}
	scope.Defer("leave", func(ctx context.Context) error { return client.Leave(ctx, "shutting down") })
	return client, nil
}
