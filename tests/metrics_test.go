package tests

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// families parses a scrape with the client library's own parser.
func families(t *testing.T, text []byte) map[string]*dto.MetricFamily {
	t.Helper()
	p := expfmt.NewTextParser(model.LegacyValidation)
	f, err := p.TextToMetricFamilies(bytes.NewReader(text))
	if err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	return f
}

func scrape(t *testing.T, address string) map[string]*dto.MetricFamily {
	t.Helper()
	tr := &http.Transport{DisableKeepAlives: true}
	defer tr.CloseIdleConnections()
	req, err := http.NewRequestWithContext(context.Background(), http.MethodGet, "http://"+address+"/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	rsp, err := tr.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer rsp.Body.Close()
	var b bytes.Buffer
	if _, err := b.ReadFrom(rsp.Body); err != nil || rsp.StatusCode != http.StatusOK {
		t.Fatalf("%s %v: %s", rsp.Status, err, b.Bytes())
	}
	return families(t, b.Bytes())
}

// value is the sum of the samples that have the labels.
func value(f map[string]*dto.MetricFamily, name string, labels ...string) float64 {
	sum := 0.0
next:
	for _, m := range f[name].GetMetric() {
		have := map[string]string{}
		for _, l := range m.Label {
			have[l.GetName()] = l.GetValue()
		}
		for i := 0; i < len(labels); i += 2 {
			if have[labels[i]] != labels[i+1] {
				continue next
			}
		}
		sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
	}
	return sum
}

// Units that are not base units, at the end of a name (without _total).
var badUnitRE = regexp.MustCompile(`_(ns|us|ms|nanoseconds|microseconds|milliseconds|minutes|hours|kb|kib|mb|mib|gib|kilobytes|megabytes|bits|percent|count)$`)

// Gauges whose names say what is counted, and those that are names alone.
var gaugeRE = regexp.MustCompile(`^railstore_(lanes|lane_calls_pending|lane_calls_pending_peak|process_info|process_start_time_seconds|rail_info|rail_up|rail_weight|rail_faults|directory_in_use|directory_free_bytes|directory_size_bytes|slab_bytes|control_last_heartbeat_timestamp_seconds)$`)

// scraped is a sandbox in which shard 0 of two-rail listens for scrapes at a port.
func scraped(t *testing.T) (*sandboxed, int) {
	t.Helper()
	s := newShell(t)
	port, err := freePort()
	if err != nil {
		t.Fatal(err)
	}
	recipe := filepath.Join(s.dir, "recipes", "two-rail.cue")
	text, err := os.ReadFile(recipe)
	if err != nil {
		t.Fatal(err)
	}
	listening := strings.Replace(string(text), `{id: 0, host: "s0"}`, fmt.Sprintf(`{id: 0, host: "s0", metrics: port: %d}`, port), 1)
	if listening == string(text) {
		t.Fatalf("%s has another shard 0 than this test knows", recipe)
	}
	if err := os.WriteFile(recipe, []byte(listening), 0o644); err != nil {
		t.Fatal(err)
	}
	return s, port
}

func TestMetricsPortTaken(t *testing.T) {
	s, port := scraped(t)
	l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	out, err := s.run("rs up --quiet recipes/two-rail.cue")
	if err == nil {
		t.Fatal("a shard serves without the port that its recipe gives it")
	}
	for _, want := range []string{fmt.Sprintf("metrics: shard 0: 127.0.0.1:%d: ", port), "EADDRINUSE(98)", "hint: another process listens there"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is not in\n%s", want, out)
		}
	}
}

