package cmd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/railstore/railstore/pipeline"
	"github.com/railstore/railstore/stages/launch"
)

// Components of profiles.
const (
	profileClient    = "rdma_rc_client_profile"
	profileServer    = "rdma_rc_server_profile"
	profileTransport = "rdma_rc_transport_profile"
)

// profileFields are the fields of each component, those that are looked at first in
// front. Names are those of lane counters and of the table service, but for the right
// sides.
var profileFields = map[string][]string{
	profileClient: {"submit_request_ns", "wait_status_ns", "copy_response_ns", "revoke_resource_ns", "pending_rpc", "pending_rpc_peak",
		"acquire_qp_failures", "submit_request_count", "acquire_queued", "wait_sleeps", "canceled", "quarantined_slots", "late_completions",
		"timeouts", "bad_responses", "lanes_dirty", "lanes_recovered", "touches", "harvests", "probes", "poll_loop_ns", "poller_sleeps", "completions"},
	profileServer: {"poll_loop_ns", "scan_rounds", "ready_slots", "empty_scan_rounds", "handle_get_ns", "get_batch_get_ns", "get_zero_fill_ns",
		"get_row_copy_ns", "complete_response_ns", "handle_ns", "handle_put_update_ns", "get_gather_ns", "complete_response_count", "handled_get",
		"handled_put", "handled_update", "handled_other", "keys", "missing_rows", "direct_sg_hits", "direct_sg_fallbacks", "bad_requests", "failed",
		"repeated_tokens", "invalid_descriptor", "wrong_shard", "stale_words", "replays", "duplicate_skips", "bad_immediates", "settled",
		"handler_exceptions", "get_payload_dropped_stale", "poller_sleeps", "completions"},
	profileTransport: {"submit_request_ns", "drain_pending_submit_ns", "complete_response_ns", "drain_pending_response_ns",
		"payload_write_count=submit_request_count", "commit_write_count=submit_request_count", "response_write_count=complete_response_count",
		"status_write_count=complete_response_count", "drain_pending_submit_count", "drain_pending_response_count", "response_batches",
		"bulk_read_bytes", "bulk_write_bytes", "cqe_peer_unreachable", "cqe_flushed", "cqe_peer_rejected", "cqe_local_error", "cqe_other"},
}

// profileGauges are what they are; the others are sums that only grow.
var profileGauges = []string{"pending_rpc", "pending_rpc_peak"}

// profileRecord is a component of a process over a time. In JSON its fields stand beside
// the others.
type profileRecord struct {
	Time      time.Time
	Component string
	Process   string
	Shard     int // -1: a client
	PID       int
	Measured  bool // profile.enabled: times are taken
	Interval  float64
	Fields    map[string]int64
}

func (r profileRecord) MarshalJSON() ([]byte, error) {
	m := map[string]any{"ts": r.Time, "component": r.Component, "process": r.Process, "pid": r.PID, "measured": r.Measured, "interval_s": r.Interval}
	if r.Shard >= 0 {
		m["shard"] = r.Shard
	}
	for k, v := range r.Fields {
		m[k] = v
	}
	return json.Marshal(m)
}

// counted is everything that the process has counted, by the names of profiles.
func (o *observed) counted() map[string]int64 {
	out := map[string]int64{}
	for k, v := range o.counters.Fields() {
		out[k] = int64(v)
	}
	if o.tables == nil {
		return out
	}
	s := o.tables()
	for k, v := range map[string]uint64{
		"handle_get_ns": s.HandleGetNS, "get_batch_get_ns": s.BatchGetNS, "get_zero_fill_ns": s.ZeroFillNS, "get_row_copy_ns": s.RowCopyNS,
		"get_gather_ns": s.GatherNS, "handle_put_update_ns": s.HandleSetNS, "handled_get": s.Gets, "handled_put": s.Puts, "handled_update": s.Updates,
		"handled_other": s.Others, "keys": s.Keys, "missing_rows": s.MissingRows, "direct_sg_hits": s.DirectSG, "direct_sg_fallbacks": s.Fallbacks,
		"bad_requests": s.Bad, "failed": s.Failed, "repeated_tokens": s.Repeated,
	} {
		out[k] = int64(v)
	}
	return out
}

// records makes the components of what was counted since before, which may be nil.
func (o *observed) records(now time.Time, interval time.Duration, counted, before map[string]int64) []profileRecord {
	first := profileClient
	if o.process.Shard >= 0 {
		first = profileServer
	}
	var out []profileRecord
	for _, c := range []string{first, profileTransport} {
		r := profileRecord{Time: now.UTC(), Component: c, Process: o.process.ID, Shard: o.process.Shard, PID: o.process.PID,
			Measured: o.deployment.Profile.Enabled, Interval: interval.Seconds(), Fields: map[string]int64{}}
		for _, f := range profileFields[c] {
			name, from, ok := strings.Cut(f, "=")
			if !ok {
				from = name
			}
			if v := counted[from]; slices.Contains(profileGauges, from) {
				r.Fields[name] = v
			} else {
				r.Fields[name] = v - before[from]
			}
		}
		out = append(out, r)
	}
	return out
}

// profile is what the process has counted since it began.
func (o *observed) profile() []profileRecord {
	now := time.Now()
	return o.records(now, now.Sub(o.process.Started), o.counted(), nil)
}

