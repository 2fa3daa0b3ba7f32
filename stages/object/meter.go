package object

import (
	"fmt"
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
	Bytes               uint64  `json:"bytes"` // planned, less what moved away, plus what moved here
	MovedOut            uint64  `json:"moved_out_bytes"`
	MovedIn             uint64  `json:"moved_in_bytes"`
	Share               int     `json:"share_permille,omitempty"` // of its weight, in the plan of a read
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
	out, in  uint64 // moved to and from other rails
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

func (m *meter) moveOut(n uint64) {
	m.mu.Lock()
	m.out += n
	m.mu.Unlock()
}

func (m *meter) moveIn(n uint64) {
	m.mu.Lock()
	m.in += n
	m.mu.Unlock()
}

// account is what was planned, what moved, and what arrived.
func (m *meter) account() (planned, out, in, bytes uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.planned, m.out, m.in, m.bytes
}

// latencies is the sum of the latencies of the stripes that arrived, and how many
// did.
func (m *meter) latencies() (sum time.Duration, n uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.latency, m.stripes
}

// pace is how long a stripe takes on the rail, by those that arrived or, when it stands
// still for longer, by that; and how many are on the way. It is 0 before the first request.
func (m *meter) pace(now time.Time) (each time.Duration, requests int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	since := m.last
	if m.stripes > 0 {
		each = m.latency / time.Duration(m.stripes)
	} else {
		since = m.first
	}
	if m.requests > 0 {
		each = max(each, now.Sub(since))
	}
	return each, m.requests
}

// busy is the time from the first request to the last answer.
func (m *meter) busy() time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.last.Sub(m.first)
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
	s.MovedOut, s.MovedIn = m.out, m.in
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

// String is the snapshot in one line of a table; RailHeader is above it.
func (s RailSnapshot) String() string {
	return fmt.Sprintf(railRow, s.Name, s.Device, s.Provider, fmt.Sprint(s.PlannedBytes), fmt.Sprint(s.Bytes), fmt.Sprintf("-%d/+%d", s.MovedOut, s.MovedIn),
		fmt.Sprint(s.Stripes), fmt.Sprintf("%.3f", s.BytesPerSecond*8/1e9), fmt.Sprintf("%.0f/%.0f", s.LatencyAvgUS, s.LatencyMaxUS), fmt.Sprintf("%d/%d", s.Errors, s.Timeouts),
		fmt.Sprintf("%d/%d", s.InflightRequests, s.InflightBytes), fmt.Sprint(s.RegisteredBytes), fmt.Sprintf("%d/%d", s.ConnectionsCreated, s.ConnectionsQuiesced),
		fmt.Sprint(s.Retransmits), s.State)
}

const railRow = "%-12s %-20s %-8s %12s %12s %14s %8s %9s %17s %9s %15s %12s %9s %7s %s"

// RailHeader names the columns of RailSnapshot.String.
func RailHeader() string {
	return fmt.Sprintf(railRow, "RAIL", "DEVICE", "PROVIDER", "PLANNED", "BYTES", "MOVED", "STRIPES", "Gb/s", "LATENCY us", "ERR/TIMEO", "INFLIGHT", "REGISTERED", "CONN/QUI", "RETRANS", "STATE")
}
