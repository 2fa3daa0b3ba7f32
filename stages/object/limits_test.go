package object

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/railstore/railstore/cue/deploy"
)

// TestLimits: a deployment's reader becomes limits field by field, and limits that make
// no sense are refused.
func TestLimits(t *testing.T) {
	l := LimitsOf(deploy.Reader{IOTimeout: deploy.Duration(time.Second), Cooldown: deploy.Duration(2 * time.Second), MaxConnectionsPerRail: 3, MaxConnections: 4,
		MaxInflightPerRail: 5, MaxInflight: 6, TaskMaxStripes: 7, OnRailFailure: "fail", MinRails: 2, Weights: "adaptive", Deadline: deploy.Duration(4 * time.Second), Hedge: true, Quarantine: deploy.Duration(3 * time.Second), Recheck: true, Verify: "whole"})
	want := Limits{IOTimeout: time.Second, Cooldown: 2 * time.Second, MaxConnsPerRail: 3, MaxConns: 4, MaxInflightPerRail: 5, MaxInflight: 6, TaskMaxStripes: 7, TaskDepth: 2,
		OnRailFailure: FailRead, MinRails: 2, Adaptive: true, Deadline: 4 * time.Second, Hedge: true, Quarantine: 3 * time.Second, Recheck: true, VerifyWhole: true, StaleRetries: 1}
	if l != want {
		t.Errorf("%+v\nwant %+v", l, want)
	}
	if l := LimitsOf(deploy.Reader{}); l.check() != nil || l.OnRailFailure != Failover || l.Adaptive || l.VerifyWhole || l.MinRails != 1 {
		t.Errorf("%+v", l)
	}
	for name, spoil := range map[string]func(*Limits){
		"IOTimeout": func(l *Limits) { l.IOTimeout = 0 }, "Cooldown": func(l *Limits) { l.Cooldown = -1 }, "Quarantine": func(l *Limits) { l.Quarantine = -1 },
		"Deadline": func(l *Limits) { l.Deadline = -1 }, "MaxConns": func(l *Limits) { l.MaxConns = 0 }, "MaxConnsPerRail": func(l *Limits) { l.MaxConnsPerRail = 0 }, "MaxInflight": func(l *Limits) { l.MaxInflight = 0 },
		"MaxInflightPerRail": func(l *Limits) { l.MaxInflightPerRail = 0 }, "TaskMaxStripes": func(l *Limits) { l.TaskMaxStripes = -1 }, "TaskDepth": func(l *Limits) { l.TaskDepth = 0 },
		"MinRails": func(l *Limits) { l.MinRails = 0 }, "StaleRetries": func(l *Limits) { l.StaleRetries = -1 }, "reroute": func(l *Limits) { l.OnRailFailure = "reroute" },
	} {
		l := DefaultLimits()
		spoil(&l)
		if err := l.check(); !errors.Is(err, ErrBadRequest) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestRailTable: a snapshot is one line under a header whose columns it keeps.
func TestRailTable(t *testing.T) {
	s := RailSnapshot{Name: "a", Device: "ibv:mlx5_0", Provider: "ibv", PlannedBytes: 12, Bytes: 10, MovedOut: 3, MovedIn: 1, Stripes: 2, BytesPerSecond: 1.25e9, LatencyAvgUS: 5.4,
		LatencyMaxUS: 9, Errors: 1, Timeouts: 1, InflightRequests: 2, InflightBytes: 8, RegisteredBytes: 4096, ConnectionsCreated: 3, ConnectionsQuiesced: 1, Retransmits: 7, State: "active"}
	head, line := RailHeader(), s.String()
	if strings.Contains(head+line, "\n") {
		t.Error("more than a line")
	}
	names, values := strings.Fields(strings.NewReplacer("LATENCY us", "LATENCY").Replace(head)), strings.Fields(line)
	want := []string{"a", "ibv:mlx5_0", "ibv", "12", "10", "-3/+1", "2", "10.000", "5/9", "1/1", "2/8", "4096", "3/1", "7", "active"}
	if len(names) != len(want) || strings.Join(values, " ") != strings.Join(want, " ") {
		t.Errorf("%s\n%s", head, line)
	}
	for i := range 3 { // left-aligned columns begin where the header says
		if strings.Index(head, names[i]) != strings.Index(line, values[i]) && i > 0 && values[i] != "ibv" {
			t.Errorf("column %s", names[i])
		}
	}
}

// TestReadWithoutChecksums: what cannot be verified is not read, whether some stripes or
// all lack a checksum; nothing is fetched, and the hint says what to do.
func TestReadWithoutChecksums(t *testing.T) {
	var strip func(*Object)
	x := newWorld(t, func(c *Config) { c.Catalog = &stripCatalog{Catalog: c.Catalog, strip: func(o *Object) { strip(o) }} })
	strip = func(*Object) {}
	x.mustPut(testKey, randomBytes(1, 4*Align))
	for name, f := range map[string]func(*Object){
		"one":    func(o *Object) { o.Placement.Stripes[2].XXH3 = "" },
		"all":    func(o *Object) { o.XXH3 = ""; clearSums(o) },
		"object": func(o *Object) { o.XXH3 = "" },
	} {
		strip = f
		_, _, err := x.w.Read(context.Background(), testKey, ReadOptions{})
		if !errors.Is(err, ErrNoChecksum) || x.net.counts["fetch"] != 0 || hintFor(err) == "" {
			t.Errorf("%s: %v, %d fetches", name, err, x.net.counts["fetch"])
		}
	}
	x.idle()
}

func clearSums(o *Object) {
	for i := range o.Placement.Stripes {
		o.Placement.Stripes[i].XXH3 = ""
	}
}

// stripCatalog changes what it looks up.
type stripCatalog struct {
	Catalog
	strip func(*Object)
}

func (c *stripCatalog) Lookup(ctx context.Context, k Key) (Object, bool, error) {
	o, found, err := c.Catalog.Lookup(ctx, k)
	if found {
		c.strip(&o)
	}
	return o, found, err
}
