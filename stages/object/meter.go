package object

import (
	"sync"
	"time"
)

// RailSnapshot is what a rail did and does. The counts are of one read in a
// report, and since the start in Worker.Snapshot.
type RailSnapshot struct {
	Name                string  `json:"name"`
	Device              string  `json:"device"`
	Provider            string  `json:"provider"`
	PlannedBytes        uint64  `json:"planned_bytes"`
	Bytes               uint64  `json:"bytes"`
	Stripes             uint64  `json:"stripes"`
	BytesPerSecond      float64 `json:"bytes_per_second"` // from its first request to its last answer
	LatencyAvgUS        float64 `json:"latency_avg_us"`   // of a stripe, from the request to the answer
	LatencyMaxUS        float64 `json:"latency_max_us"`
	Errors              uint64  `json:"errors"`
	Timeouts            uint64  `json:"timeouts"`
	InflightRequests    int     `json:"inflight_requests"`
	InflightBytes       uint64  `json:"inflight_bytes"`
	RegisteredBytes     uint64  `json:"registered_bytes"`
	ConnectionsCreated  uint64  `json:"connections_created"`
	ConnectionsQuiesced uint64  `json:"connections_quiesced"`
	Retransmits         uint64  `json:"retransmits"`
	State               string  `json:"state"` // active, or why not
}

// meter counts the transfers of one rail.
type meter struct {
	mu       sync.Mutex
	planned  uint64
	bytes    uint64
	stripes  uint64
	errors   uint64
	timeouts uint64
	requests int
	inflight uint64
	latency  time.Duration
	longest  time.Duration
	first    time.Time
	last     time.Time
}

func (m *meter) plan(n uint64) {
	m.mu.Lock()
	m.planned += n
	m.mu.Unlock()
}

func (m *meter) begin(n uint64, now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.requests++
	m.inflight += n
	if m.first.IsZero() {
		m.first = now
	}
}

// outcome of one transfer.
type outcome uint8

const (
	moved    outcome = iota // arrived and verified
	failed                  // did not
	timedOut                // did not in time
	stopped                 // somebody else's failure or the caller ended it
)

func (m *meter) end(n uint64, start, now time.Time, o outcome) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.requests--
	m.inflight -= n
	m.last = now
	switch o {
	case moved:
		d := now.Sub(start)
		m.bytes += n
		m.stripes++
		m.latency += d
		m.longest = max(m.longest, d)
	case timedOut:
		m.timeouts++
		m.errors++
	case failed:
		m.errors++
	case stopped:
	}
}

func (m *meter) fill(s *RailSnapshot) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s.PlannedBytes, s.Bytes, s.Stripes, s.Errors, s.Timeouts = m.planned, m.bytes, m.stripes, m.errors, m.timeouts
	s.InflightRequests, s.InflightBytes = m.requests, m.inflight
	s.LatencyMaxUS = microseconds(m.longest)
	if m.stripes > 0 {
		s.LatencyAvgUS = microseconds(m.latency) / float64(m.stripes)
	}
	s.BytesPerSecond = rate(m.bytes, m.last.Sub(m.first))
}

func microseconds(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }

func rate(n uint64, d time.Duration) float64 {
	if d <= 0 {
		return 0
	}
	return float64(n) / d.Seconds()
}
