package perf

import (
	"fmt"

	"github.com/railstore/railstore/verbs"
)

// Kind is what is measured.
type Kind string

const (
	Bandwidth Kind = "bw"
	Latency   Kind = "lat"
)

// Test is one measurement.
type Test struct {
	Op     verbs.Opcode // OpWrite, OpRead or OpSend
	Kind   Kind
	Size   int // bytes of one message
	Iters  int // messages, over all QPs
	Warmup int // messages before the clock starts
	Depth  int // messages in flight on a QP
	QPs    int
	MTU    int // cap on the path MTU; 0: what both ends allow
	// NoInline sends short messages of a latency test from registered memory like
	// all others; else they go inline where the device takes that.
	NoInline bool
}

// Name is perftest's name of the test, as in write_bw.
func (t Test) Name() string {
	n := map[verbs.Opcode]string{verbs.OpWrite: "write", verbs.OpRead: "read", verbs.OpSend: "send"}[t.Op]
	return n + "_" + string(t.Kind)
}

// Check says what is wrong with the test, or nil.
func (t Test) Check() error {
	switch {
	case t.Op != verbs.OpWrite && t.Op != verbs.OpRead && t.Op != verbs.OpSend:
		return fmt.Errorf("operation %v cannot be measured; want WRITE, READ or SEND", t.Op)
	case t.Kind != Bandwidth && t.Kind != Latency:
		return fmt.Errorf("kind %q: want bw or lat", t.Kind)
	case t.Size < 1 || t.Size > 1<<30:
		return fmt.Errorf("size %d: want 1 byte to 1 GiB", t.Size)
	case t.Iters < 1:
		return fmt.Errorf("%d iterations: want at least 1", t.Iters)
	case t.Depth < 1 || t.QPs < 1:
		return fmt.Errorf("depth %d on %d QPs: want at least 1 of both", t.Depth, t.QPs)
	case t.Kind == Latency && t.QPs != 1:
		return fmt.Errorf("latency is measured on 1 QP, not on %d", t.QPs)
	}
	return nil
}

// Result of a bandwidth test uses the rates, of a latency test the times.
type Result struct {
	Test       string  `json:"test"`
	Bytes      int     `json:"bytes"`
	Iterations int     `json:"iterations"`
	Seconds    float64 `json:"seconds"`

	PeakBytesPerSecond float64 `json:"peak_bytes_per_second,omitempty"`
	BytesPerSecond     float64 `json:"bytes_per_second,omitempty"`
	MessagesPerSecond  float64 `json:"messages_per_second,omitempty"`

	MinUS     float64 `json:"min_us,omitempty"`
	MaxUS     float64 `json:"max_us,omitempty"`
	TypicalUS float64 `json:"typical_us,omitempty"` // median
	AvgUS     float64 `json:"avg_us,omitempty"`
	StdevUS   float64 `json:"stdev_us,omitempty"`
	P99US     float64 `json:"p99_us,omitempty"`
	P999US    float64 `json:"p999_us,omitempty"`
}

// Header is the column line of perftest for a kind.
func Header(k Kind, gbits bool) string {
	if k == Latency {
		return " #bytes     #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec]"
	}
	if gbits {
		return " #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]"
	}
	return " #bytes     #iterations    BW peak[MiB/sec]    BW average[MiB/sec]   MsgRate[Mpps]"
}

// Row is the line of perftest under Header.
func (r Result) Row(k Kind, gbits bool) string {
	if k == Latency {
		return fmt.Sprintf(" %-10d %-14d %-14.2f %-12.2f %-16.2f %-14.2f %-15.2f %-22.2f %-.2f",
			r.Bytes, r.Iterations, r.MinUS, r.MaxUS, r.TypicalUS, r.AvgUS, r.StdevUS, r.P99US, r.P999US)
	}
	scale := 1.0 / (1 << 20)
	if gbits {
		scale = 8 / 1e9
	}
	return fmt.Sprintf(" %-10d %-14d %-18.2f %-20.2f %-.6f", r.Bytes, r.Iterations, r.PeakBytesPerSecond*scale, r.BytesPerSecond*scale, r.MessagesPerSecond/1e6)
}

// GoBench is the result as a line that benchstat reads.
func (r Result) GoBench(device string) string {
	ns := r.Seconds * 1e9 / float64(max(1, r.Iterations))
	name := fmt.Sprintf("BenchmarkVerbs/test=%s/size=%d/device=%s", r.Test, r.Bytes, device)
	if r.BytesPerSecond > 0 {
		return fmt.Sprintf("%s %d %.1f ns/op %.2f MB/s", name, r.Iterations, ns, r.BytesPerSecond/1e6)
	}
	return fmt.Sprintf("%s %d %.1f ns/op %.0f p99-ns %.0f p999-ns", name, r.Iterations, r.TypicalUS*1e3, r.P99US*1e3, r.P999US*1e3)
}
