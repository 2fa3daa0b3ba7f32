package cmd

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestMedian(t *testing.T) {
	for _, c := range []struct {
		in   []float64
		want float64
	}{{nil, 0}, {[]float64{3}, 3}, {[]float64{4, 1}, 2.5}, {[]float64{9, 1, 2}, 2}, {[]float64{1, 100, 2, 3}, 2.5}} {
		in := slices.Clone(c.in)
		if got := median(c.in); got != c.want {
			t.Errorf("median of %v is %v, want %v", in, got, c.want)
		}
		if !slices.Equal(in, c.in) {
			t.Errorf("median changed its input %v to %v", in, c.in)
		}
	}
}

// pairedCase has three rounds in which the whole machine is once ten times as slow.
func pairedCase() readCase {
	c := readCase{Bytes: 1 << 30, Readers: 1, WriteBytes: 1 << 20}
	for round, speed := range []float64{1, 10, 1} {
		for kind, secs := range map[string]float64{kindOne: 4, kindAll: 2, kindWrite: 1} {
			c.Samples = append(c.Samples, readSample{Round: round + 1, Kind: kind, Seconds: secs * speed, Bytes: 1 << 30, BytesPerSecond: (1 << 30) / (secs * speed),
				ClientCPU: 0.5, ShardCPU: 0.25, ClientRSS: int64(100 + round), Degraded: kind == kindAll && round == 0})
		}
	}
	c.sum()
	return c
}

func TestReadCaseSum(t *testing.T) {
	c := pairedCase()
	want := []kindSum{
		{kindOne, 3, 0, 1 << 28, (1 << 30) / 40.0, 1 << 28, 0.5, 0.25, 102, 0},
		{kindAll, 3, 1, 1 << 29, (1 << 30) / 20.0, 1 << 29, 0.5, 0.25, 102, 0},
		{kindWrite, 3, 0, 1 << 30, (1 << 30) / 10.0, 1 << 30, 0.5, 0.25, 102, 0},
	}
	if !slices.Equal(c.Kinds, want) {
		t.Errorf("kinds are\n%+v, want\n%+v", c.Kinds, want)
	}
	ratios := map[string]float64{}
	for _, r := range c.Ratios {
		ratios[r.Of+"/"+r.To] = r.Ratio
		if math.Abs(r.Least-r.Ratio) > 1e-9 || math.Abs(r.Most-r.Ratio) > 1e-9 {
			t.Errorf("a slow round changes the ratio %+v, which is within rounds", r)
		}
	}
	for of, v := range map[string]float64{kindAll + "/" + kindOne: 2, kindAll + "/" + kindWrite: 0.5, kindOne + "/" + kindWrite: 0.25} {
		if math.Abs(ratios[of]-v) > 1e-9 {
			t.Errorf("%s is %v, want %v", of, ratios[of], v)
		}
	}
	var alone readCase
	alone.Samples = []readSample{{Round: 1, Kind: kindOne, Seconds: 1, Bytes: 5, BytesPerSecond: 5}}
	alone.sum()
	if len(alone.Kinds) != 1 || len(alone.Ratios) != 0 {
		t.Errorf("one rail alone has %+v", alone)
	}
}

func TestReadResultFolder(t *testing.T) {
	r := readResult{readSetting: readSetting{Rails: []benchRail{{"r0", "soft:127.0.0.1", "soft", 1}, {"r1", "mlx5_0", "ibv", 2}}, CPUs: 2, LoadBefore: 1.5, Busy: true}, Cases: []readCase{pairedCase()}}
	dir := filepath.Join(t.TempDir(), "a", "b")
	if err := r.write(dir); err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(filepath.Join(dir, "raw.json"))
	if err != nil {
		t.Fatal(err)
	}
	var back readResult
	if err := json.Unmarshal(raw, &back); err != nil || len(back.Cases[0].Samples) != 9 {
		t.Errorf("raw.json: %v, %+v", err, back)
	}
	sum, err := os.ReadFile(filepath.Join(dir, "summary.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{string(sum), r.text()} {
		for _, want := range []string{"all rails / one rail", "2.000", "Some of these rails are software", "Nothing is claimed about hardware that was not there", "load average 1.50", "machine was busy", "plain WRITE of 1 MiB"} {
			if !strings.Contains(text, want) {
				t.Errorf("no %q in\n%s", want, text)
			}
		}
	}
	soft := readSetting{Rails: r.Rails[:1]}
	if s := soft.scope(); !strings.Contains(s, "No RDMA hardware took part") {
		t.Errorf("soft rails: %s", s)
	}
	hard := readSetting{Rails: r.Rails[1:]}
	if s := hard.scope(); strings.Contains(s, "No RDMA hardware") {
		t.Errorf("hardware: %s", s)
	}
}

func TestCPUTime(t *testing.T) {
	own := []int{os.Getpid()}
	before := cpuTime(own)
	x := 1.0
	for i := range 20_000_000 {
		x += math.Sqrt(float64(i))
	}
	if after := cpuTime(own); before <= 0 || after-before < 1e-3 || x == 0 {
		t.Errorf("CPU time went from %v to %v", before, after)
	}
	if got := cpuTime([]int{1 << 22}); got != 0 {
		t.Errorf("a process that is not there has used %v", got)
	}
}
