package rxe

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Kinds of samples. Every round of a setting has each kind once for every size, in an
// order that moves on.
const (
	oneRail   = "one rail" // the first, which is the slower one where they differ
	twoRails  = "two rails"
	ucxOneMiB = "UCX 1 MiB"
	ucxLarge  = "UCX 64 MiB"
)

// readSetting is one way in which the guest's rails are made, and what is read there.
type readSetting struct {
	Name  string `json:"name"`
	Host  string `json:"host"` // of the recipe, whose weights are used
	Rates [2]int `json:"rates_mbit"`
	// Steered: what comes in over a rail is one processor's; see steer.
	Steered bool `json:"steered"`
	// Whole adds the hash of the whole to those of the stripes. UCX verifies nothing.
	Whole  bool    `json:"verify_whole"`
	Sizes  []int64 `json:"sizes"`
	Rounds []int   `json:"rounds"` // for each size
	// UCX are the kinds beside the first size. It takes all rails for equal, and aborts
	// when a READ of 64 MiB meets a shaped rail.
	UCX []string `json:"ucx"`
	// What two rails are to read, as a multiple of one.
	Wanted  float64      `json:"wanted"`
	Samples []readSample `json:"samples"`
	Failed  []string     `json:"failed,omitempty"` // runs of UCX that aborted
}

// readSample is one read, or one run of ucx_perftest.
type readSample struct {
	Kind    string  `json:"kind"`
	Bytes   int64   `json:"bytes"` // of the object, or of a message
	Round   int     `json:"round"`
	Place   int     `json:"place"` // within its round
	Seconds float64 `json:"seconds"`
	Rate    float64 `json:"bytes_per_second"`
	Second  float64 `json:"second_rail"` // its part of what passed on the wire
	Idle    float64 `json:"idle"`        // of the guest's processors
	Resent  uint64  `json:"resent"`      // packets that a device saw twice, or missed and asked for
}

// readSettings are what is measured. The shaped rails are far below what the guest's
// processors carry, also on a host that has other things to do; the largest objects are
// read less often, which bounds the run.
func readSettings() []*readSetting {
	sizes := []int64{64 << 20, 128 << 20, 256 << 20}
	return []*readSetting{
		{Name: "equal", Host: "c0", Rates: [2]int{80, 80}, Sizes: sizes, Rounds: []int{5, 3, 3}, UCX: []string{ucxOneMiB}, Wanted: 1.9},
		{Name: "1:2", Host: "c1", Rates: [2]int{60, 120}, Sizes: sizes, Rounds: []int{5, 3, 3}, Wanted: 2.8},
		{Name: "unshaped", Host: "c0", Sizes: sizes, Rounds: []int{9, 7, 5}, UCX: []string{ucxOneMiB, ucxLarge}, Wanted: 1.113},
		{Name: "steered", Host: "c0", Steered: true, Sizes: sizes, Rounds: []int{9, 7, 5}, UCX: []string{ucxOneMiB, ucxLarge}, Wanted: 1.113},
		{Name: "whole", Host: "c0", Whole: true, Sizes: sizes, Rounds: []int{5, 3, 3}, UCX: []string{ucxOneMiB, ucxLarge}, Wanted: 1.113},
	}
}

// readRun is results/rxe-read-TIME/raw.json.
type readRun struct {
	Began    time.Time      `json:"began"`
	Kernel   string         `json:"kernel"`
	CPUs     int            `json:"cpus"`
	Load     []float64      `json:"host_load"` // of the last minute, every ten seconds of the run
	Settings []*readSetting `json:"settings"`
}

// readKernel leaves out what is dear in software only and has nothing to do with rails, for
// everything that is measured: zeroing memory that is overwritten at once, and timers finer
// than a tick. Go's runtime sets those a thousand times in a second, and each is an
// interrupt that the emulator's own threads must be woken for.
const readKernel = "init_on_alloc=0 highres=off"

// readCPU has AVX2, as what runs a read has, and is otherwise like guestCPU.
const readCPU = "max,-pclmulqdq,-erms,-smap,-smep"

// readLimit bounds a run.
const readLimit = 20 * time.Minute

