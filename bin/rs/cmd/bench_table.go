package cmd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/railstore/railstore/stages/launch"
	"github.com/railstore/railstore/stages/ps"
	"github.com/railstore/railstore/stages/table"
)

// Layers of what is measured. Numbers of different layers are not compared.
const (
	layerStorage = "storage-only"
	layerNetwork = "PS/network"
)

func (a *app) benchTableCommand() *cli.Command {
	return &cli.Command{
		Name:  "table",
		Usage: "measure GETs and UPDATEs of embedding tables",
		Description: `Fills a table of its own, reads and updates it for a while, compares every row that
comes back with what it must be, and drops it. The layer is "storage-only" (a table
of this process, no network) or "ps", the running deployment, reported as
PS/network. Without --rate each of --depth callers asks again as soon as it has its
answer (closed loop). With --rate requests come at times that are fixed beforehand,
and a request's time counts from then, also if all callers were busy (open loop).
Times are of single requests. Lists, as in --batch 1,500, are measured one after
the other.

Results go to a folder: raw.json, summary.md and latency.svg. After an interrupt or
a failure they are of the measurements that were complete, marked as partial. A build with the race
detector or without optimization measures nothing; it can --check only.

Examples:
   rs bench table --layer storage-only --records 10000 --duration 200ms --warmup 50ms
   rs bench table --records 5000 --dim 16 --batch 1,64 --duration 200ms --warmup 50ms
   rs bench table --records 5000 --read 90 --keys zipf --rate 500 --duration 200ms --warmup 50ms
   rs bench table --records 2000 --duration 100ms --warmup 50ms --check`,
		Flags: tableFlags(
			&cli.StringFlag{Name: "layer", Value: "ps", Usage: "`LAYERS`: storage-only, ps, or both with a comma"},
			&cli.IntFlag{Name: "records", Value: 10000, Usage: "`ROWS` of the table"},
			&cli.StringFlag{Name: "dim", Value: "32", Usage: "`FLOATS` of a row, a list"},
			&cli.StringFlag{Name: "batch", Value: "64", Usage: "`KEYS` of a request, a list"},
			&cli.StringFlag{Name: "depth", Value: "4", Usage: "`REQUESTS` at once, a list"},
			&cli.StringFlag{Name: "keys", Value: keysUniform, Usage: "`DISTRIBUTION` of keys: uniform, zipf (scrambled), or fixed, the same ones always"},
			&cli.FloatFlag{Name: "theta", Value: 0.99, Usage: "of zipf, a `NUMBER` above 0 and below 1"},
			&cli.StringFlag{Name: "read", Value: "100", Usage: "`PERCENT` of requests that are GETs, the others are UPDATEs, a list"},
			&cli.FloatFlag{Name: "rate", HideDefault: true, Usage: "`REQUESTS` a second in an open loop (default: closed loop)"},
			&cli.StringFlag{Name: "arrivals", Value: arrivalsPoisson, Usage: "when they come in an open loop: poisson or even"},
			&cli.DurationFlag{Name: "duration", Value: 5 * time.Second, Usage: "of each measurement"},
			&cli.DurationFlag{Name: "warmup", Value: time.Second, Usage: "before each measurement"},
			&cli.Uint64Flag{Name: "seed", Value: 1, Usage: "of keys, arrivals and the mix"},
			&cli.StringFlag{Name: "get-mode", HideDefault: true, Usage: "`MODE` of answers: auto, direct_sg or staging_copy (default: the recipe's)"},
			&cli.StringFlag{Name: "out", TakesFile: true, Usage: "`FOLDER` of results (default: results/table-TIME)"},
			&cli.BoolFlag{Name: "no-verify", Usage: "do not compare rows while measuring, which takes the callers' time"},
			&cli.BoolFlag{Name: "keep", Usage: "do not drop the table afterwards"},
			&cli.BoolFlag{Name: "check", Usage: "compare rows, report no times and write no results"},
		),
		Action: a.benchTable,
	}
}

// benchTableName is the table that is measured.
const benchTableName = "rs-bench"

