package cmd

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/railstore/railstore/pipeline"
	"github.com/railstore/railstore/stages/table"
)

// TestHist holds percentiles to those of the sorted times.
func TestHist(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	var a, b hist
	var all []int64
	for range 20000 {
		v := int64(math.Exp(rnd.Float64() * 25)) // 1 ns to a minute
		all = append(all, v)
		if v%2 == 0 {
			a.add(time.Duration(v))
		} else {
			b.add(time.Duration(v))
		}
	}
	a.merge(&b)
	slices.Sort(all)
	for _, q := range []float64{0.001, 0.01, 0.5, 0.9, 0.99, 0.999, 1} {
		want := all[max(int(math.Ceil(q*float64(len(all))))-1, 0)]
		got := a.quantile(q)
		if got < want || float64(got) > float64(want)*1.016+1 {
			t.Errorf("quantile %v is %d, want %d", q, got, want)
		}
	}
	if a.max != all[len(all)-1] || a.quantile(1) != a.max {
		t.Errorf("max %d, want %d", a.max, all[len(all)-1])
	}
	for i := range 58 * 64 { // all that an int64 can need
		if v := histValue(i); v >= 0 && histIndex(v) != i {
			t.Fatalf("bucket %d ends at %d, which is in bucket %d", i, v, histIndex(v))
		}
	}
	var sum int64
	for _, p := range a.points() {
		sum += p[1]
	}
	if sum != 20000 {
		t.Errorf("%d times in the buckets", sum)
	}
}

// TestZipf holds the share of the first ranks to the distribution.
func TestZipf(t *testing.T) {
	const n, draws = 1000, 400000
	for _, theta := range []float64{0.5, 0.99} {
		z, rnd := newZipf(n, theta), rand.New(rand.NewPCG(3, 4))
		var count [n]int
		for range draws {
			count[z.draw(rnd)]++
		}
		for _, rank := range []int{0, 1} { // these are exact, the others an approximation
			want := 1 / math.Pow(float64(rank+1), theta) / z.zetan
			if got := float64(count[rank]) / draws; math.Abs(got-want) > 0.1*want {
				t.Errorf("theta %v: rank %d has the share %v, want %v", theta, rank, got, want)
			}
		}
		head, want := 0, 0.0
		for i := range 100 {
			head += count[i]
			want += 1 / math.Pow(float64(i+1), theta) / z.zetan
		}
		if got := float64(head) / draws; math.Abs(got-want) > 0.05*want {
			t.Errorf("theta %v: the first 100 have the share %v, want %v", theta, got, want)
		}
	}
	if newZipf(1, 0.99).draw(rand.New(rand.NewPCG(1, 1))) != 0 {
		t.Error("of one key there is one rank")
	}
}

// TestSchedule: moments are in order, within the time, as many as the rate says, and the
// same for the same seed.
func TestSchedule(t *testing.T) {
	for _, arrivals := range []string{arrivalsEven, arrivalsPoisson} {
		k := benchCase{Rate: 10000, Arrivals: arrivals, Duration: time.Second, Warmup: time.Second, Seed: 5}
		s := schedule(&k)
		if len(s) < 19000 || len(s) > 21000 || !slices.IsSorted(s) || s[len(s)-1] >= 2*time.Second {
			t.Errorf("%s: %d moments up to %v", arrivals, len(s), s[len(s)-1])
		}
		if !slices.Equal(s, schedule(&k)) {
			t.Errorf("%s: not the same again", arrivals)
		}
	}
}

func TestCheckRow(t *testing.T) {
	row := make([]float32, 33)
	benchRow(row, 7)
	for k := range 5 {
		if got := checkRow(row, 7); got != int64(k) {
			t.Errorf("after %d updates: %d", k, got)
		}
		for i := range row {
			row[i]--
		}
	}
	row[20]++ // torn: one float lacks an update
	if got := checkRow(row, 7); got != -1 {
		t.Errorf("a torn row counts as %d updates", got)
	}
	benchRow(row, 7)
	if checkRow(row, 8) != -1 || checkRow(make([]float32, 33), 7) != -1 {
		t.Error("another key's row, or none, was taken")
	}
}