// TestGuestReadSpeed measures reads over one rail and over two in one boot of the guest,
// beside UCX, and prints the table. A ratio that is missed is an error under
// RS_REQUIRE=speed only: a busy host shows anything.
func TestGuestReadSpeed(t *testing.T) {
	if os.Getenv("RS_BENCH") == "" && !strings.Contains(os.Getenv("RS_REQUIRE"), "speed") {
		t.Skip("a measurement, for make bench-read-rxe: RS_BENCH=1 runs it")
	}
	need(t)
	needUCX(t)
	run := readRun{Began: time.Now().UTC()}
	loads := watchLoad(t)
	sections, dir := runGuest(t, []testBinary{{"readspeed", "tests/rxe", "RS_BENCH=1 RS_READ_ONLY=" + quote(os.Getenv("RS_READ_ONLY")), "^TestMeasureReads$"}},
		func(j *job) { j.limit, j.memory, j.cpu, j.kernel = readLimit, 3584, readCPU, readKernel })
	run.Load = loads()
	b, err := os.ReadFile(filepath.Join(dir, "read.json"))
	if err != nil {
		t.Fatalf("the guest left no figures: %v\n%s", err, sections[len(sections)-1].output)
	}
	if err := json.Unmarshal(b, &run); err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(repository(), "results", "rxe-read-"+run.Began.Format("20060102-150405"))
	if err := run.write(out); err != nil {
		t.Fatal(err)
	}
	fmt.Printf("%s\nresults are in %s\n", run.text(), out)
	for _, c := range run.claims() {
		if !c.met() && strings.Contains(os.Getenv("RS_REQUIRE"), "speed") {
			t.Errorf("%s: %.3f, wanted %.3f", c.name, c.ratio, c.wanted)
		}
	}
	if sections[len(sections)-1].code != 0 {
		t.Errorf("the guest's program failed\n%s", sections[len(sections)-1].output)
	}
}

// needUCX makes the test skip without ucx_perftest, after trying to install it.
func needUCX(t *testing.T) {
	t.Helper()
	const pkg = "ucx-utils"
	if _, err := lookPath("ucx_perftest"); err == nil {
		return
	}
	if os.Geteuid() == 0 {
		if out, err := install([]string{pkg}); err != nil {
			t.Logf("installing %s: %v\n%s", pkg, err, out)
		}
	}
	if _, err := lookPath("ucx_perftest"); err != nil {
		t.Skipf("beside what is read stands UCX: apt-get install %s", pkg)
	}
}

// watchLoad notes the host's load until what it gives is called, or the test ends.
func watchLoad(t *testing.T) func() []float64 {
	stop, done := make(chan struct{}), make(chan struct{})
	var out []float64
	go func() {
		defer close(done)
		tick := time.NewTicker(10 * time.Second)
		defer tick.Stop()
		for {
			var s unix.Sysinfo_t
			if unix.Sysinfo(&s) == nil {
				out = append(out, float64(s.Loads[0])/(1<<16))
			}
			select {
			case <-tick.C:
			case <-stop:
				return
			}
		}
	}()
	end := sync.OnceFunc(func() { close(stop); <-done })
	t.Cleanup(end)
	return func() []float64 { end(); return out }
}

// rates are those of a kind and size, by round.
func (s *readSetting) rates(kind string, size int64) map[int]float64 {
	out := map[int]float64{}
	for _, x := range s.Samples {
		if x.Kind == kind && (size == 0 || x.Bytes == size) {
			out[x.Round] = x.Rate
		}
	}
	return out
}

// claim is a ratio that is asked for.
type claim struct {
	name, what   string
	ours, theirs []float64 // bytes per second of the rounds
	ratio        float64   // median of the rounds' ratios
	least, most  float64
	best, wanted float64 // ratio of the best rounds; what ratio is asked for
}

func (c *claim) met() bool { return c.ratio >= c.wanted }

func newClaim(name, what string, wanted float64, ours, theirs map[int]float64) *claim {
	c := &claim{name: name, what: what, wanted: wanted}
	var ratios []float64
	for round, x := range ours {
		if y := theirs[round]; y > 0 {
			c.ours, c.theirs, ratios = append(c.ours, x), append(c.theirs, y), append(ratios, x/y)
		}
	}
	if len(ratios) == 0 {
		return nil
	}
	c.ratio, c.least, c.most = middle(ratios), slices.Min(ratios), slices.Max(ratios)
	c.best = slices.Max(c.ours) / slices.Max(c.theirs)
	return c
}

func middle(v []float64) float64 {
	if len(v) == 0 {
		return 0
	}
	v = slices.Sorted(slices.Values(v))
	return (v[(len(v)-1)/2] + v[len(v)/2]) / 2
}