func (a *app) benchTable(ctx context.Context, c *cli.Command) error {
	if _, err := arguments(c); err != nil {
		return err
	}
	cases, err := benchCases(c)
	if err != nil {
		return err
	}
	check := c.Bool("check")
	if why := slowBuild(); why != "" && !check {
		return usagef("this rs is %s: its times mean nothing", why).withHint("measure with a plain build (make build), or use --check")
	}
	out := c.String("out")
	if out == "" {
		out = filepath.Join("results", "table-"+time.Now().UTC().Format("20060102-150405"))
	}
	if !check { // before the time is spent
		if err := writableFolder(out); err != nil {
			return atOp("bench", fmt.Errorf("--out %s: %w", out, err))
		}
	}
	var results []benchResult
	for _, k := range cases {
		a.progress("%s", k)
		var r benchResult
		if r, err = a.benchCase(ctx, c, k); err != nil {
			break // what was measured until then is kept
		}
		results = append(results, r)
		if err := a.printBench(&r, check); err != nil {
			return err
		}
	}
	if check || len(results) == 0 {
		return err
	}
	partial := ""
	if err != nil {
		partial = fmt.Sprintf("%d of %d measurements: %s", len(results), len(cases), launch.FailureOf(err))
		if cause := context.Cause(ctx); cause != nil {
			partial = fmt.Sprintf("%d of %d measurements: %v", len(results), len(cases), cause)
		}
	}
	if werr := writeBench(out, results, partial); werr != nil {
		return errors.Join(err, atOp("bench", werr))
	}
	a.progress("results are in %s", out)
	return err
}

// slowBuild says what keeps a build from being measured, or is empty.
func slowBuild() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "built in a way that it does not tell"
	}
	for _, s := range info.Settings {
		switch {
		case s.Key == "-race" && s.Value == "true":
			return "built with the race detector"
		case s.Key == "-gcflags" && slices.ContainsFunc(strings.FieldsFunc(s.Value, func(r rune) bool { return r == ' ' || r == '=' || r == '\'' || r == '"' }), func(f string) bool { return f == "-N" || f == "-l" }):
			return "built without optimization"
		case (s.Key == "-asan" || s.Key == "-msan" || s.Key == "-cover") && s.Value == "true":
			return "built with " + s.Key
		}
	}
	return ""
}

// benchCases are all combinations of the lists.
func benchCases(c *cli.Command) ([]benchCase, error) {
	list := func(flag string, from, to int) ([]int, error) {
		var out []int
		for s := range strings.SplitSeq(c.String(flag), ",") {
			n, err := strconv.Atoi(strings.TrimSpace(s))
			if err != nil || n < from || n > to {
				return nil, usagef("--%s %s: want whole numbers from %d to %d", flag, c.String(flag), from, to)
			}
			out = append(out, n)
		}
		return out, nil
	}
	dims, err1 := list("dim", 1, table.MaxDim)
	batches, err2 := list("batch", 1, 1<<20)
	depths, err3 := list("depth", 1, 4096)
	reads, err4 := list("read", 0, 100)
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		return nil, err
	}
	base := benchCase{Records: c.Int("records"), Keys: c.String("keys"), Rate: c.Float("rate"), Arrivals: c.String("arrivals"),
		Duration: c.Duration("duration"), Warmup: c.Duration("warmup"), Seed: c.Uint64("seed"), Verify: !c.Bool("no-verify") || c.Bool("check"), GetMode: c.String("get-mode")}
	switch {
	case base.Records < 1 || base.Records > 1<<30:
		return nil, usagef("--records %d: want 1 to %d", base.Records, 1<<30)
	case base.Keys != keysUniform && base.Keys != keysZipf && base.Keys != keysFixed:
		return nil, usagef("--keys %s: want uniform, zipf or fixed", base.Keys)
	case base.Arrivals != arrivalsPoisson && base.Arrivals != arrivalsEven:
		return nil, usagef("--arrivals %s: want poisson or even", base.Arrivals)
	case !(c.Float("theta") > 0 && c.Float("theta") < 1):
		return nil, usagef("--theta %v: want a number above 0 and below 1", c.Float("theta"))
	case !(base.Rate >= 0 && base.Rate <= 1e7):
		return nil, usagef("--rate %v: want 0 to 1e7", base.Rate)
	case base.Duration <= 0 || base.Warmup < 0:
		return nil, usagef("--duration %v, --warmup %v: want times above 0 and from 0 on", base.Duration, base.Warmup)
	case base.Rate*(base.Duration+base.Warmup).Seconds() > 1e8:
		return nil, usagef("--rate: more than 1e8 requests in all")
	}
	if base.Keys == keysZipf {
		base.Theta = c.Float("theta")
	}
	if base.Rate == 0 {
		base.Arrivals = ""
	}
	var out []benchCase
	for l := range strings.SplitSeq(c.String("layer"), ",") {
		k := base
		switch strings.TrimSpace(l) {
		case "storage-only":
			k.Layer = layerStorage
		case "ps":
			k.Layer = layerNetwork
		default:
			return nil, usagef("--layer %s: want storage-only or ps", l)
		}
		for _, k.Dim = range dims {
			for _, k.Read = range reads {
				for _, k.Batch = range batches {
					for _, k.Depth = range depths {
						out = append(out, k)
					}
				}
			}
		}
	}
	return out, nil
}