// slowTable takes its time for one request in the middle.
type slowTable struct {
	localTable
	n     int
	stall time.Duration
	wrong bool // gives a torn row
}

func (s *slowTable) Get(ctx context.Context, keys []uint64, rows []float32, found []bool) error {
	err := s.localTable.Get(ctx, keys, rows, found)
	if s.n++; s.n == 20 {
		select {
		case <-time.After(s.stall):
		case <-ctx.Done():
		}
		if s.wrong {
			rows[0]++
		}
	}
	return err
}

func benchStore(t *testing.T, dim int) *table.Table {
	t.Helper()
	s, err := table.Open(table.Config{Memory: table.NewRegions()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	tab, err := s.Init(table.Spec{Name: "t", Dim: dim, Optimizer: table.Optimizer{Kind: table.SGD, LearningRate: 1}})
	if err != nil {
		t.Fatal(err)
	}
	return tab
}

// TestNoCoordinatedOmission: a stall delays all requests that were to come meanwhile, and
// their times say so, in the open loop; that is what it is for.
func TestNoCoordinatedOmission(t *testing.T) {
	k := benchCase{Layer: layerStorage, Records: 100, Dim: 2, Batch: 1, Depth: 1, Keys: keysUniform, Read: 100, Rate: 200, Arrivals: arrivalsEven,
		Duration: time.Second, Seed: 1, Verify: true}
	s := &slowTable{localTable: localTable{benchStore(t, 2)}, stall: 400 * time.Millisecond}
	r, err := runBench(context.Background(), k, s, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	// 80 requests fall into the stall, 200 in all: the 70th percentile is one of them.
	if r.Get.Requests < 190 || r.Late < 60 || r.Get.P90US < 100e3 || r.Get.MaxUS < 390e3 {
		t.Errorf("%d requests, %d late, p90 %v µs, max %v µs", r.Get.Requests, r.Late, r.Get.P90US, r.Get.MaxUS)
	}
}

// TestBenchFindsWrongRows: a row that is wrong ends the benchmark.
func TestBenchFindsWrongRows(t *testing.T) {
	k := benchCase{Layer: layerStorage, Records: 100, Dim: 2, Batch: 3, Depth: 1, Keys: keysFixed, Read: 100, Duration: 5 * time.Second, Seed: 1, Verify: true}
	_, err := runBench(context.Background(), k, &slowTable{localTable: localTable{benchStore(t, 2)}, wrong: true}, nil, nil)
	var pe *pipeline.Error
	if !errors.As(err, &pe) || pe.Layer != pipeline.LayerIntegrity {
		t.Errorf("%v", err)
	}
}

// TestBenchMixed: reads and updates at once, every update found again, and the folder of
// results has what it should.
func TestBenchMixed(t *testing.T) {
	var results []benchResult
	for _, keys := range []string{keysUniform, keysZipf} {
		k := benchCase{Layer: layerStorage, Records: 500, Dim: 3, Batch: 20, Depth: 3, Keys: keys, Theta: 0.9, Read: 60, Duration: 100 * time.Millisecond,
			Warmup: 20 * time.Millisecond, Seed: 1, Verify: true}
		r, err := runBench(context.Background(), k, localTable{benchStore(t, 3)}, []int{os.Getpid()}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if r.Get.Requests == 0 || r.Update.Requests == 0 || r.Compared == 0 || r.UpdatesBooked < r.Update.Rows || r.ClientRSS == 0 {
			t.Errorf("%+v", r)
		}
		results = append(results, r)
	}
	dir := filepath.Join(t.TempDir(), "a", "b")
	if err := writeBench(dir, results, ""); err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(filepath.Join(dir, "raw.json"))
	if err != nil {
		t.Fatal(err)
	}
	var back []benchResult
	if err := json.Unmarshal(raw, &back); err != nil || len(back) != 2 || back[1].Get.Requests != results[1].Get.Requests || len(back[0].Get.Histogram) == 0 {
		t.Errorf("raw.json: %v", err)
	}
	md, err := os.ReadFile(filepath.Join(dir, "summary.md"))
	if err != nil || strings.Count(string(md), "\n| storage-only |") != 4 {
		t.Errorf("summary.md: %v\n%s", err, md)
	}
	for l := range strings.Lines(string(md)) {
		if strings.HasPrefix(l, "|") && strings.Count(l, "|") != 25 {
			t.Errorf("a line of %d cells: %s", strings.Count(l, "|")-1, l)
		}
	}
	svg, err := os.ReadFile(filepath.Join(dir, "latency.svg"))
	if err != nil || !strings.Contains(string(svg), "<svg") || strings.Count(string(svg), "<path") < 4 {
		t.Errorf("latency.svg: %v, %d bytes", err, len(svg))
	}
}

// TestBenchPartial: what was measured before a measurement failed is kept, and says so.
func TestBenchPartial(t *testing.T) {
	if raceEnabled {
		t.Skip("prerequisite: a build without the race detector; such a build measures nothing")
	}
	t.Setenv("RS_STATE", t.TempDir())
	dir := filepath.Join(t.TempDir(), "out")
	args := append(strings.Fields("bench table --layer storage-only,ps --records 100 --duration 10ms --warmup 1ms --out"), dir)
	if code, _, errs := rs(t, args...); code != 3 || !strings.Contains(errs, "results are in "+dir) {
		t.Errorf("exit code %d, %s", code, errs)
	}
	md, err := os.ReadFile(filepath.Join(dir, "summary.md"))
	if err != nil || !strings.Contains(string(md), "**Partial**, 1 of 2 measurements: ") || strings.Count(string(md), "\n| storage-only |") != 1 {
		t.Errorf("%v\n%s", err, md)
	}
}

func TestBenchUsage(t *testing.T) {
	for _, tc := range []struct{ args, errs string }{
		{"bench table --layer disk", "--layer disk: want storage-only or ps"},
		{"bench table --layer storage-only --batch 0", "--batch 0: want whole numbers from 1"},
		{"bench table --layer storage-only --batch 1,x", "--batch 1,x: want whole numbers from 1"},
		{"bench table --layer storage-only --read 101", "--read 101: want whole numbers from 0 to 100"},
		{"bench table --layer storage-only --keys few", "--keys few: want uniform, zipf or fixed"},
		{"bench table --layer storage-only --theta 1", "--theta 1: want a number above 0 and below 1"},
		{"bench table --layer storage-only --arrivals never", "--arrivals never: want poisson or even"},
		{"bench table --layer storage-only --rate 1e6 --duration 1h", "more than 1e8 requests"},
		{"bench table --layer storage-only --records 0", "--records 0: want 1 to"},
	} {
		code, _, errs := rs(t, strings.Fields(tc.args)...)
		if code != 2 || !strings.Contains(errs, tc.errs) {
			t.Errorf("%s: exit code %d, %s", tc.args, code, errs)
		}
	}
	if raceEnabled {
		code, out, errs := rs(t, strings.Fields("bench table --layer storage-only --records 100 --duration 10ms")...)
		if code != 2 || out != "" || !strings.Contains(errs, "race detector") {
			t.Errorf("a build with the race detector: exit code %d, %s %s", code, out, errs)
		}
	}
	code, out, errs := rs(t, strings.Fields("bench table --layer storage-only --records 100 --duration 10ms --warmup 1ms --read 50 --check")...)
	if code != 0 || !strings.Contains(out, "all as they must be") || strings.Contains(out, "rows/s") {
		t.Errorf("exit code %d, %s %s", code, out, errs)
	}
}
