package cmd

import (
	"context"
	"net"
	"net/url"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/railstore/railstore/ctrl"
	"github.com/railstore/railstore/cue/deploy"
	"github.com/railstore/railstore/pipeline"
	"github.com/railstore/railstore/stages/lanes"
	"github.com/railstore/railstore/stages/launch"
	"github.com/railstore/railstore/stages/object"
	"github.com/railstore/railstore/stages/ps"
	"github.com/railstore/railstore/stages/rail"
	"github.com/railstore/railstore/verbs/lane"
)

// observed is what a process with rails shows of itself: its lanes, faults and
// metrics. Nothing of it costs anything until somebody asks.
type observed struct {
	directories func() []object.DirectoryStatus                  // of a shard; nil: of a client
	objects     func() (object.ServiceStats, object.SlabStats)   // of a shard; nil: of a client
	more        map[string]func(url.Values, []byte) (any, error) // answers of the admin socket
	deployment  *deploy.Deployment
	process     launch.Process
	set         *rail.Set
	control     *ctrl.Client
	counters    *lane.Counters
	lanes       func() []lanes.LaneStatus
	devices     *devices
	events      *eventCounts
	tables      func() ps.ServiceStats // of a shard; nil: of a client
}

// observe opens the process's admin socket, and the address for scraping that the
// recipe gives a shard. The scope closes them. The error is about the address.
func (o *observed) observe(ctx context.Context, scope *pipeline.Scope, f launch.Folder) error {
	o.process.PID, o.process.Started, o.process.Version = os.Getpid(), time.Now().UTC(), buildInfo().Version
	metrics := o.metricsHandler()
	s, err := f.OpenAdmin(ctx, launch.Admin{
		Process: o.process, Lanes: func() any { return orEmpty(o.lanes()) }, Profile: func() any { return o.profile() },
		Faults: o.devices.faults, AddFault: o.devices.addFault, ClearFaults: o.devices.clearFaults,
		Metrics: metrics,
		More:    o.more,
	})
	if err != nil {
		// A process that cannot be looked at, as on a file system without sockets,
		// works all the same.
		pipeline.Emit(ctx, pipeline.Event{Event: "admin_failed", Reason: err.Error()})
	} else {
		scope.DeferClose("admin socket", s.Close)
	}
	o.startProfile(ctx, scope, f)
	sh, ok := o.deployment.Shard(o.process.Shard)
	if !ok || sh.Metrics.Port == 0 {
		return nil
	}
	s, err = launch.ListenMetrics(ctx, net.JoinHostPort(sh.Metrics.Host, strconv.Itoa(sh.Metrics.Port)), metrics)
	if err != nil {
		return pipeline.Wrap(err, pipeline.LayerProcess, "metrics", pipeline.AtShard(sh.ID))
	}
	scope.DeferClose("metrics", s.Close)
	pipeline.Emit(ctx, pipeline.Event{Event: "metrics_listening", Fields: map[string]any{"address": s.Addr()}})
	return nil
}

// orEmpty keeps null out of JSON.
func orEmpty[T any](l []T) []T {
	if l == nil {
		return []T{}
	}
	return l
}

// eventCounts counts the events of a process by name, before any is suppressed.
type eventCounts struct {
	mu sync.Mutex
	by map[string]uint64
}

// eventNames bounds the names that are counted; they are words of the program, so
// there are far fewer.
const eventNames = 512

func (c *eventCounts) take(e pipeline.Event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.by == nil {
		c.by = map[string]uint64{}
	}
	if _, ok := c.by[e.Event]; !ok && len(c.by) >= eventNames {
		return
	}
	c.by[e.Event]++
}

func (c *eventCounts) all() map[string]uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := make(map[string]uint64, len(c.by))
	for k, n := range c.by {
		out[k] = n
	}
	return out
}
