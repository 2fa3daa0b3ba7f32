package lane

import (
	"sync/atomic"
	"time"

	"github.com/railstore/railstore/verbs"
)

// Counters of a pool, an acceptor or a poller. The times are measured only where
// Config.Profile is set; they are sums in nanoseconds.
type Counters struct {
	// Client.
	SubmitRequest     atomic.Uint64 // requests posted
	SubmitRequestNS   atomic.Uint64
	WaitStatusNS      atomic.Uint64
	CopyResponseNS    atomic.Uint64
	RevokeResourceNS  atomic.Uint64
	PendingRPC        atomic.Int64 // requests in flight
	PendingRPCPeak    atomic.Int64
	AcquireQPFailures atomic.Uint64 // no slot: no usable lane, or the caller gave up in the queue
	AcquireQueued     atomic.Uint64 // had to queue for a slot
	WaitSleeps        atomic.Uint64 // waits that slept
	Canceled          atomic.Uint64 // callers that gave up
	Quarantined       atomic.Uint64 // slots put aside after that
	LateCompletions   atomic.Uint64 // and back in use by a late answer
	Timeouts          atomic.Uint64
	BadResponses      atomic.Uint64
	LanesDirty        atomic.Uint64
	LanesRecovered    atomic.Uint64
	Touches           atomic.Uint64 // empty WRITEs while calls waited
	Harvests          atomic.Uint64 // polls of the CQ while calls waited
	Probes            atomic.Uint64 // that a waiting call wanted the peer's health
	DrainSubmit       atomic.Uint64 // posts that had to wait for room in the send queue
	DrainSubmitNS     atomic.Uint64

	// Server.
	ReadySlots         atomic.Uint64 // requests taken
	CompleteResponse   atomic.Uint64 // answers posted
	CompleteResponseNS atomic.Uint64
	HandleNS           atomic.Uint64
	DrainResponse      atomic.Uint64 // answers that had to wait for room in the send queue
	DrainResponseNS    atomic.Uint64 // that none of a lane's found any
	ResponseBatches    atomic.Uint64 // posts that answers went out with
	InvalidDescriptor  atomic.Uint64 // answered with StatusInvalid or StatusTooLarge before the handler
	WrongShard         atomic.Uint64
	StaleWords         atomic.Uint64 // words of another generation, ignored
	Replays            atomic.Uint64 // words of a past sequence, ignored
	Duplicates         atomic.Uint64 // notifications without a new word, ignored
	BadImmediates      atomic.Uint64 // immediates that name no slot, ignored
	Settled            atomic.Uint64 // words that were there before their payload
	HandlerExceptions  atomic.Uint64
	DroppedStale       atomic.Uint64 // answers of handlers whose lane was gone
	BulkReadBytes      atomic.Uint64
	BulkWriteBytes     atomic.Uint64

	// Poller.
	ScanRounds      atomic.Uint64 // passes over the words of scanned lanes
	EmptyScanRounds atomic.Uint64
	PollLoopNS      atomic.Uint64 // time awake
	PollerSleeps    atomic.Uint64
	Completions     atomic.Uint64
	// Bad completions by class. Those after the first of a QP are flushes.
	PeerUnreachable atomic.Uint64
	Flushed         atomic.Uint64
	PeerRejected    atomic.Uint64
	LocalErrors     atomic.Uint64
	OtherErrors     atomic.Uint64
}

// bad counts a bad completion.
func (c *Counters) bad(s verbs.WCStatus) {
	switch Classify(s) {
	case ClassPeerUnreachable:
		c.PeerUnreachable.Add(1)
	case ClassFlushed:
		c.Flushed.Add(1)
	case ClassPeerRejected:
		c.PeerRejected.Add(1)
	case ClassLocal:
		c.LocalErrors.Add(1)
	default:
		c.OtherErrors.Add(1)
	}
}

// stopwatch measures only when it was started with on.
func stopwatch(on bool) time.Time {
	if on {
		return time.Now()
	}
	return time.Time{}
}

func lap(c *atomic.Uint64, start time.Time) {
	if !start.IsZero() {
		c.Add(uint64(time.Since(start)))
	}
}

func (c *Counters) pending(d int64) {
	n := c.PendingRPC.Add(d)
	for {
		peak := c.PendingRPCPeak.Load()
		if n <= peak || c.PendingRPCPeak.CompareAndSwap(peak, n) {
			return
		}
	}
}

// Fields gives every counter by the name that profiles use.
func (c *Counters) Fields() map[string]float64 {
	out := map[string]float64{}
	for name, v := range map[string]*atomic.Uint64{
		"submit_request_count": &c.SubmitRequest, "submit_request_ns": &c.SubmitRequestNS, "wait_status_ns": &c.WaitStatusNS,
		"copy_response_ns": &c.CopyResponseNS, "revoke_resource_ns": &c.RevokeResourceNS, "acquire_qp_failures": &c.AcquireQPFailures,
		"acquire_queued": &c.AcquireQueued, "wait_sleeps": &c.WaitSleeps, "canceled": &c.Canceled, "quarantined_slots": &c.Quarantined,
		"late_completions": &c.LateCompletions, "timeouts": &c.Timeouts, "bad_responses": &c.BadResponses, "lanes_dirty": &c.LanesDirty,
		"lanes_recovered": &c.LanesRecovered, "touches": &c.Touches, "harvests": &c.Harvests, "probes": &c.Probes,
		"cqe_peer_unreachable": &c.PeerUnreachable, "cqe_flushed": &c.Flushed, "cqe_peer_rejected": &c.PeerRejected,
		"cqe_local_error": &c.LocalErrors, "cqe_other": &c.OtherErrors,
		"drain_pending_submit_count": &c.DrainSubmit, "drain_pending_submit_ns": &c.DrainSubmitNS,
		"ready_slots": &c.ReadySlots, "complete_response_count": &c.CompleteResponse, "complete_response_ns": &c.CompleteResponseNS,
		"handle_ns": &c.HandleNS, "drain_pending_response_count": &c.DrainResponse, "drain_pending_response_ns": &c.DrainResponseNS,
		"response_batches":   &c.ResponseBatches,
		"invalid_descriptor": &c.InvalidDescriptor, "wrong_shard": &c.WrongShard, "stale_words": &c.StaleWords, "replays": &c.Replays,
		"duplicate_skips": &c.Duplicates, "bad_immediates": &c.BadImmediates, "settled": &c.Settled,
		"handler_exceptions": &c.HandlerExceptions, "get_payload_dropped_stale": &c.DroppedStale,
		"bulk_read_bytes": &c.BulkReadBytes, "bulk_write_bytes": &c.BulkWriteBytes,
		"scan_rounds": &c.ScanRounds, "empty_scan_rounds": &c.EmptyScanRounds, "poll_loop_ns": &c.PollLoopNS,
		"poller_sleeps": &c.PollerSleeps, "completions": &c.Completions,
	} {
		out[name] = float64(v.Load())
	}
	out["pending_rpc"] = float64(c.PendingRPC.Load())
	out["pending_rpc_peak"] = float64(c.PendingRPCPeak.Load())
	return out
}
