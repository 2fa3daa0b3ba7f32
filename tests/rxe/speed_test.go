package rxe

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/railstore/railstore/verbs"
	"github.com/railstore/railstore/verbs/ibv"
	"github.com/railstore/railstore/verbs/perf"
	"github.com/railstore/railstore/verbs/soft"
)

// contest is one comparison: the same messages over the same pair of net devices
// by two programs, in turns. Rates of this kind of guest change from one minute
// to the next with what else its host does, so only ratios of neighbours count.
type contest struct {
	Name      string  `json:"name"`
	Unit      string  `json:"unit"`
	Reference string  `json:"reference"`
	AtLeast   float64 `json:"at_least,omitempty"` // the ratio that is asked for
	AtMost    float64 `json:"at_most,omitempty"`
	Aim       float64 `json:"aim,omitempty"` // beyond AtLeast
	Rounds    []round `json:"rounds"`

	ours, theirs func(t *testing.T) float64
}

type round struct{ Ours, Theirs float64 }

// best are both sides' best rounds: what others do on the host can only slow a
// round down.
func (c *contest) best() (ours, theirs float64) {
	pick := slices.Max[[]float64]
	if c.AtMost > 0 {
		pick = slices.Min[[]float64]
	}
	var a, b []float64
	for _, r := range c.Rounds {
		a, b = append(a, r.Ours), append(b, r.Theirs)
	}
	return pick(a), pick(b)
}

// ratio is that of the best rounds.
func (c *contest) ratio() float64 {
	ours, theirs := c.best()
	return ours / theirs
}

// middle is the median of the rounds' ratios.
func (c *contest) middle() float64 {
	var v []float64
	for _, r := range c.Rounds {
		v = append(v, r.Ours/r.Theirs)
	}
	slices.Sort(v)
	return (v[(len(v)-1)/2] + v[len(v)/2]) / 2
}

func (c *contest) met() bool {
	r := c.ratio()
	return r >= c.AtLeast && (c.AtMost == 0 || r <= c.AtMost)
}

func (c *contest) target() string {
	if c.AtMost > 0 {
		return fmt.Sprintf("<= %.2f", c.AtMost)
	}
	if c.Aim > 0 {
		return fmt.Sprintf(">= %.2f, aim %.2f", c.AtLeast, c.Aim)
	}
	return fmt.Sprintf(">= %.2f", c.AtLeast)
}

// speedRounds is how often each side of a contest runs.
const speedRounds = 9

// TestGuestSpeed measures in one boot of the guest and prints the table. A ratio
// that is missed is an error under RS_REQUIRE=speed only: a busy host shows
// anything.
func TestGuestSpeed(t *testing.T) {
	if os.Getenv("RS_BENCH") == "" && !strings.Contains(os.Getenv("RS_REQUIRE"), "speed") {
		t.Skip("a measurement, for make bench-rxe: RS_BENCH=1 runs it")
	}
	need(t)
	sections, dir := runGuest(t, []testBinary{{"speed", "tests/rxe", "RS_BENCH=1", "^TestMeasure$"}})
	b, err := os.ReadFile(filepath.Join(dir, "speed.json"))
	if err != nil {
		t.Fatalf("the guest left no figures: %v\n%s", err, sections[len(sections)-1].output)
	}
	var all []*contest
	if err := json.Unmarshal(b, &all); err != nil {
		t.Fatal(err)
	}
	keep(t, filepath.Join(dir, "speed.json"))
	fmt.Print(table(all))
	for _, c := range all {
		if !c.met() && strings.Contains(os.Getenv("RS_REQUIRE"), "speed") {
			t.Errorf("%s: %.3f of %s, wanted %s", c.Name, c.ratio(), c.Reference, c.target())
		}
	}
}

// table is the result for people: the best round of either side, their ratio, and
// the median of the rounds' ratios.
func table(all []*contest) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%-24s %-6s %9s %9s  %-22s %6s %8s  %s\n", "test", "unit", "ours", "theirs", "reference", "ratio", "(median)", "wanted")
	for _, c := range all {
		ours, theirs := c.best()
		mark := ""
		if !c.met() {
			mark = "  missed"
		}
		fmt.Fprintf(&b, "%-24s %-6s %9.2f %9.2f  %-22s %6.3f %8.3f  %s%s\n", c.Name, c.Unit, ours, theirs, c.Reference, c.ratio(), c.middle(), c.target(), mark)
	}
	return b.String()
}