// startProfile writes the components at every interval, and at the end what is left. The
// scope ends it.
func (o *observed) startProfile(ctx context.Context, scope *pipeline.Scope, f launch.Folder) {
	p := &o.deployment.Profile
	if !p.Enabled || p.Interval.D() <= 0 {
		return
	}
	log, err := f.OpenProfile()
	if err != nil {
		pipeline.Emit(ctx, pipeline.Event{Event: "profile_failed", Reason: err.Error()})
		return
	}
	last, before := o.process.Started, map[string]int64(nil)
	write := func() {
		now, counted := time.Now(), o.counted()
		for _, r := range o.records(now, now.Sub(last), counted, before) {
			log.Write(r)
		}
		last, before = now, counted
	}
	end := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		t := time.NewTicker(p.Interval.D())
		defer t.Stop()
		for {
			select {
			case <-t.C:
				write()
			case <-end:
				write()
				return
			}
		}
	})
	scope.DeferClose("profile", func() error {
		close(end)
		wg.Wait()
		return log.Close()
	})
}

func (a *app) profileCommand() *cli.Command {
	return &cli.Command{
		Name:      "profile",
		Usage:     "where the time of requests goes",
		ArgsUsage: "[NAME | RECIPE]",
		Description: `With profile: enabled: true in the recipe every process measures, and writes a record
per component and interval; docs/operations.md tells what the fields mean. Without
flags the processes that run are asked for what they have counted since they began.
With --tail or -f the records that were written are shown, also of processes that
have ended. Times are sums in nanoseconds, zero where the recipe does not enable them.

Examples:
   rs profile
   rs profile --component server --format json
   rs profile --tail 4`,
		Flags: askedFlags(
			&cli.StringFlag{Name: "component", Usage: "only client, server or transport, a `COMPONENT`"},
			&cli.IntFlag{Name: "tail", HideDefault: true, Usage: "the last `N` records that were written; 0: all"},
			&cli.BoolFlag{Name: flagFollow, Aliases: []string{"f"}, Usage: "go on showing records as they are written"},
		),
		Action: a.profile,
	}
}

func (a *app) profile(ctx context.Context, c *cli.Command) error {
	args, err := arguments(c, "[NAME | RECIPE]")
	if err != nil {
		return err
	}
	component := c.String("component")
	if component != "" && !slices.Contains([]string{"client", "server", "transport"}, component) {
		return usagef("--component %s: want client, server or transport", component)
	}
	if n := c.Int("tail"); n < 0 {
		return usagef("--tail %d: want a number from 0 on", n)
	}
	f, err := a.target(c, firstOf(args))
	if err != nil {
		return err
	}
	wanted := func(r map[string]any) bool {
		return component == "" || r["component"] == "rdma_rc_"+component+"_profile"
	}
	if c.IsSet("tail") || c.Bool(flagFollow) {
		return a.profileLog(ctx, c, f, wanted)
	}
	peers, err := a.asked(ctx, c, f)
	if err != nil {
		return err
	}
	all, err := askAll[[]map[string]any](ctx, peers, http.MethodGet, "/v1/profile", nil)
	for _, records := range all {
		if records == nil {
			continue
		}
		for _, r := range *records {
			if !wanted(r) {
				continue
			}
			if perr := a.printProfile(r, nil); perr != nil {
				return perr
			}
		}
	}
	return err
}

// profileLog shows records of the file.
func (a *app) profileLog(ctx context.Context, c *cli.Command, f launch.Folder, wanted func(map[string]any) bool) error {
	keep := func(r map[string]any) bool {
		if !wanted(r) || c.IsSet(flagShard) && r["shard"] != float64(c.Int(flagShard)) {
			return false
		}
		id := c.String(flagClient)
		return id == "" || r["process"] == id || r["process"] == "client/"+id || fmt.Sprint(r["pid"]) == id
	}
	if _, err := os.Stat(f.ProfilePath()); errors.Is(err, fs.ErrNotExist) {
		a.progress("%s: no profile was written; the recipe enables it with profile: enabled: true", f.Name)
		return nil
	}
	// The last ones are found by counting; what is written meanwhile comes after them.
	from, skip, n := launch.Position{}, 0, c.Int("tail")
	if c.IsSet("tail") && n > 0 {
		if err := f.Profiles(ctx, from, false, func(r map[string]any, _ []byte) error {
			if keep(r) {
				skip++
			}
			return nil
		}); err != nil {
			return err
		}
		skip = max(0, skip-n)
	} else if !c.IsSet("tail") {
		from = launch.Here(f.ProfilePath())
	}
	return f.Profiles(ctx, from, c.Bool(flagFollow), func(r map[string]any, raw []byte) error {
		if !keep(r) {
			return nil
		}
		if skip > 0 {
			skip--
			return nil
		}
		return a.printProfile(r, raw)
	})
}

// printProfile shows a record as JSON, as it is if raw is given, or as key=value.
func (a *app) printProfile(r map[string]any, raw []byte) error {
	if a.json {
		if raw != nil {
			a.printf("%s\n", strings.TrimSuffix(string(raw), "\n"))
			return nil
		}
		return a.printJSON(r)
	}
	text := func(v any) string {
		if f, ok := v.(float64); ok {
			return strconv.FormatFloat(f, 'f', -1, 64)
		}
		return fmt.Sprint(v)
	}
	var b strings.Builder
	name, _ := r["component"].(string)
	b.WriteString("component=" + name)
	head := []string{"ts", "process", "pid", "measured", "interval_s"}
	for _, k := range head {
		b.WriteString(" " + k + "=" + text(r[k]))
	}
	shown := map[string]bool{"component": true, "shard": true}
	for _, k := range head {
		shown[k] = true
	}
	for _, f := range profileFields[name] {
		k, _, _ := strings.Cut(f, "=")
		if v, ok := r[k]; ok {
			b.WriteString(" " + k + "=" + text(v))
			shown[k] = true
		}
	}
	for _, k := range slices.Sorted(maps.Keys(r)) { // of another version
		if !shown[k] {
			b.WriteString(" " + k + "=" + text(r[k]))
		}
	}
	a.printf("%s\n", b.String())
	return nil
}