// claims are all ratios of a run: two rails beside one for every size, and beside
// whatever UCX does best of what it was asked for.
func (r *readRun) claims() (out []*claim) {
	add := func(c *claim) {
		if c != nil {
			out = append(out, c)
		}
	}
	for _, s := range r.Settings {
		for _, n := range s.Sizes {
			add(newClaim(fmt.Sprintf("%s, %d MiB", s.Name, n>>20), oneRail, s.Wanted, s.rates(twoRails, n), s.rates(oneRail, n)))
		}
		for _, kind := range []string{ucxOneMiB, ucxLarge} {
			add(newClaim(fmt.Sprintf("%s, %d MiB", s.Name, s.Sizes[0]>>20), kind, 1, s.rates(twoRails, s.Sizes[0]), s.rates(kind, 0)))
		}
	}
	return out
}

// text is the result for people.
func (r *readRun) text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "Kernel %s, %d processors in software; load of the host %.1f (median; %.1f to %.1f).\n\n",
		r.Kernel, r.CPUs, middle(r.Load), slices.Min(r.Load), slices.Max(r.Load))
	fmt.Fprintf(&b, "%-10s %-11s %9s %6s %8s %8s %8s %8s %6s %5s %7s\n", "setting", "kind", "MiB", "rounds", "MB/s", "best", "least", "spread", "rail 2", "idle", "resent")
	for _, s := range r.Settings {
		sizes := append([]int64{1 << 20}, s.Sizes...)
		for _, n := range sizes {
			for _, kind := range []string{oneRail, twoRails, ucxOneMiB, ucxLarge} {
				var rate, second, idle []float64
				var resent uint64
				for _, x := range s.Samples {
					if x.Kind == kind && x.Bytes == n {
						rate, second, idle, resent = append(rate, x.Rate/1e6), append(second, x.Second), append(idle, x.Idle), resent+x.Resent
					}
				}
				if len(rate) == 0 {
					continue
				}
				least, most := slices.Min(rate), slices.Max(rate)
				fmt.Fprintf(&b, "%-10s %-11s %9d %6d %8.2f %8.2f %8.2f %7.0f%% %5.0f%% %4.0f%% %7d\n", s.Name, kind, n>>20, len(rate), middle(rate), most, least,
					100*(most-least)/middle(rate), 100*middle(second), 100*middle(idle), resent)
			}
		}
	}
	for _, s := range r.Settings {
		if n := len(s.Failed); n > 0 {
			fmt.Fprintf(&b, "%s: %d runs of UCX aborted\n", s.Name, n)
		}
	}
	fmt.Fprintf(&b, "\n%-20s %-22s %7s %15s %7s %7s\n", "two rails", "beside", "ratio", "(rounds)", "bests", "wanted")
	for _, c := range r.claims() {
		mark := ""
		if !c.met() {
			mark = "  missed"
		}
		fmt.Fprintf(&b, "%-20s %-22s %7.3f %7.3f-%7.3f %7.3f %7.3f%s\n", c.name, c.what, c.ratio, c.least, c.most, c.best, c.wanted, mark)
	}
	return b.String()
}

func (r *readRun) write(dir string) error {
	raw, err := json.MarshalIndent(r, "", " ")
	return errors.Join(err, os.MkdirAll(dir, 0o755),
		os.WriteFile(filepath.Join(dir, "raw.json"), append(raw, '\n'), 0o644),
		os.WriteFile(filepath.Join(dir, "summary.txt"), []byte(r.text()), 0o644))
}

func TestReadClaims(t *testing.T) {
	s := &readSetting{Name: "equal", Sizes: []int64{64 << 20}, Wanted: 1.9}
	for i, v := range [][3]float64{{10, 19, 18}, {10, 20, 21}, {5, 10, 20}} {
		s.Samples = append(s.Samples, readSample{Kind: oneRail, Bytes: 64 << 20, Round: i, Rate: v[0]}, readSample{Kind: twoRails, Bytes: 64 << 20, Round: i, Rate: v[1]},
			readSample{Kind: ucxOneMiB, Bytes: 1 << 20, Round: i, Rate: v[2]})
	}
	r := &readRun{Load: []float64{1}, Settings: []*readSetting{s}}
	c := r.claims()
	if len(c) != 2 || c[0].ratio != 2 || !c[0].met() || c[0].least != 1.9 || c[0].best != 2 || c[1].met() || c[1].ratio != 20./21 {
		t.Errorf("%+v", c)
	}
	if text := r.text(); strings.Count(text, "missed") != 1 || strings.Count(text, "equal") != 5 {
		t.Error(text)
	}
}
