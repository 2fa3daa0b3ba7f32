package cmd

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/railstore/railstore/ctrl"
	"github.com/railstore/railstore/cue/deploy"
	"github.com/railstore/railstore/stages/object"
)

// Flags of put, read and rm.
const (
	flagRails  = "rails"
	flagStripe = "stripe"
	flagHost   = "host"
	flagTTL    = "ttl"

	flagIfGeneration = "if-generation"
)

func ifGenerationFlag() cli.Flag {
	return &cli.Uint64Flag{Name: flagIfGeneration, HideDefault: true, Usage: "fail unless the object is this `GENERATION`"}
}

// ifGeneration is the generation that the flag names, 0 without it.
func ifGeneration(c *cli.Command) (uint64, error) {
	n := c.Uint64(flagIfGeneration)
	if c.IsSet(flagIfGeneration) && (n == 0 || n == ctrl.AnyOlder) {
		return 0, usagef("--%s %d: generations begin with 1", flagIfGeneration, n)
	}
	return n, nil
}

func railsFlag() cli.Flag {
	return &cli.StringFlag{Name: flagRails, Usage: "only these `RAILS`, names separated by commas (default: all of the host)"}
}

func hostFlag() cli.Flag {
	return &cli.StringFlag{Name: flagHost, Usage: "`NAME` of the host in the recipe whose rails are used (default: the first one without a shard)"}
}

func connectFlag() cli.Flag {
	return &cli.DurationFlag{Name: flagTimeout, Value: 30 * time.Second, Usage: "how long connecting to the shards may take"}
}

func (a *app) putCommand() *cli.Command {
	return &cli.Command{
		Name:      "put",
		Usage:     "store a file as an object, striped over the shards",
		ArgsUsage: "NAMESPACE/OBJECT FILE",
		Description: `Every stripe is durable on its shard before the object changes; until then, and
when anything fails, readers see what was there before. FILE must be a regular
file. With --ttl the object is there for so long, by the clock of the control
plane, and reads as absent afterwards. Sizes are bytes: with an i in the unit powers of 1024 (64KiB, 4MiB),
without one of 1000 (64KB, 1M).

Examples:
   rs put kv/layer0 big.bin
   rs put --if-absent kv/layer1 big.bin
   rs put --if-generation 1 --ttl 1h kv/layer0 big.bin
   rs put --stripe 1MiB --rails rail0 kv/layer2 big.bin`,
		Flags: []cli.Flag{
			deploymentFlag(), hostFlag(), railsFlag(), connectFlag(),
			&cli.StringFlag{Name: flagStripe, Usage: "`SIZE` of a stripe (default: the deployment's objects.stripeBytes)"},
			&cli.BoolFlag{Name: "if-absent", Usage: "fail if the object exists"},
			ifGenerationFlag(),
			&cli.DurationFlag{Name: flagTTL, Usage: "`TIME` for which the object is there (default: for ever)"},
		},
		Action: a.put,
	}
}

func (a *app) put(ctx context.Context, c *cli.Command) (err error) {
	args, err := arguments(c, "NAMESPACE/OBJECT", "FILE")
	if err != nil {
		return err
	}
	key, err := objectArgument(c, args[0])
	if err != nil {
		return err
	}
	opt := object.PutOptions{IfAbsent: c.Bool("if-absent"), TTL: c.Duration(flagTTL)}
	if opt.IfGeneration, err = ifGeneration(c); err != nil {
		return err
	}
	if opt.IfAbsent && opt.IfGeneration != 0 {
		return usagef("%s: both --if-absent and --%s", c.FullName(), flagIfGeneration)
	}
	if c.IsSet(flagTTL) && (opt.TTL < ctrl.MinTTL || opt.TTL > ctrl.MaxTTL) {
		return usagef("--%s %v: want a time from %v to %v", flagTTL, opt.TTL, ctrl.MinTTL, ctrl.MaxTTL)
	}
	if s := c.String(flagStripe); s != "" {
		n, err := deploy.ParseSize(s)
		if err != nil || n == 0 {
			return usagef("--stripe %s: want a size above zero, such as 4MiB", s)
		}
		if _, err := object.StripeCount(0, uint64(n)); err != nil {
			return usagef("--stripe %s: want a multiple of %s up to %s", s, size(object.Align), size(object.MaxStripeBytes))
		}
		opt.StripeBytes = uint64(n)
	}
	if opt.Rails, err = railsOf(c); err != nil {
		return err
	}
	src, err := object.OpenSource(args[1])
	if err != nil {
		return atOp("put", err)
	}
	defer func() { _ = src.Close() }()
	ctx, w, done, err := a.openSession(ctx, c, opt.Rails)
	if err != nil {
		return err
	}
	defer func() { err = joinClose(err, done) }()
	bar := a.newBar("put "+key.String(), src.Size)
	opt.Progress = bar.add
	rep, err := w.Put(ctx, key, src, opt)
	bar.stop()
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(rep)
	}
	a.printf("%s generation %d: %s in %d stripes of %s, xxh3 %s, %s, %s\n", key, rep.Generation, bytesText(rep.Bytes),
		rep.Stripes, size(rep.StripeBytes), rep.XXH3, seconds(rep.Seconds), rate(rep.BytesPerSecond))
	a.printRails(rep.Rails)
	for _, e := range rep.Excluded {
		a.progress("degraded: %s", e)
	}
	if rep.MovedStripes > 0 {
		a.progress("%d stripes went to another directory or shard than planned; rs status shows which directory is out or full", rep.MovedStripes)
	}
	if rep.LeftStripes > 0 {
		a.progress("%d stripes of generation %d could not be removed yet; they are kept as garbage", rep.LeftStripes, rep.Replaced)
	}
	return nil
}

// railsOf are the rails that --rails names, nil for all.
func railsOf(c *cli.Command) ([]string, error) {
	if !c.IsSet(flagRails) {
		return nil, nil
	}
	var out []string
	seen := make(map[string]bool)
	for n := range strings.SplitSeq(c.String(flagRails), ",") {
		n = strings.TrimSpace(n)
		if n == "" || seen[n] {
			return nil, usagef("--rails %q: want names of rails, each once, separated by commas", c.String(flagRails))
		}
		seen[n] = true
		out = append(out, n)
	}
	return out, nil
}

// printRails is the table of what each rail did.
func (a *app) printRails(rails []object.RailSnapshot) {
	t := newTable("RAIL", "DEVICE", "PROVIDER", "PLANNED", "BYTES", "STRIPES", "RATE", "LATENCY avg/max", "ERRORS", "RETRANS", "STATE")
	t.rightAlign(4, 5, 6, 9, 10)
	for i := range rails {
		r := &rails[i]
		t.row(r.Name, r.Device, r.Provider, r.PlannedBytes, r.Bytes, r.Stripes, rate(r.BytesPerSecond),
			fmt.Sprintf("%s/%s", seconds(r.LatencyAvgUS/1e6), seconds(r.LatencyMaxUS/1e6)), r.Errors, r.Retransmits, a.paintState(orDash(r.State)))
	}
	a.printf("%s", t)
}