func TestTable(t *testing.T) {
	c := &contest{Name: "x", Unit: "MiB/s", Reference: "y", AtLeast: 0.97, Rounds: []round{{10, 10}, {9, 12}, {11, 10}}}
	if r := c.ratio(); r < 0.91 || r > 0.92 || c.met() || c.middle() != 1 || !strings.Contains(table([]*contest{c}), " 0.917    1.000  >= 0.97  missed\n") {
		t.Errorf("%v %v\n%s", r, c.met(), table([]*contest{c}))
	}
	c = &contest{AtMost: 1.15, Rounds: []round{{12, 10}, {11, 30}}}
	if !c.met() || strings.Contains(table([]*contest{c}), "missed") {
		t.Error("a latency within its bound was missed")
	}
	c.AtMost = 1.05
	if c.met() {
		t.Error("a latency over its bound was not missed")
	}
}

// TestMeasure plays every contest inside the guest.
func TestMeasure(t *testing.T) {
	inside(t)
	if os.Getenv("RS_BENCH") == "" {
		t.Skip("a measurement, for TestGuestSpeed")
	}
	var all []*contest
	for _, op := range []verbs.Opcode{verbs.OpWrite, verbs.OpRead} {
		for _, c := range []struct{ size, iters int }{{64 << 10, 500}, {1 << 20, 40}} {
			test := perf.Test{Op: op, Kind: perf.Bandwidth, Size: c.size, Iters: c.iters, Warmup: c.iters / 20, Depth: 128, QPs: 1}
			all = append(all, &contest{Name: fmt.Sprintf("ibv %s %s", test.Name(), bytesText(c.size)), Unit: "MiB/s", Reference: "ib_" + test.Name(), AtLeast: 0.97,
				ours: pinned(ourIBV(test)), theirs: stockTool(test, "taskset", "-c", "0")})
		}
	}
	// perftest sends nothing inline on rxe, whatever it is told; the first line is
	// the fair one.
	lat := perf.Test{Op: verbs.OpWrite, Kind: perf.Latency, Size: 64, Iters: 2000, Warmup: 100, Depth: 1, QPs: 1, NoInline: true}
	inline := lat
	inline.NoInline = false
	all = append(all,
		&contest{Name: "ibv write_lat 64", Unit: "us", Reference: "ib_write_lat", AtMost: 1.15, ours: roomy(ourIBV(lat)), theirs: stockTool(lat)},
		&contest{Name: "ibv write_lat 64 inline", Unit: "us", Reference: "ib_write_lat", AtMost: 1.15, ours: roomy(ourIBV(inline)), theirs: stockTool(lat)})
	for _, op := range []verbs.Opcode{verbs.OpWrite, verbs.OpRead} {
		test := perf.Test{Op: op, Kind: perf.Bandwidth, Size: 64 << 10, Iters: 1000, Warmup: 50, Depth: 16, QPs: 1}
		all = append(all, &contest{Name: "soft " + test.Name() + " 64Ki", Unit: "MiB/s", Reference: "ib_" + test.Name() + " on rxe", AtLeast: 1, Aim: 1.5,
			ours: ourSoft(test), theirs: stockTool(perf.Test{Op: op, Kind: perf.Bandwidth, Size: 64 << 10, Iters: 500, Depth: 128, QPs: 1})})
	}
	for _, c := range all {
		for range speedRounds {
			c.Rounds = append(c.Rounds, round{Theirs: c.theirs(t), Ours: c.ours(t)})
		}
		t.Logf("%s: %v", c.Name, c.Rounds)
	}
	b, err := json.Marshal(all)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(os.Getenv("JOB"), "speed.json"), b, 0o644); err != nil {
		t.Fatal(err)
	}
	fmt.Print(table(all))
}

func bytesText(n int) string {
	if n >= 1<<20 {
		return strconv.Itoa(n>>20) + "Mi"
	}
	return strconv.Itoa(n>>10) + "Ki"
}

// pinned runs a measurement on the first processor, as taskset runs a stock tool.
// rxe sends in the time of whoever posts: when that is moved to another processor
// between two posts, packets overtake each other and are sent again, and a figure
// tells how often that happened and nothing else.
func pinned(f func(t *testing.T) float64) func(t *testing.T) float64 {
	return func(t *testing.T) float64 {
		t.Helper()
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		var old, first unix.CPUSet
		first.Set(0)
		if err := errors.Join(unix.SchedGetaffinity(0, &old), unix.SchedSetaffinity(0, &first)); err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := unix.SchedSetaffinity(0, &old); err != nil {
				t.Error(err)
			}
		}()
		return f(t)
	}
}

// roomy runs a measurement in which both ends poll in this process with more
// threads than that needs: else the scheduler takes the processor away from each
// long call into C.
func roomy(f func(t *testing.T) float64) func(t *testing.T) float64 {
	return func(t *testing.T) float64 {
		t.Helper()
		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(runtime.NumCPU() + 2))
		return f(t)
	}
}

