package cmd

import (
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/railstore/railstore/stages/lanes"
	"github.com/railstore/railstore/stages/object"
	"github.com/railstore/railstore/stages/rail"
	"github.com/railstore/railstore/verbs/lane"
	"github.com/railstore/railstore/verbs/soft"
)

// metricsHandler serves the process's metrics from a registry of their own.
func (o *observed) metricsHandler() http.Handler {
	reg := prometheus.NewRegistry()
	reg.MustRegister(collector{o}, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return promhttp.HandlerFor(reg, promhttp.HandlerOpts{MaxRequestsInFlight: 4})
}

// collector reads everything at the moment of a scrape. It describes nothing
// beforehand: which metrics there are depends on the rails and their providers.
type collector struct{ o *observed }

func (collector) Describe(chan<- *prometheus.Desc) {}

func (c collector) Collect(ch chan<- prometheus.Metric) {
	o, m := c.o, sheet{ch}
	m.gauge("process_info", 1, "Who this is; always 1.", "deployment", o.deployment.Name, "digest", o.deployment.Digest(), "process", o.process.ID,
		"host", o.process.Host, "command", o.process.Command, "version", o.process.Version)
	m.gauge("process_start_time_seconds", float64(o.process.Started.UnixNano())/1e9, "When the process began, in seconds since 1970.")
	m.lanes(o.lanes(), o.set.Rails)
	m.events(o.events.all())
	m.counters(o.counters.Fields())
	for _, i := range o.set.Info() {
		m.gauge("rail_info", 1, "What the rail is; always 1. provider is the one in use.", "rail", i.Name, "fabric", i.Fabric, "device", i.Device,
			"provider", i.Provider, "gid", i.GID.String(), "gid_type", i.GIDType, "mtu", strconv.Itoa(i.MTU))
		m.gauge("rail_up", oneIf(i.State == string(rail.Active)), "Whether the rail carries traffic.", "rail", i.Name)
		m.gauge("rail_weight", float64(i.Weight), "Share of the bytes, against the other rails' weights.", "rail", i.Name)
	}
	for _, r := range o.set.Rails {
		m.rail(r, o.devices)
	}
	m.control(o)
	if o.directories != nil {
		m.directories(o.directories())
	}
	if o.objects != nil {
		m.objects(o.objects())
	}
}

func (m sheet) directories(all []object.DirectoryStatus) {
	for i := range all {
		d := &all[i]
		labels := []string{"directory", strconv.Itoa(d.Directory), "path", d.Path}
		m.gauge("directory_in_use", oneIf(d.State == object.DirInUse), "Whether the directory takes stripes.", labels...)
		if d.Total > 0 {
			m.gauge("directory_free_bytes", float64(d.Free), "Free on the directory's file system.", labels...)
			m.gauge("directory_size_bytes", float64(d.Total), "Size of the directory's file system.", labels...)
		}
	}
}

func (m sheet) objects(st object.ServiceStats, slab object.SlabStats) {
	const fetches = "Stripes that were sent, by where they were: in memory since an earlier request, or in their file."
	m.count("stripe_fetches_total", float64(st.MemoryHits), fetches, "source", "memory")
	m.count("stripe_fetches_total", float64(st.Fetches-st.MemoryHits), fetches, "source", "file")
	m.count("stripe_stores_total", float64(st.Stores), "Stripes that were stored.")
	m.count("stripe_deletes_total", float64(st.Deletes), "Stripes that were removed.")
	m.count("stripe_failures_total", float64(st.Failures), "Requests for stripes that failed.")
	const bytes = "Registered memory for stripes: in use, kept for stripes that are asked for again, and free. What is kept is given to whoever needs it."
	m.gauge("slab_bytes", float64(slab.Used-min(slab.Used, st.MemoryBytes)), bytes, "state", "used")
	m.gauge("slab_bytes", float64(st.MemoryBytes), bytes, "state", "kept")
	m.gauge("slab_bytes", float64(slab.Capacity-min(slab.Capacity, slab.Used)), bytes, "state", "free")
}

func oneIf(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// sheet writes metrics. Labels are names and values in turn.
type sheet struct{ ch chan<- prometheus.Metric }

func (m sheet) put(t prometheus.ValueType, name string, v float64, help string, labels []string) {
	var names, values []string
	for i := 0; i+1 < len(labels); i += 2 {
		names, values = append(names, labels[i]), append(values, strings.ToValidUTF8(labels[i+1], "?"))
	}
	metric, err := prometheus.NewConstMetric(prometheus.NewDesc("railstore_"+name, help, names, nil), t, v, values...)
	if err != nil {
		metric = prometheus.NewInvalidMetric(prometheus.NewDesc("railstore_"+name, help, nil, nil), err)
	}
	m.ch <- metric
}

func (m sheet) gauge(name string, v float64, help string, labels ...string) {
	m.put(prometheus.GaugeValue, name, v, help, labels)
}

func (m sheet) count(name string, v float64, help string, labels ...string) {
	m.put(prometheus.CounterValue, name, v, help, labels)
}

// lanes shows every state of every rail, so that a state which is left goes to 0.
func (m sheet) lanes(all []lanes.LaneStatus, rails []*rail.Rail) {
	n := map[[2]string]int{}
	for _, r := range rails {
		for _, st := range []lane.State{lane.Active, lane.Dirty, lane.Rebuilding, lane.Dead} {
			n[[2]string{r.Name(), st.String()}] = 0
		}
	}
	for _, l := range all {
		n[[2]string{l.Rail, l.State}]++
	}
	for k, v := range n {
		m.gauge("lanes", float64(v), "Lanes by rail and state.", "rail", k[0], "state", k[1])
	}
}

// What events say of lanes.
var (
	transitions = map[string]string{"dirty": lane.EventLaneDirty, "active": lane.EventLaneRecovered, "dead": lanes.EventRebuildExhausted}
	outcomes    = map[string]string{"recovered": lane.EventLaneRecovered, "timeout": lanes.EventRebuildTimeout, "failed": lanes.EventRebuildFailed}
)

func (m sheet) events(by map[string]uint64) {
	for name, n := range by {
		m.count("events_total", float64(n), "Events by name, those included that were suppressed in the log.", "event", name)
	}
	for to, event := range transitions {
		m.count("lane_transitions_total", float64(by[event]), "Lanes that came into a state.", "to", to)
	}
	attempts := uint64(0)
	for outcome, event := range outcomes {
		attempts += by[event]
		m.count("lane_rebuilds_total", float64(by[event]), "Attempts to rebuild a lane that have ended, by outcome.", "outcome", outcome)
	}
	m.count("lane_rebuild_attempts_total", float64(attempts), "Attempts to rebuild a lane that have ended.")
	m.count("lane_rebuilds_skipped_total", float64(by[lanes.EventRebuildSkipped]), "Lanes that were not rebuilt although they failed, by rule.")
}

// laneNames are the lane counters whose profile name is not what is looked for in
// metrics.
var laneNames = map[string]struct{ name, help string }{
	"submit_request_count":         {"lane_calls_total", "Requests that were sent over lanes."},
	"ready_slots":                  {"lane_requests_served_total", "Requests that were taken from lanes."},
	"complete_response_count":      {"lane_responses_total", "Answers that were sent over lanes."},
	"timeouts":                     {"lane_timeouts_total", "Requests without an answer in time."},
	"late_completions":             {"lane_late_completions_total", "Answers that came after their caller had given up."},
	"get_payload_dropped_stale":    {"lane_stale_drops_total", "Answers that were dropped because their lane was gone."},
	"lanes_dirty":                  {"lane_failures_total", "Lanes that failed."},
	"lanes_recovered":              {"lane_recoveries_total", "Lanes that were given new QPs."},
	"drain_pending_submit_count":   {"lane_submit_waits_total", "Requests that waited for room in the send queue."},
	"drain_pending_response_count": {"lane_response_waits_total", "Answers that waited for room in the send queue."},
}

// counters shows every counter of lanes in base units: what profiles give in
// nanoseconds is seconds here.
func (m sheet) counters(fields map[string]float64) {
	for _, f := range slices.Sorted(maps.Keys(fields)) {
		v := fields[f]
		if x, ok := laneNames[f]; ok {
			m.count(x.name, v, x.help)
			continue
		}
		help := "The lane counter " + f + " of profiles."
		if class, ok := strings.CutPrefix(f, "cqe_"); ok {
			m.count("lane_bad_completions_total", v, "Bad completions of lanes, by class.", "class", class)
			continue
		}
		switch f {
		case "pending_rpc":
			m.gauge("lane_calls_pending", v, "Requests in flight.")
			continue
		case "pending_rpc_peak":
			m.gauge("lane_calls_pending_peak", v, "Most requests that were in flight at once.")
			continue
		}
		name := "lane_" + strings.TrimPrefix(strings.TrimSuffix(f, "_count"), "lanes_")
		if base, ok := strings.CutSuffix(name, "_ns"); ok {
			name, v = base+"_seconds", v/1e9
		}
		m.count(name+"_total", v, help)
	}
}

// rail shows what the QPs of a rail have counted, where the provider counts at all,
// and what its soft device has dropped.
func (m sheet) rail(r *rail.Rail, d *devices) {
	name := r.Name()
	drv, isSoft := d.soft(name)
	if s, ok := r.Ctx.QPStats(); ok || isSoft {
		m.count("rail_operations_total", float64(s.Requests), "Send requests that were posted on the rail.", "rail", name)
		both := func(metric, help string, sent, received uint64) {
			m.count(metric, float64(sent), help, "rail", name, "direction", "sent")
			m.count(metric, float64(received), help, "rail", name, "direction", "received")
		}
		both("rail_bytes_total", "Payload bytes of the rail.", s.BytesSent, s.BytesReceived)
		both("rail_packets_total", "Packets of the rail.", s.PacketsSent, s.PacketsReceived)
		both("rail_naks_total", "Negative acknowledgements of the rail.", s.NAKsSent, s.NAKsReceived)
		m.count("rail_retransmits_total", float64(s.Retransmits), "Packets that were sent again.", "rail", name)
		m.count("rail_ack_timeouts_total", float64(s.Timeouts), "Times that no acknowledgement came in time.", "rail", name)
		m.count("rail_rnr_naks_total", float64(s.RNRNAKs), "Times that a receiver had no buffer.", "rail", name)
		m.count("rail_duplicates_total", float64(s.Duplicates), "Packets that came more than once.", "rail", name)
	}
	if !isSoft {
		return
	}
	dropped := map[string]uint64{}
	for _, c := range drv.Counters() {
		dropped["malformed"] += c.Malformed
		dropped["unknown_qp"] += c.UnknownQP
		dropped["wrong_source"] += c.WrongSource
		dropped["bad_icrc"] += c.BadICRC
		dropped["send_refused"] += c.SendDrops
		dropped["receive_buffer"] += c.RecvDrops
	}
	for reason, n := range dropped {
		m.count("rail_dropped_packets_total", float64(n), "Packets that a soft device dropped, by reason.", "rail", name, "reason", reason)
	}
	states := map[string]int{soft.FaultWaiting: 0, soft.FaultActive: 0, soft.FaultOver: 0}
	for _, f := range drv.Faults() {
		states[f.State]++
	}
	for state, n := range states {
		m.gauge("rail_faults", float64(n), "Faults of a soft rail, by state.", "rail", name, "state", state)
	}
}

func (m sheet) control(o *observed) {
	n := o.control.Counters()
	const beats = "Heartbeats to the control plane, by result."
	m.count("control_heartbeats_total", float64(n.Heartbeats.Load()), beats, "result", "ok")
	m.count("control_heartbeats_total", float64(n.HeartbeatsFailed.Load()), beats, "result", "failed")
	m.count("control_rejoins_total", float64(n.Rejoins.Load()), "Times that the process became a member again.")
	if t := n.LastHeartbeat(); !t.IsZero() {
		m.gauge("control_last_heartbeat_timestamp_seconds", float64(t.UnixNano())/1e9, "When the last heartbeat was answered, in seconds since 1970.")
	}
	for verdict, v := range map[string]uint64{"serving": n.VerdictsServing.Load(), "suspect": n.VerdictsSuspect.Load(),
		"dead": n.VerdictsDead.Load(), "other": n.VerdictsOther.Load(), "unknown": n.VerdictsUnknown.Load()} {
		m.count("health_probes_total", float64(v), "Questions after a shard's health, by verdict; unknown is no answer.", "verdict", verdict)
	}
}