func TestMetrics(t *testing.T) {
	s, port := scraped(t)
	s.must("rs up --quiet recipes/two-rail.cue")
	address := fmt.Sprintf("127.0.0.1:%d", port)
	before := scrape(t, address)
	for name, f := range before {
		if !strings.HasPrefix(name, "railstore_") {
			if !strings.HasPrefix(name, "go_") && !strings.HasPrefix(name, "process_") {
				t.Errorf("%s: a name of nobody", name)
			}
			continue
		}
		if f.GetHelp() == "" {
			t.Errorf("%s has no help", name)
		}
		base, total := strings.CutSuffix(name, "_total")
		if badUnitRE.MatchString(base) {
			t.Errorf("%s is not in base units", name)
		}
		switch f.GetType() {
		case dto.MetricType_COUNTER:
			if !total {
				t.Errorf("the counter %s does not end with _total", name)
			}
		case dto.MetricType_GAUGE:
			if total || !gaugeRE.MatchString(name) {
				t.Errorf("the gauge %s", name)
			}
		default:
			t.Errorf("%s is a %v", name, f.GetType())
		}
	}
	var list []*dto.MetricFamily
	for name, f := range before {
		if strings.HasPrefix(name, "railstore_") {
			list = append(list, f)
		}
	}
	problems, err := promlint.NewWithMetricFamilies(list).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
	if v := value(before, "railstore_rail_info", "provider", "soft"); v != 2 {
		t.Errorf("%v soft rails", v)
	}
	// What a document promises is there.
	doc, err := os.ReadFile("../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	told := regexp.MustCompile("railstore_[a-z_]+[a-z]`").FindAllString(string(doc), -1)
	if len(told) < 20 {
		t.Errorf("docs/operations.md names %d metrics", len(told))
	}
	s.must("rs put --quiet --stripe 64KiB kv/x big.bin && rs read --quiet kv/x && rs read --quiet kv/x && rs read --quiet kv/x")
	var after map[string]*dto.MetricFamily
	poll(10*time.Second, func() bool { // the first heartbeat comes after a second
		after = scrape(t, address)
		return value(after, "railstore_control_heartbeats_total", "result", "ok") > 0
	})
	for _, name := range told {
		if name = strings.TrimSuffix(name, "`"); after[name] == nil {
			t.Errorf("docs/operations.md has %s, the shard has not", name)
		}
	}
	for _, c := range [][]string{
		{"railstore_lane_requests_served_total"}, {"railstore_lane_responses_total"}, {"railstore_lane_bulk_read_bytes_total"}, {"railstore_lane_bulk_write_bytes_total"},
		{"railstore_rail_bytes_total", "rail", "rail0", "direction", "received"}, {"railstore_rail_bytes_total", "rail", "rail1", "direction", "sent"},
		{"railstore_rail_operations_total", "rail", "rail0"}, {"railstore_rail_packets_total", "direction", "received"},
		{"railstore_events_total", "event", "peer_connected"}, {"railstore_stripe_stores_total"},
		{"railstore_stripe_fetches_total", "source", "file"}, {"railstore_stripe_fetches_total", "source", "memory"}, {"railstore_slab_bytes", "state", "kept"},
	} {
		a, b := value(before, c[0], c[1:]...), value(after, c[0], c[1:]...)
		if b <= a {
			t.Errorf("%v: %v, then %v", c, a, b)
		}
	}
	// The clients and their QPs are gone, what they carried is not.
	if !poll(10*time.Second, func() bool { return value(scrape(t, address), "railstore_lanes") == 0 }) {
		t.Errorf("%v lanes of clients that have left", value(scrape(t, address), "railstore_lanes"))
	}
	stored := value(after, "railstore_rail_bytes_total", "direction", "received")
	if least := float64(200_000 * len("RailStore example content\n") / 2); stored < least*0.9 {
		t.Errorf("the rails received %v bytes of at least %v", stored, least)
	}
	// The sockets give the same, of every process.
	out, err := s.run("rs metrics")
	if err != nil {
		t.Fatal(err)
	}
	all := families(t, []byte(out))
	if v := value(all, "railstore_lane_requests_served_total", "process", "shard/0"); v != value(after, "railstore_lane_requests_served_total") {
		t.Errorf("%v requests over the socket, %v over TCP", v, value(after, "railstore_lane_requests_served_total"))
	}
	if v := value(all, "railstore_process_info"); v != 2 {
		t.Errorf("%v processes", v)
	}
}