// ourIBV measures between rxe0 and rxe2 with both ends in this process.
func ourIBV(test perf.Test) func(t *testing.T) float64 {
	return func(t *testing.T) float64 {
		t.Helper()
		d := ibv.New(ibv.Options{})
		return between(t, test, [2]verbs.Driver{d, d}, [2]string{"rxe0", "rxe2"})
	}
}

// ourSoft measures over the same two net devices with a soft device at each.
func ourSoft(test perf.Test) func(t *testing.T) float64 {
	return func(t *testing.T) float64 {
		t.Helper()
		d := soft.New(soft.Options{})
		return between(t, test, [2]verbs.Driver{d, d}, [2]string{"10.10.0.1:5001", "10.10.0.2:5002"})
	}
}

func between(t *testing.T, test perf.Test, drivers [2]verbs.Driver, devices [2]string) float64 {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), stockPatience)
	defer cancel()
	var ends [2]*perf.End
	var closers []func() error
	defer func() {
		for _, c := range slices.Backward(closers) {
			if err := c(); err != nil {
				t.Error(err)
			}
		}
	}()
	for i := range ends {
		c, err := verbs.Open(drivers[i], devices[i])
		if err != nil {
			t.Fatal(err)
		}
		closers = append(closers, c.Close)
		gids, err := c.GIDs(1)
		if err != nil {
			t.Fatal(err)
		}
		at := slices.IndexFunc(gids, func(g verbs.GIDEntry) bool { return g.GID.IsIPv4() && g.Type == verbs.GIDTypeRoCEv2 })
		if at < 0 {
			t.Fatalf("%s has no IPv4 GID of RoCE v2", devices[i])
		}
		// As many READs at once as the device takes, which is perftest's choice too.
		most := c.Attr().MaxRDAtomic
		path := perf.Path{GID: gids[at], Opts: verbs.PathOpts{MaxRDAtomic: most, MaxDestRDAtomic: most}}
		if ends[i], err = perf.NewEnd(c, path, test); err != nil {
			t.Fatal(err)
		}
		closers = append(closers, ends[i].Close)
	}
	if err := errors.Join(ends[0].Connect(ends[1].Hello()), ends[1].Connect(ends[0].Hello())); err != nil {
		t.Fatal(err)
	}
	r, err := perf.Between(ctx, ends[0], ends[1])
	if err != nil {
		t.Fatal(err)
	}
	if test.Kind == perf.Latency {
		return r.TypicalUS
	}
	return r.BytesPerSecond / (1 << 20)
}

// stockTool measures with the test of perftest, between the same two devices. It
// sometimes fails to tell the clock's rate and prints "inf"; it is asked again.
func stockTool(test perf.Test, with ...string) func(t *testing.T) float64 {
	return func(t *testing.T) float64 {
		t.Helper()
		args := append(slices.Clone(with), "ib_"+test.Name(), "-F", "-x", "1", "-s", strconv.Itoa(test.Size), "-n", strconv.Itoa(test.Iters))
		if test.Kind == perf.Bandwidth {
			args = append(args, "-t", strconv.Itoa(test.Depth))
		}
		column := 3 // BW average
		if test.Kind == perf.Latency {
			column = 4 // t_typical
		}
		for range 5 {
			server := startStock(t, append(args, "-d", "rxe2")...)
			// Its client retries no connection, so wait until it listens.
			waitListening(t, server, 18515)
			client := startStock(t, append(args, "-d", "rxe0", "127.0.0.1")...)
			out := client.wait()
			server.wait()
			for l := range strings.Lines(out) {
				f := strings.Fields(l)
				if len(f) > column && f[0] == strconv.Itoa(test.Size) {
					if v, err := strconv.ParseFloat(f[column], 64); err == nil && !math.IsInf(v, 0) && v > 0 {
						return v
					}
				}
			}
		}
		t.Fatalf("%s tells no figure", args[0])
		return 0
	}
}

// waitListening waits until somebody listens on a TCP port of this namespace,
// without connecting: these servers take one connection only.
func waitListening(t *testing.T, s *stock, port int) {
	t.Helper()
	want := fmt.Sprintf(":%04X ", port)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(stockPatience); time.Now().Before(end); <-tick.C {
		for _, f := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
			b, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			for l := range strings.Lines(string(b)) {
				if c := strings.Fields(l); len(c) > 3 && strings.HasSuffix(c[1]+" ", want) && c[3] == "0A" {
					return
				}
			}
		}
	}
	t.Fatalf("%s does not listen: %s", s.name, s.out.String())
}