func (a *app) benchCase(ctx context.Context, c *cli.Command, k benchCase) (r benchResult, err error) {
	// An update takes 1 from every float: see benchRow.
	spec := table.Spec{Name: benchTableName, Dim: k.Dim, Optimizer: table.Optimizer{Kind: table.SGD, LearningRate: 1}}
	if k.Layer == layerStorage {
		store, err := table.Open(table.Config{Memory: table.NewRegions()})
		if err != nil {
			return r, err
		}
		defer func() { err = errors.Join(err, store.Close()) }()
		t, err := store.Init(spec)
		if err != nil {
			return r, err
		}
		return runBench(ctx, k, localTable{t}, []int{os.Getpid()}, nil)
	}
	ctx, s, done, err := a.openTables(ctx, c, func(cfg *ps.SessionConfig) { cfg.Modes.Get = k.GetMode })
	if err != nil {
		return r, err
	}
	defer func() { err = joinClose(err, done) }()
	if _, err := s.Drop(ctx, spec.Name); err != nil {
		return r, err
	}
	if err := s.Init(ctx, spec); err != nil {
		return r, err
	}
	defer func() {
		if !c.Bool("keep") {
			_, derr := s.Drop(context.WithoutCancel(ctx), spec.Name)
			err = errors.Join(err, derr)
		}
	}()
	t, err := s.Table(ctx, spec.Name)
	if err != nil {
		return r, err
	}
	pids, err := shardPIDs(ctx, s.Control(), s.Shards())
	if err != nil {
		return r, err
	}
	r, err = runBench(ctx, k, t, []int{os.Getpid()}, pids)
	r.Shards = len(s.Shards())
	for _, rail := range s.Lanes().Set.Info() {
		r.Rails = append(r.Rails, fmt.Sprintf("%s %s (%s)", rail.Name, rail.Device, rail.Provider))
	}
	return r, tableFailure(err)
}

// printBench shows a measurement, or, of a check, what was compared.
func (a *app) printBench(r *benchResult, check bool) error {
	if check {
		row := struct {
			Layer   string `json:"layer"`
			Case    string `json:"case"`
			Rows    int64  `json:"rows"`
			Compare int64  `json:"rows_compared"`
			Updates int64  `json:"updates"`
		}{r.Layer, r.benchCase.String(), r.Get.Rows, r.Compared, r.Update.Rows}
		if a.json {
			return a.printJSON(row)
		}
		a.printf("%s: %d rows read, %d compared, %d updated: all as they must be\n", row.Case, row.Rows, row.Compare, row.Updates)
		return nil
	}
	if a.json {
		return a.printJSON(r)
	}
	a.printf("%s", benchText(r))
	return nil
}
