package cmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/urfave/cli/v3"

	"github.com/railstore/railstore/cue/deploy"
	"github.com/railstore/railstore/pipeline"
	"github.com/railstore/railstore/stages/object"
)

func (a *app) readCommand() *cli.Command {
	return &cli.Command{
		Name:      "read",
		Usage:     "read an object over all rails at once, verified",
		ArgsUsage: "NAMESPACE/OBJECT",
		Description: `Reads the object into memory over every rail of the host, in shares by weight,
checks every stripe, and only then writes the output. A file gets its new content
all at once or stays as it was; "-" is standard output. Without -o the content is
read and verified and goes nowhere. With --explain it prints which bytes would
come over which rail, and reads nothing. With --watch it reads again and again
over the same connections, a line for each read, until it is interrupted; a read
that fails is a line, too. --range reads a part: 4MiB:1MiB is 1 MiB from offset
4 MiB on, and 4MiB: all from there to the end. Whole stripes are fetched and
verified all the same. --deadline is for the read itself, --timeout for connecting;
near its deadline a read asks for late stripes over another rail, too.

Examples:
   rs read kv/layer0 -o out.bin
   rs read kv/layer0 --rails rail0 -o out.bin
   rs read kv/layer0 --range 4KiB:100 -o part.bin
   rs read kv/layer0 --deadline 10s
   rs read kv/layer0 --explain
   rs read kv/layer0 --watch --every 100ms --count 3
   rs read kv/layer0 --format json`,
		Flags: []cli.Flag{
			deploymentFlag(), hostFlag(), railsFlag(), connectFlag(),
			&cli.StringFlag{Name: "output", Aliases: []string{"o"}, Usage: "`FILE` to write, or - for standard output"},
			&cli.StringFlag{Name: flagRange, Usage: "only a part, `FIRST:LENGTH`, both sizes; without LENGTH to the end"},
			&cli.DurationFlag{Name: flagDeadline, HideDefault: true, Usage: "`TIME` that the read may take (default: the recipe's reader.deadline)"},
			&cli.BoolFlag{Name: "explain", Usage: "print the plan and read nothing"},
			failOnDegradedFlag(),
			&cli.BoolFlag{Name: "watch", Aliases: []string{"w"}, Usage: "again and again, until interrupted"},
			&cli.DurationFlag{Name: flagEvery, Value: watchEvery, Usage: "`TIME` from the begin of one read of --watch to the next"},
			&cli.IntFlag{Name: flagCount, HideDefault: true, Usage: "end --watch after so many `READS`"},
		},
		Action: a.read,
	}
}

func failOnDegradedFlag() cli.Flag {
	return &cli.BoolFlag{Name: "fail-on-degraded", Usage: "exit with 5 when the object is complete but did not come as planned"}
}

func (a *app) read(ctx context.Context, c *cli.Command) (err error) {
	args, err := arguments(c, "NAMESPACE/OBJECT")
	if err != nil {
		return err
	}
	key, err := objectArgument(c, args[0])
	if err != nil {
		return err
	}
	opt, err := readOptions(c)
	if err != nil {
		return err
	}
	to := c.String("output")
	if to == "" && c.IsSet("output") {
		return usagef("-o: want a file name, or - for standard output")
	}
	if _, err := connectTime(c); err != nil {
		return err
	}
	f, err := a.folder(c)
	if err != nil {
		return err
	}
	of := sessionFor{folder: f, host: c.String(flagHost), rails: opt.Rails}
	switch {
	case c.Bool("watch"):
		return a.watchRead(ctx, c, of, key, opt)
	case c.IsSet(flagEvery) || c.IsSet(flagCount):
		return usagef("rs read: --%s and --%s are for --watch", flagEvery, flagCount)
	case c.Bool("explain"):
		return a.explain(ctx, c, of, key, opt)
	}
	return a.readTo(ctx, c, of, key, opt, to)
}

// Flags of rs read alone.
const (
	flagRange    = "range"
	flagDeadline = "deadline"
)

// readOptions are what the flags of rs read say of one read.
func readOptions(c *cli.Command) (opt object.ReadOptions, err error) {
	if opt.Rails, err = railsOf(c); err != nil {
		return opt, err
	}
	if c.IsSet(flagRange) {
		if opt.Range, err = parseRange(c.String(flagRange)); err != nil {
			return opt, err
		}
	}
	opt.Deadline = c.Duration(flagDeadline)
	if c.IsSet(flagDeadline) && opt.Deadline <= 0 {
		return opt, usagef("--%s %v: want a time above zero, such as 10s", flagDeadline, opt.Deadline)
	}
	return opt, nil
}

// parseRange reads FIRST:LENGTH, both sizes; an empty LENGTH is all from there on.
func parseRange(s string) (*object.Range, error) {
	first, length, ok := strings.Cut(s, ":")
	off, err := deploy.ParseSize(first)
	if !ok || err != nil {
		return nil, usagef("--%s %q: want FIRST:LENGTH, such as 4MiB:64KiB, or FIRST: for all from there on", flagRange, s)
	}
	r := &object.Range{Offset: uint64(off)}
	if length == "" {
		return r, nil
	}
	n, err := deploy.ParseSize(length)
	if err != nil || n == 0 {
		return nil, usagef("--%s %q: want a length above zero, such as 64KiB", flagRange, s)
	}
	r.Length = uint64(n)
	return r, nil
}

// readTo reads an object once and writes it, if to is not empty.
func (a *app) readTo(ctx context.Context, c *cli.Command, of sessionFor, key object.Key, opt object.ReadOptions, to string) (err error) {
	var out *object.Output
	if to != "" {
		if out, err = object.OpenOutput(ctx, to, a.out); err != nil {
			return atOp("read", err)
		}
		defer func() { err = joinClose(err, out.Abort) }()
	}
	ctx, w, done, err := a.openSessionFor(ctx, c, of)
	if err != nil {
		return err
	}
	defer func() { err = joinClose(err, done) }()
	bar := a.newBar("read "+key.String(), 0)
	opt.Progress = bar.add
	buf, rep, err := w.Read(ctx, key, opt)
	bar.stop()
	if err != nil {
		return err
	}
	defer buf.Release()
	if out != nil {
		rep.Output = to
		if err := out.Commit(buf.Bytes()); err != nil {
			return atOp("read", err)
		}
	}
	if err := a.printRead(key, rep, to); err != nil {
		return err
	}
	if rep.Degraded && c.Bool("fail-on-degraded") {
		return fmt.Errorf("read: %s: %w: %s", key, errDegraded, degradation(rep))
	}
	return nil
}

func (a *app) explain(ctx context.Context, c *cli.Command, of sessionFor, key object.Key, opt object.ReadOptions) (err error) {
	ctx, w, done, err := a.openSessionFor(ctx, c, of)
	if err != nil {
		return err
	}
	defer func() { err = joinClose(err, done) }()
	p, err := w.ExplainRead(ctx, key, opt)
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(p)
	}
	a.printf("%s", p)
	return nil
}

// printRead reports a read; on standard error when the content itself went to
// standard output.
func (a *app) printRead(key object.Key, rep *object.ReadReport, to string) error {
	if to == "-" {
		on := *a
		on.out, on.outTTY = a.err, a.errTTY
		if a.quiet {
			on.out = io.Discard
		}
		a = &on
	}
	if a.json {
		return a.printJSON(rep)
	}
	part := ""
	if rep.Bytes < rep.ObjectBytes {
		part = fmt.Sprintf(" from %d on of %d", rep.Offset, rep.ObjectBytes)
	}
	a.printf("%s generation %d: %s%s in %s, %s, verified, xxh3 %s\n", key, rep.Generation, bytesText(rep.Bytes), part, seconds(rep.Seconds), rate(rep.BytesPerSecond), rep.XXH3)
	a.printRails(rep.Rails)
	if rep.Degraded {
		a.printf("%s\n", a.paint(yellow, "degraded: "+degradation(rep)))
	}
	if to != "" && to != "-" {
		a.printf("written to %s\n", to)
	}
	return nil
}

// degradation says what did not go as planned.
func degradation(rep *object.ReadReport) string {
	var p []string
	for _, m := range rep.Moves {
		p = append(p, fmt.Sprintf("%d bytes moved from rail %s to rail %s (%s)", m.Bytes, m.From, m.To, m.Why))
	}
	for _, f := range rep.Faults {
		p = append(p, fmt.Sprintf("rail %s failed to shard %d (%s)", f.Rail, f.Shard, f.Verdict))
	}
	for _, c := range rep.Corruptions {
		p = append(p, fmt.Sprintf("stripe %d came with %d wrong bytes from offset %d on over rail %s, and right over rail %s", c.Stripe, c.Wrong, c.Offset, c.Rail, c.RereadOn))
	}
	if rep.Rereads > 0 {
		p = append(p, fmt.Sprintf("%d stripes were read twice", rep.Rereads))
	}
	if rep.Attempts > 1 {
		p = append(p, fmt.Sprintf("the object changed meanwhile and was read %d times", rep.Attempts))
	}
	p = append(p, rep.Excluded...)
	if len(p) == 0 {
		return "not as planned"
	}
	return strings.Join(p, "; ")
}

// atOp names the operation of an error that has no place yet.
func atOp(op string, err error) error {
	return pipeline.Wrap(err, pipeline.LayerStorage, op, pipeline.Nowhere)
}

// joinClose closes at the end of a command; its error counts only when there is
// no other.
func joinClose(err error, done func() error) error {
	if cerr := done(); cerr != nil && err == nil && !errors.Is(cerr, context.Canceled) {
		return cerr
	}
	return err
}
